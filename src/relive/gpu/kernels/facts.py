"""The facts of a region and an index, and the job of a call, as kernels read them: words of int64 arrays on the device.

The facts are no constants of the kernels. So tables with another capacity, page length, reach or other columns share
the compiled code.
"""

from __future__ import annotations

import triton
import triton.language as tl

from relive.gpu.kernels.pointers import pointer
from relive.gpu.layout_args import COLUMN_NAMES, FACT_NAMES, JOB_NAMES

__all__: list[str] = []


def _of(name: str) -> tl.constexpr:
    return tl.constexpr(FACT_NAMES.index(name))


PAGE_LEN = _of("page_len")
PAGE_SHIFT = _of("page_shift")
SLOT_BITS = _of("slot_bits")
SLOT_MASK = _of("slot_mask")
PAGE_BITS = _of("page_bits")
PAGE_MASK = _of("page_mask")
NUM_PAGES = _of("num_pages")
SHARD = _of("shard")
HAS_STATE = _of("has_state")
RECORD_STRIDE = _of("record_stride")
FRAME_BYTES = _of("frame_bytes")
SLAB_BYTES = _of("slab_bytes")
SLABS_OFFSET = _of("slabs_offset")
SLAB_SHIFT = _of("slab_shift")
SLAB_MASK = _of("slab_mask")
WORDS_OFFSET = _of("words_offset")
FRAMES_OFFSET = _of("frames_offset")
PAGES_OFFSET = _of("pages_offset")
TAILS_OFFSET = _of("tails_offset")
MARKS_OFFSET = _of("marks_offset")
TAIL_WORDS = _of("tail_words")
PAGE_BYTES = _of("page_bytes")
RANGE_AT = _of("range_at")
PREV_AT = _of("prev_at")
NEXT_AT = _of("next_at")
PAGE_LANE_UID_AT = _of("page_lane_uid_at")
CELLS_OFFSET = _of("cells_offset")
CELL_STRIDE = _of("cell_stride")
MARK_BYTES = _of("mark_bytes")
VERSION_AT = _of("version_at")
DISCOUNT_AT = _of("discount_at")
LANE_AT = _of("lane_at")
POLICY_VERSION_AT = _of("policy_version_at")
MOST_STEPS = _of("most_steps")
LENGTH = _of("length")
BURN_IN = _of("burn_in")
HAS_TIME = _of("has_time")
PADS_LEFT = _of("pads_left")
TIME_MAJOR = _of("time_major")
CROSSES = _of("crosses")
GAMMA_BITS = _of("gamma_bits")
TREE_OFFSET = _of("tree_offset")
STATES_OFFSET = _of("states_offset")
PAGES_BEFORE = _of("pages_before")
NUM_WINDOW_PAGES = _of("num_window_pages")
COPIES_FROM = _of("copies_from")
NUM_LEVELS = _of("num_levels")
FIRST_LEVEL = _of("first_level")


def _job(name: str) -> tl.constexpr:
    return tl.constexpr(JOB_NAMES.index(name))


# The address of each derived column; 0: the job does not need the column.
REWARD_OUT = _job("reward")
DISCOUNT_OUT = _job("discount")
TERMINATED_OUT = _job("terminated")
TRUNCATED_OUT = _job("truncated")
EPISODE_STEP_OUT = _job("episode_step")
FIRST_OUT = _job("first")
MASK_OUT = _job("mask")
LOSS_MASK_OUT = _job("loss_mask")
LANE_OUT = _job("lane")
POLICY_VERSION_OUT = _job("policy_version")
STALENESS_OUT = _job("staleness")
NUM_STEPS_OUT = _job("num_steps")
ROWS_BEFORE = _job("before")
NEEDS_NEXT = _job("needs_next")
REWARD_OFFSET = _job("reward_offset")
REWARD_STRIDE = _job("reward_stride")
REWARD_IS_DOUBLE = _job("reward_is_double")
OFFSETS = _job("offsets")
NUM_PLACES = _job("num_places")
FIRST_COLUMN = _job("first_column")


def _column(name: str) -> tl.constexpr:
    return tl.constexpr(COLUMN_NAMES.index(name))


# The words of one column of the job.
OUT = _column("out")
OFFSET = _column("offset")
STRIDE = _column("stride")
NUM_BYTES = _column("num_bytes")
STACK = _column("stack")
IS_NEXT = _column("is_next")
PADS_ZEROS = _column("pads_zeros")
UNIT_BYTES = _column("unit_bytes")
IS_TIMED = _column("is_timed")
IS_STATE = _column("is_state")
IS_CELL = _column("is_cell")
NEXT_OUT = _column("next_out")
IS_SHARED = _column("is_shared")
COLUMN_WORDS = tl.constexpr(len(COLUMN_NAMES))


@triton.jit
def fact(facts: tl.tensor, which: tl.constexpr) -> tl.tensor:
    """Reads one word of the facts, of a job, or of a job's column."""
    return tl.load(pointer(facts, tl.int64) + which)


@triton.jit
def real_fact(facts: tl.tensor, which: tl.constexpr) -> tl.tensor:
    """Reads one word of the facts that is a float64."""
    return tl.load(pointer(facts, tl.float64) + which)
