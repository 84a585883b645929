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
    HAS_STATE,
    LENGTH,
    MOST_STEPS,
    NUM_PAGES,
    NUM_WINDOW_PAGES,
    PAGE_SHIFT,
    ROWS_BEFORE,
    SHARD,
    SLOT_BITS,
    SLOT_MASK,
    STATES_OFFSET,
    fact,
)
from relive.gpu.kernels.pointers import pointer
from relive.gpu.kernels.region_format import FORMAT
from relive.gpu.kernels.walks import walk_back, walk_steps, walk_stretches
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
    WORDS_AFTER,
    WORDS_BEFORE,
    begin_round,
    copy_frames,
    field,
    generation_of,
    is_used,
    load_noted_word,
    load_page_word,
    load_uint16,
    snapshot,
    still_wanted,
)

__all__ = ["begin_windows", "copy_words", "note_words", "recheck", "resolve", "settle_windows"]


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
    key = tl.load(pointer(keys, tl.int64) + item, mask=wanted, other=0)
    slot = key & fact(facts, SLOT_MASK)
    page = slot >> fact(facts, PAGE_SHIFT)
    own = wanted & (key >= 0) & (page < fact(facts, NUM_PAGES))
    own = own & ((key >> FORMAT.value.leaf_bits) == fact(facts, SHARD))
    word = load_noted_word(region, facts, scratch, count, page, own, WORDS_BEFORE)
    copy_frames(region, facts, scratch, count, item.to(tl.int64))
    generation = (key & FORMAT.value.leaf_mask) >> fact(facts, SLOT_BITS)
    good = own & is_used(word) & (generation_of(word) == generation)
    tl.store(field(scratch, count, SLOT) + item, slot, mask=good)
    tl.store(field(scratch, count, WORD) + item, word, mask=good)
    tl.store(field(scratch, count, STATE) + item, tl.where(good, READY, GONE).to(tl.int64), mask=wanted)


@triton.jit(do_not_specialize=ARGUMENTS)
def copy_words(
    region: tl.int64, facts: tl.int64, scratch: tl.int64, count: tl.int32, which: tl.int32, BLOCK: tl.constexpr
) -> None:
    """Copies the words of all pages, before (which 0) or after (1) everything else of a round."""
    page = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    inside = page < fact(facts, NUM_PAGES)
    word = load_page_word(region, facts, page, inside)
    before = snapshot(facts, scratch, count, WORDS_BEFORE)
    after = snapshot(facts, scratch, count, WORDS_AFTER)
    tl.store(before + page, word, mask=inside & (which + page * 0 == 0))
    tl.store(after + page, word, mask=inside & (which + page * 0 != 0))


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
    TIMED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Finds whether each item is live, and the pages and rows of its window. Writes the derived columns of the job.

    TIMED: items have a time axis, and no sums over their steps. BY_KEY: the state of a key's leaf is read. Otherwise
    keys and probabilities of drawn items are written. A window with a lost page is never shortened: an item of a draw
    is drawn again, and an item by key is LOST until recheck() tells whether the rows that led to the page have changed.
    """
    item = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    slot, ready, live = begin_windows(region, facts, scratch, keys, probabilities, count, item, BY_KEY, BLOCK)
    if TIMED:
        num_steps, episode_step, ends, lost, unmapped = walk_stretches(
            region, facts, job, scratch, count, item, slot, live, mapped_frames, BLOCK
        )
    else:
        num_steps, episode_step, ends, reward, discount, lost, unmapped = walk_steps(
            region, facts, job, scratch, count, item, slot, live, mapped_frames, BLOCK
        )
    if fact(job, ROWS_BEFORE) > 0:
        whole = live & ~lost & ~unmapped
        lost_before, unmapped_before = walk_back(
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
    if not TIMED:
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
        now = load_noted_word(region, facts, scratch, count, page, read, WORDS_AFTER)
        changed = read & (generation_of(now) != generation_of(word))
    else:
        changed = tl.full([BLOCK], 0, tl.int1)
        pages = fact(facts, NUM_WINDOW_PAGES)
        for run in range(pages):
            page = tl.load(field(scratch, count, RUN_PAGES + run) + item, mask=read, other=-1)
            touched = read & (page >= 0)
            word = tl.load(field(scratch, count, RUN_PAGES + pages + run) + item, mask=touched, other=0)
            now = load_noted_word(region, facts, scratch, count, page, touched, WORDS_AFTER)
            moved = (now >> FORMAT.value.state_bits) != (word >> FORMAT.value.state_bits)
            changed = changed | (touched & moved)
    settled = tl.where(state == READY, PRESENT, GONE)
    state = tl.where(changed, WANTED, tl.where(read, settled, state)).to(tl.int64)
    tl.store(states, state, mask=item < count)
    counters = pointer(scratch, tl.int64)
    inside = item < count
    tl.atomic_add(counters, tl.sum((inside & (state == WANTED)).to(tl.int64), 0), sem="relaxed")
    tl.atomic_add(counters + 1, tl.sum((inside & (state == GONE)).to(tl.int64), 0), sem="relaxed")
    if present != 0:
        tl.store(pointer(present, tl.int8) + item, (state == PRESENT).to(tl.int8), mask=inside)
