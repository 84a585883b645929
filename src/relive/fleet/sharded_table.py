"""One table over several shards."""

from __future__ import annotations

import contextlib
import importlib
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast, final

import numpy as np

from relive.checks.names import names_arguments
from relive.checks.values import integer, timeout
from relive.config.storage import SharedMemory
from relive.core.protocol import ReplayTable
from relive.core.request import DrawRequest
from relive.core.table_core import Normalise, WriterCore
from relive.errors import InvalidConfig, NotShareable, ReliveError
from relive.fleet.agreement import Alone, Exchange
from relive.fleet.core import Drawn, FleetCore
from relive.fleet.mapped import MappedShard
from relive.fleet.owner import OwnerWatch
from relive.fleet.shards import Shard, Shards
from relive.reading.batch import Batch
from relive.reading.batches import SLICE_S, BatchSource
from relive.reading.columns import Columns
from relive.reading.held_draws import HeldDraw
from relive.table.handle import TableHandle
from relive.table.table import Table, attach_path
from relive.writing.writer import Writer

__all__ = ["ShardedTable", "attach"]

_STREAMS = 2**40  # of a fleet: each shard has so many of its own, or draws in several shards would be alike


@names_arguments
def attach(
    names: Sequence[str],
    local: int | None = None,
    stream: int | None = None,
    timeout_s: float | None = None,
    read_only: bool = False,
    *,
    exchange: Exchange | None = None,
    root_age: int = 1,
    path: str | None = None,
) -> ShardedTable:
    """One table over shards, each of which has an owner (ShardOwner) in some process.

    names: of each shard the name of its shared memory, or the address grpc://host:port/name at which its owner serves
    it (ShardOwner.serve; needs the extra `service`). local: the number of the shard that writer() takes; None: the
    emptiest. stream: the random stream, a rank's number where draws shall be the same in every run (of the same names
    in the same order, of shards that are mapped); None: one of its own. timeout_s: the default of this handle's calls,
    None: the shards'. read_only: draws count nowhere; of mapped shards alone. exchange: how the ranks of a group that
    draw together agree; None: this handle draws alone. root_age: draws that one look at the roots serves. Weights are
    exact for the draw that was made, whatever it is; how far shares lag behind priorities, and by how much a limiter
    may be overshot, grows with it.
    path: how shards at addresses are read. None: "mapped" where they lie on this host, else where NIXL is there
    and reaches them by "nixl" or "service", whichever is quicker for such batches, else "service". One of the three:
    that, or an error where it cannot be (stats().shards says what is). Waits for owners at addresses at most timeout_s,
    or 10 s.
    Raises NoSuchTable, FormatMismatch, InvalidConfig (shards that are not alike, a number twice), NotOverShards,
    RanksDisagree, ServiceUnavailable (nobody answers at an address), PeerUnreadable (path="nixl"), MissingPackage, and
    what relive.attach raises.
    """
    if isinstance(names, str):
        raise InvalidConfig("names of shards", "a list of names", names)
    asked = _checked_path(path)
    shards: list[Shard] = []
    try:
        for at, name in enumerate(names):
            own = None if stream is None else integer("stream", stream, 0, _STREAMS - 1) + at * _STREAMS
            if is_address(name):
                shards.append(_at_address(name, own, timeout_s, read_only, asked))
            else:
                shards.append(_mapped(SharedMemory(name).path, own, timeout_s, read_only))
        whole = ShardedTable(shards, local, timeout_s, exchange=exchange, root_age=root_age)
    except BaseException:
        for shard in shards:
            shard.close()
        raise
    if exchange is None:  # a copy in another process is no rank of a group
        again = partial(attach, tuple(names), local, timeout_s=timeout_s, read_only=read_only, path=path)
        whole.opened_by(partial(again, root_age=root_age))
    return whole


def is_address(name: object) -> bool:
    """Whether it names a shard of another host: no name of shared memory has a slash."""
    return isinstance(name, str) and "://" in name


def _checked_path(path: str | None) -> str | None:
    if path not in (None, "mapped", "service", "nixl"):
        raise InvalidConfig("path", "None, 'mapped', 'service' or 'nixl'", path)
    return path


def _mapped(path: str, stream: int | None, timeout_s: float | None, read_only: bool) -> MappedShard:
    table = attach_path(path, stream, timeout_s, read_only)
    try:
        return MappedShard(table, OwnerWatch(path))
    except BaseException:
        table.close()
        raise


def _at_address(address: str, stream: int | None, timeout_s: float | None, read_only: bool, asked: str | None) -> Shard:
    if read_only and asked != "mapped":
        raise InvalidConfig("read_only", "False, where shards are at addresses: their owners count draws", True)
    seconds = None if timeout_s is None else timeout(timeout_s)
    # Here and not above: a table over mapped shards needs no pyarrow, and one that is read by its owner no NIXL.
    if asked == "nixl":
        return _peer(address, stream, seconds, must=True)
    shard: Any = importlib.import_module("relive.fleet.remote.shard").RemoteShard(address, stream, seconds)
    if asked == "service":
        return cast(Shard, shard)
    with contextlib.closing(shard):
        here = _on_this_host(shard, stream, timeout_s, read_only)
        if here is None and asked == "mapped":
            raise InvalidConfig(f"path of the shard at {address}", "one of this host", "mapped")
    return here or _peer(address, stream, seconds, must=False)


def _peer(address: str, stream: int | None, seconds: float | None, must: bool) -> Shard:
    peer = importlib.import_module("relive.fleet.onesided.peer")
    return cast(Shard, peer.PeerShard(address, stream, seconds, must))


def _on_this_host(shard: Any, stream: int | None, timeout_s: float | None, read_only: bool) -> MappedShard | None:
    """The same region, mapped here; None where it lies elsewhere."""
    path = shard.hello.get("path")
    if not isinstance(path, str):
        return None
    try:
        mapped = _mapped(path, stream, timeout_s, read_only)
    except ReliveError:
        return None
    if mapped.uuid == shard.uuid and mapped.is_live:
        return mapped
    mapped.close()
    return None


@final
class ShardedTable(TableHandle):
    """The interface of every table over several shards; keys say which shard an item is in. Any number of threads.

    A draw is placed by the shards' roots: p = the shard's share of the roots' mass x the item's mass / its shard's mass
    when it was drawn; weights use N and total over all. A shard without an owner that lives is left out, its items are
    gone until it has one again; stats().shards says which. capacity is the sum of the shards'; each lets its own oldest
    go. Made by relive.fleet.attach, or over tables of this process by ShardedTable.over.
    Orders and ranks are each shard's own: TopK(k) draws alike among the k best of each; by an order each gives its
    first ones, as many as its share of the live items. Not here: where= of a draw, Shuffle, Fresh(decay=),
    replacement=False, explicit items, groups, ragged batches, set_limiter: NotOverShards.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        local: int | None = None,
        timeout_s: float | None = None,
        *,
        exchange: Exchange | None = None,
        root_age: int = 1,
    ) -> None:
        found = Shards(shards)
        if local is not None:
            found.numbered(local)
        age = integer("root_age", root_age, 1)
        self._again: Callable[..., ShardedTable] | None = None
        self._fleet = FleetCore(found, exchange or Alone(), age, local)
        config = found[0].table.config
        self._bind(self._fleet, config, config.timeout_s if timeout_s is None else timeout(timeout_s))
        for shard in found:
            shard.set_patience(self._timeout_s, len(found))
        self._fleet.agreement.check_ranks(self._timeout_s)

    @classmethod
    def over(cls, tables: Sequence[Table], local: int | None = None, *, root_age: int = 1) -> ShardedTable:
        """One table over handles of this process, which it owns from now on; their shards need no owner."""
        return cls([MappedShard(table, None) for table in tables], local, root_age=root_age)

    # ---- writing ---------------------------------------------------------------------------------------------------

    @names_arguments
    def writer(self, num_lanes: int | None = None, shard: int | None = None) -> Writer:
        """Opens num_lanes lanes in the shard of this number; None: in the local one, else in the emptiest that lives.

        A writer stays with its shard. None lanes: one lane, whose arrays have no lane axis.
        Raises TooManyLanes, CapacityTooSmall, InvalidConfig, NoLiveShard, ReadOnly, TableClosed.
        """
        opens = self._fleet if shard is None else _Opens(self._fleet, self._fleet.shards.numbered(shard))
        return Writer(opens, self._spec, num_lanes, self._timeout_s, self._explained, self.create_items)

    # ---- drawing ahead ---------------------------------------------------------------------------------------------

    def held_draws(self) -> FleetDraws:
        """Draws that the shards hold."""
        return FleetDraws(self._fleet)

    def _batch_source(
        self, request: DrawRequest, columns: Columns, prefetch: int, timeout_s: float
    ) -> tuple[BatchSource, int]:
        return FleetSource(self._fleet, request, columns), prefetch

    # ---- the handle ------------------------------------------------------------------------------------------------

    @property
    def capacity(self) -> int:
        """Steps that are kept, over all shards."""
        return sum(shard.table.config.capacity for shard in self._fleet.shards)

    @property
    def shard_numbers(self) -> tuple[int, ...]:
        """The shards', in order."""
        return tuple(shard.number for shard in self._fleet.shards)

    @property
    def num_ranks(self) -> int:
        """Those of the exchange."""
        return self._fleet.num_ranks

    def opened_by(self, again: Callable[..., ShardedTable]) -> None:
        """again(stream=) opens one more handle on the same shards, in any process: it pickles as that."""
        self._again = again

    def reopens(self) -> Callable[[int], TableHandle] | None:
        """Attaches to the same shards."""
        return None if self._again is None else partial(_on_stream, self._again)

    @property
    def next_draw(self) -> int | None:
        """The number that the next draw takes; None where an owner elsewhere numbers its shard's."""
        is_mine = all(shard.table.next_draw is not None for shard in self._fleet.shards)
        return self._fleet.next_call if is_mine else None

    def number_draws(self, number: int) -> None:
        """The next draw takes this number, in every shard. Of a group on all ranks at once. Raises RanksDisagree."""
        self._fleet.number_draws(number, self._timeout_s)

    @property
    def agreement_bytes(self) -> tuple[int, int]:
        """Bytes that this rank has (sent, received) to agree on roots. 0 where it draws alone."""
        return self._fleet.agreement.bytes_sent, self._fleet.agreement.bytes_received

    def close(self) -> None:
        """Closes its writers and its handles on all shards. Closing twice is harmless."""
        self._fleet.close()

    def __reduce__(self) -> tuple[Any, ...]:
        if self._again is None:
            raise NotShareable()
        return self._again, ()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self)} of {self.capacity} steps"
        shards = ", ".join(map(str, self.shard_numbers))
        return f"ShardedTable(shards {shards}, {state}, indexes {', '.join(self._index_names)})"


def _on_stream(again: Callable[..., ShardedTable], stream: int) -> ShardedTable:
    return again(stream=stream)


@final
class _Opens:
    """Opens writers in one shard."""

    def __init__(self, fleet: FleetCore, shard: Shard) -> None:
        self._fleet = fleet
        self._shard = shard

    def open_writer(self, num_lanes: int, single: bool, normalise: Normalise) -> WriterCore:
        """Lanes there."""
        return self._fleet.open_writer_of(self._shard, num_lanes, single, normalise)


@final
class FleetDraws:
    """Draws from a sharded table, as HeldDraws says. Owner of what they hold."""

    def __init__(self, fleet: FleetCore) -> None:
        self._fleet = fleet
        self._held: deque[Drawn] = deque()  # the oldest first

    def draw(self, request: DrawRequest, timeout_s: float) -> HeldDraw:
        """One held draw."""
        drawn = self._fleet.hold(request, timeout_s)
        self._held.append(drawn._replace(arrays=[], item_keys=_NONE, probabilities=np.empty(0)))
        return HeldDraw(drawn.arrays, drawn.item_keys, drawn.probabilities, drawn.num_live_items)

    def commit(self) -> None:
        """Counts the oldest as sampled. Raises TableClosed: closing took everything back that was in flight."""
        self._fleet.commit(self._held.popleft())

    def give_back(self) -> None:
        """Takes the newest back."""
        self._fleet.give_back(self._held.pop())

    def close(self) -> None:
        """Takes all of them back."""
        while self._held:
            self.give_back()


_NONE = np.empty(0, np.int64)


@final
class FleetSource:
    """Batches drawn and gathered in one step, in flight until they are handed out."""

    def __init__(self, fleet: FleetCore, request: DrawRequest, columns: Columns) -> None:
        """Raises NotOverShards."""
        fleet.check_condition(request.condition)
        self._draws = FleetDraws(fleet)
        self._request = request
        self._columns = columns

    def ask(self, num_batches: int) -> None:
        """Nothing begins before take(), and that is short."""

    def take(self) -> Batch:
        """Draws and gathers."""
        return Batch(self._columns, *self._draws.draw(self._request, SLICE_S))

    def commit(self, was_late: bool) -> None:
        """Counts a batch as sampled."""
        self._draws.commit()

    def give_back(self, num_batches: int) -> None:
        """Returns them, the newest first, with their numbers."""
        for _ in range(num_batches):
            self._draws.give_back()


if TYPE_CHECKING:

    def _has_the_interface_of_all_tables(table: ShardedTable) -> ReplayTable:
        return table
