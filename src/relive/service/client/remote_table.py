"""A table on another machine, and the function that connects to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, final, overload

from relive.checks.names import names_arguments
from relive.checks.secrets import hides_token
from relive.checks.values import flag, timeout
from relive.config.spec import StepSpec
from relive.core.protocol import ReplayTable
from relive.core.request import DrawRequest
from relive.errors import InvalidConfig, ReliveError, ServiceUnavailable
from relive.reading.columns import Columns
from relive.reading.holds import BatchSource
from relive.saving.copying import SaveFacts
from relive.saving.named import checked_name
from relive.saving.saving import checked
from relive.service.client.batches import RemoteSource
from relive.service.client.connection import Connection
from relive.service.client.deadlines import cutoff
from relive.service.client.held_draws import RemoteDraws
from relive.service.client.remote_core import RemoteCore, remote_core
from relive.service.client.remote_parameters import RemoteParameters
from relive.service.client.remote_saves import RemoteSaving, begin_saving, facts_of
from relive.service.client.streaming_writer import StreamingWriter
from relive.service.wire.access import Access, ClientTLS, Token
from relive.service.wire.options import Streaming
from relive.table.handle import TableHandle
from relive.writing.writer import Writer

__all__ = ["RemoteTable", "connect", "connect_with"]

_CONNECT_S = 10.0


@hides_token
@names_arguments
def connect(
    address: str,
    timeout_s: float | None = None,
    spec: StepSpec | None = None,
    *,
    tls: ClientTLS | None = None,
    token: Token = None,
) -> RemoteTable:
    """Connects to a table that a server serves.

    Args:
        address: Address of the table, grpc://host:port/name; of a server with TLS, grpc+tls://host:port/name.
        timeout_s: Default timeout in seconds of the handle's calls; None: the table's default. Connecting waits for the
            server for at most this time, or for 10 s if None.
        spec: The spec that the caller expects the table to have; None: any spec.
        tls: The authorities to trust, and the client's own certificate; None: the authorities of the system.
        token: The token, or the Path of a file with the token. None: the value of RELIVE_TOKEN, or the content of the
            file that RELIVE_TOKEN_FILE names; if neither is set, no token is sent. A pickled handle contains the path,
            and never the token.

    Returns:
        A handle on the table. Close the handle, or use it as a context manager.

    Raises:
        AccessDenied: The server does not allow this client to use a table of this name.
        HandshakeFailed: The certificates of client and server do not fit.
        ServiceUnavailable: The server did not answer in time.
        NoSuchTable: The server serves no table under this name.
        FormatMismatch: The server has another version of the protocol.
        InvalidConfig: The address has another form, the table has another spec, or the token is not valid.
    """
    return connect_with(address, Access.of(tls, token), timeout_s, spec)


def connect_with(
    address: str, access: Access, timeout_s: float | None = None, spec: StepSpec | None = None
) -> RemoteTable:
    """Connects as connect() does, with an access that was checked."""
    given = None if timeout_s is None else timeout(timeout_s)
    if spec is not None and not isinstance(spec, StepSpec):
        raise InvalidConfig("spec", "a StepSpec", spec)
    connection = Connection(address, None if spec is None else spec.to_json(), access=access)
    try:
        return RemoteTable(connection, given)
    except BaseException:
        connection.close()
        raise


def _connect_again(address: str, access: Access, timeout_s: float | None, stream: int) -> RemoteTable:
    return connect_with(address, access, timeout_s)


@final
class RemoteTable(TableHandle):
    """A handle on a table of another machine, with the interface of every table. Any number of threads.

    - Each thread waits on its own stream.
    - Every call has a deadline: its `timeout_s`, else the handle's default. If the server is gone or hangs, the call
      raises ServiceUnavailable before its deadline (after 1 s if the deadline is shorter).
    - A later call connects again, to the same table only.
    - A pickled handle contains its address, its timeout and the paths of its certificates. It connects when it is
      unpickled, with the token that it finds there.
    - The handle is not usable in a forked child.
    - `gather(out=)` costs one more copy, because the bytes arrive in a pooled buffer first.

    Made by connect().

    Args:
        connection: Connection to the table.
        timeout_s: Default timeout in seconds; None: the table's default.
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
        """Opens lanes on the server and returns their writer.

        Args:
            num_lanes: Number of lanes; None: one lane, and arrays have no lane axis.
            streaming: None: every call is answered before it returns, as the calls of a local writer are, and costs one
                round trip. Streaming(): calls return at once and are sent in blocks, and keys are read when they are
                needed; see StreamingWriter.

        Returns:
            A Writer, or a StreamingWriter if `streaming` is given.

        Raises:
            TooManyLanes: The table has too few free lanes.
            CapacityTooSmall: The table's capacity is too small for the lanes.
            ReadOnly: The server's handle on the table is read-only.
            TableClosed: The handle is closed.
            ServiceUnavailable: The server did not answer in time.
        """
        if streaming is None:
            repeated = self._repeated_stacks
            return Writer(
                self._core, self._spec, num_lanes, self._timeout_s, self._explained, self.create_items, repeated
            )
        return StreamingWriter(self._remote, self._spec, num_lanes, streaming, self.create_items)

    def held_draws(self) -> RemoteDraws:
        """Returns draws that the server keeps in flight."""
        return RemoteDraws(self._remote)

    def _batch_source(
        self, request: DrawRequest, columns: Columns, prefetch: int, timeout_s: float
    ) -> tuple[BatchSource, int]:
        return RemoteSource(self._remote, request, columns, prefetch, timeout_s), prefetch

    @property
    def core(self) -> RemoteCore:
        """The core that answers the handle's calls."""
        return self._remote

    @property
    def parameters(self) -> RemoteParameters:
        """The newest parameters beside this table, and the way to publish parameters."""
        return self._parameters

    @property
    def address(self) -> str:
        """Address of the table, grpc://host:port/name."""
        return self._remote.path

    def reopens(self) -> Callable[[int], TableHandle]:
        """Returns a function that connects to the same table.

        The server numbers the draws, so `stream` has no effect.
        """
        return partial(_connect_again, self.address, self._remote.connection.access, self._given_s)

    # ---- saving ----------------------------------------------------------------------------------------------------

    @overload
    def save(
        self,
        name: str,
        beside: Mapping[str, bytes] | None = None,
        wait: Literal[True] = True,
        keep: int = 1,
        timeout_s: float | None = None,
    ) -> SaveFacts: ...

    @overload
    def save(
        self,
        name: str,
        beside: Mapping[str, bytes] | None = None,
        *,
        wait: Literal[False],
        keep: int = 1,
        timeout_s: float | None = None,
    ) -> RemoteSaving: ...

    @names_arguments
    def save(
        self,
        name: str,
        beside: Mapping[str, bytes] | None = None,
        wait: bool = True,
        keep: int = 1,
        timeout_s: float | None = None,
    ) -> SaveFacts | RemoteSaving:
        """Has the server save the table, as it is at one moment of this call, below the server's folder of saves.

        The save is FOLDER/TABLE/NAME on the server's machine: a save as Table.save makes it. The server serves all
        clients meanwhile. A save that fails, or a server that dies, leaves the save before it whole.

        Args:
            name: Name of the save: visible text without '/', at most 200 bytes.
            beside: Blobs to keep with the table, by name, at most 1 GiB in all.
            wait: False: return when the moment has passed; the server writes the rest.
            keep: Number of saves that FOLDER/TABLE/NAME keeps, this one included.
            timeout_s: Deadline in seconds of the whole call; None: the handle's default. The save is cancelled then,
                and also if Ctrl-C interrupts the call. If the server answers late, the call takes up to 5 s longer: it
                cancels the save, and asks for the outcome.

        Returns:
            The facts of the save; with wait=False a RemoteSaving, which has progress, wait() and cancel().

        Raises:
            SavesNotAllowed: The server has no folder for saves.
            SaveInUse: A save of this name goes on.
            DeadlineExceeded: The save did not end in time, and is cancelled.
            StorageFull, SystemFailure: The server cannot write its folder.
            SaveOutrun: Writers fill pages faster than the folder takes them in.
            SaveCancelled: The server closes.
            InvalidConfig: The name is none, a link lies at its place, or another argument is not as described.
            ServiceUnavailable: The server did not answer in time, or died. The save may or may not be made.
            ReadOnly, TableClosed: The server's handle is read-only, or this handle is closed.

        Blocks: until the pages are copied, and with wait=True until they are on the server's disk.
        """
        blobs, number = checked(beside, keep)
        waits = flag("wait", wait)
        began = time.monotonic()
        ends = began + (self._timeout_s if timeout_s is None else timeout(timeout_s))
        saving = begin_saving(self._remote, checked_name("name of a save", name), blobs, number, ends)
        try:
            told = saving.follow("facts" if waits else "has_cut", ends)
            if told is None:
                facts = saving.ended_by(began, "the commit of a save" if waits else "the moment of a save")
                return facts if waits else saving
            return facts_of(told) if waits else saving
        except ServiceUnavailable:
            saving.give_up()
            raise
        except ReliveError:
            raise
        except BaseException:
            saving.give_up()
            raise

    # ---- the server ------------------------------------------------------------------------------------------------

    def drop(self) -> None:
        """Has the server serve this table no more, and remove its shared memory.

        Every client's streams end within about a second. Until then, open handles still answer and take steps. These
        steps are lost.

        Raises:
            AccessDenied: The client does not have the role admin.
            InvalidConfig: The table lives in a folder of the server.
            ServiceUnavailable: The server did not answer in time. The table may or may not be removed.
        """
        self._remote.tell({"op": "drop"}, self._timeout_s)

    def drain(self) -> None:
        """Has the server take no new stream. `relive serve` then ends, after the calls under way.

        Raises:
            AccessDenied: The client does not have the role admin for every table of the server.
            ServiceUnavailable: The server did not answer in time.
        """
        self._remote.tell({"op": "drain"}, self._timeout_s)

    # ---- the handle ------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes the handle's writers and every stream.

        The table stays on the server. Closing twice has no further effect.

        Raises:
            Unacknowledged: Steps of a streaming writer were not stored. The handle is closed then, too.
        """
        self._remote.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return connect_with, (self.address, self._remote.connection.access, self._given_s)

    def __repr__(self) -> str:
        if not hasattr(self, "_core"):
            return "RemoteTable(connecting)"  # a traceback of a failed connect shows it
        state = "closed" if self.closed else "open"
        return f"RemoteTable({self.address}, {state}, indexes {', '.join(self.indexes)})"


if TYPE_CHECKING:

    def _has_the_interface_of_all_tables(table: RemoteTable) -> ReplayTable:
        return table
