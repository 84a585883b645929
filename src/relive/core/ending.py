"""What is closed when the process ends, whichever way: by the interpreter's end, or as a child of multiprocessing."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Callable
from typing import TypeVar

from relive import _core

__all__ = ["at_end"]

Closer = TypeVar("Closer", bound=Callable[[], None])

_closers: list[Callable[[], None]] = []


def at_end(closer: Closer) -> Closer:
    """Calls closer when the process ends, the last one first, before the tables are closed that are still open."""
    _closers.append(closer)
    return closer


def _end() -> None:
    # Threads that wait in the core stay there from end_of_process on, so whoever joins one comes before it.
    with contextlib.ExitStack() as stack:  # each is called, whatever others raise
        stack.callback(_core.end_of_process)
        while _closers:
            stack.callback(_closers.pop(0))


class _ChildrenOfMultiprocessing:
    """Children that multiprocessing forks leave by os._exit, past atexit; its own finalizers do run there.

    It clears them at a child's birth and then calls what was registered for after a fork, where they can be set anew.
    Nothing is imported for it: where multiprocessing is not loaded, it forks nobody.
    """

    def __init__(self) -> None:
        self._is_registered = False

    def watch(self) -> None:
        """In the parent, before it forks; and in a child that is about to be begun."""
        util = sys.modules.get("multiprocessing.util")
        if util is not None and not self._is_registered:
            util.register_after_fork(self, _ChildrenOfMultiprocessing.begin)
            self._is_registered = True

    def watch_this(self) -> None:
        """Where relive is imported: that may be a child which has begun already."""
        self.watch()
        process = sys.modules.get("multiprocessing.process")
        if process is not None and process.parent_process() is not None:
            self.begin()

    def begin(self) -> None:
        """In the child."""
        sys.modules["multiprocessing.util"].Finalize(None, _end, exitpriority=-1000)  # after all that programs have


_children = _ChildrenOfMultiprocessing()
_children.watch_this()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_children.watch)
atexit.register(_end)
