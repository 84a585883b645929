"""What all kernels share: typed pointers, page words, and the fields of a window.

Addresses come in as int64 numbers, not as tensors. Triton's interpreter copies every tensor argument's storage to the
host and back after the launch: over a region that others write to, the copy back would undo their writes. On a CUDA
device the address of registered host memory is the device's own.

Order: whatever must be read before something else is read in an earlier launch on the same stream (rules G2, G3, D6),
or decides the mask of the later load. Words that writers change meanwhile are read volatile (relaxed, system scope).
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__: list[str] = []

# The state of an item during a call, int32[B].
GONE = tl.constexpr(0)
PRESENT = tl.constexpr(1)
WANTED = tl.constexpr(2)  # not read yet, or changed while it was
READY = tl.constexpr(3)  # in this round so far

# Fields of the windows of a call, each int64[B] (TOTAL, REWARD and DISCOUNT hold float64), one behind the other.
SLOT = tl.constexpr(0)
WORD = tl.constexpr(1)  # of the item's page, as it was noted first
PREV_PAGE = tl.constexpr(2)  # -1: there is none
PREV_WORD = tl.constexpr(3)
NEXT_PAGE = tl.constexpr(4)  # -1: there is none
NEXT_WORD = tl.constexpr(5)
BASE = tl.constexpr(6)  # bytes from the region's start to the frame of the item's page
PREV_BASE = tl.constexpr(7)
NEXT_BASE = tl.constexpr(8)
NUM_STEPS = tl.constexpr(9)
EPISODE_STEP = tl.constexpr(10)
ENDS = tl.constexpr(11)  # bit 0 terminated, bit 1 truncated
TOUCHED = tl.constexpr(12)  # bit 0 the page before, bit 1 the page after
REWARD = tl.constexpr(13)
DISCOUNT = tl.constexpr(14)
TOTAL = tl.constexpr(15)  # mass of the tree at the draw
NUM_FIELDS = 16


@triton.jit
def field(windows: tl.tensor, count: tl.tensor, which: tl.constexpr) -> tl.tensor:
    """The int64 pointer to field `which` of the first window."""
    return windows.to(tl.pointer_type(tl.int64)) + which * count


@triton.jit
def real_field(windows: tl.tensor, count: tl.tensor, which: tl.constexpr) -> tl.tensor:
    """The float64 pointer to field `which` of the first window."""
    return windows.to(tl.pointer_type(tl.float64)) + which * count


@triton.jit
def load_int64(address: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """Words that writers may be changing."""
    return tl.load(address.to(tl.pointer_type(tl.int64)), mask=mask, other=0, volatile=True)


@triton.jit
def load_int32(address: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """As load_int64."""
    return tl.load(address.to(tl.pointer_type(tl.int32)), mask=mask, other=0, volatile=True)


@triton.jit
def load_uint16(address: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """As load_int64; int32 values."""
    return tl.load(address.to(tl.pointer_type(tl.uint16)), mask=mask, other=0, volatile=True).to(tl.int32)


@triton.jit
def load_float32(address: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """As load_int64."""
    return tl.load(address.to(tl.pointer_type(tl.float32)), mask=mask, other=0.0, volatile=True)


@triton.jit
def load_float64(address: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """As load_int64."""
    return tl.load(address.to(tl.pointer_type(tl.float64)), mask=mask, other=0.0, volatile=True)


@triton.jit
def load_page_word(region: tl.tensor, page: tl.tensor, mask: tl.tensor, LAYOUT: tl.constexpr) -> tl.tensor:
    """The words of pages: generation << 18 | moves << 2 | state."""
    return load_int64(region + LAYOUT.words_offset + page * 8, mask)


@triton.jit
def is_used(word: tl.tensor) -> tl.tensor:
    """Whether the page is OPEN or CLOSED."""
    return ((word & 3) == 1) | ((word & 3) == 2)


@triton.jit
def page_record(region: tl.tensor, page: tl.tensor, LAYOUT: tl.constexpr) -> tl.tensor:
    """The addresses of page records."""
    return region + LAYOUT.pages_offset + page * LAYOUT.page_bytes


@triton.jit
def is_tail(region: tl.tensor, page: tl.tensor, row: tl.tensor, mask: tl.tensor, LAYOUT: tl.constexpr) -> tl.tensor:
    """Whether rows carry a last state and no step."""
    word = load_int64(region + LAYOUT.tails_offset + (page * LAYOUT.tail_words + (row >> 6)) * 8, mask)
    return ((word >> (row & 63)) & 1) != 0
