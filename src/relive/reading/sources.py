"""The batches of a local table: drawn and gathered at once, or drawn well ahead of their disk reads."""

from __future__ import annotations

from collections import deque
from typing import final

from relive._core import CoreTable, Hold, PlannedBatch
from relive.core.request import DrawRequest
from relive.core.table_core import DrawnItems
from relive.errors import DeadlineExceeded, RareItems
from relive.reading.batch import Batch
from relive.reading.batches import SLICE_S
from relive.reading.columns import Columns
from relive.reading.holds import HeldDraw, Taken

__all__ = ["DrawNumber", "LocalDraws", "NumberedHold", "PlannedSource", "SampledSource"]


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
        """Notes that the draw was not used. A second call does nothing."""
        call, self._call = self._call, -1
        if call >= 0 and not self._core.closed:
            self._core.return_call(call)


@final
class NumberedHold:
    """The hold of a draw of a local table (relive.reading.holds), and the number of the draw."""

    def __init__(self, hold: Hold, number: DrawNumber) -> None:
        self._hold = hold
        self._number = number

    @property
    def is_held(self) -> bool:
        """Whether the draw is in flight."""
        return self._hold.is_held

    def drawn(self, core: CoreTable, request: DrawRequest, timeout_s: float) -> DrawnItems:
        """Makes the draw, in flight."""
        drawn = core.draw(request, timeout_s, self._hold)
        self._number.taken()
        return drawn

    def commit(self, was_late: bool = False) -> None:
        """Counts the draw. One step of the core: no signal's handler of Python runs within it."""
        self._hold.commit()

    def give_back(self) -> None:
        """Gives back the draw and its number."""
        if self._hold.is_held:
            self._hold.give_back()
            self._number.give_back()


@final
class _PlannedHold:
    """The hold of a planned batch, which also notes whether the program waited for it."""

    def __init__(self, planned: PlannedBatch, number: DrawNumber) -> None:
        self._planned = planned
        self._number = number

    def commit(self, was_late: bool = False) -> None:
        """Counts the draw, and the batch as late if it was late. One step of the core."""
        self._planned.commit(was_late)

    def give_back(self) -> None:
        """Gives back the draw and its number."""
        if self._planned.is_held:
            self._planned.give_back()
            self._number.give_back()


@final
class LocalDraws:
    """Draws of a local table, as HeldDraws describes them. Owner of the draws in flight."""

    def __init__(self, core: CoreTable) -> None:
        self._core = core
        self._holds: list[NumberedHold] = []  # the oldest first

    def draw(self, request: DrawRequest, timeout_s: float, arrives_s: float = 0.0) -> HeldDraw:
        """Makes one draw, in flight."""
        hold = NumberedHold(Hold(), DrawNumber(self._core))
        self._holds = [one for one in self._holds if one.is_held]
        self._holds.append(hold)  # before the draw, which an interrupt may part from its result
        return HeldDraw(*hold.drawn(self._core, request, timeout_s), hold)

    def hurry(self) -> None:
        """Does nothing: rows are copied at once."""

    def close(self) -> None:
        """Gives back all draws, the newest first."""
        while self._holds:
            self._holds[-1].give_back()
            self._holds.pop()


@final
class SampledSource:
    """Batches that are drawn and gathered in one step."""

    def __init__(self, core: CoreTable, request: DrawRequest, columns: Columns) -> None:
        self._core = core
        self._request = request
        self._columns = columns

    def ask(self, num_batches: int) -> None:
        """Does nothing: take() is short."""

    def take(self) -> Taken:
        """Draws and gathers."""
        hold = NumberedHold(Hold(gives_back_uses=False), DrawNumber(self._core))
        return Taken(Batch(self._columns, *hold.drawn(self._core, self._request, SLICE_S)), hold)

    def cancel(self) -> None:
        """Does nothing: take() is short."""

    def close(self) -> None:
        """Does nothing: nothing is drawn that was not taken."""


@final
class PlannedSource:
    """The next batches of a tiered table: drawn, and being read from the disk. take() completes the first of them.

    Owner of the planned batches. depth: how many there are.
    """

    def __init__(self, core: CoreTable, request: DrawRequest, columns: Columns, depth: int) -> None:
        self._core = core
        self._request = request
        self._columns = columns
        self._depth = depth
        self._planned: deque[tuple[PlannedBatch, DrawNumber]] = deque()
        self._is_cancelled = False

    def ask(self, num_batches: int) -> None:
        """Does nothing: take() draws ahead."""

    def take(self) -> Taken | None:
        """Draws ahead as far as the limiter allows, then waits for the rows of the first batch and copies them."""
        self._draw_ahead()
        planned, number = self._planned[0]
        if self._is_cancelled:  # after _planned was filled: cancel() sees what this call is about to wait for
            return None
        try:
            made = self._core.gather_planned(planned, self._request.selection)
        except BaseException:
            self._planned.popleft()
            planned.give_back()
            raise
        if made is None:  # cancelled; close() gives it back behind the newer ones, with its number
            return None
        self._planned.popleft()
        return Taken(Batch(self._columns, *made), _PlannedHold(planned, number))

    def cancel(self) -> None:
        """Cancels the batch that take() waits for."""
        self._is_cancelled = True
        for planned, _ in list(self._planned):
            planned.cancel()

    def close(self) -> None:
        """Gives back the batches that were drawn and not taken, the newest first."""
        while self._planned:
            planned, number = self._planned.pop()
            planned.give_back()
            number.give_back()

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
