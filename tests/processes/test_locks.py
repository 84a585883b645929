"""A table lock whose holder is stopped: waits hear signals and keep the handle's deadline, and nothing is half done."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import relive
from processes.shm import needs_shared_memory, shared_files
from processes.tools import checked_spec, checked_step, children
from relive import errors

pytestmark = needs_shared_memory


class HeardError(Exception):
    """What the signal's handler of these tests raises."""


def check_for_ever(pipe: Any, name: str) -> None:
    table = relive.attach(name)
    pipe.send("attached")
    while True:
        table.check()  # all of it under the lock


@contextlib.contextmanager
def stopped_holder(name: str) -> Iterator[Callable[[], None]]:
    """A process that is stopped while it holds the table lock; calling what comes ends it."""
    with children() as start, relive.attach(name, timeout_s=0.0) as probe:
        child = start("fork", check_for_ever, name)
        child.answer()
        for _ in range(1000):
            os.kill(child.process.pid, signal.SIGSTOP)
            try:
                probe.check()
            except errors.DeadlineExceeded as error:
                assert error.holder_pid == child.process.pid
                break
            os.kill(child.process.pid, signal.SIGCONT)
            time.sleep(0.001 * random.random())  # so that it comes to another place
        else:
            raise AssertionError("it never held the lock when it was stopped")
        yield child.kill


@contextlib.contextmanager
def interrupted(go_on: Callable[[], None]) -> Iterator[None]:
    """A signal comes while the block waits, and its handler raises: while it waits, not when the lock is free again."""
    order = []

    def raise_it(*_: Any) -> None:
        order.append("heard")
        raise HeardError

    def free() -> None:
        order.append("freed")
        go_on()

    before = signal.signal(signal.SIGUSR1, raise_it)
    timers = [threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGUSR1)), threading.Timer(8.0, free)]
    for timer in timers:
        timer.start()
    try:
        with pytest.raises(HeardError):
            yield
        assert order == ["heard"]
    finally:
        for timer in timers:
            timer.cancel()
            timer.join()
        signal.signal(signal.SIGUSR1, before)


def paced_table(name: str) -> relive.Table:
    """With two indexes: one whose limiter reserves under the lock, one whose items are claimed under it."""
    items = relive.Transitions(n_step=3, gamma=1.0, stack={"observation": 3})
    indexes = {
        "paced": relive.Index(items, relive.Prioritized(), relive.SamplesPerInsert(1.0, min_size=1, tolerance=1000.0)),
        "once": relive.Index(items, relive.Uniform(), max_times_sampled=1),
    }
    return relive.Table(checked_spec(), 300, indexes, storage=relive.SharedMemory(name), max_lanes=4, timeout_s=60.0)


WAITING: dict[str, Callable[[relive.Table, Any, Any, str], Any]] = {
    "append": lambda table, writer, keys, name: writer.append(**checked_step(1), priority=3.0),
    "end_episode": lambda table, writer, keys, name: writer.end_episode(terminated=True),
    "close of a writer": lambda table, writer, keys, name: writer.close(),
    "writer": lambda table, writer, keys, name: table.writer(),
    "sample": lambda table, writer, keys, name: table.sample(4),
    "claim": lambda table, writer, keys, name: table.sample(4, index="once"),
    "update": lambda table, writer, keys, name: table.update_priorities(keys, np.ones(len(keys))),
    "delete": lambda table, writer, keys, name: table.delete(keys),
    "clear": lambda table, writer, keys, name: table.clear(),
    "check": lambda table, writer, keys, name: table.check(),
    "attach": lambda table, writer, keys, name: relive.attach(name, timeout_s=table.timeout_s),
}


@pytest.mark.parametrize("call", WAITING)
def test_a_wait_for_the_lock_hears_signals(shm_name: Any, call: str) -> None:
    """And leaves everything as it was; the same call works once the lock is free."""
    name = shm_name()
    with paced_table(name) as table, table.writer() as writer:
        keys = np.array([writer.append(**checked_step(number)) for number in range(20)][:17])
        before = table.stats()
        with stopped_holder(name) as go_on:
            with interrupted(go_on):
                WAITING[call](table, writer, keys, name)
            assert not writer.closed
            go_on()
        relive.attach(name).close()  # sweeps
        table.check()
        after = table.stats()
        assert after.num_steps == before.num_steps and after.num_lanes == before.num_lanes
        assert after.num_participants == 1
        for index in ("paced", "once"):
            assert after.indexes[index].num_items == before.indexes[index].num_items
            assert after.indexes[index].in_flight == 0
            assert after.indexes[index].sampled == before.indexes[index].sampled
        WAITING[call](table, writer, keys, name)
        table.check()
    assert not shared_files(name)


@pytest.mark.parametrize("call", [name for name in WAITING if name not in ("append", "sample")])
def test_a_wait_for_the_lock_keeps_the_handles_deadline(shm_name: Any, call: str) -> None:
    """Where a call takes no timeout_s the handle's own counts: 0 tries, where the lock's old deadline was 10 s."""
    name = shm_name()
    with paced_table(name) as table, relive.attach(name, timeout_s=0.0) as other, other.writer() as writer:
        keys = np.array([writer.append(**checked_step(number), timeout_s=5.0) for number in range(20)][:17])
        with stopped_holder(name) as go_on:
            watch = threading.Timer(8.0, go_on)  # the call would then succeed
            watch.start()
            with pytest.raises(errors.DeadlineExceeded):
                WAITING[call](other, writer, keys, name)
            watch.cancel()
            watch.join()
            go_on()
        table.check()


def test_a_writer_that_could_not_close_is_closed_again(shm_name: Any) -> None:
    name = shm_name()
    with paced_table(name) as table, relive.attach(name, timeout_s=0.0) as other:
        writer = other.writer(num_lanes=4)
        with stopped_holder(name) as go_on:
            for _ in range(2):
                with pytest.raises(errors.DeadlineExceeded):
                    writer.close()
                assert not writer.closed
            go_on()
        table.check()
        assert table.stats().num_lanes == 4
        writer.close()
        assert writer.closed and table.stats().num_lanes == 0
        writer.close()


def test_a_writer_whose_block_could_not_close_it(shm_name: Any) -> None:
    """Dropped after that it leaves its lanes to the handle, which gives them to the next writer."""
    name = shm_name()
    with paced_table(name) as table, relive.attach(name, timeout_s=0.0) as other:
        writer = other.writer(num_lanes=4)
        with stopped_holder(name) as go_on:
            with pytest.raises(errors.DeadlineExceeded), writer:
                pass
            del writer
            gc.collect()
            go_on()
        assert table.stats().num_lanes == 4
        with other.writer(num_lanes=4) as again:
            again.append(**{column: np.stack([value] * 4) for column, value in checked_step(0).items()})
        assert table.stats().num_lanes == 0
        table.check()
