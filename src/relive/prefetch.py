"""Batches gathered ahead by a background thread."""

from __future__ import annotations

import atexit
import math
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, Protocol, final

from relive._closing import Closing
from relive._core import CoreTable
from relive.batch import Batch, Plan
from relive.errors import DeadlineExceeded, ForkedHandle, InvalidConfig, TableClosed, WaitsForItself

__all__ = ["Batches", "BatchSource", "Sampled"]

_running: set[Batches] = set()  # for the end of the interpreter, which must not find a thread in the core
_SLICE_S = 0.2  # how long the thread waits in the core before it looks whether it should stop


class BatchSource(Protocol):
    """Where the background thread gets its batches. make and close are called by one thread at a time."""

    num_items: int  # of a batch
    number: int  # of the index

    def make(self, slice_s: float) -> Batch | None:
        """A batch that is in flight; None where it was cancelled. Raises DeadlineExceeded after about a slice."""
        ...

    def note_late(self) -> None:
        """Somebody asked for a batch that is not there."""
        ...

    def cancel(self) -> None:
        """make() under way ends soon. From any thread."""
        ...

    def close(self) -> None:
        """Gives back what was drawn and not made into a batch."""
        ...


@final
class Sampled:
    """Batches drawn and gathered in one step."""

    def __init__(self, core: CoreTable, plan: Plan, num_items: int) -> None:
        self.num_items = num_items
        self.number = plan.number
        self._core = core
        self._plan = plan

    def make(self, slice_s: float) -> Batch:
        """Draws and gathers; the limiter has a slice."""
        arrays, keys, probabilities, num_live = self._core.sample(self._plan.core, self.num_items, slice_s, True)
        return Batch(self._plan.columns, arrays, keys, probabilities, num_live)

    def note_late(self) -> None:
        """Nothing is counted: memory is never late."""

    def cancel(self) -> None:
        """A slice is short."""

    def close(self) -> None:
        """Nothing is drawn ahead here."""


@final
class Batches(Closing):
    """An iterator of batches that are drawn and gathered ahead; use it in a `with` block, which starts and stops it.

    Up to `prefetch` batches wait, drawn but counted as sampled only when handed out; closing gives the rest back to the
    limiter. Their priorities are those at the time of the draw. An error in the background is raised by next(), which
    waits for the next batch at most timeout_s, then DeadlineExceeded; it may be called again. Ends after close().
    Owner of the thread and of the waiting batches. next() may be called from any number of threads.
    """

    def __init__(
        self,
        core: CoreTable,
        source: BatchSource,
        prefetch: int,
        device: Any,
        timeout_s: float,
    ) -> None:
        self._core = core
        self._source = source
        self._number = source.number
        self._num_items = source.num_items
        self._prefetch = prefetch
        self._device = device
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        self._ready: deque[Batch] = deque()
        self._error: BaseException | None = None
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._process = 0
        self._last_wait: DeadlineExceeded | None = None  # why the batch in the making does not come

    def __enter__(self) -> Batches:
        if self._thread is not None or self._stopping:
            raise InvalidConfig("batches()", "one `with` block each", "a second one")
        self._thread = threading.Thread(target=self._fill, name="relive-prefetch", daemon=True)
        self._process = os.getpid()
        _running.add(self)
        self._thread.start()
        return self

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._thread is not None and self._process != os.getpid() and not self._stopping:
            raise ForkedHandle("an iterator of batches")  # before the lock: the thread may have held it at the fork
        start = time.monotonic()
        with self._changed:
            if self._thread is None and not self._stopping:
                raise InvalidConfig("batches()", "use in a `with` block", "next() outside of it")
            if not self._ready and not self._stopping:
                self._source.note_late()
            while not self._ready:
                if self._stopping:
                    raise StopIteration
                if self._error is not None:
                    raise self._error
                if self._core.closed:
                    raise TableClosed()
                waited = time.monotonic() - start
                if waited >= self._timeout_s:
                    raise self._deadline_exceeded(waited)
                self._changed.wait(None if math.isinf(self._timeout_s) else self._timeout_s - waited)
            if self._core.closed:
                raise TableClosed()  # it took back what was waiting here
            # Counted before it leaves the queue: an error here loses no batch.
            self._core.commit_held(self._number, self._num_items)
            batch = self._ready.popleft()
            self._changed.notify_all()
            return batch

    def close(self) -> None:
        """Stops the thread, gives back what was not handed out. Waits for a batch in the making; twice is harmless."""
        _running.discard(self)
        if self._thread is not None and self._process != os.getpid():
            self._stopping = True  # a forked child: the thread and the batches in flight are its parent's
            return
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._source.cancel()
        if self._thread is not None:
            self._thread.join()
        self._source.close()
        with self._changed:
            unused = len(self._ready)
            self._ready.clear()
        if unused:
            self._give_back(unused * self._num_items)

    def _fill(self) -> None:
        try:
            while self._wait_for_room():
                batch = self._gather()
                if batch is None:
                    continue
                with self._changed:
                    self._ready.append(batch)
                    self._changed.notify_all()
        except BaseException as error:  # handed to the consumer, who raises it
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _wait_for_room(self) -> bool:
        with self._changed:
            while len(self._ready) >= self._prefetch and not self._stopping:
                self._changed.wait()
            return not self._stopping

    def _gather(self) -> Batch | None:
        """One held batch, or None where the limiter did not allow one within a slice."""
        try:
            batch = self._source.make(_SLICE_S)
        except WaitsForItself:
            # This thread never writes; whether anybody ever will is for the consumer's deadline to say.
            time.sleep(_SLICE_S / 20)
            return None
        except DeadlineExceeded as error:
            self._last_wait = error
            return None
        self._last_wait = None
        if batch is None:
            return None
        try:
            return batch if self._device is None else batch.to_torch(self._device)
        except BaseException:
            self._give_back(self._num_items)
            raise

    def _deadline_exceeded(self, waited_s: float) -> DeadlineExceeded:
        last = self._last_wait
        if last is None:
            return DeadlineExceeded(self._num_items, self._core.num_items(self._number), waited_s)
        return DeadlineExceeded(last.needs, last.has, waited_s, last.holder_pid)

    def _give_back(self, num_items: int) -> None:
        if not self._core.closed:  # closing the table gives everything back
            self._core.return_held(self._number, num_items)

    def __repr__(self) -> str:
        state = "closed" if self._stopping else "running" if self._thread is not None else "not started"
        return f"Batches({self._num_items} items, {len(self._ready)} of {self._prefetch} ready, {state})"


@atexit.register
def _stop_all() -> None:
    for batches in list(_running):
        batches.close()
