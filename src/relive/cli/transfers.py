"""`relive export` and `relive import`: recorded experience between tables and files of other programs."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from relive.cli.commands import Commands, add_command, say
from relive.cli.doors import add_access, connect_as, refuse_access
from relive.errors import InvalidConfig
from relive.saving.current import CURRENT
from relive.table.open import attach, load

__all__ = ["add"]

_EVERY_S = 2.0  # between lines, where no bar is drawn
_FORMATS = ("npz", "hdf5", "parquet", "lerobot", "huggingface")


def add(commands: Commands) -> None:
    """Declares `export` and `import`."""
    parser = add_command(commands, "export", _export)
    parser.add_argument(
        "table",
        metavar="TABLE",
        help="Name of a shared table, grpc://HOST:PORT/NAME, or the folder (with a / in its name) of a saved table.",
    )
    parser.add_argument("path", metavar="PATH", help="The new file or folder.")
    _add_format(parser)
    add_access(parser.add_argument)
    parser = add_command(commands, "import", _import)
    parser.add_argument("path", metavar="PATH", help="The file or folder to read.")
    parser.add_argument(
        "table",
        metavar="TABLE",
        help="Name of a shared table or grpc://HOST:PORT/NAME, which gets the episodes; or a folder (with a / in its"
        " name) for a new table, which relive.load(FOLDER) opens.",
    )
    _add_format(parser)
    add_access(parser.add_argument)


def _add_format(parser: object) -> None:
    parser.add_argument(  # type: ignore[attr-defined]
        "--format",
        choices=_FORMATS,
        help="Format; by default as PATH ends: .npz, .hdf5 or .h5 (D4RL's layout), .parquet.",
    )


def _export(table: str, path: str, format: str | None, **access: str | None) -> None:
    """Export the whole episodes of a table to a file: npz, HDF5, Parquet, LeRobot's or Hugging Face's layout.

    Columns, ends, discounts and policy versions come back exactly with `relive import`.
    """
    from relive.adapters.transfer import export_table

    refuse_access(table, access)
    with _opened("export", table, access, read_only=True) as handle, _bar("exported", len(handle)) as progress:
        moved = export_table(handle, path, format, progress=progress)
    say(f"{path}: {moved.num_episodes:,} episodes, {moved.num_steps:,} steps")


def _import(path: str, table: str, format: str | None, **access: str | None) -> None:
    """Import recorded episodes into a table, or make a new saved table of them.

    Reads what `relive export` wrote, and datasets of D4RL and LeRobot.
    """
    from relive.adapters.transfer import import_episodes, import_table, read_recorded

    refuse_access(table, access)
    num_steps = read_recorded(path, format).num_steps
    if os.sep in table and "://" not in table:
        if os.path.lexists(os.path.join(table, CURRENT)):
            raise InvalidConfig("folder of a new saved table", "one that has no save", table)
        with _bar("imported", num_steps) as progress:
            made = import_table(path, format, progress=progress)
        with made:
            made.save(table)
            say(f"{table}: {len(made):,} steps; open it with relive.load({table!r})")
        return
    with _opened("import", table, access) as handle, _bar("imported", num_steps) as progress:
        moved = import_episodes(handle, path, format, progress=progress)
        say(f"{table}: {moved.num_episodes:,} episodes, {moved.num_steps:,} steps written")


def _opened(command: str, name: str, access: Mapping[str, str | None], read_only: bool = False) -> Any:
    if "://" in name:
        return connect_as(command, name, access)
    return load(name) if os.sep in name else attach(name, read_only=read_only)


@contextlib.contextmanager
def _bar(word: str, num_steps: int) -> Iterator[Callable[[int, int], None]]:
    """A progress bar of rich on a terminal, else a line every two seconds."""
    try:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:
        pass
    else:
        if sys.stderr.isatty():
            from rich.console import Console

            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
            with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bars:
                task = bars.add_task(word, total=max(1, num_steps))
                yield lambda episodes, steps: bars.update(
                    task, completed=steps, description=f"{word} {episodes:,} episodes, {steps:,} steps"
                )
            return
    last = [time.monotonic()]

    def tell(episodes: int, steps: int) -> None:
        if time.monotonic() - last[0] >= _EVERY_S:
            last[0] = time.monotonic()
            sys.stderr.write(f"{word} {episodes:,} episodes, {steps:,} of {num_steps:,} steps\n")

    yield tell
