"""The limiter's two formulas over random programs: in every state, how many inserts and draws are allowed.

The numbers here follow from the formulas alone. The seeds are fixed, so a case is the same program every time.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from conformance.calls import can_insert, can_sample, counts, drain, fill, one, ratio, size
from conformance.sources import LIMITER_STATE
from conformance.words import Call, Case, Limit

MOST = 6  # asked for at once


class _Counts:
    """inserts, samples and deletions of a table with at most max_size items, and what the formulas let pass."""

    def __init__(self, limit: Limit, max_size: int) -> None:
        assert isinstance(limit.buffer, float)
        middle = limit.ratio * limit.size
        self._limit, self._max_size = limit, max_size
        self._low, self._high = middle - limit.buffer, middle + limit.buffer
        self.inserts = self.samples = self.deletes = 0

    @property
    def live(self) -> int:
        return self.inserts - self.deletes

    def can_sample(self, num_items: int) -> bool:
        error = self.inserts * self._limit.ratio - self.samples
        return self.live >= self._limit.size and error - num_items >= self._low

    def can_insert(self, num_items: int) -> bool:
        if self.live + num_items <= self._limit.size:
            return True
        return (self.inserts + num_items) * self._limit.ratio - self.samples <= self._high

    def insert(self, most: int) -> int:
        done = 0
        while done < most and self.can_insert(1):
            done, self.inserts = done + 1, self.inserts + 1
            self.deletes += self.live > self._max_size
        return done

    def sample(self, most: int) -> int:
        done = 0
        while done < most and self.can_sample(1):
            done, self.samples = done + 1, self.samples + 1
        return done


def _walk(limit: Limit, max_size: int, seed: int, num_moves: int = 25) -> Iterator[Call]:
    chance, table = random.Random(seed), _Counts(limit, max_size)
    for _ in range(num_moves):
        most = chance.randint(1, MOST)
        if chance.random() < 0.5:
            yield fill(most).gives(table.insert(most))
        else:
            yield drain(most).gives(table.sample(most))
        asked = chance.randint(1, MOST)
        yield can_sample(asked).gives(table.can_sample(asked))
        if table.live >= limit.size or table.live + asked <= limit.size:  # the rest has a case of its own
            yield can_insert(asked).gives(table.can_insert(asked))
    yield counts().gives([table.inserts, table.samples])
    yield size().gives(table.live)


def _case(name: str, limit: Limit, max_size: int, seed: int) -> Case:
    says = (
        "can_sample(n): inserts - deletes >= min_size and inserts x ratio - samples - n >= min_diff; can_insert(n):"
        " inserts + n - deletes <= min_size or (inserts + n) x ratio - samples <= max_diff."
    )
    return Case(name, says, LIMITER_STATE, one(limit=limit, max_size=max_size), tuple(_walk(limit, max_size, seed)))


CASES = (
    _case("the formulas at a whole ratio", ratio(2.0, 3, 5.0), 100, 1),
    _case("the formulas at a fractional ratio", ratio(0.75, 4, 2.5), 100, 2),
    _case("the formulas in a table that is full", ratio(1.5, 3, 4.0), 4, 3),
)
