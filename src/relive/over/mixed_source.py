"""The batches of a mixture that are drawn ahead: in flight in all sources until each is handed out."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import final

from relive.core.request import DrawRequest
from relive.core.turns import Turn, held
from relive.errors import InvalidConfig, ReliveError, TableClosed
from relive.over.in_flight import LEAVE_S, give_back, lack_of
from relive.over.mixed_draws import Mixed, MixedDraws
from relive.reading.batches import SLICE_S
from relive.reading.columns import Columns
from relive.reading.holds import LentHold, Returned, Taken

__all__ = ["MixedSource"]

_DRAWS = "the draws of batches()"
_REPLY_S = 10.0  # for rows on their way, however short the deadline of next() is


@final
class _MixedHold:
    """The hold of a batch of a mixture that was drawn ahead (relive.reading.holds)."""

    def __init__(self, source: MixedSource, mixed: Mixed) -> None:
        self._source = source
        self.mixed = mixed
        self.is_over = False
        self.is_lost = False  # it must not be handed out; take() gives it back

    def commit(self, was_late: bool = False) -> None:
        """Counts the batch as sampled, in every source."""
        self._source.commit(self)

    def give_back(self) -> None:
        """Gives the batch back in every source. The mixture goes back to the position before it."""
        self._source.give_back([self])

    def is_gone(self) -> bool:
        """Whether a part went back because its stream is over."""
        holds = (one.hold for one in self.mixed.drawn.values())
        return any(isinstance(hold, LentHold) and hold.is_gone() for hold in holds)


@final
class MixedSource:
    """The next batches of a mixture, each in flight in all of its sources until its hold ends.

    If a part of one batch goes back, because the stream to its server ends, all batches that wait go back, the newest
    first. So each source, and the mixture, go on from the last batch that was handed out.

    Owner of draws of its own. Its calls and those of the mixture run one at a time: its turn is taken before that of
    the mixture.
    """

    def __init__(
        self, mixed: MixedDraws, requests: list[DrawRequest], columns: Columns, num_items: int, timeout_s: float
    ) -> None:
        """Raises InvalidConfig for a table that draws with other ranks: how often take() draws depends on the clock."""
        if any(one.table.num_ranks > 1 for one in mixed.sources):
            expected = "tables that each rank draws from alone, or sample(), which every rank calls at once"
            raise InvalidConfig("batches() of a Mixture", expected, "a table with an exchange")
        self._mixed = mixed
        self._requests = requests
        self._columns = columns
        self._num_items = num_items
        self._draws = mixed.held_draws()
        self._timeout_s = timeout_s  # of a call of next()
        self._alone = Turn()  # guards the draws: one batch is committed while the next one is drawn
        self._lent: list[_MixedHold] = []  # the oldest first

    def take(self) -> Taken:
        """Draws and gathers. Waits for the source that lacks its part, and lets calls of the mixture pass meanwhile.

        They do not pass while rows of a server or shard are on their way.
        """
        mixed = self._mixed
        start = time.monotonic()
        with held(self._alone, _DRAWS, math.inf):
            self._give_back([one for one in self._lent if one.is_lost], SLICE_S)
            while True:
                with mixed.alone(SLICE_S):
                    mixed.open[self] = None
                    parts, after = mixed.shares.parts(mixed.at, self._num_items)
                    numbers = mixed.numbers
                    arrives = time.monotonic() + max(self._timeout_s, _REPLY_S)
                    drawn = mixed.attempt(self._draws, self._requests, parts, mixed.ordered(parts), 0.0, arrives)
                    if isinstance(drawn, dict):
                        return self._made(mixed.counted(parts, drawn, after, numbers), arrives)
                waited_s = time.monotonic() - start
                lacking = self._draws[drawn.number], self._requests[drawn.number], parts[drawn.number]
                if waited_s >= SLICE_S or lack_of(*lacking, SLICE_S - waited_s) is not None:
                    raise mixed.worded(drawn, time.monotonic() - start)

    def at_rest(self, seconds: float) -> AbstractContextManager[None]:
        """Keeps take() from drawing for the block. Waits for it at most `seconds`, at least two slices."""
        return held(self._alone, _DRAWS, max(seconds, 2.0 * SLICE_S))

    def _made(self, mixed: Mixed, ends: float) -> Taken:
        try:
            batch = self._mixed.batch(mixed, self._columns, ends)
        except BaseException:
            give_back(mixed.drawn, LEAVE_S)
            self._mixed.go_back(mixed)
            raise
        hold = _MixedHold(self, mixed)
        self._lent = [one for one in self._lent if not one.is_over]
        self._lent.append(hold)
        self._mixed.lend(hold)
        return Taken(batch, hold)

    def commit(self, hold: _MixedHold) -> None:
        """Counts a batch as sampled, in every source. Raises Returned if the batch, or an older one, went back.

        After another error all batches that wait go back.

        Blocks: at most timeout_s, at least two slices, for a draw that is under way, and for servers; see
        MixedDraws.count.
        """
        mixed = self._mixed
        if mixed.closed or any(one.table.closed for one in mixed.sources):
            raise TableClosed()
        ends = time.monotonic() + self._timeout_s
        with self.at_rest(self._timeout_s):
            if not hold.is_lost and not hold.is_over and hold.is_gone():
                self._lose_all()
            if hold.is_lost:  # before is_over: take() has given it back
                raise Returned
            if hold.is_over:
                return
            try:
                mixed.count(hold.mixed, ends)
            except ReliveError:
                self._lose_all()
                raise
            hold.is_over = True

    def _lose_all(self) -> None:
        for one in self._lent:
            one.is_lost = True

    def give_back(self, holds: Sequence[_MixedHold]) -> None:
        """Gives batches back in every source, the newest first."""
        with held(self._alone, _DRAWS, math.inf):
            self._give_back(holds, math.inf)

    def _give_back(self, holds: Sequence[_MixedHold], timeout_s: float) -> None:
        left = [one for one in holds if not one.is_over]
        if left:
            with self._mixed.alone(timeout_s, when_closed=True):
                for one in reversed(left):
                    one.is_over = True
                    give_back(one.mixed.drawn, LEAVE_S)
                    self._mixed.go_back(one.mixed)

    def ask(self, num_batches: int) -> None:
        """Does nothing: take() asks all tables."""

    def cancel(self) -> None:
        """Shortens a wait for rows on their way. The limiter is waited for in slices."""
        for draws in self._draws:
            draws.hurry()

    def close(self) -> None:
        """Gives back all batches, the newest first."""
        with held(self._alone, _DRAWS, math.inf):
            self._give_back(self._lent, math.inf)
            with self._mixed.alone(math.inf, when_closed=True):
                self._mixed.open.pop(self, None)
                for draws in self._draws:
                    draws.close()
