"""The places where a table's bytes can be."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, TypeAlias, final

from relive.checks.names import names_arguments
from relive.checks.values import finite, flag, integer, is_name, is_text, num_bytes
from relive.errors import InvalidConfig

__all__ = [
    "SHARED_MEMORY_FOLDER",
    "SHARED_MEMORY_PREFIX",
    "STORAGES",
    "File",
    "LocalMemory",
    "SharedMemory",
    "Storage",
    "Tiered",
]

SHARED_MEMORY_FOLDER = "/dev/shm"
SHARED_MEMORY_PREFIX = "relive-"
MAX_NAME_BYTES = 200
_MAX_PATH_BYTES = 4095
_LEAST_SYNC_S = 0.01


@names_arguments
@final
@dataclass(frozen=True)
class LocalMemory:
    """Memory of this process, without a name. The table ends with the process.

    Any number of threads may use the table. A forked child may not.
    """

    @property
    def path(self) -> None:
        """None: the table is in no file."""
        return None

    def core_config(self) -> dict[str, Any]:
        """The storage as the core reads it: nothing except the path."""
        return {}


@names_arguments
@final
@dataclass(frozen=True)
class SharedMemory:
    """Memory that all processes of this machine share under a name: the file /dev/shm/relive-<name>.

    Other processes attach by the name or by a pickled handle.

    - The file is removed when the last handle is closed, or when the last process with an open handle exits normally.
    - After a kill the file stays. A process can attach again; the last handle that is then closed removes the file. A
      new table of the same name replaces the file, and `relive rm` removes it.
    - If the last handle to close is read-only, the file stays in two cases: a process with a writing handle was killed,
      or the reader has no permission to write the file.
    - With keep=True, no close removes the file: `relive rm` and relive.remove do.
    - In containers /dev/shm is often 64 MB: use docker run --shm-size.

    Args:
        name: 1 to 200 bytes of text without '/'.
        overwrite: True: a new table replaces the table of this name, also if this process has handles on the old table.
            These handles are closed first, so that a notebook cell can run again. False: a new table replaces the old
            table only if no process is attached to it. In both cases, if another process is attached, Table(...)
            raises NameTaken, which names that process, and changes nothing.
        keep: True: the table stays in memory after its last close, until it is removed by name. A table that is
            attached keeps the choice of the table that was made.

    Raises:
        InvalidConfig: an argument has another type or value.
    """

    name: str
    overwrite: bool = False
    keep: bool = False

    def __post_init__(self) -> None:
        name = self.name
        if not is_name(name, MAX_NAME_BYTES) or "/" in name:
            raise InvalidConfig("name of SharedMemory", f"1 to {MAX_NAME_BYTES} bytes of text without '/'", name)
        object.__setattr__(self, "overwrite", flag("overwrite of SharedMemory", self.overwrite))
        object.__setattr__(self, "keep", flag("keep of SharedMemory", self.keep))

    @property
    def path(self) -> str:
        """The file of the table."""
        return f"{SHARED_MEMORY_FOLDER}/{SHARED_MEMORY_PREFIX}{self.name}"

    def core_config(self) -> dict[str, Any]:
        """The storage as the core reads it, except the path."""
        return {"keeps_file": True} if self.keep else {}


@names_arguments
@final
@dataclass(frozen=True)
class Tiered:
    """Memory of this process for new pages, and a file for older ones: for tables that are larger than memory.

    Only large columns are tiered. A spec without a large column stays in memory as a whole. Packed records, indexes and
    the batches that were handed out need memory in addition to ram_bytes. One process with any number of threads may
    use the table. Other processes cannot attach, and a forked child cannot use it.

    Args:
        directory: an existing folder on a local disk. The table makes one file without a name in it, which is gone when
            the process ends, in any way.
        ram_bytes: memory for large columns, in bytes or as '2GiB'. The newest pages and the rows that are read ahead
            share it.
        staging_fraction: part of ram_bytes for rows that are read ahead. Raise it for a long prefetch.
        min_column_bytes: columns with more bytes a row than this are large. Scalars never are.
        io_threads: reads that are under way at a time.
        gathered_batches: batches of the `prefetch` of batches() that are also copied together. The rows of the others
            are being read.

    Raises:
        InvalidConfig: an argument has another type or value; the table raises it if ram_bytes is too small for the
            spec.
        SystemFailure: the table raises it if the folder cannot be used.
    """

    directory: str | os.PathLike[str]
    ram_bytes: int | str
    staging_fraction: float = 0.5
    min_column_bytes: int = 256
    io_threads: int = 8
    gathered_batches: int = 3

    def __post_init__(self) -> None:
        directory = os.fspath(self.directory) if isinstance(self.directory, os.PathLike) else self.directory
        if not is_text(directory, _MAX_PATH_BYTES):
            raise InvalidConfig("directory of Tiered", "the path of a folder, as text", directory)
        put = object.__setattr__
        put(self, "directory", directory)
        put(self, "ram_bytes", num_bytes("ram_bytes of Tiered", self.ram_bytes))
        put(self, "staging_fraction", finite("staging_fraction", self.staging_fraction, 0.0, 1.0))
        put(self, "min_column_bytes", integer("min_column_bytes", self.min_column_bytes, 0, 2**31))
        put(self, "io_threads", integer("io_threads", self.io_threads, 1, 256))
        put(self, "gathered_batches", integer("gathered_batches", self.gathered_batches, 1, 2**31 - 1))

    @property
    def path(self) -> None:
        """None: the table is in no file with a name."""
        return None

    def core_config(self) -> dict[str, Any]:
        """The storage as the core reads it."""
        tier = {
            "directory": self.directory,
            "ram_bytes": self.ram_bytes,
            "staging_fraction": self.staging_fraction,
            "min_column_bytes": self.min_column_bytes,
            "io_threads": self.io_threads,
        }
        return {"tier": tier}


@names_arguments
@final
@dataclass(frozen=True)
class File:
    """A folder that the table lives in: its memory is a file there, and it saves itself there.

    Other processes attach by the path, with `relive.attach(File(path))`, or by a pickled handle.

    - Table(..., storage=File(path)) opens the table that is in the folder, or makes it. A table that is there must have
      the same spec, indexes, capacity, max_lanes and seed.
    - After SIGKILL, the table is as it was: nothing is lost while the machine runs on.
    - After a power cut or a restart of the machine, the table is as its last save, which is at most sync_s seconds and
      the time of one save old. `table.sync()` saves now.
    - The last close saves, and leaves the folder. `relive rm PATH` removes the table.
    - If the folder's file system is remote, or copies on write, the table's memory is in /dev/shm, and the folder has
      the saves only. `table.stats().file` says so.
    - A file that another program cuts short while it is in use ends the process with SIGBUS.

    Args:
        path: The folder. It is made if it is not there.
        sync_s: Seconds from one save to the next, if something has changed. None: only the last close and sync() save.

    Raises:
        InvalidConfig: An argument has another type or value.
    """

    path: str | os.PathLike[str]
    sync_s: float | None = 10.0

    def __post_init__(self) -> None:
        path = os.fspath(self.path) if isinstance(self.path, os.PathLike) else self.path
        if not is_text(path, _MAX_PATH_BYTES):
            raise InvalidConfig("path of File", "the path of a folder, as text", path)
        put = object.__setattr__
        put(self, "path", os.path.abspath(path))
        if self.sync_s is not None:
            put(self, "sync_s", finite("sync_s of File", self.sync_s, _LEAST_SYNC_S, 1e6))

    def core_config(self) -> dict[str, Any]:
        """The storage as the core reads it."""
        return {"keeps_file": True}


Storage: TypeAlias = LocalMemory | SharedMemory | Tiered | File
STORAGES = (LocalMemory, SharedMemory, Tiered, File)
