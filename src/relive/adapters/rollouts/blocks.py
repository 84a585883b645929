"""Values of any length in a shared table, whose steps are blocks of bytes."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from relive.adapters.errors import GoneValues
from relive.checks.values import integer
from relive.config.index import Index
from relive.config.spec import ArraySpec, StepSpec
from relive.config.storage import SharedMemory
from relive.errors import InvalidConfig, NoSuchTable
from relive.table.open import attach, remove
from relive.table.table import Table
from relive.writing.writer import Writer

__all__ = ["BLOCK_BYTES", "Blocks", "Place"]

BLOCK_BYTES = 2048
Bytes = NDArray[np.uint8]
Place = list[
    int
]  # the number of bytes, then for each run of blocks the key of its first block and the number of blocks

_COLUMN = "block"
_KEPT_BYTES = 4 << 20


class Blocks:
    """A store of values, each an array of bytes, in a table that all processes of a machine can attach to.

    A value takes whole blocks. A full table drops its oldest values. Any number of threads and processes may call the
    methods. The class owns its handle on the table and the handle's writer. A lock protects the writer and the memory
    from which it copies.

    Args:
        table: a table that `make` or `attach` of this class opened.
        made: remove the table at close.
    """

    def __init__(self, table: Table, made: bool = False) -> None:
        self.table = table
        self.block_bytes = table.spec.columns[_COLUMN].shape[0]
        self._name = table.config.storage.name if isinstance(table.config.storage, SharedMemory) else ""
        self._made = made
        self._lock = threading.Lock()
        self._writer: Writer | None = None
        self._kept = np.zeros(0, np.uint8)

    @classmethod
    def make(
        cls,
        name: str,
        capacity: int | str,
        block_bytes: int = BLOCK_BYTES,
        max_processes: int = 64,
        overwrite: bool = False,
    ) -> Blocks:
        """Makes the table SharedMemory(name).

        Args:
            name: of the shared memory.
            capacity: the most blocks, or an amount of memory such as "4GiB".
            block_bytes: of a block.
            max_processes: the most processes that put values at the same time.
            overwrite: replace a table of this name that no process uses.

        Raises: the errors of relive.Table.
        """
        spec = StepSpec({_COLUMN: ArraySpec((integer("block_bytes", block_bytes, 64, 1 << 20),), np.uint8)})
        storage = SharedMemory(name, overwrite=overwrite)
        return cls(Table(spec, capacity, Index(), storage=storage, max_lanes=max_processes), made=True)

    @classmethod
    def attach(cls, name: str) -> Blocks:
        """The store that another process has made. Raises: the errors of relive.attach."""
        return cls(attach(name))

    def put(self, values: Sequence[Bytes]) -> list[Place]:
        """Stores values, each uint8[any length], and returns the place of each.

        Raises:
            InvalidConfig: the values do not fit the store.
            DeadlineExceeded: the table's deadline passed.
        """
        sizes = np.array([value.size for value in values], np.int64)
        counts = -(-sizes // self.block_bytes)
        ends = np.cumsum(counts)
        if not len(sizes) or not ends[-1]:
            return [[0] for _ in values]
        if ends[-1] > self.table.capacity:
            expected = f"at most {self.table.capacity} blocks of {self.block_bytes} bytes, as capacity= says"
            raise InvalidConfig("values of a put", expected, f"{ends[-1]} blocks")
        begins = (ends - counts) * self.block_bytes
        with self._lock:
            if self._writer is None:
                self._writer = self.table.writer()
            flat = self._memory(int(ends[-1]) * self.block_bytes)
            for value, begin, size in zip(values, begins.tolist(), sizes.tolist(), strict=True):
                flat[begin : begin + size] = value
            keys = self._writer.extend(block=flat.reshape(-1, self.block_bytes))
        return _places(keys, sizes, counts, ends)

    def _memory(self, num_bytes: int) -> Bytes:
        """Memory for blocks, the same from call to call if it is small: fresh pages cost more than the copy."""
        if num_bytes > _KEPT_BYTES:
            return np.zeros(num_bytes, np.uint8)
        if self._kept.size < num_bytes:
            self._kept = np.zeros(num_bytes, np.uint8)
        return self._kept[:num_bytes]

    def get(self, places: Sequence[Place]) -> tuple[Bytes, NDArray[np.int64]]:
        """The blocks of the values at these places, end to end, and the byte at which each value begins.

        Returns:
            uint8[bytes of all blocks], and int64[number of places].

        Raises:
            GoneValues: a value was deleted, or dropped because the table was full.
        """
        keys, counts = _keys(places)
        begins = (np.cumsum(counts) - counts) * self.block_bytes
        if not len(keys):
            return np.zeros(0, np.uint8), begins
        batch = self.table.gather(keys, columns=[_COLUMN])
        gone = np.flatnonzero(~np.asarray(batch.present))
        if len(gone):
            position = int(np.searchsorted(np.cumsum(counts), gone[0], side="right"))
            raise GoneValues(position, int(keys[gone[0]]), self.table.capacity * self.block_bytes)
        found: Bytes = batch[_COLUMN].reshape(-1)
        return found, begins

    def delete(self, places: Iterable[Place]) -> int:
        """Deletes the values at these places. Returns the number of blocks that were still there."""
        keys, _ = _keys(list(places))
        return self.table.delete(keys) if len(keys) else 0

    def close(self) -> None:
        """Closes the handle. The process that made the table removes its name, so that no process finds it again."""
        with self._lock:
            if self._writer is not None and not self.table.closed:
                self._writer.close()
            self._writer = None
        self.table.close()
        if self._made:
            self._made = False
            with suppress(NoSuchTable):
                remove(self._name, force=True)

    def __enter__(self) -> Blocks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _places(
    keys: NDArray[np.int64], sizes: NDArray[np.int64], counts: NDArray[np.int64], ends: NDArray[np.int64]
) -> list[Place]:
    """Runs of keys that follow each other, value by value. A page of the table ends a run."""
    starts = np.union1d(np.flatnonzero(np.diff(keys) != 1) + 1, (ends - counts)[counts > 0])
    lengths = np.diff(np.append(starts, len(keys)))
    runs = np.stack([keys[starts], lengths], axis=1)
    bounds = np.searchsorted(starts, np.stack([ends - counts, ends], axis=1)).tolist()
    return [
        [size, *(runs[first:last].reshape(-1).tolist() if size else ())]
        for size, (first, last) in zip(sizes.tolist(), bounds, strict=True)
    ]


def _keys(places: Sequence[Place]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The keys of all blocks, place by place, and the number of blocks of each place."""
    firsts = np.array([key for place in places for key in place[1::2]], np.int64)
    lengths = np.array([length for place in places for length in place[2::2]], np.int64)
    counts = np.array([sum(place[2::2]) for place in places], np.int64)
    within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.repeat(firsts, lengths) + within, counts
