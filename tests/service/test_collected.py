"""The call that an object's end asks for: once, in a thread, and never lost."""

from __future__ import annotations

import contextlib
import gc
import queue
import sys
import threading
import weakref
from collections.abc import Iterator
from types import FrameType

import pytest
from processes.tools import eventually

from relive.service.client import collected
from relive.service.client.collected import end_when_collected
from relive.service.client.exchange import Watch


class Handle:
    """An object that is collected."""


class Interrupted(Exception):
    """The error of a signal's handler."""


class Interrupting:
    """Within this, each call of a Python function raises, as a signal's handler may."""

    def __enter__(self) -> None:
        sys.setprofile(self._interrupt)

    def __exit__(self, *raised: object) -> None:
        sys.setprofile(None)

    @staticmethod
    def _interrupt(frame: FrameType, event: str, arg: object) -> None:
        if event == "call" and frame.f_code is not Interrupting.__exit__.__code__:
            raise Interrupted


def test_an_interrupt_in_a_collection_loses_no_end() -> None:
    ended = threading.Event()
    handle = Handle()
    end_when_collected(handle, ended.set)
    with Interrupting():
        del handle
    assert ended.wait(10.0)


def test_an_interrupt_in_a_collection_leaves_no_watch() -> None:
    def watches() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "relive-deadlines"}

    before = watches()
    owner = Handle()
    watch = Watch(owner)
    watch.wake()
    assert watches() - before
    with Interrupting():
        del owner
    assert eventually(lambda: not watches() - before)


def test_each_end_comes_once() -> None:
    ended: list[int] = []
    handles = [Handle() for _ in range(100)]
    kept = [end_when_collected(handle, lambda k=k: ended.append(k)) for k, handle in enumerate(handles)]
    assert kept[3].detach() and not kept[3].detach()
    handles.clear()
    gc.collect()
    assert eventually(lambda: len(ended) == 99)
    assert sorted(ended) == [k for k in range(100) if k != 3]
    assert not any(one.detach() for one in kept)


def test_an_end_is_forgotten_when_it_is_over() -> None:
    """Nothing refers to the objects that the call referred to."""
    owned = Handle()
    there = weakref.ref(owned)
    handle = Handle()
    end_when_collected(handle, lambda owned=owned: None)
    del owned, handle
    assert eventually(lambda: there() is None)


# ---- Ctrl-C as a thread starts ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def interrupted_start(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """In the block each start of a thread is interrupted, before the thread exists."""

    def start(thread: threading.Thread) -> None:
        raise Interrupted

    with patch.context() as within, pytest.raises(Interrupted):
        within.setattr(threading.Thread, "start", start)
        yield


def test_the_next_handle_starts_the_thread_that_ends_handles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collected, "_process", 0)  # as in a process that has not used the service
    with interrupted_start(monkeypatch):
        end_when_collected(Handle(), lambda: None)
    monkeypatch.setattr(collected, "_due", queue.SimpleQueue())  # which the thread of earlier tests does not read
    ended = threading.Event()
    end_when_collected(Handle(), ended.set)
    assert ended.wait(10.0)
    collected._due.put(None)


def test_the_next_stream_starts_the_thread_that_looks_for_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(owner := Handle())
    with interrupted_start(monkeypatch):
        watch.wake()
    assert watch.sleeps  # so the next stream wakes it
    watch.wake()
    assert watch._thread is not None and watch._thread.is_alive()
    watch.stop()
    del owner
