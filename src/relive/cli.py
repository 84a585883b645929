"""The command line: `relive train AGENT`, `relive serve`, `relive ls`, `relive rm`.

Commands load what they need when they run: `relive ls` does not wait for torch.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated, Any

try:
    import typer
    from rich.console import Console
    from rich.table import Table as Grid
except ImportError as _problem:  # the library itself needs numpy only
    _missing: str | None = _problem.name
else:
    _missing = None

from relive.errors import ReliveError
from relive.open import list_tables, remove

_EXTRA = "pip install 'relive[train]'"


def main() -> None:
    """The entry point of the `relive` command."""
    if _missing is not None:
        sys.exit(f"relive: the command line needs {_missing}: {_EXTRA}")
    try:
        _application()()
    except (ReliveError, OSError) as problem:  # an OSError names its file
        sys.exit(f"relive: {problem}")


def _application() -> typer.Typer:
    options: dict[str, Any] = {"no_args_is_help": True, "add_completion": False, "pretty_exceptions_enable": False}
    app = typer.Typer(help="Experience replay that many processes share.", **options)
    from relive.train.command import add_commands

    training = typer.Typer(help="Train an agent through a shared table.", **options)
    app.add_typer(training, name="train")
    training.callback()(_training_group)
    add_commands(training)
    app.command("serve")(_serve)
    app.command("ls")(_list)
    app.command("rm")(_remove)
    return app


def _training_group() -> None:
    """Train an agent through a shared table: actors in processes of their own, one learner."""


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
    try:
        from relive.service import serve
        from relive.service.config import load_config, open_table
    except ImportError as problem:
        sys.exit(f"relive: {problem}")
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    loaded = load_config(config)
    console = Console()
    with contextlib.ExitStack() as stack:
        tables = {name: stack.enter_context(open_table(one)) for name, one in loaded.tables.items()}
        server = stack.enter_context(serve(tables, address or loaded.address))
        for name, table in tables.items():
            console.print(f"{server.address}/{name}: {len(table):,} of {table.capacity:,} steps", highlight=False)
        stopped.wait()


def _list() -> None:
    """List the shared tables of this machine."""
    grid = Grid()
    for name, justify in (
        ("name", "left"),
        ("steps", "right"),
        ("capacity", "right"),
        ("memory", "right"),
        ("attached", "right"),
        ("state", "left"),
    ):
        grid.add_column(name, justify=justify)  # type: ignore[arg-type]
    rows = list_tables()
    for row in rows:
        state = row.problem or ("in use" if row.alive else "left behind: relive rm removes it")
        grid.add_row(
            row.name, f"{row.num_steps:,}", f"{row.capacity:,}", _size(row.num_bytes), str(row.num_attached), state
        )
    console = Console()
    if rows:
        console.print(grid)
    else:
        console.print("no shared tables on this machine")


def _remove(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names that `relive ls` shows.")],
    force: Annotated[bool, typer.Option(help="Also where somebody is attached, or the file is no table.")] = False,
) -> None:
    """Remove shared tables from this machine, such as those left behind by a killed process."""
    for name in names:
        remove(name, force=force)
        Console().print(f"removed {name}", highlight=False)


def _size(num_bytes: int) -> str:
    size = float(num_bytes)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


if __name__ == "__main__":
    main()
