"""Where the batches of a local table come from: drawn and gathered at once, or drawn well ahead of their disk reads."""

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
    """The number that a draw ahead of its use takes. Given back with the draw, it leaves the next draw what it was:

    what a program draws then depends on what it was handed, and not on how far somebody drew ahead of it. The newest is
    given back first; not where another draw of the handle came in between.
    """

    def __init__(self, core: CoreTable) -> None:
        self._core = core
        self._call = core.next_call

    def taken(self) -> None:
        """The draw is made."""
        if self._core.next_call != self._call + 1:
            self._call = -1  # another thread drew beside it: whose number this was is not known

    def give_back(self) -> None:
        """The draw was for nothing."""
        if self._call >= 0 and not self._core.closed:
            self._core.return_call(self._call)


@final
class LocalDraws:
    """Draws from a local table, as HeldDraws says. Owner of what they hold."""

    def __init__(self, core: CoreTable) -> None:
        self._core = core
        self._held: deque[tuple[DrawRequest, Claims, DrawNumber]] = deque()  # the oldest first

    def draw(self, request: DrawRequest, timeout_s: float) -> HeldDraw:
        """One held draw."""
        claims, number = Claims(), DrawNumber(self._core)
        drawn = HeldDraw(*self._core.draw(request, timeout_s, claims=claims))
        number.taken()
        self._held.append((request, claims, number))
        return drawn

    def commit(self) -> None:
        """Counts the oldest as sampled. Raises TableClosed: closing took everything back that was in flight."""
        request, claims, _ = self._held.popleft()
        self._core.commit_batch(request.index_number, request.num_items, claims, request.selection is not None)

    def give_back(self) -> None:
        """Takes the newest back."""
        request, claims, number = self._held.pop()
        if not self._core.closed:
            self._core.give_back_batch(request.index_number, request.num_items, claims)
            number.give_back()

    def close(self) -> None:
        """Takes all of them back."""
        while self._held:
            self.give_back()


@final
class SampledSource:
    """Batches drawn and gathered in one step."""

    def __init__(self, core: CoreTable, request: DrawRequest, columns: Columns) -> None:
        self._core = core
        self._request = request
        self._columns = columns
        self._taken: deque[DrawNumber] = deque()  # of the batches that are in flight, the oldest first

    def ask(self, num_batches: int) -> None:
        """Nothing begins before take(), and that is short."""

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
        """Returns them to the limiter, the newest first, with their numbers."""
        for _ in range(num_batches):
            self._taken.pop().give_back()
        if num_batches and not self._core.closed:
            self._core.return_held(self._request.index_number, num_batches * self._request.num_items)


@final
class PlannedSource:
    """The next batches of a tiered table, drawn and being read from the disk; take() puts the first of them together.

    Owner of the planned batches, which are in flight for the limiter until commit or give_back. depth: how many.
    """

    def __init__(self, core: CoreTable, request: DrawRequest, columns: Columns, depth: int) -> None:
        self._core = core
        self._request = request
        self._columns = columns
        self._depth = depth
        self._planned: deque[tuple[PlannedBatch, DrawNumber]] = deque()
        self._taken: deque[DrawNumber] = deque()  # of the batches that take() gave and nobody has yet, the oldest first
        self._lock = threading.Lock()  # over what follows
        self._current: PlannedBatch | None = None
        self._num_wanted = 0

    def ask(self, num_batches: int) -> None:
        """Counts them; where none is wanted any more, what take() waits for is cancelled."""
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
        """Counts a batch as sampled, and as late where it was."""
        if self._core.closed:
            raise TableClosed()  # closing took everything back that was in flight
        if was_late:
            self._core.note_late_batch()
        self._core.commit_held(self._request.index_number, self._request.num_items)
        self._taken.popleft()

    def give_back(self, num_batches: int) -> None:
        """Returns them to the limiter, and what was drawn and not taken."""
        while self._planned:
            planned, number = self._planned.pop()
            planned.drop()
            self._return(planned.num_held)
            number.give_back()
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
                return  # what is there first; should it stay so, whoever asks for more is told
            number.taken()
            self._planned.append((planned, number))

    def _return(self, num_items: int) -> None:
        if num_items and not self._core.closed:  # closing the table gives everything back
            self._core.return_held(self._request.index_number, num_items)
