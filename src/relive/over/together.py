"""The sources of a mixture whose ranks draw together: the draws of this rank, and the calls in which all ranks meet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, final

from relive.core.loadable import GivenUp
from relive.errors import DeadlineExceeded, ReliveError
from relive.over.sources import Source

__all__ = ["Numbers", "Together"]

# The number of each source's next draw; None: a server numbers its draws.
Numbers: TypeAlias = tuple[int | None, ...]


@final
class Together:
    """The sources over tables with an exchange of ranks. One call at a time."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        # Their positions among all sources. Ranks draw in one order, that of the names, each draw once.
        self.places = [place for place, one in enumerate(sources) if one.table.num_ranks > 1]
        self.places.sort(key=lambda place: sources[place].name)
        # A number() that was given up: its numbers, the draws begun then, and how many sources have their numbers.
        self._met: tuple[Numbers, list[int], int] | None = None

    @property
    def num_begun(self) -> list[int]:
        """Number of draws that this rank has begun, of each source."""
        return [self._sources[place].table.num_shared_draws for place in self.places]

    @property
    def given_up(self) -> list[GivenUp | None]:
        """The draw that this rank gave up, of each source."""
        return [self._sources[place].table.given_up_draw for place in self.places]

    def number(self, numbers: Numbers) -> None:
        """Gives the next draws these numbers: a call of all ranks for each source, by the order of names.

        If a call fails, the sources before its own have their new numbers, on every rank. After a call that was given
        up, number() with the same numbers goes on with that source, unless this rank has drawn since: another rank may
        have got all numbers, and makes no call again.

        Args:
            numbers: a number for each source of the mixture. None is for sources that are not of this class.

        Raises:
            RanksDisagree: the ranks give a source unlike numbers, on all ranks.
            DeadlineExceeded, RankLost: a rank does not come.
        """
        before, self._met = self._met, None
        met = before[2] if before is not None and before[:2] == (numbers, self.num_begun) else 0
        try:
            for place in self.places[met:]:
                following = numbers[place]
                assert following is not None
                self._sources[place].table.number_draws(following)
                met += 1
        except BaseException as problem:
            if isinstance(problem, DeadlineExceeded) or not isinstance(problem, ReliveError):
                self._met = numbers, self.num_begun, met
            raise
