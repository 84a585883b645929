"""How ranks come to the same roots: each tells those of its shards, all hear all, and the draw follows from that."""

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
    """What carries bytes between the ranks of a group: a collective, or reads of each other's memory."""

    @property
    def rank(self) -> int:
        """0 to world - 1."""
        ...

    @property
    def world(self) -> int:
        """Ranks that draw together."""
        ...

    def all_gather(self, mine: bytes, timeout_s: float) -> list[bytes]:
        """[world] What each rank gave to its call of the same count. Raises DeadlineExceeded, naming who is missing."""
        ...


@final
class Alone:
    """The exchange of one rank."""

    rank, world = 0, 1

    def all_gather(self, mine: bytes, timeout_s: float) -> list[bytes]:
        """Its own."""
        return [mine]


@final
class Agreement:
    """The roots that a draw is made of, read anew or agreed upon every root_age draws.

    Of a group used by one thread at a time; of one rank alone by any: two that look at once both look.

    A rank of several tells the roots of every world-th shard: what it sends is O(shards / world), what it hears
    O(shards). Every rank calls as often as every other, for the same index: a draw is a collective.
    """

    def __init__(self, shards: Shards, exchange: Exchange, root_age: int) -> None:
        self._shards = shards
        self._exchange = exchange
        self._root_age = root_age
        self._agreed: dict[int, tuple[Roots, int]] = {}  # by index, and how many draws they serve yet
        self.bytes_sent = 0
        self.bytes_received = 0

    def check_ranks(self, timeout_s: float) -> None:
        """Raises RanksDisagree where a rank has other specs, indexes or regions. Before the first draw."""
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
        """Raises RanksDisagree where a rank numbers its next draw otherwise: their slices would not be of one draw."""
        if self._exchange.world == 1:
            return
        mine = number.to_bytes(8, "little")
        for rank, theirs in enumerate(self._exchange.all_gather(mine, timeout_s)):
            if theirs != mine:
                raise RanksDisagree(rank, "a number of its next draw")

    def read(self, index: int) -> Roots:
        """The roots as this rank sees them."""
        return Roots.of(self._shards.roots(index))

    def roots(self, index: int, num_items: int, pace: Pace, wait: Wait) -> Roots:
        """Roots on which a draw of num_items by every rank may go on; waits for them.

        Raises DeadlineExceeded: on every rank, as soon as it is on one.
        """
        agreed, draws_left = self._agreed.get(index, (None, 0))
        if agreed is None or draws_left == 0:
            agreed, draws_left = self._wait(index, num_items, pace, wait), self._root_age
        self._agreed[index] = agreed, draws_left - 1
        return agreed

    def forget(self, index: int) -> None:
        """The next draw reads them anew. Of one rank alone: others would wait for it."""
        if self._exchange.world == 1:
            self._agreed.pop(index, None)

    def _wait(self, index: int, num_items: int, pace: Pace, wait: Wait) -> Roots:
        asked = num_items * self._exchange.world * self._root_age
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
            return self.read(index), is_over
        told = self._shards.roots(index, exchange.rank, exchange.world)
        mine = bytes([is_over]) + b"".join(root.pack() for root in told)
        self.bytes_sent += len(mine)
        heard = exchange.all_gather(mine, max(wait.left_s, 1.0))
        self.bytes_received += sum(map(len, heard)) - len(mine)
        return Roots.of(root for one in heard for root in _unpacked(one)), any(one[0] for one in heard)


def _unpacked(told: bytes) -> list[Root]:
    if len(told) % ROOT_BYTES != 1:
        raise FormatMismatch("bytes of roots", f"1 and a multiple of {ROOT_BYTES}", len(told))
    return [Root.unpack(told[at : at + ROOT_BYTES]) for at in range(1, len(told), ROOT_BYTES)]
