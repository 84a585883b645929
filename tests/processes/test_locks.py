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
from processes.tools import Child, checked_spec, checked_step, children
from relive import errors
from relive.core.locked import check_lock
from relive.core.protocol import ReplayTable, ReplayWriter

pytestmark = needs_shared_memory


class HeardError(Exception):
    """The error that the signal's handler of these tests raises."""


def check_for_ever(pipe: Any, name: str) -> None:
    table = relive.attach(name)
    pipe.send("attached")
    while True:
        table.check()  # all of it under the lock


@contextlib.contextmanager
def stopped_holder(name: str) -> Iterator[Child]:
    """A process that is stopped while it holds the table lock; kill() ends it, and recovery goes on from there."""
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
        yield child


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
    """With three indexes: one whose limiter reserves under the lock, one whose items are claimed under it, one whose
    items are made; and with a column that comes late.
    """
    items = relive.Transitions(n_step=3, gamma=1.0, stack={"observation": 3})
    indexes = {
        "paced": relive.Index(items, relive.Prioritized(), relive.SamplesPerInsert(1.0, min_size=1, tolerance=1000.0)),
        "once": relive.Index(items, relive.Uniform(), max_times_sampled=1),
        "made": relive.Index(relive.Explicit({"now": 1}, max_items=10)),
    }
    spec = relive.StepSpec({**checked_spec().columns, "verdict": relive.ArraySpec((), "float32", late=True)})
    return relive.Table(spec, 300, indexes, storage=relive.SharedMemory(name), max_lanes=4, timeout_s=60.0)


def seventeen_of_twenty(table: relive.Table, writer: Any, **more: Any) -> np.ndarray:
    """Keys of steps, the first fifteen of which have their late column."""
    keys = np.array([writer.append(**checked_step(number), **more) for number in range(20)])
    table.complete(keys[:15], verdict=np.zeros(15))
    return keys[:17]


def block_of(count: int) -> dict[str, np.ndarray]:
    rows = [checked_step(number) for number in range(100, 100 + count)]
    return {column: np.stack([row[column] for row in rows]) for column in rows[0]}


def next_of_batches(table: relive.Table) -> None:
    with table.batches(4, prefetch=1) as batches:
        next(batches)


# Every way of a public call to the table lock: (the call of the interface, how it is made).
Calls = dict[str, tuple[str, Callable[[relive.Table, Any, Any, str], Any]]]
WAITING: Calls = {
    "append": ("Writer.append", lambda table, writer, keys, name: writer.append(**checked_step(1), priority=3.0)),
    "extend": ("Writer.extend", lambda table, writer, keys, name: writer.extend(**block_of(20))),
    "end_episode": ("Writer.end_episode", lambda table, writer, keys, name: writer.end_episode(terminated=True)),
    "abandon": ("Writer.abandon", lambda table, writer, keys, name: writer.abandon()),
    "close of a writer": ("Writer.close", lambda table, writer, keys, name: writer.close()),
    "writer": ("Table.writer", lambda table, writer, keys, name: table.writer()),
    "sample": ("Table.sample", lambda table, writer, keys, name: table.sample(4)),
    "claim": ("Table.sample", lambda table, writer, keys, name: table.sample(4, index="once")),
    "draw": ("Table.draw", lambda table, writer, keys, name: table.draw(4)),
    "claim of one's own": (
        "Table.claim",
        lambda table, writer, keys, name: table.claim(relive.Draw.of(keys[:2], [0.5, 0.5], index="once")),
    ),
    "batches": ("Table.batches", lambda table, writer, keys, name: next_of_batches(table)),
    "update": (
        "Table.update_priorities",
        lambda table, writer, keys, name: table.update_priorities(keys, np.ones(len(keys))),
    ),
    "delete": ("Table.delete", lambda table, writer, keys, name: table.delete(keys)),
    "complete": (
        "Table.complete",
        lambda table, writer, keys, name: table.complete(keys[15:], verdict=np.ones(2)),
    ),
    "create items": ("Table.create_items", lambda table, writer, keys, name: table.create_items({"now": keys[:2]})),
    "create an item": ("Writer.create_item", lambda table, writer, keys, name: writer.create_item({"now": keys[0]})),
    "set a limiter": ("Table.set_limiter", lambda table, writer, keys, name: table.set_limiter(relive.MinSize(2))),
    "set an exponent": (
        "Table.set_priority_exponent",
        lambda table, writer, keys, name: table.set_priority_exponent(0.5),
    ),
    "clear": ("Table.clear", lambda table, writer, keys, name: table.clear()),
    "check": ("Table.check", lambda table, writer, keys, name: table.check()),
    "attach": ("attach", lambda table, writer, keys, name: relive.attach(name, timeout_s=table.timeout_s)),
}
# The other calls: they look or store a word, and a holder of the lock that does not go on is nothing to them.
PASSING: Calls = {
    "spec": ("Table.spec", lambda table, writer, keys, name: table.spec),
    "len": ("Table.__len__", lambda table, writer, keys, name: len(table)),
    "stats": ("Table.stats", lambda table, writer, keys, name: table.stats()),
    "exponent": ("Table.priority_exponent", lambda table, writer, keys, name: table.priority_exponent()),
    "keys": ("Table.keys", lambda table, writer, keys, name: list(table.keys())),
    "episodes": ("Table.episodes", lambda table, writer, keys, name: list(table.episodes())),
    "limiter": ("Table.limiter", lambda table, writer, keys, name: table.limiter()),
    "version": ("Table.set_policy_version", lambda table, writer, keys, name: table.set_policy_version(3)),
    "version of a writer": (
        "Writer.set_policy_version",
        lambda table, writer, keys, name: writer.set_policy_version(4),
    ),
    "gather": ("Table.gather", lambda table, writer, keys, name: table.gather(keys)),
    "gather_steps": ("Table.gather_steps", lambda table, writer, keys, name: table.gather_steps(keys)),
    # It waits its deadline and leaves the rest to a sweep.
    "close": ("Table.close", lambda table, writer, keys, name: table.close()),
}


def call_it(calls: Calls, call: str, table: Any, writer: Any, keys: Any, name: str) -> Any:
    return calls[call][1](table, writer, keys, name)


def test_every_call_of_the_interface_has_its_row() -> None:
    """A new verb says here how it meets a lock that is not to be had."""
    named = {verb for calls in (WAITING, PASSING) for verb, _ in calls.values()}
    interface = {
        f"{kind}.{name}"
        for kind, protocol in (("Table", ReplayTable), ("Writer", ReplayWriter))
        for name in vars(protocol)
        if not name.startswith("_") or name == "__len__"
    }
    assert named == interface | {"attach"}


@pytest.mark.parametrize("call", WAITING)
def test_a_wait_for_the_lock_hears_signals(shm_name: Any, call: str) -> None:
    """And leaves everything as it was; the same call works once the lock is free."""
    name = shm_name()
    with paced_table(name) as table, table.writer() as writer:
        keys = seventeen_of_twenty(table, writer)
        before = table.stats()
        with stopped_holder(name) as holder:
            with interrupted(holder.kill):
                call_it(WAITING, call, table, writer, keys, name)
            assert not writer.closed
            holder.kill()
        relive.attach(name).close()  # sweeps
        table.check()
        after = table.stats()
        assert after.num_steps == before.num_steps and after.num_lanes == before.num_lanes
        assert after.num_participants == 1
        for index in ("paced", "once"):
            assert after.indexes[index].num_items == before.indexes[index].num_items
            assert after.indexes[index].in_flight == 0
            assert after.indexes[index].sampled == before.indexes[index].sampled
        call_it(WAITING, call, table, writer, keys, name)
        table.check()
    assert not shared_files(name)


@pytest.mark.parametrize("call", WAITING)
def test_a_wait_for_the_lock_keeps_the_handles_deadline(shm_name: Any, call: str) -> None:
    """A call without a deadline has the deadline of its handle. The error names the process that has the lock."""
    name = shm_name()
    with paced_table(name) as table, relive.attach(name, timeout_s=0.3) as other, other.writer() as writer:
        keys = seventeen_of_twenty(table, writer, timeout_s=5.0)
        with stopped_holder(name) as holder:
            watch = threading.Timer(20.0, holder.kill)  # the call would then succeed
            watch.start()
            with pytest.raises(errors.DeadlineExceeded) as raised:
                call_it(WAITING, call, other, writer, keys, name)
            watch.cancel()
            watch.join()
            assert type(raised.value) is errors.DeadlineExceeded
            assert raised.value.holder_pid == holder.process.pid
            assert raised.value.needs == "the table lock" and raised.value.waited_s > 0.0
            holder.kill()
        table.check()


@pytest.mark.parametrize("call", PASSING)
def test_what_needs_no_lock_does_not_wait_for_it(shm_name: Any, call: str) -> None:
    name = shm_name()
    with paced_table(name) as table, relive.attach(name, timeout_s=0.3) as other:
        writer = other.writer()
        keys = seventeen_of_twenty(table, writer, timeout_s=5.0)
        with stopped_holder(name) as holder:
            watch = threading.Timer(20.0, holder.kill)
            watch.start()
            call_it(PASSING, call, other, writer, keys, name)
            assert holder.process.is_alive()
            watch.cancel()
            watch.join()
            holder.kill()
        relive.attach(name).close()  # sweeps
        table.check()
        assert table.stats().num_participants == (1 if call == "close" else 2)


def test_the_lock_of_a_table_without_items_is_looked_at(shm_name: Any) -> None:
    name = shm_name()
    with paced_table(name) as table, relive.attach(name, read_only=True) as reader:
        check_lock(table.core, 0.0)
        with stopped_holder(name) as holder:
            with pytest.raises(errors.DeadlineExceeded) as raised:
                check_lock(table.core, 0.0)
            assert raised.value.holder_pid == holder.process.pid
            check_lock(reader.core, 0.0)  # a handle that changes nothing takes no lock
            holder.kill()
        check_lock(table.core, 60.0)
        table.check()
    check_lock(table.core, 0.0)


def test_a_writer_that_could_not_close_is_closed_again(shm_name: Any) -> None:
    name = shm_name()
    with paced_table(name) as table, relive.attach(name, timeout_s=0.0) as other:
        writer = other.writer(num_lanes=4)
        with stopped_holder(name) as holder:
            for _ in range(2):
                with pytest.raises(errors.DeadlineExceeded):
                    writer.close()
                assert not writer.closed
            holder.kill()
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
        with stopped_holder(name) as holder:
            with pytest.raises(errors.DeadlineExceeded), writer:
                pass
            del writer
            gc.collect()
            holder.kill()
        assert table.stats().num_lanes == 4
        with other.writer(num_lanes=4) as again:
            again.append(**{column: np.stack([value] * 4) for column, value in checked_step(0).items()})
        assert table.stats().num_lanes == 0
        table.check()
