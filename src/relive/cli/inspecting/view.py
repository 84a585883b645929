"""A view of a table at one moment: figures, rates since the view before, and histograms of a sample of its items."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from relive.config.samplers import Prioritized
from relive.errors import ReliveError
from relive.table.stats import IndexStats, TableStats
from relive.table.table import Table

if TYPE_CHECKING:
    from relive.service.client.remote_table import RemoteTable

__all__ = ["Bars", "IndexView", "Looker", "View", "rounded"]

_SAMPLE = 512  # items of a sample
_BARS = 10

# Why one side waits, by the word of IndexStats.
_READERS = {
    "min_size": "readers wait for writers: the index has fewer items than its min_size",
    "low": "readers wait for writers: too few new items for the replay ratio, or an empty queue",
    "items": "readers wait for writers: no item is left that may be drawn",
}
_WRITERS = {
    "high": "writers wait for readers: too few draws for the replay ratio",
    "queue": "writers wait for readers: the queue is full",
    "budget": "writers wait for readers: the budget of staleness is used",
}


@dataclass(frozen=True)
class Bars:
    """A histogram: the lowest and the highest value, and the share of items in each of the equal parts between."""

    low: float
    high: float
    shares: tuple[float, ...]


@dataclass(frozen=True)
class IndexView:
    """One index. Rates are items a second since the view before; reuse is items drawn for each item inserted."""

    name: str
    items: str
    sampler: str
    limiter: str
    num_items: int
    inserts_per_s: float
    draws_per_s: float
    reuse: float
    pending: int
    waits: tuple[str, ...]  # sentences
    longest_wait_s: float
    priorities: Bars | None
    ages: Bars | None


@dataclass(frozen=True)
class View:
    """One table. Rates are steps a second since the view before."""

    name: str
    num_steps: int
    capacity: int
    num_bytes: int
    num_lanes: int
    num_participants: int
    steps_per_s: float
    appended: int
    evicted: int
    updates_applied: int
    updates_stale: int
    recoveries: int
    shards: tuple[str, ...]
    problem: str
    indexes: tuple[IndexView, ...]

    def as_dict(self) -> dict[str, Any]:
        """The same as plain dicts and numbers."""
        return asdict(self)


class Looker:
    """Makes views of one table.

    Args:
        table: a read-only handle, or a remote one. Draws of a remote handle count, so a remote view has no histograms.
        name: the name that the view shows.
    """

    def __init__(self, table: Table | RemoteTable, name: str) -> None:
        self._table = table
        self._name = name
        self._last: tuple[float, TableStats] | None = None

    def look(self) -> View:
        """A view of this moment. Raises TableClosed, ServiceUnavailable."""
        now, stats = time.monotonic(), self._table.stats()
        before_s, before = self._last or (now, stats)
        seconds = max(now - before_s, 1e-9)
        self._last = now, stats
        indexes = tuple(
            self._index(name, one, before.indexes.get(name, one), seconds) for name, one in stats.indexes.items()
        )
        shards = tuple(
            f"shard {one.shard}: {one.state}, {one.num_steps:,} of {one.capacity:,} steps" for one in stats.shards or ()
        )
        return View(
            name=self._name,
            num_steps=stats.num_steps,
            capacity=stats.capacity,
            num_bytes=stats.num_bytes,
            num_lanes=stats.num_lanes,
            num_participants=stats.num_participants,
            steps_per_s=max(0.0, (stats.appended - before.appended) / seconds),
            appended=stats.appended,
            evicted=stats.evicted,
            updates_applied=stats.updates_applied,
            updates_stale=stats.updates_stale,
            recoveries=stats.recoveries,
            shards=shards,
            problem="" if stats.file is None else stats.file.problem,
            indexes=indexes,
        )

    def _index(self, name: str, now: IndexStats, before: IndexStats, seconds: float) -> IndexView:
        config = self._table.indexes[name]
        priorities, ages = self._histograms(name, now.total_mass)
        return IndexView(
            name=name,
            items=type(config.items).__name__,
            sampler=str(config.sampler),
            limiter=str(now.limiter),
            num_items=now.num_items,
            inserts_per_s=max(0.0, (now.inserted - before.inserted) / seconds),
            draws_per_s=max(0.0, (now.sampled - before.sampled) / seconds),
            reuse=now.samples_per_insert,
            pending=now.pending,
            waits=tuple(_waits(now)),
            longest_wait_s=max(now.sampler_waits_s, now.writer_waits_s),
            priorities=priorities,
            ages=ages,
        )

    def _histograms(self, name: str, total_mass: float) -> tuple[Bars | None, Bars | None]:
        """Priorities and policy ages of a sample of items.

        An item that is drawn with probability p counts 1 / p, so that the bars are those of all items.
        """
        table = self._table
        if not isinstance(table, Table):
            return None, None
        sampler = table.indexes[name].sampler
        try:
            draw = table.draw(_SAMPLE, timeout_s=0.0, index=name)
            batch = table.gather(draw, ["staleness"], index=name)
            ages = np.asarray(batch["staleness"], np.float64)
            if not isinstance(sampler, Prioritized):
                return None, _bars(ages, np.ones(len(ages)))
            shares = np.asarray(batch.probabilities, np.float64)
            exponent = table.priority_exponent(name)
        except ReliveError:  # too few items, or a sampler that gives no probabilities
            return None, None
        kept = shares > 0
        counts = 1 / shares[kept]
        priorities = _bars((shares[kept] * total_mass) ** (1 / exponent), counts) if exponent > 0 else None
        return priorities, _bars(ages[kept], counts)


def _bars(values: npt.NDArray[np.float64], counts: npt.NDArray[np.float64]) -> Bars | None:
    if not len(values) or not counts.sum() > 0:
        return None
    low, high = float(values.min()), float(values.max())
    heights, _ = np.histogram(values, bins=_BARS, range=(low, high) if high > low else (low, low + 1), weights=counts)
    return Bars(low, high, tuple(float(one) for one in heights / heights.sum()))


def _waits(stats: IndexStats) -> list[str]:
    """Which side waits for which, as sentences."""
    found = []
    for count, word, sentences in (
        (stats.waiting_samplers, stats.samplers_wait_for, _READERS),
        (stats.waiting_writers, stats.writers_wait_for, _WRITERS),
    ):
        if count or word:
            found.append(f"{count} waiting now; {sentences.get(word, 'they wait for the table')}")
    if stats.stuck:
        inserted, drawn = stats.stuck
        found.append(f"STUCK: an insert of {inserted} and a draw of {drawn} items do not fit the limiter together")
    return found


def rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    """A view's dict with finite numbers only: JSON has no nan and no infinity."""

    def plain(value: Any) -> Any:
        if isinstance(value, float):
            return value if np.isfinite(value) else None
        if isinstance(value, Mapping):
            return {name: plain(one) for name, one in value.items()}
        return [plain(one) for one in value] if isinstance(value, (list, tuple)) else value

    return {name: plain(value) for name, value in values.items()}
