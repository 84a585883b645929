"""Batches of a tiered table: drawn well ahead, so that their rows are read from the disk before they are asked for."""

from __future__ import annotations

import threading
from collections import deque
from typing import final

from relive._core import CorePlanned, CoreTable
from relive.batch import Batch, Plan
from relive.errors import DeadlineExceeded

__all__ = ["Planned"]


@final
class Planned:
    """The next batches of an index, drawn and being read; make() puts the first of them together.

    Owner of the planned batches, which are in flight for the limiter until make() returns them or close() gives them
    back. make and close by one thread at a time, cancel by any.
    """

    def __init__(self, core: CoreTable, plan: Plan, num_items: int, depth: int) -> None:
        self.num_items = num_items
        self.number = plan.number
        self._core = core
        self._plan = plan
        self._depth = depth
        self._queue: deque[CorePlanned] = deque()
        self._lock = threading.Lock()  # over _current and _cancelled
        self._current: CorePlanned | None = None
        self._cancelled = False

    def make(self, slice_s: float) -> Batch | None:
        """Draws ahead as far as the limiter allows, then waits for the rows of the first batch and copies them."""
        self._draw_ahead(slice_s)
        planned = self._queue.popleft()
        with self._lock:
            self._current = planned
            if self._cancelled:
                planned.cancel()
        made = None
        try:
            made = self._core.gather_planned(planned, self._plan.core)
        finally:
            with self._lock:
                self._current = None
            if made is None:
                self._give_back(planned)
        return None if made is None else Batch(self._plan.columns, *made)

    def note_late(self) -> None:
        """Counts a batch that was asked for before it was there."""
        self._core.note_late_batch()

    def cancel(self) -> None:
        """Ends make() under way, and all later ones, without a batch."""
        with self._lock:
            self._cancelled = True
            if self._current is not None:
                self._current.cancel()

    def close(self) -> None:
        """Gives the batches back that were drawn and not made."""
        while self._queue:
            planned = self._queue.popleft()
            planned.drop()
            self._give_back(planned)

    def _draw_ahead(self, slice_s: float) -> None:
        while len(self._queue) < self._depth:
            timeout_s = 0.0 if self._queue else slice_s
            try:
                self._queue.append(self._core.plan_batch(self._plan.core, self.num_items, timeout_s))
            except DeadlineExceeded:
                if not self._queue:
                    raise
                return

    def _give_back(self, planned: CorePlanned) -> None:
        if not self._core.closed:  # closing the table gives everything back
            self._core.return_held(self.number, planned.num_held)
