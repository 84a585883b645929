"""Place: where a table that lives in files has its region, and the door through which processes come and go.

- A folder of such a table is a folder of saves with two more files: `door` and `region`.
- A process that opens, makes, closes or removes the table has the lock of `door` meanwhile. So each of them sees the
  table as the others left it.
- On file systems that several hosts may use at once, each handle keeps a shared lock of the file `hosts`. A host that
  finds no region of its own asks for that lock alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator
from typing import final

from relive import _core
from relive.config.storage import SHARED_MEMORY_FOLDER
from relive.errors import DeadlineExceeded, InUse, InvalidConfig, NoSuchSave, SaveInUse
from relive.saving.current import CURRENT, FOLDER, read_folder
from relive.saving.disk_files import DiskFiles
from relive.saving.folder import DOOR, SaveFolder

__all__ = ["Place"]

REGION = "region"
_HOSTS = "hosts"
_LONGEST_POLL_S = 0.05
# f_type of statfs(2). A region cannot be a file there: other hosts change the file without this host's knowledge, or a
# page that is written moves to another place and the mapping needs memory of the file system for each write.
_REMOTE = {
    0x6969: "NFS", 0x517B: "SMB", 0xFF534D42: "CIFS", 0xFE534D42: "SMB2", 0x01021997: "9P", 0x65735546: "FUSE",
    0x00C36400: "Ceph", 0x0BD00BD0: "Lustre", 0x47504653: "GPFS", 0x5346414F: "AFS",
}  # fmt: skip
_COPYING = {0x9123683E: "btrfs", 0x2FC12FC1: "ZFS", 0xCA451A4E: "bcachefs", 0x794C7630: "overlayfs"}


@final
class Place:
    """The folder of a table that lives in files.

    Attributes:
        folder: The path of the folder.
        identity: The id of the folder.
        region: The path of the region's file.
        reason: Why the region is in memory and not in the folder; empty if it is in the folder.
        is_remote: Whether other hosts may use the folder.
    """

    def __init__(self, folder: str, identity: str, kind: int) -> None:
        """Finds the region's path: from the folder's id and f_type."""
        self.folder, self.identity = folder, identity
        self.is_remote = kind in _REMOTE
        name = _REMOTE.get(kind) or _COPYING.get(kind)
        self.reason = "" if name is None else f"the folder is on {name}"
        self.region = os.path.join(folder, REGION)
        if self.reason:
            told = hashlib.sha256(f"{os.path.realpath(folder)}\0{identity}".encode()).hexdigest()[:32]
            self.region = f"{SHARED_MEMORY_FOLDER}/relive.file-{told}"

    @classmethod
    def of(cls, folder: str) -> Place:
        """Returns the place of a folder that exists. Raises NoSuchSave, DamagedSave."""
        try:
            files = DiskFiles(folder, makes=False)
        except FileNotFoundError:
            raise NoSuchSave(folder) from None
        try:
            return cls(folder, read_folder(files, folder), _core.file_system_kind(folder))
        finally:
            files.close()

    @classmethod
    def made(cls, folder: str, ends_s: float) -> Place:
        """Returns the place of a folder, which is made if it is not there.

        Args:
            folder: The path.
            ends_s: When to give up, by time.monotonic().

        Raises:
            InvalidConfig: The folder has other files, or saves of a table that does not live in it.
            DeadlineExceeded, StorageFull, SystemFailure, DamagedSave: As they say.
        """
        began_s = time.monotonic()
        for pause_s in _pauses(ends_s):
            if _has(folder, FOLDER):
                break
            try:
                SaveFolder.open(folder).close()
                break
            except InvalidConfig:
                if not _has(folder, FOLDER):
                    raise
                break  # another process has made it meanwhile, and a table in it
            except SaveInUse:  # another process makes it
                if pause_s is None:
                    raise DeadlineExceeded(
                        "the folder of a table", "another process makes it", _since(began_s)
                    ) from None
                time.sleep(pause_s)
        if _has(folder, CURRENT) and not _has(folder, DOOR):  # a table that lives there has its door before a save
            found = f"{folder}, a folder of saves: relive.load({folder!r}, storage=File(another))"
            raise InvalidConfig("path of File", "the folder of a table that lives there, or a new one", found)
        return cls.of(folder)

    @contextlib.contextmanager
    def door(self, ends_s: float) -> Iterator[None]:
        """Is the only process that opens, closes or removes the table. Raises DeadlineExceeded."""
        began_s = time.monotonic()
        files = DiskFiles(self.folder, makes=False)
        try:
            for pause_s in _pauses(ends_s):
                if files.try_lock(DOOR):
                    break
                if pause_s is None:
                    has = "another process opens or closes it"
                    raise DeadlineExceeded(f"the door of {self.folder}", has, _since(began_s))
                time.sleep(pause_s)
            yield
        finally:
            files.close()

    def among_hosts(self, *, alone: bool) -> DiskFiles | None:
        """Says to other hosts that this one uses the table, until the result is closed. None: no other host can.

        Args:
            alone: Whether this host has no region of the table.

        Raises:
            InUse: alone, and another host uses the table.
        """
        if not self.is_remote:
            return None
        files = DiskFiles(self.folder, makes=False)
        try:
            if alone:
                asked = DiskFiles(self.folder, makes=False)
                try:
                    is_free = asked.try_lock(_HOSTS)
                finally:
                    asked.close()
                if not is_free:
                    raise InUse(self.folder)
            files.try_lock(_HOSTS, shared=True)
        except BaseException:
            files.close()
            raise
        return files


def _has(folder: str, name: str) -> bool:
    return os.path.lexists(os.path.join(folder, name))


def _pauses(ends_s: float) -> Iterator[float | None]:
    """Yields how long to wait between tries; None at the last one."""
    pause_s = 0.001
    while True:
        left_s = ends_s - time.monotonic()
        yield None if left_s <= 0 else min(pause_s, left_s)
        pause_s = min(2 * pause_s, _LONGEST_POLL_S)


def _since(began_s: float) -> float:
    return time.monotonic() - began_s
