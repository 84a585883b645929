"""Launches the kernels of a round in order, over the scratch memory of a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch

from relive.gpu.kernels import crossing as crossing_kernels
from relive.gpu.kernels import draw as draw_kernels
from relive.gpu.kernels import rows as row_kernels
from relive.gpu.kernels import times as time_kernels
from relive.gpu.kernels import windows as window_kernels
from relive.gpu.kernels.words import FIELDS_A_PAGE, NUM_COPIES, NUM_COUNTERS, NUM_FIELDS, NUM_ROWS, SLOT, STATE
from relive.gpu.layout_args import IndexLayout, RegionLayout, fact_words
from relive.gpu.outputs import BatchRoom, Job
from relive.gpu.region_view import Span

__all__ = ["INTERPRETER_BLOCKS", "WARP", "BlockSizes", "Drawing", "Rounds", "Scratch", "compile_options", "facts_on"]

WARP = 32  # threads
_cuda: Any = torch.cuda
MOST_WARPS = 4  # of a program


def compile_options(constants: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options that a kernel with these constants is compiled with.

    A block has at least as many items as its program has threads. Triton gives an item of a smaller block to several
    threads. Each of them would load the words of the item for itself, and a writer may change a word in between.

    Sums must round as in C++: a product is rounded before it is added.
    """
    warps = min(MOST_WARPS, constants.get("BLOCK", MOST_WARPS * WARP) // WARP)
    return {"num_warps": warps, "enable_fp_fusion": False}


class Left(NamedTuple):
    """The counts of items at the end of a round."""

    num_wanted: int  # items that are not read yet, or that changed during the read
    num_gone: int


@final
class Scratch:
    """The windows of one call: 8-byte cells, named in kernels/words.py. The first round sets all of them."""

    def __init__(self, num_items: int, index: IndexLayout, device: torch.device) -> None:
        self.num_items = num_items
        num_fields = NUM_FIELDS + FIELDS_A_PAGE * index.num_pages + index.num_entries
        num_cells = (
            NUM_COUNTERS + num_fields * num_items + NUM_COPIES * index.table_pages * index.copies_words(num_items)
        )
        self.cells = torch.empty(num_cells, dtype=torch.int64, device=device)
        self._is_first = True

    @property
    def address(self) -> int:
        """The address of the cells on the device."""
        return self.cells.data_ptr()

    def begin_round(self) -> int:
        """Returns 1 for the first round of the call, and 0 for later rounds. Call it once a round."""
        is_first, self._is_first = self._is_first, False
        return int(is_first)

    def want_all(self) -> None:
        """Drops all results so far: the next round is a first round."""
        self._is_first = True

    def left(self) -> Left:
        """Returns the counts of the last round. Waits for the launches so far, and copies 16 bytes from the device."""
        num_wanted, num_gone = self.cells[:NUM_COUNTERS].tolist()
        return Left(num_wanted, num_gone)

    @property
    def state(self) -> torch.Tensor:
        """The state of each item, int64[B]."""
        return self._field(int(STATE.value))

    @property
    def slot(self) -> torch.Tensor:
        """The slot of each item, int64[B]. -1: the point is past the last leaf."""
        return self._field(int(SLOT.value))

    @property
    def num_rows(self) -> torch.Tensor:
        """The number of rows in the window of each item, without padding, int64[B]."""
        return self._field(int(NUM_ROWS.value))

    def _field(self, number: int) -> torch.Tensor:
        start = NUM_COUNTERS + number * self.num_items
        return self.cells[start : start + self.num_items]


class Drawing(NamedTuple):
    """The random numbers of a draw, and the memory for its results."""

    item_keys: torch.Tensor  # int64[B]
    probabilities: torch.Tensor  # float64[B]
    chains: torch.Tensor  # int32[2, B], the swaps of the shuffle that gives each row its stratum
    shuffle_base: int  # state of the call's random numbers
    random_base: int  # state of this attempt's random numbers
    points: torch.Tensor | None = None  # float64[B], in [0, total): used instead of random numbers


@final
@dataclass(frozen=True)
class BlockSizes:
    """The work of one program: items of a block, units of a column's rows, swaps at a time. Powers of two."""

    items: int = 128
    windows: int = 32  # items with a time axis, whose walk reads a stretch of rows of each at a time
    units: int = 1024
    swaps: int = 1024
    versions: tuple[int, int] = (4, 64)  # items, and rows of an item at a time


# The interpreter runs programs one after the other. Each takes about 10 ms, independent of its size.
INTERPRETER_BLOCKS = BlockSizes(items=1024, windows=1024, units=1 << 16, swaps=4096, versions=(256, 32))


# (kernel, constants, device) -> the compiled kernel and the constants as its last arguments
_compiled: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...]]] = {}


def start_kernel(kernel: Any, grid: tuple[int, ...], *arguments: int, **constants: Any) -> None:
    """Launches a kernel on the current stream and returns. The interpreter runs the kernel to its end.

    Cost: the first launch compiles. Later launches go to the compiled kernel directly. Triton's own launch compares
    every global name of a kernel with its value at compile time: 25 to 65 us in Python for each launch.
    """
    key = (id(kernel), *constants.values(), _cuda.current_device() if _cuda.is_initialized() else None)
    known = _compiled.get(key)
    if known is not None:
        compiled, last = known
        compiled[(*grid, 1, 1)](*arguments, *last)
        return
    compiled = kernel[grid](*arguments, **constants, **compile_options(constants))
    if compiled is not None:  # the interpreter compiles nothing
        _compiled[key] = compiled, tuple(constants[name] for name in kernel.arg_names if name in constants)


def facts_on(device: torch.device, layout: RegionLayout, index: IndexLayout) -> torch.Tensor:
    """Returns the facts of an index of a region, as kernels read them: int64 on the device."""
    return torch.tensor(fact_words(layout, index), dtype=torch.int64, device=device)


@final
@dataclass(frozen=True)
class Rounds:
    """The launches of one round. On a CUDA device every method returns at once, and the launches follow in its stream.

    Args:
        index: the layout of the index.
        facts: facts of the index and its region, on the device (`facts_on`).
        blocks: sizes of blocks.
        start: launches a kernel. The compile check notes launches instead.
        pause: for tests of torn reads, else None. Called with "drawn" before leaves are read again, with "noted" before
            the windows of keys are resolved, with "walked" before rows are copied, and with "copied" before the
            re-check.
    """

    index: IndexLayout
    facts: torch.Tensor
    blocks: BlockSizes = BlockSizes()
    start: Callable[..., None] = start_kernel
    pause: Callable[[str], None] | None = None

    def scratch(self, num_items: int) -> Scratch:
        """Returns scratch memory for one call of num_items items."""
        return Scratch(num_items, self.index, self.facts.device)

    def gather(
        self, span: Span, scratch: Scratch, keys: torch.Tensor, room: BatchRoom, present: torch.Tensor | None = None
    ) -> None:
        """Reads the wanted items among keys int64[B] into the arrays of a room, and notes which changed meanwhile.

        present: takes bool[B], whether each item is there and unchanged. None: not needed.
        """
        self._copy_words(span, scratch, 0)
        noted = (*self._head(span), scratch.address, keys.data_ptr(), scratch.num_items, scratch.begin_round())
        self.start(window_kernels.note_words, self._grid(scratch), *noted, **self._block())
        self._pause("noted")
        self._read(span, scratch, (keys.data_ptr(), 0), room, by_key=True)
        self._recheck(span, scratch, 0 if present is None else present.data_ptr(), only_generation=False)

    def draw(self, span: Span, scratch: Scratch, drawing: Drawing) -> None:
        """Draws the wanted items and reads no rows."""
        self._draw(span, scratch, drawing)
        taken = (drawing.item_keys.data_ptr(), drawing.probabilities.data_ptr(), scratch.num_items)
        head = (*self._head(span), scratch.address)
        self.start(draw_kernels.take_leaves, self._grid(scratch), *head, *taken, **self._block())
        self._recheck(span, scratch, 0, only_generation=True)

    def sample(self, span: Span, scratch: Scratch, drawing: Drawing, room: BatchRoom) -> None:
        """Draws the wanted items and reads their rows into the arrays of a room."""
        self._draw(span, scratch, drawing)
        drawn = (drawing.item_keys.data_ptr(), drawing.probabilities.data_ptr())
        self._read(span, scratch, drawn, room, by_key=False)
        self._recheck(span, scratch, 0, only_generation=False)

    def _draw(self, span: Span, scratch: Scratch, drawing: Drawing) -> None:
        is_first, count, chains = scratch.begin_round(), scratch.num_items, drawing.chains.data_ptr()
        points = 0 if drawing.points is None else drawing.points.data_ptr()
        if is_first and not points:
            self.start(draw_kernels.chain_swaps, (1,), chains, count, drawing.shuffle_base, BLOCK=self.blocks.swaps)
        self._copy_words(span, scratch, 0)
        numbers = (chains, points, count, drawing.shuffle_base, drawing.random_base, is_first)
        head = (*self._head(span), scratch.address)
        self.start(draw_kernels.draw_slots, self._grid(scratch), *head, *numbers, **self._block())
        self._pause("drawn")

    def _read(self, span: Span, scratch: Scratch, items: tuple[int, int], room: BatchRoom, by_key: bool) -> None:
        walked = (*self._head(span), room.job.address, scratch.address, *items, scratch.num_items, span.mapped_frames)
        block = self.blocks.windows if self.index.has_time else self.blocks.items
        grid = (_tiles(scratch.num_items, block),)
        if self.index.crosses:
            self.start(crossing_kernels.resolve_across, grid, *walked, BY_KEY=by_key, BLOCK=block)
        else:
            constants = {"BY_KEY": by_key, "TIMED": self.index.has_time, "BLOCK": block}
            self.start(window_kernels.resolve, grid, *walked, **constants)
        self._pause("walked")
        self._copy(span, scratch, room.lay_out(scratch.state, scratch.num_rows))
        self._pause("copied")

    def _copy(self, span: Span, scratch: Scratch, job: Job) -> None:
        asked = (*self._head(span), job.address, scratch.address, scratch.num_items)
        first = 0
        for columns in (job.packed, job.large):
            if columns:
                most = max(one.units * (job.num_places if one.is_timed else scratch.num_items) for one in columns)
                tiles = (_tiles(most, self.blocks.units), len(columns))
                self.start(row_kernels.copy_columns, tiles, *asked, first, span.mapped_cells, BLOCK=self.blocks.units)
            first += len(columns)
        if job.fills_rows:
            rows = (_tiles(job.num_places, self.blocks.units),)
            self.start(time_kernels.fill_rows, rows, *asked, BLOCK=self.blocks.units)
        if job.fills_versions:
            block, step = self.blocks.versions
            items = (_tiles(scratch.num_items, block),)
            self.start(time_kernels.fill_versions, items, *asked, ITEMS=block, ROWS=step)

    def _recheck(self, span: Span, scratch: Scratch, present: int, only_generation: bool) -> None:
        self._copy_words(span, scratch, 1)
        checked = (*self._head(span), scratch.address, present, scratch.num_items)
        constants = {"ONLY_GENERATION": only_generation, **self._block()}
        self.start(window_kernels.recheck, self._grid(scratch), *checked, **constants)

    def _copy_words(self, span: Span, scratch: Scratch, which: int) -> None:
        if self.index.copies_words(scratch.num_items):
            asked = (*self._head(span), scratch.address, scratch.num_items, which)
            grid = (_tiles(self.index.table_pages, self.blocks.items),)
            self.start(window_kernels.copy_words, grid, *asked, **self._block())

    def _head(self, span: Span) -> tuple[int, int]:
        return span.address, self.facts.data_ptr()

    def _block(self) -> dict[str, int]:
        return {"BLOCK": self.blocks.items}

    def _pause(self, where: str) -> None:
        if self.pause is not None:
            self.pause(where)

    def _grid(self, scratch: Scratch) -> tuple[int]:
        return (_tiles(scratch.num_items, self.blocks.items),)


def _tiles(count: int, block: int) -> int:
    """Returns the number of programs of one block each. At least 1, as devices launch no empty grids."""
    return max(1, -(-count // block))
