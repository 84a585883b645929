"""Chooses the faster of two ways to the same rows, by the measured time of each.

The time of a way depends on the rows, the batch, the transport and the load of the machines. The time is therefore
measured at the caller, as the caller's wait. At first, and again after AGAIN calls, the ways are tried one after the
other, TRIED_CALLS calls each. The first WARM of these calls do not count: they make connections, and learn the pages
that later calls recall. All other calls use the way whose counted calls had the lower median. A way that fails gives no
measurement.
"""

from __future__ import annotations

import math
import statistics
import threading
from typing import Final, NamedTuple, final

__all__ = ["AGAIN", "TRIED_CALLS", "WARM", "FasterPath", "Chosen"]

TRIED_CALLS, WARM = 5, 2
AGAIN = 1000


class Chosen(NamedTuple):
    """The way of one call. is_tried: whether the time of the call counts."""

    way: int
    is_tried: bool


@final
class FasterPath:
    """The choice for calls of one kind. Any number of threads; no thread waits for another thread's call."""

    WAYS: Final = 2

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_calls = 0
        self._took_s: list[list[float]] = [[], []]
        self._best = 0

    @property
    def best(self) -> int:
        """The way that most calls use now."""
        return self._best

    def choose(self) -> Chosen:
        """The way of the next call."""
        with self._lock:
            way, place = divmod(self._num_calls % AGAIN, TRIED_CALLS)
            self._num_calls += 1
            if way >= self.WAYS:
                return Chosen(self._best, False)
            if place == 0:
                self._took_s[way] = []
            return Chosen(way, place >= WARM)

    def took(self, chosen: Chosen, seconds: float) -> None:
        """Records the time of a call that succeeded."""
        if chosen.is_tried:
            with self._lock:
                self._took_s[chosen.way].append(seconds)
                medians = [statistics.median(one) if one else math.inf for one in self._took_s]
                self._best = min(range(self.WAYS), key=medians.__getitem__)
