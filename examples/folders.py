"""The folder of a run: the names of its files, its lock, and the removal of an earlier run."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path

# Every name that a run writes into its folder.
WRITTEN = ("result.json", "curve.png", "save", "shards", "learner.pt", "learner.tmp", "tensorboard", "ranks")


def check(folder: Path, data: str) -> None:
    """Ends the program with a sentence if a new run would remove its own data, or would write beside other files.

    Args:
        data: the folder of a save that the new run reads; "": none.
    """
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    is_run = there.issubset(WRITTEN) or not there.isdisjoint({"result.json", "save", "shards", "tensorboard"})
    if not is_run or folder.is_file():
        lacks = "it has no result.json, save, shards or tensorboard"
        raise SystemExit(f"{folder} is not the folder of a run: {lacks}. Give --run-dir an empty folder.")
    removed = [(folder / name).resolve() for name in there.intersection(WRITTEN)]
    if data and any(Path(data).resolve().is_relative_to(path) for path in removed):
        raise SystemExit(f"A new run in {folder} would remove its data, {data}. Give --run-dir another folder.")


def lock(folder: Path, owner: object) -> Callable[[], object]:
    """Locks the folder until the returned function is called, or the owner or its process is gone.

    The program ends with a sentence if another run has the lock. A file system without locks gives none.
    """
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    unlock = weakref.finalize(owner, os.close, opened)
    with contextlib.suppress(OSError):
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            unlock()
            way_out = "Wait for its end, or give --run-dir another folder."
            raise SystemExit(f"Another run uses {folder}. {way_out}") from None
    return unlock


def remove_earlier_run(folder: Path) -> None:
    """Removes the files of an earlier run. Other files stay."""
    for path in (folder / name for name in WRITTEN):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
