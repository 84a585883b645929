"""Launches the kernels of one round in their order, over the scratch of one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
import triton

from relive.gpu.kernels import draw as draw_kernels
from relive.gpu.kernels import rows as row_kernels
from relive.gpu.kernels import windows as window_kernels
from relive.gpu.kernels.words import NUM_FIELDS, WANTED
from relive.gpu.layout_args import ColumnCopy, IndexLayout, RegionLayout
from relive.gpu.outputs import OutputPlan
from relive.gpu.region_view import Span

__all__ = ["COMPILE_OPTIONS", "INTERPRETER_BLOCKS", "BlockSizes", "Drawing", "Rounds", "Scratch"]

# Sums must round as the C++ ones do: a product is rounded before it is added.
COMPILE_OPTIONS: dict[str, Any] = {"num_warps": 4, "enable_fp_fusion": False}

WANTED_STATE = int(WANTED.value)


@final
class Scratch:
    """The windows of one call: fields int64[NUM_FIELDS, B] and states int32[B], all WANTED at first."""

    def __init__(self, num_items: int, device: torch.device) -> None:
        self.num_items = num_items
        self.windows = torch.empty((NUM_FIELDS, num_items), dtype=torch.int64, device=device)
        self.status = torch.full((num_items,), WANTED_STATE, dtype=torch.int32, device=device)

    def num_wanted(self) -> int:
        """Items not read yet, or changed while they were. Waits for the launches so far."""
        return int((self.status == WANTED_STATE).sum())


class Drawing(NamedTuple):
    """Where a draw's numbers come from and where its results go."""

    strata: torch.Tensor  # int32[B]
    slots: torch.Tensor  # int64[B]
    item_keys: torch.Tensor  # int64[B]
    probabilities: torch.Tensor  # float64[B]
    random_base: int
    points: torch.Tensor | None = None  # float64[B], in [0, total)


@final
@dataclass(frozen=True)
class BlockSizes:
    """How much one program does: items of a block, words of a tile of rows. Powers of two."""

    items: int = 128
    words: int = 1024

    def tile(self, column: ColumnCopy) -> tuple[int, int]:
        """(items, words) that one program copies: whole small rows of many items, or a tile of one large row."""
        words = min(triton.next_power_of_2(column.words), self.words)
        return self.words // words, words


# The interpreter runs programs one after the other, about 10 ms each whatever they hold.
INTERPRETER_BLOCKS = BlockSizes(items=1024, words=1 << 15)


def start_kernel(kernel: Any, grid: tuple[int, ...], *arguments: int | None, **constants: Any) -> None:
    """Launches on the current stream and returns; by the interpreter, runs it to its end."""
    kernel[grid](*arguments, **constants, **COMPILE_OPTIONS)


@final
@dataclass(frozen=True)
class Rounds:
    """The launches of one round. Every method returns at once on a CUDA device; they follow one another in its stream.

    start: how a kernel is launched; the compile check notes launches instead.
    pause: a seam for tests of torn reads, else None: called with "drawn" before page words are noted, with "taken" when
    a draw has its leaves, with "walked" before the rows are copied and with "copied" before the re-check.
    """

    layout: RegionLayout
    index: IndexLayout
    blocks: BlockSizes = BlockSizes()
    start: Callable[..., None] = start_kernel
    pause: Callable[[str], None] | None = None

    def gather(self, span: Span, scratch: Scratch, keys: torch.Tensor, plan: OutputPlan, out: Sequence[Any]) -> None:
        """Reads the wanted items among keys int64[B] into out, and says of each whether it held still."""
        self._note(span, scratch, keys, by_key=True)
        self._read(span, scratch, plan, out, by_key=True)

    def draw(self, span: Span, scratch: Scratch, drawing: Drawing, num_strata: int) -> None:
        """Draws the wanted items; no rows are read."""
        self._take(span, scratch, drawing, num_strata)
        self._recheck(span, scratch, only_generation=True)

    def sample(
        self, span: Span, scratch: Scratch, drawing: Drawing, num_strata: int, plan: OutputPlan, out: Sequence[Any]
    ) -> None:
        """Draws the wanted items and reads them."""
        self._take(span, scratch, drawing, num_strata)
        self._read(span, scratch, plan, out, by_key=False)

    def _take(self, span: Span, scratch: Scratch, drawing: Drawing, num_strata: int) -> None:
        windows, status, count = scratch.windows.data_ptr(), scratch.status.data_ptr(), scratch.num_items
        grid, block = self._grid(scratch), self.blocks.items
        points = None if drawing.points is None else drawing.points.data_ptr()
        drawn = (drawing.strata.data_ptr(), points, drawing.slots.data_ptr(), windows, status, count, num_strata)
        self.start(
            draw_kernels.draw_slots, grid, span.address, *drawn, drawing.random_base, INDEX=self.index, BLOCK=block
        )
        self._pause("drawn")
        self._note(span, scratch, drawing.slots, by_key=False)
        taken = (windows, status, drawing.item_keys.data_ptr(), drawing.probabilities.data_ptr(), count)
        self.start(draw_kernels.take_leaves, grid, span.address, *taken, INDEX=self.index, **self._common())
        self._pause("taken")

    def _note(self, span: Span, scratch: Scratch, keys: torch.Tensor, by_key: bool) -> None:
        noted = (keys.data_ptr(), scratch.windows.data_ptr(), scratch.status.data_ptr(), scratch.num_items)
        self.start(
            window_kernels.note_words, self._grid(scratch), span.address, *noted, BY_KEY=by_key, **self._common()
        )

    def _read(self, span: Span, scratch: Scratch, plan: OutputPlan, out: Sequence[Any], by_key: bool) -> None:
        head = (span.address, scratch.windows.data_ptr(), scratch.status.data_ptr())
        count, grid, common = scratch.num_items, self._grid(scratch), self._common()
        self.start(window_kernels.follow_links, grid, *head, count, BY_KEY=by_key, INDEX=self.index, **common)
        walked = (*head, count, span.mapped_frames)
        self.start(window_kernels.walk_windows, grid, *walked, NEEDS=plan.needs, INDEX=self.index, **common)
        self._pause("walked")
        for one, array in zip(plan.outputs, out, strict=True):
            if one.copy is not None:
                self._copy(head, array.data_ptr(), count, one.copy)
        derived = plan.derived_addresses(out)
        if derived is not None:
            self.start(row_kernels.fill_derived, grid, *head, count, *derived, NEEDS=plan.needs, **common)
        self._pause("copied")
        self._recheck(span, scratch, only_generation=False)

    def _copy(self, head: tuple[int, int, int], out: int, count: int, column: ColumnCopy) -> None:
        items, words = self.blocks.tile(column)
        grid = (triton.cdiv(count, items), column.stack, triton.cdiv(column.words, words))
        tile = {"COLUMN": column, "LAYOUT": self.layout, "ITEMS": items, "WORDS": words}
        self.start(row_kernels.copy_rows, grid, *head, out, count, **tile)

    def _recheck(self, span: Span, scratch: Scratch, only_generation: bool) -> None:
        checked = (span.address, scratch.windows.data_ptr(), scratch.status.data_ptr(), scratch.num_items)
        constants = {"ONLY_GENERATION": only_generation, **self._common()}
        self.start(window_kernels.recheck, self._grid(scratch), *checked, **constants)

    def _common(self) -> dict[str, Any]:
        return {"LAYOUT": self.layout, "BLOCK": self.blocks.items}

    def _pause(self, where: str) -> None:
        if self.pause is not None:
            self.pause(where)

    def _grid(self, scratch: Scratch) -> tuple[int]:
        return (triton.cdiv(scratch.num_items, self.blocks.items),)
