"""Where a table's bytes live."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from relive.errors import InvalidConfig

__all__ = ["SHARED_MEMORY_FOLDER", "SHARED_MEMORY_PREFIX", "LocalMemory", "SharedMemory"]

SHARED_MEMORY_FOLDER = "/dev/shm"
SHARED_MEMORY_PREFIX = "relive-"
MAX_NAME_BYTES = 200


@final
@dataclass(frozen=True)
class LocalMemory:
    """Memory of this process: no name, gone with it; any number of threads, not usable in a forked child."""


@final
@dataclass(frozen=True)
class SharedMemory:
    """Memory shared by all processes of this machine under a name (the file /dev/shm/relive-<name>).

    Others attach by name or by a pickled handle. The last clean close removes it; after a kill it stays until the name
    is opened again or `relive rm`. In containers /dev/shm is often 64 MB: docker run --shm-size. Raises InvalidConfig.
    """

    name: str

    def __post_init__(self) -> None:
        name = self.name
        if not isinstance(name, str) or not name or "/" in name or "\0" in name or len(name.encode()) > MAX_NAME_BYTES:
            raise InvalidConfig("name of SharedMemory", f"1 to {MAX_NAME_BYTES} bytes of text without '/'", name)

    @property
    def path(self) -> str:
        """The file that holds the table."""
        return f"{SHARED_MEMORY_FOLDER}/{SHARED_MEMORY_PREFIX}{self.name}"
