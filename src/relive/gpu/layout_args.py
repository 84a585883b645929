"""The serialised layout of a table as kernels are given it: plain frozen values, made from the facts of a region.

Nothing here looks at a region: `RegionLayout.from_facts` reads what docs/format.md describes, a dict of numbers that a
peer could have sent. Kernels read these values as words of one int64 array (`fact_words`), so tables of any layout
share the compiled kernels; FACT_NAMES says which word is which, and kernels/facts.py takes its numbers from there.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any, TypeAlias, final

from relive import _core
from relive.config.hindsight import Hindsight
from relive.config.index import Index
from relive.config.items import Episodes, Sequences, Transitions
from relive.config.samplers import Fresh
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
UNITS = (VECTOR, 4, 1)  # bytes one lane of a kernel moves at a time
FOUND = ("record", "large", "cell")  # areas whose rows kernels can find; a column kept elsewhere is refused
LARGE = "large"  # the area whose rows are apart from the packed records
CELL = "cell"  # the area of start values that only some rows have
StepItems: TypeAlias = Transitions | Sequences | Episodes  # items whose leaves are slots of steps


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
        """From the geometry of a table (`CoreTable.geometry`, or the same numbers read from a region's header)."""
        page, mark, header = (facts["structs"][name] for name in ("page", "mark", "header"))
        same: tuple[str, ...] = (
            "page_len",
            "slot_bits",
            "page_bits",
            "num_pages",
            "num_slots",
            "shard",
        )
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


def step_items_of(indexes: Mapping[str, Index], number: int) -> StepItems:
    """The items of the number-th index, whose leaves are slots of steps.

    Raises InvalidConfig of groups and explicit items, and of Hindsight, which kernels neither draw nor read.
    """
    name, index = list(indexes.items())[number]
    if isinstance(index.sampler, Hindsight):
        expected = "one without Hindsight: devices replace no goals; use Table.sample"
        raise InvalidConfig(f"sampler of index {name!r} on a device", expected, index.sampler)
    items = index.items
    if isinstance(items, (Transitions, Sequences)) or (isinstance(items, Episodes) and items.group_by is None):
        return items
    expected = "Transitions, Sequences or Episodes without group_by: devices read no others yet; use Table.sample"
    raise InvalidConfig(f"items of index {name!r}", expected, items)


def check_sampler(indexes: Mapping[str, Index], number: int) -> None:
    """Raises InvalidConfig of an index that draws by an order of its items, which kernels do not."""
    name, index = list(indexes.items())[number]
    if not index.draws_by_mass:
        expected = "Uniform() or Prioritized(): devices draw by mass alone; gather keys that Table.draw chose"
        raise InvalidConfig(f"sampler of index {name!r} on a device", expected, index.sampler)
    if not index.replacement:
        expected = "replacement=True: kernels draw each item by itself; gather keys that Table.draw chose"
        raise InvalidConfig(f"replacement of index {name!r} on a device", expected, False)
    if isinstance(index.sampler, Fresh) and index.sampler.decay is not None:
        expected = "a sampler whose masses are not moved while kernels read them; gather keys that Table.draw chose"
        raise InvalidConfig(f"sampler of index {name!r} on a device", expected, index.sampler)


@final
@dataclass(frozen=True)
class IndexLayout:
    """What kernels must know of one index: its items, its tree and leaf states, and how far its windows reach."""

    most_steps: int  # of a window from the item's own step on
    length: int  # those of them that carry loss
    burn_in: int  # most rows before them
    has_time: bool
    pads_left: bool
    time_major: bool
    crosses: bool
    gamma: float
    tree_offset: int
    states_offset: int
    pages_before: int  # that a window may reach back over, beside the page of its item
    pages_after: int
    levels: tuple[int, ...]

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any], number: int, items: StepItems) -> IndexLayout:
        """Of the number-th index of the region, whose items are these."""
        page_len = int(facts["page_len"])
        most_steps, length, burn_in = _rows_of(items)
        return cls(
            most_steps=most_steps,
            length=length,
            burn_in=burn_in,
            has_time=items.has_time,
            pads_left=not isinstance(items, Transitions) and items.pad == "left",
            time_major=items.time_major,
            crosses=items.crosses,
            gamma=items.gamma,
            tree_offset=int(facts["trees_offset"][number]),
            states_offset=int(facts["states_offset"][number]),
            pages_before=-(-int(facts["history"]) // page_len),
            # Windows that run over ends may have a tail behind each step.
            pages_after=(page_len - 1 + most_steps * (2 if items.crosses else 1)) // page_len,
            levels=tree_levels(int(facts["num_slots"])),
        )

    @property
    def num_pages(self) -> int:
        """The most pages one window touches."""
        return self.pages_before + 1 + self.pages_after

    @property
    def num_entries(self) -> int:
        """Steps of a window that are listed one by one, as their rows do not follow each other."""
        return self.num_rows if self.crosses else 0

    @property
    def num_rows(self) -> int:
        """Rows of an item, padding included; 1 without a time axis."""
        return self.burn_in + self.most_steps if self.has_time else 1

    def words(self) -> list[int]:
        """In the order of INDEX_NAMES, then the levels of the tree."""
        (gamma_bits,) = struct.unpack("<q", struct.pack("<d", self.gamma))
        window = [self.most_steps, self.length, self.burn_in, self.has_time, self.pads_left, self.time_major]
        window.append(self.crosses)
        reach = [self.pages_before, self.pages_after, self.num_pages, len(self.levels)]
        return [*map(int, window), gamma_bits, self.tree_offset, self.states_offset, *reach, *self.levels]


def _rows_of(items: StepItems) -> tuple[int, int, int]:
    """(most steps from the item's own on, those of them that carry loss, most rows before it) of a window."""
    if isinstance(items, Transitions):
        return items.n_step, items.n_step, 0
    if isinstance(items, Sequences):
        return items.length + items.bootstrap, items.length, items.burn_in
    return items.num_rows, items.max_length, 0


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
    "num_levels",
)
# Which word of the facts is which; the last one is the first of the tree's levels.
FACT_NAMES = (*(field.name for field in fields(RegionLayout)), *INDEX_NAMES, "first_level")


def fact_words(layout: RegionLayout, index: IndexLayout) -> list[int]:
    """The words kernels read instead of constants, in the order of FACT_NAMES; as many for every table."""
    words = [*map(int, astuple(layout)), *index.words()]
    return words + [0] * (len(FACT_NAMES) - 1 + MOST_LEVELS - len(words))


@final
@dataclass(frozen=True)
class WindowNeeds:
    """What the outputs of a gather ask of each window, and where the rewards of its steps lie."""

    before: int = 0  # rows before the item's own that burn-in and stacks may show
    needs_next: bool = True  # the row behind its last step is looked at, also where it has all its steps
    reward_offset: int = -1  # inside the frame, of row 0; -1: no return is asked for
    reward_stride: int = 0
    reward_is_double: bool = False


@final
@dataclass(frozen=True)
class ColumnCopy:
    """One output that is copied row by row: a declared column, or a state column at the row behind.

    That is the row behind a transition's last step; of items with a time axis the one behind each of their steps.
    """

    offset: int  # inside the frame, of row 0
    stride: int
    num_bytes: int  # of one row
    stack: int  # cells of one row
    is_next: bool
    pads_zeros: bool
    is_large: bool  # its rows lie apart from the packed records
    is_cell: bool = False  # it lies in start cells, whose numbers stand in the packed records
    is_timed: bool = False  # it has one row for each of an item's, not one an item
    is_state: bool = False  # and padding in front repeats the first row, and the state behind the last step is shown

    @property
    def unit_bytes(self) -> int:
        """The widest unit that all its rows are made of, here and in the output: what one lane moves at a time."""
        together = self.num_bytes | self.offset | self.stride
        return next(unit for unit in UNITS if together % unit == 0)

    @property
    def units(self) -> int:
        """Units of one row: all cells of its stack."""
        return self.stack * self.num_bytes // self.unit_bytes

    @classmethod
    def from_facts(
        cls, column: Mapping[str, Any], stack: int, is_next: bool, pads_zeros: bool, is_timed: bool = False
    ) -> ColumnCopy:
        """From one entry of the serialised layout.

        Raises InvalidConfig where its rows do not lie in the region, DtypeMismatch where they have no bytes.
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


# In the order of the job that kernels are given: where the derived columns go, then what they ask of windows, and where
# rows that lie end to end begin.
OF_ROWS = ("discount", "terminated", "truncated", "episode_step", "first", "mask", "loss_mask")  # with a time axis
OF_VERSIONS = ("policy_version", "staleness")
DERIVED = ("reward", *OF_ROWS, "lane", *OF_VERSIONS, "num_steps")
JOB_NAMES = (*DERIVED, *(field.name for field in fields(WindowNeeds)), "offsets", "num_places", "first_column")
COLUMN_NAMES = (
    *("out", "offset", "stride", "num_bytes", "stack"),
    *("is_next", "pads_zeros", "unit_bytes", "is_timed", "is_state", "is_cell"),
)


def job_words(
    derived: Mapping[str, int],
    needs: WindowNeeds,
    columns: Sequence[tuple[ColumnCopy, int]],
    offsets: int = 0,
    num_places: int = 0,
) -> list[int]:
    """What a call asks of the kernels, in the order of JOB_NAMES and, for each column, of COLUMN_NAMES.

    derived: {name: address}; columns: how each is copied, and to which address. offsets: the address of where the rows
    of each item begin, int64[B + 1], 0 where they have a place each. num_places: rows of all items, padding included.
    """
    words = [derived.get(name, 0) for name in DERIVED] + list(map(int, astuple(needs))) + [offsets, num_places]
    for copy, out in columns:
        words += [out, *(int(getattr(copy, name)) for name in COLUMN_NAMES[1:])]
    return words


def column_named(columns: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any] | None:
    """The entry of the serialised layout with this name."""
    return next((column for column in columns if column["name"] == name), None)
