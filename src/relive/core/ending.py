"""Calls that run when the process ends, and threads that it waits for then.

A process ends at the end of the interpreter, or at the end of a child of multiprocessing.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from relive import _core
from relive.core.made_files import remove_made

__all__ = ["at_end", "joins_at_end", "num_threads", "start_thread"]

Closer = TypeVar("Closer", bound=Callable[[], None])

_JOIN_S = 2.0  # how long the end of the process waits for all threads together

_closers: list[Callable[[], None]] = []
_threads: set[threading.Thread] = set()  # list() of the set is one step
_apart: weakref.WeakSet[threading.Thread] = weakref.WeakSet()  # of those that neither write nor draw
_lasting: weakref.WeakSet[threading.Thread] = weakref.WeakSet()  # that end by themselves, whenever that is


def at_end(closer: Closer) -> Closer:
    """Calls `closer` when the process ends, before the core closes the tables that are still open.

    The closer that was registered last is called first.
    """
    _closers.append(closer)
    return closer


def start_thread(target: Callable[..., None], name: str, *args: Any, never_writes: bool = False) -> threading.Thread:
    """Starts a daemon thread that a closer tells to end. The end of the process then waits for it, at most 2 seconds.

    A thread that neither writes nor draws (never_writes) does not count in num_threads().

    A thread that uses objects of Arrow must be started here. Before Python 3.14, the end of the interpreter unwinds
    each thread that asks for the interpreter's lock. Arrow's C++ asks for it in functions that must not be unwound,
    for example at the release of a stream, and the process would then abort.

    If a signal's handler raises in this call, the thread does nothing and refers to nothing. Python keeps a thread
    whose start was interrupted for ever.
    """
    work: list[Callable[[], None]] = [lambda: target(*args)]
    thread = threading.Thread(target=_do, args=(work,), name=name, daemon=True)
    if never_writes:
        _apart.add(thread)
    try:
        thread.start()
        _threads.difference_update([one for one in list(_threads) if not one.is_alive()])
        _threads.add(thread)
    except BaseException:
        work.clear()
        _apart.add(thread)
        raise
    return thread


def _do(work: list[Callable[[], None]]) -> None:
    try:
        do = work.pop()
    except IndexError:  # the start was interrupted
        return
    do()


def joins_at_end(thread: threading.Thread) -> None:
    """Has the end of the process wait for a thread, however long it takes, before all closers.

    The interpreter waits for threads that are no daemons, but a child of multiprocessing runs the closers before that.
    """
    _lasting.add(thread)


def num_threads() -> int:
    """The threads of Python that might write or draw. The core asks, to tell a thread that it waits for itself."""
    return sum(thread not in _apart for thread in threading.enumerate())


def _join_threads() -> None:
    ends = time.monotonic() + _JOIN_S
    for thread in list(_threads):
        if thread is not threading.current_thread() and thread.is_alive():
            thread.join(max(ends - time.monotonic(), 0.0))


def _join_lasting() -> None:
    for thread in list(_lasting):
        if thread is not threading.current_thread() and thread.is_alive():
            thread.join()


def _end() -> None:
    # From end_of_process on, threads that wait in the core stay there. A closer that joins a thread must run before.
    with contextlib.ExitStack() as stack:  # each closer is called, whatever the others raise
        stack.callback(remove_made)  # last, when all tables of this process are closed
        stack.callback(_core.end_of_process)
        stack.callback(_join_threads)
        while _closers:
            stack.callback(_closers.pop(0))
        stack.callback(_join_lasting)  # first, while all that these threads use is open


class _ChildrenOfMultiprocessing:
    """Runs the calls in children that multiprocessing forks: these leave by os._exit and skip atexit.

    multiprocessing clears its finalizers at a child's birth, and then calls the functions that were registered for
    after a fork. Those functions can register a finalizer again. Nothing is imported for this: a program that has not
    loaded multiprocessing does not fork by it.
    """

    def __init__(self) -> None:
        self._is_registered = False

    def watch(self) -> None:
        """Runs in the parent before a fork, and in a child that is about to begin."""
        util = sys.modules.get("multiprocessing.util")
        if util is not None and not self._is_registered:
            util.register_after_fork(self, _ChildrenOfMultiprocessing.begin)
            self._is_registered = True

    def watch_this(self) -> None:
        """Runs when relive is imported, which may be inside a child that has already begun."""
        self.watch()
        process = sys.modules.get("multiprocessing.process")
        if process is not None and process.parent_process() is not None:
            self.begin()

    def begin(self) -> None:
        """Runs in the child."""
        sys.modules["multiprocessing.util"].Finalize(None, _end, exitpriority=-1000)  # after all that programs have


_children = _ChildrenOfMultiprocessing()
_children.watch_this()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_children.watch)
atexit.register(_end)
