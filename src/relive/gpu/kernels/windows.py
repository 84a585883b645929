"""From keys to windows: which rows an item needs, and whether its pages are still what they were (rules G2 to G4).

Four launches, one after the other on one stream, with the copies of rows.py between the last two:
note_words -> follow_links -> walk_windows -> (copies) -> recheck. Each item is one lane of a block.
"""

from __future__ import annotations

import triton
import triton.language as tl

from relive.gpu.kernels.words import (
    BASE,
    DISCOUNT,
    ENDS,
    EPISODE_STEP,
    GONE,
    NEXT_BASE,
    NEXT_PAGE,
    NEXT_WORD,
    NUM_STEPS,
    PRESENT,
    PREV_BASE,
    PREV_PAGE,
    PREV_WORD,
    READY,
    REWARD,
    SLOT,
    TOUCHED,
    WANTED,
    WORD,
    field,
    is_tail,
    is_used,
    load_float32,
    load_float64,
    load_int32,
    load_int64,
    load_page_word,
    load_uint16,
    page_record,
    real_field,
)

__all__ = ["follow_links", "note_words", "recheck", "walk_windows"]


@triton.jit(do_not_specialize=["count"])
def note_words(
    region: tl.tensor,
    keys: tl.tensor,
    windows: tl.tensor,
    status: tl.tensor,
    count: tl.tensor,
    BY_KEY: tl.constexpr,
    LAYOUT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Slot and page word of each wanted item. keys: int64[count], or slots (-1: none) where not BY_KEY."""
    item = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    states = status.to(tl.pointer_type(tl.int32)) + item
    wanted = tl.load(states, mask=item < count, other=0) == WANTED
    key = tl.load(keys.to(tl.pointer_type(tl.int64)) + item, mask=wanted, other=0)
    wanted = wanted & (key >= 0)
    slot = key & LAYOUT.slot_mask
    page = slot >> LAYOUT.page_shift
    wanted = wanted & (page < LAYOUT.num_pages)
    word = load_page_word(region, page, wanted, LAYOUT)
    good = wanted & is_used(word)
    if BY_KEY:
        good = good & ((word >> 18) == ((key & ((1 << 51) - 1)) >> LAYOUT.slot_bits)) & ((key >> 51) == LAYOUT.shard)
        tl.store(states, GONE, mask=wanted & ~good)
    tl.store(field(windows, count, SLOT) + item, slot, mask=good)
    tl.store(field(windows, count, WORD) + item, word, mask=good)
    tl.store(states, READY, mask=good)


@triton.jit
def _follow(
    region: tl.tensor, ref: tl.tensor, mask: tl.tensor, LAYOUT: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """(page, word, whether it is still the page of that ref)."""
    page = ref & LAYOUT.page_mask
    known = mask & (ref != 0) & (page < LAYOUT.num_pages)
    word = load_page_word(region, page, known, LAYOUT)
    return page, word, known & is_used(word) & ((word >> 18) == (ref >> LAYOUT.page_bits))


@triton.jit(do_not_specialize=["count"])
def follow_links(
    region: tl.tensor,
    windows: tl.tensor,
    status: tl.tensor,
    count: tl.tensor,
    BY_KEY: tl.constexpr,
    INDEX: tl.constexpr,
    LAYOUT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Whether each key is a live item of the index, and the words of the pages before and after it."""
    item = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    states = status.to(tl.pointer_type(tl.int32)) + item
    ready = tl.load(states, mask=item < count, other=0) == READY
    slot = tl.load(field(windows, count, SLOT) + item, mask=ready, other=0)
    page = slot >> LAYOUT.page_shift
    record = page_record(region, page, LAYOUT)
    live = ready
    if BY_KEY:
        offset = slot & (LAYOUT.page_len - 1)
        bounds = load_int64(record + LAYOUT.range_at, ready)
        item_end = (bounds >> 48) & 0xFFFF
        if INDEX.number > 0:
            item_end = load_uint16(record + LAYOUT.item_end_at + 2 * INDEX.number, ready).to(tl.int64)
        live = live & (offset >= ((bounds >> 32) & 0xFFFF)) & (offset < item_end)
        live = live & ~is_tail(region, page, offset, live, LAYOUT)
        live = live & (load_uint16(region + INDEX.times_offset + slot * 2, live) < 0xFFFE)
        tl.store(states, GONE, mask=ready & ~live)
    prev_page, prev_word, has_prev = _follow(region, load_int64(record + LAYOUT.prev_at, live), live, LAYOUT)
    next_page, next_word, has_next = _follow(region, load_int64(record + LAYOUT.next_at, live), live, LAYOUT)
    tl.store(field(windows, count, PREV_PAGE) + item, tl.where(has_prev, prev_page, -1), mask=live)
    tl.store(field(windows, count, PREV_WORD) + item, prev_word, mask=live)
    tl.store(field(windows, count, NEXT_PAGE) + item, tl.where(has_next, next_page, -1), mask=live)
    tl.store(field(windows, count, NEXT_WORD) + item, next_word, mask=live)


@triton.jit
def _frame(
    region: tl.tensor, page: tl.tensor, mask: tl.tensor, mapped_frames: tl.tensor, LAYOUT: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """(bytes from the region's start to the page's frame, whether the device can see it)."""
    frame = load_int32(region + LAYOUT.frames_offset + page * 4, mask).to(tl.int64)
    seen = mask & (frame >= 0) & (frame < mapped_frames)
    base = LAYOUT.slabs_offset + (frame >> LAYOUT.slab_shift) * LAYOUT.slab_bytes
    return base + (frame & LAYOUT.slab_mask) * LAYOUT.frame_bytes, seen


@triton.jit
def _step_end(region: tl.tensor, page: tl.tensor, mask: tl.tensor, LAYOUT: tl.constexpr) -> tl.tensor:
    return (load_int64(page_record(region, page, LAYOUT) + LAYOUT.range_at, mask) >> 16) & 0xFFFF


@triton.jit
def _lane_goes_on(region: tl.tensor, page: tl.tensor, mask: tl.tensor, LAYOUT: tl.constexpr) -> tl.tensor:
    """Whether the lane of a page that has no next page is still being written."""
    record = page_record(region, page, LAYOUT)
    slot = load_int32(record + LAYOUT.page_lane_slot_at, mask).to(tl.int64)
    slot = tl.minimum(tl.maximum(slot, 0), LAYOUT.max_lanes - 1)
    lane = region + LAYOUT.lanes_offset + slot * LAYOUT.lane_bytes
    uid = load_int64(record + LAYOUT.page_lane_uid_at, mask)
    return (load_int32(lane + LAYOUT.lane_state_at, mask) == 1) & (load_int64(lane + LAYOUT.lane_uid_at, mask) == uid)


@triton.jit
def _load_reward(cell: tl.tensor, mask: tl.tensor, NEEDS: tl.constexpr) -> tl.tensor:
    if NEEDS.reward_is_double:
        reward = load_float64(cell, mask)
    else:
        reward = load_float32(cell, mask).to(tl.float64)
    return reward


@triton.jit
def _is_end(
    region: tl.tensor,
    page: tl.tensor,
    word: tl.tensor,
    row: tl.tensor,
    step_end: tl.tensor,
    mask: tl.tensor,
    LAYOUT: tl.constexpr,
) -> tl.tensor:
    """Whether the row after a window is a tail, or the lane was cut before it."""
    is_row = row < step_end
    is_over = ~is_row & ((word & 3) == 2)
    return mask & ((is_row & is_tail(region, page, row, mask, LAYOUT)) | is_over)


@triton.jit(do_not_specialize=["count", "mapped_frames"])
def walk_windows(
    region: tl.tensor,
    windows: tl.tensor,
    status: tl.tensor,
    count: tl.tensor,
    mapped_frames: tl.tensor,
    NEEDS: tl.constexpr,
    INDEX: tl.constexpr,
    LAYOUT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Walks each window up to n_step steps, to the end of the episode or of the lane, and sums the return on the way.

    In float64 and in the order of the C++ walk, without fused multiply-adds: the same bits.
    """
    item = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    states = status.to(tl.pointer_type(tl.int32)) + item
    ready = tl.load(states, mask=item < count, other=0) == READY
    slot = tl.load(field(windows, count, SLOT) + item, mask=ready, other=0)
    page = slot >> LAYOUT.page_shift
    offset = slot & (LAYOUT.page_len - 1)
    next_page = tl.load(field(windows, count, NEXT_PAGE) + item, mask=ready, other=-1)
    has_next = next_page >= 0
    base, good = _frame(region, page, ready, mapped_frames, LAYOUT)
    next_base, next_seen = _frame(region, next_page, has_next, mapped_frames, LAYOUT)
    step_end = _step_end(region, page, good, LAYOUT)
    next_step_end = _step_end(region, next_page, has_next, LAYOUT)

    gamma = tl.full([BLOCK], INDEX.gamma, tl.float64)
    reward_sum = tl.full([BLOCK], 0.0, tl.float64)
    product = tl.full([BLOCK], 1.0, tl.float64)
    num_steps = tl.full([BLOCK], 0, tl.int64)
    ends = tl.full([BLOCK], 0, tl.int64)
    episode_step = tl.full([BLOCK], 0, tl.int64)
    asks_next = tl.full([BLOCK], 0, tl.int1)
    walking = good
    for step in range(INDEX.n_step):
        at = offset + step
        behind = at >= LAYOUT.page_len
        asks_next = asks_next | (walking & behind)
        walking = walking & (~behind | next_seen)
        row = at & (LAYOUT.page_len - 1)
        row_page = tl.where(behind, next_page, page)
        is_step = (row < tl.where(behind, next_step_end, step_end)) & ~is_tail(region, row_page, row, walking, LAYOUT)
        walking = walking & (is_step | (at == offset))
        frame = region + tl.where(behind, next_base, base)
        head = load_int32(frame + row * LAYOUT.record_stride, walking)
        has_own = (head & 0x20000000) != 0
        mark = region + LAYOUT.marks_offset + (row_page * LAYOUT.page_len + row) * LAYOUT.mark_bytes
        usual = tl.where(head < 0, 0.0, 1.0)
        discount = tl.where(has_own, load_float32(mark + LAYOUT.discount_at, walking & has_own), usual).to(tl.float64)
        episode_step = tl.where(at == offset, (head & 0x1FFFFFFF).to(tl.int64), episode_step)
        if NEEDS.reward_offset >= 0:
            cell = frame + NEEDS.reward_offset + row * NEEDS.reward_stride
            reward = _load_reward(cell, walking, NEEDS)
            reward_sum = tl.where(walking, reward_sum + product * reward, reward_sum)
        product = tl.where(walking, product * (gamma * discount), product)
        num_steps = num_steps + walking.to(tl.int64)
        bits = tl.where(head < 0, 1, 0) | ((head >> 29) & 2)
        ends = tl.where(walking, bits.to(tl.int64), ends)
        walking = walking & (bits == 0)

    after = offset + num_steps
    behind = after >= LAYOUT.page_len
    if NEEDS.end:
        unknown = good & (ends == 0)
        asks_next = asks_next | (unknown & behind)
        own_word = tl.load(field(windows, count, WORD) + item, mask=unknown, other=0)
        next_word = tl.load(field(windows, count, NEXT_WORD) + item, mask=unknown, other=0)
        row_page, row_end = tl.where(behind, next_page, page), tl.where(behind, next_step_end, step_end)
        row_word, has_row = tl.where(behind, next_word, own_word), ~behind | has_next
        is_end = _is_end(region, row_page, row_word, after & (LAYOUT.page_len - 1), row_end, unknown & has_row, LAYOUT)
        if not LAYOUT.has_state:
            is_end = is_end | (~has_row & ~_lane_goes_on(region, page, unknown & ~has_row, LAYOUT))
        ends = tl.where(unknown & is_end, 2, ends)
    if LAYOUT.has_state:
        asks_next = asks_next | (good & behind)
        good = good & (~behind | has_next)
    good = good & (~asks_next | ~has_next | next_seen)
    touched = tl.where(asks_next & has_next, 2, 0)
    if NEEDS.history:
        prev_page = tl.load(field(windows, count, PREV_PAGE) + item, mask=ready, other=-1)
        has_prev = prev_page >= 0
        prev_base, prev_seen = _frame(region, prev_page, has_prev, mapped_frames, LAYOUT)
        asks_prev = good & (offset < tl.minimum(episode_step, LAYOUT.history))
        good = good & (~asks_prev | prev_seen)
        touched = touched | tl.where(asks_prev, 1, 0)
        tl.store(field(windows, count, PREV_BASE) + item, prev_base, mask=good)
    tl.store(field(windows, count, BASE) + item, base, mask=good)
    tl.store(field(windows, count, NEXT_BASE) + item, next_base, mask=good)
    tl.store(field(windows, count, NUM_STEPS) + item, num_steps, mask=good)
    tl.store(field(windows, count, EPISODE_STEP) + item, episode_step, mask=good)
    tl.store(field(windows, count, ENDS) + item, ends, mask=good)
    tl.store(field(windows, count, TOUCHED) + item, touched.to(tl.int64), mask=good)
    tl.store(real_field(windows, count, REWARD) + item, reward_sum, mask=good)
    tl.store(real_field(windows, count, DISCOUNT) + item, product, mask=good)
    tl.store(states, WANTED, mask=ready & ~good)


@triton.jit(do_not_specialize=["count"])
def recheck(
    region: tl.tensor,
    windows: tl.tensor,
    status: tl.tensor,
    count: tl.tensor,
    ONLY_GENERATION: tl.constexpr,
    LAYOUT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """PRESENT where every page a window touched is what it was, else WANTED. Launched after all copies are done.

    State bits are ignored (OPEN -> CLOSED is harmless). ONLY_GENERATION: no bytes were read, moves are ignored too.
    """
    item = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    states = status.to(tl.pointer_type(tl.int32)) + item
    ready = tl.load(states, mask=item < count, other=0) == READY
    page = tl.load(field(windows, count, SLOT) + item, mask=ready, other=0) >> LAYOUT.page_shift
    word = tl.load(field(windows, count, WORD) + item, mask=ready, other=0)
    now = load_page_word(region, page, ready, LAYOUT)
    if ONLY_GENERATION:
        same = (now >> 18) == (word >> 18)
    else:
        same = (now >> 2) == (word >> 2)
        touched = tl.load(field(windows, count, TOUCHED) + item, mask=ready, other=0)
        for side in tl.static_range(2):
            uses = ready & ((touched & (1 + side)) != 0)
            page = tl.load(field(windows, count, PREV_PAGE + 2 * side) + item, mask=uses, other=0)
            word = tl.load(field(windows, count, PREV_WORD + 2 * side) + item, mask=uses, other=0)
            now = load_page_word(region, page, uses, LAYOUT)
            same = same & (~uses | ((now >> 2) == (word >> 2)))
    tl.store(states, tl.where(same, PRESENT, WANTED), mask=ready)
