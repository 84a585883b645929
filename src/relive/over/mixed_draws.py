"""The draws of a mixture: all parts of a batch or none, the position after it, and batches that are drawn ahead."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Any, NamedTuple, Protocol, final

import numpy as np
import numpy.typing as npt

from relive.core.loadable import GivenUp
from relive.core.request import DrawRequest
from relive.core.turns import Turn, held
from relive.errors import DeadlineExceeded, InvalidConfig, ReliveError, TableClosed, WaitsForItself
from relive.over.in_flight import LEAVE_S, count_all, give_back, lack_of
from relive.over.joined import join
from relive.over.shares import Counted, Shares
from relive.over.sources import Source
from relive.over.together import Numbers, Together
from relive.reading.batch import Batch
from relive.reading.columns import Columns
from relive.reading.holds import HeldDraw, HeldDraws, TimedDraws

__all__ = ["Ahead", "Mixed", "MixedDraws", "Numbers", "Position"]

_LEAST_WAIT_S = 0.1  # as long as a call of a table waits for the table lock


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


class Left(NamedTuple):
    """A batch that a call gave up in its wait for the other ranks. The other ranks may make it."""

    draw: GivenUp
    after: Counted  # the position after it


class Ahead(Protocol):
    """A batch that was drawn ahead."""

    mixed: Mixed
    is_over: bool  # it was handed out, or given back


class Drawer(Protocol):
    """A source of batches() that has drawn."""

    def at_rest(self, seconds: float) -> AbstractContextManager[None]:
        """Keeps the source from drawing for the block. Waits at most `seconds`, at least two slices."""
        ...


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
        self._together = Together(self.sources)
        self._left: Left | None = None
        self._num_live: dict[int, int] = {}  # of each source, when it was drawn from or asked last
        self._epochs = [number for number, one in enumerate(sources) if one.is_shuffled]
        self._ahead: list[Ahead] = []  # batches that were drawn ahead, the oldest first
        self.open: dict[Drawer, None] = {}  # sources of batches() that have drawn, until they are closed; in order

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
            self._end_left()
            yield ends

    @contextmanager
    def at_rest(self, seconds: float) -> Iterator[None]:
        """As alone(), while no source of batches() draws either, not even to find out whether a part has come."""
        if os.getpid() != self._pid:
            self._begin_in_child()
        ends = time.monotonic() + seconds
        while True:
            drawers = list(self.open)  # in one order in all threads: each waits for the others in this order
            with ExitStack() as stack:
                for one in drawers:
                    with suppress(WaitsForItself):  # a signal's handler within next(): the source does not draw
                        stack.enter_context(one.at_rest(max(ends - time.monotonic(), 0.0)))
                stack.enter_context(self.alone(max(ends - time.monotonic(), 0.0)))
                if self.open.keys() <= set(drawers):
                    yield
                    return

    def _begin_in_child(self) -> None:
        """The fork copied the locks of the turn and of the generator, which a thread of the parent may have taken."""
        self._pid = os.getpid()
        self._turn, self._draws, self._making, self._ahead, self.open = Turn(), self.held_draws(), None, [], {}
        self._left = None
        self._rng = np.random.Generator(np.random.PCG64([self._seed, self._pid]))

    @contextmanager
    def drawing(self, seconds: float) -> Iterator[float]:
        """As alone(), for a call that draws. If it does not come to its end it leaves nothing in flight."""
        with self.alone(seconds) as ends:
            try:
                yield ends
            except BaseException:
                if self._making is not None:
                    give_back(self._making.drawn, LEAVE_S)
                    self.go_back(self._making)
                for draws in self._draws:
                    with suppress(ReliveError):
                        draws.close()
                raise
            finally:
                self._making = None

    def take(self, requests: list[DrawRequest], num_items: int, ends: float) -> Mixed:
        """All parts of a batch, in flight until commit(). At the end of drawing() the parts that are left go back.

        While it waits it has nothing in flight: it waits for the source that refused, alone. A source whose ranks draw
        together is the exception: its draw is the last one, and is made once. If the call fails after the ranks agreed
        on that draw, the position goes on: the draw is used up on every rank, so each rank's next batch is one later.
        So it does if the call gave up the draw, and the other ranks made it.
        """
        parts, after = self.shares.parts(self.at, num_items)
        shared, given_up = self._together.num_begun, self._together.given_up
        try:
            numbers, drawn = self._taken(requests, parts, ends)
            self._making, self._left = self.counted(parts, drawn, after, numbers), None
            return self._making
        except BaseException:
            if self._making is None and self._together.num_begun != shared:
                self._lose(after)
            else:
                self._end_left()
                for draw in self._together.given_up:
                    if draw is not None and draw not in given_up:
                        self._left = Left(draw, after)
            raise

    def _end_left(self) -> None:
        """Counts the batch that a call gave up, if its draw was used up on all ranks since."""
        if self._left is not None and self._left.draw.is_used is not None:
            left, self._left = self._left, None
            if left.draw.is_used:
                self._lose(left.after)

    def _lose(self, after: Counted) -> None:
        """Goes on to the position after a batch that this rank has lost and other ranks may have made."""
        self.at, self._left = after, None
        self._num_batches += 1

    def _taken(
        self, requests: list[DrawRequest], parts: Sequence[int], ends: float
    ) -> tuple[Numbers, dict[int, HeldDraw]]:
        """The numbers of the draws before these parts, and the parts. The draws are made in the same order always."""
        start = time.monotonic()
        wanted = self.ordered(parts)
        while True:
            numbers = self.numbers
            drawn = self.attempt(self._draws, requests, parts, wanted, ends, ends)
            if not isinstance(drawn, Lack):
                return numbers, drawn
            number, left_s = drawn.number, ends - time.monotonic()
            problem: DeadlineExceeded | None = drawn.problem
            if number not in (wanted[0], *self._together.places) and left_s > 0.0:
                problem = lack_of(self._draws[number], requests[number], parts[number], left_s)
            if problem is not None:
                raise self.worded(Lack(number, problem), time.monotonic() - start)

    def ordered(self, parts: Sequence[int]) -> list[int]:
        """The sources that give a part, in the order of their draws.

        First those whose draw leaves no trace if it goes back. Then those whose part of an epoch is lost if another
        draw comes after it. At the end those whose ranks draw together.
        """
        last = [*(number for number in self._epochs if number not in self._together.places), *self._together.places]
        return [one for one in [*(set(range(len(parts))) - set(last)), *last] if parts[one]]

    def attempt(
        self,
        draws: list[HeldDraws],
        requests: list[DrawRequest],
        parts: Sequence[int],
        wanted: Sequence[int],
        ends: float,
        arrives: float,
    ) -> dict[int, HeldDraw] | Lack:
        """The parts of the wanted sources, in flight; or the source that lacks its part, and nothing in flight.

        It waits until `ends`, a time.monotonic(), for the first source and for ranks that draw together only. Rows that
        are on their way have until `arrives`.
        """
        drawn: dict[int, HeldDraw] = {}
        for number in wanted:
            waits = not drawn or number in self._together.places
            now = time.monotonic()
            try:
                request = requests[number]._replace(num_items=parts[number])
                left_s, arrives_s = max(ends - now, 0.0) if waits else 0.0, max(arrives - now, 0.0)
                drawn[number] = draws[number].draw(request, left_s, arrives_s)
            except DeadlineExceeded as problem:
                give_back(drawn, LEAVE_S)
                return Lack(number, problem)
            except BaseException:
                give_back(drawn, LEAVE_S)
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
        return tuple(one.next_draw for one in self.sources)

    @property
    def _here(self) -> Position:
        return Position(self.at, self._num_batches, self._rng.bit_generator.state, self.numbers)

    # ---- batches that were drawn ahead -----------------------------------------------------------------------------

    def lend(self, hold: Ahead) -> None:
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
        """Goes on from the frontier of another mixture. A source whose number is None keeps its own.

        Raises InvalidConfig while batches() is open, and the errors of Together.number(). The position then stays.
        """
        if self.open:
            raise InvalidConfig("load_state_dict of a Mixture", "a call before its batches() begin", "one that is open")
        self._together.number(position.numbers)
        for number, following in enumerate(position.numbers):
            if following is not None and number not in self._together.places:
                self.sources[number].table.number_draws(following)
        self._rng.bit_generator.state = position.random
        self.at, self._left = position.counted, None

    def worded(self, lack: Lack, waited_s: float) -> DeadlineExceeded:
        problem = lack.problem
        needs = f"of {self.shares.names[lack.number]!r} {problem.needs}"
        return type(problem)(needs, problem.has, waited_s, problem.holder_pid)

    def go_back(self, mixed: Mixed) -> None:
        """Goes back to where the mixture was before this batch.

        Not if another one was drawn after it, or if ranks made a draw of it together.
        """
        is_shared = any(number in mixed.drawn for number in self._together.places)
        if not is_shared and self._num_batches == mixed.before.num_batches + 1:
            self.at, self._num_batches = mixed.before.counted, mixed.before.num_batches
            self._rng.bit_generator.state = mixed.before.random

    def commit(self, mixed: Mixed, ends: float) -> None:
        """Counts all parts, as count(). After an error the parts that are not counted are given back."""
        try:
            self.count(mixed, ends)
        except ReliveError:
            give_back(mixed.drawn, LEAVE_S)
            raise

    def count(self, mixed: Mixed, ends: float) -> None:
        """Counts all parts, as count_all() does. The call is no longer the owner of the batch."""
        if self._making is mixed:
            self._making = None
        count_all(mixed.drawn, ends)

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

    def num_live(self, mixed: Mixed, ends: float) -> int:
        """The live items of all sources. Waits for a server until `ends`, a time.monotonic(), at least a second."""
        self._num_live |= {number: drawn.num_live_items for number, drawn in mixed.drawn.items()}
        for number in range(len(self.sources)):
            if number not in mixed.drawn:
                self._num_live[number] = self._num_live_without_draw(number, ends)
        return max(1, sum(self._num_live.values()))

    def _num_live_without_draw(self, number: int, ends: float) -> int:
        """The live items of a source that gave no part. A server is asked once, before the first draw."""
        one, draws = self.sources[number], self._draws[number]
        if one.table.next_draw is None and number in self._num_live:
            return self._num_live[number]
        if isinstance(draws, TimedDraws):
            return draws.num_live_within(one.table.index_number(one.index_name), max(ends - time.monotonic(), 0.0))
        return one.table.num_items(one.index_name)

    def batch(self, mixed: Mixed, shown: Columns, ends: float) -> Batch:
        places, source = self.places(mixed)
        keys, probabilities = np.empty(len(source), np.int64), np.empty(len(source), np.float64)
        for number, drawn in mixed.drawn.items():
            keys[places[number]] = drawn.item_keys
            probabilities[places[number]] = drawn.probabilities * self.shares.shares[number]
        parts = [drawn.arrays for drawn in mixed.drawn.values()]
        arrays = join(shown, parts, [places[number] for number in mixed.drawn])
        made = Batch(shown, arrays, keys, probabilities, self.num_live(mixed, ends))
        return made.of_sources(source, self.shares.names)


def _returned(now: int | None, after: int | None, before: int | None) -> int | None:
    """The number of a handle's next draw when a batch is given back: `before`, if no other draw came after it."""
    return before if now == after else now
