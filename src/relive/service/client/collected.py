"""Ends what the service owned for an object that was collected, in a thread of its own.

A collection may happen anywhere, also where this thread has taken a lock. It must therefore neither take one nor wait.
No Python runs in it either: a signal's handler that raised there would lose the end, and its error would have no
caller. weakref.finalize() runs Python.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any, final

from relive.core.ending import at_end, start_thread
from relive.errors import ReliveError

__all__ = ["Collected", "end_when_collected"]


@final
class Collected(weakref.ref[Any]):
    """A weak reference with the call that its object's end asks for."""

    end: Callable[[], object]

    def detach(self) -> bool:
        """Forgets the call. False if it is under way, over or forgotten."""
        return _awaited.pop(id(self), None) is not None


_due: queue.SimpleQueue[Collected | None] = queue.SimpleQueue()
_awaited: dict[int, Collected] = {}  # a weak reference that was dropped itself tells of no end
_starting = threading.Lock()
_process = 0  # which has the thread: a forked child has none


def end_when_collected(handle: object, end: Callable[[], object]) -> Collected:
    """Calls end() when the handle is collected, in a thread. end() must not refer to the handle.

    An error of the library in end() has no caller, and is dropped.
    """
    global _process
    with _starting:
        if _process != os.getpid():
            start_thread(_end_all, "relive-collected", _due, never_writes=True)
            _process = os.getpid()  # after the start, which Ctrl-C may interrupt: then the next call starts a thread
    collected = Collected(handle, _due.put)
    collected.end = end
    _awaited[id(collected)] = collected
    return collected


def _end_all(due: queue.SimpleQueue[Collected | None]) -> None:
    while (collected := due.get()) is not None:
        if collected.detach():
            with contextlib.suppress(ReliveError):
                collected.end()
        del collected
    due.put(None)  # for another thread of this queue, if Ctrl-C came just after the start of this one


@at_end
def _stop() -> None:
    _due.put(None)


def _note_fork() -> None:
    global _due, _starting
    _due, _starting = queue.SimpleQueue(), threading.Lock()  # the copies may be taken


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)
