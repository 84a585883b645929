"""The walks of windows inside one episode: which rows and pages a window has, and where it ends (rules W1, A1)."""

from __future__ import annotations

import triton
import triton.language as tl

from relive.gpu.kernels.facts import (
    DISCOUNT_AT,
    GAMMA_BITS,
    HAS_STATE,
    MARK_BYTES,
    MARKS_OFFSET,
    MOST_STEPS,
    NEEDS_NEXT,
    NEXT_AT,
    PAGE_LEN,
    PAGE_SHIFT,
    PAGES_BEFORE,
    PREV_AT,
    RECORD_STRIDE,
    REWARD_IS_DOUBLE,
    REWARD_OFFSET,
    REWARD_STRIDE,
    ROWS_BEFORE,
    TAIL_WORDS,
    TAILS_OFFSET,
    fact,
    real_fact,
)
from relive.gpu.kernels.region_format import FORMAT
from relive.gpu.kernels.words import (
    WORD,
    field,
    follow,
    frame_base,
    has_discount,
    is_tail,
    is_terminated,
    is_truncated,
    load_float32,
    load_float64,
    load_int32,
    load_int64,
    note_run,
    own_frame,
    step_end,
    step_number,
)

__all__ = ["walk_back", "walk_steps", "walk_stretches"]

STRETCH = tl.constexpr(8)  # rows, at most 32


@triton.jit
def _load_reward(job: tl.tensor, frame: tl.tensor, row: tl.tensor, mask: tl.tensor, BLOCK: tl.constexpr) -> tl.tensor:
    cell = frame + fact(job, REWARD_OFFSET) + row * fact(job, REWARD_STRIDE)
    reward = tl.full([BLOCK], 0.0, tl.float64)
    if fact(job, REWARD_IS_DOUBLE) != 0:
        reward = load_float64(cell, mask)
    else:
        reward = load_float32(cell, mask).to(tl.float64)
    return reward


@triton.jit
def walk_steps(
    region: tl.tensor,
    facts: tl.tensor,
    job: tl.tensor,
    scratch: tl.tensor,
    count: tl.tensor,
    item: tl.tensor,
    slot: tl.tensor,
    good: tl.tensor,
    mapped_frames: tl.tensor,
    BLOCK: tl.constexpr,
) -> tuple[tl.tensor, ...]:
    """Walks windows step by step to their most steps or to the episode's end, and finds the next row if needed.

    -> (num_steps, episode_step, ends, reward, discount, whether a row is lost, whether a frame is not mapped).
    ends: bit 0: terminated; bit 1: truncated; bit 2: truncated by the tail after the last step. An end is a bit of a
    row or a tail, never a missing row (rule W1). Sums are float64, in the order of the C++ walk and without fused
    multiply-adds, so they have the same bits.
    """
    last_row = fact(facts, PAGE_LEN) - 1
    page = slot >> fact(facts, PAGE_SHIFT)
    offset = slot & last_row
    word = tl.load(field(scratch, count, WORD) + item, mask=good, other=0)
    base, seen, end = own_frame(region, facts, scratch, count, page, good, mapped_frames)
    run = tl.full([BLOCK], 0, tl.int64) + fact(facts, PAGES_BEFORE)
    note_run(scratch, facts, count, item, run, page, word, base, good)
    most_steps = fact(facts, MOST_STEPS)
    has_state = fact(facts, HAS_STATE) + slot * 0 != 0
    looks_behind = has_state & (fact(job, NEEDS_NEXT) + slot * 0 != 0)
    last_at = offset + most_steps
    gamma = real_fact(facts, GAMMA_BITS)
    reward_sum = tl.full([BLOCK], 0.0, tl.float64)
    product = tl.full([BLOCK], 1.0, tl.float64)
    num_steps = tl.full([BLOCK], 0, tl.int64)
    ends = tl.full([BLOCK], 0, tl.int64)
    episode_step = tl.full([BLOCK], 0, tl.int64)
    unmapped = good & ~seen
    lost = tl.full([BLOCK], 0, tl.int1)
    moving = good & seen
    step = most_steps * 0
    num_moving = tl.sum(moving.to(tl.int32), 0)
    while (step <= most_steps) & (num_moving > 0):
        at = offset + step
        row = at & last_row
        crossing = moving & (row == 0) & (at > offset)
        there, there_word, found = follow(region, facts, page, NEXT_AT, crossing)
        there_base, there_seen = frame_base(region, facts, there, found, mapped_frames)
        run = run + found.to(tl.int64)
        note_run(scratch, facts, count, item, run, there, there_word, there_base, found)
        page, word = tl.where(found, there, page), tl.where(found, there_word, word)
        base = tl.where(found, there_base, base)
        end = tl.where(found, step_end(region, facts, there, found), end)
        lost = lost | (crossing & ~found)
        unmapped = unmapped | (found & ~there_seen)
        moving = moving & ~lost & ~unmapped

        is_first = at == offset
        unknown = moving & (ends == 0) & ~is_first
        tail = is_tail(region, facts, page, row, unknown)
        is_step = moving & (ends == 0) & (at < last_at) & (is_first | ((row < end) & ~tail))
        ends = tl.where(unknown & (row < end) & tail, 6, ends)
        lost = lost | (unknown & (row >= end) & (at < last_at))

        frame = region + base
        head = load_int32(frame + row * fact(facts, RECORD_STRIDE), is_step)
        has_own = has_discount(head)
        mark = region + fact(facts, MARKS_OFFSET) + (page * fact(facts, PAGE_LEN) + row) * fact(facts, MARK_BYTES)
        own = load_float32(mark + fact(facts, DISCOUNT_AT), is_step & has_own)
        discount = tl.where(has_own, own, tl.where(is_terminated(head), 0.0, 1.0)).to(tl.float64)
        episode_step = tl.where(is_step & is_first, step_number(head), episode_step)
        if fact(job, REWARD_OFFSET) >= 0:
            reward = _load_reward(job, frame, row, is_step, BLOCK)
            reward_sum = tl.where(is_step, reward_sum + product * reward, reward_sum)
        product = tl.where(is_step, product * (gamma * discount), product)
        num_steps = num_steps + is_step.to(tl.int64)
        bits = (tl.where(is_terminated(head), 1, 0) | tl.where(is_truncated(head), 2, 0)).to(tl.int64)
        ends = tl.where(is_step, bits, ends)
        goes_on = ((at + 1 < last_at) & ((bits == 0) | has_state)) | ((at + 1 >= last_at) & looks_behind)
        moving = is_step & goes_on
        num_moving = tl.sum(moving.to(tl.int32), 0)
        step += 1
    return num_steps, episode_step, ends, reward_sum, product, lost, unmapped


@triton.jit
def _number(which: tl.tensor) -> tl.tensor:
    """How many rows of each stretch; int64."""
    return tl.sum(which.to(tl.int32), 1).to(tl.int64)


@triton.jit
def _tails_from(region: tl.tensor, facts: tl.tensor, page: tl.tensor, row: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """The tail bits of a stretch of rows of each page, that of `row` lowest; int32. They lie in one word or in two."""
    first = page * fact(facts, TAIL_WORDS) + (row >> FORMAT.value.tail_row_shift)
    behind = tl.minimum(row + STRETCH - 1, fact(facts, PAGE_LEN) - 1)
    second = page * fact(facts, TAIL_WORDS) + (behind >> FORMAT.value.tail_row_shift)
    words = region + fact(facts, TAILS_OFFSET)
    low = load_int64(words + first * FORMAT.value.tail_word_bytes, mask).to(tl.uint64)
    high = load_int64(words + second * FORMAT.value.tail_word_bytes, mask & (second != first)).to(tl.uint64)
    shift = (row & FORMAT.value.tail_row_mask).to(tl.uint64)
    high = tl.where(second != first, high << ((0 - shift) & FORMAT.value.tail_row_mask), 0)
    return ((low >> shift) | high).to(tl.int32)


@triton.jit
def walk_stretches(
    region: tl.tensor,
    facts: tl.tensor,
    job: tl.tensor,
    scratch: tl.tensor,
    count: tl.tensor,
    item: tl.tensor,
    slot: tl.tensor,
    good: tl.tensor,
    mapped_frames: tl.tensor,
    BLOCK: tl.constexpr,
) -> tuple[tl.tensor, ...]:
    """Walks windows as walk_steps does, without sums, and reads a stretch of rows of one page at a time.

    -> (num_steps, episode_step, ends, whether a row is lost, whether a frame is not mapped). Heads of rows that turn
    out to lie behind the end of the episode are read and not used.
    """
    last_row = fact(facts, PAGE_LEN) - 1
    page = slot >> fact(facts, PAGE_SHIFT)
    offset = slot & last_row
    word = tl.load(field(scratch, count, WORD) + item, mask=good, other=0)
    base, seen, end = own_frame(region, facts, scratch, count, page, good, mapped_frames)
    run = tl.full([BLOCK], 0, tl.int64) + fact(facts, PAGES_BEFORE)
    note_run(scratch, facts, count, item, run, page, word, base, good)
    has_state = fact(facts, HAS_STATE) + slot * 0 != 0
    looks_behind = has_state & (fact(job, NEEDS_NEXT) + slot * 0 != 0)
    last_at = offset + fact(facts, MOST_STEPS)
    num_steps = tl.full([BLOCK], 0, tl.int64)
    ends = tl.full([BLOCK], 0, tl.int64)
    episode_step = tl.full([BLOCK], 0, tl.int64)
    unmapped = good & ~seen
    lost = tl.full([BLOCK], 0, tl.int1)
    moving = good & seen
    at = offset
    along = tl.arange(0, STRETCH)[None, :]
    num_moving = tl.sum(moving.to(tl.int32), 0)
    while num_moving > 0:
        row = at & last_row
        crossing = moving & (row == 0) & (at > offset)
        there, there_word, found = follow(region, facts, page, NEXT_AT, crossing)
        there_base, there_seen = frame_base(region, facts, there, found, mapped_frames)
        run = run + found.to(tl.int64)
        note_run(scratch, facts, count, item, run, there, there_word, there_base, found)
        page, base = tl.where(found, there, page), tl.where(found, there_base, base)
        end = tl.where(found, step_end(region, facts, there, found), end)
        lost = lost | (crossing & ~found)
        unmapped = unmapped | (found & ~there_seen)
        moving = moving & ~lost & ~unmapped

        is_open = moving & (ends == 0)
        left = (last_at - at).to(tl.int32)  # rows of the window from this row on
        inside = moving[:, None] & (along <= tl.minimum(left, (last_row - row).to(tl.int32))[:, None])
        is_first = (at == offset)[:, None] & (along == 0)
        known = is_first | (along < (end - row).to(tl.int32)[:, None])
        may_step = inside & is_open[:, None] & known & (along < left[:, None])
        start = region + base + row * fact(facts, RECORD_STRIDE)
        head = load_int32(start[:, None] + along.to(tl.int64) * fact(facts, RECORD_STRIDE), may_step)
        tail = ((_tails_from(region, facts, page, row, is_open)[:, None] >> along) & 1) != 0
        tail = tail & ~is_first
        is_step = may_step & ~tail
        has_end = is_step & (is_terminated(head) | is_truncated(head))
        stops = inside & (~is_step | has_end | (along + 1 >= left[:, None]))
        stop = tl.min(tl.where(stops, along, STRETCH), 1)
        stopped = stop < STRETCH
        here = along == stop[:, None]
        unknown = here & inside & is_open[:, None] & ~is_first
        found_ends = _number(here & is_step & is_terminated(head)) + 2 * _number(here & is_step & is_truncated(head))
        at_step = _number(here & is_step) != 0
        at_tail = _number(unknown & known & tail) != 0
        num_steps += _number(is_step & (along <= stop[:, None]))
        episode_step += tl.sum(tl.where(is_first & is_step, step_number(head).to(tl.int32), 0), 1).to(tl.int64)
        ends = tl.where(at_step, found_ends, tl.where(at_tail, 6, ends))
        lost = lost | (_number(unknown & ~known & (along < left[:, None])) != 0)
        at += tl.where(stopped, stop + 1, tl.sum(inside.to(tl.int32), 1)).to(tl.int64)
        goes_on = ((at < last_at) & ((found_ends == 0) | has_state)) | ((at >= last_at) & looks_behind)
        moving = moving & (~stopped | (at_step & goes_on))
        num_moving = tl.sum(moving.to(tl.int32), 0)
    return num_steps, episode_step, ends, lost, unmapped


@triton.jit
def walk_back(
    region: tl.tensor,
    facts: tl.tensor,
    job: tl.tensor,
    scratch: tl.tensor,
    count: tl.tensor,
    item: tl.tensor,
    slot: tl.tensor,
    episode_step: tl.tensor,
    good: tl.tensor,
    mapped_frames: tl.tensor,
    BLOCK: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Finds the earlier pages of burn-in and stacks: (whether a page is lost, whether a frame is not mapped)."""
    page = slot >> fact(facts, PAGE_SHIFT)
    reach = tl.minimum(episode_step, fact(job, ROWS_BEFORE)) - (slot & (fact(facts, PAGE_LEN) - 1))
    lost = tl.full([BLOCK], 0, tl.int1)
    unmapped = tl.full([BLOCK], 0, tl.int1)
    before = fact(facts, PAGES_BEFORE)
    for hop in range(before):
        needed = good & ~lost & ~unmapped & (reach > hop * fact(facts, PAGE_LEN))
        there, word, found = follow(region, facts, page, PREV_AT, needed)
        base, seen = frame_base(region, facts, there, found, mapped_frames)
        note_run(scratch, facts, count, item, before - 1 - hop, there, word, base, found)
        page = tl.where(found, there, page)
        lost = lost | (needed & ~found)
        unmapped = unmapped | (found & ~seen)
    return lost, unmapped
