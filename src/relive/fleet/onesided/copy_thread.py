"""A thread that does something beside its caller: half of a copy.

Protocol. Jobs go through one queue and are done one after another. A job that was handed over is done, whether or not
anybody waits for it; what it raises is kept for who does. end() waits for what is queued, and for the thread. It is a
daemon: a process that ends without end() does not wait for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import final

__all__ = ["Handed", "SecondHand"]


@final
class Handed:
    """A job of the second hand. Waited for by one thread at a time."""

    def __init__(self, job: Callable[[], None]) -> None:
        self._job = job
        self._is_running = threading.Lock()  # held until it is over: waiting for a lock is the quickest wait there is
        self._is_running.acquire()
        self._is_begun = self._is_over = False  # by the second hand alone
        self._problem: BaseException | None = None

    @property
    def is_over(self) -> bool:
        """Done, or failed. Not what the lock says: a signal may end a wait before it gives that back."""
        return self._is_over

    def wait(self, timeout_s: float) -> bool:
        """Whether it was over in time. Raises what it raised."""
        if not self._is_over:
            if not self._is_running.acquire(timeout=timeout_s):
                return False
            self._is_running.release()
        if self._problem is not None:
            raise self._problem
        return True

    def do(self) -> None:
        """By the second hand, which may find it in its queue twice."""
        if self._is_begun:
            return
        self._is_begun = True
        try:
            self._job()
        except BaseException as problem:  # whoever waits raises it
            self._problem = problem
        finally:
            self._is_over = True
            self._is_running.release()


@final
class SecondHand:
    """Owner of the thread, until end(). Jobs by any thread."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Handed | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def hand(self, job: Callable[[], None], noted: list[Handed] | None = None) -> Handed:
        """Does it soon. Returns at once.

        noted: gets it before it is handed over; what is noted is done, also where a signal cuts this short.
        """
        handed = Handed(job)
        try:
            if noted is not None:
                noted.append(handed)
            self._jobs.put(handed)
        except BaseException:  # before it was in the queue, or behind that: nobody can tell
            if noted is not None and handed in noted:
                self._jobs.put(handed)
            raise
        return handed

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.do()

    def end(self) -> None:
        """Waits for what it was handed, and for the thread. Nothing is handed to it any more."""
        self._jobs.put(None)
        self._thread.join()
