"""Calls that run when the process ends, and threads that it waits for then.

A process ends at the end of the interpreter, or at the end of a child of multiprocessing.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from relive import _core
from relive.core.made_files import remove_made

__all__ = ["LastingWork", "at_end", "joins_at_end", "made_apart", "num_threads", "start_thread"]

Closer = TypeVar("Closer", bound=Callable[[], None])
Made = TypeVar("Made")


class LastingWork(Protocol):
    """The work of a thread that the end of the process waits for. It lives at least as long as the thread runs."""

    def wait_for_end(self) -> None:
        """Returns when the work has ended in any way."""
        ...

    def cancel(self) -> None:
        """Has the work end soon."""
        ...

    def tell_unheard(self) -> None:
        """Tells an error of the work that no caller has been told."""
        ...


_UNDO_S = 1.0
_JOIN_S = 2.0  # how long the end of the process waits for all threads together

_closers: list[Callable[[], None]] = []
_threads: set[threading.Thread] = set()  # list() of the set is one step
_apart: weakref.WeakSet[threading.Thread] = weakref.WeakSet()  # of those that neither write nor draw
# Threads that end by themselves, whenever that is, and their work.
_lasting: weakref.WeakKeyDictionary[threading.Thread, weakref.ref[LastingWork]] = weakref.WeakKeyDictionary()
_joins_first = False  # whether the interpreter joins them before it joins threads itself


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


def made_apart(make: Callable[[], Made], undo: Callable[[Made], None]) -> Made:
    """Returns make(), which a thread of its own calls. No handler of a signal runs in that thread.

    If a handler raises in this thread meanwhile, this call waits up to a second for make(), and undoes what it made.
    After that second the other thread undoes it. At the end of the interpreter no thread starts: this one calls make().

    Raises:
        RuntimeError: the system starts no more threads.
    """
    if sys.is_finalizing():
        return make()
    made: list[Made] = []  # pop() is one step, so one of both threads undoes it
    problems: list[BaseException] = []
    started: list[int] = []
    over: list[bool] = []
    given_up: list[bool] = []
    is_done = threading.Lock()
    is_done.acquire()

    def work() -> None:
        try:
            made.append(make())
        except BaseException as problem:
            problems.append(problem)
        over.append(True)
        is_done.release()
        if given_up:
            give_up()

    def give_up() -> None:
        with contextlib.suppress(IndexError):
            undo(made.pop())

    try:
        started.extend(map(_thread.start_new_thread, (work,), ((),)))  # no handler runs between the start and its note
        is_done.acquire()
        if problems:
            raise problems.pop()
        return made[0]
    except BaseException:
        try:
            if started and not over:  # the other thread is still at work
                is_done.acquire(timeout=_UNDO_S)
        finally:  # a second Ctrl-C ends the wait
            given_up.append(True)
            give_up()
        raise


def joins_at_end(thread: threading.Thread, work: LastingWork) -> None:
    """Has the end of the process wait for the thread of this work, however long it takes, before all closers.

    The interpreter waits for threads that are no daemons, but a child of multiprocessing runs the closers before that.
    The first Ctrl-C in this wait cancels all such work, and the wait goes on. A second one ends the process at once, as
    a kill would.
    """
    global _joins_first
    _lasting[thread] = weakref.ref(work)
    # Ctrl-C while the interpreter itself joins threads prints a traceback. The last call that is registered comes
    # first: before that of the thread pools, which the threads use.
    register = None if _joins_first else getattr(threading, "_register_atexit", None)
    _joins_first = True
    if register is not None:
        with contextlib.suppress(RuntimeError):  # the interpreter ends already
            register(_join_lasting)


def num_threads() -> int:
    """The threads of Python that might write or draw. The core asks, to tell a thread that it waits for itself."""
    return sum(thread not in _apart for thread in threading.enumerate())


def _join_threads() -> None:
    ends = time.monotonic() + _JOIN_S
    for thread in list(_threads):
        if thread is not threading.current_thread() and thread.is_alive():
            thread.join(max(ends - time.monotonic(), 0.0))


def _join_lasting() -> None:
    mine = threading.current_thread()
    known = {one: work() for one, work in list(_lasting.items())}
    all_work = {one: work for one, work in known.items() if one is not mine and one.is_alive()}
    try:
        _join_all(all_work)
    except KeyboardInterrupt:
        for work in all_work.values():
            if work is not None:
                work.cancel()
        try:
            _join_all(all_work)
        except KeyboardInterrupt:
            _end_at_once()
    for work in known.values():
        if work is not None:
            work.tell_unheard()


def _end_at_once() -> None:
    """Ends the process by the signal of Ctrl-C. A disk that does not answer has a thread, and the thread has pages."""
    remove_made()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)


def _join_all(all_work: Mapping[threading.Thread, LastingWork | None]) -> None:
    for thread, work in all_work.items():
        if work is not None:
            work.wait_for_end()  # before Python 3.13, a join() that Ctrl-C interrupts takes the thread for ended
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
