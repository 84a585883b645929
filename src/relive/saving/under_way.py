"""UnderWay: a save that a thread finishes, as the caller of save(wait=False) sees it."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from relive.checks.values import timeout
from relive.core.ending import joins_at_end
from relive.errors import DeadlineExceeded, InvalidConfig, NotShareable, ReliveError, SaveCancelled

__all__ = ["UnderWay"]

_log = logging.getLogger("relive.saving")
Facts = TypeVar("Facts")


class UnderWay(ABC, Generic[Facts]):
    """A save that a thread finishes. A subclass makes the save, and sets `_facts` or notes its error.

    A process that ends waits for the thread. A forked child has no part in the save. If the save fails and no `wait`
    raises the error, the logger `relive.saving` gets it: at the end of the process, or when the object is collected.
    """

    _what = "a save"

    def __init__(self) -> None:
        self._cancelled = threading.Event()
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self._facts: Facts | None = None
        self._error: BaseException | None = None
        self._process = os.getpid()
        self._unheard: list[str] = []  # the error in words, until a caller is told
        weakref.finalize(self, _tell, self._unheard, self._process).atexit = False  # see tell_unheard

    @property
    @abstractmethod
    def path(self) -> str:
        """The folder."""

    @property
    @abstractmethod
    def progress(self) -> float:
        """The part of the pages that is copied, from 0 to 1. 1 is not the commit: see `done`."""

    @abstractmethod
    def abandon(self) -> None:
        """Ends a save that no thread finishes: the save before it stays."""

    @property
    def done(self) -> bool:
        """Whether the save has ended, in a commit or in an error."""
        return self._done.is_set()

    def wait(self, timeout_s: float | None = None) -> Facts:
        """Waits for the commit and returns what was written.

        Args:
            timeout_s: How long, in seconds; None: until the save has ended.

        Raises:
            DeadlineExceeded: It has not ended in time; it goes on.
            SaveCancelled: `cancel`, Ctrl-C at the end of the process, or the end of an owner's server, ended it.
            StorageFull, SystemFailure: It failed; the save before it stays whole.
            InvalidConfig: This process is a forked child of the one that saves.
            ReliveError: also every other error with which the save can fail.
        """
        if os.getpid() != self._process:
            raise InvalidConfig("wait for a save", "the process that saves", "a forked child of it")
        seconds = math.inf if timeout_s is None else timeout(timeout_s)
        if not self._done.wait(min(seconds, threading.TIMEOUT_MAX)):
            raise DeadlineExceeded(f"the commit of {self._what}", "pages to write", seconds)
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            self._unheard.clear()
            raise self._error
        assert self._facts is not None
        return self._facts

    def wait_for_end(self) -> None:
        """Returns when the save has ended in any way. In a forked child, at once."""
        if os.getpid() == self._process:
            self._done.wait()

    def tell_unheard(self) -> None:
        """Logs the error with which the save failed, unless `wait` has raised it or the save was cancelled."""
        _tell(self._unheard, self._process)

    def cancel(self) -> None:
        """Ends the save, if it has not committed. The save before it stays whole, and `wait` raises SaveCancelled.

        The thread of the save takes notice at its next block, or a quarter of a second later at most.
        """
        self._cancelled.set()

    @contextlib.contextmanager
    def _noted_error(self) -> Iterator[None]:
        """Notes the error of the block for `wait`. Errors that no caller expects are raised again."""
        try:
            yield
        except BaseException as error:
            self._error = error
            if not isinstance(error, (ReliveError, OSError)):
                raise
            if not isinstance(error, SaveCancelled):
                self._unheard.append(f"{self._what} into {self.path} failed: {error}")

    def _finish_on_a_thread(self, finish: Callable[[], None]) -> None:
        """Has a thread finish the save. The end of the process waits for it.

        If a signal's handler raises in this call, the save ends. Python keeps a thread whose start was interrupted for
        ever, so the thread takes its work out of a list.
        """
        work = [finish]
        thread = threading.Thread(target=_do, args=(work,), name="relive-save")
        joins_at_end(thread, self)
        try:
            thread.start()
        except BaseException:
            self.cancel()
            if _took(work) is not None:
                self.abandon()
            raise
        self._thread = thread

    def __reduce__(self) -> tuple[Any, ...]:
        raise NotShareable("save")

    def __repr__(self) -> str:
        state = "done" if self._facts is not None else "failed" if self._error is not None else f"{self.progress:.0%}"
        return f"{type(self).__name__}({self.path!r}, {state})"


def _tell(unheard: list[str], process: int) -> None:
    """Logs an error that no caller was told. In a forked child nothing: the save is its parent's."""
    if unheard and os.getpid() == process:
        _log.error(unheard.pop())


def _took(work: list[Callable[[], None]]) -> Callable[[], None] | None:
    """Takes the work out of a list. None: another thread took it."""
    try:
        return work.pop()
    except IndexError:
        return None


def _do(work: list[Callable[[], None]]) -> None:
    finish = _took(work)
    if finish is not None:
        finish()
