"""Windows that run over ends of episodes: their steps, and the places of these steps.

There are tails between the steps, so a window is a list of rows: the scratch of the call has an entry for each step.
Copies, derived columns and the re-check are those of all windows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from relive.gpu.kernels.derived import fill_item
from relive.gpu.kernels.facts import (
    BURN_IN,
    HAS_STATE,
    LANE_AT,
    MARK_BYTES,
    MARKS_OFFSET,
    MOST_STEPS,
    NEEDS_NEXT,
    NEXT_AT,
    NUM_WINDOW_PAGES,
    PAGE_LEN,
    PAGE_SHIFT,
    PAGES_BEFORE,
    PREV_AT,
    RECORD_STRIDE,
    ROWS_BEFORE,
    fact,
)
from relive.gpu.kernels.places import CUT_BIT, ROW_BIAS, ROW_SHIFT, entry_of
from relive.gpu.kernels.windows import begin_windows, settle_windows
from relive.gpu.kernels.words import (
    ARGUMENTS,
    EPISODE_STEP,
    LEAD,
    NUM_ROWS,
    NUM_STEPS,
    WORD,
    field,
    follow,
    frame_base,
    is_tail,
    is_terminated,
    is_truncated,
    load_int32,
    load_int64,
    note_run,
    page_record,
    step_end,
    step_number,
)

__all__ = ["resolve_across"]


@triton.jit
def _lane_at(region: tl.tensor, facts: tl.tensor, page: tl.tensor, row: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """The low half of the uid of each step's lane."""
    mark = region + fact(facts, MARKS_OFFSET) + (page * fact(facts, PAGE_LEN) + row) * fact(facts, MARK_BYTES)
    return load_int32(mark + fact(facts, LANE_AT), mask)


@triton.jit
def _walk_across(
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
    """Walks from each item's own step over the steps of its window, or to the end of the lane.

    -> (num_steps, episode_step, base of the item's page, lane, whether a row is lost, whether a frame is not mapped).
    After an end the lane itself may end: no row follows, or the next row is of another lane or of an abandoned episode.
    """
    last_row = fact(facts, PAGE_LEN) - 1
    page = slot >> fact(facts, PAGE_SHIFT)
    offset = slot & last_row
    word = tl.load(field(scratch, count, WORD) + item, mask=good, other=0)
    base, seen = frame_base(region, facts, page, good, mapped_frames)
    own_base = base
    end = step_end(region, facts, page, good)
    run = tl.full([BLOCK], 0, tl.int64) + fact(facts, PAGES_BEFORE)
    note_run(scratch, facts, count, item, run, page, word, base, good)
    lane = _lane_at(region, facts, page, offset, good)
    most = fact(facts, MOST_STEPS)
    has_state = fact(facts, HAS_STATE) + slot * 0 != 0
    looks_behind = has_state & (fact(job, NEEDS_NEXT) + slot * 0 != 0)
    at = offset
    num_steps = tl.full([BLOCK], 0, tl.int64)
    episode_step = tl.full([BLOCK], 0, tl.int64)
    entry = tl.full([BLOCK], 0, tl.int64)
    is_behind = tl.full([BLOCK], 0, tl.int1)  # the row before was an end
    lost = tl.full([BLOCK], 0, tl.int1)
    unmapped = good & ~seen
    moving = good & seen
    num_moving = tl.sum(moving.to(tl.int32), 0)
    while num_moving > 0:
        row = at & last_row
        crossing = moving & (row == 0) & (at > offset)
        has_room = run + 1 < fact(facts, NUM_WINDOW_PAGES)
        there, there_word, found = follow(region, facts, page, NEXT_AT, crossing & has_room)
        there_base, there_seen = frame_base(region, facts, there, found, mapped_frames)
        run = run + found.to(tl.int64)
        note_run(scratch, facts, count, item, run, there, there_word, there_base, found)
        page, base = tl.where(found, there, page), tl.where(found, there_base, base)
        end = tl.where(found, step_end(region, facts, there, found), end)
        lost = lost | (crossing & ~found)
        unmapped = unmapped | (found & ~there_seen)
        moving = moving & ~lost & ~unmapped

        is_full = num_steps == most  # this row is only looked at
        is_there = moving & (row < end)
        lost = lost | (moving & ~is_there & ~is_behind & ~is_full)
        tail = is_there & is_tail(region, facts, page, row, is_there)
        ends_step = tail & ~is_behind & has_state & (num_steps > 0)
        last = entry_of(facts, scratch, count, item, fact(facts, BURN_IN) + num_steps - 1)
        tl.store(last, entry | CUT_BIT, mask=ends_step)
        is_step = is_there & ~tail & ~is_full
        other = _lane_at(region, facts, page, row, is_step & is_behind)
        is_step = is_step & (~is_behind | (other == lane))
        head = load_int32(region + base + row * fact(facts, RECORD_STRIDE), is_step)
        number = step_number(head)
        entry = tl.where(is_step, ((at + ROW_BIAS) << ROW_SHIFT) | number, entry)
        mine = entry_of(facts, scratch, count, item, fact(facts, BURN_IN) + num_steps)
        tl.store(mine, entry, mask=is_step)
        episode_step = tl.where(is_step & (num_steps == 0), number, episode_step)
        num_steps = num_steps + is_step.to(tl.int64)

        passes = ends_step & ~is_full
        has_end = is_terminated(head) | is_truncated(head)
        is_behind = tl.where(is_step, ~has_state & has_end, is_behind | passes)
        moving = (is_step | passes) & ((num_steps < most) | looks_behind)
        at_edge = moving & (row == last_row) & is_behind
        follows = load_int64(page_record(region, facts, page) + fact(facts, NEXT_AT), at_edge) != 0
        moving = moving & (~at_edge | follows)
        num_moving = tl.sum(moving.to(tl.int32), 0)
        at += 1
    return num_steps, episode_step, own_base, lane, lost | (good & ~unmapped & (num_steps == 0)), unmapped


@triton.jit
def _lead_across(
    region: tl.tensor,
    facts: tl.tensor,
    job: tl.tensor,
    scratch: tl.tensor,
    count: tl.tensor,
    item: tl.tensor,
    slot: tl.tensor,
    step: tl.tensor,
    base: tl.tensor,
    lane: tl.tensor,
    good: tl.tensor,
    mapped_frames: tl.tensor,
    BLOCK: tl.constexpr,
) -> tuple[tl.tensor, ...]:
    """Walks back over burn-in, at most to the lane's first step, and over the frames of stacks before burn-in.

    step: number of the item's step in its episode. base: of the item's page. lane: of the item's step.
    -> (lead, whether a row is lost, whether a frame is not mapped).
    """
    page = slot >> fact(facts, PAGE_SHIFT)
    offset = slot & (fact(facts, PAGE_LEN) - 1)
    has_state = fact(facts, HAS_STATE) + slot * 0 != 0
    burn_in = fact(facts, BURN_IN)
    row = offset
    back = tl.full([BLOCK], 0, tl.int64)
    rows_before = tl.full([BLOCK], 0, tl.int64)
    lead = tl.full([BLOCK], 0, tl.int64)
    hops = tl.full([BLOCK], 0, tl.int64)
    was_tail = tl.full([BLOCK], 0, tl.int1)
    lost = tl.full([BLOCK], 0, tl.int1)
    unmapped = tl.full([BLOCK], 0, tl.int1)
    moving = good & (lead < burn_in)
    stacking = tl.full([BLOCK], 0, tl.int1)
    frames = step * 0
    num_moving = tl.sum(good.to(tl.int32), 0)
    while num_moving > 0:
        at_page_start = moving & (row == 0)
        link = load_int64(page_record(region, facts, page) + fact(facts, PREV_AT), at_page_start)
        moving = moving & ~(at_page_start & (link == 0))  # the lane begins here
        needed = (moving & at_page_start) | stacking
        has_room = hops < fact(facts, PAGES_BEFORE)
        there, word, found = follow(region, facts, page, PREV_AT, needed & has_room)
        there_base, seen = frame_base(region, facts, there, found, mapped_frames)
        note_run(scratch, facts, count, item, fact(facts, PAGES_BEFORE) - 1 - hops, there, word, there_base, found)
        hops = hops + found.to(tl.int64)
        page, base = tl.where(found, there, page), tl.where(found, there_base, base)
        row = tl.where(found, fact(facts, PAGE_LEN), row)
        lost = lost | (needed & ~found)
        unmapped = unmapped | (found & ~seen)
        moving = moving & ~lost & ~unmapped

        row = row - moving.to(tl.int64)
        back = back + moving.to(tl.int64)
        tail = moving & is_tail(region, facts, page, row, moving)
        other = _lane_at(region, facts, page, row, moving & ~tail & (step == 0))
        is_step = moving & ~tail & ((step > 0) | (other == lane))
        head = load_int32(region + base + row * fact(facts, RECORD_STRIDE), is_step)
        step = tl.where(is_step, step_number(head), step)
        entry = ((offset - back + ROW_BIAS) << ROW_SHIFT) | step | tl.where(was_tail, CUT_BIT, 0)
        tl.store(entry_of(facts, scratch, count, item, burn_in - 1 - lead), entry, mask=is_step)
        rows_before = tl.where(is_step, back, rows_before)
        lead = lead + is_step.to(tl.int64)
        passes = tail & ~was_tail & has_state
        was_tail = tl.where(is_step, False, was_tail | tail)
        moving = (is_step & (lead < burn_in)) | passes

        frames = tl.minimum(fact(job, ROWS_BEFORE) - burn_in, step)
        reach = rows_before + frames - offset - hops * fact(facts, PAGE_LEN)
        stacking = good & ~moving & ~lost & ~unmapped & (reach > 0)
        num_moving = tl.sum((moving | stacking).to(tl.int32), 0)
    return lead, lost, unmapped


@triton.jit(do_not_specialize=ARGUMENTS)
def resolve_across(
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
    """Does what windows.resolve does, for windows that run over ends of episodes."""
    item = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    slot, ready, live = begin_windows(region, facts, scratch, keys, probabilities, count, item, BY_KEY, BLOCK)
    num_steps, episode_step, base, lane, lost, unmapped = _walk_across(
        region, facts, job, scratch, count, item, slot, live, mapped_frames, BLOCK
    )
    whole = live & ~lost & ~unmapped
    lead, lost_before, unmapped_before = _lead_across(
        region, facts, job, scratch, count, item, slot, episode_step, base, lane, whole, mapped_frames, BLOCK
    )
    unmapped = unmapped | unmapped_before
    good = whole & ~lost_before & ~unmapped
    tl.store(field(scratch, count, NUM_STEPS) + item, num_steps, mask=good)
    tl.store(field(scratch, count, EPISODE_STEP) + item, episode_step, mask=good)
    tl.store(field(scratch, count, LEAD) + item, lead, mask=good)
    tl.store(field(scratch, count, NUM_ROWS) + item, lead + num_steps, mask=good)
    fill_item(region, facts, job, item, slot, lead + num_steps, good)
    settle_windows(scratch, count, item, ready, live, good, unmapped, BY_KEY, BLOCK)
