"""Keeps a shard alive: one process owns it by a lock on a byte of its region's file, which ends with the process."""

from __future__ import annotations

import fcntl
import importlib
import io
import os
import secrets
import struct
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, final

from relive import _core
from relive.checks.values import integer
from relive.config.storage import File, SharedMemory
from relive.config.table_config import TableConfig
from relive.core.attached import attached_pids
from relive.core.closing import Closing
from relive.core.ending import at_end, start_thread
from relive.errors import (
    DamagedSave,
    InvalidConfig,
    NameTaken,
    NoSuchTable,
    ReliveError,
    StorageFull,
    SystemFailure,
    TableClosed,
)
from relive.fleet.draws.pace import region_limiter
from relive.fleet.draws.placement import MAX_SHARDS
from relive.fleet.errors import OtherShards
from relive.fleet.saved import SavedShard, SavedShards, check_kept, saved
from relive.saving.loading import describe_shard
from relive.table.table import Table, attach_path, close_own, load_table, table_over

if TYPE_CHECKING:
    from relive.service import Door

__all__ = ["OwnerWatch", "ShardOwner", "load_shard", "make_shard", "outlive", "shard_of"]

# The byte is far above the bytes that attached handles lock. An open-file lock ends when the last copy of its
# descriptor is closed, however the process dies. A lock of the process would already end when the process closes
# any descriptor of that file.
_OWNER_BYTE = 2**61
_EPOCH_BITS = 62
_FLOCK = struct.Struct("hhqqi4x")  # type, whence, start, length, process
_MOST_STREAMS = 4096  # of 1,024 actors with two each, and once more those of a broken network, which count for a while

_owners: weakref.WeakSet[ShardOwner] = weakref.WeakSet()  # of this process
# The servers that are open, each with its owner, the region that it offers, and the table of the owner.
_servers: dict[Any, tuple[weakref.ref[ShardOwner], Any, Table]] = {}
_of_parents: list[Any] = []  # the same in the process that forked this one, which alone may close them
_CHECKED = ("spec", "capacity", "index", "max_lanes", "timeout_s", "seed")  # by an owner that takes a region over


def make_shard(number: int, config: TableConfig, epoch: int | None = None) -> Table:
    """Makes a shard that has no owner. A limiter of a ratio acts over the totals of a fleet, not in the shard.

    Args:
        number: number of the shard, 0 to 4095.
        config: the table's configuration. The limiters in it are stored for the fleet.
        epoch: where the shard's keys begin, as in ShardOwner. None: at random.

    Returns:
        A handle on the shard.

    Raises:
        InvalidConfig: number or epoch is out of range, or config is not a TableConfig.
        ReliveError: also every error that relive.Table raises.
    """
    number = integer("number of a shard", number, 0, MAX_SHARDS - 1)
    begins = secrets.randbits(_EPOCH_BITS) if epoch is None else _checked(epoch)
    if not isinstance(config, TableConfig):
        raise InvalidConfig("config of a shard", "a TableConfig", config)
    if isinstance(config.storage, File):
        raise InvalidConfig("storage of a shard", "LocalMemory() or SharedMemory(name)", config.storage)
    own = {name: replace(one, limiter=region_limiter(one.limiter)) for name, one in config.index.items()}
    made = replace(config, index=own).core_config()
    made |= {"shard": number, "epoch": begins, "metadata": config.to_metadata()}
    if isinstance(config.storage, SharedMemory) and config.storage.overwrite:
        close_own(config.storage.path)
    return table_over(_core.create_table(made, config.storage.path), None)


def load_shard(number: int, config: TableConfig, load: str | os.PathLike[str] | SavedShards) -> Table:
    """Makes a shard from a save of all shards. It has no owner. ShardOwner lists the arguments and errors."""
    save, part = _part_of(number, config, load)
    more = {"shard": number, "metadata": config.to_metadata(save.numbers)}
    with _check_kept_if_damaged(save):
        return load_table(
            part.path, config.storage, config.capacity, config.max_lanes, config.timeout_s, cut=part.cut, more=more
        )


def _part_of(
    number: int, config: TableConfig, load: str | os.PathLike[str] | SavedShards
) -> tuple[SavedShards, SavedShard]:
    """Returns a save and its part of a shard. Raises OtherShards, and InvalidConfig if the part does not fit config."""
    save = load if isinstance(load, SavedShards) else saved(load)
    part = next((one for one in save.shards if one.number == number), None)
    if part is None:
        raise OtherShards(save.numbers, [*save.numbers, number])
    with _check_kept_if_damaged(save):
        found_config, found_number = describe_shard(part.path, part.cut)
    if found_number != number:
        raise InvalidConfig(f"number of the shard saved in {part.path}", str(number), found_number)
    for what, found, wanted in _differences(found_config, config, ("spec", "index", "seed")):
        raise InvalidConfig(f"{what} of the shard saved in {part.path}", repr(found), wanted)
    return save, part


@contextmanager
def _check_kept_if_damaged(save: SavedShards) -> Iterator[None]:
    """Raises NoSuchSave in place of DamagedSave if the folder keeps other saves and not this one."""
    try:
        yield
    except DamagedSave:
        check_kept(save)
        raise


def shard_of(table: Table) -> int:
    """The number of the shard behind a table; 0 for a table that was made alone."""
    return int(table.core.geometry["shard"])


@final
class _Ownership:
    """The lock of a shard's owner, and the mark in the region that no close of a handle removes it.

    The mark outlasts a kill, so a new owner finds the region. end() takes the mark away. Raises NameTaken if another
    process has the lock.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._core: _core.CoreTable | None = None
        self.keeps = False  # whether the mark also stays after end()
        self._file = _opened(path)
        try:
            _lock(self._file, path)
        except BaseException:
            self.let_go()
            raise

    def begin(self, core: _core.CoreTable, keeps: bool) -> None:
        """Sets the mark. keeps: whether the mark also stays after end()."""
        self._core, self.keeps = core, keeps
        core.set_keeps_file(True)

    def end(self) -> None:
        """Ends the ownership. From here on the last close removes the region. A second call has no effect."""
        if not self._file.closed and self._core is not None:
            try:
                self._core.set_keeps_file(self.keeps)
            except TableClosed:  # the program has closed the owner's table
                self._end_through_another_handle()
        self.let_go()

    def _end_through_another_handle(self) -> None:
        with suppress(OSError, ReliveError):
            if os.path.samestat(os.stat(self._path), os.fstat(self._file.fileno())):
                with attach_path(self._path) as table:
                    table.core.set_keeps_file(self.keeps)

    def let_go(self) -> None:
        """Closes the lock's file. The lock ends with the last copy of its descriptor. The region stays."""
        self._file.close()


@final
class ShardOwner(Closing):
    """Keeps a shard alive: a fleet draws from the shard while this object is open and its process lives.

    If an owner died and left a region of that name, the new owner takes the region over with all its contents
    (`is_restored` is True). The limiters of config act over all shards (docs/fleet.md).

    Closing ends the ownership. The memory is then removed with the last attached handle, unless its storage has
    keep=True. An owner that the program drops, or that is open when its process ends normally, ends as by close(). If
    the process is killed, the memory stays after every close of other handles, until a new owner is closed, or
    `relive rm` or relive.remove removes the memory.

    Attributes:
        table: a handle on this shard alone. Its `loaded` says whether it came from a save.
        is_restored: whether the region of an earlier owner was taken over.
        number: number of the shard.

    Args:
        number: number of the shard, 0 to 4095, unique in its fleet.
        config: the table's configuration. Its storage is SharedMemory(name). With overwrite=True a new shard replaces
            the region that was left, and handles and owners of this process on the region are closed first. If the
            new shard cannot be made after that, such as from a damaged save, the region stays for the next owner. If
            there is no room for both, the old region is removed before the new shard is made.
        epoch: where the keys of a new region begin, 0 to 2**62 - 1. None: at random, so that keys of a lost region are
            gone in the region that takes its number. Give a number if keys must be the same in every run. Only as many
            of the lower bits count as keys have room for (22 with ten million rows).
        load: the folder of a save of all shards (ShardedTable.save), or its description (relive.fleet.saved), from
            which the shard is made if no region was left. The description is for owners of hosts that cannot read the
            folder. None: a new shard is empty.

    Raises:
        InvalidConfig: the storage is not shared memory, or the region that was left has another number or
            configuration (overwrite and keep of its storage may differ), or the saved shard has another number, spec,
            index or seed.
        OtherShards: the save has no shard of this number.
        NoSuchSave, DamagedSave: there is no save of all shards, or a part of it is damaged or missing.
        NameTaken: another process owns the shard. With overwrite=True: another process is attached to its region.
        ReliveError: also every error that relive.Table and relive.attach raise.
    """

    table: Table
    is_restored: bool

    def __init__(
        self,
        number: int,
        config: TableConfig,
        *,
        epoch: int | None = None,
        load: str | os.PathLike[str] | SavedShards | None = None,
    ) -> None:
        if not isinstance(config, TableConfig) or not isinstance(config.storage, SharedMemory):
            raise InvalidConfig("config of a shard that is owned", "a TableConfig with SharedMemory(name)", config)
        self.number = integer("number of a shard", number, 0, MAX_SHARDS - 1)
        epoch = None if epoch is None else _checked(epoch)
        path = config.storage.path
        self._server: Any = None
        self._region: Any = None  # the mapping that NIXL registered
        _close_servers_of_dropped()  # else their handles would keep the region of a dropped owner
        if config.storage.overwrite:
            if load is not None:
                _part_of(self.number, config, load)  # a save that does not fit leaves the shard that is there
            _close_own_owners(path)
        with ExitStack() as undo:
            self.is_restored = not config.storage.overwrite and self._takes_over(path, config)
            if not self.is_restored:
                self.table = _made(self.number, config, epoch, load)
                undo.callback(self.table.close)
                self._ownership = _Ownership(path)
            undo.callback(self._ownership.let_go)
            self._ownership.begin(self.table.core, config.storage.keep)
            undo.pop_all()
        _owners.add(self)
        weakref.finalize(self, self._ownership.end).atexit = False  # see _end_owners

    def _takes_over(self, path: str, config: TableConfig) -> bool:
        """Takes over the region that was left. Returns False if there is none."""
        try:
            # The handle is read-only until the shard is ours. A refused owner therefore neither changes nor removes it.
            with attach_path(path, read_only=True) as found:
                _check(found, self.number, config)
                ownership = _Ownership(path)
                try:
                    self.table, self._ownership = attach_path(path), ownership
                except BaseException:
                    ownership.let_go()
                    raise
        except NoSuchTable:
            return False
        return True

    def serve(
        self,
        address: str = "grpc://127.0.0.1:0",
        name: str | None = None,
        saves: str | os.PathLike[str] | None = None,
        door: Door | None = None,
    ) -> str:
        """Serves the shard to handles of other hosts until close(). Needs the extra `service`.

        Such handles attach with attach(["grpc://host:port/name"]). They may have 4,096 streams open at once.

        Args:
            address: where to listen. Port 0 takes a free port. Name a port if the shard must be found again after a
                restart.
            name: name of the shard at the address. None: the name of its shared memory.
            saves: folder of this machine below which handles of other hosts may save the shard (ShardedTable.save).
                None: they may not.
            door: relive.service.Door: the certificate, the file of the tokens, and whether strangers may enter. With
                Door(offers=True), handles with the role read may read the shard's memory by NIXL. None: the shard is
                open, on loopback alone.

        Returns:
            The address of the shard, grpc://host:port/name.

        Raises:
            MissingPackage: the extra `service` is not installed.
            InvalidConfig: the shard is already served, or a name or a path is none.
            CannotListen: the address cannot be bound.
        """
        if self._server is not None:
            raise InvalidConfig("a shard that is served", "one address", self._server.address)
        _close_servers_of_dropped()
        service = importlib.import_module("relive.service")  # imported here: an owner needs only numpy
        storage = self.table.config.storage
        shown = storage.name if name is None and isinstance(storage, SharedMemory) else str(name)
        nixl = importlib.import_module("relive.fleet.onesided.nixl")
        limits = {name: _MOST_STREAMS for name in ("max_streams", "max_streams_per_client", "max_connections")}
        options = service.ServerOptions(saves=saves, **limits)
        self._server = service.serve_behind(
            {shown: self.table}, address, service.Door() if door is None else door, options
        )
        if door is not None and door.offers and nixl.is_installed():
            self._region = nixl.SharedRegion(self.table.core)
            self._server.offer(shown, "nixl", self._region.give)
        _servers[self._server] = weakref.ref(self), self._region, self.table
        collected = importlib.import_module("relive.service.client.collected")
        # On a thread of its own: the server waits for its calls, and the thread of collected handles serves others.
        ended = (self._server, self._region, self.table)
        end = partial(start_thread, _end_dropped, "relive-owner-end", *ended, never_writes=True)
        collected.end_when_collected(self, end)
        return f"{self._server.address}/{shown}"

    def close(self) -> None:
        """Ends the service and the ownership, and closes the handle. A second call has no effect."""
        if self._server is not None:
            _close_server(self._server, self._region)
        self._ownership.end()
        _owners.discard(self)
        self.table.close()

    def set_keep(self, keep: bool) -> None:
        """Sets whether the memory stays after the end of the ownership, in place of the `keep` of its storage."""
        self._ownership.keeps = keep

    def let_go(self) -> None:
        """Ends the ownership as a kill does: the memory stays for the next owner, whatever handles are closed."""
        self._ownership.let_go()


@final
class OwnerWatch(Closing):
    """Asks the kernel whether a shard has a live owner, in a microsecond and without a wait. Any number of threads."""

    def __init__(self, path: str) -> None:
        self._descriptor = _open(path)
        self._closes = weakref.finalize(self, os.close, self._descriptor)
        self._closes.atexit = False

    def is_owned(self) -> bool:
        """Whether a process owns the region that was at the path when the watch was made. True for a closed watch."""
        descriptor = self._descriptor
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _OWNER_BYTE, 1, 0)
        try:
            told = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, asked) if descriptor >= 0 else None
        except OSError:
            if self._descriptor >= 0:
                raise
            told = None  # another thread has closed the watch meanwhile
        if told is None:
            return True  # the core raises TableClosed to the caller
        return bool(_FLOCK.unpack(told)[0] != fcntl.F_UNLCK)

    def close(self) -> None:
        """Ends the watch."""
        self._descriptor = -1
        self._closes()  # once, whatever thread or collector comes first


def outlive(path: str, pause: Callable[[], bool]) -> bool:
    """Waits until a shard on this host has no owner.

    Args:
        path: path of the region.
        pause: waits a moment. Returns False when the time is over.

    Returns:
        Whether the shard has no owner, or no memory.
    """
    while True:
        try:
            with OwnerWatch(path) as watch:
                if not watch.is_owned():
                    return True
        except NoSuchTable:
            return True
        if not pause():
            return False


def _made(
    number: int, config: TableConfig, epoch: int | None, load: str | os.PathLike[str] | SavedShards | None
) -> Table:
    """Makes a new shard. If its memory lacks room, removes the region that the shard replaces, and tries once more."""
    make = partial(make_shard, number, config, epoch) if load is None else partial(load_shard, number, config, load)
    storage = config.storage
    if not isinstance(storage, SharedMemory) or not storage.overwrite:
        return make()
    try:
        return make()
    except StorageFull as problem:
        if problem.path != storage.path or problem.needs_bytes > _room_without(storage.path, problem.has_bytes):
            raise  # the machine lacks memory for the state of the save, or there is no room for the new shard alone
    # After the except block, which keeps the memory of the first try.
    with suppress(ReliveError):  # the second try raises the reason
        _core.remove(storage.path)
    return make()


def _room_without(path: str, has_bytes: int) -> int:
    """The bytes that a file system has without a region at this path. has_bytes: with the region, as StorageFull tells.

    The core tells the size of the whole file system if the new region is larger than that.
    """
    try:
        size = os.stat(path).st_blocks * 512
    except FileNotFoundError:
        size = 0
    whole = os.statvfs(os.path.dirname(path))
    most = whole.f_blocks * whole.f_frsize  # 0: the file system has no limit
    return min(has_bytes + size, most) if most else has_bytes + size


def _checked(epoch: int) -> int:
    return integer("epoch", epoch, 0, 2**_EPOCH_BITS - 1)


def _check(table: Table, number: int, config: TableConfig) -> None:
    if shard_of(table) != number:
        raise InvalidConfig(f"number of the shard at {table.path}", str(shard_of(table)), number)
    for what, found, wanted in _differences(table.config, config, _CHECKED):
        expected = f"{found!r}, as in the shard's memory, or no memory of this name (`relive rm` removes it)"
        raise InvalidConfig(f"{what} in the config of the shard at {table.path}", expected, wanted)


def _differences(found: TableConfig, wanted: TableConfig, names: Iterable[str]) -> Iterator[tuple[str, Any, Any]]:
    """The parts of two configurations that differ, the smallest that have a name: (name, found, wanted)."""
    for name in names:
        one, other = getattr(found, name), getattr(wanted, name)
        if name == "index":
            yield from _different_parts(name, one, other)
        elif one != other:
            if name == "spec":
                yield from _different_parts(name, one.columns, other.columns)
            yield name, one, other


def _different_parts(whole: str, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    if list(found) != list(wanted):
        yield f"names of the {whole}", list(found), list(wanted)
    else:
        pairs = ((name, one, wanted[name]) for name, one in found.items())
        yield from ((f"{name!r} of the {whole}", one, other) for name, one, other in pairs if one != other)


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise _unopened(path, error) from None


def _opened(path: str) -> io.FileIO:
    """Returns the file, which closes when it is collected: Ctrl-C may come before its owner has it."""
    try:
        return io.FileIO(path, "r+")
    except OSError as error:
        raise _unopened(path, error) from None


def _unopened(path: str, error: OSError) -> ReliveError:
    if isinstance(error, FileNotFoundError):
        return NoSuchTable(path)
    return SystemFailure(f"opening {path}", error.errno or 0)


def _lock(file: io.FileIO, path: str) -> None:
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _OWNER_BYTE, 1, 0))
    except OSError:
        raise NameTaken(path, attached_pids(path)) from None


def _close_own_owners(path: str) -> None:
    """Closes this process's handles and owners of a region that a new shard replaces.

    The memory stays, as after a kill, until the new shard takes its place. Raises NameTaken if another process is
    attached.
    """
    close_own(path)
    for owner in list(_owners):
        if owner.table.path == path:
            owner.let_go()  # before close(), which would end the ownership and remove the memory
            owner.close()


def _close_server(server: Any, region: Any) -> None:
    """Closes the server of a shard, and the region that it offers. A second call waits for the first."""
    server.close()
    if region is not None:
        region.close()
    _servers.pop(server, None)


def _end_dropped(server: Any, region: Any, table: Table) -> None:
    """Ends the rest of a served owner that the program has dropped, as by close(). A second call waits for the first.

    The server refers to the table, whose handle would keep the region until the server is collected.
    """
    _close_server(server, region)
    table.close()


def _close_servers_of_dropped() -> None:
    """Returns when no server is open whose owner the program has dropped. A thread closes these servers, too."""
    for server, (owner, region, table) in list(_servers.items()):
        if owner() is None:
            _end_dropped(server, region, table)


@at_end
def _end_owners() -> None:
    """Ends the ownerships at the end of the process, before its tables are closed."""
    for owner in list(_owners):
        owner._ownership.end()


def _forget_in_child() -> None:
    """Closes the copies of the descriptors in a forked child. Otherwise the locks would outlive the owner."""
    _of_parents.extend(_servers.items())
    _servers.clear()
    for owner in list(_owners):
        owner.let_go()


os.register_at_fork(after_in_child=_forget_in_child)
