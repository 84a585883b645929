"""The command line: `relive ls`, `rm`, `serve`, `fleet`, `train AGENT`, `act`, `tune`, `evaluate`, `play`, `profile`.

ls and rm need nothing but the library. The others read their options with typer, which their extras bring, and load
what they need when they run: `relive ls` does not wait for torch.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

try:
    import typer
    from rich.console import Console
except ImportError as _problem:  # the library itself needs numpy only
    _missing: str | None = _problem.name
else:
    _missing = None

from relive import __version__
from relive.config.capacity import bytes_per_step
from relive.errors import InUse, MissingPackage, NoSuchTable, ReliveError
from relive.errors.extras import install_command
from relive.table.open import list_tables, remove
from relive.table.table import Table

# What typer reads: the command, its extra, what it does.
_WITH_EXTRAS = {
    "serve": ("service", "serve tables to other machines"),
    "fleet": ("ray", "start, show and stop a table over the nodes of a Ray cluster"),
    "train": ("train", "train an agent through a shared table"),
    "act": ("train", "act for a run of another machine (extra service, too)"),
    "tune": ("train", "choose the processes of a run by measuring"),
    "evaluate": ("train", "play the policy of a run, for its returns"),
    "play": ("train", "show the policy of a run, in a window or a video"),
    "profile": ("train", "what a run spent its time on, and whether storage held it up"),
}


def main() -> None:
    """The entry point of the `relive` command."""
    arguments = sys.argv[1:]
    try:
        if arguments and arguments[0] in _WITH_EXTRAS:
            if _missing is not None:
                raise MissingPackage(f"relive {arguments[0]}", _missing, install_command(_WITH_EXTRAS[arguments[0]][0]))
            _application()()
        else:
            sys.exit(_plain_command(arguments))
    except (ReliveError, OSError) as problem:  # an OSError names its file
        sys.exit(f"relive: {problem}")


def _plain_command(arguments: list[str]) -> int:
    """Runs a command that needs no extra, or says which commands there are; returns the exit status."""
    parser = argparse.ArgumentParser(prog="relive", description="Experience replay that many processes share.")
    parser.add_argument("--version", action="version", version=f"relive {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", title="commands")
    listing = commands.add_parser("ls", help="list the shared tables of this machine")
    listing.set_defaults(run=lambda given: _list())
    removal = commands.add_parser("rm", help="remove shared tables, such as those left behind by a killed process")
    removal.add_argument("names", nargs="*", metavar="NAME", help="a name that `relive ls` shows")
    removal.add_argument("--all-unused", action="store_true", help="all tables that nobody is attached to")
    removal.add_argument(
        "--force", action="store_true", help="also where somebody is attached, or the file is no table"
    )
    removal.set_defaults(run=lambda given: _remove(removal, given))
    for name, (extra, what) in _WITH_EXTRAS.items():
        commands.add_parser(name, add_help=False, help=f"{what} (extra {extra})")
    given = parser.parse_args(arguments)
    if not hasattr(given, "run"):
        parser.print_help()
        return 0 if arguments else 2
    status: int = given.run(given)
    return status


def _application() -> typer.Typer:
    options: dict[str, Any] = {"no_args_is_help": True, "add_completion": False, "pretty_exceptions_enable": False}
    app = typer.Typer(help="Experience replay that many processes share.", **options)
    from relive.train.command import add_acting, add_commands, add_watching

    training = typer.Typer(help="Train an agent through a shared table.", **options)
    app.add_typer(training, name="train")
    training.callback()(_training_group)
    add_commands(training)
    add_acting(app)
    add_watching(app)
    app.command("serve")(_serve)
    if sys.argv[1:2] == ["fleet"]:  # the others do not wait for Ray, which they need not have
        from relive.fleet.command import add_fleet

        add_fleet(app, **options)
    return app


def _training_group() -> None:
    """Train an agent through a shared table: actors in processes of their own, one learner."""


# The system may hand a signal to any thread, and then nothing wakes the one that waits: Python's handlers run in it.
_HEARS_S = 0.5


def _serve(
    config: Annotated[
        Path, typer.Argument(metavar="TABLE.TOML", help="The tables to serve; docs/service.md shows one.")
    ],
    address: Annotated[
        str | None, typer.Option(help="grpc://HOST:PORT instead of the file's; port 0: a free one.")
    ] = None,
) -> None:
    """Serve tables to other machines until Ctrl-C or SIGTERM.

    Tables that lie in shared memory already, as after a kill, are served on with what they hold.
    """
    from relive.service import serve
    from relive.service.config import load_config, open_table

    signals: list[int] = []  # no Event: a handler may be called while the waiting thread has its lock
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: signals.append(number))
    loaded = load_config(config)
    console = Console()
    with contextlib.ExitStack() as stack:
        tables = {name: stack.enter_context(open_table(one)) for name, one in loaded.tables.items()}
        server = stack.enter_context(serve(tables, address or loaded.address))
        for name, table in tables.items():
            console.print(f"{server.address}/{name}: {len(table):,} of {table.capacity:,} steps", highlight=False)
            for line in _room_of(table):
                console.print(line, highlight=False)
        while not signals:
            time.sleep(_HEARS_S)


def _room_of(table: Table) -> Iterator[str]:
    """What it costs that the remover of the first index, and not age, chooses what stays."""
    name, index = next(iter(table.config.index.items()))
    steps = index.steps_to_hold
    if steps is None:
        return
    memory = _size(steps * bytes_per_step(table.spec, len(table.config.index)))
    apart = f"which lie apart in up to {steps:,} steps ({memory})"
    crowded = "; of fewer the pages with the fewest items go (crowded_out in stats)" if steps > table.capacity else ""
    yield f"  {name}: {index.remover} keeps {index.max_items:,} items, {apart}{crowded}"


def _list() -> int:
    """Lists the shared tables of this machine."""
    lines: list[tuple[str, ...]] = [("name", "steps", "capacity", "memory", "attached", "state")]
    for row in list_tables():
        state = row.problem or ("in use" if row.alive else "left behind: relive rm removes it")
        numbers = f"{row.num_steps:,}", f"{row.capacity:,}", _size(row.num_bytes), str(row.num_attached)
        lines.append((row.name, *numbers, state))
    if len(lines) == 1:
        _say("no shared tables on this machine")
        return 0
    widths = [max(len(line[column]) for line in lines) for column in range(5)]
    for line in lines:
        aligned = (cell.rjust(width) for cell, width in zip(line[1:5], widths[1:], strict=True))
        _say("  ".join((line[0].ljust(widths[0]), *aligned, line[5])))
    return 0


def _remove(parser: argparse.ArgumentParser, given: argparse.Namespace) -> int:
    """Removes shared tables; goes on where one cannot be removed, and says so in the end."""
    if bool(given.names) == given.all_unused:
        parser.error("give the names of tables, or --all-unused")
    if given.all_unused and given.force:
        parser.error("--force is for tables that are named: --all-unused removes none that is in use")
    names = given.names
    if given.all_unused:
        names = [row.name for row in list_tables() if not row.alive and not row.problem]
        if not names:
            _say("no unused tables on this machine")
    status = 0
    for name in names:
        try:
            remove(name, force=given.force)
        except (ReliveError, OSError) as problem:
            if given.all_unused and isinstance(problem, (InUse, NoSuchTable)):
                continue  # somebody attached to it meanwhile, or removed it
            sys.stderr.write(f"relive: {problem}\n")
            status = 1
        else:
            _say(f"removed {name}")
    return status


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


def _size(num_bytes: int) -> str:
    size = float(num_bytes)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


if __name__ == "__main__":
    main()
