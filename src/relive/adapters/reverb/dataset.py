"""TrajectoryDataset: samples of a table as an iterable of numpy arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

import numpy as np

from relive.adapters.reverb.errors import DeadlineExceededError
from relive.adapters.reverb.samples import ReplaySample, SampleInfo
from relive.adapters.reverb.server import server_at
from relive.adapters.reverb.table import Drawn
from relive.adapters.trees import rebuilt
from relive.checks.values import integer

__all__ = ["TrajectoryDataset"]


@final
class TrajectoryDataset:
    """Reverb's TrajectoryDataset as an iterable. `batch(n)` gives samples whose leaves have an axis of n items.

    Args:
        server_address: the address of a server of this process.
        table: the name of the table.
        max_in_flight_samples_per_worker: no effect: samples are drawn when they are asked for.
        rate_limiter_timeout_ms: the iterator ends if the rate limiter allows no sample for so long; -1: never.
        batch_size: items of a sample; None: one item, without an axis of items.
    """

    def __init__(
        self,
        server_address: str,
        table: str,
        max_in_flight_samples_per_worker: int = 100,
        rate_limiter_timeout_ms: int = -1,
        batch_size: int | None = None,
    ) -> None:
        self._address, self._name = server_address, table
        self._table = server_at(server_address).table(table)
        self._in_flight = integer("max_in_flight_samples_per_worker", max_in_flight_samples_per_worker, 1)
        self._timeout_ms = rate_limiter_timeout_ms
        self._batch_size = None if batch_size is None else integer("batch_size", batch_size, 1)

    @classmethod
    def from_table_signature(
        cls,
        server_address: str,
        table: str,
        max_in_flight_samples_per_worker: int = 100,
        rate_limiter_timeout_ms: int = -1,
    ) -> TrajectoryDataset:
        """The dataset of a table. The data have the nesting of the table's signature, if it has one."""
        return cls(server_address, table, max_in_flight_samples_per_worker, rate_limiter_timeout_ms)

    def batch(self, batch_size: int) -> TrajectoryDataset:
        """The same samples, so many in one."""
        return TrajectoryDataset(self._address, self._name, self._in_flight, self._timeout_ms, batch_size)

    def __iter__(self) -> Iterator[ReplaySample]:
        timeout_s = None if self._timeout_ms < 0 else self._timeout_ms / 1000
        while True:
            drawn: list[Drawn] = []
            try:
                while len(drawn) < (self._batch_size or 1):
                    drawn += self._table.sample((self._batch_size or 1) - len(drawn), timeout_s)
            except DeadlineExceededError:
                return
            yield self._one(drawn[0]) if self._batch_size is None else self._stacked(drawn)

    def as_numpy_iterator(self) -> Iterator[ReplaySample]:
        """As iter()."""
        return iter(self)

    def _one(self, drawn: Drawn) -> ReplaySample:
        return ReplaySample(drawn.info, self._nested(drawn.leaves))

    def _stacked(self, drawn: list[Drawn]) -> ReplaySample:
        info = SampleInfo(*(np.array(values) for values in zip(*(one.info for one in drawn), strict=True)))
        return ReplaySample(info, self._nested([np.stack(one) for one in zip(*(d.leaves for d in drawn), strict=True)]))

    def _nested(self, values: list[Any]) -> Any:
        signature = self._table.signature
        return values if signature is None else rebuilt(signature, iter(values))
