"""Derived columns with one value for each item: all of a transition's, and lane and length of other items."""

from __future__ import annotations

import triton
import triton.language as tl

from relive.gpu.kernels.facts import (
    DISCOUNT_OUT,
    EPISODE_STEP_OUT,
    FIRST_OUT,
    LANE_AT,
    LANE_OUT,
    MARK_BYTES,
    MARKS_OFFSET,
    NUM_STEPS_OUT,
    PAGE_LANE_UID_AT,
    PAGE_SHIFT,
    POLICY_VERSION_AT,
    POLICY_VERSION_OUT,
    REWARD_IS_DOUBLE,
    REWARD_OUT,
    STALENESS_OUT,
    TERMINATED_OUT,
    TRUNCATED_OUT,
    VERSION_AT,
    fact,
)
from relive.gpu.kernels.pointers import pointer
from relive.gpu.kernels.words import load_int32, load_int64, page_record

__all__ = ["fill_item", "fill_transition"]


@triton.jit
def _put_int64(job: tl.tensor, which: tl.constexpr, item: tl.tensor, value: tl.tensor, mask: tl.tensor) -> None:
    if fact(job, which) != 0:
        tl.store(pointer(fact(job, which), tl.int64) + item, value, mask=mask)


@triton.jit
def _put_bool(job: tl.tensor, which: tl.constexpr, item: tl.tensor, value: tl.tensor, mask: tl.tensor) -> None:
    if fact(job, which) != 0:
        tl.store(pointer(fact(job, which), tl.int8) + item, value.to(tl.int8), mask=mask)


@triton.jit
def _put_float32(job: tl.tensor, which: tl.constexpr, item: tl.tensor, value: tl.tensor, mask: tl.tensor) -> None:
    tl.store(pointer(fact(job, which), tl.float32) + item, value.to(tl.float32), mask=mask)


@triton.jit
def fill_transition(
    region: tl.tensor,
    facts: tl.tensor,
    job: tl.tensor,
    item: tl.tensor,
    slot: tl.tensor,
    episode_step: tl.tensor,
    ends: tl.tensor,
    reward: tl.tensor,
    discount: tl.tensor,
    good: tl.tensor,
) -> None:
    """Writes the derived columns of good transitions that the job needs: those whose address in the job is not 0."""
    if fact(job, REWARD_OUT) != 0:
        if fact(job, REWARD_IS_DOUBLE) != 0:
            tl.store(pointer(fact(job, REWARD_OUT), tl.float64) + item, reward, mask=good)
        else:
            _put_float32(job, REWARD_OUT, item, reward, good)
    if fact(job, DISCOUNT_OUT) != 0:
        _put_float32(job, DISCOUNT_OUT, item, discount, good)
    _put_bool(job, TERMINATED_OUT, item, ends & 1, good)
    _put_bool(job, TRUNCATED_OUT, item, (ends >> 1) & 1, good)
    _put_int64(job, EPISODE_STEP_OUT, item, episode_step, good)
    _put_bool(job, FIRST_OUT, item, episode_step == 0, good)
    # Marks are read only if the job needs them: each costs a cache line for each item.
    if (fact(job, POLICY_VERSION_OUT) | fact(job, STALENESS_OUT)) != 0:
        mark = region + fact(facts, MARKS_OFFSET) + slot * fact(facts, MARK_BYTES)
        version = load_int32(mark + fact(facts, VERSION_AT), good).to(tl.int64) & 0xFFFFFFFF
        _put_int64(job, POLICY_VERSION_OUT, item, version, good)
        now = load_int32(region + fact(facts, POLICY_VERSION_AT) + slot * 0, good).to(tl.int64) & 0xFFFFFFFF
        _put_int64(job, STALENESS_OUT, item, now - version, good)


@triton.jit
def fill_item(
    region: tl.tensor,
    facts: tl.tensor,
    job: tl.tensor,
    item: tl.tensor,
    slot: tl.tensor,
    num_steps: tl.tensor,
    good: tl.tensor,
) -> None:
    """Writes the derived columns that all items have once, with or without a time axis: num_steps and lane."""
    _put_int64(job, NUM_STEPS_OUT, item, num_steps, good)
    if fact(job, LANE_OUT) != 0:
        record = page_record(region, facts, slot >> fact(facts, PAGE_SHIFT))
        first = load_int64(record + fact(facts, PAGE_LANE_UID_AT), good)
        its_mark = region + fact(facts, MARKS_OFFSET) + slot * fact(facts, MARK_BYTES)
        low = load_int32(its_mark + fact(facts, LANE_AT), good).to(tl.int64)
        _put_int64(job, LANE_OUT, item, first + ((low - first) & 0xFFFFFFFF), good)
