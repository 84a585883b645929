"""Draws over shards that are in flight: those of draw() in `relive.over`, and the batches that are drawn ahead.

A batch of a served shard costs a message to each owner and its answer, however few items it has. Small batches that are
drawn ahead therefore come several in one draw, whose items lie at permuted positions: each batch is a run of them, and
a fair sample. The draw is settled when all of its batches are: the owners then count those that were handed out.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, final

import numpy as np

from relive.core.request import DrawRequest
from relive.errors import DeadlineExceeded, InvalidConfig, ServiceUnavailable, TableClosed
from relive.fleet.core import FleetCore
from relive.fleet.drawing import Begun, Drawn
from relive.fleet.draws.mixing import Outputs, split
from relive.reading.batch import Batch
from relive.reading.batches import SLICE_S
from relive.reading.columns import Columns
from relive.reading.holds import HeldDraw, Taken

__all__ = ["FleetDraws", "FleetSource"]

_TOGETHER_BYTES = 256 << 10  # of the batches of one draw: for larger ones, messages take less time than copies


@final
class _FleetHold:
    """The hold of a draw over shards (relive.reading.holds)."""

    def __init__(self, fleet: FleetCore, drawn: Drawn) -> None:
        self._fleet = fleet
        self._drawn = _without_rows(drawn)
        self._problem: ServiceUnavailable | None = None
        self.is_over = False

    def commit(self, was_late: bool = False) -> None:
        """Counts the draw in each shard, or in none. After an error the draw is over.

        Raises TableClosed and ServiceUnavailable; the same again in a later call.
        """
        if self._problem is not None:
            raise self._problem
        if self.is_over:
            return
        try:
            self._fleet.drawing.commit(self._drawn)
        except ServiceUnavailable as problem:
            self._problem, self.is_over = problem, True
            raise
        self.is_over = True

    def give_back(self) -> None:
        """Gives back the draw in each shard, and its number."""
        if not self.is_over:
            self.is_over = True
            self._fleet.drawing.give_back(self._drawn)


@final
class _Together:
    """A draw of several batches. Each is handed out or goes back; then the draw is settled. Uses are not counted.

    Any thread may end a batch. A batch that ends again, because a signal's handler raised as it ended, changes nothing.
    """

    def __init__(self, fleet: FleetCore, drawn: Drawn, num_batches: int) -> None:
        self._fleet = fleet
        self._drawn = _without_rows(drawn)
        self._keys = drawn.item_keys.reshape(num_batches, -1)
        self._lock = threading.RLock()  # protects what follows; the handler of a signal may end a batch, too
        self._is_out: list[bool | None] = [None] * num_batches  # None: in flight
        self._has_lost = self._is_over = False

    def end(self, number: int, is_out: bool) -> None:
        """Ends a batch: it was handed out, or goes back. Raises TableClosed."""
        with self._lock:
            if is_out and self._fleet.shards.closed:
                raise TableClosed()
            if self._is_out[number] is None:
                self._is_out[number] = is_out
            if None not in self._is_out:
                self._settle()
        if not is_out:  # the source is closed: no message follows, with which the news could go
            self._fleet.drawing.flush()

    def _settle(self) -> None:
        if self._is_over:
            return
        if not any(self._is_out):
            self._fleet.drawing.give_back(self._drawn)
        else:
            if not self._has_lost:
                self._has_lost = True
                self._fleet.drawing.lose(self._drawn, self._keys[[not one for one in self._is_out]].ravel())
            self._fleet.drawing.commit(self._drawn)
        self._is_over = True


@final
class _TogetherHold:
    """The hold of one of the batches of a draw (relive.reading.holds)."""

    def __init__(self, together: _Together, number: int) -> None:
        self._together = together
        self._number = number

    def commit(self, was_late: bool = False) -> None:
        """Counts the batch when the others of its draw end. Raises TableClosed."""
        self._together.end(self._number, True)

    def give_back(self) -> None:
        """Gives back the batch when the others of its draw end."""
        self._together.end(self._number, False)


@final
class FleetDraws:
    """Held draws of a sharded table, with the interface of HeldDraws. Owns the draws in flight."""

    def __init__(self, fleet: FleetCore) -> None:
        self._fleet = fleet
        self._holds: list[_FleetHold] = []  # the oldest first

    def draw(self, request: DrawRequest, timeout_s: float) -> HeldDraw:
        """Draws one batch and keeps the draw in flight."""
        drawn = self._fleet.drawing.hold(request, timeout_s)
        hold = _FleetHold(self._fleet, drawn)
        self._holds = [one for one in self._holds if not one.is_over]
        self._holds.append(hold)
        return HeldDraw(drawn.arrays, drawn.item_keys, drawn.probabilities, drawn.num_live_items, hold)

    def close(self) -> None:
        """Gives all draws back."""
        while self._holds:
            self._holds[-1].give_back()
            self._holds.pop()


_NONE = np.empty(0, np.int64)


def _without_rows(drawn: Drawn) -> Drawn:
    return drawn._replace(arrays=[], item_keys=_NONE, probabilities=np.empty(0))


@final
class FleetSource:
    """Draws and gathers batches. A batch is in flight until it is handed out.

    Shards at addresses are asked for as many batches as the caller has room for, before it takes the first of them.
    Half of that room, at most, comes in one draw. The first batch shows how large they are.
    """

    def __init__(
        self, fleet: FleetCore, request: DrawRequest, columns: Columns, prefetch: int, timeout_s: float
    ) -> None:
        """Raises RequestTooLarge, and NotOverShards for a condition over several shards."""
        self._drawing = fleet.drawing
        self._drawing.check_request(request)
        self._fleet = fleet
        self._timeout_s = timeout_s
        self._request = request
        self._columns = columns
        self._can_overlap = fleet.drawing.can_overlap(request.index_number)
        self._most_together = prefetch // 2 if fleet.drawing.can_split(request) else 1
        self._num_together: int | None = None  # batches of a draw; None: the first one has not come
        self._begun: deque[tuple[Begun, int]] = deque()  # draws, and their numbers of batches; the oldest first
        self._turns: dict[int, Any] = {}  # of Asked
        self._drawn: deque[Taken] = deque()  # with the batch that was taken last

    def ask(self, num_batches: int) -> bool:
        """Begins draws for num_batches. Waits for no answer of theirs. False: there is no room for a draw's batches."""
        if not self._can_overlap:
            return True
        is_begun = self._begin(num_batches)
        if not self._begun or not is_begun:
            self._drawing.flush()
        return bool(self._drawn or self._begun or num_batches >= (self._num_together or 1))

    def _begin(self, num_batches: int) -> bool:
        """Returns whether the limiter let pass what there is room for."""
        together = self._num_together or 1
        if self._num_together is None:  # the first draw brings the roots for those that follow
            num_batches = min(num_batches, 1)
        room = num_batches - len(self._drawn) - sum(many for _, many in self._begun)
        while room >= together:
            try:
                begun = self._drawing.begin(self._asked(together), 0.0, self._timeout_s, self._turns)
                self._begun.append((begun, together))
            except DeadlineExceeded:  # take() waits
                return False
            room -= together
        return True

    def _asked(self, num_batches: int) -> DrawRequest:
        return self._request._replace(num_items=num_batches * self._request.num_items)

    def take(self) -> Taken:
        """Draws and gathers one batch, or waits for the oldest one that was asked for."""
        if not self._drawn:
            # Rows that are on their way have the time of the whole call.
            drawing, times = self._drawing, (SLICE_S, self._timeout_s)
            begun, together = self._begun.popleft() if self._begun else (None, 1)
            try:
                drawn = drawing.hold(self._request, *times) if begun is None else drawing.finish(begun, *times)
            except InvalidConfig:
                if together == 1:
                    raise
                self._abandon()  # an owner sends no answer of this size
                self._num_together = 1
                drawn, together = drawing.hold(self._request, *times), 1
            except DeadlineExceeded:
                if together > 1:  # the link may be slow: smaller draws come in time
                    self._abandon()
                    self._num_together = together // 2
                raise
            self._keep(drawn, together)
        return self._drawn.popleft()

    def _keep(self, drawn: Drawn, num_batches: int) -> None:
        """Cuts a draw into its batches."""
        if self._num_together is None:
            size = sum(array.nbytes for array in drawn.arrays)
            self._num_together = max(1, min(self._most_together, _TOGETHER_BYTES // max(size, 1)))
        if num_batches == 1:
            batch = Batch(self._columns, drawn.arrays, drawn.item_keys, drawn.probabilities, drawn.num_live_items)
            self._drawn.append(Taken(batch, _FleetHold(self._fleet, drawn)))
            return
        together = _Together(self._fleet, drawn, num_batches)
        outputs: Outputs = [] if self._request.selection is None else self._request.selection.outputs
        keys, probabilities = (array.reshape(num_batches, -1) for array in (drawn.item_keys, drawn.probabilities))
        for number, arrays in enumerate(split(outputs, drawn.arrays, num_batches)):
            batch = Batch(self._columns, arrays, keys[number], probabilities[number], drawn.num_live_items)
            self._drawn.append(Taken(batch, _TogetherHold(together, number)))

    def _abandon(self) -> None:
        while self._begun:
            self._drawing.abandon(self._begun.pop()[0])

    def cancel(self) -> None:
        """Does nothing: take() is short."""

    def close(self) -> None:
        """Gives back the batches that were asked for and not taken."""
        self._abandon()
        while self._drawn:
            self._drawn.pop().hold.give_back()
        self._drawing.flush()
