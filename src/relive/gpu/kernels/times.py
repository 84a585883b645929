"""The derived columns of items with a time axis: one value for each row, and policy versions over all rows."""

from __future__ import annotations

import triton
import triton.language as tl

from relive.gpu.kernels.facts import (
    BURN_IN,
    CROSSES,
    DISCOUNT_AT,
    DISCOUNT_OUT,
    EPISODE_STEP_OUT,
    FIRST_OUT,
    GAMMA_BITS,
    LENGTH,
    LOSS_MASK_OUT,
    MARK_BYTES,
    MARKS_OFFSET,
    MASK_OUT,
    MOST_STEPS,
    NUM_PLACES,
    NUM_WINDOW_PAGES,
    PAGE_LEN,
    PAGE_SHIFT,
    PAGES_BEFORE,
    POLICY_VERSION_AT,
    POLICY_VERSION_OUT,
    RECORD_STRIDE,
    STALENESS_OUT,
    TERMINATED_OUT,
    TRUNCATED_OUT,
    VERSION_AT,
    fact,
    real_fact,
)
from relive.gpu.kernels.places import item_of, lead_of, rows_in_front, step_of
from relive.gpu.kernels.pointers import pointer
from relive.gpu.kernels.words import (
    ARGUMENTS,
    EPISODE_STEP,
    IS_CUT,
    NUM_ROWS,
    NUM_STEPS,
    READY,
    RUN_PAGES,
    SLOT,
    STATE,
    field,
    has_discount,
    is_terminated,
    is_truncated,
    load_float32,
    load_int32,
    step_number,
)

__all__ = ["fill_rows", "fill_versions"]


@triton.jit
def _put_bool(job: tl.tensor, which: tl.constexpr, place: tl.tensor, value: tl.tensor, mask: tl.tensor) -> None:
    if fact(job, which) != 0:
        tl.store(pointer(fact(job, which), tl.int8) + place, value.to(tl.int8), mask=mask)


@triton.jit
def _page_and_base(
    facts: tl.tensor, scratch: tl.tensor, count: tl.tensor, item: tl.tensor, row: tl.tensor, mask: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """(page of each row of a window, bytes from the region's start to that page's frame)."""
    run = (row >> fact(facts, PAGE_SHIFT)) + fact(facts, PAGES_BEFORE)
    pages = fact(facts, NUM_WINDOW_PAGES)
    page = tl.load(field(scratch, count, RUN_PAGES + run) + item, mask=mask, other=0)
    base = tl.load(field(scratch, count, RUN_PAGES + 2 * pages + run) + item, mask=mask, other=0)
    return page, base


@triton.jit
def _mark_at(region: tl.tensor, facts: tl.tensor, page: tl.tensor, row: tl.tensor) -> tl.tensor:
    slot = page * fact(facts, PAGE_LEN) + (row & (fact(facts, PAGE_LEN) - 1))
    return region + fact(facts, MARKS_OFFSET) + slot * fact(facts, MARK_BYTES)


@triton.jit(do_not_specialize=ARGUMENTS)
def fill_rows(
    region: tl.int64,
    facts: tl.int64,
    job: tl.int64,
    scratch: tl.int64,
    count: tl.int32,
    BLOCK: tl.constexpr,
) -> None:
    """Writes BLOCK rows of the derived columns with one value for each row, if their address in the job is not 0."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < fact(job, NUM_PLACES)
    item, time = item_of(facts, job, count, place, inside)
    ready = tl.load(field(scratch, count, STATE) + item, mask=inside, other=0) == READY
    slot = tl.load(field(scratch, count, SLOT) + item, mask=ready, other=0)
    at_item = tl.load(field(scratch, count, EPISODE_STEP) + item, mask=ready, other=0)
    lead = lead_of(facts, scratch, count, item, at_item, ready)
    num_steps = tl.load(field(scratch, count, NUM_STEPS) + item, mask=ready, other=0) + lead
    num_rows = tl.load(field(scratch, count, NUM_ROWS) + item, mask=ready, other=0)
    along = time - rows_in_front(facts, job, num_rows, lead)
    is_step = ready & (along >= 0) & (along < num_steps)
    row, _, is_cut = step_of(facts, scratch, count, item, slot, at_item, lead, along, is_step)
    page, base = _page_and_base(facts, scratch, count, item, row, is_step)
    frame = region + base + (row & (fact(facts, PAGE_LEN) - 1)) * fact(facts, RECORD_STRIDE)
    head = load_int32(frame, is_step)
    episode_step = step_number(head)
    _put_bool(job, MASK_OUT, place, is_step, ready)
    is_loss = is_step & (along >= lead) & (along < lead + fact(facts, LENGTH))
    _put_bool(job, LOSS_MASK_OUT, place, is_loss, ready)
    _put_bool(job, FIRST_OUT, place, is_step & (episode_step == 0), ready)
    _put_bool(job, TERMINATED_OUT, place, is_step & is_terminated(head), ready)
    if fact(job, EPISODE_STEP_OUT) != 0:
        out = pointer(fact(job, EPISODE_STEP_OUT), tl.int64)
        tl.store(out + place, tl.where(is_step, episode_step, 0), mask=ready)
    if fact(job, TRUNCATED_OUT) != 0:
        if fact(facts, CROSSES) == 0:
            is_cut = tl.load(field(scratch, count, IS_CUT) + item, mask=is_step & (along == num_steps - 1), other=0)
        is_end = ((is_cut != 0) & ~is_terminated(head)) | is_truncated(head)
        _put_bool(job, TRUNCATED_OUT, place, is_step & is_end, ready)
    if fact(job, DISCOUNT_OUT) != 0:
        has_own = has_discount(head)
        own = load_float32(_mark_at(region, facts, page, row) + fact(facts, DISCOUNT_AT), is_step & has_own)
        own = tl.where(has_own, own, tl.where(is_terminated(head), 0.0, 1.0))
        discount = (real_fact(facts, GAMMA_BITS) * own.to(tl.float64)).to(tl.float32)
        out = pointer(fact(job, DISCOUNT_OUT), tl.float32)
        tl.store(out + place, tl.where(is_step, discount, 0.0), mask=ready)


@triton.jit(do_not_specialize=ARGUMENTS)
def fill_versions(
    region: tl.int64,
    facts: tl.int64,
    job: tl.int64,
    scratch: tl.int64,
    count: tl.int32,
    ITEMS: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    """Writes the lowest and the highest policy version of each item's steps, and the staleness.

    staleness = the table's policy version - the lowest version
    """
    item = tl.program_id(0) * ITEMS + tl.arange(0, ITEMS)
    ready = tl.load(field(scratch, count, STATE) + item, mask=item < count, other=0) == READY
    slot = tl.load(field(scratch, count, SLOT) + item, mask=ready, other=0)
    at_item = tl.load(field(scratch, count, EPISODE_STEP) + item, mask=ready, other=0)
    lead = lead_of(facts, scratch, count, item, at_item, ready)
    num_steps = tl.load(field(scratch, count, NUM_STEPS) + item, mask=ready, other=0) + lead
    lowest = tl.full([ITEMS], 0x7FFFFFFFFFFFFFFF, tl.int64)
    highest = tl.full([ITEMS], 0, tl.int64)
    items = item[:, None]
    done = fact(facts, MOST_STEPS) * 0
    while done < fact(facts, BURN_IN) + fact(facts, MOST_STEPS):
        along = done + tl.arange(0, ROWS)[None, :]
        is_step = ready[:, None] & (along < num_steps[:, None])
        row, _, _ = step_of(
            facts, scratch, count, items, slot[:, None], at_item[:, None], lead[:, None], along, is_step
        )
        page, _ = _page_and_base(facts, scratch, count, items, row, is_step)
        version = load_int32(_mark_at(region, facts, page, row) + fact(facts, VERSION_AT), is_step)
        version = version.to(tl.int64) & 0xFFFFFFFF
        lowest = tl.minimum(lowest, tl.min(tl.where(is_step, version, 0x7FFFFFFFFFFFFFFF), 1))
        highest = tl.maximum(highest, tl.max(tl.where(is_step, version, 0), 1))
        done += ROWS
    if fact(job, POLICY_VERSION_OUT) != 0:
        out = pointer(fact(job, POLICY_VERSION_OUT), tl.int64) + item.to(tl.int64) * 2
        tl.store(out, lowest, mask=ready)
        tl.store(out + 1, highest, mask=ready)
    if fact(job, STALENESS_OUT) != 0:
        now = load_int32(region + fact(facts, POLICY_VERSION_AT) + slot * 0, ready).to(tl.int64) & 0xFFFFFFFF
        tl.store(pointer(fact(job, STALENESS_OUT), tl.int64) + item, now - lowest, mask=ready)
