"""Places of an item's rows: in the arrays of a batch, and in the item's window.

A place is the number of a row in an output with one row for each row of an item: [B, T], [T, B] or, ragged, [rows].
"""

from __future__ import annotations

import triton
import triton.language as tl

from relive.gpu.kernels.facts import (
    BURN_IN,
    CROSSES,
    MOST_STEPS,
    NUM_WINDOW_PAGES,
    OFFSETS,
    PADS_LEFT,
    PAGE_LEN,
    TIME_MAJOR,
    fact,
)
from relive.gpu.kernels.pointers import pointer
from relive.gpu.kernels.region_format import FORMAT
from relive.gpu.kernels.words import LEAD, RUN_PAGES, field

__all__ = ["entry_of", "item_of", "lead_of", "rows_in_front", "step_of"]

# An entry of a window that runs over ends has three parts: the row of its step, counted from row 0 of the item's page;
# whether a tail follows; the number of the step in its episode.
STEP_MASK = tl.constexpr(FORMAT.value.step_mask)
CUT_BIT = tl.constexpr(1 << 29)
ROW_SHIFT = tl.constexpr(30)
ROW_BIAS = tl.constexpr(1 << 30)


@triton.jit
def item_of(
    facts: tl.tensor, job: tl.tensor, count: tl.tensor, place: tl.tensor, inside: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """(item, time) of each place. A ragged item is found by a binary search of the offsets."""
    offsets = pointer(fact(job, OFFSETS), tl.int64)
    item, time = place, place * 0
    if fact(job, OFFSETS) != 0:
        item = place * 0
        jump = count.to(tl.int64) * 0 + 1
        while jump < count:
            jump = jump * 2
        while jump > 0:
            begin = tl.load(offsets + item + jump, mask=inside & (item + jump < count), other=0x7FFFFFFFFFFFFFFF)
            item = tl.where(begin <= place, item + jump, item)
            jump = jump // 2
        time = place - tl.load(offsets + item, mask=inside, other=0)
    elif fact(facts, TIME_MAJOR) != 0:
        time = place // count
        item = place - time * count
    else:
        rows = fact(facts, BURN_IN) + fact(facts, MOST_STEPS)
        item = place // rows
        time = place - item * rows
    return item, time


@triton.jit
def rows_in_front(facts: tl.tensor, job: tl.tensor, num_rows: tl.tensor, lead: tl.tensor) -> tl.tensor:
    """Rows of padding before windows of num_rows rows. lead: rows of the window before the item's own step."""
    burn_in = fact(facts, BURN_IN)
    left = fact(facts, PADS_LEFT) * (burn_in + fact(facts, MOST_STEPS) - num_rows)
    right = (1 - fact(facts, PADS_LEFT)) * (burn_in - lead)
    return tl.where(fact(job, OFFSETS) + num_rows * 0 != 0, 0, left + right)


@triton.jit
def entry_of(facts: tl.tensor, scratch: tl.tensor, count: tl.tensor, item: tl.tensor, which: tl.tensor) -> tl.tensor:
    """The address of a step's entry. The item's own step is number BURN_IN of its window."""
    return field(scratch, count, RUN_PAGES + 3 * fact(facts, NUM_WINDOW_PAGES) + which) + item


@triton.jit
def lead_of(
    facts: tl.tensor, scratch: tl.tensor, count: tl.tensor, item: tl.tensor, at_item: tl.tensor, mask: tl.tensor
) -> tl.tensor:
    """Steps of each window before the item's own step. at_item: number of the own step in its episode."""
    lead = tl.minimum(at_item, fact(facts, BURN_IN))
    if fact(facts, CROSSES) != 0:
        lead = tl.load(field(scratch, count, LEAD) + item, mask=mask, other=0)
    return lead


@triton.jit
def step_of(
    facts: tl.tensor,
    scratch: tl.tensor,
    count: tl.tensor,
    item: tl.tensor,
    slot: tl.tensor,
    at_item: tl.tensor,
    lead: tl.tensor,
    along: tl.tensor,
    mask: tl.tensor,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Step number `along` of each window: (row from row 0 of the item's page, number in its episode, 1 if it is cut).

    For windows inside one episode the last part is always 0: only their last step can be cut, see IS_CUT.
    """
    row = (slot & (fact(facts, PAGE_LEN) - 1)) - lead + along
    episode_step = at_item - lead + along
    is_cut = row * 0
    if fact(facts, CROSSES) != 0:
        entry = tl.load(entry_of(facts, scratch, count, item, fact(facts, BURN_IN) - lead + along), mask=mask, other=0)
        row = (entry >> ROW_SHIFT) - ROW_BIAS
        episode_step = entry & STEP_MASK
        is_cut = (entry >> 29) & 1
    return row, episode_step, is_cut
