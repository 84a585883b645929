"""A twin of samplers, removers and limiters over a plain list: the possible draws, their chances, removals and waits.

The twin shares no code with the library. It cannot know a random choice: it says which choices are possible, and how
likely each one is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

import relive
from naive.rank_law import expected

BY_CHANCE = (relive.Uniform, relive.Prioritized, relive.Reservoir)  # removers whose choice the table says
ORDERS = (relive.Fifo, relive.Lifo, relive.MaxPriority, relive.MinPriority)


@dataclass
class NaiveItem:
    """came, changed: when it could be drawn first, and when it had its last priority; version: of its row."""

    key: int
    number: int
    priority: float
    came: int
    changed: int
    version: int
    uses: int = 0

    def rank(self, kind: Any) -> tuple[float, ...]:
        """The lowest comes first, or goes first."""
        sign = -1.0 if isinstance(kind, (relive.Lifo, relive.MaxPriority, relive.Fresh)) else 1.0
        if isinstance(kind, (relive.Fifo, relive.Lifo, relive.Fresh)):
            return (sign * self.came,)
        return (sign * self.priority, self.changed)


@dataclass
class NaiveChoices:
    """The items of one index, and what was counted. largest: the highest priority that was given."""

    index: relive.Index

    def __post_init__(self) -> None:
        self.live: dict[int, NaiveItem] = {}
        self.limiter: Any = self.index.limiter
        self.ticket = self.version = 0
        self.largest = 1.0
        self.inserted = self.sampled = self.used = 0  # items that came, items that were drawn, items ever drawn
        self.shift = 0.0  # of a corridor that was started again
        self.base = 0  # the version from which a budget counts
        self.lacked: int | None = None  # items that counted when a draw found too few

    @property
    def sampler(self) -> Any:
        return self.index.sampler

    @property
    def max_times(self) -> int | None:
        return self.index.max_times_sampled

    @property
    def is_ordered(self) -> bool:
        sampler = self.sampler
        return isinstance(sampler, ORDERS) or (isinstance(sampler, relive.Fresh) and not self.index.draws_by_mass)

    def take_ticket(self) -> int:
        self.ticket += 1
        return self.ticket

    # ---- coming and going ------------------------------------------------------------------------------------------

    @property
    def findable(self) -> list[NaiveItem]:
        """The live items that a draw may find, now or once better ones are gone: those of chance 0 are none."""
        if self.is_ordered or isinstance(self.sampler, (relive.RankBased, relive.TopK)):
            return list(self.live.values())
        return [self.live[key] for key in self.chances()]

    @property
    def counted(self) -> int:
        """The items that count as inserted: where uses are counted, what went unused or cannot be found does not."""
        if self.max_times is None:
            return self.inserted
        return self.used + sum(not item.uses for item in self.findable)

    def lets_in(self) -> bool:
        limiter, live = self.limiter, len(self.live)
        if isinstance(limiter, relive.MinSize):
            return True
        if isinstance(limiter, relive.Queue):
            return len(self.findable) < limiter.max_size
        if isinstance(limiter, relive.StalenessBudget):
            return self.counted + 1 <= (limiter.eta + self.version - self.base + 1) * limiter.items_per_version
        if live < limiter.min_size:
            return True
        ratio = limiter.samples_per_insert
        lacks = self.lacked == self.counted or not self.findable
        if lacks and ratio <= 2 * limiter.tolerance:
            return True
        most = ratio * limiter.min_size + limiter.tolerance + self.shift
        return bool((self.counted + 1) * ratio - self.sampled <= most)

    def insert(self, key: int, priority: float | None) -> None:
        """Adds a step of the present version. remove() says, or is told, which item leaves for it."""
        self.largest = max(self.largest, priority or 0.0)
        ticket = self.take_ticket()
        given = self.largest if priority is None else priority
        self.live[key] = NaiveItem(key, self.inserted, given, ticket, ticket, self.version)
        self.inserted += 1

    @property
    def is_too_many(self) -> bool:
        return self.index.max_items is not None and len(self.live) > self.index.max_items

    def removed(self) -> int | None:
        """The key that the remover takes; None where chance says."""
        if isinstance(self.index.remover, BY_CHANCE):
            return None
        return min(self.live, key=lambda key: self.live[key].rank(self.index.remover))

    def could_remove(self, key: int) -> bool:
        """Whether a remover by chance may take it."""
        if not isinstance(self.index.remover, relive.Prioritized):
            return True
        return self.live[key].priority > 0 or not any(item.priority for item in self.live.values())

    def update(self, keys: Iterable[int], priority: float) -> int:
        there = [self.live[key] for key in keys if key in self.live]
        self.largest = max(self.largest, priority)
        for item in there:
            item.priority, item.changed = priority, self.take_ticket()
        return len(there)

    def step_version(self) -> None:
        self.version += 1
        self.base += not self.inserted
        most = self.index.max_staleness
        if most is not None:
            self.live = {key: item for key, item in self.live.items() if self.version - item.version <= most}

    def change_limiter(self, limiter: Any) -> None:
        """Replaces the limiter. Its corridor starts again, around the items that are there now."""
        self.limiter, self.shift = limiter, 0.0
        if isinstance(limiter, relive.SamplesPerInsert):
            ratio = limiter.samples_per_insert
            filled = min(len(self.live), limiter.min_size) * ratio
            self.shift = self.counted * ratio - self.sampled - filled

    # ---- drawing ---------------------------------------------------------------------------------------------------

    def chances(self) -> dict[int, float]:
        """For each item that may be drawn, the probability that a draw returns it; 1 for an order."""
        items, sampler = list(self.live.values()), self.sampler
        if not items:
            return {}
        if self.is_ordered:
            return dict.fromkeys(self.live, 1.0)
        if isinstance(sampler, (relive.RankBased, relive.TopK)):
            masses = expected(sampler, np.array([item.priority for item in items]))
        elif isinstance(sampler, relive.Prioritized):
            masses = np.array([item.priority**sampler.priority_exponent for item in items])
        elif isinstance(sampler, relive.Fresh) and sampler.last is not None:
            masses = np.array([float(item.number >= self.inserted - sampler.last) for item in items])
        elif isinstance(sampler, relive.Fresh):
            masses = np.array([sampler.decay ** (self.version - item.version) for item in items])
        else:
            masses = np.ones(len(items))
        total = masses.sum()
        return {item.key: float(m / total) for item, m in zip(items, masses, strict=True) if m > 0}

    def is_too_large(self, count: int) -> bool:
        """Whether a draw is refused, whatever comes."""
        limiter, is_distinct = self.limiter, not self.index.replacement
        if is_distinct and count > self._most_distinct(count):
            return True
        if isinstance(limiter, relive.Queue):
            return count > limiter.max_size
        if not isinstance(limiter, relive.SamplesPerInsert):
            return False
        return count > 2 * limiter.tolerance - limiter.samples_per_insert + 1 or (
            is_distinct and count > limiter.min_size
        )

    def _most_distinct(self, count: int) -> int:
        """The items that are sure to exist, as far as index and sampler bound them."""
        bounds = [self.index.max_items or count, getattr(self.sampler, "last", None) or count]
        if isinstance(self.limiter, relive.StalenessBudget):
            bounds.append(int((self.limiter.eta + 1) * self.limiter.items_per_version))
        if isinstance(self.sampler, relive.TopK):
            k = self.sampler.k
            limits = [bounds[0], getattr(self.limiter, "max_size", 10**9), *bounds[2:]]
            if isinstance(self.limiter, relive.SamplesPerInsert):
                limits.append(self.limiter.min_size)
            bounds.append(k if isinstance(k, int) else max(1, int(k * min(limits) + 0.5)))
        return min(bounds)

    def limiter_lets_draw(self, count: int) -> bool:
        limiter, live = self.limiter, len(self.live)
        if isinstance(limiter, relive.Queue):
            return live >= count
        if live < getattr(limiter, "min_size", 1):
            return False
        if not isinstance(limiter, relive.SamplesPerInsert):
            return True
        ratio = limiter.samples_per_insert
        least = ratio * limiter.min_size - limiter.tolerance + self.shift
        return bool(self.counted * ratio - self.sampled - count >= least)

    def refuse(self, count: int) -> None:
        """A draw without a condition ran into its deadline."""
        if self.limiter_lets_draw(count) and self.chances():
            self.lacked = self.counted

    def may_draw(self, count: int, passing: set[int] | None = None) -> bool | None:
        """Whether a batch can be had of what is there, of items that pass; None where it depends on chance."""
        if self.is_too_large(count) or not self.limiter_lets_draw(count):
            return False
        chances = self.chances()
        found = [self.live[key] for key in chances if passing is None or key in passing]
        if not found:
            return False
        is_counted, is_distinct = self.max_times is not None, not self.index.replacement
        uses = sum((self.max_times or count) - item.uses for item in found)
        # An order with a condition, where each draw counts, has each item once.
        once = is_distinct or (is_counted and self.is_ordered and passing is not None)
        enough = len(found) >= count if once else not is_counted or uses >= count
        if is_counted and is_distinct:
            # An item that is used up within the batch makes room among the best, and cannot be drawn again.
            return True if enough else None if isinstance(self.sampler, relive.TopK) else False
        if is_counted and isinstance(self.sampler, relive.TopK) and not enough:
            return None
        return enough

    def count(self, drawn: list[int]) -> None:
        self.sampled += len(drawn)
        for key in drawn:
            item = self.live[key]
            self.used += not item.uses
            item.uses += 1
        for key in set(drawn):
            if self.live[key].uses == self.max_times:
                del self.live[key]
