"""A signal handler that raises within a call: a batch is counted once or not at all, and nothing stays in flight."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timer that sends signals")
SPEC = relive.StepSpec({"number": relive.ArraySpec((), "int64")})


class Interrupted(Exception):
    """The error that the handler raises."""


@pytest.fixture
def interrupted() -> Iterator[Callable[[Callable[[], Any]], bool]]:
    """interrupted(call): makes the call while a signal is on its way. Returns whether the handler raised in it."""
    chance = random.Random(7)
    is_within = False

    def handler(number: int, frame: Any) -> None:
        if is_within:
            raise Interrupted

    def call_it(call: Callable[[], Any]) -> bool:
        nonlocal is_within
        try:
            is_within = True
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, 3e-4))
            call()
            return False
        except Interrupted:
            return True
        finally:
            is_within = False
            signal.setitimer(signal.ITIMER_REAL, 0.0)

    before = signal.signal(signal.SIGALRM, handler)
    hook, sys.unraisablehook = sys.unraisablehook, lambda problem: None  # the handler may raise while an object goes
    yield call_it
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    signal.signal(signal.SIGALRM, before)
    sys.unraisablehook = hook


@contextlib.contextmanager
def filled(**more: Any) -> Iterator[relive.Table]:
    index = relive.Index(limiter=relive.SamplesPerInsert(1000.0, 10, tolerance=1e6), **more)
    with relive.Table(SPEC, 1_000, {"a": index, "b": index}) as table, table.writer() as writer:
        writer.extend(number=np.arange(200))
        yield table


def counts(table: relive.Table) -> tuple[int, int]:
    """The items sampled of both indexes; none may be in flight."""
    stats = table.stats().indexes
    assert stats["a"].in_flight == 0 == stats["b"].in_flight
    return stats["a"].sampled, stats["b"].sampled


@pytest.mark.parametrize("max_times", [None, 60_000])
def test_a_mixture(interrupted: Callable[[Callable[[], Any]], bool], max_times: int | None) -> None:
    with filled(max_times_sampled=max_times) as table, relive.Mixture({"a": 0.75, "b": 0.25}, table) as mixture:
        calls = [interrupted(lambda: mixture.sample(8)) for _ in range(600)]
        assert any(calls)
        first, second = counts(table)
        assert first == 3 * second and 600 - sum(calls) <= second // 2 <= 600
        assert mixture.sample(8).num_items == 8
        table.check()


@pytest.mark.parametrize("is_mixed", [False, True])
def test_batches(interrupted: Callable[[Callable[[], Any]], bool], is_mixed: bool) -> None:
    with filled() as table, relive.Mixture({"a": 0.75, "b": 0.25}, table) as mixture:
        source: Any = mixture if is_mixed else table
        with source.batches(8, prefetch=2) as batches:
            calls = [interrupted(lambda: next(batches)) for _ in range(600)]
            assert any(calls)
            assert next(batches).num_items == 8
        first, second = counts(table)
        handed_out = 601 - sum(calls)
        assert first == (3 * second if is_mixed else first // 8 * 8)
        assert handed_out <= (first + second) // 8 <= 601


def test_blocks_of_batches_that_begin_and_end(interrupted: Callable[[Callable[[], Any]], bool]) -> None:
    def block() -> None:
        with table.batches(8, prefetch=2) as batches:
            next(batches)

    with filled() as table:
        assert any([interrupted(block) for _ in range(300)])
        gc.collect()
        ends = time.monotonic() + 30.0
        while any(thread.name == "relive-prefetch" for thread in threading.enumerate()):
            assert time.monotonic() < ends
            time.sleep(0.01)
        assert counts(table)[0] // 8 <= 300
        table.check()


def test_a_handler_that_asks_for_the_next_batch_within_next() -> None:
    """It is refused in words: the batch that was interrupted is not handed out twice."""
    said: list[object] = []

    with filled() as table, table.batches(8, prefetch=2) as batches:
        hand_out = batches._hand_out

        def interrupted_once(was_late: bool) -> relive.Batch:
            commit = batches._bringer.ready[0].hold.commit

            def then_ask(was_late: bool = False) -> None:
                commit(was_late)
                try:
                    said.append(next(batches))
                except errors.WaitsForItself as problem:
                    said.append(problem)

            taken = batches._bringer.ready[0]
            hold = types.SimpleNamespace(commit=then_ask, give_back=taken.hold.give_back)
            batches._bringer.ready[0] = taken._replace(hold=hold)
            return hand_out(was_late)

        batches._hand_out = interrupted_once  # type: ignore[method-assign]
        assert next(batches).num_items == 8
        assert len(said) == 1 and isinstance(said[0], errors.WaitsForItself)


def signalled_while_released(write: Callable[[], Any]) -> Interrupted:
    """The handler's error of a signal that came while the call had released the GIL, to write without any wait.

    Another thread sends the signal. That thread runs only while this one has released the GIL: in the call, or later
    in join(). In the second case the call is made again.
    """

    def raise_it(number: int, frame: Any) -> None:
        raise Interrupted

    before, interval = signal.signal(signal.SIGALRM, raise_it), sys.getswitchinterval()
    try:
        sys.setswitchinterval(1_000.0)
        for _ in range(10_000):
            sent = threading.Lock()
            sent.acquire()

            def send(sent: Any = sent) -> None:
                with sent:
                    os.kill(os.getpid(), signal.SIGALRM)

            sender = threading.Thread(target=send)
            try:
                sender.start()
                sent.release()
                write()
            except Interrupted as error:
                return error
            finally:
                with contextlib.suppress(Interrupted):
                    sender.join()
                sender.join()
    finally:
        sys.setswitchinterval(interval)
        signal.signal(signal.SIGALRM, before)
    raise AssertionError("no signal came within a call")


@pytest.mark.parametrize("num_lanes", [None, 3])
def test_a_signal_while_a_call_stores_all_of_its_rows_is_told_with_their_keys(num_lanes: int | None) -> None:
    """The handler runs after the last row is stored. The caller must not write these rows a second time."""
    with relive.Table(SPEC, 100_000) as table, table.writer(num_lanes) as writer:
        shape = () if num_lanes is None else (num_lanes,)
        for write in (
            lambda: writer.append(number=np.full(shape, 7)),
            lambda: writer.append(number=np.full(shape, 7), timeout_s=1.0),
            lambda: writer.extend(number=np.full((50, *shape), 7)),
        ):
            error = signalled_while_released(write)
            stored, keys = error.stored, error.keys  # type: ignore[attr-defined]
            assert stored == len(keys) in (num_lanes or 1, 50 * (num_lanes or 1))
            assert table.gather(keys).present.all()
            assert (table.gather(keys, columns=["number"])["number"] == 7).all()
            assert max(np.concatenate(list(table.keys()))) == keys[-1], "these are the last rows"


def test_a_signal_while_items_are_made_is_told_with_their_keys() -> None:
    items = relive.Explicit(windows={"now": relive.Window(1)}, max_items=50_000)
    with relive.Table(SPEC, 1_000, relive.Index(items)) as table, table.writer() as writer:
        rows = writer.extend(number=np.arange(100))
        stored = 0
        while not stored:  # the call releases the GIL a first time before it makes anything
            num_before, made = table.num_items(), []  # calls that no signal met are made, too
            error = signalled_while_released(lambda: made.append(table.create_items({"now": rows})))  # noqa: B023
            stored = getattr(error, "stored", 0)
            assert stored == 100 or table.num_items() <= num_before + 100 * len(made)
        assert table.gather(error.keys).present.all()  # type: ignore[attr-defined]


@pytest.mark.parametrize("after", [signal.SIG_DFL, signal.SIG_IGN])
def test_a_handler_that_sets_another_one_during_a_wait_is_obeyed(after: Any) -> None:
    """Programs let the second Ctrl-C end them at once: their handler sets SIG_DFL at the first."""
    code = f"""
import os, signal
from relive._core import heard
signal.signal(signal.SIGINT, lambda *_: signal.signal(signal.SIGINT, signal.Handlers({int(after)})))
heard(lambda: os.kill(os.getpid(), signal.SIGINT))
heard(lambda: None)
os.kill(os.getpid(), signal.SIGINT)
print("lives", signal.getsignal(signal.SIGINT) == {int(after)})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    expected = (-signal.SIGINT, "") if after == signal.SIG_DFL else (0, "lives True\n")
    assert (done.returncode, done.stdout) == expected, done.stderr
