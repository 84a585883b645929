"""From keys to windows: the rows that an item needs, and whether the item's pages have changed (rules G2 to G4).

Launches, in order on one stream: note_words (of keys; draw.draw_slots for a draw) -> resolve -> the copies of rows.py
-> recheck. Each item is one lane of a block. A window spans as many pages as it needs, found link by link.
"""

from __future__ import annotations

import triton
import triton.language as tl

from relive.gpu.kernels.derived import fill_item, fill_transition
from relive.gpu.kernels.draw import take
from relive.gpu.kernels.facts import (
    BURN_IN,
    DISCOUNT_AT,
    GAMMA_BITS,
    HAS_STATE,
    HAS_TIME,
    LENGTH,
    MARK_BYTES,
    MARKS_OFFSET,
    MOST_STEPS,
    NEEDS_NEXT,
    NEXT_AT,
    NUM_PAGES,
    NUM_WINDOW_PAGES,
    PAGE_LEN,
    PAGE_SHIFT,
    PAGES_BEFORE,
    PREV_AT,
    RECORD_STRIDE,
    REWARD_IS_DOUBLE,
    REWARD_OFFSET,
    REWARD_STRIDE,
    ROWS_BEFORE,
    SHARD,
    SLOT_BITS,
    SLOT_MASK,
    STATES_OFFSET,
    fact,
    real_fact,
)
from relive.gpu.kernels.region_format import FORMAT
from relive.gpu.kernels.words import (
    ARGUMENTS,
    EPISODE_STEP,
    GONE,
    IS_CUT,
    LOST,
    NUM_ROWS,
    NUM_STEPS,
    PRESENT,
    READY,
    RUN_PAGES,
    SLOT,
    STATE,
    WANTED,
    WORD,
    begin_round,
    field,
    follow,
    frame_base,
    generation_of,
    has_discount,
    is_tail,
    is_terminated,
    is_truncated,
    is_used,
    load_float32,
    load_float64,
    load_int32,
    load_page_word,
    load_uint16,
    note_run,
    step_end,
    step_number,
    still_wanted,
)

__all__ = ["begin_windows", "note_words", "recheck", "resolve", "settle_windows"]


@triton.jit(do_not_specialize=ARGUMENTS)
def note_words(
    region: tl.int64,
    facts: tl.int64,
    scratch: tl.int64,
    keys: tl.int64,
    count: tl.int32,
    is_first: tl.int32,
    BLOCK: tl.constexpr,
) -> None:
    """Notes slot and page word of each wanted key, int64[count]. GONE: key and page are of different generations."""
    begin_round(scratch)
    item = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    wanted = still_wanted(scratch, count, item, item < count, is_first)
    key = tl.load(keys.to(tl.pointer_type(tl.int64)) + item, mask=wanted, other=0)
    slot = key & fact(facts, SLOT_MASK)
    page = slot >> fact(facts, PAGE_SHIFT)
    own = wanted & (key >= 0) & (page < fact(facts, NUM_PAGES))
    own = own & ((key >> FORMAT.value.leaf_bits) == fact(facts, SHARD))
    word = load_page_word(region, facts, page, own)
    generation = (key & FORMAT.value.leaf_mask) >> fact(facts, SLOT_BITS)
    good = own & is_used(word) & (generation_of(word) == generation)
    tl.store(field(scratch, count, SLOT) + item, slot, mask=good)
    tl.store(field(scratch, count, WORD) + item, word, mask=good)
    tl.store(field(scratch, count, STATE) + item, tl.where(good, READY, GONE).to(tl.int64), mask=wanted)


@triton.jit
def begin_windows(
    region: tl.tensor,
    facts: tl.tensor,
    scratch: tl.tensor,
    keys: tl.tensor,
    probabilities: tl.tensor,
    count: tl.tensor,
    item: tl.tensor,
    BY_KEY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """(slot, whether the item is of this round, whether it is live) of each item. Clears the noted pages of those."""
    ready = tl.load(field(scratch, count, STATE) + item, mask=item < count, other=0) == READY
    slot = tl.load(field(scratch, count, SLOT) + item, mask=ready, other=0)
    if BY_KEY:
        live = _is_item(region, facts, slot, ready)
    else:
        live = take(region, facts, scratch, keys, probabilities, count, item, ready, BLOCK)
    for run in range(fact(facts, NUM_WINDOW_PAGES)):
        tl.store(field(scratch, count, RUN_PAGES + run) + item, tl.full([BLOCK], -1, tl.int64), mask=live)
    return slot, ready, live


@triton.jit
def settle_windows(
    scratch: tl.tensor,
    count: tl.tensor,
    item: tl.tensor,
    ready: tl.tensor,
    live: tl.tensor,
    good: tl.tensor,
    unmapped: tl.tensor,
    BY_KEY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Sets the state of items without a window in this round: by key GONE, LOST or WANTED; of a draw WANTED."""
    if BY_KEY:
        state = tl.where(live, tl.where(unmapped, WANTED, LOST), GONE).to(tl.int64)
    else:
        state = tl.full([BLOCK], WANTED, tl.int64)
    tl.store(field(scratch, count, STATE) + item, state, mask=ready & ~good)


@triton.jit
def _is_item(region: tl.tensor, facts: tl.tensor, slot: tl.tensor, ready: tl.tensor) -> tl.tensor:
    """Whether the leaf of each slot is an item: published and not ended. The page has the key's generation."""
    state = load_uint16(region + fact(facts, STATES_OFFSET) + slot * FORMAT.value.leaf_state_bytes, ready)
    return ready & (state <= FORMAT.value.most_uses)


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
def _walk_ahead(
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
    """Walks windows to their most steps or to the episode's end, and finds the next row if the job needs it.

    -> (num_steps, episode_step, ends, reward, discount, whether a row is lost, whether a frame is not mapped).
    ends: bit 0: terminated; bit 1: truncated; bit 2: truncated by the tail after the last step. An end is a bit of a
    row or a tail, never a missing row (rule W1). Sums are float64, in the order of the C++ walk and without fused
    multiply-adds, so they have the same bits.
    """
    last_row = fact(facts, PAGE_LEN) - 1
    page = slot >> fact(facts, PAGE_SHIFT)
    offset = slot & last_row
    word = tl.load(field(scratch, count, WORD) + item, mask=good, other=0)
    base, seen = frame_base(region, facts, page, good, mapped_frames)
    end = step_end(region, facts, page, good)
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
def _walk_back(
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


@triton.jit(do_not_specialize=ARGUMENTS)
def resolve(
    region: tl.int64,
    facts: tl.int64,
    job: tl.int64,
    scratch: tl.int64,
    keys: tl.int64,
    probabilities: tl.int64,
    count: tl.int32,
    mapped_frames: tl.int64,
    BY_KEY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Finds whether each item is live, and the pages and rows of its window. Writes the derived columns of the job.

    BY_KEY: the state of a key's leaf is read. Otherwise keys and probabilities of drawn items are written. A window
    with a lost page is never shortened: an item of a draw is drawn again, and an item by key is LOST until recheck()
    tells whether the rows that led to the page have changed.
    """
    item = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    slot, ready, live = begin_windows(region, facts, scratch, keys, probabilities, count, item, BY_KEY, BLOCK)
    num_steps, episode_step, ends, reward, discount, lost, unmapped = _walk_ahead(
        region, facts, job, scratch, count, item, slot, live, mapped_frames, BLOCK
    )
    if fact(job, ROWS_BEFORE) > 0:
        whole = live & ~lost & ~unmapped
        lost_before, unmapped_before = _walk_back(
            region, facts, job, scratch, count, item, slot, episode_step, whole, mapped_frames, BLOCK
        )
        lost, unmapped = lost | lost_before, unmapped | unmapped_before
    good = live & ~lost & ~unmapped
    lead = tl.minimum(episode_step, fact(facts, BURN_IN))
    is_cut = (ends >> 2) & 1
    has_tail = is_cut | ((ends != 0).to(tl.int64) * fact(facts, HAS_STATE))
    bootstraps = fact(facts, MOST_STEPS) - fact(facts, LENGTH) + num_steps * 0 > 0
    shows_tail = bootstraps & (has_tail != 0) & (num_steps < fact(facts, MOST_STEPS))
    tl.store(field(scratch, count, NUM_STEPS) + item, num_steps, mask=good)
    tl.store(field(scratch, count, EPISODE_STEP) + item, episode_step, mask=good)
    tl.store(field(scratch, count, NUM_ROWS) + item, lead + num_steps + shows_tail.to(tl.int64), mask=good)
    tl.store(field(scratch, count, IS_CUT) + item, is_cut, mask=good)
    fill_item(region, facts, job, item, slot, lead + num_steps, good)
    if fact(facts, HAS_TIME) == 0:
        fill_transition(region, facts, job, item, slot, episode_step, ends, reward, discount, good)
    settle_windows(scratch, count, item, ready, live, good, unmapped, BY_KEY, BLOCK)


@triton.jit(do_not_specialize=ARGUMENTS)
def recheck(
    region: tl.int64,
    facts: tl.int64,
    scratch: tl.int64,
    present: tl.int64,
    count: tl.int32,
    ONLY_GENERATION: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Sets PRESENT if no page of a window has changed, else WANTED. Launched after all copies.

    State bits are ignored (OPEN -> CLOSED is harmless). ONLY_GENERATION: no rows were read, so moves are ignored too.
    Counts the items that are WANTED and GONE. present: the address of bool[count], or 0.
    """
    item = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    states = field(scratch, count, STATE) + item
    state = tl.load(states, mask=item < count, other=GONE)
    read = (state == READY) | (state == LOST)
    if ONLY_GENERATION:
        page = tl.load(field(scratch, count, SLOT) + item, mask=read, other=0) >> fact(facts, PAGE_SHIFT)
        word = tl.load(field(scratch, count, WORD) + item, mask=read, other=0)
        changed = read & (generation_of(load_page_word(region, facts, page, read)) != generation_of(word))
    else:
        changed = tl.full([BLOCK], 0, tl.int1)
        pages = fact(facts, NUM_WINDOW_PAGES)
        for run in range(pages):
            page = tl.load(field(scratch, count, RUN_PAGES + run) + item, mask=read, other=-1)
            touched = read & (page >= 0)
            word = tl.load(field(scratch, count, RUN_PAGES + pages + run) + item, mask=touched, other=0)
            now = load_page_word(region, facts, page, touched)
            moved = (now >> FORMAT.value.state_bits) != (word >> FORMAT.value.state_bits)
            changed = changed | (touched & moved)
    settled = tl.where(state == READY, PRESENT, GONE)
    state = tl.where(changed, WANTED, tl.where(read, settled, state)).to(tl.int64)
    tl.store(states, state, mask=item < count)
    counters = scratch.to(tl.pointer_type(tl.int64))
    inside = item < count
    tl.atomic_add(counters, tl.sum((inside & (state == WANTED)).to(tl.int64), 0), sem="relaxed")
    tl.atomic_add(counters + 1, tl.sum((inside & (state == GONE)).to(tl.int64), 0), sem="relaxed")
    if present != 0:
        tl.store(present.to(tl.pointer_type(tl.int8)) + item, (state == PRESENT).to(tl.int8), mask=inside)
