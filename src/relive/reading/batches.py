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
class Batches(Closing):
    """An iterator of batches that are drawn and gathered ahead. Use it in a `with` block, which starts and stops it.

    - Up to `prefetch` batches wait. They are drawn, and count as sampled only when they are handed out. close() gives
      the others back to the limiter. Their priorities are those at the draw.
    - next() waits for the next batch at most timeout_s, then raises DeadlineExceeded; it may be called again.
    - next() raises an error of the background thread once. Then the thread tries again, also after ServiceUnavailable.
    - The iterator ends after close(). Any thread may call next().

    Owner of the thread and of the waiting batches. The lock _changed guards both, and no call waits in the source while
    it is taken.
    """

    def __init__(self, source: BatchSource, num_items: int, prefetch: int, device: Any, timeout_s: float) -> None:
        self._source = source
        self._num_items = num_items
        self._prefetch = prefetch
        self._device = device
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        self._ready: deque[Batch] = deque()
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
        with self._changed:
            if self._thread is None and not self._stopping:
                raise InvalidConfig("batches()", "use in a `with` block", "next() outside of it")
            was_late = not self._ready
            while not self._ready:
                self._raise_if_over()
                waited = time.monotonic() - start
                if waited >= self._timeout_s:
                    raise self._deadline_exceeded(waited)
                self._changed.wait(None if math.isinf(self._timeout_s) else self._timeout_s - waited)
            self._source.commit(was_late)
            batch = self._ready.popleft()
            self._ask(1)
            self._changed.notify_all()
            return batch

    def close(self) -> None:
        """Stops the thread and gives back the batches that were not handed out. Closing twice is harmless.

        Blocks: until the call of the source that is under way ends.
        """
        _running.discard(self)
        if self._is_a_childs or self._stopping:
            self._stopping = True  # in a child, thread and batches in flight belong to the parent
            return
        with self._changed:
            self._stopping = True
            self._ask(-self._num_asked)
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        unused = len(self._ready)
        self._ready.clear()
        self._source.give_back(unused)

    def __repr__(self) -> str:
        state = "closed" if self._stopping else "running" if self._thread is not None else "not started"
        return f"Batches({self._num_items} items, {len(self._ready)} of {self._prefetch} ready, {state})"

    # ---- the consumer's side; _changed is taken --------------------------------------------------------------------

    @property
    def _is_a_childs(self) -> bool:
        """Whether this is the copy in a forked child of an iterator that runs in the parent."""
        return self._thread is not None and self._process != os.getpid()

    def _ask(self, num_batches: int) -> None:
        self._num_asked += num_batches
        self._source.ask(num_batches)

    def _raise_if_over(self) -> None:
        if self._stopping:
            raise StopIteration
        if self._error is not None:
            error, self._error = self._error, None
            self._changed.notify_all()  # the thread waits for this
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
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                continue
            if batch is not None:
                with self._changed:
                    self._ready.append(batch)
                    self._num_asked -= 1
                    self._changed.notify_all()

    def _wait_until_asked(self) -> bool:
        with self._changed:
            while not self._stopping and (self._num_asked <= 0 or self._error is not None):
                self._changed.wait()
            return not self._stopping

    def _take(self) -> Batch | None:
        """One batch; None if the limiter did not allow one within a slice."""
        try:
            batch = self._source.take()
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
        try:
            return batch.to_torch(self._device)
        except BaseException:
            self._source.give_back(1)
            self._source.ask(1)
            raise


@at_end
def _stop_all() -> None:
    for batches in list(_running):
        batches.close()
