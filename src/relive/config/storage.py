"""Where a table's bytes live."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, TypeAlias, final

from relive.checks.names import names_arguments
from relive.checks.values import finite, flag, integer, is_text, num_bytes
from relive.errors import InvalidConfig

__all__ = [
    "SHARED_MEMORY_FOLDER",
    "SHARED_MEMORY_PREFIX",
    "STORAGES",
    "LocalMemory",
    "SharedMemory",
    "Storage",
    "Tiered",
]

SHARED_MEMORY_FOLDER = "/dev/shm"
SHARED_MEMORY_PREFIX = "relive-"
MAX_NAME_BYTES = 200
_MAX_PATH_BYTES = 4095


@names_arguments
@final
@dataclass(frozen=True)
class LocalMemory:
    """Memory of this process: no name, gone with it; any number of threads, not usable in a forked child."""

    @property
    def path(self) -> None:
        """No file holds the table."""
        return None

    def core_config(self) -> dict[str, Any]:
        """The storage as the core reads it: nothing beside the path."""
        return {}


@names_arguments
@final
@dataclass(frozen=True)
class SharedMemory:
    """Memory shared by all processes of this machine under a name (the file /dev/shm/relive-<name>).

    Others attach by name or by a pickled handle. The last clean close removes it, as does the end of the last process
    that did not close; after a kill it stays until the name is opened again or `relive rm`. A reader that closes last
    leaves it where a writer was killed, and where it may not write the file. In containers /dev/shm is often 64 MB:
    docker run --shm-size.
    overwrite: making a table replaces one of this name that nobody but this process is attached to; this process's own
    handles on it are closed first, so a notebook's cell may run again. Where another process is attached NameTaken
    names it, and nothing is changed. Without it only a table that nobody is attached to is replaced.
    Raises InvalidConfig.
    """

    name: str
    overwrite: bool = False

    def __post_init__(self) -> None:
        name = self.name
        if not is_text(name, MAX_NAME_BYTES) or "/" in name:
            raise InvalidConfig("name of SharedMemory", f"1 to {MAX_NAME_BYTES} bytes of text without '/'", name)
        object.__setattr__(self, "overwrite", flag("overwrite of SharedMemory", self.overwrite))

    @property
    def path(self) -> str:
        """The file that holds the table."""
        return f"{SHARED_MEMORY_FOLDER}/{SHARED_MEMORY_PREFIX}{self.name}"

    def core_config(self) -> dict[str, Any]:
        """The storage as the core reads it: nothing beside the path."""
        return {}


@names_arguments
@final
@dataclass(frozen=True)
class Tiered:
    """Memory of this process for what is young, a file for the rest: tables larger than memory.

    directory: an existing folder on a local disk, for one nameless file that is gone with the process, however it ends.
    ram_bytes: memory for large columns, in bytes or as '2GiB': the newest pages and what is read ahead share it.
    Packed records, indexes and batches handed out come on top. Columns of more than min_column_bytes a row (scalars
    never) are tiered; a spec without one stays in memory whole. staging_fraction: the part of ram_bytes for rows read
    ahead, more for a long prefetch. io_threads: reads under way at a time. gathered_batches: of the `prefetch` batches
    that batches() draws ahead, so many are also copied together; the others are being read.
    One process, any number of threads; not attachable by name, not usable in a forked child. Raises InvalidConfig;
    the table raises it where ram_bytes is too small for the spec, and SystemFailure where the folder will not do.
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
        """No file of a name holds the table."""
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


Storage: TypeAlias = LocalMemory | SharedMemory | Tiered
STORAGES = (LocalMemory, SharedMemory, Tiered)
