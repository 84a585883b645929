"""Makes the ranks of a group agree on roots: each rank sends the roots of its shards, and all ranks receive all.

Protocol:

- A message begins with a head (`Head`): the call that the rank is in, the table, and the number of the rank's next
  draw. If the heads name different calls, every rank raises RanksDisagree. The draw gets the largest of the numbers.
- An exchange answers a call with the bytes of an earlier call if that call was given up (`Exchange.all_gather`). If
  these bytes name the call that the rank makes now, the call is the retry.
- If the other ranks made the draw that this rank gave up, this rank skips its part of that draw: the draw's number and
  its roots count as used, so that the ranks stay in step. It may learn of it by a call of another table.
- Draws ahead of batches() end together: close() is a call of its own. A rank that draws ahead while another rank closes
  draws no more. A close() that has not met all ranks in time goes on before the next call over the same group.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, TypeAlias, final
from weakref import WeakKeyDictionary, WeakSet

from relive.core.loadable import GivenUp
from relive.errors import FormatMismatch
from relive.fleet.draws.heads import ATTACH, CLOSE, DRAW, HEAD_BYTES, NUMBER, Head
from relive.fleet.draws.pace import Pace, Wait, lacked
from relive.fleet.draws.placement import ROOT_BYTES, Root, Roots
from relive.fleet.errors import RanksDisagree
from relive.fleet.shards import Shards

__all__ = ["BATCHES_CLOSED", "HEAD_BYTES", "LEAST_S", "Agreement", "Alone", "Exchange", "calls_of", "end_closes"]

BATCHES_CLOSED = "close() of batches()"
_CALLS = ("attach()", "number_draws()", "a draw", BATCHES_CLOSED)
_OTHER = "a call of another kind, such as GroupReader.sample()"
LEAST_S = 1.0  # the shortest wait of ranks for each other
# A call with an index, its roots in some shards, and the seconds that are left of the wait.
WhileWaiting: TypeAlias = Callable[[int, Sequence[Root], float], object]


class Exchange(Protocol):
    """Carries bytes between the ranks of a group, by a collective or by reads of each other's memory.

    If a process has several exchanges over one group, they share one sequence of calls. Each of them then has an
    attribute `calls`, the same object for all.
    """

    @property
    def rank(self) -> int:
        """Number of this rank, 0 to world - 1."""
        ...

    @property
    def world(self) -> int:
        """Number of ranks that draw together."""
        ...

    def all_gather(self, mine: bytes, timeout_s: float) -> list[bytes]:
        """Exchanges bytes among all ranks. Every rank calls it equally often, in the same order.

        Args:
            mine: the bytes of this rank. Their number may differ between ranks.
            timeout_s: timeout in seconds.

        Returns:
            [world] the bytes that each rank gave to its call of the same count, by rank. After DeadlineExceeded the
            next call is the retry of the same call: another rank may have this rank's bytes already, so they are those
            that this rank gave then.

        Raises:
            DeadlineExceeded: a rank did not call in time. The error names the ranks that are missing.
            RankLost: a rank ended, or the ranks cannot be in step again.
        """
        ...


@final
class Alone:
    """The exchange of a single rank."""

    rank, world = 0, 1

    def all_gather(self, mine: bytes, timeout_s: float) -> list[bytes]:
        """Returns this rank's bytes."""
        return [mine]


class _Agreed(NamedTuple):
    """Roots on which draws of at most num_items items may go on."""

    roots: Roots
    draws_left: int  # how many more draws the roots serve
    num_items: int


@final
class Agreement:
    """Gives each draw its roots. Reads the roots, or agrees on them with the other ranks, every root_age draws.

    With several ranks one thread may use it at a time. With one rank any number of threads may: if two threads need new
    roots at once, both read them.

    Each of several ranks sends the roots of every world-th shard: it sends O(shards / world) bytes and receives
    O(shards).
    A draw is a collective: every rank calls equally often, for the same index.
    """

    def __init__(self, shards: Shards, exchange: Exchange, root_age: int) -> None:
        self._shards = shards
        self._exchange = exchange
        self.root_age = root_age
        self.number = 0  # of the next draw; ranks agree on it
        self.given_up: GivenUp | None = None  # until the ranks have met in it, and its outcome is known
        self.while_waiting: WhileWaiting = lambda index, roots, left_s: None
        self._agreed: dict[int, _Agreed] = {}  # by index
        self._table = bytes(8)
        # Agreements over the same calls, with a close_batches() that has not met all ranks.
        self._closing = _closing_over(exchange)
        self._giving_up = _giving_up_over(exchange)  # the agreement over the same calls that has a given_up
        self.bytes_sent = 0
        self.bytes_received = 0

    def check_ranks(self, timeout_s: float) -> None:
        """Checks before the first draw. Raises RanksDisagree if a rank has another spec, index, region or root_age."""
        if self._exchange.world == 1:
            return
        config = self._shards[0].table.config
        tables = repr((config.spec, dict(config.index), config.seed)).encode()
        regions = b"".join(shard.number.to_bytes(2, "little") + shard.uuid for shard in self._shards)
        mine = hashlib.sha256(tables).digest() + hashlib.sha256(regions).digest() + self.root_age.to_bytes(8, "little")
        for rank, theirs in enumerate(self._gathered(Head(ATTACH), mine, timeout_s)):
            if theirs[HEAD_BYTES : HEAD_BYTES + 32] != mine[:32]:
                raise RanksDisagree(rank, "a spec or indexes")
            if theirs[HEAD_BYTES : HEAD_BYTES + 64] != mine[:64]:
                raise RanksDisagree(rank, "shards, or regions of them,")
            if theirs[HEAD_BYTES:] != mine:
                age = int.from_bytes(theirs[HEAD_BYTES + 64 :], "little")
                raise RanksDisagree(rank, "root_age", self.root_age, age)
        self._table = hashlib.sha256(mine).digest()[:8]

    def check_alike(self, number: int, timeout_s: float) -> None:
        """Raises RanksDisagree if a rank gives its next draw another number.

        With different numbers the slices of the ranks would belong to different draws.
        """
        if self._exchange.world == 1:
            return
        mine = number.to_bytes(8, "little")
        for rank, theirs in enumerate(self._gathered(self._head(NUMBER), mine, timeout_s)):
            if theirs[HEAD_BYTES:] != mine:
                given = int.from_bytes(theirs[HEAD_BYTES:], "little")
                raise RanksDisagree(rank, "a number of its next draw", number, given)

    def close_batches(self) -> None:
        """Ends the draws ahead of one batches() on every rank. All ranks then have the same number of draws.

        Raises:
            DeadlineExceeded: another rank neither draws ahead nor closes. The next call over the group waits for it.
            RankLost: a rank ended.

        Blocks:
            One second at most.
        """
        self._agreed.clear()  # ranks may have used the roots for unlike numbers of draws ahead
        self._closing.append(self)
        _end(self._closing, time.monotonic() + LEAST_S)

    def goes_over(self, exchange: Exchange) -> bool:
        """Whether ranks agree by calls over the same group as the calls of this exchange."""
        return self._exchange.world > 1 and calls_of(self._exchange) is calls_of(exchange)

    def read(self, index: int, left_s: float) -> Roots:
        """Reads the roots as this rank sees them. Waits at most left_s for the answers of shards."""
        return Roots.of(self._shards.roots(index, left_s))

    def roots(self, index: int, num_items: int, pace: Pace, wait: Wait) -> Roots:
        """Waits for roots on which every rank may draw num_items items, and returns them.

        While it waits, it calls `while_waiting` with the roots of this rank's part of the shards.

        Raises DeadlineExceeded on every rank as soon as one rank's deadline has passed. If a rank does not come in
        time, raises DeadlineExceeded on the ranks that waited, and their next call is the retry. Raises RanksDisagree
        if a rank draws from another table or index, or another number of items.
        """
        agreed = self._agreed.get(index)
        if agreed is None or agreed.draws_left == 0 or num_items > agreed.num_items:
            agreed = _Agreed(self._wait(index, num_items, pace, wait), self.root_age, num_items)
        self._agreed[index] = agreed._replace(draws_left=agreed.draws_left - 1)
        return agreed.roots

    def forget(self, index: int) -> None:
        """Makes the next draw read the roots again. Only with one rank, because other ranks would wait for it."""
        if self._exchange.world == 1:
            self._agreed.pop(index, None)

    def _wait(self, index: int, num_items: int, pace: Pace, wait: Wait) -> Roots:
        asked = self._served(num_items)
        while True:
            roots, is_over = self._exchanged(self._head(DRAW, wait.is_over, index, num_items), wait)
            if roots.bounds[-1] > 0.0 and pace.can_sample(roots, asked):
                self._end_given_up(is_used=True)
                return roots
            mine = roots.shards[self._exchange.rank :: self._exchange.world]
            self.while_waiting(index, mine, 0.0 if is_over else wait.left_s)
            if is_over:
                self._end_given_up(is_used=False)
                if all(root.is_dead for root in roots.shards):
                    raise wait.exceeded("a shard that answers", f"{len(roots.shards)} that do not")
                raise wait.exceeded(*lacked(pace, roots, asked))
            wait.pause()

    def _served(self, num_items: int) -> int:
        """Number of items that one read of the roots serves."""
        return num_items * self._exchange.world * self.root_age

    def _exchanged(self, head: Head, wait: Wait) -> tuple[Roots, bool]:
        exchange = self._exchange
        if exchange.world == 1:
            return self.read(head.index, wait.arrives_s), head.is_over
        told = self._shards.roots(head.index, wait.arrives_s, exchange.rank, exchange.world)
        mine = b"".join(root.pack() for root in told)
        self.bytes_sent += HEAD_BYTES + len(mine)
        heard = self._gathered(head, mine, wait.left_s)
        self.bytes_received += sum(map(len, heard)) - len(heard[exchange.rank])
        return _roots_of(heard), any(one.is_over for one in map(Head.unpack, heard) if one is not None)

    # ---- calls of all ranks ----------------------------------------------------------------------------------------

    def _head(self, call: int, is_over: bool = False, index: int = 0, num_items: int = 0) -> Head:
        return Head(call, is_over, index, num_items, self.number, self._table)

    def _gathered(self, head: Head, mine: bytes, timeout_s: float) -> list[bytes]:
        """Exchanges bytes with a head in front. Raises RanksDisagree if a rank is in another call.

        The bytes of this rank are compared, too: they may be those of a call that it gave up.
        """
        ends = time.monotonic() + max(timeout_s, LEAST_S)
        _end(self._closing, ends)
        try:
            heard = self._exchange.all_gather(replace(head, number=self.number).pack() + mine, _left_s(ends))
        except BaseException:  # the exchange keeps the bytes of this rank also after Ctrl-C
            if head.call == DRAW and not self._giving_up:
                self.given_up = GivenUp()
                self._giving_up.add(self)
            raise
        heads = [Head.unpack(one) for one in heard]
        own = heads[self._exchange.rank]
        if own is not None and own.asked != head.asked:
            self._skip(own, heard)
        is_met = all(one is not None and one.asked == head.asked for one in heads)
        if not is_met or head.call != DRAW or self.given_up is None:  # this call is not the retry of the draw
            self._tell_given_up(own, heads, heard)
        self._note_end(heads)
        self._compare(head, heads)
        self.number = max([self.number, *(one.number for one in heads if one is not None)])
        return heard

    def meet_close(self, ends: float) -> None:
        """Makes one close of batches(), after the draw ahead that this rank may have given up. See close_batches()."""
        while True:
            head = self._head(CLOSE)
            heard = self._exchange.all_gather(head.pack(), _left_s(ends))
            heads = [Head.unpack(one) for one in heard]
            own = heads[self._exchange.rank]
            is_end = self._note_end(heads)
            has_met = not is_end and own is not None and self._skip(own, heard)
            self._tell_given_up(own, heads, heard)
            if not has_met:
                return  # if it is not the end, the other ranks raise RanksDisagree
            self._agreed.clear()

    def _note_end(self, heads: list[Head | None]) -> bool:
        """Returns whether a rank closes batches(), while the others close, too, or draw. Takes their number."""
        known = [one for one in heads if one is not None and one.call in (DRAW, CLOSE) and one.table == self._table]
        if len(known) < len(heads) or all(one.call == DRAW for one in known):
            return False
        self.number = max(one.number for one in known)
        self._agreed.clear()
        return True

    def _tell_given_up(self, own: Head | None, heads: list[Head | None], heard: list[bytes]) -> None:
        """Tells the outcome of the draw that this rank gave up over the same calls, of this table or of another."""
        for one in [*self._giving_up]:
            if own is not None:
                one._skip(own, heard)
            one._note_end(heads)
            one._end_given_up(is_used=False)  # unless it has skipped the draw

    def _end_given_up(self, is_used: bool) -> None:
        """Tells the outcome of a draw that this rank gave up. Further calls have no effect."""
        if self.given_up is not None:
            self.given_up.is_used, self.given_up = is_used, None
            self._giving_up.discard(self)

    def _skip(self, given_up: Head, heard: list[bytes]) -> bool:
        """Whether the ranks have met in the call that this rank gave up. A draw counts as the other ranks count it."""
        heads = [one for one in map(Head.unpack, heard) if one is not None and one.asked == given_up.asked]
        if len(heads) < len(heard):
            return False
        if given_up.call == DRAW and given_up.table == self._table:
            self.number = max(one.number for one in heads)
            roots, index = _roots_of(heard), given_up.index
            pace: Pace = list(self._shards[0].table.config.index.values())[index].limiter
            if roots.bounds[-1] > 0.0 and pace.can_sample(roots, self._served(given_up.num_items)):
                self._agreed[index] = _Agreed(roots, self.root_age - 1, given_up.num_items)
                self.number += 1
                self._end_given_up(is_used=True)
        return True

    def _compare(self, head: Head, heads: list[Head | None]) -> None:
        for rank, theirs in enumerate(heads):
            if theirs is None or theirs.call != head.call:
                raise RanksDisagree(
                    rank, "a call", _CALLS[head.call], _OTHER if theirs is None else _CALLS[theirs.call]
                )
        for rank, theirs in enumerate(one for one in heads if one is not None):
            if theirs.table != head.table:
                raise RanksDisagree(rank, "a table of its call")
            if theirs.index != head.index:
                raise RanksDisagree(rank, "an index of its draw", self._names[head.index], self._names[theirs.index])
            if theirs.num_items != head.num_items:
                raise RanksDisagree(rank, "a number of items of its draw", head.num_items, theirs.num_items)

    @property
    def _names(self) -> Sequence[str]:
        return list(self._shards[0].table.config.index)


# By the calls of a group, or by exchange if its calls are its own.
_closing: WeakKeyDictionary[Any, list[Agreement]] = WeakKeyDictionary()
_giving_up: WeakKeyDictionary[Any, WeakSet[Agreement]] = WeakKeyDictionary()  # one at most, until it has its outcome


def calls_of(exchange: Exchange) -> object:
    """Returns the object that all exchanges over the same calls have in common. See Exchange."""
    return getattr(exchange, "calls", exchange)


def end_closes(exchange: Exchange, ends: float) -> None:
    """Makes the closes of batches() that have not met all ranks, of all tables over the calls of this exchange.

    Args:
        exchange: The exchange of the next call.
        ends: A time.monotonic(), the deadline.

    Raises DeadlineExceeded and RankLost, as Agreement.close_batches.
    """
    _end(_closing_over(exchange), ends)


def _end(closing: list[Agreement], ends: float) -> None:
    while closing:
        closing[0].meet_close(ends)
        del closing[0]


def _closing_over(exchange: Exchange) -> list[Agreement]:
    if exchange.world == 1:
        return []
    try:
        return _closing.setdefault(calls_of(exchange), [])
    except TypeError:  # an exchange without a hash or weak references
        return []


def _giving_up_over(exchange: Exchange) -> WeakSet[Agreement]:
    if exchange.world == 1:
        return WeakSet()
    try:
        return _giving_up.setdefault(calls_of(exchange), WeakSet())
    except TypeError:  # as in _closing_over
        return WeakSet()


def _left_s(ends: float) -> float:
    return max(ends - time.monotonic(), 0.0)


def _roots_of(heard: list[bytes]) -> Roots:
    return Roots.of(root for one in heard for root in _unpacked(one[HEAD_BYTES:]))


def _unpacked(told: bytes) -> list[Root]:
    if len(told) % ROOT_BYTES:
        raise FormatMismatch("bytes of roots", f"a multiple of {ROOT_BYTES}", len(told))
    return [Root.unpack(told[at : at + ROOT_BYTES]) for at in range(0, len(told), ROOT_BYTES)]
