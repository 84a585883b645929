"""Batches gathered ahead by a background thread."""

from __future__ import annotations

import time
from typing import Any, Protocol, final

from relive._core import CoreTable
from relive._ending import at_end
from relive.ahead import Ahead
from relive.batch import Batch, Plan
from relive.errors import DeadlineExceeded, TableClosed, WaitsForItself

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
class Batches(Ahead):
    """An iterator of batches that are drawn and gathered ahead; use it in a `with` block, which starts and stops it.

    Up to `prefetch` batches wait, drawn but counted as sampled only when handed out; closing gives the rest back to the
    limiter. Their priorities are those at the time of the draw. An error in the background is raised by next(), which
    waits for the next batch at most timeout_s, then DeadlineExceeded; it may be called again. Ends after close().
    """

    def __init__(self, core: CoreTable, source: BatchSource, prefetch: int, device: Any, timeout_s: float) -> None:
        super().__init__(source.num_items, prefetch, device, timeout_s)
        self._core = core
        self._source = source

    def __enter__(self) -> Batches:
        super().__enter__()
        _running.add(self)
        return self

    def close(self) -> None:
        """Stops the thread, gives back what was not handed out. Waits for a batch in the making; twice is harmless."""
        _running.discard(self)
        super().close()

    # ---- the consumer's side; _changed is held ---------------------------------------------------------------------

    def _note_late(self) -> None:
        self._source.note_late()

    def _raise_if_over(self) -> None:
        if self._stopping:
            raise StopIteration
        if self._error is not None:
            raise self._error
        if self._core.closed:
            raise TableClosed()

    def _count_handed_out(self) -> None:
        if self._core.closed:
            raise TableClosed()  # it took back what was waiting here
        self._core.commit_held(self._source.number, self._num_items)

    def _room_came(self) -> None:
        self._changed.notify_all()

    def _at_hand(self) -> object:
        return self._core.num_items(self._source.number)

    def _cancel(self) -> None:
        self._source.cancel()

    def _give_up(self, num_unused: int) -> None:
        self._source.close()
        if num_unused:
            self._give_back(num_unused * self._num_items)

    # ---- the thread ------------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        try:
            while self._wait_for_room():
                batch = self._gather()
                if batch is None:
                    continue
                with self._changed:
                    self._ready.append(batch)
                    self._changed.notify_all()
        except BaseException as error:
            self._fail(error)

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
            self._starved = error
            return None
        self._starved = None
        if batch is None:
            return None
        try:
            return batch if self._device is None else batch.to_torch(self._device)
        except BaseException:
            self._give_back(self._num_items)
            raise

    def _give_back(self, num_items: int) -> None:
        if not self._core.closed:  # closing the table gives everything back
            self._core.return_held(self._source.number, num_items)


@at_end
def _stop_all() -> None:
    for batches in list(_running):
        batches.close()
