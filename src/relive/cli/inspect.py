"""`relive inspect NAME | ADDRESS | FOLDER`: a table while it is in use."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from relive.cli.commands import Commands, UsageError, add_command, at_least, say
from relive.cli.doors import add_access, connect_as, refuse_access
from relive.cli.inspecting.terminal import Screen
from relive.cli.inspecting.view import Looker
from relive.config.storage import File
from relive.errors import NoSuchTable
from relive.errors.base import bytes_text
from relive.table.open import attach, list_tables, saved

if TYPE_CHECKING:
    from relive.service.client.remote_table import RemoteTable
    from relive.table.table import Table

__all__ = ["add"]

_LONGEST_S = 86_400.0  # between two views: sleep() refuses an endless time


def add(commands: Commands) -> None:
    """Declares `inspect`."""
    parser = add_command(commands, "inspect", _inspect)
    parser.add_argument(
        "target",
        metavar="NAME|ADDRESS|FOLDER",
        help="A shared table as `relive ls` names it, grpc://HOST:PORT/NAME, or the folder of a table or a save.",
    )
    parser.add_argument(
        "--every",
        metavar="SECONDS",
        type=at_least(0.1, float),
        default=1.0,
        help="Time between two views, a day at most (default: 1).",
    )
    parser.add_argument("--once", action="store_true", help="Print one view and end. A pipe gets one view, too.")
    parser.add_argument(
        "--web",
        metavar="PORT",
        type=_port,
        help="Show the table in a browser, at http://127.0.0.1:PORT. Port 0 takes a free port.",
    )
    add_access(parser.add_argument)


def _port(text: str) -> int:
    port = int(text) if text.isascii() and text.isdigit() else -1
    if not 0 <= port < 65_536:
        raise argparse.ArgumentTypeError(f"expected a port, 0 to 65535, got {text!r}")
    return port


def _inspect(target: str, every: float, once: bool, web: int | None, **access: str | None) -> None:
    """Show a table while it is in use: fill, rates, reuse, ages, priorities, and which side waits for which.

    The command reads the table and changes nothing. Its draws count for no limiter.
    """
    if once and web is not None:
        raise UsageError("--once prints a view; --web shows views in a browser: give one of them")
    refuse_access(target, access)
    if _is_folder(target):
        if not Path(target).is_dir():
            raise NoSuchTable(target)
        if not any(row.alive for row in list_tables(target)):
            _show_save(target)
            return
    with _opened(target, access) as table:
        looker = Looker(table, target)
        if web is not None:
            _serve(looker, web)
        else:
            _show(looker, every, once or not sys.stdout.isatty())


def _is_folder(target: str) -> bool:
    return "://" not in target and (os.sep in target or Path(target).is_dir())


@contextlib.contextmanager
def _opened(target: str, access: Mapping[str, str | None]) -> Iterator[Table | RemoteTable]:
    """A handle that changes nothing."""
    if "://" in target:
        with contextlib.closing(connect_as("inspect", target, access)) as remote:
            yield remote
        return
    with contextlib.closing(attach(File(target) if _is_folder(target) else target, read_only=True)) as table:
        yield table


def _show_save(folder: str) -> None:
    """A save has no rates: its facts are printed once."""
    one = saved(folder)
    say(f"{one.path}: save {one.number}, format {one.format}")
    say(f"  {one.num_steps:,} of {one.config.capacity:,} steps, {bytes_text(one.num_bytes)}")
    for name, index in one.config.index.items():
        say(f"  index {name}: {index.items}; {index.sampler}, {index.limiter}")
    if one.beside:
        say(f"  saved beside it: {', '.join(one.beside)}")
    say(f"  relive.load({folder!r}) makes a table from it")


def _show(looker: Looker, every: float, once: bool) -> None:
    screen = Screen()
    if once:
        looker.look()
        time.sleep(min(every, 0.5))  # rates need two looks
        say(screen.text(looker.look()).rstrip("\n"))
        return
    while True:
        text = screen.text(looker.look())
        say("\x1b[H\x1b[J" + text + "\nCtrl-C ends this view; the table goes on.")
        time.sleep(min(every, _LONGEST_S))


def _serve(looker: Looker, port: int) -> None:
    from relive.cli.inspecting.web import make_server  # http.server is slow to import

    with make_server(looker, port) as server:
        say(f"http://127.0.0.1:{server.server_port} shows the table; Ctrl-C ends the server, the table goes on")
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                thread.join(0.5)
        finally:
            server.shutdown()
