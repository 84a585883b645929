"""The call that an object's end asks for: once, in a thread, and never lost."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from types import FrameType

from processes.tools import eventually

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
