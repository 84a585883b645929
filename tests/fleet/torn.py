"""A table whose rows say who they are, changed at a chosen moment of a one-sided read."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

import relive
from fleet.peer_memory import gathered, reader_of
from relive._core import PinnedRegion

__all__ = ["SPEC", "Torn"]

SPEC = relive.StepSpec(
    {
        "observation": relive.ArraySpec((20, 20), "uint8", kind="state"),
        "place": relive.ArraySpec((5,), "float32", kind="state"),
        "large": relive.ArraySpec((300,), "float32"),
        "action": relive.ArraySpec((), "int64"),
        "reward": relive.ArraySpec((), "float32"),
    }
)


class Torn:
    """One lane of steps that say who they are, and changes of the table at a chosen moment of a read."""

    def __init__(self, name: str) -> None:
        index = relive.Index(relive.Transitions())
        self.table = relive.Table(SPEC, 64, index, max_lanes=2, storage=relive.SharedMemory(name))
        assert self.table.core.geometry["page_len"] == 8
        self._writer = self.table.writer()
        self._next = 0
        self.reader, self.peer = reader_of(self.table)
        self.tore = 0

    def write(self, count: int) -> np.ndarray:
        steps = np.arange(self._next, self._next + count)
        self._next += count
        return np.asarray(self._writer.extend(**self.values(np.append(steps, self._next), steps)))

    @staticmethod
    def values(states: np.ndarray, steps: np.ndarray) -> dict[str, Any]:
        return {
            "observation": np.broadcast_to((states % 251)[:, None, None], (len(states), 20, 20)),
            "place": np.broadcast_to(states[:, None], (len(states), 5)),
            "large": np.broadcast_to(steps[:, None], (len(steps), 300)),
            "action": steps,
            "reward": steps % 7,
        }

    def tears_before(self, area: str, change: Callable[[], Any], occurrence: int = 0) -> None:
        """The change happens once, before the read of an area begins (the occurrence-th of them)."""
        seen = -1

        def before(names: list[str]) -> None:
            nonlocal seen
            if area in names and not self.tore:
                seen += 1
                if seen == occurrence:
                    self.tore += 1
                    change()

        self.peer.before = before

    def reuse(self) -> None:
        """All rows that there were go, and their pages and frames hold others."""
        self.write(64)
        self.write(64)

    def move(self) -> None:
        """Rows move to other frames, and theirs hold others."""
        self.table.core.move_all_pages()
        self.table.core.move_all_pages()
        geometry = self.table.core.geometry
        used = self.words(np.uint32, geometry["frames_offset"], geometry["num_pages"])
        for frame in set(range(geometry["num_frames"])) - set(used.tolist()):  # what a frame's next page would write
            assert geometry["frames_per_slab"] > frame
            first = geometry["slabs_offset"] + frame * geometry["frame_bytes"]
            self.words(np.uint8, first, geometry["frame_bytes"])[:] = 0xEE

    def take_next_page(self, keys: np.ndarray) -> None:
        """Page 1 goes early, with the item before it that needs it, and is another lane's; page 0 stays."""
        self.table.delete(keys[7:16])
        geometry = self.table.core.geometry
        before = self.words(np.uint64, geometry["words_offset"], 2).copy()
        with self.table.writer() as other:
            for first in range(1000, 1320, 8):
                steps = np.arange(first, first + 8)
                more = np.asarray(other.extend(**self.values(np.append(steps, first + 8), steps)))
                now = self.words(np.uint64, geometry["words_offset"], 2)
                if now[1] >> np.uint64(18) != before[1] >> np.uint64(18) and now[1] & np.uint64(3):
                    break
                self.table.delete(more)
            else:
                raise AssertionError("page 1 never came again")
            assert now[0] == before[0]

    def words(self, dtype: Any, offset: int, count: int) -> np.ndarray:
        """Words of the region, to be changed."""
        with PinnedRegion(self.table.core) as hold:
            memory: Any = (ctypes.c_ubyte * (count * np.dtype(dtype).itemsize)).from_address(hold.address + offset)
        return np.frombuffer(memory, dtype)

    columns: list[str] | None = None  # that are read; None: all

    def read(self, keys: np.ndarray, steps: np.ndarray) -> bool:
        """Whether all that was handed out of these keys is what was written under them."""
        names, mine, _ = gathered(self.reader, self.table, keys, self.columns)
        batch = dict(zip(names, mine.arrays, strict=True))
        at = mine.present
        expected = self.values(steps[at], steps[at]) | {
            f"next_{name}": value
            for name, value in self.values(steps[at] + 1, steps[at]).items()
            if name in ("observation", "place")
        }
        return all(np.array_equal(batch[name][at], expected[name]) for name in names if name in expected)

    def close(self) -> None:
        self.reader.close()
        self._writer.close()
        self.table.close()
