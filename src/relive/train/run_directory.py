"""Gives a run its directory: one run at a time uses it, and files of an earlier run are moved aside.

Protocol:

  - A run locks the file `.lock` in its directory. The kernel releases the lock when the process ends, however it ends.
  - A run that has taken the lock checks that its file is still the one of that name: the run before it may have moved
    the directory, or removed the file. If the file is another one, the run tries again.
  - So one of two runs in the same directory is refused, whenever they begin.
  - Some network file systems have no such locks. There no run is refused, and two runs do not find each other.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from relive.errors import InvalidConfig

__all__ = ["LOCK_FILE", "alone_in", "move_aside"]

LOCK_FILE = ".lock"
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)  # errors of file systems without locks


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Reserves the directory for this run until the block ends.

    The directory is made if there is none. A directory that was made here and is empty at the end is removed.

    Raises:
        InvalidConfig: Another run uses the directory. Raised at once.
    """
    is_new, path = not folder.exists(), folder / LOCK_FILE
    with contextlib.ExitStack() as stack:
        while True:
            folder.mkdir(parents=True, exist_ok=True)
            try:
                file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except FileNotFoundError:  # another run has moved the directory aside since the line before
                continue
            stack.callback(os.close, file)
            _lock(file, folder)
            if _is_named(file, path):
                break
        try:
            yield
        finally:
            if _is_named(file, path):  # else the directory was moved aside, or the name is another run's by now
                path.unlink()
            if is_new:
                with contextlib.suppress(OSError):  # the directory is not empty
                    folder.rmdir()


def _lock(file: int, folder: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        expected = "one that no run is using now: another run_dir (--run-dir), or the other run's end"
        raise InvalidConfig("run directory", expected, str(folder)) from None
    except OSError as problem:
        if problem.errno not in _NO_LOCKS:
            raise


def _is_named(file: int, path: Path) -> bool:
    """Whether the open file is the one at this path."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def move_aside(folder: Path, console: Console) -> None:
    """Renames a directory that is not empty, so that a new run starts in an empty one and no file is lost.

    Raises:
        InvalidConfig: A run uses the directory.
    """
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    with alone_in(folder):
        for number in itertools.count(1):
            aside = folder.with_name(f"{folder.name}.{number}")
            if not aside.exists():
                folder.rename(aside)
                (aside / LOCK_FILE).unlink(missing_ok=True)
                console.print(f"moved {folder} to {aside}", highlight=False, soft_wrap=True)
                return
