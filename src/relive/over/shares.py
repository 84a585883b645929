"""The shares of a mixture: how many items of each batch come from which source, exactly."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple, final

from relive.checks.values import finite, is_name
from relive.errors import InvalidConfig

__all__ = ["Counted", "Shares"]

_MOST_SOURCES = 64
_TOLERANCE = Fraction(1, 10**9)


class Counted(NamedTuple):
    """The position of a mixture: its items since all shares last came out even, in total and of each source."""

    num_items: int
    of_source: tuple[int, ...]


@final
class Shares:
    """Shares as whole numbers: source i gives weights[i] of `period` items.

    A share is the decimal number that is written.

    Over any number of items, the total of each source stays less than 1 item from its share. So it does over any number
    of batches of any sizes. With two sources this is rounding. With more it is decided item by item: the candidates are
    the sources whose totals are below their shares of the items, including this one; the candidate that would lack a
    whole item first gives the item. All numbers are whole, so nothing drifts.

    Cost: O(1) with two sources; else O(sources) an item, some us, for batch sizes modulo the period.

    Source: Baruah et al. 1996, Proportionate progress. On one processor, earliest deadline first schedules it.
    """

    def __init__(self, shares: Mapping[str, float]) -> None:
        if not isinstance(shares, Mapping) or not 1 <= len(shares) <= _MOST_SOURCES:
            got = len(shares) if isinstance(shares, Mapping) else shares
            raise InvalidConfig("shares of a Mixture", f"{{name: share}} of 1 to {_MOST_SOURCES} sources", got)
        for name in shares:
            if not is_name(name, 63):
                raise InvalidConfig("name of a source", "1 to 63 bytes of text", name)
        numbers = {name: finite(f"share of {name!r}", value, 0.0, above=True) for name, value in shares.items()}
        written = [Fraction(repr(float(number))) for number in numbers.values()]
        total = sum(written, Fraction(0))
        if abs(total - 1) > _TOLERANCE:
            raise InvalidConfig("shares of a Mixture", "numbers > 0 that sum to 1, within 1e-9", float(total))
        exact = [share / total for share in written]
        self.names: tuple[str, ...] = tuple(numbers)
        self.shares: tuple[float, ...] = tuple(float(share) for share in exact)
        self.period: int = math.lcm(*(share.denominator for share in exact))
        self.weights: tuple[int, ...] = tuple(int(share * self.period) for share in exact)

    @property
    def begun(self) -> Counted:
        """The position before the first item."""
        return Counted(0, (0,) * len(self.names))

    def parts(self, at: Counted, num_items: int) -> tuple[tuple[int, ...], Counted]:
        """The number of the next num_items items that come from each source, and the position after them."""
        if len(self.weights) == 2:
            return self._halves(at, num_items)
        periods, rest = divmod(num_items, self.period)
        time, totals = at.num_items, list(at.of_source)
        parts = [periods * weight for weight in self.weights]
        for _ in range(rest):
            time += 1
            source = self._next(time, totals)
            totals[source] += 1
            parts[source] += 1
            if time == self.period:  # every total is its weight
                time, totals = 0, [0] * len(totals)
        return tuple(parts), Counted(time, tuple(totals))

    def _halves(self, at: Counted, num_items: int) -> tuple[tuple[int, ...], Counted]:
        """With two sources the total of the first is its share, rounded: both are off by half an item at most."""
        time = at.num_items + num_items
        first = (2 * time * self.weights[0] + self.period) // (2 * self.period)
        parts = (first - at.of_source[0], time - first - at.of_source[1])
        periods, time = divmod(time, self.period)
        totals = (first - periods * self.weights[0], time - first + periods * self.weights[0])
        return parts, Counted(time, totals)

    def _next(self, time: int, totals: list[int]) -> int:
        best, first_due = -1, 0
        for source, (weight, total) in enumerate(zip(self.weights, totals, strict=True)):
            if total * self.period >= time * weight:
                continue
            due = -(-(total + 1) * self.period // weight)
            if best < 0 or due < first_due:
                best, first_due = source, due
        return best
