"""When a draw or an insert may go on, by the totals of all shards."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, cast, final

from relive.config.limiters import Limiter, Totals
from relive.errors import DeadlineExceeded, InvalidConfig
from relive.fleet.errors import NotOverShards

__all__ = ["Pace", "Wait", "pace_of"]

_SHORTEST_S, _LONGEST_S = 0.0002, 0.01  # between two looks


class Pace(Protocol):
    """A limiter over totals: pure, on roots.

    What passes on the roots that somebody saw is not taken back: the total may overshoot by what others drew or
    inserted since, at most a batch (a block) of each other handle for each batch of the roots' age.
    """

    @property
    def holds_inserts(self) -> bool:
        """Whether writers ever wait."""
        ...

    def check_draw(self, num_items: int) -> None:
        """Raises RequestTooLarge where a draw of so many could never pass."""
        ...

    def can_sample(self, totals: Totals, num_items: int) -> bool:
        """Whether a draw of so many may go on now."""
        ...

    def check_insert(self, num_steps: int) -> None:
        """Raises RequestTooLarge where an insert of so many could never pass."""
        ...

    def can_insert(self, totals: Totals, num_steps: int) -> bool:
        """Whether an insert of so many steps, each taken for an item, may go on now."""
        ...

    def needs(self, num_items: int) -> str:
        """What a draw waits for, in words."""
        ...

    def core_numbers(self) -> tuple[float, ...]:
        """The limiter as numbers, its kind first."""
        ...


def pace_of(limiter: Limiter) -> Pace:
    """The limiter as it acts on totals. Raises NotOverShards for those that count what only one shard knows."""
    if limiter.one_table_only is not None:
        raise NotOverShards(*limiter.one_table_only)
    return cast(Pace, limiter)


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
