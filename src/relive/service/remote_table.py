"""A table on another machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast, final, overload

import numpy.typing as npt

from relive._checks import integer, timeout
from relive._core import CoreTable
from relive.batch import Batch, Draw
from relive.errors import RequestTooLarge
from relive.index import Index
from relive.limiters import SamplesPerInsert
from relive.protocol import ReplayTable
from relive.service.batches import RemoteBatches
from relive.service.connection import Connection, cutoff
from relive.service.options import Streaming
from relive.service.remote_core import RemoteCore
from relive.service.streaming_writer import StreamingWriter
from relive.spec import StepSpec
from relive.stats import TableStats
from relive.table import over_core
from relive.writer import Writer

__all__ = ["RemoteTable", "connect"]

_CONNECT_S = 10.0


def connect(address: str, timeout_s: float | None = None, spec: StepSpec | None = None) -> RemoteTable:
    """A handle on the table at grpc://host:port/name.

    timeout_s: the default deadline of this handle's calls, None: the table's; connecting waits for the server at most
    so long, or 10 s. spec: what the caller expects a step to hold; InvalidConfig where the table holds another.
    Raises ServiceUnavailable, NoSuchTable, FormatMismatch (a server of another version), InvalidConfig.
    """
    given = None if timeout_s is None else timeout(timeout_s)
    connection = Connection(address, None if spec is None else spec.to_json())
    try:
        return RemoteTable(connection, given)
    except BaseException:
        connection.close()
        raise


@final
class RemoteTable:
    """The interface of every table, over the wire. Any number of threads; each waits on a stream of its own.

    Every call has a deadline: its timeout_s, else the handle's. A server that is gone or hangs is a ServiceUnavailable
    before it (after 1 s where the deadline is shorter); a later call connects anew, to the same table only. Pickles as
    its address. Not usable in a forked child.
    """

    def __init__(self, connection: Connection, timeout_s: float | None) -> None:
        ends = cutoff(_CONNECT_S if timeout_s is None else timeout_s)
        stream, hello = connection.open("call", {}, ends)
        connection.give(stream)
        self._given_s = timeout_s
        self._core = RemoteCore(connection, hello, timeout_s)
        # A remote core answers what a table asks of its core; the face above is the local table's own.
        self._table = over_core(cast(CoreTable, self._core), self._core.stream, timeout_s)

    # ---- writing ---------------------------------------------------------------------------------------------------

    @overload
    def writer(self, num_lanes: int | None = None, streaming: None = None) -> Writer: ...

    @overload
    def writer(self, num_lanes: int | None = None, *, streaming: Streaming) -> StreamingWriter: ...

    def writer(self, num_lanes: int | None = None, streaming: Streaming | None = None) -> Writer | StreamingWriter:
        """Opens num_lanes lanes over there; None: one lane, whose arrays have no lane axis.

        streaming None: every call is answered before it returns, as a local writer's: one trip to the server each.
        Streaming(): calls return at once and are sent in blocks; keys come when they are read. See StreamingWriter.
        Raises TooManyLanes, CapacityTooSmall, ReadOnly, TableClosed, ServiceUnavailable.
        """
        if streaming is None:
            return self._table.writer(num_lanes)
        return StreamingWriter(self._core, self.spec, num_lanes, streaming)

    # ---- reading ---------------------------------------------------------------------------------------------------

    def sample(
        self,
        num_items: int,
        columns: Sequence[str] | None = None,
        timeout_s: float | None = None,
        *,
        index: str | None = None,
    ) -> Batch:
        """As Table.sample. The server waits for the limiter, so that other clients and streams go on."""
        return self._table.sample(num_items, columns, timeout_s, index=index)

    def draw(self, num_items: int, timeout_s: float | None = None, *, index: str | None = None) -> Draw:
        """As Table.draw."""
        return self._table.draw(num_items, timeout_s, index=index)

    def gather(
        self,
        items: Draw | npt.ArrayLike,
        columns: Sequence[str] | None = None,
        out: Mapping[str, npt.NDArray[Any]] | None = None,
        *,
        index: str | None = None,
    ) -> Batch:
        """As Table.gather; out costs one copy more, as bytes come into a pooled buffer first."""
        return self._table.gather(items, columns, out, index=index)

    def batches(
        self,
        num_items: int,
        prefetch: int = 4,
        columns: Sequence[str] | None = None,
        device: Any = None,
        timeout_s: float | None = None,
        *,
        index: str | None = None,
    ) -> RemoteBatches:
        """As Table.batches: up to `prefetch` batches are asked for before the first is used, on one stream."""
        plan = self._table.plan(index, columns)
        count = integer("num_items", num_items, 1, 2**31 - 1)
        limiter = tuple(self.indexes.values())[plan.number].limiter
        if isinstance(limiter, SamplesPerInsert) and count > limiter.window:
            raise RequestTooLarge(count, limiter.window, limiter.arithmetic())
        seconds = self.timeout_s if timeout_s is None else timeout(timeout_s)
        return RemoteBatches(self._core, plan, count, integer("prefetch", prefetch, 1), device, seconds)

    # ---- changing what is there ------------------------------------------------------------------------------------

    def update_priorities(self, item_keys: npt.ArrayLike, priorities: Any, *, index: str | None = None) -> int:
        """As Table.update_priorities."""
        return self._table.update_priorities(item_keys, priorities, index=index)

    def delete(self, item_keys: npt.ArrayLike) -> int:
        """As Table.delete."""
        return self._table.delete(item_keys)

    def clear(self) -> None:
        """As Table.clear."""
        self._table.clear()

    def set_policy_version(self, version: int) -> None:
        """As Table.set_policy_version."""
        self._table.set_policy_version(version)

    # ---- looking at it ---------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._table)

    def num_items(self, index: str | None = None) -> int:
        """Live items of an index: those that can be drawn."""
        return self._table.num_items(index)

    def stats(self) -> TableStats:
        """As Table.stats: of the table, over all its processes and clients."""
        return self._table.stats()

    def check(self) -> None:
        """As Table.check; runs over there."""
        self._table.check()

    @property
    def spec(self) -> StepSpec:
        """What a step holds."""
        return self._table.spec

    @property
    def indexes(self) -> dict[str, Index]:
        """{name: Index}, the first being the default of reading calls."""
        return self._table.indexes

    @property
    def capacity(self) -> int:
        """Steps that are kept."""
        return self._table.capacity

    @property
    def address(self) -> str:
        """grpc://host:port/name."""
        return self._core.path

    @property
    def timeout_s(self) -> float:
        """The default deadline of this handle's calls."""
        return self._table.timeout_s

    @property
    def policy_version(self) -> int:
        """What set_policy_version set last."""
        return self._table.policy_version

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._core.closed

    # ---- the handle ------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes its writers and every stream; the table stays where it is. Closing twice is harmless."""
        self._core.close()

    def __enter__(self) -> RemoteTable:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return connect, (self.address, self._given_s)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"RemoteTable({self.address}, {state}, indexes {', '.join(self.indexes)})"


if TYPE_CHECKING:

    def _has_the_interface_of_all_tables(table: RemoteTable) -> ReplayTable:
        return table
