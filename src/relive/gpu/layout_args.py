"""The serialised layout of a table as constants of kernels: plain frozen values, made from the facts of a region.

Nothing here looks at a region: `RegionLayout.from_facts` reads what docs/format.md describes, a dict of numbers that a
peer could have sent. Kernels take these values as compile-time constants, so addresses fold into shifts and adds; a
table of another layout compiles them anew (about a second each, cached on disk by Triton).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from relive.errors import DtypeMismatch, InvalidConfig
from relive.items import Transitions

__all__ = ["ColumnCopy", "IndexLayout", "RegionLayout", "WindowNeeds", "tree_levels"]

FANOUT = 8
WIDEST_WORD = 8  # bytes one lane of a kernel moves at a time; two of them make a 16-byte vector
VECTOR = 16
IN_FRAMES = ("record", "large")  # areas whose rows kernels can find; a column kept elsewhere is refused
# Words of docs/format.md that no table changes.
LEAF_BITS = 51
STATE_BITS = 2
GENERATION_SHIFT = 18
STATE_OPEN, STATE_CLOSED = 1, 2
LANE_LIVE = 1
TIMES_AWAITING = 0xFFFE


@final
@dataclass(frozen=True)
class RegionLayout:
    """Where the words and rows of a region lie: bytes from its start, and the bits of keys and page refs."""

    page_len: int
    page_shift: int
    slot_bits: int
    slot_mask: int
    page_bits: int
    page_mask: int
    num_pages: int
    num_slots: int
    shard: int
    history: int
    has_state: bool
    max_lanes: int
    record_stride: int
    frame_bytes: int
    slab_bytes: int
    slabs_offset: int
    slab_shift: int
    slab_mask: int
    words_offset: int
    frames_offset: int
    pages_offset: int
    tails_offset: int
    marks_offset: int
    tail_words: int
    lanes_offset: int
    page_bytes: int
    range_at: int
    item_end_at: int
    prev_at: int
    next_at: int
    page_lane_uid_at: int
    page_lane_slot_at: int
    lane_bytes: int
    lane_state_at: int
    lane_uid_at: int
    mark_bytes: int
    version_at: int
    discount_at: int
    policy_version_at: int

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> RegionLayout:
        """From the geometry of a table (`CoreTable.geometry`, or the same numbers read from a region's header)."""
        page, lane, mark, header = (facts["structs"][name] for name in ("page", "lane", "mark", "header"))
        same: tuple[str, ...] = (
            "page_len",
            "slot_bits",
            "page_bits",
            "num_pages",
            "num_slots",
            "shard",
            "history",
            "max_lanes",
        )
        same += ("record_stride", "frame_bytes", "slab_bytes", "slabs_offset", "tail_words")
        same += ("words_offset", "frames_offset", "pages_offset", "tails_offset", "marks_offset", "lanes_offset")
        return cls(
            **{name: int(facts[name]) for name in same},
            page_shift=int(facts["page_len"]).bit_length() - 1,
            slot_mask=(1 << int(facts["slot_bits"])) - 1,
            page_mask=(1 << int(facts["page_bits"])) - 1,
            slab_shift=int(facts["frames_per_slab"]).bit_length() - 1,
            slab_mask=int(facts["frames_per_slab"]) - 1,
            has_state=bool(facts["has_state"]),
            page_bytes=int(page["num_bytes"]),
            range_at=int(page["range"]),
            item_end_at=int(page["item_end"]),
            prev_at=int(page["prev"]),
            next_at=int(page["next"]),
            page_lane_uid_at=int(page["lane_uid"]),
            page_lane_slot_at=int(page["lane_slot"]),
            lane_bytes=int(lane["num_bytes"]),
            lane_state_at=int(lane["state"]),
            lane_uid_at=int(lane["uid"]),
            mark_bytes=int(mark["num_bytes"]),
            version_at=int(mark["policy_version"]),
            discount_at=int(mark["discount"]),
            policy_version_at=int(header["policy_version"]),
        )

    def end_of_frames(self, num_frames: int) -> int:
        """Bytes from the region's start to the end of its first num_frames frames (0: to the first frame)."""
        if num_frames == 0:
            return self.slabs_offset
        last = num_frames - 1
        in_slab = (last & self.slab_mask) + 1
        return self.slabs_offset + (last >> self.slab_shift) * self.slab_bytes + in_slab * self.frame_bytes


def tree_levels(num_leaves: int) -> tuple[int, ...]:
    """Where each level of a tree starts, in doubles from its leaves (level 0); the last one is the top."""
    starts, start, size = [], 0, max(num_leaves, 1)
    while True:
        starts.append(start)
        start += -(-size // FANOUT) * FANOUT
        if size <= FANOUT:
            return tuple(starts)
        size = -(-size // FANOUT)


@final
@dataclass(frozen=True)
class IndexLayout:
    """What kernels must know of one index: its items and where its tree and use counts lie."""

    number: int
    n_step: int
    gamma: float
    tree_offset: int
    times_offset: int
    levels: tuple[int, ...]

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any], number: int, items: Transitions) -> IndexLayout:
        """Of the number-th index of the region, whose items are these."""
        return cls(
            number=number,
            n_step=items.n_step,
            gamma=items.gamma,
            tree_offset=int(facts["trees_offset"][number]),
            times_offset=int(facts["times_offset"][number]),
            levels=tree_levels(int(facts["num_slots"])),
        )


@final
@dataclass(frozen=True)
class WindowNeeds:
    """What the outputs of a gather ask of each window, and where the rewards of its steps lie."""

    end: bool = False  # whether the window ends truncated
    history: bool = False  # rows before its first: some output is a stack
    reward_offset: int = -1  # inside the frame, of row 0; -1: no return is asked for
    reward_stride: int = 0
    reward_is_double: bool = False


@final
@dataclass(frozen=True)
class ColumnCopy:
    """One output that is copied row by row: a declared column, or a state column at the bootstrap row."""

    offset: int  # inside the frame, of row 0
    stride: int
    num_bytes: int  # of one row
    stack: int  # rows of one item
    is_next: bool
    pads_zeros: bool

    @property
    def word_bytes(self) -> int:
        """The widest word that all its rows are made of, here and in the output."""
        return math.gcd(WIDEST_WORD, self.num_bytes, self.offset, self.stride)

    @property
    def words(self) -> int:
        """Words of one row."""
        return self.num_bytes // self.word_bytes

    @property
    def aligned_bytes(self) -> int:
        """What the address of every row is a multiple of, here and in the output: 16 lets a lane move 16 bytes."""
        return math.gcd(VECTOR, self.num_bytes, self.offset, self.stride)

    @classmethod
    def from_facts(cls, column: Mapping[str, Any], stack: int, is_next: bool, pads_zeros: bool) -> ColumnCopy:
        """From one entry of the serialised layout.

        Raises InvalidConfig where its rows do not lie in the region's frames, DtypeMismatch where they have no bytes.
        """
        if column["area"] not in IN_FRAMES:
            expected = "rows in the region's frames; gather this one with Table.gather, or name columns= without it"
            raise InvalidConfig(f"column {column['name']!r}", expected, f"area {column['area']!r}")
        if int(column["num_bytes"]) == 0:
            raise DtypeMismatch(str(column["name"]), "a column of at least one byte", column["shape"])
        sizes = {name: int(column[name]) for name in ("offset", "stride", "num_bytes")}
        return cls(**sizes, stack=stack, is_next=is_next, pads_zeros=pads_zeros)


def column_named(columns: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any] | None:
    """The entry of the serialised layout with this name."""
    return next((column for column in columns if column["name"] == name), None)
