"""Exports the whole episodes of a table to a file or folder, and makes tables from such files.

table.episodes() is the one way out and a writer the one way in. A format (formats/) is a pair of functions over
episodes, so a table that is exported and imported has the same columns, values, ends, discounts and policy versions.
Priorities, keys and lanes are the table's own and stay behind: table.save() keeps them.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, final

from relive.adapters.errors import DatasetUnreadable
from relive.adapters.formats.recorded import Format, Recorded
from relive.checks.names import names_arguments
from relive.core.protocol import ReplayTable
from relive.errors import InvalidConfig
from relive.over.episodes import write_episodes
from relive.reading.episodes import Episode
from relive.table.table import Table

__all__ = ["FORMATS", "Moved", "export_table", "import_episodes", "import_table", "new_table", "read_recorded"]

Progress = Callable[[int, int], None]


@final
@dataclass(frozen=True)
class _Kind:
    """One format: the module with its functions, and how its files are known."""

    module: str
    suffixes: tuple[str, ...] = ()
    inside: str = ""  # of a folder: a file that it has


FORMATS = {
    "npz": _Kind("npz", (".npz",)),
    "hdf5": _Kind("hdf5", (".hdf5", ".h5")),
    "parquet": _Kind("parquet", (".parquet",)),
    "lerobot": _Kind("lerobot", inside="meta/info.json"),
    "huggingface": _Kind("huggingface", inside="data/train-00000.parquet"),
}


@final
@dataclass(frozen=True)
class Moved:
    """The episodes that were exported or imported, and their steps."""

    num_episodes: int
    num_steps: int


@names_arguments
def export_table(
    table: ReplayTable,
    path: str | os.PathLike[str],
    format: str | None = None,
    *,
    progress: Progress | None = None,
) -> Moved:
    """Exports the whole episodes of a table, as table.episodes() yields them. Open episodes are not exported.

    Args:
        table: the table, of any kind.
        path: the new file, or the new folder. It appears when all of it is written.
        format: 'npz', 'hdf5' (D4RL's layout), 'parquet', 'lerobot' or 'huggingface'; None: as the path ends.
        progress: called after each episode with the episodes and the steps so far.

    Returns:
        The exported episodes and steps.

    Raises:
        InvalidConfig: the path exists, or the format is unknown or does not take the table's columns.
        MissingPackage: the format needs a package that is not installed.
        OSError: the file system refused.
    """
    name = os.fspath(path)
    if os.path.lexists(name):
        raise InvalidConfig("path of an export", "a new file or folder", name)
    module = _module(_named(name, format))
    count = _Count(progress)
    part = f"{name}.partial-{os.getpid()}"
    try:
        module.write(part, table.spec, count.passed(table.episodes()))
        os.rename(part, name)
    except BaseException:
        with contextlib.suppress(OSError):
            shutil.rmtree(part) if os.path.isdir(part) else os.unlink(part)
        raise
    return count.moved


@names_arguments
def import_table(
    path: str | os.PathLike[str],
    format: str | None = None,
    *,
    capacity: int | str | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Table:
    """Makes a table from a file or folder that export_table wrote, or another program in the same format.

    Args:
        path: the file or folder.
        format: as for export_table; None: by the end of the path, or by the files of the folder.
        capacity: steps of the table; None: as many as are imported.
        progress: called after each episode with the episodes and the steps so far.
        **options: index=, storage=, max_lanes= and the other arguments of relive.Table.

    Returns:
        The table.

    Raises:
        DatasetUnreadable: the file has another form.
        InvalidConfig: the format is unknown.
        MissingPackage: the format needs a package that is not installed.
        DeadlineExceeded: a limiter of the index let no more steps in. Import without it, then table.set_limiter().
        ReliveError, OSError: the errors of relive.Table and of Writer.extend; those of the file system.
    """
    return new_table(read_recorded(path, format), capacity, progress, options)


@names_arguments
def import_episodes(
    table: ReplayTable, path: str | os.PathLike[str], format: str | None = None, *, progress: Progress | None = None
) -> Moved:
    """Writes the episodes of a file or folder into a table with the same columns. Raises as import_table."""
    recorded = read_recorded(path, format)
    return _moved_into(table, recorded.episodes(), progress)


def new_table(recorded: Recorded, capacity: int | str | None, progress: Progress | None, options: Any) -> Table:
    """A table with these episodes. It is closed if they cannot be written."""
    if capacity is None:
        capacity = max(64, recorded.num_steps + recorded.num_episodes)  # the state after each episode takes a row
    table = Table(recorded.spec, capacity, **options)
    try:
        _moved_into(table, recorded.episodes(), progress)
    except BaseException:
        table.close()
        raise
    return table


def read_recorded(path: str | os.PathLike[str], format: str | None = None) -> Recorded:
    """The episodes of a file or folder. Raises as import_table."""
    name = os.fspath(path)
    if not os.path.exists(name):
        raise DatasetUnreadable(name, "a file or folder", "nothing of that name")
    return _module(_named(name, format)).read(name)


def _moved_into(table: ReplayTable, episodes: Iterable[Episode], progress: Progress | None) -> Moved:
    count = _Count(progress)
    for _ in write_episodes(table, count.passed(episodes)):
        pass
    return count.moved


@final
class _Count:
    """Counts episodes on their way."""

    def __init__(self, progress: Progress | None) -> None:
        if progress is not None and not callable(progress):
            raise InvalidConfig("progress", "a function of the episodes and the steps so far, or None", progress)
        self._progress = progress
        self.moved = Moved(0, 0)

    def passed(self, episodes: Iterable[Episode]) -> Iterator[Episode]:
        """The same episodes. Each counts when the next one is asked for."""
        for episode in episodes:
            yield episode
            self.moved = Moved(self.moved.num_episodes + 1, self.moved.num_steps + len(episode))
            if self._progress is not None:
                self._progress(self.moved.num_episodes, self.moved.num_steps)


def _named(path: str, format: str | None) -> str:
    """The name of the format."""
    if format is not None:
        if not isinstance(format, str) or format not in FORMATS:
            raise InvalidConfig("format", " or ".join(map(repr, FORMATS)), format)
        return format
    for name, kind in FORMATS.items():
        if path.endswith(kind.suffixes or ("/",)) and kind.suffixes:
            return name
        if kind.inside and os.path.exists(os.path.join(path, kind.inside)):
            return name
    if os.path.exists(path):
        known = ", ".join(suffix for kind in FORMATS.values() for suffix in kind.suffixes)
        raise DatasetUnreadable(
            path, f"a file that ends with {known}, or a folder of LeRobot or Hugging Face", "another"
        )
    raise InvalidConfig("format", f"{' or '.join(map(repr, FORMATS))}, as {Path(path).name!r} does not tell", None)


def _module(name: str) -> Format:
    return cast("Format", importlib.import_module(f"relive.adapters.formats.{FORMATS[name].module}"))
