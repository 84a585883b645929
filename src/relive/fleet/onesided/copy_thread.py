"""A thread that works in parallel to its caller: it makes half of a copy.

Protocol. Jobs go through one queue and are done one after another. A job that was handed over is done even if no thread
waits for it; the job's error is kept for the thread that does. end() waits for the queued jobs and for the thread. The
thread is a daemon: a process that ends without end() does not wait for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import final

__all__ = ["Handed", "SecondHand"]


@final
class Handed:
    """A job of the second hand. One thread at a time waits for it."""

    def __init__(self, job: Callable[[], None]) -> None:
        self._job = job
        self._is_running = threading.Lock()  # locked until the job is over: a wait for a lock is the fastest wait
        self._is_running.acquire()
        self._is_begun = self._is_over = False  # set only by the second hand
        self._problem: BaseException | None = None

    @property
    def is_over(self) -> bool:
        """Whether the job succeeded or failed.

        The lock does not tell: a signal may end a wait before it releases the lock.
        """
        return self._is_over

    def wait(self, timeout_s: float) -> bool:
        """Waits for the job. Returns whether it was over in time. Raises the job's error."""
        if not self._is_over:
            if not self._is_running.acquire(timeout=timeout_s):
                return False
            self._is_running.release()
        if self._problem is not None:
            raise self._problem
        return True

    def do(self) -> None:
        """Runs the job, on the second hand. The queue may contain the job twice; it runs once."""
        if self._is_begun:
            return
        self._is_begun = True
        try:
            self._job()
        except BaseException as problem:  # the waiting thread raises it
            self._problem = problem
        finally:
            self._is_over = True
            self._is_running.release()


@final
class SecondHand:
    """Owns the thread until end(). Any thread may hand over jobs."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Handed | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def hand(self, job: Callable[[], None], noted: list[Handed] | None = None) -> Handed:
        """Queues a job, and returns at once.

        noted: gets the job before it is queued. A job in `noted` is done even if a signal interrupts this call.
        """
        handed = Handed(job)
        try:
            if noted is not None:
                noted.append(handed)
            self._jobs.put(handed)
        except BaseException:  # it may have come before or after the job entered the queue
            if noted is not None and handed in noted:
                self._jobs.put(handed)
            raise
        return handed

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.do()

    def end(self) -> None:
        """Waits for the queued jobs and for the thread. After end() no job may be handed over."""
        self._jobs.put(None)
        self._thread.join()
