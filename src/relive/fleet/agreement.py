"""Makes the ranks of a group agree on roots: each rank sends the roots of its shards, and all ranks receive all."""

from __future__ import annotations

import hashlib
from typing import Protocol, final

from relive.errors import FormatMismatch
from relive.fleet.draws.pace import Pace, Wait
from relive.fleet.draws.placement import ROOT_BYTES, Root, Roots
from relive.fleet.errors import RanksDisagree
from relive.fleet.shards import Shards

__all__ = ["Agreement", "Alone", "Exchange"]


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
            [world] the bytes that each rank gave to its call of the same count, by rank.

        Raises:
            DeadlineExceeded: a rank did not call in time. The error names the ranks that are missing.
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
        """Checks before the first draw. Raises RanksDisagree if a rank has other specs, indexes or regions."""
        if self._exchange.world == 1:
            return
        config = self._shards[0].table.config
        tables = repr((config.spec, dict(config.index), config.seed)).encode()
        regions = b"".join(shard.number.to_bytes(2, "little") + shard.uuid for shard in self._shards)
        mine = hashlib.sha256(tables).digest() + hashlib.sha256(regions).digest()
        for rank, theirs in enumerate(self._exchange.all_gather(mine, timeout_s)):
            if theirs[:32] != mine[:32]:
                raise RanksDisagree(rank, "a spec or indexes")
            if theirs != mine:
                raise RanksDisagree(rank, "shards, or regions of them,")

    def check_alike(self, number: int, timeout_s: float) -> None:
        """Raises RanksDisagree if a rank gives its next draw another number.

        With different numbers the slices of the ranks would belong to different draws.
        """
        if self._exchange.world == 1:
            return
        mine = number.to_bytes(8, "little")
        for rank, theirs in enumerate(self._exchange.all_gather(mine, timeout_s)):
            if theirs != mine:
                raise RanksDisagree(rank, "a number of its next draw")

    def read(self, index: int, left_s: float) -> Roots:
        """Reads the roots as this rank sees them. Waits at most left_s for the answers of shards."""
        return Roots.of(self._shards.roots(index, left_s))

    def roots(self, index: int, num_items: int, pace: Pace, wait: Wait) -> Roots:
        """Waits for roots on which every rank may draw num_items items, and returns them.

        Raises DeadlineExceeded on every rank as soon as one rank's deadline has passed.
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
            roots, is_over = self._exchanged(index, is_over, wait)
            if roots.bounds[-1] > 0.0 and pace.can_sample(roots, asked):
                return roots
            if is_over:
                raise wait.exceeded(pace.needs(asked), roots.num_items)
            wait.pause()

    def _exchanged(self, index: int, is_over: bool, wait: Wait) -> tuple[Roots, bool]:
        exchange = self._exchange
        if exchange.world == 1:
            return self.read(index, wait.arrives_s), is_over
        told = self._shards.roots(index, wait.arrives_s, exchange.rank, exchange.world)
        mine = bytes([is_over]) + b"".join(root.pack() for root in told)
        self.bytes_sent += len(mine)
        heard = exchange.all_gather(mine, max(wait.left_s, 1.0))
        self.bytes_received += sum(map(len, heard)) - len(mine)
        return Roots.of(root for one in heard for root in _unpacked(one)), any(one[0] for one in heard)


def _unpacked(told: bytes) -> list[Root]:
    if len(told) % ROOT_BYTES != 1:
        raise FormatMismatch("bytes of roots", f"1 and a multiple of {ROOT_BYTES}", len(told))
    return [Root.unpack(told[at : at + ROOT_BYTES]) for at in range(1, len(told), ROOT_BYTES)]
