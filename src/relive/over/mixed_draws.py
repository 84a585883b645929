"""The draws of a mixture: all parts of a batch or none, the position after it, and batches that are drawn ahead."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from relive.core.request import DrawRequest
from relive.core.turns import Turn, held
from relive.errors import DeadlineExceeded, InvalidConfig, ReliveError, TableClosed
from relive.over.joined import join
from relive.over.shares import Counted, Shares
from relive.reading.batch import Batch
from relive.reading.batches import SLICE_S
from relive.reading.columns import Columns
from relive.reading.holds import HeldDraw, HeldDraws, Taken, TimedHold
from relive.table.handle import TableHandle

__all__ = ["Mixed", "MixedDraws", "MixedSource", "Numbers", "Position", "Source"]

_LEAST_WAIT_S = 0.1  # as long as a call of a table waits for the table lock
_DRAWS = "the draws of batches()"
_LEAVE_S = 1.0  # for each message about a draw, once a call has failed


Numbers = tuple[int | None, ...]  # of the next draw of each source's handle; None: a server numbers its draws


class Source(NamedTuple):
    name: str
    table: TableHandle
    index_name: str


class Position(NamedTuple):
    """Where a mixture is: the items of each source so far, and the random numbers that draw and place the next ones."""

    counted: Counted
    num_batches: int
    random: Mapping[str, Any]
    numbers: Numbers


class Mixed(NamedTuple):
    """A batch that is being made. Every source that gave a part of it has its draw in flight."""

    parts: tuple[int, ...]  # items of each source
    drawn: dict[int, HeldDraw]  # of the sources that gave some
    before: Position
    numbers: Numbers  # after it


class Lack(NamedTuple):
    """A source that does not have its part, and what it said."""

    number: int
    problem: DeadlineExceeded


@final
class MixedDraws:
    """Where a mixture is, and its draws from all sources. One call at a time: alone() and drawing() let one pass.

    Owner of the draws that sample() and draw() have in flight.
    """

    def __init__(self, shares: Shares, sources: Sequence[Source], seed: int) -> None:
        self.shares = shares
        self.sources = tuple(sources)
        self.closed = False
        self.at = shares.begun
        self._num_batches = 0
        self._seed = seed
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self._making: Mixed | None = None  # of drawing(): counted in the position, and not in the sources
        self._turn = Turn()
        self._pid = os.getpid()
        self._draws = self.held_draws()
        self._ahead: list[_MixedHold] = []  # batches that were drawn ahead, the oldest first
        self.open: set[MixedSource] = set()  # those that have drawn, until they are closed

    def held_draws(self) -> list[HeldDraws]:
        """Draws of each source, of an owner of their own."""
        return [one.table.held_draws() for one in self.sources]

    def close(self, timeout_s: float) -> None:
        """Gives back what is in flight. Blocks: for a call of another thread, at most timeout_s."""
        self.closed = True
        with suppress(ReliveError), self.alone(timeout_s, when_closed=True):
            for draws in self._draws:
                draws.close()

    @contextmanager
    def alone(self, seconds: float, *, when_closed: bool = False) -> Iterator[float]:
        """Lets one call at a time pass; yields the time at which the call must end.

        Waits for the call of another thread at least _LEAST_WAIT_S, so that two calls that try once both try.
        """
        if os.getpid() != self._pid:
            self._begin_in_child()
        ends = time.monotonic() + seconds
        with held(self._turn, "the mixture", max(seconds, _LEAST_WAIT_S)):
            if self.closed and not when_closed:
                raise TableClosed()
            yield ends

    def _begin_in_child(self) -> None:
        """The fork copied the locks of the turn and of the generator, which a thread of the parent may have taken."""
        self._pid = os.getpid()
        self._turn, self._draws, self._making, self._ahead, self.open = Turn(), self.held_draws(), None, [], set()
        self._rng = np.random.Generator(np.random.PCG64([self._seed, self._pid]))

    @contextmanager
    def drawing(self, seconds: float) -> Iterator[float]:
        """As alone(), for a call that draws. If it does not come to its end it leaves nothing in flight."""
        with self.alone(seconds) as ends:
            try:
                yield ends
            except BaseException:
                if self._making is not None:
                    self.give_back(self._making.drawn, _LEAVE_S)
                    self.go_back(self._making)
                for draws in self._draws:
                    with suppress(ReliveError):
                        draws.close()
                raise
            finally:
                self._making = None

    def take(self, requests: list[DrawRequest], num_items: int, ends: float) -> Mixed:
        """All parts of a batch, in flight until commit(). At the end of drawing() the parts that are left go back.

        While it waits it has nothing in flight: it waits for the source that refused, alone.
        """
        start = time.monotonic()
        parts, after = self.shares.parts(self.at, num_items)
        wanted = [number for number, part in enumerate(parts) if part]
        while True:
            numbers = self.numbers
            drawn = self.attempt(self._draws, requests, parts, wanted, max(ends - time.monotonic(), 0.0))
            if not isinstance(drawn, Lack):
                self._making = self.counted(parts, drawn, after, numbers)
                return self._making
            if drawn.number == wanted[0] or time.monotonic() >= ends:
                raise self.worded(drawn, time.monotonic() - start)
            wanted.remove(drawn.number)
            wanted.insert(0, drawn.number)

    def attempt(
        self,
        draws: list[HeldDraws],
        requests: list[DrawRequest],
        parts: Sequence[int],
        wanted: Sequence[int],
        timeout_s: float,
    ) -> dict[int, HeldDraw] | Lack:
        """The parts of the wanted sources, in flight; or the source that lacks its part, and nothing in flight.

        It waits for the first source only.
        """
        drawn: dict[int, HeldDraw] = {}
        for number in wanted:
            try:
                request = requests[number]._replace(num_items=parts[number])
                drawn[number] = draws[number].draw(request, 0.0 if drawn else timeout_s)
            except DeadlineExceeded as problem:
                self.give_back(drawn)
                return Lack(number, problem)
            except BaseException:
                self.give_back(drawn, _LEAVE_S)
                raise
        return drawn

    def counted(self, parts: tuple[int, ...], drawn: dict[int, HeldDraw], after: Counted, numbers: Numbers) -> Mixed:
        """Goes on to the position after the batch. numbers: those of the draws before it."""
        before = self._here._replace(numbers=numbers)
        self.at = after
        self._num_batches += 1
        return Mixed(parts, drawn, before, self.numbers)

    @property
    def numbers(self) -> Numbers:
        """The numbers of the next draws."""
        return tuple(one.table.next_draw for one in self.sources)

    @property
    def _here(self) -> Position:
        return Position(self.at, self._num_batches, self._rng.bit_generator.state, self.numbers)

    # ---- batches that were drawn ahead -----------------------------------------------------------------------------

    def lend(self, hold: _MixedHold) -> None:
        """Notes a batch that was drawn ahead, as the newest."""
        self._ahead = [one for one in self._ahead if not one.is_over]
        self._ahead.append(hold)

    def frontier(self) -> Position:
        """Returns where the mixture would be if all batches that were drawn ahead were given back, the newest first."""
        position = self._here
        for mixed in (hold.mixed for hold in reversed(self._ahead) if not hold.is_over):
            numbers = tuple(map(_returned, position.numbers, mixed.numbers, mixed.before.numbers))
            if position.num_batches == mixed.before.num_batches + 1:
                position = mixed.before
            position = position._replace(numbers=numbers)
        return position

    def go_to(self, position: Position) -> None:
        """Goes on from the frontier of another mixture.

        A source whose number is None keeps its own. Raises InvalidConfig while batches() is open.
        """
        if self.open:
            raise InvalidConfig("load_state_dict of a Mixture", "a call before its batches() begin", "one that is open")
        self._rng.bit_generator.state = position.random
        self.at = position.counted
        for one, number in zip(self.sources, position.numbers, strict=True):
            if number is not None:
                one.table.number_draws(number)

    def worded(self, lack: Lack, waited_s: float) -> DeadlineExceeded:
        problem = lack.problem
        needs = f"of {self.shares.names[lack.number]!r} {problem.needs}"
        return type(problem)(needs, problem.has, waited_s, problem.holder_pid)

    def go_back(self, mixed: Mixed) -> None:
        """Goes back to where the mixture was before this batch, if no other one was drawn after it."""
        if self._num_batches == mixed.before.num_batches + 1:
            self.at, self._num_batches = mixed.before.counted, mixed.before.num_batches
            self._rng.bit_generator.state = mixed.before.random

    def give_back(self, drawn: Mapping[int, HeldDraw], seconds: float = math.inf) -> None:
        """Gives back the parts that are still in flight. Waits for each server at most `seconds`, at least a second."""
        for one in reversed(list(drawn.values())):  # the newest first, so that each gives back its number
            with suppress(ReliveError):  # a source that is closed, or whose stream is over, gives back by itself
                if isinstance(one.hold, TimedHold):
                    one.hold.give_back_within(seconds)
                else:
                    one.hold.give_back()

    def commit(self, mixed: Mixed, ends: float) -> None:
        """Counts all parts. After an error of one source the parts of the others are counted or given back.

        A signal's handler that raises leaves no batch half counted: all parts are counted, and then the error goes on.
        A server that does not answer until `ends`, a time.monotonic(), takes its part back. It gets a second at least.
        """
        self._making = None
        try:
            for one in mixed.drawn.values():
                _commit(one, ends - time.monotonic())
        except ReliveError:
            self.give_back(mixed.drawn, _LEAVE_S)
            raise
        except BaseException:
            for one in mixed.drawn.values():  # those that were counted are not counted again
                with suppress(ReliveError):  # the interrupt goes on, whatever the servers answer
                    _commit(one, _LEAVE_S)
            raise

    def places(self, mixed: Mixed) -> tuple[list[npt.NDArray[np.intp]], npt.NDArray[np.int64]]:
        """The positions in the batch for the items of each source, and the source of each position.

        The items of one source keep the order in which it drew them. A sampler with an order therefore keeps it, and
        items that are drawn by chance come in random order from their source.
        """
        order = self._rng.permutation(sum(mixed.parts))
        places = [np.sort(part) for part in np.split(order, np.cumsum(mixed.parts)[:-1])]
        source = np.empty(len(order), np.int64)
        source[np.concatenate(places)] = np.repeat(np.arange(len(mixed.parts)), mixed.parts)
        return places, source

    def num_live(self, mixed: Mixed) -> int:
        live = 0
        for number, one in enumerate(self.sources):
            drawn = mixed.drawn.get(number)
            live += one.table.num_items(one.index_name) if drawn is None else drawn.num_live_items
        return max(1, live)

    def batch(self, mixed: Mixed, shown: Columns) -> Batch:
        places, source = self.places(mixed)
        keys, probabilities = np.empty(len(source), np.int64), np.empty(len(source), np.float64)
        for number, drawn in mixed.drawn.items():
            keys[places[number]] = drawn.item_keys
            probabilities[places[number]] = drawn.probabilities * self.shares.shares[number]
        parts = [drawn.arrays for drawn in mixed.drawn.values()]
        arrays = join(shown, parts, [places[number] for number in mixed.drawn])
        return Batch(shown, arrays, keys, probabilities, self.num_live(mixed)).of_sources(source, self.shares.names)


@final
class _MixedHold:
    """The hold of a batch of a mixture that was drawn ahead (relive.reading.holds)."""

    def __init__(self, draws: MixedDraws, mixed: Mixed, alone: Turn, timeout_s: float) -> None:
        self._draws = draws
        self.mixed = mixed
        self._alone = alone
        self._timeout_s = timeout_s
        self.is_over = False

    def commit(self, was_late: bool = False) -> None:
        """Counts the batch as sampled, in every source.

        Blocks: at most timeout_s for a draw of the source that is under way, and for servers; see MixedDraws.commit.
        """
        if self._draws.closed or any(one.table.closed for one in self._draws.sources):
            raise TableClosed()
        ends = time.monotonic() + self._timeout_s
        with held(self._alone, _DRAWS, max(self._timeout_s, _LEAST_WAIT_S)):
            self._draws.commit(self.mixed, ends)
            self.is_over = True

    def give_back(self) -> None:
        """Gives the batch back in every source. The mixture goes back to the position before it."""
        if self.is_over:
            return
        with self._draws.alone(math.inf, when_closed=True), held(self._alone, _DRAWS, math.inf):
            self.is_over = True
            self._draws.give_back(self.mixed.drawn)
            self._draws.go_back(self.mixed)


@final
class MixedSource:
    """The next batches of a mixture, each in flight in all of its sources until its hold ends.

    Owner of draws of its own. Its calls and those of the mixture run one at a time.
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
        """Draws and gathers. Waits for the source that lacks its part, and lets calls of the mixture pass meanwhile."""
        mixed = self._mixed
        start = time.monotonic()
        with held(self._alone, _DRAWS, math.inf):
            while True:
                with mixed.alone(SLICE_S):
                    mixed.open.add(self)
                    parts, after = mixed.shares.parts(mixed.at, self._num_items)
                    wanted = [number for number, part in enumerate(parts) if part]
                    numbers = mixed.numbers
                    drawn = mixed.attempt(self._draws, self._requests, parts, wanted, 0.0)
                    if not isinstance(drawn, Lack):
                        return self._made(mixed.counted(parts, drawn, after, numbers))
                waited_s = time.monotonic() - start
                lacking = self._draws[drawn.number], self._requests[drawn.number], parts[drawn.number]
                if waited_s >= SLICE_S or not _has_come(*lacking, SLICE_S - waited_s):
                    raise mixed.worded(drawn, time.monotonic() - start)

    def _made(self, mixed: Mixed) -> Taken:
        try:
            batch = self._mixed.batch(mixed, self._columns)
        except BaseException:
            self._mixed.give_back(mixed.drawn)
            self._mixed.go_back(mixed)
            raise
        hold = _MixedHold(self._mixed, mixed, self._alone, self._timeout_s)
        self._lent = [one for one in self._lent if not one.is_over]
        self._lent.append(hold)
        self._mixed.lend(hold)
        return Taken(batch, hold)

    def ask(self, num_batches: int) -> None:
        """Does nothing: take() asks all tables."""

    def cancel(self) -> None:
        """Does nothing: take() waits for a slice."""

    def close(self) -> None:
        """Gives back all batches, the newest first."""
        for hold in reversed(self._lent):
            hold.give_back()
        with self._mixed.alone(math.inf, when_closed=True), held(self._alone, _DRAWS, math.inf):
            self._mixed.open.discard(self)
            for draws in self._draws:
                draws.close()


def _commit(drawn: HeldDraw, seconds: float) -> None:
    if isinstance(drawn.hold, TimedHold):
        drawn.hold.commit_within(max(seconds, 0.0))
    else:
        drawn.hold.commit()


def _returned(now: int | None, after: int | None, before: int | None) -> int | None:
    """The number of a handle's next draw when a batch is given back: `before`, if no other draw came after it."""
    return before if now == after else now


def _has_come(draws: HeldDraws, request: DrawRequest, num_items: int, timeout_s: float) -> bool:
    """Whether a source has its part before the deadline. The draw that finds out is given back."""
    try:
        drawn = draws.draw(request._replace(num_items=num_items), timeout_s)
    except DeadlineExceeded:
        return False
    drawn.hold.give_back()
    return True
