"""One table over several shards."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, final

from relive.checks.names import names_arguments
from relive.checks.values import integer, timeout
from relive.config.storage import SharedMemory
from relive.core.loadable import GivenUp
from relive.core.protocol import ReplayTable
from relive.core.request import DrawRequest
from relive.core.table_core import Normalise, WriterCore
from relive.errors import (
    InvalidConfig,
    NotShareable,
    RequestTooLarge,
)
from relive.fleet.agreement import Alone, Exchange
from relive.fleet.core import FleetCore
from relive.fleet.holds import FleetDraws, FleetSource
from relive.fleet.mapped import MappedShard
from relive.fleet.opened import check_access, checked_path, is_address, mapped_shard, shard_at
from relive.fleet.saving import SavesShards
from relive.fleet.shards import Shard, Shards
from relive.reading.columns import Columns
from relive.reading.holds import BatchSource
from relive.table.handle import TableHandle
from relive.table.table import Table
from relive.writing.writer import Writer

if TYPE_CHECKING:
    from relive.service import Access

__all__ = ["ShardedTable", "attach"]

_STREAMS = 2**40  # streams of a fleet: each shard has its own range, otherwise draws in several shards would be alike


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
    access: Access | None = None,
) -> ShardedTable:
    """Opens one table over several shards. An owner (ShardOwner) in some process keeps each shard alive.

    Weights are exact for the draw that was made, for every root_age. A larger root_age lets the shards' shares lag
    further behind priorities, and lets draws and inserts overshoot a limiter further.

    Args:
        names: one entry a shard. An entry is the name of the shard's shared memory, or the address
            grpc://host:port/name at which the shard's owner serves it (ShardOwner.serve; needs the extra `service`).
        local: number of the shard that writer() uses. None: the emptiest shard.
        stream: the random stream. Give a rank's number if draws must be the same in every run; that needs the same
            names in the same order, and mapped shards. None: a stream of the handle's own.
        timeout_s: default timeout of this handle's calls, in seconds. None: the shards' default.
        read_only: True: draws of this handle count nowhere. Only for mapped shards. Default False.
        exchange: how the ranks of a group that draw together agree. None: this handle draws alone.
        root_age: number of draws that one read of the roots serves, at least 1. Default 1.
        path: how shards at addresses are read; stats().shards shows it. "mapped", "nixl" or "service": that path, or an
            error if the path does not work. None: "mapped" if the shard is on this host. Otherwise "nixl" or "service",
            whichever is faster for that kind of batch, if NIXL is installed and reaches the shard. Otherwise "service".
        access: relive.service.Access, the certificates and the token for shards at addresses. None: the authorities of
            the system, and the token of RELIVE_TOKEN or RELIVE_TOKEN_FILE.

    Returns:
        The table, which pickles as a call that attaches to the same shards, unless an exchange was given.

    Raises:
        NoSuchTable: no shared memory has that name.
        FormatMismatch: a region has another format.
        InvalidConfig: the shards are not alike, two shards have the same number, or an argument is out of range.
        NotOverShards: an index does not work over several shards.
        RanksDisagree: another rank opened other shards, specs or indexes.
        ServiceUnavailable: no owner answers at an address.
        PeerUnreadable: path="nixl", and NIXL does not reach the shard.
        MissingPackage: an address was given, and the extra `service` is not installed.
        ReliveError: also every error that relive.attach raises.

    Blocks:
        For owners at addresses: at most timeout_s, or 10 s if timeout_s is None.
    """
    if isinstance(names, (str, bytes)) or not isinstance(names, Iterable):
        raise InvalidConfig("names of shards", "a list of names", names)
    names = list(names)
    if exchange is not None and not (hasattr(exchange, "world") and hasattr(exchange, "all_gather")):
        raise InvalidConfig("exchange", "an Exchange, such as TorchExchange(), or None", exchange)
    check_access(access)
    asked = checked_path(path)
    shards: list[Shard] = []
    try:
        for at, name in enumerate(names):
            own = None if stream is None else integer("stream", stream, 0, _STREAMS - 1) + at * _STREAMS
            if is_address(name):
                shards.append(shard_at(name, own, timeout_s, read_only, asked, access))
            else:
                shards.append(mapped_shard(SharedMemory(name).path, own, timeout_s, read_only))
        whole = ShardedTable(shards, local, timeout_s, exchange=exchange, root_age=root_age)
    except BaseException:
        for shard in shards:
            shard.close()
        raise
    if exchange is None:  # a copy in another process is not a rank of a group
        # In the order of numbers: on a given stream, such a handle draws alike however the names were ordered here.
        ordered = tuple(name for _, name in sorted(zip((shard.number for shard in shards), names, strict=True)))
        again = partial(attach, ordered, local, timeout_s=timeout_s, read_only=read_only, path=path, access=access)
        whole.opened_by(partial(again, root_age=root_age))
    return whole


@final
class ShardedTable(SavesShards):
    """One table over several shards, with the interface of every table. An item's key contains the number of its shard.

    relive.fleet.attach makes it, or ShardedTable.over from tables of this process. Any number of threads may use it.

    Draws: the roots of the shards decide how many items come from each shard. An item has the probability

        p = (shard's share of the roots' mass) * (item's mass / mass of its shard when the item was drawn)

    and weights use N and the total mass of all shards. A shard without a live owner is left out of draws, gather and
    len until it has an owner again; stats().shards names such shards. docs/fleet.md tells which changes reach it.

    With use counts, handing out a batch waits for the confirmations of the owners at addresses: at most the handle's
    timeout (attach(timeout_s=)), also after the deadline of sample(), draw() or next().

    Capacity is the sum of the shards' capacities. Each shard evicts its own oldest steps. max_items and max_groups are
    numbers for each shard.

    Orders and ranks are per shard: TopK(k) draws uniformly among the k best items of each shard. An ordered sampler
    takes the first items of each shard, as many as the shard's share of the live items.

    These parts raise NotOverShards: where= of a draw over several shards, Shuffle, Fresh(decay=), replacement=False,
    explicit items and set_limiter.
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
        self._savings = weakref.WeakSet()
        self._fleet = FleetCore(found, exchange or Alone(), age, local)
        config = found[0].table.config
        self._bind(self._fleet, config, config.timeout_s if timeout_s is None else timeout(timeout_s))
        self._fleet.set_patience(self._timeout_s)
        self._fleet.agreement.check_ranks(self._timeout_s)

    @classmethod
    def over(cls, tables: Sequence[Table], local: int | None = None, *, root_age: int = 1) -> ShardedTable:
        """Makes one table over handles of this process. Their shards need no owner.

        Args:
            tables: one handle a shard. The new table owns the handles and closes them.
            local: number of the shard that writer() uses. None: the emptiest shard.
            root_age: number of draws that one read of the roots serves. Default 1.

        Returns:
            The table.

        Raises:
            InvalidConfig: the shards are not alike, or two shards have the same number.
            NotOverShards: an index does not work over several shards.
        """
        if not isinstance(tables, Iterable):
            raise InvalidConfig("tables", "a list of relive.Table", tables)
        tables = list(tables)
        for table in tables:
            if not isinstance(table, Table):
                raise InvalidConfig("one of the tables", "a relive.Table of this process", table)
        return cls([MappedShard(table, None) for table in tables], local, root_age=root_age)

    # ---- writing ---------------------------------------------------------------------------------------------------

    @names_arguments
    def writer(self, num_lanes: int | None = None, shard: int | None = None) -> Writer:
        """Opens a writer with num_lanes lanes. The writer stays with one shard.

        Args:
            num_lanes: number of lanes. None: one lane, and arrays have no lane axis.
            shard: number of the shard. None: the local shard, otherwise the emptiest live shard. A table over several
                shards with groups of episodes needs a number here or in attach(local=), because the members of a group
                meet in one shard only.

        Returns:
            The writer.

        Raises:
            TooManyLanes: the shard does not have that many free lanes.
            CapacityTooSmall: the shard has too few steps for a whole window of every open lane.
            InvalidConfig: no shard has this number, num_lanes is out of range, or no shard is named for groups.
            NoLiveShard: no shard has a live owner.
            ReadOnly: the table was attached with read_only=True.
            TableClosed: the table was closed.
        """
        opens = self._fleet if shard is None else _Opens(self._fleet, self._fleet.shards.numbered(shard))
        repeated = self._repeated_stacks
        return Writer(opens, self._spec, num_lanes, self._timeout_s, self._explained, self.create_items, repeated)

    @names_arguments
    def shard_of_group(self, value: int) -> int:
        """The number of the shard for the groups of a value, the same in every process with the same live shards.

        Write all members of a group through writers of one shard, for example of this one. If the shard dies, the
        groups of its values get another shard; all other values keep theirs.

        Args:
            value: the value of the column that groups form by (Episodes(group_by=)).

        Returns:
            The number, for writer(shard=).

        Raises:
            InvalidConfig: value is not an integer of 64 bits.
            NoLiveShard: no shard has a live owner.
            TableClosed: the table was closed.
        """
        return self._fleet.shard_of_group(integer("value of a group", value, -(2**63), 2**63 - 1))

    # ---- drawing ahead ---------------------------------------------------------------------------------------------

    def held_draws(self) -> FleetDraws:
        """Draws that stay in flight in the shards until they are committed or given back."""
        return FleetDraws(self._fleet, self._explained_draw)

    def _batch_source(
        self, request: DrawRequest, columns: Columns, prefetch: int, timeout_s: float
    ) -> tuple[BatchSource, int]:
        try:
            return FleetSource(self._fleet, request, columns, timeout_s, prefetch), prefetch
        except RequestTooLarge as error:
            raise self._explained_draw(error, request) from None

    # ---- the handle ------------------------------------------------------------------------------------------------

    @property
    def capacity(self) -> int:
        """Number of steps that all shards keep together."""
        return sum(shard.table.config.capacity for shard in self._fleet.shards)

    @property
    def shard_numbers(self) -> tuple[int, ...]:
        """The numbers of the shards, ascending."""
        return tuple(shard.number for shard in self._fleet.shards)

    @property
    def stream(self) -> int | None:
        """A number for the random streams of all shards. Handles with the same number draw alike from equal shards.

        With one shard it is the number that attach(stream=) got, or one of the handle's own. With several shards it is
        another number, because the order of their names counts, too. None: an owner in another process draws the items
        of its shard, with random numbers of its own.
        """
        if self.next_draw is None:
            return None
        streams = [shard.stream for shard in self._fleet.shards]
        digest = hashlib.sha256(repr(streams).encode()).digest()
        return streams[0] if len(streams) == 1 else int.from_bytes(digest[:8], "little")

    @property
    def num_ranks(self) -> int:
        """Number of ranks of the exchange that draw together; 1 without an exchange."""
        return self._fleet.drawing.num_ranks

    @property
    def next_shared_draw(self) -> int | None:
        """The number of the next draw of all ranks; None without an exchange."""
        return self._fleet.agreement.number if self.num_ranks > 1 else None

    @property
    def num_shared_draws(self) -> int:
        """Number of draws of all ranks on which this handle has gone on; 0 without an exchange."""
        return self._fleet.drawing.num_begun if self.num_ranks > 1 else 0

    @property
    def given_up_draw(self) -> GivenUp | None:
        """The draw that this rank gave up, until the ranks have met in it."""
        return self._fleet.agreement.given_up

    def _explained(self, error: RequestTooLarge, index: str | None = None) -> RequestTooLarge:
        """The same error with the arithmetic of the limiter, and of the draws that one read of the roots serves."""
        told, age = super()._explained(error, index), self._fleet.agreement.root_age
        world = self._fleet.drawing.num_ranks
        if age * world == 1 or told.none_twice or told.uses:
            return told
        served = f"one read of the roots serves root_age {age} draws of {world} rank{'s' if world > 1 else ''}"
        return RequestTooLarge(told.requested, told.window, f"{told.arithmetic}; {served}")

    def _explained_draw(self, error: RequestTooLarge, request: DrawRequest) -> RequestTooLarge:
        return self._explained(error, self._index_names[request.index_number])

    def opened_by(self, again: Callable[..., ShardedTable]) -> None:
        """Sets how this table pickles: again(stream=) opens one more handle on the same shards, in any process."""
        self._again = again

    def reopens(self) -> Callable[[int], TableHandle] | None:
        """A function that attaches to the same shards with a given stream; None if the table cannot be opened again."""
        return None if self._again is None else partial(_on_stream, self._again)

    @property
    def next_draw(self) -> int | None:
        """The number of the next draw; None if an owner in another process numbers the draws of its shard."""
        is_mine = all(shard.table.next_draw is not None for shard in self._fleet.shards)
        return self._fleet.drawing.next_call if is_mine else None

    def number_draws(self, number: int) -> None:
        """Gives the next draw this number, in every shard.

        In a group all ranks make this call at once.

        Args:
            number: number of the next draw.

        Raises:
            InvalidConfig: number is no integer >= 0.
            RanksDisagree: another rank gave another number.
        """
        self._fleet.drawing.number_draws(number, self._timeout_s)

    @property
    def agreement_bytes(self) -> tuple[int, int]:
        """Bytes that this rank has (sent, received) to agree on roots; (0, 0) if the handle draws alone."""
        return self._fleet.agreement.bytes_sent, self._fleet.agreement.bytes_received

    def close(self) -> None:
        """Closes the writers and the handles on all shards. A second call has no effect.

        Blocks: until saves of save(wait=False) have ended. `cancel` ends them early.
        """
        for saving in list(self._savings):
            saving.wait_for_end()
        self._fleet.close()

    def __reduce__(self) -> tuple[Any, ...]:
        if self._again is None:
            raise NotShareable()
        return self._again, ()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        # An owner at an address could take seconds to answer, and a forked child cannot ask it.
        if state == "open" and not self._fleet.shards.are_served:
            state = f"{len(self)} of {self.capacity} steps"
        shards = ", ".join(map(str, self.shard_numbers))
        return f"ShardedTable(shards {shards}, {state}, indexes {', '.join(self._index_names)})"


def _on_stream(again: Callable[..., ShardedTable], stream: int) -> ShardedTable:
    return again(stream=stream)


@final
class _Opens:
    """Opens writers in one given shard."""

    def __init__(self, fleet: FleetCore, shard: Shard) -> None:
        self._fleet = fleet
        self._shard = shard

    def open_writer(self, num_lanes: int, single: bool, normalise: Normalise) -> WriterCore:
        """Opens lanes in that shard."""
        return self._fleet.open_writer_of(self._shard, num_lanes, single, normalise)


if TYPE_CHECKING:

    def _has_the_interface_of_all_tables(table: ShardedTable) -> ReplayTable:
        return table
