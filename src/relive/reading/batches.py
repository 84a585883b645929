"""Batches that a thread of their own brings before they are asked for, from wherever they come."""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from typing import Any, Protocol, final

from relive.core.closing import Closing
from relive.core.ending import at_end
from relive.errors import DeadlineExceeded, ForkedHandle, InvalidConfig, WaitsForItself
from relive.reading.batch import Batch

__all__ = ["SLICE_S", "BatchSource", "Batches"]

SLICE_S = 0.2  # how long a source waits for the limiter before it says so
_running: set[Batches] = set()  # for the end of the interpreter, which must not find a thread in the core


class BatchSource(Protocol):
    """Where batches come from, each in flight for the limiter from the moment it is drawn until commit or give_back.

    take and give_back by one thread at a time; ask and commit by any, also during take, and they wait for nobody.
    """

    def ask(self, num_batches: int) -> None:
        """So many more are wanted; where it is negative so many fewer: where that leaves none, take() ends soon."""
        ...

    def take(self) -> Batch | None:
        """The next batch that is wanted; None where none is any more, or it was given up.

        Waits for the limiter at most SLICE_S, then raises DeadlineExceeded. After any error it may be called again.
        """
        ...

    def commit(self, was_late: bool) -> None:
        """The oldest batch taken is handed out. was_late: somebody waited for it. Raises TableClosed: it is not."""
        ...

    def give_back(self, num_batches: int) -> None:
        """So many batches that were taken are not handed out; neither is anything drawn and not taken yet."""
        ...


@final
class Batches(Closing):
    """An iterator of batches that are drawn and gathered ahead; use it in a `with` block, which starts and stops it.

    Up to `prefetch` batches wait, drawn but counted as sampled only when handed out; closing gives the rest back to the
    limiter. Their priorities are those at the time of the draw. next() waits for the next batch at most timeout_s, then
    DeadlineExceeded; it may be called again. An error in the background is raised by next(), once; then the thread
    tries again, also after ServiceUnavailable. Ends after close(). next() may be called from any thread.
    Owner of the thread and of the waiting batches; _changed guards both, and nobody waits in the source under it.
    """

    def __init__(self, source: BatchSource, num_items: int, prefetch: int, device: Any, timeout_s: float) -> None:
        self._source = source
        self._num_items = num_items
        self._prefetch = prefetch
        self._device = device
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        self._ready: deque[Batch] = deque()
        self._num_asked = 0  # batches that were asked for and are not ready
        self._starved: DeadlineExceeded | None = None  # why the batch in the making does not come
        self._error: BaseException | None = None  # of the thread, for who asks for a batch
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._process = 0

    def __enter__(self) -> Batches:
        if self._thread is not None or self._stopping:
            raise InvalidConfig("batches()", "one `with` block each", "a second one")
        self._thread = threading.Thread(target=self._bring, name="relive-prefetch", daemon=True)
        self._process = os.getpid()
        self._ask(self._prefetch)
        self._thread.start()
        _running.add(self)
        return self

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Batch:
        if self._is_a_childs and not self._stopping:
            raise ForkedHandle("an iterator of batches")  # before the lock: the thread may have held it at the fork
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
        """Stops the thread, gives back what was not handed out. Waits for what is under way; twice is harmless."""
        _running.discard(self)
        if self._is_a_childs or self._stopping:
            self._stopping = True  # in a child thread and batches in flight are the parent's
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

    # ---- the consumer's side; _changed is held ---------------------------------------------------------------------

    @property
    def _is_a_childs(self) -> bool:
        """Whether this is the copy that a fork made of one that runs in the parent."""
        return self._thread is not None and self._process != os.getpid()

    def _ask(self, num_batches: int) -> None:
        self._num_asked += num_batches
        self._source.ask(num_batches)

    def _raise_if_over(self) -> None:
        if self._stopping:
            raise StopIteration
        if self._error is not None:
            error, self._error = self._error, None
            self._changed.notify_all()  # the thread waits until it is told
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
        """One batch, or None where the limiter did not allow one within a slice."""
        try:
            batch = self._source.take()
        except WaitsForItself:
            # This thread never writes; whether anybody ever will is for the consumer's deadline to say.
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
