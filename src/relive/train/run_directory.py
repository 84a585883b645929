"""Gives a run its directory: one run at a time uses it, and files of an earlier run are moved aside.

Protocol:

  - A run locks the file `.lock` in its directory. The kernel releases the lock when the process ends, however it ends.
  - A run that has taken the lock checks that its file is still the one of that name: the run before it may have moved
    the directory, or removed the file. If the file is another one, the run tries again.
  - So one of two runs in the same directory is refused, whenever they begin.
  - A directory inside the directory of another run, or above it, is refused: the other run would be moved aside, or
    its files would lie among those of this one. A run looks for others after it has taken its own lock: of two runs
    that begin at once, at least one finds the other.
  - Some network file systems have no such locks. There no run is refused for a lock, and two runs in one directory do
    not find each other.
  - A session notes the name of its shared table in `.table`, and removes the note when the table is gone. A session
    that is killed leaves both. The next one removes the table, unless a process is attached. Shards on the nodes of a
    cluster have the noted name and their number.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from relive.errors import InvalidConfig, ReliveError
from relive.table.open import remove

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "CHECKPOINT_FILE",
    "CONFIG_FILE",
    "LOCK_FILE",
    "SAVE_FOLDER",
    "TABLE_PREFIX",
    "TUNING_FILE",
    "alone_in",
    "check_files",
    "folder_of_host",
    "forget_run",
    "forget_table",
    "left_table",
    "move_aside",
    "naming",
    "note_table",
    "remove_left_table",
    "write_whole",
]

LOCK_FILE = ".lock"
CONFIG_FILE = "config.json"
TUNING_FILE = "tuning.json"  # of a run that was tuned
CHECKPOINT_FILE = "checkpoint.pt"
TABLE_PREFIX = "train-"  # of the names of shared tables of runs
_TABLE_FILE = ".table"
SAVE_FOLDER = "save"  # of checkpoints with the table
_NO_FOLDER = (errno.EEXIST, errno.ENOTDIR, errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG)
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)  # errors of file systems without locks


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Reserves the directory for this run until the block ends.

    The directory is made if there is none. Directories that were made here and are empty at the end are removed.

    Raises:
        InvalidConfig: Another run uses the directory, or lies in it or above it. Raised at once.

    Cost:
        A look at every file below the directory.
    """
    with _can_be_made(folder):
        made = list(itertools.takewhile(lambda one: not one.exists(), (folder, *folder.parents)))
    path = folder / LOCK_FILE
    with contextlib.ExitStack() as stack:
        while True:
            with _can_be_made(folder):
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
            _refuse_others(folder)
            yield
        finally:
            if _is_named(file, path):  # else the directory was moved aside, or the name is another run's by now
                path.unlink()
            with contextlib.suppress(OSError):  # the directory is not empty
                for one in made:
                    one.rmdir()


@contextmanager
def _can_be_made(folder: Path) -> Iterator[None]:
    """Raises InvalidConfig for the errors of a path that no folder can have."""
    try:
        yield
    except OSError as problem:
        if problem.errno not in _NO_FOLDER:
            raise
        raise InvalidConfig("run directory", f"a folder that can be made ({problem.strerror})", str(folder)) from None


def _refuse_others(folder: Path) -> None:
    """Raises InvalidConfig if the directory of another run is above this one or below it."""
    here = folder.resolve()
    for above in here.parents:
        if _has_run(above):
            raise _not_apart(folder, f"it lies in {above}, the directory of another run")
    for below, folders, _ in os.walk(here):
        folders.sort()
        if Path(below) != here and _has_run(Path(below)):
            raise _not_apart(folder, f"{below} in it is the directory of another run")


def _has_run(folder: Path) -> bool:
    """Whether a run uses the directory, or has left its files there."""
    kept = (folder / CHECKPOINT_FILE, folder / SAVE_FOLDER / "CURRENT")
    if any(one.is_file() for one in kept) and _has_options(folder):
        return True
    try:
        file = os.open(folder / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(file)
    return False


def _is_of_run(folder: Path) -> bool:
    """Whether a run wrote the files of the directory: its options, or what it writes before them."""
    if _has_options(folder):
        return True
    return all(
        one.name in (LOCK_FILE, _TABLE_FILE) or one.name.startswith(f".{CONFIG_FILE}.") for one in folder.iterdir()
    )


def _has_options(folder: Path) -> bool:
    """Whether config.json is that of a run. Models of other libraries have a file of this name, too."""
    try:
        tree = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        named = (tree["agent"]["name"], tree["environment"]["env_id"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return False
    return all(isinstance(name, str) for name in named)


def check_files(folder: Path) -> None:
    """Raises InvalidConfig if the directory has files that no run wrote: a new run might replace them."""
    if not _is_of_run(folder):
        expected = "a new or an empty one, or that of an earlier run"
        raise InvalidConfig("run directory", expected, f"{folder}, which has files of another kind")


def _not_apart(folder: Path, found: str) -> InvalidConfig:
    expected = "one that lies neither in the directory of another run nor above it (--run-dir)"
    return InvalidConfig("run directory", expected, f"{folder}: {found}")


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
    """Renames the directory of an earlier run, so that a new run starts in an empty one and no file is lost.

    Raises:
        InvalidConfig: A run uses the directory, it is the working directory or above it, or no run wrote its files.
    """
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    if Path.cwd().is_relative_to(folder.resolve()):
        raise InvalidConfig("run directory", "one that this program does not work in, or an empty one", str(folder))
    with alone_in(folder):
        check_files(folder)
        for number in itertools.count(1):
            aside = folder.with_name(f"{folder.name}.{number}")
            if not aside.exists():
                folder.rename(aside)
                (aside / LOCK_FILE).unlink(missing_ok=True)
                console.print(f"moved {folder} to {aside}", highlight=False, soft_wrap=True)
                return


def folder_of_host(folder: Path, number: int) -> Path:
    """Returns the directory of a host of a run. `folder` is that of the first host, which has the number 0."""
    return folder.with_name(f"{folder.name}-host{number}") if number else folder


def remove_left_table(folder: Path) -> None:
    """Removes the shared table that a killed session of this run left on this machine, if no process is attached."""
    with contextlib.suppress(ReliveError):
        name = left_table(folder)
        if name is not None:
            remove(name)


def left_table(folder: Path) -> str | None:
    """Returns the name of the table that a killed session noted; None: there is no such note."""
    try:
        name = (folder / _TABLE_FILE).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
    return name if name.startswith(TABLE_PREFIX) and "/" not in name else None  # the file may be one that no run wrote


def note_table(folder: Path, name: str) -> None:
    """Notes the name of the session's shared table; "": the table is not shared.

    Raises:
        OSError: The note cannot be written. The error names the file.
    """
    if name:
        write_whole(folder / _TABLE_FILE, f"{name}\n".encode())


def forget_run(folder: Path) -> None:
    """Removes the options and the tuning of a run that was refused before it had made anything."""
    if {one.name for one in folder.iterdir()} <= {CONFIG_FILE, LOCK_FILE, TUNING_FILE}:
        for name in (CONFIG_FILE, TUNING_FILE):
            (folder / name).unlink(missing_ok=True)


def forget_table(folder: Path) -> None:
    """Removes the note of a table that is gone."""
    (folder / _TABLE_FILE).unlink(missing_ok=True)


def naming(problem: OSError, path: Path) -> OSError:
    """The error with the name of this file. The system gives no name if a write fails."""
    return type(problem)(problem.errno, problem.strerror or str(problem), str(path))


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Writes a file under another name, makes it durable, and renames it. A reader finds the old file or the new one.

    Raises:
        OSError: The file cannot be written; the disk may be full. The old file stays.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as problem:
        raise naming(problem, path) from None
    finally:
        temporary.unlink(missing_ok=True)
