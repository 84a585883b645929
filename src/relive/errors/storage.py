"""Errors of storage: file systems without room, names of tables, files that are no tables."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import final

from relive.errors.base import ReliveError, bytes_text, plain, shown

__all__ = ["FormatMismatch", "InUse", "NameTaken", "NoSuchTable", "NotARegion", "StorageFull", "SystemFailure"]


@final
class StorageFull(ReliveError, OSError):
    """The file system has no room for a table, or for a save (is_save)."""

    def __init__(self, path: str, needs_bytes: int, has_bytes: int, is_save: bool = False) -> None:
        self.path = path
        self.is_save = is_save
        self.needs_bytes = needs_bytes
        self.has_bytes = has_bytes
        super().__init__(
            f"{path}: needs {bytes_text(needs_bytes)}, {'this machine' if path == 'memory' else 'the file system'} has"
            f" {bytes_text(has_bytes)}; "
            + (
                "give the container a larger /dev/shm (docker run --shm-size=8g, or a memory-backed emptyDir), a"
                " smaller capacity, or use LocalMemory() where one process is enough; `relive ls` shows tables left"
                " behind"
                if path.startswith("/dev/shm")
                else "free some, or save to another folder; the save before it stays whole"
                if is_save
                else "free some, or give a smaller capacity"
            )
        )


@final
class NameTaken(ReliveError, FileExistsError):
    """A table of this name exists, and a process is attached to it; or a folder has a table or saves.

    pids: the attached processes that are visible.
    """

    def __init__(self, path: str, pids: Sequence[int] = ()) -> None:
        self.path = path
        self.pids = tuple(pids)
        name = _table_name(path)
        if not path.startswith("/dev/shm/relive-"):  # a folder of File
            used = f", and is in use{_by(self.pids)}" if self.pids else ""
            super().__init__(
                f"{path} has a table or saves{used}; give File another folder, open this table with"
                f" attach(File({path!r})), or remove it with `relive rm {path}` once it is closed"
            )
            return
        if self.pids == (os.getpid(),):
            way_out = f"close it first, or replace it: SharedMemory({name!r}, overwrite=True)"
        else:
            way_out = f"close it there or end that process, choose another name, or attach({name!r}) to it"
        super().__init__(f"{path} exists and is in use{_by(self.pids)}; {way_out}")


@final
class NoSuchTable(ReliveError, FileNotFoundError):
    """No table has this name."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(
            f"{path}: no such table; it was not created yet, or its last user closed it (`relive ls` lists those there"
            " are)"
        )


@final
class NotARegion(ReliveError, ValueError):
    """The file is no table, or a damaged one."""

    def __init__(self, path: str, what: str = "") -> None:
        self.path = path
        self.what = what
        super().__init__(f"{path} is no relive table" + (f": {what}" if what else "") + "; see what wrote this file")


@final
class FormatMismatch(ReliveError, ValueError):
    """The region has another format version, ABI or layout; or an address has another table or run than before.

    replaced: whether another table or run is at the address of a handle. The handle is of no use any more.
    """

    def __init__(self, what: str, expected: object, got: object, replaced: bool = False) -> None:
        self.what = what
        self.expected = plain(expected)
        self.got = plain(got)
        self.replaced = replaced
        super().__init__(
            f"the {what} was {shown(self.expected)} and is {shown(self.got)} now: this handle is of an earlier one at"
            " this address; connect again"
            if replaced
            else f"the region's {what} is {shown(self.got)}, this build reads {shown(self.expected)}; use the relive"
            " version that made it, or make it again"
        )


@final
class InUse(ReliveError, OSError):
    """A process is attached to the table, so it cannot be removed. pids: the attached processes that are visible."""

    def __init__(self, path: str, pids: Sequence[int] = ()) -> None:
        self.path = path
        self.pids = tuple(pids)
        super().__init__(f"{path} is in use{_by(self.pids)}; close it there first, or force the removal")


@final
class SystemFailure(ReliveError, OSError):
    """A call of the operating system failed. what: the call. errno: its error number; 0: none."""

    def __init__(self, what: str, errno: int = 0) -> None:
        self.what = what
        reason = f"{os.strerror(errno)} (errno {errno})" if errno else "the system left no error number"
        super().__init__(f"{what} failed: {reason}")
        self.errno = int(errno)


def _table_name(path: str) -> str:
    return os.path.basename(path).removeprefix("relive-")


def _by(pids: tuple[int, ...]) -> str:
    """The processes that use a table, as half a sentence."""
    if not pids:
        return " by a process that is not visible here"
    if pids == (os.getpid(),):
        return " by this process"
    others = [str(pid) for pid in pids if pid != os.getpid()]
    some = ", ".join(others[:4]) + (", ..." if len(others) > 4 else "")
    return f" by process{'es' if len(others) > 1 else ''} {some}"
