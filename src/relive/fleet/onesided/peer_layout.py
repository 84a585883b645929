"""Where the words and rows of a region lie, from its serialised layout: cells that a peer reads without asking.

The module computes with numbers only (docs/format.md). No code here reads memory. The range of each number that a peer
sent is checked. An *area* is a set of cells of equal length at equal distances, in runs of equal length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from relive import _core
from relive.errors import BadMessage, FormatMismatch

__all__ = ["BLOCK_ROWS", "FORMAT", "Area", "PeerLayout", "Shape", "columns_named"]

Indices = npt.NDArray[np.int64]

_FORMAT = _core.region_format()
FORMAT = _FORMAT["format_version"]  # the format of regions that this reader knows
_WORD, _FRAME, _TAILS, _MARK = (_FORMAT[f"{name}_bytes"] for name in ("word", "frame_number", "tail_word", "mark"))
_STATE, _VERSION = _FORMAT["leaf_state_bytes"], _FORMAT["policy_version_bytes"]
_LEAF_BITS = _FORMAT["leaf_bits"]  # bits of a key for generation and slot
BLOCK_ROWS = 8  # rows of leaf states and marks in one cell; pages of a shared region have at least as many
_BLOCK_BYTES = 1024  # records of at most an eighth of this are also read BLOCK_ROWS at once
_NAMES: tuple[str, ...] = (
    "page_len",
    "slot_bits",
    "page_bits",
    "num_pages",
    "num_slots",
    "num_frames",
    "shard",
    "record_stride",
)
_NAMES += ("frame_bytes", "slab_bytes", "slabs_offset", "frames_per_slab", "tail_words", "region_bytes")
_NAMES += ("words_offset", "frames_offset", "pages_offset", "tails_offset", "marks_offset", "cell_stride")


@final
@dataclass(frozen=True, eq=False)
class Area:
    """Cells by number, each cell_bytes long.

    Cell i begins at this many bytes from the region's beginning:

        starts[i // run_cells] + (i % run_cells) * stride
    """

    name: str
    starts: Indices  # int64[R] bytes from the region's beginning
    run_cells: int
    cell_bytes: int
    stride: int

    @property
    def num_cells(self) -> int:
        """Number of cells."""
        return len(self.starts) * self.run_cells

    def offsets(self, cells: Indices) -> npt.NDArray[np.int64]:
        """Where these cells begin, in bytes."""
        run, place = np.divmod(cells, self.run_cells)
        found: Indices = self.starts[run] + place * self.stride
        return found


class Shape(NamedTuple):
    """The rows that an item of an index needs.

    before: rows before its own. spanned: steps from its own on. bootstrap: 1 if it also needs the row after the last.
    """

    before: int
    spanned: int
    bootstrap: int


@final
@dataclass(frozen=True)
class PeerLayout:
    """The layout of one region. from_told makes it from the layout that a peer sent."""

    page_len: int
    slot_bits: int
    page_bits: int
    num_pages: int
    num_slots: int
    num_frames: int
    shard: int
    record_stride: int
    frame_bytes: int
    slab_bytes: int
    slabs_offset: int
    frames_per_slab: int
    tail_words: int
    region_bytes: int
    words_offset: int
    frames_offset: int
    pages_offset: int
    tails_offset: int
    marks_offset: int
    cell_stride: int
    page_bytes: int
    version_at: int
    states_offset: tuple[int, ...]
    columns: tuple[Mapping[str, Any], ...]
    shapes: tuple[Shape, ...]

    @classmethod
    def from_told(cls, told: Mapping[str, Any]) -> PeerLayout:
        """The layout from a peer's answer.

        Raises FormatMismatch for a region of another format, and BadMessage if the numbers cannot be true.
        """
        facts = told.get("geometry")
        if not isinstance(facts, dict):
            raise BadMessage("a region's layout", "its geometry", type(facts).__name__)
        if facts.get("format_version") != FORMAT:
            raise FormatMismatch("the region's format version", FORMAT, facts.get("format_version"))
        try:
            structs = facts["structs"]
            made = cls(
                **{name: int(facts[name]) for name in _NAMES},
                page_bytes=int(structs["page"]["num_bytes"]),
                version_at=int(structs["header"]["policy_version"]),
                states_offset=tuple(map(int, facts["states_offset"])),
                columns=tuple(told["columns"]),
                shapes=tuple(Shape(*map(int, shape)) for shape in told["shapes"]),
            )
            made._check()
        except (KeyError, TypeError, ValueError, ArithmeticError) as problem:
            raise BadMessage("a region's layout", "the numbers of docs/format.md", repr(problem)[:100]) from None
        return made

    def _check(self) -> None:
        starts = [self.words_offset, self.frames_offset, self.pages_offset, self.tails_offset, self.marks_offset]
        starts += [self.slabs_offset, self.version_at, *self.states_offset]
        ends = [
            self.words_offset + _WORD * self.num_pages,
            self.frames_offset + _FRAME * self.num_pages,
            self.pages_offset + self.page_bytes * self.num_pages,
            self.tails_offset + _TAILS * self.tail_words * self.num_pages,
            self.marks_offset + _MARK * self.num_slots,
            *(offset + _STATE * self.num_slots for offset in self.states_offset),
            *(self.frame_start(frame) + self.frame_bytes for frame in (0, self.num_frames - 1)),
        ]
        is_power = self.page_len >= BLOCK_ROWS and self.page_len & (self.page_len - 1) == 0
        if not is_power or self.num_pages < 1 or max(ends) > self.region_bytes or min(starts) <= 0:
            raise BadMessage("a region's layout", "areas inside of it", f"{self.num_pages} pages of {self.page_len}")
        for column in self.columns:
            last = int(column["offset"]) + (self.page_len - 1) * int(column["stride"]) + int(column["num_bytes"])
            if column["area"] in ("record", "large") and not 0 < last <= self.frame_bytes:
                raise BadMessage("a region's layout", "columns inside of their frames", str(column["name"])[:40])

    # ---- keys ------------------------------------------------------------------------------------------------------

    def parts_of(self, keys: Indices) -> tuple[Indices, Indices, Indices]:
        """(page, row, generation) of keys of this region."""
        slots = keys & ((1 << self.slot_bits) - 1)
        pages, rows = slots >> self.page_len.bit_length() - 1, slots & (self.page_len - 1)  # page_len is a power of two
        return pages, rows, (keys & ((1 << _LEAF_BITS) - 1)) >> self.slot_bits

    def keys_of(self, pages: Indices, rows: Indices, generations: Indices) -> Indices:
        """The keys with these pages, rows and generations."""
        return self.shard << _LEAF_BITS | generations << self.slot_bits | (pages * self.page_len + rows)

    def ref_parts(self, refs: npt.NDArray[np.uint64]) -> tuple[Indices, Indices]:
        """(page, generation) that links of pages name. Generation 0: no page."""
        page = (refs & np.uint64((1 << self.page_bits) - 1)).astype(np.int64)
        return page, (refs >> np.uint64(self.page_bits)).astype(np.int64)

    # ---- areas -----------------------------------------------------------------------------------------------------

    @property
    def rows_a_cell(self) -> int:
        """Number of records that are read at once."""
        return BLOCK_ROWS if BLOCK_ROWS * self.record_stride <= _BLOCK_BYTES else 1

    def frame_start(self, frame: int) -> int:
        """Where a frame begins, in bytes."""
        slab, place = divmod(frame, self.frames_per_slab)
        return self.slabs_offset + slab * self.slab_bytes + place * self.frame_bytes

    def words(self) -> Area:
        """A cell a page: generation, moves, state."""
        return self._dense("words", self.words_offset, self.num_pages, _WORD)

    def frames(self) -> Area:
        """A cell a page: the frame that contains its rows."""
        return self._dense("frames", self.frames_offset, self.num_pages, _FRAME)

    def pages(self) -> Area:
        """A cell a page: the other words of the page."""
        return self._dense("pages", self.pages_offset, self.num_pages, self.page_bytes)

    def tails(self) -> Area:
        """A cell a page: which of its rows are tails."""
        return self._dense("tails", self.tails_offset, self.num_pages, _TAILS * self.tail_words)

    def states(self, index: int) -> Area:
        """A cell a block of 8 slots: leaf states."""
        return self._dense("states", self.states_offset[index], self.num_slots // BLOCK_ROWS, _STATE * BLOCK_ROWS)

    def marks(self) -> Area:
        """A cell a block of 8 slots: marks."""
        return self._dense("marks", self.marks_offset, self.num_slots // BLOCK_ROWS, _MARK * BLOCK_ROWS)

    def version(self) -> Area:
        """One cell: the policy version."""
        return self._dense("version", self.version_at, 1, _VERSION)

    def records(self) -> Area:
        """A cell a frame and rows_a_cell rows: packed records."""
        rows = self.rows_a_cell
        return self._of_frames(
            "records", 0, self.page_len // rows, rows * self.record_stride, rows * self.record_stride
        )

    def column(self, column: Mapping[str, Any]) -> Area:
        """A cell a frame and row: a large column."""
        offset, stride, num_bytes = (int(column[name]) for name in ("offset", "stride", "num_bytes"))
        return self._of_frames(str(column["name"]), offset, self.page_len, num_bytes, stride)

    @staticmethod
    def _dense(name: str, offset: int, count: int, cell_bytes: int) -> Area:
        return Area(name, np.array([offset], np.int64), count, cell_bytes, cell_bytes)

    def _of_frames(self, name: str, offset: int, run_cells: int, cell_bytes: int, stride: int) -> Area:
        slabs, places = np.divmod(np.arange(self.num_frames, dtype=np.int64), self.frames_per_slab)
        starts = self.slabs_offset + slabs * self.slab_bytes + places * self.frame_bytes + offset
        return Area(name, starts, run_cells, cell_bytes, stride)


def columns_named(layout: PeerLayout, names: Sequence[str]) -> dict[str, tuple[Mapping[str, Any], bool]]:
    """The large columns among the outputs of these names, by name: (column, whether it is shown as next state)."""
    by_name = {str(column["name"]): column for column in layout.columns if column["area"] == "large"}
    found = {}
    for name in names:
        if name in by_name:
            found[name] = by_name[name], False
        elif name.startswith("next_") and name.removeprefix("next_") in by_name:
            found[name] = by_name[name.removeprefix("next_")], True
    return found
