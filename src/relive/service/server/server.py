"""Serves tables over Arrow Flight: one stream for each thread of a client, one thread for each stream."""

from __future__ import annotations

import atexit
import importlib
import os
import threading
import time
import weakref
from collections.abc import Collection, Mapping
from typing import Any, final

import pyarrow.flight as flight

from relive.checks.names import names_arguments
from relive.checks.values import integer
from relive.core.closing import Closing
from relive.core.ending import at_end, made_apart
from relive.errors import CannotListen, InvalidConfig, NoSuchTable
from relive.saving.named import checked_name
from relive.service.client.connection import close_connections
from relive.service.parameters.store import ParameterStore
from relive.service.server.calls import Calls
from relive.service.server.guard import Guard
from relive.service.server.hosting import Counts, Hosted, Memory, Offer
from relive.service.server.keeper import Keeper
from relive.service.server.life import Life
from relive.service.server.pipe import StreamBroken
from relive.service.server.pulses import Pulses
from relive.service.server.streams import FlightServer, Serving
from relive.service.wire.address import is_table_name, parse_server
from relive.service.wire.door import Door, ServerTLS
from relive.service.wire.memory import keep_freed_memory
from relive.service.wire.options import ServerOptions
from relive.service.wire.sockets import check_free, cut, is_of_port, peer_in, peer_of
from relive.service.wire.transport import keep_for_ever, with_few_wakeups
from relive.table.table import Table

__all__ = ["Server", "serve", "serve_behind"]

_NAMES = "text without '/', '?', '#', tabs, line ends and '%' before two hexadecimal digits, not empty"
_STALLED_S = 60.0  # a client that reads no part of an answer for so long is cut
_running: set[Server] = set()  # closed before the interpreter ends: no server thread may be in Arrow then


@names_arguments
def serve(
    tables: Mapping[str, Table],
    address: str,
    options: ServerOptions | None = None,
    *,
    tls: ServerTLS | None = None,
    tokens: str | os.PathLike[str] | None = None,
    insecure: bool = False,
) -> Server:
    """Serves these tables under their names until close().

    A server that knows its clients, by tokens or by their certificates, may listen on any address. Any other server
    listens on loopback alone, unless insecure=True.

    The caller keeps the tables: the caller may use them meanwhile, and closes them after the server.

    Args:
        tables: Tables by name. A name is text that an address has as it is: not empty, without '/', '?', '#', tabs and
            line ends, and without '%' before two hexadecimal digits.
        address: Address to listen on, grpc://host:port; with TLS, grpc+tls://host:port. Port 0 takes a free port.
        options: Limits of the server; None: the defaults of ServerOptions.
        tls: Certificate and key of the server, and the authorities of its clients' certificates.
        tokens: File of the tokens (`relive token new`). The server reads it again when it changes.
        insecure: Let every client that reaches the port do everything, also beyond loopback.

    Returns:
        The running server, at once.

    Raises:
        InvalidConfig: A name, a table or the address is not as described, or a file cannot be used. With
            ServerOptions(saves=), a name is also the name of a folder, without '.' in front.
        CannotListen: The address cannot be bound.

    Example:
        with relive.service.serve({"replay": table}, "grpc://127.0.0.1:7070") as server:
            server.wait()
    """
    return serve_behind(tables, address, Door(tls, tokens, insecure), options)


def serve_behind(tables: Mapping[str, Table], address: str, door: Door, options: ServerOptions | None = None) -> Server:
    """Serves tables as serve() does, behind a door that was made before. Ctrl-C in this call leaves the port free."""
    if not isinstance(tables, Mapping):
        raise InvalidConfig("tables", '{"name": table}', tables)
    if options is not None and not isinstance(options, ServerOptions):
        raise InvalidConfig("options of a server", "a ServerOptions, or None", options)
    if not isinstance(door, Door):
        raise InvalidConfig("door of a server", "a Door", door)
    for name, table in tables.items():
        if not isinstance(name, str) or not is_table_name(name):
            raise InvalidConfig("name of a served table", _NAMES, name)
        if not isinstance(table, Table):
            raise InvalidConfig(f"table {name!r}", "a relive.Table", type(table).__name__)
        if options is not None and options.saves is not None:
            checked_name("name of a table that is saved", name)
    return made_apart(lambda: Server(tables, address, options or ServerOptions(), door), Server.close)


@final
class Server(Closing):
    """A running service, made by serve(). The server owns the listening socket and every stream.

    Close the server, or use it as a context manager. Then close the tables.

    Args:
        tables: Tables by name.
        address: Address to listen on, grpc://host:port.
        options: Limits of the server.
        door: The clients that are let in.

    Raises:
        InvalidConfig: The address is not grpc://host:port, or does not fit the door.
        CannotListen: The address cannot be bound.
    """

    def __init__(self, tables: Mapping[str, Table], address: str, options: ServerOptions, door: Door) -> None:
        scheme, host, port = parse_server(address)
        door.check(f"{scheme}://{host}:{port}")
        check_free(address, host, port)
        keep_freed_memory()
        self._closing = threading.Event()
        self._closed = self._is_in_close = False
        self._close_lock = threading.RLock()
        self._next_wait_s = options.close_timeout_s  # for the calls in progress: an interrupted wait is not repeated
        self._process = os.getpid()
        self._options = options
        self._counts = Counts()
        self._pulses = Pulses()
        self._hosted = {name: Hosted(name, table, self._closing, options) for name, table in tables.items()}
        self._guard = Guard(door, _cut_peers)
        self._life = Life(self._hosted, self._counts, self._guard)
        self._metrics: Any = None
        self._memory = memory = Memory(options)
        for hosted in self._hosted.values():
            hosted.life, hosted.memory = self._life, memory
        self._calls = calls = Calls(options, self._guard)
        budgets = (memory.work, memory.inflight)
        self._keeper = Keeper(options, self._guard.peers, lambda: calls.stalled(_STALLED_S), budgets)
        shared = (self._counts, self._pulses, self._guard, self._life, calls)
        serving = Serving(self._hosted, self._closing, options, *shared)
        try:
            flight_server = with_few_wakeups(lambda: FlightServer(f"{scheme}://{host}:{port}", serving, door))
        except BaseException as problem:
            self._guard.close()
            self._keeper.close()
            if isinstance(problem, StreamBroken):
                raise CannotListen(address, str(problem)[:200]) from None
            raise
        self._flight: FlightServer | None = flight_server
        self._port = flight_server.port
        self._address = f"{scheme}://{host}:{self._port}"
        self._is_accepted = is_of_port(self._port, host)
        self._keeper.start(self._is_accepted)
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

    def is_in_use(self, table: str) -> bool:
        """Whether the server uses a table: it serves the table, or a stream or a save of a removed table goes on.

        A client with the role admin may remove a table. Its memory stays until the program that serves it closes it.
        Close it when it is no longer in use. After close(), calls that close() gave up on may still use a table.

        Args:
            table: Name of the table.
        """
        return self._life.is_in_use(table, serves=not self._closed)

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

    def serve_metrics(self, port: int = 0, host: str = "127.0.0.1") -> int:
        """Serves metrics for Prometheus until close(), as plain HTTP, to every client that reaches the port.

        Args:
            port: Port to listen on; 0: a free port.
            host: Host to listen on.

        Returns:
            The port.

        Raises:
            InvalidConfig: The metrics are already served, or close() was called.
            MissingPackage: prometheus-client is not installed (extra `service`).
            CannotListen: The port cannot be bound.
        """
        if self._metrics is not None:
            raise InvalidConfig("metrics of a server", "one port", self._metrics.port)
        port = integer("port of the metrics", port, 0, 65_535)
        self._check_running()
        metrics = importlib.import_module("relive.service.server.metrics")
        try:
            made = metrics.Metrics(self._hosted, self._guard, self._memory, port, host)
        except (OSError, OverflowError, UnicodeError) as problem:
            raise CannotListen(f"{host}:{port}", str(problem)[:200]) from None
        self._metrics = made
        if self._closing.is_set():  # set by another thread, which may have looked for the metrics before
            made.close()
        self._check_running()
        for hosted in list(self._hosted.values()):  # a client may drop a table meanwhile
            hosted.observe = made.observe
        return int(made.port)

    def _check_running(self) -> None:
        if self._closing.is_set():
            raise InvalidConfig("server that serves metrics", "a running one; make another with serve()", "closed")

    def parameters(self, name: str) -> ParameterStore:
        """Returns the parameters beside a served table. Clients reach the same parameters as `remote.parameters`.

        Args:
            name: Name of the table.

        Returns:
            The store of the parameters.

        Raises:
            NoSuchTable: No table is served under this name.
        """
        hosted = self._hosted.get(name) if isinstance(name, str) else None
        if hosted is None:
            raise NoSuchTable(str(name)[:200])
        return hosted.parameters

    def drain(self) -> None:
        """Takes no new stream from now on: a client that opens one gets Draining, and waits for the next server.

        Open streams go on. close() ends them after the calls under way. A refused step ends that of a streaming writer.
        """
        self._counts.drains = True
        self._life.drained.set()

    @property
    def is_draining(self) -> bool:
        """Whether drain() was called, here or by a client."""
        return self._life.drained.is_set()

    @property
    def is_drained(self) -> bool:
        """Whether drain() was called, here or by a client, and no call is under way."""
        return self._life.drained.is_set() and not self._counts.num_busy

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
        the saves before them stay whole. If Ctrl-C interrupts the call, call again: the second call waits for no call
        in progress. The end of the process does so by itself. In a forked child the call has no effect.

        Blocks: for at most about 2 x `close_timeout_s` + 1 s.
        """
        if self._closed or self._process != os.getpid():
            return
        with self._close_lock:
            if self._closed or self._is_in_close:  # in close: a signal's handler called within it
                return
            try:
                self._is_in_close = True
                self._close()
            finally:
                self._is_in_close = False

    def _close(self) -> None:
        """Does the steps of close(). Each step may be done twice: an interrupted call is repeated from the start."""
        wait_s, self._next_wait_s = self._next_wait_s, 0.0
        self._counts.drains = True
        self._closing.set()
        self._guard.close()
        self._keeper.close()
        if self._metrics is not None:
            self._metrics.close()
        self._pulses.close()
        every = list(self._hosted.values())  # a client may drop a table meanwhile
        for hosted in every:
            hosted.parameters.close()
        ends = time.monotonic() + wait_s
        for saves in (*(hosted.saves for hosted in every), *self._life.saves.values()):
            saves.close(ends)
        while self._counts.num_busy and time.monotonic() < ends:
            time.sleep(0.01)
        self._shut_down()
        for hosted in every:
            hosted.life = hosted.observe = None  # which refer to the tables
        _running.discard(self)
        self._closed = True

    def _shut_down(self) -> None:
        """Ends every stream, and the threads of Arrow's server."""
        flight_server = self._flight
        if flight_server is None:
            return
        stopper = threading.Thread(target=flight_server.shutdown, name="relive-server-close", daemon=True)
        stopper.start()
        # Flight waits for its streams, and clients may keep streams open for ever: cut the connections.
        ends = time.monotonic() + max(self._options.close_timeout_s, 1.0)
        while stopper.is_alive() and time.monotonic() < ends:
            cut(self._is_accepted)
            stopper.join(0.02)
        self._thread.join(1.0)
        # Drop the last reference here. Arrow's server joins its own threads when it is freed, and a forked child that
        # collected the server as garbage would join threads that the child does not have.
        self._flight = None
        del flight_server, stopper

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self.num_streams} streams"
        return f"Server({self._address}, tables {', '.join(self._hosted)}, {state})"


@at_end
def _close_all() -> None:
    for server in list(_running):
        # Close this process's own connections first: a writer that lost its server would still try to reach the server
        # when Python ends.
        close_connections(server.address.rpartition(":")[2])
        _close_to_the_end(server)


def _close_to_the_end(server: Server) -> None:
    """Closes a server although Ctrl-C comes: the process would else wait until every client ends its streams."""
    while True:
        try:
            server.close()
            return
        except KeyboardInterrupt:
            continue


def _cut_peers(peers: Collection[str]) -> None:
    """Ends the connections of this process to these peers, as gRPC writes them."""
    wanted = {peer_in(one) for one in peers} - {None}
    cut(lambda one: peer_of(one) in wanted)


def _note_fork() -> None:
    """Leaves the servers to the parent.

    pyarrow shuts each server down at the end of the interpreter, also one that is closed and not released yet, by a
    finalizer that only the registry of weakref shows.
    """
    keep_for_ever(*_running)
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        alive = finalizer.peek()
        if alive is not None and isinstance(alive[0], flight.FlightServerBase):
            finalizer.detach()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)
