"""Decides when a draw or an insert may go on, by the totals of all shards."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable
from typing import Protocol, final

from relive.config.index import Index
from relive.config.limiters import Limiter, MinSize, SamplesPerInsert, Totals
from relive.config.samplers import Fresh, TopK
from relive.errors import DeadlineExceeded, InvalidConfig, RequestTooLarge
from relive.fleet.draws.placement import Roots

__all__ = ["Pace", "Wait", "check_distinct", "check_uses", "lacked", "most_insertable", "region_limiter"]

_SHORTEST_S, _LONGEST_S = 0.0002, 0.01  # between two checks


class Pace(Protocol):
    """A limiter over totals, a pure function of roots.

    A call that passes on outdated roots is not taken back. The total may overshoot by the draws or inserts of other
    handles
    since then: at most one batch (one block) of each other handle for each batch of the roots' age.
    """

    @property
    def stops_inserts(self) -> bool:
        """Whether writers ever wait."""
        ...

    @property
    def bounds_items(self) -> bool:
        """Whether the limiter acts in the region of each shard, too."""
        ...

    def check_draw(self, num_items: int) -> None:
        """Raises RequestTooLarge if a draw of num_items items could never pass."""
        ...

    def can_sample(self, totals: Totals, num_items: int) -> bool:
        """Whether a draw of num_items items may go on now."""
        ...

    def check_insert(self, num_items: int) -> None:
        """Raises RequestTooLarge if an insert that makes num_items items could never pass after the first fill.

        Ask can_insert() first: the first fill lets in more items than later inserts may have.
        """
        ...

    def can_insert(self, totals: Totals, num_items: int) -> bool:
        """Whether an insert that makes at most num_items items may go on now."""
        ...

    def needs(self, num_items: int) -> str:
        """The condition that a draw waits for, in words."""
        ...

    def has(self, totals: Totals) -> object:
        """The same of these totals."""
        ...

    def core_numbers(self) -> tuple[float, ...]:
        """The limiter as numbers, its kind first."""
        ...


def region_limiter(limiter: Limiter) -> Limiter:
    """The limiter in the region of each shard.

    A limiter that bounds items acts in each shard as it does in one table. Every other limiter acts over the totals
    alone, because a shard's own corridor could close while that of the totals is open.
    """
    return limiter if limiter.bounds_items else MinSize()


def check_distinct(index: Index, num_items: int) -> None:
    """Raises RequestTooLarge for a draw without replacement that could wait for ever, as one table does.

    A shard has no SamplesPerInsert. It therefore lacks the bound min_size, and the bounds that follow from min_size.
    """
    limiter, sampler = index.limiter, index.drawn_by
    if index.replacement or not isinstance(limiter, SamplesPerInsert):
        return
    bounds = [(limiter.min_size, "min_size of SamplesPerInsert, up to which writers never wait")]
    if isinstance(sampler, Fresh) and sampler.last is not None:
        bounds.append((sampler.last, "last of Fresh(last=)"))
    if isinstance(sampler, TopK):
        share = int(sampler.shard_part(0.0, limiter.min_size)), "the share k of TopK"
        bounds.insert(0, (sampler.k, "k of TopK") if isinstance(sampler.k, int) else share)
    most, by = min(bounds, key=lambda bound: bound[0])
    if num_items > most:
        raise RequestTooLarge(num_items, float(most), none_twice=by)


def check_uses(index: Index, num_items: int) -> None:
    """Raises RequestTooLarge for a draw of more uses than may be left where writers wait for SamplesPerInsert.

    One table lets writers go on while a draw lacks items. Roots do not tell of draws that lack items.
    """
    limiter, times = index.limiter, index.max_times_sampled
    if times is None or not isinstance(limiter, SamplesPerInsert):
        return
    most = limiter.uses_left(times)
    if num_items > most:
        raise RequestTooLarge(num_items, most, limiter.arithmetic(), uses=f"max_times_sampled {times}")


def lacked(pace: Pace, roots: Roots, num_items: int) -> tuple[str, object]:
    """The `needs` and the `has` of the error of a draw of num_items items."""
    if roots.lacks:
        return "an item with a mass (a priority) above 0", f"{roots.num_items} live items, each of mass (priority) 0"
    return pace.needs(num_items), pace.has(roots)


def most_insertable(pace: Pace, num_items: int) -> int:
    """The most items, num_items at most, that one insert may ever make."""

    def is_too_large(count: int) -> bool:
        try:
            pace.check_insert(count)
        except RequestTooLarge:
            return True
        return False

    return bisect_left(range(1, num_items + 1), True, key=is_too_large)


@final
class Wait:
    """The wait of one call: it checks less and less often until its deadline.

    Args:
        timeout_s: how long the call waits, in seconds.
        clock: tells the time.
        arrives_s: how long it waits for answers that are on their way, if that is longer.
    """

    def __init__(
        self, timeout_s: float, clock: Callable[[], float] = time.monotonic, *, arrives_s: float = 0.0
    ) -> None:
        if not timeout_s >= 0.0:
            raise InvalidConfig("timeout_s", "a number of seconds >= 0", timeout_s)
        self._clock = clock
        self._start = clock()
        self._timeout_s = timeout_s
        self._arrives_s = max(timeout_s, arrives_s)
        self._pause_s = _SHORTEST_S

    @property
    def waited_s(self) -> float:
        """Seconds since the call began."""
        return self._clock() - self._start

    @property
    def left_s(self) -> float:
        """Seconds until the deadline, at least 0."""
        return max(0.0, self._timeout_s - self.waited_s)

    @property
    def arrives_s(self) -> float:
        """Seconds that answers on their way have left, at least 0."""
        return max(0.0, self._arrives_s - self.waited_s)

    @property
    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return self.waited_s >= self._timeout_s

    def pause(self) -> None:
        """Sleeps a little, never past the deadline."""
        time.sleep(min(self._pause_s, self.left_s))
        self._pause_s = min(2.0 * self._pause_s, _LONGEST_S)

    def exceeded(self, needs: object, has: object) -> DeadlineExceeded:
        """The error of a deadline that has passed."""
        return DeadlineExceeded(needs, has, self.waited_s)
