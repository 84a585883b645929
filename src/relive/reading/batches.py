"""Batches that a thread of their own brings before the program asks for them, from any source."""

from __future__ import annotations

import _thread
import errno
import math
import os
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from functools import partial
from typing import Any, final

from relive.core.closing import Closing
from relive.core.ending import at_end
from relive.errors import (
    DeadlineExceeded,
    ForkedHandle,
    InvalidConfig,
    ReliveError,
    ServiceUnavailable,
    SystemFailure,
    WaitsForItself,
)
from relive.reading.batch import Batch
from relive.reading.holds import AnsweredSource, BatchSource, Returned, Taken

__all__ = ["SLICE_S", "Batches"]

_START_S = 30.0  # how long a thread may take to start
SLICE_S = 0.2  # how long a source waits for the limiter in one call
_running: dict[_Bringer, threading.Thread] = {}  # ended with the interpreter, which must not find a thread in the core


@final
class _Bell:
    """One thread waits, any thread rings. Several rings before a wait are one ring, which ends that wait."""

    def __init__(self) -> None:
        self._rung = threading.Lock()
        self._rung.acquire()

    def ring(self) -> None:
        """Ends the wait that is under way, or the next one."""
        try:
            self._rung.release()
        except RuntimeError:  # it was rung before
            return

    def wait(self, timeout_s: float) -> None:
        """Waits for a ring. A wait with a deadline ends after a slice, too: a handler that raises may take a ring."""
        self._rung.acquire(timeout=-1 if math.isinf(timeout_s) else min(max(timeout_s, 0.0), SLICE_S))


@final
class _Bringer:
    """The thread of a Batches: takes batches from the source until as many wait as are wanted.

    Owner of the source and of the waiting batches. Any thread and any signal's handler may call stop(). The thread then
    gives back everything that is in flight, and ends. `lock` guards the batches and the error, and no call waits while
    it is taken.
    """

    def __init__(self, source: BatchSource, prefetch: int, device: Any) -> None:
        self.lock = threading.RLock()
        self.came = _Bell()  # a batch, an error, or the end
        self.wanted = _Bell()  # a batch, or the end
        self._over = _Bell()
        self._is_over = False
        self.process = os.getpid()  # in which the thread runs; a forked child has no such thread
        self.ready: deque[Taken] = deque()
        self.error: BaseException | None = None  # for next() to raise
        self.starved: DeadlineExceeded | None = None  # the reason why the next batch does not come
        self.stopping = False
        self.is_handing_out = False  # under the lock, so it is true for a handler within next() only
        self._source = source
        self._prefetch = prefetch
        self._device = device
        self._unmoved: Taken | None = None  # taken, and not yet on the device

    def stop(self) -> None:
        """Lets the thread give back the batches and end. Does not wait for that."""
        self.stopping = True
        self._source.cancel()
        self.wanted.ring()
        self.came.ring()

    def silence(self) -> ReliveError | None:
        """The error of a server that is silent."""
        return self._source.silence() if isinstance(self._source, AnsweredSource) else None

    def wait_over(self, thread: threading.Thread) -> None:
        """Waits until the thread has ended, if it was started in this process.

        A signal's handler that raises within Thread.join() makes Python take the thread for ended (bpo-45274).
        """
        if thread.ident is not None and self.process == os.getpid():
            while not self._is_over:
                self._over.wait(SLICE_S)
            thread.join()

    def run(self) -> None:
        """The thread."""
        try:
            self._bring()
        finally:
            self._is_over = True
            self._over.ring()

    def _bring(self) -> None:
        while num_wanted := self._wait_until_wanted():
            try:
                self._source.ask(num_wanted)
                taken = self._take()
            except BaseException as error:
                with self.lock:
                    self.error = error
                self.came.ring()
                continue
            if taken is not None:
                with self.lock:
                    self.ready.append(taken)
                self.came.ring()
        self._end()

    def _wait_until_wanted(self) -> int:
        """Returns how many batches are wanted; 0: the thread is to end."""
        while True:
            with self.lock:
                if self.stopping:
                    return 0
                if len(self.ready) < self._prefetch and self.error is None:
                    return self._prefetch - len(self.ready)
            self._quietly(partial(self._source.ask, 0))
            self.wanted.wait(math.inf)

    def _take(self) -> Taken | None:
        """One batch; None if the limiter did not allow one within a slice."""
        try:
            taken = self._source.take() if self._unmoved is None else self._unmoved
        except WaitsForItself:
            # This thread never writes. If no other thread writes either, the consumer's deadline ends the wait.
            time.sleep(SLICE_S / 20)
            return None
        except DeadlineExceeded as error:
            self.starved = error
            return None
        self.starved = None
        if taken is None or self._device is None:
            return taken
        self._unmoved = taken  # if the device has no room, the next call tries the same batch again
        moved = Taken(taken.batch.to_torch(self._device), taken.hold)
        self._unmoved = None
        return moved

    def _end(self) -> None:
        with self.lock:
            left = [*self.ready] if self._unmoved is None else [*self.ready, self._unmoved]
            self.ready.clear()
        try:
            self._quietly(self._source.close)  # the newest draws first, as their numbers ask for
        finally:
            for taken in reversed(left):
                self._quietly(taken.hold.give_back)
            _running.pop(self, None)

    @staticmethod
    def _quietly(call: Any) -> None:
        try:
            call()
        except ReliveError:  # a source that is closed, or does not answer, gives back by itself
            return


@final
class Batches(Closing):
    """An iterator of batches that are drawn and gathered ahead. Use it in a `with` block, which starts and stops it.

    - Up to `prefetch` batches wait. They are drawn, and count as sampled only when they are handed out. close() gives
      the others back to the limiter. Their priorities are those at the draw.
    - next() waits for the next batch at most timeout_s, then raises DeadlineExceeded, or ServiceUnavailable if a server
      owes an answer and has been silent for a second. It may be called again.
    - next() raises an error of the background thread once. Then the thread tries again, also after ServiceUnavailable.
    - The iterator ends after close(). Any thread may call next().

    A signal's handler may raise at any place. A batch that next() then does not return is either given back or counted,
    once. If the handler raises while the `with` block begins or ends, the thread ends when this object is collected.
    """

    def __init__(self, source: BatchSource, num_items: int, prefetch: int, device: Any, timeout_s: float) -> None:
        self._bringer = _Bringer(source, prefetch, device)
        self._num_items = num_items
        self._prefetch = prefetch
        self._timeout_s = timeout_s
        self._thread: threading.Thread | None = None
        weakref.finalize(self, self._bringer.stop).atexit = False

    def __enter__(self) -> Batches:
        if self._thread is not None or self._bringer.stopping:
            raise InvalidConfig("batches()", "one `with` block each", "a second one")
        thread = threading.Thread(target=self._bringer.run, name="relive-prefetch", daemon=True)
        self._bringer.process = os.getpid()
        _running[self._bringer] = self._thread = thread
        try:
            _start(thread)
        except RuntimeError:  # Python does not say why
            self._bringer.stop()  # the thread may still start, and then ends
            _running.pop(self._bringer, None)
            self._thread = None
            raise SystemFailure("starting the thread that draws ahead", errno.EAGAIN) from None
        return self

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Batch:
        bringer = self._bringer
        if self._is_a_childs and not bringer.stopping:
            raise ForkedHandle("an iterator of batches")  # before the lock, which the fork may have copied taken
        start = time.monotonic()
        was_late = False
        while True:
            with bringer.lock:
                if self._thread is None and not bringer.stopping:
                    raise InvalidConfig("batches()", "use in a `with` block", "next() outside of it")
                if bringer.is_handing_out:
                    needs = "the call of next() that this signal's handler interrupted"
                    raise WaitsForItself(needs, "a call within it")
                try:
                    bringer.is_handing_out = True
                    while bringer.ready and not bringer.stopping:
                        with suppress(Returned):
                            return self._hand_out(was_late)
                finally:
                    bringer.is_handing_out = False
                self._raise_if_over()
                waited = time.monotonic() - start
                if waited >= self._timeout_s:
                    raise self._late(waited)
            was_late = True
            bringer.wanted.ring()
            bringer.came.wait(min(self._timeout_s - waited, SLICE_S))

    def close(self) -> None:
        """Stops the thread, which gives back the batches that were not handed out. Closing twice is harmless.

        Blocks: until the call of the source that is under way ends. If the table has an exchange, close() also waits
        until every rank closes its batches or draws one more ahead, at most one second.
        """
        if self._is_a_childs:  # in a child, thread and batches in flight belong to the parent
            self._bringer.stopping = True
            return
        self._bringer.stop()
        if self._thread is not None:
            self._bringer.wait_over(self._thread)

    def __repr__(self) -> str:
        bringer = self._bringer
        state = "closed" if bringer.stopping else "running" if self._thread is not None else "not started"
        return f"Batches({self._num_items} items, {len(bringer.ready)} of {self._prefetch} ready, {state})"

    # ---- parts; the bringer's lock is taken ------------------------------------------------------------------------

    @property
    def _is_a_childs(self) -> bool:
        """Whether this is the copy in a forked child of an iterator that runs in the parent."""
        return self._thread is not None and self._bringer.process != os.getpid()

    def _hand_out(self, was_late: bool) -> Batch:
        bringer = self._bringer
        taken = bringer.ready[0]
        try:
            taken.hold.commit(was_late)
        except (ServiceUnavailable, Returned):  # the draw is over: its batch must not be handed out
            bringer.ready.popleft()
            bringer.wanted.ring()
            raise
        bringer.ready.popleft()
        bringer.wanted.ring()
        if bringer.ready or bringer.error is not None:
            bringer.came.ring()  # another consumer may wait
        return taken.batch

    def _raise_if_over(self) -> None:
        bringer = self._bringer
        if bringer.stopping:
            bringer.came.ring()  # for other consumers
            raise StopIteration
        if bringer.error is not None:
            error, bringer.error = bringer.error, None
            bringer.wanted.ring()  # the thread waits for this
            raise error

    def _late(self, waited_s: float) -> ReliveError:
        """The error of a call of next() at its deadline."""
        silence, last = self._bringer.silence(), self._bringer.starved
        if silence is not None:
            return silence
        if last is None:
            return DeadlineExceeded(self._num_items, 0, waited_s)
        return DeadlineExceeded(last.needs, last.has, waited_s, last.holder_pid)


def _start(thread: threading.Thread) -> None:
    """Starts a thread, on a thread of its own.

    A signal's handler runs on the main thread. If it raised within Thread.start, a lock of Python's could stay taken,
    for which the new thread would wait for ever. Here the main thread waits in one call of C.

    Raises:
        RuntimeError: the system starts no more threads, or the thread does not start within _START_S.
    """
    problems: list[RuntimeError] = []
    is_done = _thread.allocate_lock()
    is_done.acquire()

    def start() -> None:
        try:
            thread.start()
        except RuntimeError as problem:
            problems.append(problem)
        finally:
            is_done.release()

    _thread.start_new_thread(start, ())
    if not is_done.acquire(timeout=_START_S):  # the new thread had no memory for its first call
        raise RuntimeError("the thread did not start")
    if problems:
        raise problems[0]


@at_end
def _stop_all() -> None:
    for bringer, thread in list(_running.items()):
        bringer.stop()
        bringer.wait_over(thread)
