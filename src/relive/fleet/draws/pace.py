"""When a draw or an insert may go on, by the totals of all shards."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, final

from relive.config.limiters import Limiter, MinSize, SamplesPerInsert
from relive.errors import DeadlineExceeded, InvalidConfig, RequestTooLarge
from relive.fleet.draws.placement import Roots
from relive.fleet.errors import NotOverShards

__all__ = ["Pace", "Wait", "pace_of"]

_SHORTEST_S, _LONGEST_S = 0.0002, 0.01  # between two looks


class Pace(Protocol):
    """A limiter over totals: pure, on roots."""

    @property
    def limiter(self) -> Limiter:
        """What it was made of."""
        ...

    @property
    def holds_inserts(self) -> bool:
        """Whether writers ever wait."""
        ...

    def check_draw(self, num_items: int) -> None:
        """Raises RequestTooLarge where a draw of so many could never pass."""
        ...

    def can_sample(self, roots: Roots, num_items: int) -> bool:
        """Whether a draw of so many may go on now."""
        ...

    def check_insert(self, num_steps: int) -> None:
        """Raises RequestTooLarge where an insert of so many could never pass."""
        ...

    def can_insert(self, roots: Roots, num_steps: int) -> bool:
        """Whether an insert of so many steps, each taken for an item, may go on now."""
        ...

    def needs(self, num_items: int) -> str:
        """What a draw waits for, in words."""
        ...


@final
class OpenPace:
    """MinSize over totals."""

    holds_inserts = False

    def __init__(self, limiter: MinSize) -> None:
        self.limiter = limiter

    def check_draw(self, num_items: int) -> None:
        """All draws can pass."""

    def can_sample(self, roots: Roots, num_items: int) -> bool:
        """live >= min_size."""
        return roots.num_items >= self.limiter.min_size

    def check_insert(self, num_steps: int) -> None:
        """All inserts can pass."""

    def can_insert(self, roots: Roots, num_steps: int) -> bool:
        """Writers never wait."""
        return True

    def needs(self, num_items: int) -> str:
        """The live items."""
        return f"{self.limiter.min_size} live items"


@final
class RatioPace:
    """SamplesPerInsert over totals: with d = inserted x samples_per_insert - sampled a draw of n passes when
    live >= min_size and d - n >= low; an insert of n when live < min_size or d + n x samples_per_insert <= high.

    What passes on the roots that somebody saw is not taken back: the total may overshoot by what others drew or
    inserted since, at most a batch (a block) of each other handle for each batch of the roots' age.
    """

    holds_inserts = True

    def __init__(self, limiter: SamplesPerInsert) -> None:
        self.limiter = limiter
        middle = limiter.samples_per_insert * limiter.min_size
        self._low, self._high = middle - limiter.half_window, middle + limiter.half_window

    def _balance(self, roots: Roots) -> float:
        return roots.inserted * self.limiter.samples_per_insert - roots.sampled

    def check_draw(self, num_items: int) -> None:
        """A draw and one row share the window."""
        if num_items > self.limiter.window - self.limiter.samples_per_insert:
            raise RequestTooLarge(num_items, self.limiter.window)

    def can_sample(self, roots: Roots, num_items: int) -> bool:
        """d - n >= low."""
        return roots.num_items >= self.limiter.min_size and self._balance(roots) - num_items >= self._low

    def check_insert(self, num_steps: int) -> None:
        """A block must be worth no more than the window."""
        if num_steps * self.limiter.samples_per_insert > self.limiter.window:
            raise RequestTooLarge(num_steps, self.limiter.window, self.limiter.arithmetic())

    def can_insert(self, roots: Roots, num_steps: int) -> bool:
        """The first fill, or d + n x samples_per_insert <= high, items that wait counted as inserted."""
        ratio, live = self.limiter.samples_per_insert, roots.num_items + roots.pending
        if live + num_steps <= self.limiter.min_size or live < self.limiter.min_size:
            return True
        return self._balance(roots) + (roots.pending + num_steps) * ratio <= self._high

    def needs(self, num_items: int) -> str:
        """The corridor."""
        return f"{self.limiter.min_size} live items, and {num_items} samples above {self._low:g}"


def pace_of(limiter: Limiter) -> Pace:
    """The pace of a limiter. Raises NotOverShards for those that count what only one shard knows."""
    if isinstance(limiter, MinSize):
        return OpenPace(limiter)
    if isinstance(limiter, SamplesPerInsert):
        return RatioPace(limiter)
    raise NotOverShards(
        f"the limiter {type(limiter).__name__}",
        "it counts items exactly, under a lock that shards do not share",
        "use MinSize or SamplesPerInsert, or one table",
    )


@final
class Wait:
    """One call's patience: looks again, ever less often, until its deadline."""

    def __init__(self, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        if not timeout_s >= 0.0:
            raise InvalidConfig("timeout_s", "a number of seconds >= 0", timeout_s)
        self._clock = clock
        self._start = clock()
        self._timeout_s = timeout_s
        self._pause_s = _SHORTEST_S

    @property
    def waited_s(self) -> float:
        """Since the call began."""
        return self._clock() - self._start

    @property
    def left_s(self) -> float:
        """Until its deadline, at least 0."""
        return max(0.0, self._timeout_s - self.waited_s)

    @property
    def is_over(self) -> bool:
        """Whether the deadline has come."""
        return self.waited_s >= self._timeout_s

    def pause(self) -> None:
        """Sleeps a little, never past the deadline."""
        time.sleep(min(self._pause_s, self.left_s))
        self._pause_s = min(2.0 * self._pause_s, _LONGEST_S)

    def exceeded(self, needs: object, has: object) -> DeadlineExceeded:
        """The error of a deadline that has come."""
        return DeadlineExceeded(needs, has, self.waited_s)
