"""The draws over shards: agreed roots place a draw, each shard makes its part, and the parts count together."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from relive._core import random_base
from relive.checks.values import integer
from relive.config.limiters import MinSize
from relive.core.forks import renewed_in_children
from relive.core.one_call import OneCall
from relive.core.request import DrawRequest
from relive.core.turns import take
from relive.errors import DeadlineExceeded, ServiceUnavailable, TableClosed
from relive.fleet.agreement import LEAST_S, Agreement, Alone, Exchange
from relive.fleet.calls import Calls
from relive.fleet.draws.mixing import mixed
from relive.fleet.draws.pace import Pace, Wait, check_distinct, check_uses
from relive.fleet.draws.placement import Roots, place, shared_point, within
from relive.fleet.errors import NotOverShards
from relive.fleet.shards import STALL_S, Asked, Missed, Part, Shards, Short, give_back

__all__ = ["Begun", "Drawing", "Drawn"]

Keys = npt.NDArray[np.int64]
Masses = npt.NDArray[np.float64]
Arrays = list[npt.NDArray[Any]]

_HEARD_S = 0.05  # how long the roots that came with a draw serve draws that are begun
_USES_S = 0.02  # how long a shard whose uses are counted waits for items: others may have them
_WAY_BACK_S = 0.2  # a question ends a little before its call does
_REPLACES = 2**63  # no draw has this attempt, so the number of a replacement shifts the random numbers of no draw


class Drawn(NamedTuple):
    """A draw in flight in its shards, until it is committed or given back."""

    call: int
    arrays: Arrays
    item_keys: Keys
    probabilities: Masses
    num_live_items: int
    held: list[Part]


class _Making(NamedTuple):
    """A draw to make: its request, its number, and its deadline."""

    request: DrawRequest
    call: int
    wait: Wait
    turns: dict[int, Any] | None = None  # of Asked


class _Parts(NamedTuple):
    """The parts of a draw, whose shards have been asked, with the share of each shard by its place."""

    held: list[Part]
    places: list[int]
    shares: Sequence[float]


class Begun(NamedTuple):
    """A draw of which no answer was waited for. `parts`: None if a shard could not be asked."""

    making: _Making
    roots: Roots
    parts: _Parts | None


@final
class Drawing:
    """The draws of one handle, and their numbers. Any number of threads.

    Ranks that agree make their draws one after another.
    """

    def __init__(self, shards: Shards, calls: Calls, exchange: Exchange, root_age: int) -> None:
        self._shards, self._exchange = shards, exchange
        self._lock = threading.Lock()  # protects the agreement of ranks
        self._numbers = renewed_in_children(self, "_numbers", threading.Lock)  # protects the count of draws
        self.num_begun = 0  # draws that have taken a number
        self.agreement = Agreement(shards, exchange, root_age)
        self._alone = Agreement(shards, Alone(), root_age=1)  # the roots of draws that this rank makes alone
        for one in (self.agreement, self._alone):
            one.while_waiting = calls.drop_overdue  # a dropped item gives its room to a writer
        config = shards[0].table.config
        self._seed = config.seed
        self._indexes = list(config.index.values())
        self._paces: list[Pace] = [index.limiter for index in self._indexes]
        self._max_times = [index.max_times_sampled for index in self._indexes]
        self._heard: dict[int, tuple[Roots, float]] = {}  # by index: roots that came with a draw, and when

    def check_request(self, request: DrawRequest) -> None:
        """Raises RequestTooLarge for a draw that could wait for ever, and NotOverShards for one with a condition.

        The limiter must let pass all draws of all ranks that one read of the roots serves.
        """
        index, num_items = self._indexes[request.index_number], request.num_items
        check_distinct(index, num_items)
        index.limiter.check_draw(num_items * self._exchange.world * self.agreement.root_age)
        if not self._shards.read_only:
            check_uses(index, num_items)
        where = request.condition
        if where is not None and len(self._shards) > 1:
            raise NotOverShards(
                "where= of a draw",
                "how much of a shard's mass passes is not known, so neither is its share of the draw",
                "give the condition to an index, Index(where=...), which draws from what passes",
            )

    def hold(self, request: DrawRequest, timeout_s: float, arrives_s: float = 0.0) -> Drawn:
        """Draws items and keeps them in flight until commit or give_back.

        A draw of keys alone keeps items that it uses for the last time until they are gathered. A shard whose items
        went, that does not answer, or whose lock is not free for STALL_S, is left out: the draw is made again from the
        same roots without that shard.

        Args:
            request: the draw.
            timeout_s: how long to wait for the limiter, for items, and for rows that are on their way.
            arrives_s: how long to wait for rows that are on their way, if that is longer.

        Raises:
            DeadlineExceeded, RequestTooLarge, TableClosed, and NotOverShards for a condition.
        """
        making, roots = self._made(request, timeout_s, arrives_s)
        try:
            return self._drawn(making, roots)
        except BaseException:
            self._return_number(making.call)
            raise

    def replace(self, call: int, request: DrawRequest, timeout_s: float) -> Drawn:
        """Draws items in place of those of a draw that are gone, and keeps them in flight as hold() does.

        In a group of ranks this rank draws alone. It reads the roots of all shards itself, and the limiter must let the
        items pass by these roots. The ranks do not meet, and their next draw keeps its number and its agreed roots. The
        random numbers follow from the number of the replaced draw and from the stream of this handle. Without a group,
        this is the next draw of the handle.

        Args:
            call: number of the replaced draw, which is in flight. That draw may be a replacement itself.
            request: the draw, of no more items than the replaced one.
            timeout_s: how long to wait for the limiter and for items, in seconds.

        Raises:
            DeadlineExceeded, TableClosed.
        """
        if self._exchange.world == 1:
            return self.hold(request, timeout_s)
        wait, index = Wait(timeout_s), request.index_number
        roots = self._alone.roots(index, request.num_items, self._paces[index], wait)
        number = random_base(self._seed, self._shards[0].stream, call, _REPLACES)
        # Placed as this rank's part of a draw of all ranks: every world-th point of their comb is a comb, too.
        return self._drawn(_Making(request, number, wait), roots)

    def can_overlap(self, index: int) -> bool:
        """Whether draws of an index may be asked for before earlier ones have answered.

        Not if that could show: in the order of items, in uses, in a limiter, in what mapped shards draw, or to ranks.
        """
        is_free = self._max_times[index] is None and isinstance(self._paces[index], MinSize)
        is_random = not self._shards.sharings[index].is_certain
        return is_free and is_random and self._exchange.world == 1 and self._shards.are_served

    def begin(
        self, request: DrawRequest, timeout_s: float, arrives_s: float = 0.0, turns: dict[int, Any] | None = None
    ) -> Begun:
        """Asks the shards for a draw, and waits for the limiter alone. Arguments and errors are those of hold().

        Shards make the draws of one caller, which passes the same `turns`, in the order of its calls. They are sent
        when it calls send(turns). Without `turns` the draw is sent at once.

        The draw is in flight until finish() or abandon(). Owners hear that it was committed with the next messages of
        this handle, or by flush(). The roots of the draw came with the answers to an earlier one, if all shards have
        just told theirs.
        """
        asked: dict[int, Any] = {} if turns is None else turns
        making, roots = self._made(request, timeout_s, arrives_s, asked)
        try:
            placed = self._placed(request.index_number, roots, request.num_items, making.call, 0, {})
            parts = None
            if placed is not None and roots.bounds[-1] > 0.0:
                with contextlib.suppress(Missed):  # finish() asks again, without that shard
                    parts = self._ask(making, *placed)
            if turns is None:
                self.send(asked)
            return Begun(making, roots, parts)
        except BaseException:
            self._return_number(making.call)
            raise

    @staticmethod
    def send(turns: dict[int, Any]) -> None:
        """Sends the draws that were begun with these turns to their shards. Waits for no answer."""
        for one in turns.values():
            one.send()

    def finish(self, begun: Begun, timeout_s: float, arrives_s: float = 0.0) -> Drawn:
        """Waits for the answers of a draw that was begun. Arguments and errors are those of hold()."""
        making = begun.making._replace(wait=Wait(timeout_s, arrives_s=arrives_s))
        index, roots = making.request.index_number, begun.roots
        try:
            if begun.parts is not None:
                with contextlib.suppress(Missed):  # its parts have gone back
                    drawn = self._taken(making, begun.parts, roots.num_items)
                    self._hear(index, roots, begun.parts)
                    return drawn
                self._heard.pop(index, None)
                self.agreement.forget(index)
                roots = roots.without(self._numbers_of_lost())
            return self._drawn(making, roots, attempt=1)
        except BaseException:
            self._return_number(making.call)
            raise

    def abandon(self, begun: Begun) -> None:
        """Gives a draw back that was begun, with its number."""
        give_back(begun.parts.held if begun.parts is not None else [])
        self._return_number(begun.making.call)

    def flush(self) -> None:
        """Tells the owners which draws were committed, without a wait."""
        self._shards.flush()

    def _made(
        self, request: DrawRequest, timeout_s: float, arrives_s: float, turns: dict[int, Any] | None = None
    ) -> tuple[_Making, Roots]:
        """A checked draw with a number of its own, and its roots."""
        self.check_request(request)
        index, num_items = request.index_number, request.num_items
        wait, pace = Wait(timeout_s, arrives_s=arrives_s), self._paces[index]
        if self._shards.closed:
            raise TableClosed()
        heard, at = self._heard.get(index, (None, 0.0)) if turns is not None else (None, 0.0)
        if heard is not None and time.monotonic() <= at + _HEARD_S and pace.can_sample(heard, num_items):
            return _Making(request, self._next_number(), wait, turns), heard
        roots, call = self._begin(index, num_items, pace, wait)
        return _Making(request, call, wait, turns), roots

    def _hear(self, index: int, roots: Roots, parts: _Parts) -> None:
        """Notes the roots that came with a draw, if all shards that live have told theirs."""
        told = {part.root.shard: self._shards.sharings[index].of(part.root) for part in parts.held if part.root}
        if len(told) == len(self._shards.live) == sum(not root.is_dead for root in roots.shards):
            heard = Roots(tuple(told.get(root.shard, root) for root in roots.shards))
            if heard.bounds[-1] > 0.0:
                self._heard[index] = heard, time.monotonic()

    def _drawn(self, making: _Making, roots: Roots, attempt: int = 0) -> Drawn:
        """Draws by these roots.

        If that fails, reads the roots again until the draw succeeds or the deadline has passed.
        """
        call, wait = making.call, making.wait
        index, num_items = making.request.index_number, making.request.num_items
        is_anew = False  # the first roots may be those of earlier draws
        room: dict[int, int] = {}  # by place: the uses that a shard has left, where it lacked some
        while True:
            placed = self._placed(index, roots, num_items, call, attempt, room) if roots.bounds[-1] > 0.0 else None
            if placed is not None:
                try:
                    parts = self._ask(making, *placed)
                    self.send(making.turns or {})
                    return self._taken(making, parts, roots.num_items)
                except Missed as missed:
                    if missed.is_late and wait.arrives_s < _WAY_BACK_S:
                        needs = f"{num_items} items, of which those of shard {missed.shard.number} are on their way"
                        raise wait.exceeded(needs, roots.num_items) from None
                    if isinstance(missed, Short) and self._shares_uses(index):
                        at = list(self._shards).index(missed.shard)
                        room[at] = self._room_of(making, at, placed[0][at] - 1)
                    elif not missed.is_late:  # else this handle has cut its connection, and asks again
                        roots = roots.without({missed.shard.number, *self._numbers_of_lost()})
                    self.agreement.forget(index)  # the root of that shard is outdated
            elif wait.is_over and is_anew:
                raise wait.exceeded(f"{num_items} items of shards that answer", roots.num_items)
            else:
                if is_anew:
                    wait.pause()
                self.agreement.forget(index)
                roots, is_anew = self.agreement.read(index, wait.arrives_s), True
                room.clear()
            attempt += 1

    def commit(self, drawn: Drawn) -> None:
        """Counts the draw as handed out, in every shard or in none.

        Where uses are counted, each owner confirms its part: no item is handed out before. If the uses of a part went
        back because its stream ended, the other parts go back, too. Only a stream that ends, or an owner that falls
        silent, between the check of all parts and the confirmation leaves other parts counted. Their items count as
        drawn, and are lost.

        A signal's handler that raises leaves no draw half counted: all parts are counted that need no answer, and then
        the error goes on.

        Raises:
            TableClosed: the table was closed, which gave back all draws in flight.
            ServiceUnavailable: the uses of a part went back, or its owner did not answer. The draw is over.

        Blocks:
            Where uses are counted: until the owners at addresses answer, at most the handle's timeout.
        """
        if self._shards.closed:
            raise TableClosed()
        try:
            if len(drawn.held) > 1:
                for part in drawn.held:
                    part.check()
            with OneCall():
                for part in drawn.held:
                    part.ask_commit()
            for part in drawn.held:
                part.commit()
        except ServiceUnavailable:
            self.give_back(drawn)
            raise
        except BaseException:
            for part in drawn.held:
                with contextlib.suppress(ServiceUnavailable):
                    part.commit(waits=False)
            raise

    def give_back(self, drawn: Drawn) -> None:
        """Gives the draw back: its items, its uses and the numbers of draws."""
        give_back(drawn.held)
        self._return_number(drawn.call)

    def _return_number(self, call: int) -> None:
        """Gives the number to the next draw, unless another draw came in between.

        In a group the number is used up on every rank.
        """
        with self._numbers:
            if self._exchange.world == 1 and self.agreement.number == call + 1:
                self.agreement.number = call

    def close_batches(self) -> None:
        """Ends the draws ahead of one batches() on every rank. Does nothing if this handle draws alone.

        Raises DeadlineExceeded and RankLost, as Agreement.close_batches.

        Blocks: as Agreement.close_batches, and for a draw of another thread, one second at most.
        """
        if self._exchange.world == 1:
            return
        mine: list[bool] = []
        try:
            if not take(self._lock, LEAST_S, mine):  # a handler of a signal may close in the middle of a draw
                raise DeadlineExceeded("the end of a draw of this handle", "one that goes on", LEAST_S)
            self.agreement.close_batches()
        finally:
            if True in mine:
                self._lock.release()

    @property
    def num_ranks(self) -> int:
        """Number of ranks that draw together."""
        return self._exchange.world

    @property
    def next_call(self) -> int | None:
        """The number of the next draw; None if the owner of a shard numbers its draws."""
        return None if any(shard.table.next_draw is None for shard in self._shards) else self.agreement.number

    def number_draws(self, number: int, timeout_s: float) -> None:
        """Gives the next draw this number, here and in every shard.

        Raises RanksDisagree if another rank gives another number.
        """
        number = integer("number of the next draw", number, 0)
        self.agreement.check_alike(number, timeout_s)
        with self._numbers:
            self.agreement.number = number
        for shard in self._shards:
            shard.table.number_draws(number)

    def _begin(self, index: int, num_items: int, pace: Pace, wait: Wait) -> tuple[Roots, int]:
        """The roots of a draw, and its number. A refused draw takes no number."""
        is_group = self._exchange.world > 1
        # Ranks agree on one draw after another. Threads of a handle that draws alone wait for the limiter in parallel.
        mine: list[bool] = []
        try:
            if is_group and not take(self._lock, wait.left_s, mine):
                raise wait.exceeded("the end of this rank's earlier draws", "")
            roots = self.agreement.roots(index, num_items, pace, wait)
            return roots, self._next_number()
        finally:
            if True in mine:
                self._lock.release()

    def _next_number(self) -> int:
        with self._numbers:
            call = self.agreement.number
            self.agreement.number += 1
            self.num_begun += 1
        return call

    def _placed(
        self, index: int, roots: Roots, num_items: int, call: int, attempt: int, room: dict[int, int]
    ) -> tuple[list[int], Sequence[float]] | None:
        """Number of items of each shard, and its share. None if uses are counted and too few are left."""
        # Ranks that draw together share stream 0. A rank alone uses the stream of its handle.
        world, stream = self._exchange.world, 0 if self._exchange.world > 1 else self._shards[0].stream
        point = shared_point(self._seed, stream, call, attempt, world)
        counts = place(roots, num_items, point, self._exchange.rank, world)
        most = self._max_times[index]
        if most is None or not self._shares_uses(index):
            return counts, roots.shares
        # A shard that is asked for too many items gives none. If counts are cut, they are the shares.
        items = self._shards.sharings[index].room
        uses = [most * items(root) if share else 0 for root, share in zip(roots.shards, roots.shares, strict=True)]
        cut = within(counts, [min(most, room.get(at, most)) for at, most in enumerate(uses)])
        if cut is None:
            return None
        return cut, (roots.shares if cut == counts else [count / num_items for count in cut])

    def _numbers_of_lost(self) -> set[int]:
        """The numbers of the shards that draws do not use now."""
        return {shard.number for shard in self._shards if not shard.is_live}

    def _shares_uses(self, index: int) -> bool:
        """Whether uses are counted, and other shards give what one lacks."""
        return self._max_times[index] is not None and self._exchange.world == 1 and len(self._shards) > 1

    def _room_of(self, making: _Making, at: int, most: int) -> int:
        """Number of uses, up to `most`, that a shard has left: draws of keys that go back show it."""
        keys = making._replace(request=making.request.keys_only)
        held, found, step = list[Part](), 0, most
        try:
            while step and found < most:
                count = min(step, most - found)
                try:
                    part = self._shards[at].begin(self._asked(keys, at, count))
                    held.append(part)
                    part.take()
                    found += count
                except Short:
                    step //= 2
                except Missed:
                    return 0
        finally:
            give_back(held)
        return found

    def _ask(self, making: _Making, counts: list[int], shares: Sequence[float]) -> _Parts:
        """Asks each shard for its number of items, before the first wait for an answer. Raises Missed."""
        held, places = list[Part](), [at for at, count in enumerate(counts) if count]
        try:
            with OneCall():
                asked = [self._asked(making, at, counts[at]) for at in places]  # with the time from now on
                if not making.turns:  # else there are streams
                    self._shards.prepare([self._shards[at] for at in places], making.wait.arrives_s)
                for at, one in zip(places, asked, strict=True):
                    held.append(self._shards[at].begin(one))
        except BaseException as problem:
            give_back(held, waits=isinstance(problem, Exception))
            raise
        return _Parts(held, places, shares)

    def _taken(self, making: _Making, asked: _Parts, num_live_items: int) -> Drawn:
        """Waits for all parts, and mixes them. After an error, such as Missed, all parts have gone back."""
        request, held = making.request, asked.held
        parts: list[tuple[Arrays, Keys, Masses, float]] = []
        is_certain = self._shards.sharings[request.index_number].is_certain
        try:
            for at, part in zip(asked.places, held, strict=True):
                parts.append((*part.take(), 1.0 if is_certain else asked.shares[at]))
        except BaseException as problem:
            give_back(held, waits=isinstance(problem, Exception))
            raise
        if len(parts) == 1:
            arrays, keys, masses, share = parts[0]
            probabilities = masses if share == 1.0 else masses * share
        else:  # at permuted positions, so that every slice of the batch is a fair sample
            outputs = [] if request.selection is None else request.selection.outputs
            shown = None if request.selection is None else request.selection.parts
            seeds = self._seed, self._shards[0].stream, making.call
            arrays, keys, probabilities = mixed(shown, outputs, parts, seeds)
        return Drawn(making.call, arrays, keys, probabilities, num_live_items, held)

    def _asked(self, making: _Making, at: int, count: int) -> Asked:
        whole, is_only = making.request, len(self._shards) == 1
        seconds, retry_s = making.wait.left_s, 0.0
        if not is_only:
            seconds = min(seconds, STALL_S)
            if self._shares_uses(whole.index_number):
                seconds, retry_s = min(seconds, _USES_S), seconds
        request = whole._replace(
            num_items=count,
            selection=None if whole.selection is None else whole.selection.parts[at],
            condition=None if whole.condition is None else whole.condition[at],
        )
        is_read = whole.selection is not None
        arrives_s = making.wait.arrives_s
        return Asked(request, seconds, arrives_s, self._shards.read_only, is_read, is_only, making.turns, retry_s)
