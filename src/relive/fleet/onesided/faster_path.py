"""Which of two ways to the same rows is quicker, by what each took.

How long a way takes depends on the rows, the batch, the transport and what else the machines do, so it is measured
where it is felt: the time that a caller waited. At first, and again after AGAIN calls, the ways are tried one after the
other, TURN calls each, the first WARM of which count for nothing: they make connections, and learn what later ones
recall. All other calls go the way whose counted calls had the lesser median. A way that cannot be gone tells nothing.
"""

from __future__ import annotations

import math
import statistics
import threading
from typing import Final, NamedTuple, final

__all__ = ["AGAIN", "TURN", "WARM", "Quicker", "Turn"]

TURN, WARM = 5, 2
AGAIN = 1000


class Turn(NamedTuple):
    """A call that goes one of the ways; is_tried: how long it takes is of interest."""

    way: int
    is_tried: bool


@final
class Quicker:
    """The choice for calls of one kind. Any number of threads, none of which waits for another's call."""

    WAYS: Final = 2

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_calls = 0
        self._took_s: list[list[float]] = [[], []]
        self._best = 0

    @property
    def best(self) -> int:
        """The way that most calls go now."""
        return self._best

    def turn(self) -> Turn:
        """The way of the next call."""
        with self._lock:
            way, place = divmod(self._num_calls % AGAIN, TURN)
            self._num_calls += 1
            if way >= self.WAYS:
                return Turn(self._best, False)
            if place == 0:
                self._took_s[way] = []
            return Turn(way, place >= WARM)

    def took(self, turn: Turn, seconds: float) -> None:
        """How long a call took that is over, and went well."""
        if turn.is_tried:
            with self._lock:
                self._took_s[turn.way].append(seconds)
                medians = [statistics.median(one) if one else math.inf for one in self._took_s]
                self._best = min(range(self.WAYS), key=medians.__getitem__)
