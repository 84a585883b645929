"""Copies the rows of resolved windows into the columns of a batch, and fills the derived columns."""

from __future__ import annotations

import triton
import triton.language as tl

from relive.gpu.kernels.words import (
    BASE,
    DISCOUNT,
    ENDS,
    EPISODE_STEP,
    NEXT_BASE,
    NUM_STEPS,
    PREV_BASE,
    READY,
    REWARD,
    SLOT,
    field,
    load_int32,
    load_int64,
    page_record,
    real_field,
)

__all__ = ["copy_rows", "fill_derived"]


@triton.jit(do_not_specialize=["count"])
def copy_rows(
    region: tl.tensor,
    windows: tl.tensor,
    status: tl.tensor,
    out: tl.tensor,
    count: tl.tensor,
    COLUMN: tl.constexpr,
    LAYOUT: tl.constexpr,
    ITEMS: tl.constexpr,
    WORDS: tl.constexpr,
) -> None:
    """One column, [count, stack, words]: a program copies WORDS words of one row of the stack of ITEMS items.

    Small rows: many items a program. Large rows: one item a program, in tiles, 16 bytes a lane where the row allows it.
    Frames newest last; before the episode's first frame that frame again, or zeros. Rows are fetched anew (.cv): a
    draw may find an item that was published after the launch, in a frame whose old bytes a cache still holds.
    """
    item = tl.program_id(0) * ITEMS + tl.arange(0, ITEMS)
    position = tl.program_id(1)
    word = tl.program_id(2) * WORDS + tl.arange(0, WORDS)
    ready = tl.load(status.to(tl.pointer_type(tl.int32)) + item, mask=item < count, other=0) == READY
    slot = tl.load(field(windows, count, SLOT) + item, mask=ready, other=0)
    newest = slot & (LAYOUT.page_len - 1)
    if COLUMN.is_next:
        ahead = tl.load(field(windows, count, NUM_STEPS) + item, mask=ready, other=0)
        newest = newest + ahead
    row = newest
    shown = ready
    if COLUMN.stack > 1:
        before = tl.load(field(windows, count, EPISODE_STEP) + item, mask=ready, other=0)
        if COLUMN.is_next:
            before = before + ahead
        back = COLUMN.stack - 1 - position
        row = newest - tl.minimum(before, back)
        if COLUMN.pads_zeros:
            shown = ready & (back <= before)
    base = tl.load(field(windows, count, BASE) + item, mask=ready, other=0)
    if COLUMN.is_next:
        next_base = tl.load(field(windows, count, NEXT_BASE) + item, mask=ready, other=0)
        behind = row >= LAYOUT.page_len
        base = tl.where(behind, next_base, base)
        row = tl.where(behind, row - LAYOUT.page_len, row)
    if COLUMN.stack > 1:
        prev_base = tl.load(field(windows, count, PREV_BASE) + item, mask=ready & (row < 0), other=0)
        base = tl.where(row < 0, prev_base, base)
        row = tl.where(row < 0, row + LAYOUT.page_len, row)
    if COLUMN.word_bytes == 8:
        kind = tl.int64
    elif COLUMN.word_bytes == 4:
        kind = tl.int32
    elif COLUMN.word_bytes == 2:
        kind = tl.int16
    else:
        kind = tl.int8
    ALIGNED: tl.constexpr = COLUMN.aligned_bytes
    source = (region + base + COLUMN.offset + row * COLUMN.stride).to(tl.pointer_type(kind))
    written = (item.to(tl.int64) * COLUMN.stack + position) * COLUMN.num_bytes
    target = (out + written).to(tl.pointer_type(kind))
    inside = (word < COLUMN.words)[None, :]
    source = tl.multiple_of(source, ALIGNED)[:, None] + word[None, :]
    target = tl.multiple_of(target, ALIGNED)[:, None] + word[None, :]
    values = tl.load(source, mask=inside & shown[:, None], other=0, cache_modifier=".cv")
    tl.store(target, values, mask=inside & ready[:, None])


@triton.jit(do_not_specialize=["count"])
def fill_derived(
    region: tl.tensor,
    windows: tl.tensor,
    status: tl.tensor,
    count: tl.tensor,
    reward: tl.tensor | None,
    discount: tl.tensor | None,
    terminated: tl.tensor | None,
    truncated: tl.tensor | None,
    episode_step: tl.tensor | None,
    first: tl.tensor | None,
    lane: tl.tensor | None,
    policy_version: tl.tensor | None,
    staleness: tl.tensor | None,
    num_steps: tl.tensor | None,
    NEEDS: tl.constexpr,
    LAYOUT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Every derived column that was asked for (address of its output; None: not asked)."""
    item = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ready = tl.load(status.to(tl.pointer_type(tl.int32)) + item, mask=item < count, other=0) == READY
    if reward is not None:
        value = tl.load(real_field(windows, count, REWARD) + item, mask=ready, other=0.0)
        if NEEDS.reward_is_double:
            tl.store(reward.to(tl.pointer_type(tl.float64)) + item, value, mask=ready)
        else:
            tl.store(reward.to(tl.pointer_type(tl.float32)) + item, value.to(tl.float32), mask=ready)
    if discount is not None:
        value = tl.load(real_field(windows, count, DISCOUNT) + item, mask=ready, other=0.0)
        tl.store(discount.to(tl.pointer_type(tl.float32)) + item, value.to(tl.float32), mask=ready)
    ends = tl.load(field(windows, count, ENDS) + item, mask=ready, other=0)
    if terminated is not None:
        tl.store(terminated.to(tl.pointer_type(tl.int8)) + item, (ends & 1).to(tl.int8), mask=ready)
    if truncated is not None:
        tl.store(truncated.to(tl.pointer_type(tl.int8)) + item, ((ends >> 1) & 1).to(tl.int8), mask=ready)
    position = tl.load(field(windows, count, EPISODE_STEP) + item, mask=ready, other=0)
    if episode_step is not None:
        tl.store(episode_step.to(tl.pointer_type(tl.int64)) + item, position, mask=ready)
    if first is not None:
        tl.store(first.to(tl.pointer_type(tl.int8)) + item, (position == 0).to(tl.int8), mask=ready)
    slot = tl.load(field(windows, count, SLOT) + item, mask=ready, other=0)
    if lane is not None:
        record = page_record(region, slot >> LAYOUT.page_shift, LAYOUT)
        uid = load_int64(record + LAYOUT.page_lane_uid_at, ready)
        tl.store(lane.to(tl.pointer_type(tl.int64)) + item, uid, mask=ready)
    if policy_version is not None or staleness is not None:  # else marks are left alone: a line of memory an item
        mark = region + LAYOUT.marks_offset + slot * LAYOUT.mark_bytes
        version = load_int32(mark + LAYOUT.version_at, ready).to(tl.int64) & 0xFFFFFFFF
        if policy_version is not None:
            tl.store(policy_version.to(tl.pointer_type(tl.int64)) + item, version, mask=ready)
        if staleness is not None:
            now = load_int32(region + LAYOUT.policy_version_at + item * 0, ready).to(tl.int64) & 0xFFFFFFFF
            tl.store(staleness.to(tl.pointer_type(tl.int64)) + item, now - version, mask=ready)
    if num_steps is not None:
        steps = tl.load(field(windows, count, NUM_STEPS) + item, mask=ready, other=0)
        tl.store(num_steps.to(tl.pointer_type(tl.int64)) + item, steps, mask=ready)
