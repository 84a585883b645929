"""Files: the one interface of a save to the operating system.

Every name is relative to an open folder and has one component, so no name leaves the folder and no symbolic link is
followed. Errors are StorageFull and SystemFailure, with the path; a file that is missing is FileNotFoundError.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import final

from relive.errors import SaveInUse, StorageFull, SystemFailure

__all__ = ["ALIGN", "DiskFiles", "Files"]

ALIGN = 4096  # of offsets, lengths and memory of direct reads and writes
DIRECT_BYTES = 1 << 20  # shorter reads go through the page cache
_FULL = (errno.ENOSPC, errno.EDQUOT)


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


@contextlib.contextmanager
def _told(what: str, path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno in _FULL:
            raise StorageFull(path, 0, 0) from error
        raise SystemFailure(f"{what} {path}", error.errno or 0) from error


@contextlib.contextmanager
def _direct(handle: int) -> Iterator[None]:
    """Reads and writes of the file go past the page cache. A refusal (EINVAL) ends the block without an error."""
    flags = fcntl.fcntl(handle, fcntl.F_GETFL)
    try:
        fcntl.fcntl(handle, fcntl.F_SETFL, flags | getattr(os, "O_DIRECT", 0))
        yield
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        fcntl.fcntl(handle, fcntl.F_SETFL, flags)


@final
class DiskFiles(Files):
    """The files of a folder on disk."""

    def __init__(self, path: str, *, makes: bool) -> None:
        """Opens the folder.

        Args:
            path: The folder.
            makes: Make it, and the folders above it, if it is not there; else FileNotFoundError.
        """
        self.path = path
        with _told("opening", path):
            if makes:
                os.makedirs(path, exist_ok=True)
            self._folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._lock: int | None = None
        self._is_closed = False

    def _shown(self, names: tuple[str, ...]) -> str:
        return os.path.join(self.path, *names)

    @contextlib.contextmanager
    def _parent(self, names: tuple[str, ...]) -> Iterator[int]:
        """Opens the folder that a name lies in, step by step, without following links."""
        with contextlib.ExitStack() as opened:
            at = self._folder
            for name in names[:-1]:
                at = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
                opened.callback(os.close, at)
            yield at

    def make_folder(self, *names: str) -> None:
        with _told("making", self._shown(names)), self._parent(names) as parent, contextlib.suppress(FileExistsError):
            os.mkdir(names[-1], dir_fd=parent)

    def names(self, *folder: str) -> list[str]:
        if not folder:
            return sorted(os.listdir(self._folder))
        try:
            with self._parent((*folder, "")) as inside:
                return sorted(os.listdir(inside))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise SystemFailure(f"listing {self._shown(folder)}", error.errno or 0) from error

    def create(self, *names: str) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with _told("making", self._shown(names)), self._parent(names) as parent:
            return os.open(names[-1], flags, 0o644, dir_fd=parent)

    def append(self, handle: int, data: memoryview, at: int) -> None:
        with _told("writing to", self.path):
            done = self._append_direct(handle, data, at)
            while done < len(data):
                done += os.pwrite(handle, data[done:], at + done)

    @staticmethod
    def _read_direct(handle: int, at: int, into: memoryview) -> int:
        """Reads whole blocks past the page cache. Returns the bytes read: 0 where that is refused."""
        whole, done = len(into) - len(into) % ALIGN, 0
        with _direct(handle):
            while done < whole:
                got = os.preadv(handle, [into[done:whole]], at + done)
                done += got
                if got % ALIGN or got == 0:
                    break  # the end of the file
        return done

    @staticmethod
    def _append_direct(handle: int, data: memoryview, at: int) -> int:
        """Writes the whole blocks of data past the page cache. Returns the bytes written: 0 where that is refused."""
        whole = len(data) - len(data) % ALIGN
        done = 0
        with _direct(handle):
            while done < whole:
                wrote = os.pwrite(handle, data[done:whole], at + done)
                done += wrote
                if wrote % ALIGN:
                    break  # the rest goes through the cache
        return done

    def open(self, *names: str) -> int:
        shown = self._shown(names)
        with _told("opening", shown), self._parent(names) as parent:
            handle = os.open(names[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=parent)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise SystemFailure(f"reading {shown}, which is no file", errno.EINVAL)
        return handle

    def size(self, handle: int) -> int:
        return os.fstat(handle).st_size

    def read(self, handle: int, at: int, into: memoryview) -> int:
        with _told("reading", self.path):
            done = 0 if at % ALIGN or len(into) < DIRECT_BYTES else self._read_direct(handle, at, into)
            while done < len(into):
                got = os.preadv(handle, [into[done:]], at + done)
                if got == 0:
                    break
                done += got
        return done

    def sync(self, handle: int) -> None:
        with _told("syncing a file of", self.path):
            os.fsync(handle)

    def sync_folder(self, *names: str) -> None:
        with _told("syncing", self._shown(names)):
            if not names:
                os.fsync(self._folder)
                return
            with self._parent((*names, "")) as inside:
                os.fsync(inside)

    def close_handle(self, handle: int) -> None:
        os.close(handle)

    def rename(self, old: str, new: str) -> None:
        with _told("renaming", self._shown((old,))):
            os.rename(old, new, src_dir_fd=self._folder, dst_dir_fd=self._folder)

    def remove(self, *names: str) -> None:
        with _told("removing", self._shown(names)), contextlib.suppress(FileNotFoundError):
            with self._parent(names) as parent:
                os.unlink(names[-1], dir_fd=parent)

    def remove_folder(self, *names: str) -> None:
        with contextlib.suppress(FileNotFoundError, OSError), self._parent(names) as parent:
            os.rmdir(names[-1], dir_fd=parent)

    def lock(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with _told("locking", self.path):
            lock = os.open("lock", flags, 0o644, dir_fd=self._folder)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise SaveInUse(self.path) from None
        except BaseException:
            os.close(lock)
            raise
        self._lock = lock

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._lock is not None:
            fcntl.flock(self._lock, fcntl.LOCK_UN)  # a child that was forked meanwhile has the same open file
            os.close(self._lock)
        os.close(self._folder)
