"""The batches of a local table: drawn and gathered at once, or drawn well ahead of their disk reads."""

from __future__ import annotations

import threading
from collections import deque
from typing import final

from relive._core import Claims, CoreTable, PlannedBatch
from relive.core.request import DrawRequest
from relive.errors import DeadlineExceeded, RareItems, TableClosed
from relive.reading.batch import Batch
from relive.reading.batches import SLICE_S
from relive.reading.columns import Columns
from relive.reading.held_draws import HeldDraw

__all__ = ["DrawNumber", "LocalDraws", "PlannedSource", "SampledSource"]


@final
class DrawNumber:
    """The number of a draw that is made ahead of its use. A draw that is given back gives back its number, too.

    So the items that a program draws depend on the batches that it got, and not on how far a thread drew ahead. The
    newest draw is given back first. A number is not given back if another draw of the handle came in between.
    """

    def __init__(self, core: CoreTable) -> None:
        self._core = core
        self._call = core.next_call

    def taken(self) -> None:
        """Notes that the draw was made."""
        if self._core.next_call != self._call + 1:
            self._call = -1  # another thread drew at the same time: the number of this draw is not known

    def give_back(self) -> None:
        """Notes that the draw was not used."""
        if self._call >= 0 and not self._core.closed:
            self._core.return_call(self._call)


@final
class LocalDraws:
    """Draws of a local table, as HeldDraws describes them. Owner of the draws in flight."""

    def __init__(self, core: CoreTable) -> None:
        self._core = core
        self._held: deque[tuple[DrawRequest, Claims, DrawNumber]] = deque()  # the oldest first

    def draw(self, request: DrawRequest, timeout_s: float) -> HeldDraw:
        """Makes one draw, in flight."""
        claims, number = Claims(), DrawNumber(self._core)
        self._held.append((request, claims, number))  # before the draw, which an interrupt may part from its result
        try:
            drawn = HeldDraw(*self._core.draw(request, timeout_s, claims=claims))
        except BaseException:
            if claims.is_held:
                number.taken()
                self.give_back()
            else:
                self._held.pop()
            raise
        number.taken()
        return drawn

    def commit(self) -> None:
        """Counts the oldest draw as sampled. Raises TableClosed: closing gave back every draw in flight."""
        request, claims, _ = self._held[0]
        self._core.commit_batch(request.index_number, request.num_items, claims, request.selection is not None)
        self._held.popleft()  # an interrupt before it leaves a draw that is not held, which close() forgets

    def give_back(self) -> None:
        """Gives back the newest draw."""
        request, claims, number = self._held.pop()
        if claims.is_held and not self._core.closed:
            self._core.give_back_batch(request.index_number, request.num_items, claims)
            number.give_back()

    def close(self) -> None:
        """Gives back all draws."""
        while self._held:
            self.give_back()


@final
class SampledSource:
    """Batches that are drawn and gathered in one step."""

    def __init__(self, core: CoreTable, request: DrawRequest, columns: Columns) -> None:
        self._core = core
        self._request = request
        self._columns = columns
        self._taken: deque[DrawNumber] = deque()  # of the batches in flight, the oldest first

    def ask(self, num_batches: int) -> None:
        """Does nothing: a batch begins in take(), which is short."""

    def take(self) -> Batch:
        """Draws and gathers."""
        number = DrawNumber(self._core)
        drawn = self._core.draw(self._request, SLICE_S, hold=True)
        number.taken()
        self._taken.append(number)
        return Batch(self._columns, *drawn)

    def commit(self, was_late: bool) -> None:
        """Counts a batch as sampled."""
        if self._core.closed:
            raise TableClosed()  # closing took everything back that was in flight
        self._core.commit_held(self._request.index_number, self._request.num_items)
        self._taken.popleft()

    def give_back(self, num_batches: int) -> None:
        """Gives batches back to the limiter, the newest first, with their numbers.

        A signal's handler that raised in next() may have kept a batch there that was committed: it is none of these.
        """
        num_batches = min(num_batches, len(self._taken))
        for _ in range(num_batches):
            self._taken.pop().give_back()
        if num_batches and not self._core.closed:
            self._core.return_held(self._request.index_number, num_batches * self._request.num_items)


@final
class PlannedSource:
    """The next batches of a tiered table: drawn, and being read from the disk. take() completes the first of them.

    Owner of the planned batches, which are in flight for the limiter until commit or give_back. depth: how many there
    are.
    """

    def __init__(self, core: CoreTable, request: DrawRequest, columns: Columns, depth: int) -> None:
        self._core = core
        self._request = request
        self._columns = columns
        self._depth = depth
        self._planned: deque[tuple[PlannedBatch, DrawNumber]] = deque()
        self._taken: deque[DrawNumber] = deque()  # of batches that take() returned and that are not handed out
        self._lock = threading.Lock()  # guards the two attributes below
        self._current: PlannedBatch | None = None
        self._num_wanted = 0

    def ask(self, num_batches: int) -> None:
        """Counts the batches that are wanted.

        If none is wanted any more, the batch that take() waits for is cancelled.
        """
        with self._lock:
            self._num_wanted += num_batches
            if num_batches < 0 and self._num_wanted <= 0 and self._current is not None:
                self._current.cancel()

    def take(self) -> Batch | None:
        """Draws ahead as far as the limiter allows, then waits for the rows of the first batch and copies them."""
        self._draw_ahead()
        with self._lock:
            if self._num_wanted <= 0:
                return None
            planned, number = self._planned.popleft()
            self._current = planned
        made = None
        try:
            made = self._core.gather_planned(planned, self._request.selection)
        finally:
            with self._lock:
                self._current = None
                self._num_wanted -= 0 if made is None else 1
            if made is None:
                self._return(planned.num_held)
            else:
                self._taken.append(number)
        return None if made is None else Batch(self._columns, *made)

    def commit(self, was_late: bool) -> None:
        """Counts a batch as sampled, and as late if it was late."""
        if self._core.closed:
            raise TableClosed()  # closing took everything back that was in flight
        if was_late:
            self._core.note_late_batch()
        self._core.commit_held(self._request.index_number, self._request.num_items)
        self._taken.popleft()

    def give_back(self, num_batches: int) -> None:
        """Gives back these batches, and those that were drawn and not taken."""
        while self._planned:
            planned, number = self._planned.pop()
            planned.drop()
            self._return(planned.num_held)
            number.give_back()
        num_batches = min(num_batches, len(self._taken))
        for _ in range(num_batches):
            self._taken.pop().give_back()
        self._return(num_batches * self._request.num_items)

    def _draw_ahead(self) -> None:
        while len(self._planned) < self._depth:
            timeout_s = 0.0 if self._planned else SLICE_S
            number = DrawNumber(self._core)
            try:
                planned = self._core.plan_batch(self._request, timeout_s)
            except (DeadlineExceeded, RareItems):
                if not self._planned:
                    raise
                return  # first the batches that exist; a later call raises the error if it lasts
            number.taken()
            self._planned.append((planned, number))

    def _return(self, num_items: int) -> None:
        if num_items and not self._core.closed:  # closing the table gives back every draw
            self._core.return_held(self._request.index_number, num_items)
