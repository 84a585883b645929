"""Serves tables over Arrow Flight: one stream for each thread of a client, one thread for each stream."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, final

import pyarrow.flight as flight

from relive.checks.names import names_arguments
from relive.core.closing import Closing
from relive.core.ending import at_end
from relive.errors import BadMessage, InvalidConfig, NoSuchTable, ServiceUnavailable
from relive.saving.named import checked_name
from relive.service.client.connection import close_connections
from relive.service.parameters.store import ParameterStore
from relive.service.server.hosting import Hosted, Offer
from relive.service.server.parameter_session import ParameterSession
from relive.service.server.pipe import Pipe, StreamBroken
from relive.service.server.pulses import Pulses
from relive.service.server.sessions import CallSession, HoldSession, Session
from relive.service.server.shard_session import ShardSession
from relive.service.server.write_session import WriteSession
from relive.service.wire import framing
from relive.service.wire.address import parse_server
from relive.service.wire.memory import keep_freed_memory
from relive.service.wire.options import ServerOptions
from relive.service.wire.sockets import tcp_sockets
from relive.service.wire.transport import keep_for_ever, with_few_wakeups
from relive.table.table import Table

__all__ = ["Server", "serve"]

_running: set[Server] = set()  # closed before the interpreter ends: no server thread may be in Arrow then


@names_arguments
def serve(tables: Mapping[str, Table], address: str, options: ServerOptions | None = None) -> Server:
    """Serves these tables under their names until close().

    The caller keeps the tables: the caller may use them meanwhile, and closes them after the server.

    Args:
        tables: Tables by name. A name is text without '/', not empty.
        address: Address to listen on, grpc://host:port. Port 0 takes a free port.
        options: Limits of the server; None: the defaults of ServerOptions.

    Returns:
        The running server, at once.

    Raises:
        InvalidConfig: A name, a table or the address is not as described. With ServerOptions(saves=), a name is also
            the name of a folder, without '.' in front.
        ServiceUnavailable: The address cannot be bound.

    Example:
        with relive.service.serve({"replay": table}, "grpc://127.0.0.1:7070") as server:
            server.wait()
    """
    for name, table in tables.items():
        if not isinstance(name, str) or not name or "/" in name:
            raise InvalidConfig("name of a served table", "text without '/', not empty", name)
        if not isinstance(table, Table):
            raise InvalidConfig(f"table {name!r}", "a relive.Table", type(table).__name__)
        if options is not None and options.saves is not None:
            checked_name("name of a table that is saved", name)
    return Server(tables, address, options or ServerOptions())


@final
class Server(Closing):
    """A running service, made by serve(). The server owns the listening socket and every stream.

    Close the server, or use it as a context manager. Then close the tables.

    Args:
        tables: Tables by name.
        address: Address to listen on, grpc://host:port.
        options: Limits of the server.

    Raises:
        InvalidConfig: The address is not grpc://host:port.
        ServiceUnavailable: The address cannot be bound.
    """

    def __init__(self, tables: Mapping[str, Table], address: str, options: ServerOptions) -> None:
        host, port = parse_server(address)
        keep_freed_memory()
        self._closing = threading.Event()
        self._closed = False
        self._process = os.getpid()
        self._options = options
        self._counts = _Counts()
        self._pulses = Pulses()
        self._hosted = {name: Hosted(name, table, self._closing, options) for name, table in tables.items()}
        try:
            flight_server = with_few_wakeups(
                lambda: _FlightServer(
                    f"grpc://{host}:{port}", self._hosted, self._closing, options, self._counts, self._pulses
                )
            )
        except StreamBroken as problem:
            raise ServiceUnavailable(address, 0.0, str(problem)[:200]) from None
        self._flight: _FlightServer | None = flight_server
        self._port = flight_server.port
        self._address = f"grpc://{host}:{self._port}"
        # The thread is also the second Python thread: with a single thread, the core would conclude that a
        # waiting thread waits for itself.
        self._thread = threading.Thread(target=flight_server.wait, name="relive-server", daemon=True)
        self._thread.start()
        _running.add(self)
        # Arrow has just registered an exit function that waits for every stream. The function that is registered last
        # is called first.
        atexit.unregister(_close_all)
        atexit.register(_close_all)

    @property
    def address(self) -> str:
        """Address of the server, grpc://host:port. A table's address is `address + "/" + name`."""
        return self._address

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the served tables."""
        return tuple(self._hosted)

    @property
    def num_streams(self) -> int:
        """Number of streams that are open now."""
        return self._counts.num_streams

    def offer(self, table: str, name: str, give: Offer) -> None:
        """Gives clients further facts about a served table. Clients request the facts by name.

        Args:
            table: Name of the table.
            name: Name of the facts.
            give: Function that returns fields of JSON and bytes. It is called at each request, by the thread of a
                stream.

        Raises:
            KeyError: No table is served under this name.
        """
        self._hosted[table].offers[name] = give

    def parameters(self, name: str) -> ParameterStore:
        """Returns the parameters beside a served table. Clients reach the same parameters as `remote.parameters`.

        Args:
            name: Name of the table.

        Returns:
            The store of the parameters.

        Raises:
            NoSuchTable: No table is served under this name.
        """
        hosted = self._hosted.get(name)
        if hosted is None:
            raise NoSuchTable(str(name)[:200])
        return hosted.parameters

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until close() is called.

        Args:
            timeout_s: Longest wait in seconds; None: no limit.

        Returns:
            True if close() was called, False if the time is over.
        """
        return self._closing.wait(timeout_s)

    def close(self) -> None:
        """Ends the service. Closing twice has no further effect.

        The server answers the calls in progress (for at most `close_timeout_s`), then cuts every stream. The lanes of
        clients are closed, and the batches that clients held in flight are given back. Saves that go on are cancelled;
        the saves before them stay whole. In a forked child the call has no effect.

        Blocks: for at most about 2 x `close_timeout_s` + 1 s.
        """
        if self._closed or self._process != os.getpid():
            return
        self._closed = True
        self._closing.set()
        self._pulses.close()
        for hosted in self._hosted.values():
            hosted.parameters.close()
        ends = time.monotonic() + self._options.close_timeout_s
        for hosted in self._hosted.values():
            hosted.saves.close(ends)
        while self._counts.num_busy and time.monotonic() < ends:
            time.sleep(0.01)
        flight_server, self._flight = self._flight, None
        assert flight_server is not None
        stopper = threading.Thread(target=flight_server.shutdown, name="relive-server-close", daemon=True)
        stopper.start()
        # Flight waits for its streams, and clients may keep streams open for ever: cut the connections.
        ends = time.monotonic() + max(self._options.close_timeout_s, 1.0)
        while stopper.is_alive() and time.monotonic() < ends:
            _cut_connections(self._port)
            stopper.join(0.02)
        self._thread.join(1.0)
        # Drop the last reference here. Arrow's server joins its own threads when it is freed, and a forked child that
        # collected the server as garbage would join threads that the child does not have.
        del flight_server, stopper
        _running.discard(self)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self.num_streams} streams"
        return f"Server({self._address}, tables {', '.join(self._hosted)}, {state})"


@final
class _Counts:
    """Counts of open and busy streams.

    The counts are not part of the server: an object that keeps a stream alive must not keep the server alive.
    """

    def __init__(self) -> None:
        self._changed = threading.Lock()
        self.num_streams = 0
        self.num_busy = 0

    def streams(self, change: int) -> None:
        """Adds `change` to the number of open streams."""
        with self._changed:
            self.num_streams += change

    def busy(self, change: int) -> None:
        """Adds `change` to the number of streams that work on a message."""
        with self._changed:
            self.num_busy += change


@final
class _FlightServer(flight.FlightServerBase):  # type: ignore[misc]
    """Makes the session that a stream's descriptor asks for, and runs the session on the stream's own thread."""

    def __init__(
        self,
        location: str,
        hosted: Mapping[str, Hosted],
        closing: threading.Event,
        options: ServerOptions,
        counts: _Counts,
        pulses: Pulses,
    ) -> None:
        self._hosted = hosted
        self._closing = closing
        self._options = options
        self._counts = counts
        self._pulses = pulses
        super().__init__(location)

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Serves one stream, from its handshake to its end."""
        pipe = Pipe(context, reader, writer, self._counts.busy)
        self._counts.streams(1)
        try:
            session = self._session(descriptor, pipe)
        except Exception as problem:  # any error of the handshake is sent to the client, if the client is still there
            with contextlib.suppress(*StreamBroken):
                pipe.send({"error": framing.error_to(problem)})
            return
        else:
            session.run()
        finally:
            self._pulses.remove(pipe)
            pipe.end()
            self._counts.streams(-1)

    def _session(self, descriptor: Any, pipe: Pipe) -> Session:
        if self._closing.is_set():
            raise ServiceUnavailable("this server", 0.0, "it closes")
        num_streams = self._counts.num_streams
        if num_streams > self._options.max_streams:
            raise InvalidConfig("streams", f"at most {self._options.max_streams} at once", num_streams)
        request = _request(descriptor)
        name = framing.field(request, "table", str)
        hosted = self._hosted.get(name)
        if hosted is None:
            raise NoSuchTable(name[:200])
        hosted.check(request)
        if request.get("pulses") is True:
            self._pulses.add(pipe, hosted.table.core)
        kind = framing.field(request, "kind", str)
        if kind == "write":
            return WriteSession(pipe, hosted, self._options, request)
        kinds: dict[str, Callable[..., Session]] = {
            "call": CallSession,
            "hold": HoldSession,
            "shard": ShardSession,
            "parameters": ParameterSession,
        }
        if kind not in kinds:
            raise BadMessage("kind of stream", "call, write, hold, shard or parameters", kind[:40])
        return kinds[kind](pipe, hosted, self._options)


def _request(descriptor: Any) -> dict[str, Any]:
    command = descriptor.command
    if descriptor.descriptor_type != flight.DescriptorType.CMD or len(command) > framing.MAX_HEADER_BYTES:
        raise BadMessage("descriptor", "a command of at most 1 MiB", str(descriptor.descriptor_type))
    try:
        request = json.loads(command)
    except (ValueError, RecursionError) as problem:
        raise BadMessage("descriptor", "JSON", str(problem)[:100]) from None
    if not isinstance(request, dict):
        raise BadMessage("descriptor", "a JSON object", type(request).__name__)
    return request


@at_end
def _close_all() -> None:
    for server in list(_running):
        # Close this process's own connections first: a writer that lost its server would still try to reach the server
        # when Python ends.
        close_connections(server.address.rpartition(":")[2])
        server.close()


def _cut_connections(port: int) -> None:
    """Ends every accepted TCP connection of this process to the port.

    Listening sockets and clients' sockets stay open.
    """
    for connection in tcp_sockets():
        try:
            if connection.getsockname()[1] == port and connection.getpeername():
                connection.shutdown(socket.SHUT_RDWR)
        except (OSError, IndexError, TypeError):
            continue  # a listening socket, or a socket of another family


def _note_fork() -> None:
    """Leaves the servers to the parent: a child that released one would join threads that the child does not have.

    pyarrow shuts each server down at the end of the interpreter, by a finalizer that only the registry of weakref
    shows.
    """
    if not _running:
        return
    keep_for_ever(*_running)
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        alive = finalizer.peek()
        if alive is not None and isinstance(alive[0], flight.FlightServerBase):
            finalizer.detach()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)
