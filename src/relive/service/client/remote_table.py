"""A table on another machine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, final, overload

from relive.checks.names import names_arguments
from relive.checks.values import timeout
from relive.config.spec import StepSpec
from relive.core.protocol import ReplayTable
from relive.core.request import DrawRequest
from relive.errors import InvalidConfig
from relive.reading.batches import BatchSource
from relive.reading.columns import Columns
from relive.service.client.batches import RemoteSource
from relive.service.client.connection import Connection, cutoff
from relive.service.client.held_draws import RemoteDraws
from relive.service.client.remote_core import RemoteCore, remote_core
from relive.service.client.remote_parameters import RemoteParameters
from relive.service.client.streaming_writer import StreamingWriter
from relive.service.wire.options import Streaming
from relive.table.handle import TableHandle
from relive.writing.writer import Writer

__all__ = ["RemoteTable", "connect"]

_CONNECT_S = 10.0


@names_arguments
def connect(address: str, timeout_s: float | None = None, spec: StepSpec | None = None) -> RemoteTable:
    """A handle on the table at grpc://host:port/name.

    timeout_s: the default deadline of this handle's calls, None: the table's; connecting waits for the server at most
    so long, or 10 s. spec: what the caller expects a step to hold; InvalidConfig where the table holds another.
    Raises ServiceUnavailable, NoSuchTable, FormatMismatch (a server of another version), InvalidConfig.
    """
    given = None if timeout_s is None else timeout(timeout_s)
    if spec is not None and not isinstance(spec, StepSpec):
        raise InvalidConfig("spec", "a StepSpec", spec)
    connection = Connection(address, None if spec is None else spec.to_json())
    try:
        return RemoteTable(connection, given)
    except BaseException:
        connection.close()
        raise


def _connect_again(address: str, timeout_s: float | None, stream: int) -> RemoteTable:
    return connect(address, timeout_s)


@final
class RemoteTable(TableHandle):
    """The interface of every table, over the wire. Any number of threads; each waits on a stream of its own.

    Every call has a deadline: its timeout_s, else the handle's. A server that is gone or hangs is a ServiceUnavailable
    before it (after 1 s where the deadline is shorter); a later call connects anew, to the same table only. Pickles as
    its address. Not usable in a forked child. gather(out=) costs one copy more: bytes come into a pooled buffer first.
    """

    def __init__(self, connection: Connection, timeout_s: float | None) -> None:
        ends = cutoff(_CONNECT_S if timeout_s is None else timeout_s)
        stream, hello = connection.open("call", {}, ends)
        connection.give(stream)
        self._given_s = timeout_s
        self._remote = remote_core(connection, hello, timeout_s)
        self._parameters = RemoteParameters(connection, self._remote.timeout_s)
        self._bind_to(self._remote, timeout_s)

    # ---- writing ---------------------------------------------------------------------------------------------------

    @overload
    def writer(self, num_lanes: int | None = None, streaming: None = None) -> Writer: ...

    @overload
    def writer(self, num_lanes: int | None = None, *, streaming: Streaming) -> StreamingWriter: ...

    @names_arguments
    def writer(self, num_lanes: int | None = None, streaming: Streaming | None = None) -> Writer | StreamingWriter:
        """Opens num_lanes lanes over there; None: one lane, whose arrays have no lane axis.

        streaming None: every call is answered before it returns, as a local writer's: one trip to the server each.
        Streaming(): calls return at once and are sent in blocks; keys come when they are read. See StreamingWriter.
        Raises TooManyLanes, CapacityTooSmall, ReadOnly, TableClosed, ServiceUnavailable.
        """
        if streaming is None:
            return Writer(self._core, self._spec, num_lanes, self._timeout_s, self._explained, self.create_items)
        return StreamingWriter(self._remote, self._spec, num_lanes, streaming, self.create_items)

    def held_draws(self) -> RemoteDraws:
        """Draws that the server holds."""
        return RemoteDraws(self._remote)

    def _batch_source(
        self, request: DrawRequest, columns: Columns, prefetch: int, timeout_s: float
    ) -> tuple[BatchSource, int]:
        return RemoteSource(self._remote, request, columns, timeout_s), prefetch

    @property
    def core(self) -> RemoteCore:
        """What answers it."""
        return self._remote

    @property
    def parameters(self) -> RemoteParameters:
        """The newest parameters that somebody published beside this table, and the way to publish them."""
        return self._parameters

    @property
    def address(self) -> str:
        """grpc://host:port/name."""
        return self._remote.path

    def reopens(self) -> Callable[[int], TableHandle]:
        """Connects to the same table; the server numbers draws, so the stream is its own."""
        return partial(_connect_again, self.address, self._given_s)

    # ---- the handle ------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes its writers and every stream; the table stays where it is. Closing twice is harmless."""
        self._remote.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return connect, (self.address, self._given_s)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"RemoteTable({self.address}, {state}, indexes {', '.join(self.indexes)})"


if TYPE_CHECKING:

    def _has_the_interface_of_all_tables(table: RemoteTable) -> ReplayTable:
        return table
