"""WaitsForItself: a thread that is alone is told at once, but only after a last look at the table.

Another thread may do its work and end between the look of a waiting thread and the count of the threads. A Python
thread is preempted there when the machine is busy, so the tests do that work inside the count.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tiered.tools import needs_tiers, smallest_storage

import relive
from relive import errors
from relive.core import ending

SPEC = relive.StepSpec({"number": relive.ArraySpec((), "int64")})
LATE = relive.StepSpec({"number": relive.ArraySpec((), "int64"), "score": relive.ArraySpec((), "float32", late=True)})

Meanwhile = Callable[[Callable[[], Any]], None]


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Iterator[Meanwhile]:
    """meanwhile(work): another thread does the work and ends while the next waiting thread counts the threads."""
    left: list[Callable[[], Any]] = []

    def num_threads() -> int:
        if left:
            other = threading.Thread(target=left.pop())
            other.start()
            other.join()
        return 1

    monkeypatch.setattr(ending, "num_threads", num_threads)
    yield left.append
    assert not left, "no thread waited"


def test_items_of_a_thread_that_has_ended_are_drawn(meanwhile: Meanwhile) -> None:
    with relive.Table(SPEC, 100) as table, table.writer() as writer:
        meanwhile(lambda: writer.append(number=7))
        assert table.sample(1, timeout_s=20.0)["number"].tolist() == [7]
        table.clear()
        with pytest.raises(errors.WaitsForItself):
            table.sample(1, timeout_s=20.0)


@pytest.mark.parametrize("is_tiered", [False, pytest.param(True, marks=needs_tiers)])
def test_late_columns_of_a_thread_that_has_ended_count(meanwhile: Meanwhile, tmp_path: Any, is_tiered: bool) -> None:
    storage = smallest_storage(tmp_path, LATE, 100, None, 4) if is_tiered else relive.LocalMemory()
    with relive.Table(LATE, 100, storage=storage) as table, table.writer() as writer:
        keys = writer.extend(number=np.arange(3))
        meanwhile(lambda: table.complete(keys, score=np.ones(3)))
        assert table.sample(8, timeout_s=20.0)["score"].tolist() == [1.0] * 8


def test_unused_items_of_a_thread_that_has_ended_are_drawn(meanwhile: Meanwhile) -> None:
    """The index has items, but too few with uses left."""
    with relive.Table(SPEC, 100, relive.Index(max_times_sampled=1)) as table, table.writer() as writer:
        writer.append(number=0)
        meanwhile(lambda: writer.append(number=1))
        assert sorted(table.sample(2, timeout_s=20.0)["number"].tolist()) == [0, 1]


def test_masses_of_a_thread_that_has_ended_are_drawn(meanwhile: Meanwhile) -> None:
    index = relive.Index(sampler=relive.Prioritized(), replacement=False)
    with relive.Table(SPEC, 100, index) as table, table.writer() as writer:
        keys = writer.extend(number=np.arange(2))
        table.update_priorities(keys[:1], [0.0])
        meanwhile(lambda: table.update_priorities(keys[:1], [1.0]))
        assert sorted(table.sample(2, timeout_s=20.0)["number"].tolist()) == [0, 1]
        table.update_priorities(keys[:1], [0.0])
        with pytest.raises(errors.WaitsForItself):
            table.sample(2, timeout_s=20.0)


@pytest.mark.parametrize("is_explicit", [False, True])
def test_room_of_a_thread_that_has_ended_is_taken(meanwhile: Meanwhile, is_explicit: bool) -> None:
    limiter = relive.SamplesPerInsert(1.0, min_size=10, tolerance=10.0)
    index = relive.Index(relive.Explicit(1), limiter=limiter) if is_explicit else relive.Index(limiter=limiter)
    with relive.Table(SPEC, 100, index) as table, table.writer() as writer:

        def bring() -> None:
            key = writer.append(number=0)
            if is_explicit:
                writer.create_item([key])

        for _ in range(20):
            bring()
        table.sample(1)
        bring()
        with pytest.raises(errors.WaitsForItself):
            bring()
        meanwhile(lambda: table.sample(10))
        bring()
        assert table.num_items() == 22


def test_a_thread_that_starts_another_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that never writes may begin after the threads were listed. The thread that started it still counts."""
    go, begun, end = threading.Event(), threading.Event(), threading.Event()

    def start_another() -> None:
        go.wait()
        ending.start_thread(end.wait, "relive-test", never_writes=True)
        begun.set()
        end.wait()

    def then_another_begins(count: Callable[[], Any]) -> Callable[[], Any]:
        def counted() -> Any:
            found = count()
            go.set()
            begun.wait()
            return found

        return counted

    before = ending.num_threads()
    thread = threading.Thread(target=start_another)
    thread.start()
    try:
        for name in ("active_count", "enumerate"):
            monkeypatch.setattr(threading, name, then_another_begins(getattr(threading, name)))
        assert ending.num_threads() == before + 1
    finally:
        go.set()
        end.set()
        thread.join()


def test_a_start_that_is_interrupted_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python itself keeps a thread whose start was interrupted, with its target, for ever."""

    class Owner:
        def work(self) -> None:
            raise AssertionError("the start was interrupted")

    def interrupted(*arguments: object, **named: object) -> None:
        raise KeyboardInterrupt

    owner = Owner()
    collected = weakref.ref(owner)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        starts = "_start_joinable_thread" if hasattr(threading, "_start_joinable_thread") else "_start_new_thread"
        patch.setattr(threading, starts, interrupted)
        ending.start_thread(owner.work, "relive-test")
    del owner
    gc.collect()
    assert collected() is None
