"""Makes the ranks of a group agree on roots: each rank sends the roots of its shards, and all ranks receive all."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, final

from relive.errors import FormatMismatch
from relive.fleet.draws.pace import Pace, Wait
from relive.fleet.draws.placement import ROOT_BYTES, Root, Roots
from relive.fleet.errors import RanksDisagree
from relive.fleet.shards import Shards

__all__ = ["HEAD_BYTES", "Agreement", "Alone", "Exchange"]

_HEAD = struct.Struct("<BBHI")
HEAD_BYTES = _HEAD.size  # sent before the roots of a draw
_ATTACH, _NUMBER, _DRAW = 0, 1, 2
_CALLS = ("attach()", "number_draws()", "a draw")


@final
@dataclass(frozen=True)
class _Head:
    """The call that a rank is in. All ranks compare it, except for is_over."""

    call: int
    is_over: bool = False  # the rank's deadline has passed
    index: int = 0
    num_items: int = 0

    def pack(self) -> bytes:
        return _HEAD.pack(self.call, self.is_over, self.index, self.num_items)

    @classmethod
    def unpack(cls, told: bytes) -> _Head:
        if len(told) < HEAD_BYTES:
            raise FormatMismatch("bytes of a call", f"at least {HEAD_BYTES}", len(told))
        call, is_over, index, num_items = _HEAD.unpack_from(told)
        return cls(call, bool(is_over), index, num_items)


class Exchange(Protocol):
    """Carries bytes between the ranks of a group, by a collective or by reads of each other's memory."""

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
        self._agreed: dict[int, tuple[Roots, int]] = {}  # by index: the roots, and how many more draws they serve
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
        for rank, theirs in enumerate(self._gathered(_Head(_ATTACH), mine, timeout_s)):
            if theirs[HEAD_BYTES : HEAD_BYTES + 32] != mine[:32]:
                raise RanksDisagree(rank, "a spec or indexes")
            if theirs[HEAD_BYTES : HEAD_BYTES + 64] != mine[:64]:
                raise RanksDisagree(rank, "shards, or regions of them,")
            if theirs[HEAD_BYTES:] != mine:
                age = int.from_bytes(theirs[HEAD_BYTES + 64 :], "little")
                raise RanksDisagree(rank, "root_age", self.root_age, age)

    def check_alike(self, number: int, timeout_s: float) -> None:
        """Raises RanksDisagree if a rank gives its next draw another number.

        With different numbers the slices of the ranks would belong to different draws.
        """
        if self._exchange.world == 1:
            return
        mine = number.to_bytes(8, "little")
        for rank, theirs in enumerate(self._gathered(_Head(_NUMBER), mine, timeout_s)):
            if theirs[HEAD_BYTES:] != mine:
                given = int.from_bytes(theirs[HEAD_BYTES:], "little")
                raise RanksDisagree(rank, "a number of its next draw", number, given)

    def read(self, index: int, left_s: float) -> Roots:
        """Reads the roots as this rank sees them. Waits at most left_s for the answers of shards."""
        return Roots.of(self._shards.roots(index, left_s))

    def roots(self, index: int, num_items: int, pace: Pace, wait: Wait) -> Roots:
        """Waits for roots on which every rank may draw num_items items, and returns them.

        Raises DeadlineExceeded on every rank as soon as one rank's deadline has passed. If a rank does not come in
        time, raises DeadlineExceeded on the ranks that waited, and their next call is the retry. Raises RanksDisagree
        if a rank draws from another index, or another number of items.
        """
        agreed, draws_left = self._agreed.get(index, (None, 0))
        if agreed is None or draws_left == 0:
            agreed, draws_left = self._wait(index, num_items, pace, wait), self.root_age
        self._agreed[index] = agreed, draws_left - 1
        return agreed

    def forget(self, index: int) -> None:
        """Makes the next draw read the roots again. Only with one rank, because other ranks would wait for it."""
        if self._exchange.world == 1:
            self._agreed.pop(index, None)

    def _wait(self, index: int, num_items: int, pace: Pace, wait: Wait) -> Roots:
        asked = num_items * self._exchange.world * self.root_age
        while True:
            is_over = wait.is_over
            roots, is_over = self._exchanged(_Head(_DRAW, is_over, index, num_items), wait)
            if roots.bounds[-1] > 0.0 and pace.can_sample(roots, asked):
                return roots
            if is_over:
                if all(root.is_dead for root in roots.shards):
                    raise wait.exceeded("a shard that answers", f"{len(roots.shards)} that do not")
                raise wait.exceeded(pace.needs(asked), roots.num_items)
            wait.pause()

    def _exchanged(self, head: _Head, wait: Wait) -> tuple[Roots, bool]:
        exchange = self._exchange
        if exchange.world == 1:
            return self.read(head.index, wait.arrives_s), head.is_over
        told = self._shards.roots(head.index, wait.arrives_s, exchange.rank, exchange.world)
        mine = b"".join(root.pack() for root in told)
        self.bytes_sent += HEAD_BYTES + len(mine)
        heard = self._gathered(head, mine, max(wait.left_s, 1.0))
        self.bytes_received += sum(map(len, heard)) - len(heard[exchange.rank])
        roots = Roots.of(root for one in heard for root in _unpacked(one[HEAD_BYTES:]))
        return roots, any(_Head.unpack(one).is_over for one in heard)

    def _gathered(self, head: _Head, mine: bytes, timeout_s: float) -> list[bytes]:
        """Exchanges bytes with a head in front. Raises RanksDisagree if a rank is in another call.

        The bytes of this rank are compared, too: they may be those of a call that it gave up.
        """
        heard = self._exchange.all_gather(head.pack() + mine, timeout_s)
        for rank, theirs in enumerate(map(_Head.unpack, heard)):
            if theirs.call != head.call:
                raise RanksDisagree(rank, "a call", _CALLS[head.call], _CALLS[theirs.call])
            if theirs.index != head.index:
                raise RanksDisagree(rank, "an index of its draw", self._names[head.index], self._names[theirs.index])
            if theirs.num_items != head.num_items:
                raise RanksDisagree(rank, "a number of items of its draw", head.num_items, theirs.num_items)
        return heard

    @property
    def _names(self) -> Sequence[str]:
        return list(self._shards[0].table.config.index)


def _unpacked(told: bytes) -> list[Root]:
    if len(told) % ROOT_BYTES:
        raise FormatMismatch("bytes of roots", f"a multiple of {ROOT_BYTES}", len(told))
    return [Root.unpack(told[at : at + ROOT_BYTES]) for at in range(0, len(told), ROOT_BYTES)]
