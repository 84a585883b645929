"""Server and Client: the tables of one process, found by a port that is only a number."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, final

from relive.adapters.errors import NotOffered
from relive.adapters.reverb.errors import TableNotFound, WrongData
from relive.adapters.reverb.samples import ReplaySample
from relive.adapters.reverb.table import Drawn, Table, TableInfo
from relive.adapters.reverb.trajectory_writer import TrajectoryWriter, Writer
from relive.adapters.trees import leaves, mapped, rebuilt
from relive.config.casting import unmasked

__all__ = ["Client", "Server", "server_at"]

_MOST_AT_ONCE = 64
_servers: dict[int, Server] = {}
_ports = itertools.count(1)


@final
class Server:
    """Reverb's Server, for clients of the same process.

    Args:
        tables: the tables.
        port: a number that names the server; None: a free one. No port of the machine is used.
        checkpointer: none; save the tables' `table` with relive's save.

    Raises:
        WrongData: there are no tables, two have the same name, or the port is taken.
    """

    def __init__(self, tables: Sequence[Table], port: int | None = None, checkpointer: Any = None) -> None:
        if checkpointer is not None:
            raise NotOffered("Server", "checkpointers", "save table.table of each Table with its save()")
        named = {table.name: table for table in tables}
        if not tables or len(named) != len(tables):
            raise WrongData(
                "tables of a Server", "one table at least, with different names", [one.name for one in tables]
            )
        number = next(one for one in _ports if one not in _servers) if port is None else int(port)
        if _servers.setdefault(number, self) is not self:
            raise WrongData("port of a Server", "a number that no server of this process has", number)
        self.port = number
        self._tables = named
        self._stopped = threading.Event()

    def table(self, name: str) -> Table:
        """The table of this name. Raises TableNotFound."""
        found = self._tables.get(name)
        if found is None:
            raise TableNotFound(name, list(self._tables))
        return found

    @property
    def tables(self) -> dict[str, Table]:
        """The tables by name."""
        return dict(self._tables)

    def localhost_client(self) -> Client:
        """A client of this server."""
        return Client(f"localhost:{self.port}")

    def stop(self) -> None:
        """Closes the tables. Calls that wait end with an error."""
        _servers.pop(self.port, None)
        for table in self._tables.values():
            table.close()
        self._stopped.set()

    def wait(self) -> None:
        """Returns when the server was stopped."""
        self._stopped.wait()

    def __repr__(self) -> str:
        return f"Server(tables={list(self._tables)}, port={self.port})"


def server_at(address: str) -> Server:
    """The server of an address of this process. Raises NotOffered for others."""
    host, _, port = address.rpartition(":")
    number = int(port) if port.isdigit() else -1
    if host not in ("localhost", "127.0.0.1") or number not in _servers:
        way = "attach to a shared table (relive.attach), or to a served one (relive.connect)"
        raise NotOffered("Client", f"a server at {address!r}: it serves clients of its own process", way)
    return _servers[number]


@final
class Client:
    """Reverb's Client.

    Args:
        server_address: "localhost:PORT" of a server of this process.

    Raises:
        NotOffered: no server of this process has this address.
    """

    def __init__(self, server_address: str) -> None:
        self._server = server_at(server_address)
        self._address = server_address

    @property
    def server_address(self) -> str:
        """The address of the server."""
        return self._address

    def __reduce__(self) -> tuple[Any, ...]:
        return Client, (self._address,)

    def __repr__(self) -> str:
        return f"Client, server_address={self._address}"

    def insert(self, data: Any, priorities: Mapping[str, float]) -> None:
        """Inserts one item of one step into each of these tables.

        Blocks: until the rate limiters allow it.

        Raises:
            WrongData: priorities are empty, or the data do not fit a signature.
            DtypeMismatch: a masked array hides a value.
        """
        if not priorities:
            raise WrongData("priorities of an insert", "{table: priority} for one table at least", priorities)
        arrays = mapped(lambda leaf: unmasked("data of an insert", leaf), data)
        found = {name: self._server.table(name) for name in priorities}
        for table in found.values():
            table.check(arrays)
        for name, priority in priorities.items():
            found[name].insert(leaves(arrays), priority, None)

    def sample(
        self,
        table: str,
        num_samples: int = 1,
        *,
        emit_timesteps: bool = True,
        unpack_as_table_signature: bool = False,
    ) -> Iterator[Any]:
        """Draws items, one after another.

        Args:
            table: the name of the table.
            num_samples: the number of items.
            emit_timesteps: whether an item is a list of its steps, each a ReplaySample.
            unpack_as_table_signature: whether data has the nesting of the table's signature; else a list of leaves.

        Yields:
            ReplaySample(info, data), or lists of them.

        Blocks: until the rate limiter allows each.
        """
        source = self._server.table(table)
        if unpack_as_table_signature and source.signature is None:
            raise WrongData("unpack_as_table_signature", f"a signature of table {table!r}", None)
        return self._samples(source, num_samples, emit_timesteps, unpack_as_table_signature)

    def _samples(self, source: Table, number: int, in_steps: bool, unpack: bool) -> Iterator[Any]:
        left = number
        while left > 0:
            drawn = source.sample(min(left, _MOST_AT_ONCE), None)
            left -= len(drawn)
            for one in drawn:
                yield _steps(one, source, unpack) if in_steps else _sample(one, source, unpack)

    def mutate_priorities(
        self, table: str, updates: Mapping[int, float] | None = None, deletes: Iterable[int] | None = None
    ) -> None:
        """Sets priorities of items, and deletes items. Keys of items that are gone are left out.

        Raises:
            TableNotFound: the server has no such table.
            InvalidPriority: a priority is negative, NaN or infinite.
        """
        self._server.table(table).mutate(updates or {}, deletes or ())

    def reset(self, table: str) -> None:
        """Removes all items of a table."""
        self._server.table(table).reset()

    def server_info(self, timeout: int | None = None) -> dict[str, TableInfo]:
        """The facts of every table. `timeout` has no effect: the call does not wait."""
        return {name: table.info for name, table in self._server.tables.items()}

    def checkpoint(self) -> str:
        """Refused: relive's tables have saves of their own."""
        raise NotOffered("Client", "checkpoints", "save table.table of each Table with its save()")

    def writer(self, max_sequence_length: int, delta_encoded: bool = False, chunk_length: int | None = None) -> Writer:
        """A writer of items of whole steps. delta_encoded and chunk_length are parts of Reverb's storage: no effect."""
        return Writer(self._server, max_sequence_length)

    def trajectory_writer(
        self, num_keep_alive_refs: int, *, validate_items: bool = True, get_signature_timeout_ms: int | None = None
    ) -> TrajectoryWriter:
        """A writer of trajectories.

        Args:
            num_keep_alive_refs: steps that stay available for items, >= 1.
            validate_items: whether items are compared with signatures when they are made.
            get_signature_timeout_ms: no effect: signatures are in this process.
        """
        return TrajectoryWriter(self._server, num_keep_alive_refs, validate_items)


def _nested(one: Drawn, source: Table, unpack: bool) -> Any:
    return rebuilt(source.signature, iter(one.leaves)) if unpack else one.leaves


def _sample(one: Drawn, source: Table, unpack: bool) -> ReplaySample:
    return ReplaySample(one.info, _nested(one, source, unpack))


def _steps(one: Drawn, source: Table, unpack: bool) -> list[ReplaySample]:
    lengths = {len(leaf) if leaf.ndim else 1 for leaf in one.leaves}
    if len(lengths) > 1:
        raise WrongData("emit_timesteps", "items whose leaves have the same length; or emit_timesteps=False", lengths)
    rows = [[leaf[step] if leaf.ndim else leaf for leaf in one.leaves] for step in range(lengths.pop())]
    return [ReplaySample(one.info, _nested(Drawn(one.info, row), source, unpack)) for row in rows]
