"""`relive ls`, `rm` and `serve`: the shared tables of this machine, and tables for other machines."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from relive.cli.commands import Commands, UsageError, add_command, at_least, extra_named, named_path, port, say
from relive.cli.doors import access_of, add_access
from relive.config.capacity import bytes_per_step
from relive.config.storage import File, SharedMemory
from relive.config.table_config import TableConfig
from relive.errors import InUse, NoSuchTable, ReliveError
from relive.table.open import list_tables, remove
from relive.table.table import Table

if TYPE_CHECKING:
    from relive.service import Door
    from relive.service.config import ServiceConfig

__all__ = ["add"]

# The system may hand a signal to any thread, and this does not wake the thread that waits: Python runs the handlers in
# the main thread, when it next runs.
_HEARS_S = 0.5


def add(commands: Commands) -> None:
    """Declares `ls`, `rm`, `serve` and `health`."""
    parser = add_command(commands, "ls", _list)
    parser.add_argument(
        "folder", nargs="?", metavar="DIR", help="Folder of a table with storage File, or one with such folders in it."
    )
    parser = add_command(commands, "rm", _remove)
    parser.add_argument("names", nargs="*", metavar="NAME", help="Name or path of a table, as `relive ls` shows it.")
    parser.add_argument("--all-unused", action="store_true", help="Remove all tables without an attached process.")
    parser.add_argument(
        "--force", action="store_true", help="Also remove a table with attached processes, or a file that is no table."
    )
    parser = add_command(commands, "serve", _serve, extras=("service",))
    parser.add_argument(
        "config", type=named_path, metavar="TABLE.TOML", help="File of the tables; docs/service.md shows one."
    )
    parser.add_argument(
        "--address",
        metavar="ADDRESS",
        help="grpc://HOST:PORT, instead of the address in the file. Port 0 takes a free port.",
    )
    parser.add_argument("--tokens", metavar="FILE", help="File of the tokens (`relive token new`).")
    parser.add_argument("--tls-cert", metavar="FILE", help="Certificate for an address grpc+tls://HOST:PORT.")
    parser.add_argument("--tls-key", metavar="FILE", help="Key of the certificate.")
    parser.add_argument("--client-ca", metavar="FILE", help="Authorities of the clients' certificates.")
    parser.add_argument("--metrics-port", type=port, metavar="PORT", help="Serve metrics for Prometheus on this port.")
    parser.add_argument(
        "--metrics-host", default="127.0.0.1", metavar="HOST", help="Host of that port (default: %(default)s)."
    )
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="Listen beyond loopback although every client that reaches the port may do everything.",
    )

    parser = add_command(commands, "health", _health, extras=("service",))
    parser.add_argument("address", metavar="ADDRESS", help="grpc://HOST:PORT of a server.")
    parser.add_argument("--timeout-s", type=at_least(0, float), default=5.0, metavar="SECONDS", help="Default: 5.")
    add_access(parser.add_argument)


def _list(folder: str | None) -> None:
    """List the shared tables of this machine, or the tables that live in a folder."""
    lines: list[tuple[str, ...]] = [("name", "steps", "capacity", "memory", "attached", "state")]
    for row in list_tables(folder):
        unused = "not in use" if folder else "not in use: relive rm removes it"
        state = row.problem or ("in use" if row.alive else unused)
        numbers = f"{row.num_steps:,}", f"{row.capacity:,}", _size(row.num_bytes), str(row.num_attached)
        lines.append((row.name, *numbers, state))
    if len(lines) == 1:
        say(f"no table lives in {folder}" if folder else "no shared tables on this machine")
        return
    widths = [max(len(line[column]) for line in lines) for column in range(5)]
    for line in lines:
        aligned = (cell.rjust(width) for cell, width in zip(line[1:5], widths[1:], strict=True))
        say("  ".join((line[0].ljust(widths[0]), *aligned, line[5])))


def _remove(names: list[str], all_unused: bool, force: bool) -> int:
    """Remove shared tables, such as those that a killed process left, and tables that live in folders.

    If one table cannot be removed, the command says so, removes the others and ends with status 1.
    """
    if bool(names) == all_unused:
        raise UsageError("give the names of tables, or --all-unused")
    if all_unused and force:
        raise UsageError("--force is for tables that are named: --all-unused removes none that is in use")
    if all_unused:
        names = [row.name for row in list_tables() if not row.alive and not row.problem]
        if not names:
            say("no unused tables on this machine")
    status = 0
    for name in names:
        try:
            remove(File(name) if os.sep in name else name, force=force)
        except (ReliveError, OSError) as problem:
            if all_unused and isinstance(problem, (InUse, NoSuchTable)):
                continue  # another process attached to the table after the list was made, or removed it
            sys.stderr.write(f"relive: {problem}\n")
            status = 1
        else:
            say(f"removed {name}")
    return status


def _serve(
    config: Path,
    address: str | None,
    insecure: bool,
    metrics_port: int | None,
    metrics_host: str,
    **files: str | None,
) -> None:
    """Serve tables to other machines until Ctrl-C or SIGTERM.

    A table that is already in shared memory, as after a stop or a kill, is served with its content. It stays there
    when the server ends, unless the file has `persist = false`; `relive rm` removes it. With `saves = "FOLDER"` in
    the file, clients may save tables, and a table that is not in shared memory starts from its newest save.
    """
    with extra_named("serve", "service"):
        from relive.service.config import load_config

    loaded = load_config(config)
    before = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a load takes as long as its save is large
        signal.signal(signal.SIGTERM, _end)
        _serve_tables(loaded, address, insecure, metrics_port, metrics_host, **files)
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _end(number: int, _: object) -> NoReturn:
    """Handles a signal that ends the command at once, with the status that a shell gives to its end."""
    raise SystemExit(128 + number)


def _serve_tables(
    loaded: ServiceConfig,
    address: str | None,
    insecure: bool,
    metrics_port: int | None,
    metrics_host: str,
    **files: str | None,
) -> None:
    """Serves until SIGINT or SIGTERM, or until the server is drained. The caller restores the handlers."""
    from relive.service import ServerOptions, serve_behind
    from relive.service.config import open_table

    where, door = address or loaded.address, _door(loaded.door, insecure, **files)
    door.check(where)
    options = ServerOptions(saves=loaded.saves)
    signals: list[int] = []  # no Event: a handler may be called while the waiting thread has its lock
    tables: dict[str, Table] = {}
    with contextlib.ExitStack() as stack:
        saves = {name: loaded.save_of(name) for name in loaded.tables}
        with _starting(loaded.tables, tables):
            for name, one in loaded.tables.items():
                tables[name] = stack.enter_context(open_table(one, saves[name]))
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda number, _: signals.append(number))
            server = stack.enter_context(serve_behind(tables, where, door, options))
            metrics = None if metrics_port is None else server.serve_metrics(metrics_port, metrics_host)
        for name, table in tables.items():
            say(f"{server.address}/{name}: {len(table):,} of {table.capacity:,} steps{_from_save(table, saves[name])}")
            for line in _cost_of_the_remover(table):
                say(line)
        if metrics is not None:
            say(f"metrics: http://{metrics_host}:{metrics}/metrics")
        if door.insecure and not door.knows_clients:
            say("insecure: every client that reaches the port may change these tables")
        ends = math.inf  # clients whose streams are open may call for ever
        while not signals and not server.is_drained and time.monotonic() < ends:
            if server.is_draining and ends == math.inf:
                ends = time.monotonic() + options.close_timeout_s
            for name in [one for one in tables if not server.is_in_use(one)]:
                with contextlib.suppress(ReliveError):  # the others are served on; the end of the command tells it
                    tables.pop(name).close()  # a client has dropped it: its memory goes back to the system
            time.sleep(_HEARS_S)


@contextlib.contextmanager
def _starting(configs: Mapping[str, TableConfig], tables: Mapping[str, Table]) -> Iterator[None]:
    """Gives tables in memory the `persist` of the file after the block, which opens them and begins to serve.

    If the block fails, as at a port that is taken, the memory of the tables that it made ends with their last close,
    because no client has used them. Tables that were there before stay as they are.
    """
    there = {row.path for row in list_tables()}
    try:
        yield
    except BaseException:
        for table in tables.values():
            is_new = isinstance(table.config.storage, SharedMemory) and table.path not in there
            if is_new and table.core.is_last_writer():  # else another process has made it meanwhile
                table.core.set_keeps_file(False)
        raise
    for name, table in tables.items():
        storage = configs[name].storage
        if isinstance(storage, SharedMemory):
            table.core.set_keeps_file(storage.keep)


def _door(
    door: Door, insecure: bool, tokens: str | None, tls_cert: str | None, tls_key: str | None, client_ca: str | None
) -> Door:
    """The door of the file, with the parts that the options name instead."""
    from relive.service import Door, ServerTLS

    tls = door.tls
    if tls_cert is not None and tls_key is not None:
        tls = ServerTLS(tls_cert, tls_key, client_ca)
    elif (tls_cert, tls_key, client_ca) != (None, None, None):
        raise UsageError("give --tls-cert and --tls-key together, and --client-ca with both")
    return Door(tls, tokens or door.tokens, insecure or door.insecure, door.offers)


def _health(address: str, timeout_s: float, token_file: str | None, **tls: str | None) -> int:
    """Say whether a server serves, drains, or has a table that cannot be locked.

    The status is 0 if the server serves. The command needs no token.
    """
    with extra_named("health", "service"):
        from relive.service import health
    told = health(address, tls=access_of(token_file, **tls).tls, timeout_s=timeout_s)
    say(str(told))
    return 0 if told.is_well else 1


def _from_save(table: Table, save: str | None) -> str:
    """Which save the table came from, if it came from one."""
    if table.loaded is None:
        return ""
    return f", loaded from {save}{'' if table.loaded.keeps_keys else ' under new keys'}"


def _cost_of_the_remover(table: Table) -> Iterator[str]:
    """A line about memory, if the remover of the first index chooses the items that stay, and not their age."""
    name, index = next(iter(table.config.index.items()))
    steps = index.steps_to_hold
    if steps is None:
        return
    memory = _size(steps * bytes_per_step(table.spec, len(table.config.index)))
    apart = f"which can lie in up to {steps:,} steps ({memory})"
    evicts = ". This capacity is smaller: pages with the fewest items are evicted (crowded_out in stats)"
    crowded = evicts if steps > table.capacity else ""
    yield f"  {name}: {index.remover} keeps {index.max_items:,} items, {apart}{crowded}"


def _size(num_bytes: int) -> str:
    size = float(num_bytes)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
