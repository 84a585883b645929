"""Draws over shards that are in flight: those of draw() in `relive.over`, and the batches that are drawn ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, final

import numpy as np

from relive.core.request import DrawRequest
from relive.errors import DeadlineExceeded, RequestTooLarge, ServiceUnavailable
from relive.fleet.agreement import BATCHES_CLOSED
from relive.fleet.core import FleetCore
from relive.fleet.drawing import Begun, Drawn
from relive.fleet.errors import RanksDisagree
from relive.reading.batch import Batch
from relive.reading.batches import SLICE_S
from relive.reading.columns import Columns
from relive.reading.holds import HeldDraw, Taken

__all__ = ["FleetDraws", "FleetSource"]


@final
class _FleetHold:
    """The hold of a draw over shards (relive.reading.holds)."""

    def __init__(self, fleet: FleetCore, drawn: Drawn) -> None:
        self._fleet = fleet
        self._drawn = _without_rows(drawn)
        self.call = drawn.call
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

    def is_gone(self) -> bool:
        """Whether the uses of a part went back, because its stream is over."""
        if self.is_over:
            return self._problem is not None
        try:
            for part in self._drawn.held:
                part.check()
        except ServiceUnavailable:
            return True
        return False

    def give_back(self) -> None:
        """Gives back the draw in each shard, and its number."""
        if not self.is_over:
            self.is_over = True
            self._fleet.drawing.give_back(self._drawn)


@final
class FleetDraws:
    """Held draws of a sharded table, with the interface of HeldDraws. Owns the draws in flight.

    explain: returns the error of a request that is too large, with the arithmetic of its window.
    """

    def __init__(self, fleet: FleetCore, explain: Callable[[RequestTooLarge, DrawRequest], RequestTooLarge]) -> None:
        self._fleet = fleet
        self._explain = explain
        self._holds: list[_FleetHold] = []  # the oldest first

    def draw(self, request: DrawRequest, timeout_s: float, arrives_s: float = 0.0) -> HeldDraw:
        """Draws one batch and keeps the draw in flight."""
        try:
            drawn = self._fleet.drawing.hold(request, timeout_s, arrives_s)
        except RequestTooLarge as error:
            raise self._explain(error, request) from None
        return self._kept(drawn)

    def replace(self, request: DrawRequest, timeout_s: float) -> HeldDraw:
        """Draws items in place of those of the newest draw that are gone. In a group this rank draws alone."""
        return self._kept(self._fleet.drawing.replace(self._holds[-1].call, request, timeout_s))

    def _kept(self, drawn: Drawn) -> HeldDraw:
        hold = _FleetHold(self._fleet, drawn)
        self._holds = [one for one in self._holds if not one.is_over]
        self._holds.append(hold)
        return HeldDraw(drawn.arrays, drawn.item_keys, drawn.probabilities, drawn.num_live_items, hold)

    def hurry(self) -> None:
        """Does nothing: a shard that falls silent is left out after some seconds."""

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

    Shards at addresses are asked for as many batches as the caller has room for, before it takes the first of them. The
    first batch of all is taken alone: it brings the roots for those that follow. Small batches are asked for several at
    a time, because they share their messages (remote/turns.py).

    In a group of ranks the sources of all ranks end together, as the first one closes.
    """

    def __init__(
        self, fleet: FleetCore, request: DrawRequest, columns: Columns, timeout_s: float, prefetch: int
    ) -> None:
        """Raises RequestTooLarge, and NotOverShards for a condition over several shards."""
        fleet.drawing.check_request(request)
        self._fleet = fleet
        self._timeout_s = timeout_s
        self._request = request
        self._columns = columns
        self._can_overlap = fleet.drawing.can_overlap(request.index_number)
        self._has_come = False  # the first batch
        self._most_together = max(prefetch // 4, 1)  # measured: with a half, a shard waited for its next message
        self._begun: deque[Begun] = deque()  # the oldest first
        self._turns: dict[int, Any] = {}  # of Asked
        self._closed_by: RanksDisagree | None = None  # names the rank that closed its batches first

    def ask(self, num_batches: int) -> None:
        """Begins draws until num_batches of them have been asked for. Waits for no answer of theirs."""
        if self._can_overlap and not (num_batches and self._begin(num_batches)):
            self._fleet.drawing.flush()

    def _begin(self, num_batches: int) -> bool:
        """Returns whether the limiter let pass what there is room for."""
        room = (num_batches if self._has_come else 1) - len(self._begun)
        together = min((self._most_together, *(one.most_together for one in self._turns.values())))
        if self._begun and room < together:
            return True
        drawing = self._fleet.drawing
        try:
            for number in range(room):
                if number and number % together == 0:
                    drawing.send(self._turns)  # the shards begin
                self._begun.append(drawing.begin(self._request, 0.0, self._timeout_s, self._turns))
        except DeadlineExceeded:  # take() waits
            return False
        finally:
            drawing.send(self._turns)
        return True

    def take(self) -> Taken:
        """Draws and gathers one batch, or waits for the oldest one that was asked for."""
        if self._closed_by is not None:
            raise self._closed_by
        # Rows that are on their way have the time of the whole call.
        drawing, times, begun = self._fleet.drawing, (SLICE_S, self._timeout_s), self._begun
        try:
            drawn = drawing.finish(begun.popleft(), *times) if begun else drawing.hold(self._request, *times)
        except RanksDisagree as problem:
            self._closed_by = problem if problem.got == BATCHES_CLOSED else None
            raise
        self._has_come = True
        batch = Batch(self._columns, drawn.arrays, drawn.item_keys, drawn.probabilities, drawn.num_live_items)
        return Taken(batch, _FleetHold(self._fleet, drawn))

    def cancel(self) -> None:
        """Does nothing: take() is short."""

    def close(self) -> None:
        """Gives back the batches that were asked for and not taken.

        In a group of ranks, ends the draws of the other ranks' sources.

        Raises DeadlineExceeded and RankLost, as Drawing.close_batches.
        """
        while self._begun:
            self._fleet.drawing.abandon(self._begun.pop())
        self._fleet.drawing.flush()
        if self._closed_by is None:
            self._fleet.drawing.close_batches()
