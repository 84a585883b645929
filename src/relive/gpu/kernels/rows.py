"""Copies the rows of resolved windows into the columns of a batch."""

from __future__ import annotations

import triton
import triton.language as tl

from relive.gpu.kernels.facts import (
    CELL_STRIDE,
    CELLS_OFFSET,
    COLUMN_WORDS,
    CROSSES,
    FIRST_COLUMN,
    IS_CELL,
    IS_NEXT,
    IS_SHARED,
    IS_STATE,
    IS_TIMED,
    NEXT_OUT,
    NUM_BYTES,
    NUM_PLACES,
    NUM_WINDOW_PAGES,
    OFFSET,
    OUT,
    PADS_ZEROS,
    PAGE_LEN,
    PAGE_SHIFT,
    PAGES_BEFORE,
    RECORD_STRIDE,
    STACK,
    STRIDE,
    TIME_MAJOR,
    UNIT_BYTES,
    fact,
)
from relive.gpu.kernels.places import item_of, lead_of, rows_in_front, step_of
from relive.gpu.kernels.pointers import pointer
from relive.gpu.kernels.region_format import FORMAT
from relive.gpu.kernels.words import (
    ARGUMENTS,
    EPISODE_STEP,
    NUM_ROWS,
    NUM_STEPS,
    READY,
    RUN_PAGES,
    SLOT,
    STATE,
    WANTED,
    field,
    load_int32,
)

__all__ = ["copy_columns"]


@triton.jit
def _copy_units(
    region: tl.tensor,
    facts: tl.tensor,
    job: tl.tensor,
    column: tl.tensor,
    scratch: tl.tensor,
    count: tl.tensor,
    num_places: tl.tensor,
    mapped_cells: tl.tensor,
    BYTES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Copies BLOCK units of one column.

    The newest frame of a stack is last. Before the episode's first frame a stack repeats that frame, or has zeros.
    Padding of a time axis is zero. The exception is a state column: padding before its rows repeats the first row. If
    the device cannot see a start cell, or the row no longer names the cell, the item is WANTED again.

    A state column and its next_ column share rows: a frame of the next stack is in this stack, too, unless it is new,
    and the state after a step of a window is the state of the next step. The program of the state column writes such a
    row to both outputs, and the program of the next_ column leaves it out. So each row crosses the bus once.

    Rows are read by volatile loads. A draw may find an item that was published after the launch, in a frame whose old
    bytes are still in a cache.
    """
    unit = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    units = fact(column, NUM_BYTES) // BYTES
    stack = fact(column, STACK)
    position = unit // units
    within = unit - position * units
    item = position // stack
    position = position - item * stack
    inside = item < num_places
    time = item * 0
    if fact(column, IS_TIMED) != 0:
        item, time = item_of(facts, job, count, item, inside)
    ready = tl.load(field(scratch, count, STATE) + item, mask=inside, other=0) == READY
    slot = tl.load(field(scratch, count, SLOT) + item, mask=ready, other=0)
    ahead = tl.load(field(scratch, count, NUM_STEPS) + item, mask=ready, other=0)
    at_item = tl.load(field(scratch, count, EPISODE_STEP) + item, mask=ready, other=0)
    lead = lead_of(facts, scratch, count, item, at_item, ready)
    along = item * 0  # the row of the window
    shown = ready
    # How many units earlier the next_ column shows this row; and whether the program of the state column writes it.
    earlier = ahead * units
    is_twin = position >= ahead
    is_shared = position + ahead < stack
    if fact(column, IS_TIMED) != 0:
        num_rows = tl.load(field(scratch, count, NUM_ROWS) + item, mask=ready, other=0)
        along = time - rows_in_front(facts, job, num_rows, lead)
        is_state = fact(column, IS_STATE) + item * 0 != 0
        shown = ready & tl.where(is_state, along < num_rows, (along >= 0) & (along < ahead + lead))
        earlier = stack * units * (1 + fact(facts, TIME_MAJOR) * (count.to(tl.int64) - 1)) + item * 0
        is_twin = (along >= 1) & (along < num_rows)
        is_shared = shown & (along + 1 < num_rows)
        along = tl.maximum(along, 0)
        ahead = item * 0 + 1
    newest, before, _ = step_of(facts, scratch, count, item, slot, at_item, lead, along, shown)
    newest += ahead * fact(column, IS_NEXT)
    before += ahead * fact(column, IS_NEXT)
    own = ready & ~(is_shared & (fact(column, IS_SHARED) + item * 0 != 0))
    twin = ready & is_twin & (fact(column, NEXT_OUT) + item * 0 != 0)
    shown = shown & own
    back = stack - 1 - position
    shown = shown & (back <= before + (1 - fact(column, PADS_ZEROS)) * stack)
    row = newest - tl.minimum(before, back)
    run = (row >> fact(facts, PAGE_SHIFT)) + fact(facts, PAGES_BEFORE)
    if fact(facts, CROSSES) != 0:  # the reach of stacks was read row by row, and may be torn
        shown = shown & (tl.load(field(scratch, count, RUN_PAGES + run) + item, mask=shown, other=-1) >= 0)
    bases = field(scratch, count, RUN_PAGES + 2 * fact(facts, NUM_WINDOW_PAGES) + run)
    base = tl.load(bases + item, mask=shown, other=0)
    row = row & (fact(facts, PAGE_LEN) - 1)
    start = base + row * fact(column, STRIDE)
    if fact(column, IS_CELL) != 0:
        record = region + base + row * fact(facts, RECORD_STRIDE)
        word = load_int32(record + FORMAT.value.cell_number_at, shown)
        cell = word.to(tl.int64) & 0xFFFFFFFF
        seen = shown & (cell < mapped_cells)
        tl.store(field(scratch, count, STATE) + item, (item * 0 + WANTED).to(tl.int64), mask=shown & ~seen)
        shown = seen
        start = fact(facts, CELLS_OFFSET) + cell * fact(facts, CELL_STRIDE)
    source = region + start + fact(column, OFFSET) + within * BYTES
    target = fact(column, OUT) + unit * BYTES
    second = fact(column, NEXT_OUT) + (unit - earlier) * BYTES
    if BYTES == 16:
        half = tl.arange(0, 2)[None, :]
        words = tl.multiple_of(pointer(source, tl.int64), 16)[:, None] + half
        pair = tl.load(words, mask=shown[:, None], other=0, volatile=True)
        cells = tl.multiple_of(pointer(target, tl.int64), 16)[:, None] + half
        tl.store(cells, pair, mask=own[:, None])
        cells = tl.multiple_of(pointer(second, tl.int64), 16)[:, None] + half
        tl.store(cells, pair, mask=twin[:, None])
    elif BYTES == 4:
        value = tl.load(pointer(source, tl.int32), mask=shown, other=0, volatile=True)
        tl.store(pointer(target, tl.int32), value, mask=own)
        tl.store(pointer(second, tl.int32), value, mask=twin)
    else:
        value = tl.load(pointer(source, tl.int8), mask=shown, other=0, volatile=True)
        tl.store(pointer(target, tl.int8), value, mask=own)
        tl.store(pointer(second, tl.int8), value, mask=twin)


@triton.jit(do_not_specialize=ARGUMENTS)
def copy_columns(
    region: tl.int64,
    facts: tl.int64,
    job: tl.int64,
    scratch: tl.int64,
    count: tl.int32,
    first: tl.int32,
    mapped_cells: tl.int64,
    BLOCK: tl.constexpr,
) -> None:
    """Copies columns of the job: column `first` + second coordinate of the grid. A program copies BLOCK units.

    An output is contiguous, so its units have numbers, and each unit finds its item and row from its number. The unit
    is the widest that divides all rows of the column: 16, 4 or 1 bytes.
    """
    column = job + (FIRST_COLUMN + (first + tl.program_id(1)) * COLUMN_WORDS) * 8
    bytes_a_unit = fact(column, UNIT_BYTES)
    places = count.to(tl.int64)
    if fact(column, IS_TIMED) != 0:
        places = fact(job, NUM_PLACES)
    rows = places * fact(column, STACK)
    if tl.program_id(0).to(tl.int64) * BLOCK * bytes_a_unit < rows * fact(column, NUM_BYTES):
        if bytes_a_unit == 16:
            _copy_units(region, facts, job, column, scratch, count, places, mapped_cells, 16, BLOCK)
        elif bytes_a_unit == 4:
            _copy_units(region, facts, job, column, scratch, count, places, mapped_cells, 4, BLOCK)
        else:
            _copy_units(region, facts, job, column, scratch, count, places, mapped_cells, 1, BLOCK)
