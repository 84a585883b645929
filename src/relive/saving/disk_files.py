"""DiskFiles: the files of a folder on disk, and the locks of such folders in this process."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import weakref
from collections.abc import Iterator
from typing import final

from relive.core.attached import attached_pids
from relive.errors import SaveInUse, StorageFull, SystemFailure
from relive.saving.files import ALIGN, Files

__all__ = ["DiskFiles"]

DIRECT_BYTES = 1 << 20  # shorter reads go through the page cache
_FULL = (errno.ENOSPC, errno.EDQUOT)
_LOCK = "lock"
_locks: set[int] = set()  # descriptors of locked folders


def _close_all(handles: list[int]) -> None:
    """Closes a folder, and its locks."""
    while len(handles) > 1:
        _close_lock(handles)
    os.close(handles[0])


def _close_lock(handles: list[int]) -> None:
    """Closes the last lock of a folder, if the folder is locked here: a fork closes the lock in the child."""
    lock = handles[-1]
    is_here = lock in _locks
    if is_here:
        _unlock(lock)
        _locks.discard(lock)
    handles.pop()
    if is_here:
        os.close(lock)


def _unlock(lock: int) -> None:
    """Releases a lock before its file is closed.

    A child that was forked outside Python has the same open file, and a signal's handler may raise before the close.
    """
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(lock, fcntl.LOCK_UN)


def _close_locks() -> None:
    """Closes the locks in a forked child, which would else keep a folder locked after its saver."""
    for lock in _locks:
        with contextlib.suppress(OSError):
            os.close(lock)
    _locks.clear()


os.register_at_fork(after_in_child=_close_locks)


@contextlib.contextmanager
def _told(what: str, path: str, num_bytes: int = 0) -> Iterator[None]:
    """Raises the errors of the system as errors of the library. num_bytes: that the call needs."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise StorageFull(path, num_bytes, _free_bytes(path), is_save=True) from error
        raise SystemFailure(f"{what} {path}", error.errno or 0) from error
    except ValueError as error:  # a name that no file can have
        raise SystemFailure(f"{what} {path!r}", errno.EINVAL) from error


def _free_bytes(path: str) -> int:
    try:
        free = os.statvfs(path)
    except OSError:
        return 0
    return free.f_bavail * free.f_frsize


def _sync_parent(path: str) -> None:
    """Syncs the folder that a path lies in. A folder that this process cannot open is left alone."""
    try:
        parent = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.fsync(parent)
    finally:
        os.close(parent)


def _make_with_parents(path: str) -> None:
    """Makes a folder and the folders above it. All of them outlast a power cut."""
    missing, at = [], path
    while not os.path.isdir(at) and at != os.path.dirname(at):
        missing.append(at)
        at = os.path.dirname(at)
    for one in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(one)
        _sync_parent(one)
    if not missing:
        _sync_parent(path)  # a saver that died may have made it


def _checked(names: tuple[str, ...]) -> None:
    """Refuses names that are not one component of a path."""
    for name in names:
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise OSError(errno.EINVAL, "no name of a file", name)


def _set_direct(handle: int, flags: int) -> bool:
    """Has reads and writes of an open file go past the page cache. False where that is refused."""
    try:
        fcntl.fcntl(handle, fcntl.F_SETFL, flags | getattr(os, "O_DIRECT", 0))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return True


@contextlib.contextmanager
def _direct(handle: int) -> Iterator[bool]:
    """Whether reads and writes go past the page cache. A refusal (EINVAL) ends the block without an error."""
    flags = fcntl.fcntl(handle, fcntl.F_GETFL)
    is_direct = _set_direct(handle, flags)
    try:
        yield is_direct
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        if is_direct:
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
        self.path = os.fsdecode(path)
        try:
            with _told("opening", self.path):
                if makes:
                    _make_with_parents(os.path.realpath(self.path))
                self._folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except SystemFailure as error:
            if makes or error.errno != errno.ENOENT:
                raise
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path) from error
        self._open = [self._folder]  # the folder, then its lock
        # A signal's handler may take the folder from its owner between two steps of Python.
        self._end = weakref.finalize(self, _close_all, self._open)
        self._end.atexit = False

    def _shown(self, names: tuple[str, ...]) -> str:
        return os.path.join(self.path, *names)

    @contextlib.contextmanager
    def _parent(self, names: tuple[str, ...]) -> Iterator[int]:
        """Opens the folder that a name lies in, step by step, without following links."""
        _checked(names)
        with contextlib.ExitStack() as opened:
            at = self._folder
            for name in names[:-1]:
                at = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
                opened.callback(os.close, at)
            yield at

    @contextlib.contextmanager
    def _inside(self, folder: tuple[str, ...]) -> Iterator[int]:
        """Opens a folder of files."""
        if not folder:
            yield self._folder
            return
        with self._parent(folder) as parent:
            inside = os.open(folder[-1], os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
            try:
                yield inside
            finally:
                os.close(inside)

    def make_folder(self, *names: str) -> None:
        with _told("making", self._shown(names)), self._parent(names) as parent, contextlib.suppress(FileExistsError):
            os.mkdir(names[-1], dir_fd=parent)

    def names(self, *folder: str) -> list[str]:
        with _told("listing", self._shown(folder)):
            try:
                with self._inside(folder) as inside:
                    return sorted(os.listdir(inside))
            except FileNotFoundError:
                return []

    def create(self, *names: str) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with _told("making", self._shown(names)), self._parent(names) as parent:
            return os.open(names[-1], flags, 0o644, dir_fd=parent)

    def append(self, handle: int, data: memoryview, at: int) -> None:
        with _told("writing to", self.path, len(data)):
            done = self._append_direct(handle, data, at)
            while done < len(data):
                done += _written(os.pwrite(handle, data[done:], at + done))

    @staticmethod
    def _read_direct(handle: int, at: int, into: memoryview) -> int:
        """Reads whole blocks past the page cache. Returns the bytes read: 0 where that is refused."""
        whole, done = len(into) - len(into) % ALIGN, 0
        with _direct(handle) as is_direct:
            while is_direct and done < whole:
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
        with _direct(handle) as is_direct:
            while is_direct and done < whole:
                wrote = _written(os.pwrite(handle, data[done:whole], at + done))
                done += wrote
                if wrote % ALIGN:
                    break  # the rest goes through the cache
        return done

    def open(self, *names: str) -> int:
        shown = self._shown(names)
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe must not make the reader wait
        try:
            with _told("opening", shown), self._parent(names) as parent:
                handle = os.open(names[-1], flags, dir_fd=parent)
        except SystemFailure as error:
            if error.errno != errno.ENOENT:
                raise
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), shown) from error
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise SystemFailure(f"reading {shown}, which is no file", errno.EINVAL)
        return handle

    def size(self, handle: int) -> int:
        with _told("reading", self.path):
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
        with _told("syncing", self._shown(names)), self._inside(names) as inside:
            os.fsync(inside)

    def close_handle(self, handle: int) -> None:
        with _told("closing a file of", self.path):
            os.close(handle)

    def rename(self, old: str, new: str) -> None:
        with _told("renaming", self._shown((old,))):
            os.rename(old, new, src_dir_fd=self._folder, dst_dir_fd=self._folder)

    def remove(self, *names: str) -> None:
        with _told("removing", self._shown(names)), contextlib.suppress(FileNotFoundError):
            with self._parent(names) as parent:
                os.unlink(names[-1], dir_fd=parent)

    def remove_folder(self, *names: str) -> None:
        with contextlib.suppress(OSError), self._parent(names) as parent:
            os.rmdir(names[-1], dir_fd=parent)

    def lock(self) -> None:
        if not self.try_lock(_LOCK):
            raise SaveInUse(self.path, attached_pids(os.path.join(os.path.realpath(self.path), _LOCK)))

    def try_lock(self, name: str, *, shared: bool = False) -> bool:
        """Locks a file of this name in the folder until close(), alone or beside others. False: another has it."""
        lock = self._open_lock(name, shared)
        while lock is not None and not self._is_named(name, lock):  # another process, or a user, removed the file
            _close_lock(self._open)
            lock = self._open_lock(name, shared)
        return lock is not None

    def _open_lock(self, name: str, shared: bool) -> int | None:
        """Returns the file of a lock, locked, which close() will close; None: another has it."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        with _told("locking", self.path):
            lock = os.open(name, flags, 0o644, dir_fd=self._folder)
            _locks.add(lock)
            self._open.append(lock)  # before it is locked: a signal's handler may raise at any step after that
            try:
                fcntl.flock(lock, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            except BlockingIOError:
                _close_lock(self._open)
                return None
            except BaseException:
                _close_lock(self._open)
                raise
            return lock

    def _is_named(self, name: str, lock: int) -> bool:
        try:
            return os.path.samestat(os.fstat(lock), os.stat(name, dir_fd=self._folder, follow_symlinks=False))
        except FileNotFoundError:
            return os.fstat(self._folder).st_nlink == 0  # the whole folder is gone: the first write says so

    def close(self) -> None:
        for lock in self._open[1:]:
            if lock in _locks:
                _unlock(lock)  # before the finalizer is detached: a signal's handler may raise just after that
        told = self._end.detach()  # a finalizer that is called does nothing once the interpreter ends
        if told is not None:
            _close_all(self._open)


def _written(num_bytes: int) -> int:
    """Refuses a write of nothing, which would be tried for ever."""
    if num_bytes <= 0:
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    return num_bytes
