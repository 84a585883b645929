"""Starts, watches and ends the processes of a run: each actor, learner and inference process is a `Child`.

The protocol of a child and of its parent, the process that calls `train`:

  start    The parent starts a fresh Python by spawn: a fork would copy the locks of the parent's threads in whatever
           state they are. SIGINT, SIGTERM and SIGHUP are masked in the parent during the start, and the child inherits
           the mask: a Ctrl-C cannot kill a child that is half started. multiprocessing's resource tracker runs before:
           its start would undo the mask. The parent receives such a signal as soon as the start is over. The child
           unmasks the signals when it has its task, before any code of the run is called. The task is in a file: a
           child that dies before it reads a pipe would hold its parent in the write.
  Ctrl-C   A terminal sends SIGINT to the parent and to all children, and SIGHUP when it closes. The children ignore
           both: the parent decides, and asks its children to end. A SIGTERM to a child kills that child alone.
  end      The parent asks by closing its end of the child's pipe. Children without a pipe are asked by the stop word of
           the run (`Scoreboard.stop`). The parent waits for all of them until one common deadline (5 s where the
           caller gives none; at once after a second signal), then kills those that still run. After `end_all` no child
           is left, whatever interrupts it.
  parent   If the parent dies, by whatever signal, a child with a pipe reads the end of that pipe, and a child without
  dies     one finds `Parent.is_gone`, which it asks every 0.2 s at least. Both end by themselves.
  child    The parent finds that a child is dead, or that it has been silent for too long. It kills the child if it
  dies     still runs, waits for its death (`reap`), counts the death (`Deaths`), and starts the child again under the
           same name. The third death in a row, without any work in between, raises the error that ends the run.

The compiler of updates (relive.train.learners.compiled_updates) is no `Child`. It is a program that starts compilers of
its own, so that it has a session of its own; and it serves runs that start no other process, whose script may lack the
`if __name__ == "__main__":` that spawn needs.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from multiprocessing import reduction, resource_tracker
from multiprocessing.connection import Connection
from typing import IO, Any, final

from relive.core.forks import renewed_in_children
from relive.errors import InvalidConfig
from relive.train.signals import STOP_SIGNALS, in_a_hurry, uninterrupted

START_METHOD = "RELIVE_START_METHOD"  # environment variable: see process_context
END_S = 5.0  # from the wish to end to the kill
MOST_DEATHS = 3
_LOOK_S = 0.1
_PRELOADED = ["torch", "gymnasium", "relive.train.acting.actor", "relive.train.learners.follower"]


def process_context() -> Any:
    """Returns the context of multiprocessing that starts children: spawn.

    RELIVE_START_METHOD=forkserver is for tests that start many children: one server process imports torch, Gymnasium
    and the code of actors and learners once, and each child is a fork of that server. The fork is clean, since the
    server has neither threads nor tables of a run. The server ends after its parent and all children have ended.
    """
    method = os.environ.get(START_METHOD, "spawn")
    context: Any = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(_PRELOADED)
    return context


@final
class Child:
    """A process of a run, seen from its parent: one thread of the parent uses it.

    Attributes:
        name: Name of the process.
        num_starts: Times that the process was started.
    """

    def __init__(self, name: str, run: Callable[[Any], None], context: Any = None, *, one_thread: bool = False) -> None:
        """Makes the child; `start` starts its process.

        Args:
            name: Name of the process.
            run: Main function of the process, which gets the task. It stands at the top level of a module.
            context: Context of multiprocessing; None: `process_context()`.
            one_thread: The numeric libraries of the process use one thread.
        """
        self.name = name
        self.num_starts = 0
        self._run, self._context, self._one_thread = run, context or process_context(), one_thread
        self._process: Any = None
        self._near_end: Connection | None = None
        self._far_end: Connection | None = None

    @property
    def pid(self) -> int | None:
        """Process id; None if no process is started."""
        return None if self._process is None else self._process.pid

    @property
    def pipe(self) -> Connection:
        """The parent's end of the pipe, between `open_pipe` and `hang_up`."""
        assert self._near_end is not None, f"{self.name} has no pipe"
        return self._near_end

    @property
    def has_died(self) -> bool:
        """Whether the process was started and has ended; False again after `reap`."""
        return self._process is not None and not self._process.is_alive()

    def open_pipe(self) -> Connection:
        """Makes a pipe for the next `start`. Returns the child's end, which belongs into the task."""
        near, far = self._context.Pipe()
        self._near_end, self._far_end = near, far
        end: Connection = far
        return end

    def start(self, task: Any) -> None:
        """Starts the process, which calls run(task) with the environment variables of this moment.

        Raises InvalidConfig in a daemonic process of multiprocessing, which may start none.
        """
        mine = multiprocessing.current_process()
        if mine.daemon:
            raise InvalidConfig(f"process that starts {self.name}", "one with daemon=False", f"{mine.name}, a daemon")
        limited = one_thread_for_numerics() if self._one_thread else nullcontext()
        with uninterrupted(), signals_masked(), limited, _InFile((task, self._run, dict(os.environ))) as given:
            process = self._context.Process(target=_main, args=(given,), name=self.name, daemon=True)
            process.start()
            self._process = process
            self.num_starts += 1
        if self._far_end is not None:
            self._far_end.close()  # an end that stays open here would hide the child's death
            self._far_end = None

    def reap(self) -> int | None:
        """Kills the process if it still runs, waits for its death, and frees it. Returns its exit code."""
        exit_code: int | None = None
        if self._process is not None:
            with uninterrupted():
                self._process.kill()
                self._process.join()
                exit_code = self._process.exitcode
                self._process.close()
                self._process = None
        self.hang_up()  # after the kill: a child that is reaped does not end by itself
        return exit_code

    def hang_up(self) -> None:
        """Closes the pipe, which asks the process to end."""
        for end in (self._near_end, self._far_end):
            if end is not None:
                end.close()
        self._near_end = self._far_end = None

    def wait(self, deadline_s: float) -> None:
        """Waits for the end of the process until deadline_s on time.monotonic(), or until a second signal comes."""
        while self._process is not None and not in_a_hurry():
            self._process.join(max(0.0, min(_LOOK_S, deadline_s - time.monotonic())))
            if self.has_died or time.monotonic() >= deadline_s:
                return


def end_all(children: Iterable[Child], timeout_s: float = END_S) -> None:
    """Ends children: hangs up, waits for all of them together, kills those that still run after timeout_s.

    A second signal to the run ends the wait. No child is left, whatever interrupts the call.
    """
    children = list(children)
    deadline_s = time.monotonic() + timeout_s
    with uninterrupted():
        try:
            for child in children:
                child.hang_up()
            for child in children:
                child.wait(deadline_s)
        finally:
            for child in children:
                child.reap()


@final
class Deaths:
    """Counts deaths in a row: the death number `most` raises the error that ends the run."""

    def __init__(self, most: int = MOST_DEATHS) -> None:
        self._most, self._number = most, 0

    def forget(self) -> None:
        """The child has done its work since: earlier deaths no longer count."""
        self._number = 0

    def count(self, error: Callable[[int], Exception]) -> None:
        """Counts one more death. Raises error(number of deaths) if it is one too many."""
        self._number += 1
        if self._number >= self._most:
            raise error(self._number)


# ---- inside the child ------------------------------------------------------------------------------------------------


def _main(given: tuple[Any, Callable[[Any], None], Mapping[str, str]]) -> None:
    """The main function of every child."""
    task, run, environment = given
    os.environ.clear()  # of a fork server they are those of its own start
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    run(task)


@final
class Parent:
    """The process that started this one, seen from the child; made when the child begins its work."""

    def __init__(self) -> None:
        self._process = multiprocessing.parent_process()
        # For the system the parent of a child is the fork server where one is used, and init after a death.
        self._is_direct = self._process is not None and os.getppid() == self._process.pid

    @property
    def is_gone(self) -> bool:
        """Whether the parent has died. Cost: one system call; some microseconds under a fork server."""
        if self._process is None:
            return False
        if self._is_direct:
            return os.getppid() != self._process.pid
        return not self._process.is_alive()


def _read(end: Any) -> Any:
    """Reads what an _InFile has. end: its file, as multiprocessing passes it."""
    with open(end.detach(), "rb") as file:
        file.seek(0)
        return pickle.load(file)


# ---- during a start --------------------------------------------------------------------------------------------------


@final
class _InFile:
    """A value on its way into a child, which gets it from a file in memory; a context manager.

    Owner of the file until the block ends. The child then has a descriptor of its own.

    Attributes:
        value: The content of the file, which the child reads.
    """

    def __init__(self, value: Any) -> None:
        self.value = value
        self._file = _file_in_memory()

    def __enter__(self) -> _InFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __reduce__(self) -> tuple[Any, ...]:
        self._file.write(reduction.ForkingPickler.dumps(self.value))
        self._file.flush()
        return _read, (reduction.DupFd(self._file.fileno()),)


def _file_in_memory() -> IO[bytes]:
    """A file without a name; on the disk if the system has none in memory."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("relive-task"), "wb")
    return tempfile.TemporaryFile()


@contextmanager
def signals_masked() -> Iterator[None]:
    """The signals wait until the block is over; a process that is started meanwhile inherits the mask."""
    resource_tracker.ensure_running()  # its start, which the first start of a process would cause, unblocks them
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_THREAD_NAMES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_limiting = renewed_in_children(sys.modules[__name__], "_limiting", threading.Lock)  # of the next two
_num_limited = 0  # open blocks of one_thread_for_numerics
_unlimited: dict[str, str | None] = {}  # the variables before the first of them


@contextmanager
def one_thread_for_numerics() -> Iterator[None]:
    """Numeric libraries that are loaded meanwhile use one thread: the matrices of an actor are too small to share.

    Runs in several threads of this process may be in such blocks at once. The last block that ends restores the
    variables.
    """
    global _num_limited
    with _limiting:
        if _num_limited == 0:
            _unlimited.update({name: os.environ.get(name) for name in _THREAD_NAMES})
            os.environ.update(dict.fromkeys(_THREAD_NAMES, "1"))
        _num_limited += 1
    try:
        yield
    finally:
        with _limiting:
            _num_limited -= 1
            if _num_limited == 0:
                for name, value in _unlimited.items():
                    os.environ.pop(name, None)
                    if value is not None:
                        os.environ[name] = value
