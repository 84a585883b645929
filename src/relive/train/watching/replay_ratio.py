"""Tells at the limit of a run whether it made the updates that its replay ratio asks for."""

from __future__ import annotations

from typing import final

from relive import SamplesPerInsert
from relive.table.handle import TableHandle
from relive.train.errors import TooFewUpdates


@final
class ReplayRatio:
    """The items that came and that were drawn in one session. Make it before the first step of the session."""

    def __init__(self, table: TableHandle, batch_size: int) -> None:
        self._table, self._batch_size = table, batch_size
        (index,) = table.stats().indexes.values()
        self._inserted_before, self._sampled_before = index.inserted, index.sampled  # of a table that was loaded

    def check(self, num_updates: int) -> None:
        """Raises TooFewUpdates if the run has learnt nothing, or much less than the limiter of the table asks for.

        The limiter lets steps in that the learner has not made up for while the table has fewer than min_size items:
        else nothing could ever be learnt. If the table never has so many, it lets in all of them. A table that was
        loaded may begin at either end of the limiter's corridor.
        """
        (index,) = self._table.stats().indexes.values()
        limiter = index.limiter
        assert isinstance(limiter, SamplesPerInsert)
        counted = index.inserted - max(limiter.min_size, self._inserted_before)
        behind = counted * limiter.samples_per_insert - (index.sampled - self._sampled_before)  # samples
        most = limiter.half_window + limiter.window + (limiter.half_window if self._inserted_before else 0.0)
        num_missing = int(behind / self._batch_size) if behind > most else 0
        if num_missing or num_updates == 0:
            raise TooFewUpdates(num_updates, num_missing, index.num_items, limiter.min_size)
