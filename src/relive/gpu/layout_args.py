"""The layout of a table as kernels get it: plain frozen values, made from the facts of a region.

`RegionLayout.from_facts` takes a dict of the numbers of docs/format.md, which may come from another process. The module
does not read a region. Kernels read the values as words of one int64 array (`fact_words`), so tables of all layouts
share the compiled kernels. FACT_NAMES gives the order of the words. kernels/facts.py takes its numbers from FACT_NAMES.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from typing import Any, TypeAlias, cast, final

from relive import _core
from relive.config.index import Index
from relive.config.items import Episodes, Sequences, Transitions
from relive.errors import DtypeMismatch, InvalidConfig

__all__ = [
    "COLUMN_NAMES",
    "FACT_NAMES",
    "JOB_NAMES",
    "ColumnCopy",
    "IndexLayout",
    "RegionLayout",
    "WindowNeeds",
    "check_sampler",
    "fact_words",
    "job_words",
    "step_items_of",
    "tree_levels",
]

_FORMAT = _core.region_format()
FANOUT, MOST_LEVELS = _FORMAT["fanout"], _FORMAT["most_levels"]  # of a tree
LEAF_BITS = _FORMAT["leaf_bits"]  # of a key: its generation and slot
VECTOR = 16
UNITS = (VECTOR, 4, 1)  # bytes that one lane of a kernel moves at a time
FOUND = ("record", "large", "cell")  # areas whose rows kernels can find; columns of other areas are refused
LARGE = "large"  # the area of rows outside of the packed records
CELL = "cell"  # the area of start values, which only some rows have
StepItems: TypeAlias = Transitions | Sequences | Episodes  # items whose leaves are slots of steps


@final
@dataclass(frozen=True)
class RegionLayout:
    """The places of a region's words and rows, in bytes from its start, and the bits of keys and page links."""

    page_len: int
    page_shift: int
    slot_bits: int
    slot_mask: int
    page_bits: int
    page_mask: int
    num_pages: int
    num_slots: int
    shard: int
    has_state: bool
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
    page_bytes: int
    range_at: int
    prev_at: int
    next_at: int
    page_lane_uid_at: int
    cells_offset: int
    cell_stride: int
    mark_bytes: int
    version_at: int
    discount_at: int
    lane_at: int
    policy_version_at: int

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> RegionLayout:
        """Makes a layout from the geometry of a table.

        Args:
            facts: `CoreTable.geometry`, or the same numbers from a region's header.
        """
        page, mark, header = (facts["structs"][name] for name in ("page", "mark", "header"))
        same: tuple[str, ...] = ("page_len", "slot_bits", "page_bits", "num_pages", "num_slots", "shard")
        same += ("record_stride", "frame_bytes", "slab_bytes", "slabs_offset", "tail_words")
        same += ("cells_offset", "cell_stride")
        same += ("words_offset", "frames_offset", "pages_offset", "tails_offset", "marks_offset")
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
            prev_at=int(page["prev"]),
            next_at=int(page["next"]),
            page_lane_uid_at=int(page["lane_uid"]),
            mark_bytes=int(mark["num_bytes"]),
            version_at=int(mark["policy_version"]),
            discount_at=int(mark["discount"]),
            lane_at=int(mark["lane"]),
            policy_version_at=int(header["policy_version"]),
        )

    def end_of_frames(self, num_frames: int) -> int:
        """Returns the bytes from the region's start to the end of its first num_frames frames.

        For 0 frames these are the bytes to the first frame.
        """
        if num_frames == 0:
            return self.slabs_offset
        last = num_frames - 1
        in_slab = (last & self.slab_mask) + 1
        return self.slabs_offset + (last >> self.slab_shift) * self.slab_bytes + in_slab * self.frame_bytes


def tree_levels(num_leaves: int) -> tuple[int, ...]:
    """Returns the start of each level of a tree, in doubles from the leaves (level 0). The last level is the top."""
    starts, start, size = [], 0, max(num_leaves, 1)
    while True:
        starts.append(start)
        start += -(-size // FANOUT) * FANOUT
        if size <= FANOUT:
            return tuple(starts)
        size = -(-size // FANOUT)


def step_items_of(indexes: Mapping[str, Index], number: int) -> StepItems:
    """Returns the items of the number-th index. Their leaves are slots of steps.

    Raises:
        InvalidConfig: groups, explicit items or Hindsight, which kernels neither draw nor read.
    """
    name, index = list(indexes.items())[number]
    if index.sampler.replaces_goals:
        expected = "one without Hindsight: devices replace no goals; use Table.sample"
        raise InvalidConfig(f"sampler of index {name!r} on a device", expected, index.sampler)
    items = index.items
    if items.keys_are_steps:
        return cast(StepItems, items)
    expected = "Transitions, Sequences or Episodes without group_by: devices read no others yet; use Table.sample"
    raise InvalidConfig(f"items of index {name!r}", expected, items)


def check_sampler(indexes: Mapping[str, Index], number: int) -> None:
    """Checks that kernels can draw from the number-th index.

    Raises:
        InvalidConfig: the index draws by an order of its items, or without replacement, or from masses that fade.
    """
    name, index = list(indexes.items())[number]
    if not index.draws_by_mass:
        expected = "Uniform, Prioritized or Fresh(last=): devices draw by mass alone; gather keys that Table.draw chose"
        raise InvalidConfig(f"sampler of index {name!r} on a device", expected, index.sampler)
    if not index.replacement:
        expected = "replacement=True: kernels draw each item by itself; gather keys that Table.draw chose"
        raise InvalidConfig(f"replacement of index {name!r} on a device", expected, False)
    if index.sampler.moves_masses:
        expected = "a sampler whose masses are not moved while kernels read them; gather keys that Table.draw chose"
        raise InvalidConfig(f"sampler of index {name!r} on a device", expected, index.sampler)


@final
@dataclass(frozen=True)
class IndexLayout:
    """The facts of one index for kernels: its items, its tree and leaf states, and the reach of its windows."""

    most_steps: int  # most steps of a window, from the item's own step on
    length: int  # how many of these steps carry loss
    burn_in: int  # most rows before the item's own step
    has_time: bool
    pads_left: bool
    time_major: bool
    crosses: bool
    gamma: float
    tree_offset: int
    states_offset: int
    pages_before: int  # most pages of a window before the page of its item
    pages_after: int  # most pages of a window after the page of its item
    levels: tuple[int, ...]
    table_pages: int = 0  # of the whole table
    copies_from: int = 0  # items of a batch, from which on the words of all pages are copied first

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any], number: int, items: StepItems) -> IndexLayout:
        """Makes the layout of the number-th index of a region.

        Args:
            facts: the geometry of the table.
            number: the number of the index.
            items: the items of the index.
        """
        page_len = int(facts["page_len"])
        burn_in, length, most_steps = items.shape
        return cls(
            most_steps=most_steps,
            length=length,
            burn_in=burn_in,
            has_time=items.has_time,
            pads_left=items.pads_left,
            time_major=items.time_major,
            crosses=items.crosses,
            gamma=items.gamma,
            tree_offset=int(facts["trees_offset"][number]),
            states_offset=int(facts["states_offset"][number]),
            pages_before=-(-int(facts["history"]) // page_len),
            # A window that runs over ends of episodes may have a tail after each step.
            pages_after=(page_len - 1 + most_steps * (2 if items.crosses else 1)) // page_len,
            levels=tree_levels(int(facts["num_slots"])),
            table_pages=int(facts["num_pages"]),
            copies_from=int(facts["num_pages"]),
        )

    def copies_words(self, num_items: int) -> bool:
        """Returns whether a batch reads words of pages from a copy: it has as many items as the table has pages."""
        return self.copies_from <= num_items

    @property
    def num_pages(self) -> int:
        """The most pages that one window touches."""
        return self.pages_before + 1 + self.pages_after

    @property
    def num_entries(self) -> int:
        """The most steps of a window that runs over ends. They are listed one by one: their rows have gaps."""
        return self.num_rows if self.crosses else 0

    @property
    def num_rows(self) -> int:
        """The rows of an item, with padding. 1 without a time axis."""
        return self.burn_in + self.most_steps if self.has_time else 1

    def words(self) -> list[int]:
        """Returns the words in the order of INDEX_NAMES, then the levels of the tree."""
        (gamma_bits,) = struct.unpack("<q", struct.pack("<d", self.gamma))
        window = [self.most_steps, self.length, self.burn_in, self.has_time, self.pads_left, self.time_major]
        window.append(self.crosses)
        reach = [self.pages_before, self.pages_after, self.num_pages, self.copies_from, len(self.levels)]
        return [*map(int, window), gamma_bits, self.tree_offset, self.states_offset, *reach, *self.levels]


INDEX_NAMES = (
    "most_steps",
    "length",
    "burn_in",
    "has_time",
    "pads_left",
    "time_major",
    "crosses",
    "gamma_bits",
    "tree_offset",
    "states_offset",
    "pages_before",
    "pages_after",
    "num_window_pages",
    "copies_from",
    "num_levels",
)
# The order of the words of the facts. The last name stands for the first level of the tree.
FACT_NAMES = (*(field.name for field in fields(RegionLayout)), *INDEX_NAMES, "first_level")


def fact_words(layout: RegionLayout, index: IndexLayout) -> list[int]:
    """Returns the facts as kernels read them, in the order of FACT_NAMES. Every table has the same number of words."""
    words = [*map(int, astuple(layout)), *index.words()]
    return words + [0] * (len(FACT_NAMES) - 1 + MOST_LEVELS - len(words))


@final
@dataclass(frozen=True)
class WindowNeeds:
    """The part of each window that the outputs of a gather need, and the place of the rewards of its steps."""

    before: int = 0  # rows before the item's own, for burn-in and stacks
    needs_next: bool = True  # whether the row after the last step is read, also if the window has all its steps
    reward_offset: int = -1  # of row 0, from the start of the frame; -1: no return is needed
    reward_stride: int = 0
    reward_is_double: bool = False


@final
@dataclass(frozen=True)
class ColumnCopy:
    """One output that is copied row by row: a declared column, or a state column at the next row.

    The next row is the row after a transition's last step. For items with a time axis, it is the row after each step.
    """

    offset: int  # of row 0, from the start of the frame
    stride: int
    num_bytes: int  # of one row
    stack: int  # cells of one row
    is_next: bool
    pads_zeros: bool
    is_large: bool  # its rows are outside of the packed records
    is_cell: bool = False  # its rows are start cells, whose numbers are in the packed records
    is_timed: bool = False  # it has one row for each row of an item, instead of one row for each item
    is_state: bool = False  # timed; padding in front repeats the first row, and the last row is the state after the end

    @property
    def unit_bytes(self) -> int:
        """The widest unit that divides all its rows, in the region and in the output. One lane moves one unit."""
        together = self.num_bytes | self.offset | self.stride
        return next(unit for unit in UNITS if together % unit == 0)

    @property
    def units(self) -> int:
        """The units of one row, with all cells of its stack."""
        return self.stack * self.num_bytes // self.unit_bytes

    @classmethod
    def from_facts(
        cls, column: Mapping[str, Any], stack: int, is_next: bool, pads_zeros: bool, is_timed: bool = False
    ) -> ColumnCopy:
        """Makes a copy from one entry of the serialised layout.

        Args:
            column: the entry.
            stack: frames of a stack, 1 without a stack.
            is_next: whether the output is next_<column>.
            pads_zeros: whether stacks are padded with zeros.
            is_timed: whether the output has one row for each row of an item. Default: False.

        Raises:
            InvalidConfig: the rows are not in the region.
            DtypeMismatch: the rows have no bytes.
        """
        if column["area"] not in FOUND:
            expected = "rows in the region's frames; gather this one with Table.gather, or name columns= without it"
            raise InvalidConfig(f"column {column['name']!r}", expected, f"area {column['area']!r}")
        if int(column["num_bytes"]) == 0:
            raise DtypeMismatch(str(column["name"]), "a column of at least one byte", column["shape"])
        sizes = {name: int(column[name]) for name in ("offset", "stride", "num_bytes")}
        is_state = is_timed and column["kind"] == "state" and not is_next
        return cls(
            **sizes,
            stack=stack,
            is_next=is_next,
            pads_zeros=pads_zeros,
            is_large=column["area"] in (LARGE, CELL),
            is_cell=column["area"] == CELL,
            is_timed=is_timed,
            is_state=is_state,
        )


# The order of a job's words: addresses of the derived columns, needs of windows, and the offsets of ragged items.
OF_ROWS = ("discount", "terminated", "truncated", "episode_step", "first", "mask", "loss_mask")  # with a time axis
OF_VERSIONS = ("policy_version", "staleness")
DERIVED = ("reward", *OF_ROWS, "lane", *OF_VERSIONS, "num_steps")
JOB_NAMES = (*DERIVED, *(field.name for field in fields(WindowNeeds)), "offsets", "num_places", "first_column")
COLUMN_NAMES = (
    *("out", "offset", "stride", "num_bytes", "stack"),
    *("is_next", "pads_zeros", "unit_bytes", "is_timed", "is_state", "is_cell"),
    *("next_out", "is_shared"),
)


def job_words(
    derived: Mapping[str, int],
    needs: WindowNeeds,
    columns: Sequence[tuple[ColumnCopy, int]],
    offsets: int = 0,
    num_places: int = 0,
    shares_rows: bool = False,
) -> list[int]:
    """Returns the job of a call: words in the order of JOB_NAMES and, for each column, of COLUMN_NAMES.

    Args:
        derived: addresses of derived columns by name.
        needs: needs of windows.
        columns: each column that is copied, and the address of its output. A state column and its next_ column, of
            windows inside one episode, share rows. The copy of the state column then writes these rows to both.
        offsets: address of int64[B + 1], where the rows of each ragged item begin. 0: the items are not ragged.
        num_places: rows of all items, with padding.
        shares_rows: whether windows stay inside one episode.
    """
    words = [derived.get(name, 0) for name in DERIVED] + list(map(int, astuple(needs))) + [offsets, num_places]
    shared = {copy: out for copy, out in columns if copy.is_next and shares_rows}
    for copy, out in columns:
        next_out = 0 if copy.is_next else shared.get(replace(copy, is_next=True, is_state=False), 0)
        is_shared = copy in shared and any(_state_of(copy) == other for other, _ in columns)
        words += [out, *(int(getattr(copy, name)) for name in COLUMN_NAMES[1:-2]), next_out, is_shared]
    return words


def _state_of(copy: ColumnCopy) -> ColumnCopy:
    """The copy of the state column itself, of a copy of its next_ column."""
    return replace(copy, is_next=False, is_state=copy.is_timed)


def column_named(columns: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any] | None:
    """Returns the entry of the serialised layout with this name, or None."""
    return next((column for column in columns if column["name"] == name), None)
