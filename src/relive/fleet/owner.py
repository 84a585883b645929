"""Who keeps a shard alive: one process, by a lock on a byte of its region's file that ends with the process."""

from __future__ import annotations

import fcntl
import importlib
import os
import secrets
import struct
import weakref
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, final

from relive import _core
from relive.checks.values import integer
from relive.config.limiters import MinSize
from relive.config.storage import SharedMemory
from relive.config.table_config import TableConfig
from relive.core.closing import Closing
from relive.core.holders import holders
from relive.errors import InvalidConfig, NameTaken, NoSuchTable, SystemFailure
from relive.fleet.draws.placement import MAX_SHARDS
from relive.table.table import Table, attach_path, table_over

__all__ = ["OwnerWatch", "ShardOwner", "make_shard", "shard_of"]

# Far above the bytes that attached handles lock. A lock of an open file ends when the last copy of its descriptor is
# closed, by whatever death; one of a process would end already when it closes any descriptor of that file.
_OWNER_BYTE = 2**61
_EPOCH_BITS = 62
_FLOCK = struct.Struct("hhqqi4x")  # type, whence, start, length, process

_owners: weakref.WeakSet[ShardOwner] = weakref.WeakSet()  # of this process, for its forked children


def make_shard(number: int, config: TableConfig, epoch: int | None = None) -> Table:
    """Makes a shard of this number, owned by nobody. Its own limiters let all pass: those of a fleet act on totals.

    epoch: as ShardOwner says. Raises InvalidConfig, and what relive.Table raises.
    """
    number = integer("number of a shard", number, 0, MAX_SHARDS - 1)
    begins = secrets.randbits(_EPOCH_BITS) if epoch is None else _checked(epoch)
    if not isinstance(config, TableConfig):
        raise InvalidConfig("config of a shard", "a TableConfig", config)
    open_doors = {name: replace(one, limiter=MinSize()) for name, one in config.index.items()}
    made = replace(config, index=open_doors).core_config()
    made |= {"shard": number, "epoch": begins, "metadata": config.to_metadata()}
    return table_over(_core.create_table(made, config.storage.path), None)


def shard_of(table: Table) -> int:
    """The number of the shard that a table is; 0 of one that was made alone."""
    return int(table.core.geometry["shard"])


@final
class ShardOwner(Closing):
    """The process that keeps a shard: while it lives and has this open, the fleet draws from the shard.

    number: of the shard, 0 to 4095, its own in its fleet. config: of the table, its storage SharedMemory(name). Where a
    region of that name was left by an owner that died, it is taken over with all that it holds (is_restored). Its
    limiters act over all shards (docs/fleet.md). table: a handle on the shard alone.
    epoch: where the keys of a region that is made begin, 0 to 2**62 - 1. None: at random, so that keys of a region
    that was lost are gone in the one that takes its number; give one where keys are to be the same in every run. As
    many of its lower bits count as keys have room for (22 with ten million rows).
    Closing ends the ownership, and removes the memory where nobody else is attached.
    Raises InvalidConfig (no shared memory; the region left is of another number, spec or index), NameTaken (somebody
    else owns it), and what relive.Table and relive.attach raise.
    """

    table: Table
    is_restored: bool

    def __init__(self, number: int, config: TableConfig, *, epoch: int | None = None) -> None:
        if not isinstance(config, TableConfig) or not isinstance(config.storage, SharedMemory):
            raise InvalidConfig("config of a shard that is owned", "a TableConfig with SharedMemory(name)", config)
        self.number = integer("number of a shard", number, 0, MAX_SHARDS - 1)
        epoch = None if epoch is None else _checked(epoch)
        path = config.storage.path
        self._descriptor = -1
        self._server: Any = None
        self._region: Any = None  # what NIXL registered of it
        with ExitStack() as undo:
            undo.callback(self.let_go)
            try:
                # By a handle that only reads, until it is ours: other handles take the memory with them where they are
                # closed last, also where this one is refused, or an owner that dies just now holds the shard still.
                with attach_path(path, read_only=True) as found:
                    _check(found, self.number, config)
                    self._own(path)
                    self.table, self.is_restored = attach_path(path), True
            except NoSuchTable:
                self.table, self.is_restored = make_shard(self.number, config, epoch), False
                undo.callback(self.table.close)
                self._own(path)
            undo.pop_all()
        _owners.add(self)

    def _own(self, path: str) -> None:
        self._descriptor = _open(path)
        _lock(self._descriptor, path)

    def serve(self, address: str = "grpc://0.0.0.0:0", name: str | None = None) -> str:
        """Serves the shard to handles of other hosts (attach(["grpc://host:port/name"])) until close(); returns where.

        name: of the shard at the address, None: that of its shared memory. Port 0 takes a free one: for a shard that is
        to be found again after a restart, name one. Needs the extra `service`. Raises MissingPackage, InvalidConfig
        (it is served already), ServiceUnavailable where the address cannot be bound.
        """
        if self._server is not None:
            raise InvalidConfig("a shard that is served", "one address", self._server.address)
        service = importlib.import_module("relive.service")  # here and not above: owning a shard needs numpy only
        storage = self.table.config.storage
        shown = storage.name if name is None and isinstance(storage, SharedMemory) else str(name)
        nixl = importlib.import_module("relive.fleet.onesided.nixl")
        self._server = service.serve({shown: self.table}, address)
        if nixl.is_installed():
            self._region = nixl.SharedRegion(self.table.core)
            self._server.offer(shown, "nixl", self._region.give)
        return f"{self._server.address}/{shown}"

    def close(self) -> None:
        """Ends the service and the ownership, and closes the handle. Closing twice is harmless."""
        _owners.discard(self)
        if self._server is not None:
            self._server.close()
        if self._region is not None:
            self._region.close()
        self.let_go()
        self.table.close()

    def let_go(self) -> None:
        """Closes the descriptor of the lock: the lock ends with its last copy."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


@final
class OwnerWatch(Closing):
    """Whether a shard has an owner that lives, asked of the kernel: a microsecond, no wait. Any number of threads."""

    def __init__(self, path: str) -> None:
        self._descriptor = _open(path)

    def is_owned(self) -> bool:
        """Whether somebody owns the region that lay at the path when the watch was made. True of a closed watch."""
        if self._descriptor < 0:
            return True  # who calls a closed table is told so by its core
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _OWNER_BYTE, 1, 0)
        told = fcntl.fcntl(self._descriptor, fcntl.F_OFD_GETLK, asked)
        return bool(_FLOCK.unpack(told)[0] != fcntl.F_UNLCK)

    def close(self) -> None:
        """Ends the watch."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _checked(epoch: int) -> int:
    return integer("epoch", epoch, 0, 2**_EPOCH_BITS - 1)


def _check(table: Table, number: int, config: TableConfig) -> None:
    if shard_of(table) != number:
        raise InvalidConfig(f"number of the shard at {table.path}", str(shard_of(table)), number)
    if table.config != config:
        raise InvalidConfig(f"config of the shard at {table.path}", repr(table.config), config)


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NoSuchTable(path) from None
    except OSError as error:
        raise SystemFailure(f"opening {path}", error.errno or 0) from None


def _lock(descriptor: int, path: str) -> None:
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _OWNER_BYTE, 1, 0))
    except OSError:
        raise NameTaken(path, holders(path)) from None


def _forget_in_child() -> None:
    """A forked child has copies of the descriptors: with them the locks would outlive the owner."""
    for owner in list(_owners):
        owner.let_go()


os.register_at_fork(after_in_child=_forget_in_child)
