"""Batches that a thread of their own brings before the program asks for them, from any source."""

from __future__ import annotations

import errno
import math
import os
import threading
import time
from collections import deque
from typing import Any, Protocol, final

from relive.core.closing import Closing
from relive.core.ending import at_end
from relive.errors import DeadlineExceeded, ForkedHandle, InvalidConfig, SystemFailure, WaitsForItself
from relive.reading.batch import Batch

__all__ = ["SLICE_S", "BatchSource", "Batches"]

SLICE_S = 0.2  # how long a source waits for the limiter in one call
_running: set[Batches] = set()  # closed at the end of the interpreter, which must not find a thread in the core


class BatchSource(Protocol):
    """The source of batches, each in flight for the limiter from its draw until commit or give_back.

    One thread at a time calls take and give_back. Any thread calls ask and commit, also during take; these two never
    wait.
    """

    def ask(self, num_batches: int) -> None:
        """Asks for num_batches more. A negative number asks for fewer; if none is wanted then, take() ends soon."""
        ...

    def take(self) -> Batch | None:
        """The next batch that is wanted. None: no batch is wanted any more, or the batch was given up.

        Waits for the limiter at most SLICE_S, then raises DeadlineExceeded. It may be called again after any error.
        """
        ...

    def commit(self, was_late: bool) -> None:
        """Hands out the oldest batch that was taken. was_late: the program waited for it. Raises TableClosed."""
        ...

    def give_back(self, num_batches: int) -> None:
        """Gives back num_batches taken batches, and everything that was drawn and not taken."""
        ...


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
class Batches(Closing):
    """An iterator of batches that are drawn and gathered ahead. Use it in a `with` block, which starts and stops it.

    - Up to `prefetch` batches wait. They are drawn, and count as sampled only when they are handed out. close() gives
      the others back to the limiter. Their priorities are those at the draw.
    - next() waits for the next batch at most timeout_s, then raises DeadlineExceeded; it may be called again.
    - next() raises an error of the background thread once. Then the thread tries again, also after ServiceUnavailable.
    - The iterator ends after close(). Any thread may call next().

    Owner of the thread and of the waiting batches. _lock guards both, and no call waits in the source while it is
    taken. A signal's handler may raise in next() at any place: `with` never leaves a lock of C taken, as it may leave a
    Condition, and a bell that was not rung is rung by the next call that waits.
    """

    def __init__(self, source: BatchSource, num_items: int, prefetch: int, device: Any, timeout_s: float) -> None:
        self._source = source
        self._num_items = num_items
        self._prefetch = prefetch
        self._device = device
        self._timeout_s = timeout_s
        self._lock = threading.RLock()
        self._came = _Bell()  # a batch, an error, or the end
        self._wanted = _Bell()  # a batch, or the end
        self._ready: deque[Batch] = deque()
        self._unmoved: Batch | None = None  # of the thread: taken, and not yet on the device
        self._num_asked = 0  # batches that are wanted and not ready
        self._starved: DeadlineExceeded | None = None  # the reason why the next batch does not come
        self._error: BaseException | None = None  # of the thread, for next() to raise
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._process = 0

    def __enter__(self) -> Batches:
        if self._thread is not None or self._stopping:
            raise InvalidConfig("batches()", "one `with` block each", "a second one")
        thread = threading.Thread(target=self._bring, name="relive-prefetch", daemon=True)
        self._process = os.getpid()
        self._ask(self._prefetch)
        try:
            thread.start()
        except RuntimeError:  # Python does not say why
            self._ask(-self._prefetch)
            raise SystemFailure("starting the thread that draws ahead", errno.EAGAIN) from None
        self._thread = thread
        _running.add(self)
        return self

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Batch:
        if self._is_a_childs and not self._stopping:
            raise ForkedHandle("an iterator of batches")  # before the lock, which the fork may have copied taken
        start = time.monotonic()
        was_late = False
        while True:
            with self._lock:
                if self._thread is None and not self._stopping:
                    raise InvalidConfig("batches()", "use in a `with` block", "next() outside of it")
                if self._ready:
                    return self._hand_out(was_late)
                self._raise_if_over()
                waited = time.monotonic() - start
                if waited >= self._timeout_s:
                    raise self._deadline_exceeded(waited)
            was_late = True
            self._wanted.ring()
            self._came.wait(min(self._timeout_s - waited, SLICE_S))

    def close(self) -> None:
        """Stops the thread and gives back the batches that were not handed out. Closing twice is harmless.

        Blocks: until the call of the source that is under way ends.
        """
        _running.discard(self)
        if self._is_a_childs or self._stopping:
            self._stopping = True  # in a child, thread and batches in flight belong to the parent
            return
        with self._lock:
            self._stopping = True
            self._ask(-self._num_asked)
        self._wanted.ring()
        self._came.ring()
        if self._thread is not None:
            self._thread.join()
        unused = len(self._ready) + (0 if self._unmoved is None else 1)
        self._ready.clear()
        self._unmoved = None
        self._source.give_back(unused)

    def __repr__(self) -> str:
        state = "closed" if self._stopping else "running" if self._thread is not None else "not started"
        return f"Batches({self._num_items} items, {len(self._ready)} of {self._prefetch} ready, {state})"

    # ---- the consumer's side; _lock is taken -----------------------------------------------------------------------

    @property
    def _is_a_childs(self) -> bool:
        """Whether this is the copy in a forked child of an iterator that runs in the parent."""
        return self._thread is not None and self._process != os.getpid()

    def _ask(self, num_batches: int) -> None:
        self._num_asked += num_batches
        self._source.ask(num_batches)

    def _hand_out(self, was_late: bool) -> Batch:
        self._source.commit(was_late)
        batch = self._ready.popleft()
        self._ask(1)
        self._wanted.ring()
        if self._ready or self._error is not None:
            self._came.ring()  # another consumer may wait
        return batch

    def _raise_if_over(self) -> None:
        if self._stopping:
            self._came.ring()  # for other consumers
            raise StopIteration
        if self._error is not None:
            error, self._error = self._error, None
            self._wanted.ring()  # the thread waits for this
            raise error

    def _deadline_exceeded(self, waited_s: float) -> DeadlineExceeded:
        last = self._starved
        if last is None:
            return DeadlineExceeded(self._num_items, 0, waited_s)
        return DeadlineExceeded(last.needs, last.has, waited_s, last.holder_pid)

    # ---- the thread ------------------------------------------------------------------------------------------------

    def _bring(self) -> None:
        while self._wait_until_asked():
            try:
                batch = self._take()
            except BaseException as error:
                with self._lock:
                    self._error = error
                self._came.ring()
                continue
            if batch is not None:
                with self._lock:
                    self._ready.append(batch)
                    self._num_asked -= 1
                self._came.ring()

    def _wait_until_asked(self) -> bool:
        while True:
            with self._lock:
                if self._stopping:
                    return False
                if self._num_asked > 0 and self._error is None:
                    return True
            self._wanted.wait(math.inf)

    def _take(self) -> Batch | None:
        """One batch; None if the limiter did not allow one within a slice."""
        try:
            batch = self._source.take() if self._unmoved is None else self._unmoved
        except WaitsForItself:
            # This thread never writes. If no other thread writes either, the consumer's deadline ends the wait.
            time.sleep(SLICE_S / 20)
            return None
        except DeadlineExceeded as error:
            self._starved = error
            return None
        self._starved = None
        if batch is None or self._device is None:
            return batch
        self._unmoved = batch  # if the device has no room, the next call tries the same batch again
        moved = batch.to_torch(self._device)
        self._unmoved = None
        return moved


@at_end
def _stop_all() -> None:
    for batches in list(_running):
        batches.close()
