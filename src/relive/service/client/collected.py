"""Ends what the service owned for an object that was collected, in a thread of its own.

A collection may happen anywhere, also where this thread has taken a lock. It must therefore neither take one nor wait.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import weakref
from collections.abc import Callable

from relive.core.ending import at_end, start_thread
from relive.errors import ReliveError

__all__ = ["end_when_collected"]

_due: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
_starting = threading.Lock()
_process = 0  # which has the thread: a forked child has none


def end_when_collected(handle: object, end: Callable[[], object]) -> weakref.finalize:  # type: ignore[type-arg]
    """Calls end() when the handle is collected, in a thread. end() must not refer to the handle.

    An error of the library in end() has no caller, and is dropped.
    """
    global _process
    with _starting:
        if _process != os.getpid():
            _process = os.getpid()
            start_thread(_end_all, "relive-collected", never_writes=True)
    finalizer = weakref.finalize(handle, _due.put, end)
    finalizer.atexit = False
    return finalizer


def _end_all() -> None:
    while (end := _due.get()) is not None:
        with contextlib.suppress(ReliveError):
            end()
        del end


@at_end
def _stop() -> None:
    _due.put(None)


def _note_fork() -> None:
    global _due, _starting
    _due, _starting = queue.SimpleQueue(), threading.Lock()  # the copies may be taken


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)
