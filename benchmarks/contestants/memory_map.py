"""A file of fixed rows, mapped into memory, its page cache held to a budget by a memory cgroup of its own.

Plain, each fault reads as much around it as the disk's read-ahead setting says (read_ahead_kb; megabytes on some
machines, far more than a row). Advised, the kernel is told that access is random, and before a batch is copied which
rows it will need: the most that a mapping can be told.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

CGROUPS = Path("/sys/fs/cgroup/memory")  # version 1


class MappedRows:
    """num_items rows of num_bytes. sample() copies a uniform batch into an array that is used again."""

    def __init__(self, folder: str, num_items: int, num_bytes: int, batch: int, is_advised: bool) -> None:
        self._path = Path(folder) / "rows.bin"
        row = np.random.default_rng(0).integers(0, 256, num_bytes, dtype=np.uint8)
        with self._path.open("wb") as file:
            for _ in range(num_items):
                file.write(row)
            file.flush()
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # begin with nothing of it in memory
        self._rows = np.memmap(self._path, np.uint8, "r", shape=(num_items, num_bytes))
        self._map: mmap.mmap = self._rows._mmap  # type: ignore[attr-defined]
        self._is_advised = is_advised
        if is_advised:
            self._map.madvise(mmap.MADV_RANDOM)
        self._out = np.zeros((batch, num_bytes), np.uint8)
        self._rng = np.random.default_rng(1)

    def sample(self) -> np.ndarray:
        items = self._rng.integers(0, len(self._rows), len(self._out))
        if self._is_advised:
            size = self._out.shape[1]
            for item in items:
                begin = int(item) * size // mmap.PAGESIZE * mmap.PAGESIZE
                self._map.madvise(mmap.MADV_WILLNEED, begin, (int(item) + 1) * size - begin)
        for to, item in zip(self._out, items, strict=True):
            to[:] = self._rows[item]
        return self._out


@contextmanager
def memory_budget(num_bytes: int) -> Iterator[None]:
    """Limits the memory that this process allocates from now on, page cache included, to num_bytes.

    Raises:
        OSError: No memory cgroup (version 1) can be made. A mapping would then be read from the page cache.
    """
    group = CGROUPS / f"relive-benchmark-{os.getpid()}"
    home = CGROUPS / own_group().lstrip("/") / "cgroup.procs"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(num_bytes))
        (group / "cgroup.procs").write_text(str(os.getpid()))
        yield
    finally:
        home.write_text(str(os.getpid()))
        (group / "memory.force_empty").write_text("0")
        group.rmdir()


def own_group() -> str:
    """The memory cgroup of this process."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return path
    raise OSError("this machine has no memory cgroup of version 1")
