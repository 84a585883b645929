"""A table as arrays of bytes, for the files of other libraries: a save of the table, file by file."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from relive.config.storage import Storage
from relive.table.open import load
from relive.table.table import Table

__all__ = ["pack", "unpack"]

Packed = dict[str, NDArray[np.uint8]]


def pack(table: Table) -> Packed:
    """The files of a save of this table: {path below the folder: bytes}.

    The arrays are maps of files that have no name any more, so that they take no memory until they are read, and a
    pickle writes them without a copy.

    Raises: the errors of Table.save.
    """
    with tempfile.TemporaryDirectory(prefix="relive-") as folder:
        table.save(folder)
        return {str(path.relative_to(folder)): _mapped(path) for path in _files(Path(folder))}


def unpack(files: Mapping[str, NDArray[np.uint8]], storage: Storage | None = None) -> Table:
    """A new table from the files of `pack`.

    Args:
        files: what pack returned.
        storage: where the new table lives; None: the memory of this process.

    Raises: the errors of relive.load.
    """
    with tempfile.TemporaryDirectory(prefix="relive-") as folder:
        for name, data in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            np.asarray(data).tofile(path)
        return load(folder, storage)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _mapped(path: Path) -> NDArray[np.uint8]:
    if path.stat().st_size == 0:
        return np.zeros(0, np.uint8)
    return np.asarray(np.memmap(path, np.uint8, "r"))
