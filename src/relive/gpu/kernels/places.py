"""Where rows of items lie: in the arrays of a batch, and in the windows they are taken from.

A place is a number of a row in an output that has one row for each of an item's: [B, T], [T, B] or, end to end, [rows].
"""

from __future__ import annotations

import triton
import triton.language as tl

from relive.gpu.kernels.facts import BURN_IN, MOST_STEPS, OFFSETS, PADS_LEFT, TIME_MAJOR, fact

__all__ = ["item_of", "rows_in_front"]


@triton.jit
def item_of(
    facts: tl.tensor, job: tl.tensor, count: tl.tensor, place: tl.tensor, inside: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """(item, time) of each place. End to end an item is found by halving the offsets, where those before it begin."""
    offsets = fact(job, OFFSETS).to(tl.pointer_type(tl.int64))
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
    """Rows of padding before windows of num_rows rows, of which lead stand before the item's own."""
    burn_in = fact(facts, BURN_IN)
    left = fact(facts, PADS_LEFT) * (burn_in + fact(facts, MOST_STEPS) - num_rows)
    right = (1 - fact(facts, PADS_LEFT)) * (burn_in - lead)
    return tl.where(fact(job, OFFSETS) + num_rows * 0 != 0, 0, left + right)
