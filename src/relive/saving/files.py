"""Files: the one interface of a save to the operating system.

Every name is relative to an open folder and has one component, so no name leaves the folder and no symbolic link is
followed. Errors are StorageFull and SystemFailure, with the path. A file to read that is missing is FileNotFoundError.
"""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod

__all__ = ["ALIGN", "Files", "is_no_file"]

ALIGN = 4096  # of offsets, lengths and memory of direct reads and writes
_NO_FILE = (errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.ENXIO, errno.ENAMETOOLONG)


def is_no_file(error: OSError) -> bool:
    """Whether `open` failed because there is no regular file of this name: it is missing, or a link, or a folder."""
    return error.errno in _NO_FILE


class Files(ABC):
    """The files of one save folder. Paths are tuples of names below the folder: ("segments", "1.pages")."""

    @abstractmethod
    def make_folder(self, *names: str) -> None:
        """Makes a folder. It is no error if it is there."""

    @abstractmethod
    def names(self, *folder: str) -> list[str]:
        """Returns the names in a folder, sorted; none if there is no such folder."""

    @abstractmethod
    def create(self, *names: str) -> int:
        """Makes a file that is not there, and returns a handle to append to it."""

    @abstractmethod
    def append(self, handle: int, data: memoryview, at: int) -> None:
        """Writes data at the end of a file: at byte `at`, a multiple of ALIGN. Direct where that is possible."""

    @abstractmethod
    def open(self, *names: str) -> int:
        """Returns a handle to read a regular file. FileNotFoundError if it is missing."""

    @abstractmethod
    def size(self, handle: int) -> int:
        """Returns the length of an open file in bytes."""

    @abstractmethod
    def read(self, handle: int, at: int, into: memoryview) -> int:
        """Reads from byte `at` until `into` is full or the file ends. Returns the number of bytes."""

    @abstractmethod
    def sync(self, handle: int) -> None:
        """Returns when the bytes of a file are on disk."""

    @abstractmethod
    def sync_folder(self, *names: str) -> None:
        """Returns when the names in a folder are on disk."""

    @abstractmethod
    def close_handle(self, handle: int) -> None:
        """Closes a file."""

    @abstractmethod
    def rename(self, old: str, new: str) -> None:
        """Gives a file in the folder itself another name, in place of what has that name."""

    @abstractmethod
    def remove(self, *names: str) -> None:
        """Removes one file. It is no error if it is gone."""

    @abstractmethod
    def remove_folder(self, *names: str) -> None:
        """Removes one empty folder. It is no error if it is gone or not empty."""

    @abstractmethod
    def lock(self) -> None:
        """Makes this the one saver of the folder until close(). Raises SaveInUse."""

    @abstractmethod
    def close(self) -> None:
        """Ends the use of the folder, and the lock. Closing twice is harmless."""
