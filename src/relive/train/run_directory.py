"""The directory of a run: whose it is while the run goes on, and what becomes of what it held before.

Protocol. A run holds a lock on `.lock` in its directory, which the kernel ends with the process, whatever death. Who
got it looks whether the file is still the one of that name: a directory may have been moved, and the file been removed,
by who held the lock before. So of two runs that are told the same directory one is refused, whenever they begin. A file
system that has no such locks keeps nobody from running, and does not tell two runs of each other.
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
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)  # of some network file systems


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """This run alone uses the directory, made where there is none, until the block ends; one that stays empty goes.

    Raises InvalidConfig at once where another run does.
    """
    is_new, path = not folder.exists(), folder / LOCK_FILE
    with contextlib.ExitStack() as stack:
        while True:
            folder.mkdir(parents=True, exist_ok=True)
            try:
                file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except FileNotFoundError:  # it was moved aside meanwhile
                continue
            stack.callback(os.close, file)
            _lock(file, folder)
            if _is_named(file, path):
                break
        try:
            yield
        finally:
            if _is_named(file, path):  # else it was moved aside, or another run's is there by now
                path.unlink()
            if is_new:
                with contextlib.suppress(OSError):  # it holds a run
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
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def move_aside(folder: Path, console: Console) -> None:
    """A directory that holds something is renamed: a new run starts empty and loses nothing.

    Raises InvalidConfig where a run is using it.
    """
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    with alone_in(folder):
        for number in itertools.count(1):
            aside = folder.with_name(f"{folder.name}.{number}")
            if not aside.exists():
                folder.rename(aside)
                (aside / LOCK_FILE).unlink(missing_ok=True)
                console.print(f"{folder} is now {aside}", highlight=False, soft_wrap=True)
                return
