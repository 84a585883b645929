"""A peer whose region lies in this process: a transport for tests, which lets them change it between any two reads."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import relive
from relive.fleet.onesided.peer_layout import Area, PeerLayout
from relive.fleet.onesided.rows import OneSidedReader
from relive.fleet.onesided.transport import Move, Place
from relive.service.server.shard_session import layout_of

__all__ = ["LocalPeer", "reader_of"]


class LocalPeer:
    """Copies cells, the last one first where backwards. before, middle: called with the names of what is read."""

    progress = "this process copies"

    def __init__(self, table: relive.Table) -> None:
        self._region = np.frombuffer(table.core.region_bytes(), np.uint8)
        self._base = self._region.__array_interface__["data"][0]
        self._allowed: list[tuple[int, int, object]] = []
        self.before: Callable[[list[str]], None] = lambda names: None
        self.middle: Callable[[list[str]], None] = lambda names: None
        self.backwards = False
        self.cells: dict[str, int] = {}
        self.bytes = 0

    def source(self, area: Area) -> Area:
        assert area.offsets(np.array([area.num_cells - 1]))[0] + area.cell_bytes <= len(self._region)
        return area

    def allow(self, address: int, num_bytes: int, keeper: object) -> int:
        self._allowed.append((address, address + num_bytes, keeper))
        return address

    def disallow(self, allowed: int, target: Place) -> None:
        self._allowed = [one for one in self._allowed if one[0] != allowed]

    def target(self, place: Place) -> Place:
        first, last = place.area.offsets(np.array([0, place.area.num_cells - 1])) + place.base
        assert any(begin <= first and last + place.area.cell_bytes <= end for begin, end, _ in self._allowed), (
            place.area.name
        )
        return place

    def read(self, moves: Sequence[Move], timeout_s: float) -> None:
        assert timeout_s > 0.0
        names = [move.source.name for move in moves]
        self.before(names)
        todo = []
        for move in moves:
            size = move.source.cell_bytes
            assert size == move.target.area.cell_bytes and len(move.from_cells) == len(move.to_cells)
            assert move.from_cells.max(initial=0) < move.source.num_cells
            assert move.to_cells.max(initial=0) < move.target.area.num_cells
            starts = move.source.offsets(move.from_cells) + self._base
            ends = move.target.area.offsets(move.to_cells) + move.target.base
            todo += [(int(end), int(start), size) for start, end in zip(starts, ends, strict=True)]
            self.cells[move.source.name] = self.cells.get(move.source.name, 0) + len(starts)
        for number, (end, start, size) in enumerate(reversed(todo) if self.backwards else todo):
            if number == len(todo) // 2:
                self.middle(names)
            ctypes.memmove(end, start, size)
            self.bytes += size


def reader_of(table: relive.Table, peer: LocalPeer | None = None) -> tuple[OneSidedReader, LocalPeer]:
    """A reader of a table of this process, as though it were a peer's."""
    peer = peer or LocalPeer(table)
    return OneSidedReader(table.config, PeerLayout.from_told(layout_of(table.core)), peer), peer


def gathered(reader: OneSidedReader, table: relive.Table, keys: Any, columns: Any = None, index: Any = None) -> Any:
    """(what the reader gives, what the table gives) of the same columns."""
    selection = table.select(index, columns)
    names = [output[0] for output in selection.core.outputs]
    mine = reader.gather(selection.number, names, np.ascontiguousarray(keys), 30.0)
    return names, mine, table.core.gather(selection.core, np.ascontiguousarray(keys), None)
