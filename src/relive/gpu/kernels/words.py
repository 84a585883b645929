"""What all kernels share: typed loads, page words, links between pages, and the cells of a call's scratch.

Addresses come in as int64 numbers, not as tensors. Triton's interpreter copies every tensor argument's storage to the
host and back after the launch: over a region that others write to, the copy back would undo their writes. On a CUDA
device the address of registered host memory is the device's own.

Order: whatever must be read before something else is read in an earlier launch on the same stream (rules G2, G4), or
decides the mask of the later load (G3, D6, A1). Whatever writers may change meanwhile, words and rows, is read
volatile: PTX has no weaker load that may meet another processor's store without being a race.
"""

from __future__ import annotations

import triton
import triton.language as tl

from relive.gpu.kernels.facts import (
    FRAME_BYTES,
    FRAMES_OFFSET,
    NUM_PAGES,
    NUM_WINDOW_PAGES,
    PAGE_BITS,
    PAGE_BYTES,
    PAGE_MASK,
    PAGES_OFFSET,
    RANGE_AT,
    SLAB_BYTES,
    SLAB_MASK,
    SLAB_SHIFT,
    SLABS_OFFSET,
    TAIL_WORDS,
    TAILS_OFFSET,
    WORDS_OFFSET,
    fact,
)
from relive.gpu.kernels.region_format import FORMAT

__all__: list[str] = []

# What kernels are called with beside constants. Triton would compile anew for a value that is 1 or a multiple of 16.
ARGUMENTS = ["region", "facts", "job", "scratch", "keys", "probabilities", "present", "count", "is_first"]
ARGUMENTS += ["mapped_frames", "mapped_cells", "chains", "points", "shuffle", "base", "first"]

# The state of an item during a call.
GONE = tl.constexpr(0)
PRESENT = tl.constexpr(1)
WANTED = tl.constexpr(2)  # not read yet, or changed while it was
READY = tl.constexpr(3)  # in this round so far
LOST = tl.constexpr(4)  # in this round: a page that its window needs is not there

# The scratch of a call, 8-byte cells: how many items are wanted and gone after a round, then fields, each
# [count], one behind the other (TOTAL holds float64), then three for every page that a window may touch, and where
# windows run over ends of episodes one for every step that a window may have (places.py says what stands in it).
NUM_COUNTERS = 2
STATE = tl.constexpr(0)
SLOT = tl.constexpr(1)
WORD = tl.constexpr(2)  # of the item's page, as it was noted first
NUM_STEPS = tl.constexpr(3)  # from the item's own step on
EPISODE_STEP = tl.constexpr(4)  # of the item's own step
TOTAL = tl.constexpr(5)  # mass of the tree at the draw
NUM_ROWS = tl.constexpr(6)  # of a window: burn-in, steps and the last state where it is shown
IS_CUT = tl.constexpr(7)  # its last step is an episode's last by the tail behind it, not by its head
LEAD = tl.constexpr(8)  # steps of a window before the item's own; set where windows run over ends
RUN_PAGES = tl.constexpr(9)  # of each page that is touched, the earliest first; -1: not touched
NUM_FIELDS = 9
FIELDS_A_PAGE = 3  # page, word, base: bytes from the region's start to its frame


@triton.jit
def field(scratch: tl.tensor, count: tl.tensor, which: tl.tensor) -> tl.tensor:
    """The int64 pointer to a field of the first item."""
    return scratch.to(tl.pointer_type(tl.int64)) + 2 + which * count.to(tl.int64)


@triton.jit
def real_field(scratch: tl.tensor, count: tl.tensor, which: tl.constexpr) -> tl.tensor:
    """The float64 pointer to a field of the first item."""
    return field(scratch, count, which).to(tl.pointer_type(tl.float64))


@triton.jit
def begin_round(scratch: tl.tensor) -> None:
    """Sets the counters of the round to 0; by the first launch of it."""
    if tl.program_id(0) == 0:
        tl.store(scratch.to(tl.pointer_type(tl.int64)) + tl.arange(0, 2), tl.full([2], 0, tl.int64))


@triton.jit
def still_wanted(
    scratch: tl.tensor, count: tl.tensor, item: tl.tensor, inside: tl.tensor, is_first: tl.tensor
) -> tl.tensor:
    """Which items this round is to read: all of them in the first one, whose states nobody has set yet."""
    fresh = is_first + item * 0 != 0  # one truth an item: the interpreter mixes up truths of blocks and of scalars
    state = tl.load(field(scratch, count, STATE) + item, mask=inside & ~fresh, other=0)
    return inside & (fresh | (state == WANTED))


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
def load_page_word(region: tl.tensor, facts: tl.tensor, page: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """The words of pages: generation, moves and state, from the highest bit on."""
    return load_int64(region + fact(facts, WORDS_OFFSET) + page * FORMAT.value.word_bytes, mask)


@triton.jit
def generation_of(word: tl.tensor) -> tl.tensor:
    """The generation in a page word."""
    return word >> FORMAT.value.generation_shift


@triton.jit
def is_used(word: tl.tensor) -> tl.tensor:
    """Whether the page is OPEN or CLOSED."""
    state = word & FORMAT.value.state_mask
    return (state == FORMAT.value.page_open) | (state == FORMAT.value.page_closed)


@triton.jit
def page_record(region: tl.tensor, facts: tl.tensor, page: tl.tensor) -> tl.tensor:
    """The addresses of page records."""
    return region + fact(facts, PAGES_OFFSET) + page * fact(facts, PAGE_BYTES)


@triton.jit
def is_tail(region: tl.tensor, facts: tl.tensor, page: tl.tensor, row: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """Whether rows carry a last state and no step."""
    number = page * fact(facts, TAIL_WORDS) + (row >> FORMAT.value.tail_row_shift)
    word = load_int64(region + fact(facts, TAILS_OFFSET) + number * FORMAT.value.tail_word_bytes, mask)
    return ((word >> (row & FORMAT.value.tail_row_mask)) & 1) != 0


@triton.jit
def step_end(region: tl.tensor, facts: tl.tensor, page: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """The row behind the last step of each page."""
    return load_int64(page_record(region, facts, page) + fact(facts, RANGE_AT), mask) >> FORMAT.value.range_end_shift


@triton.jit
def is_terminated(head: tl.tensor) -> tl.tensor:
    """Whether the step of a row's head terminated its episode."""
    return (head & FORMAT.value.terminated_bit) != 0


@triton.jit
def is_truncated(head: tl.tensor) -> tl.tensor:
    """Whether the step of a row's head truncated its episode."""
    return (head & FORMAT.value.truncated_bit) != 0


@triton.jit
def has_discount(head: tl.tensor) -> tl.tensor:
    """Whether the mark of a row contains a discount of its own."""
    return (head & FORMAT.value.discount_bit) != 0


@triton.jit
def step_number(head: tl.tensor) -> tl.tensor:
    """The number of a row's step in its episode; int64."""
    return (head & FORMAT.value.step_mask).to(tl.int64)


@triton.jit
def frame_base(
    region: tl.tensor, facts: tl.tensor, page: tl.tensor, mask: tl.tensor, mapped_frames: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """(bytes from the region's start to the page's frame, whether the device can see it)."""
    number = region + fact(facts, FRAMES_OFFSET) + page * FORMAT.value.frame_number_bytes
    frame = load_int32(number, mask).to(tl.int64)
    seen = mask & (frame >= 0) & (frame < mapped_frames)
    slab = fact(facts, SLABS_OFFSET) + (frame >> fact(facts, SLAB_SHIFT)) * fact(facts, SLAB_BYTES)
    return slab + (frame & fact(facts, SLAB_MASK)) * fact(facts, FRAME_BYTES), seen


@triton.jit
def follow(
    region: tl.tensor, facts: tl.tensor, page: tl.tensor, which: tl.constexpr, mask: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The page that a link (NEXT_AT or PREV_AT) of each page leads to: (page, word, whether it is still that page).

    The page's word is noted before anything else of it is read, as the word of the item's own page is.
    """
    ref = load_int64(page_record(region, facts, page) + fact(facts, which), mask)
    there = ref & fact(facts, PAGE_MASK)
    known = mask & (ref != 0) & (there < fact(facts, NUM_PAGES))
    word = load_page_word(region, facts, there, known)
    return there, word, known & is_used(word) & (generation_of(word) == (ref >> fact(facts, PAGE_BITS)))


@triton.jit
def note_run(
    scratch: tl.tensor,
    facts: tl.tensor,
    count: tl.tensor,
    item: tl.tensor,
    run: tl.tensor,
    page: tl.tensor,
    word: tl.tensor,
    base: tl.tensor,
    mask: tl.tensor,
) -> None:
    """Notes the run-th page of windows: recheck() looks at its word again, the copies read from its base."""
    pages = fact(facts, NUM_WINDOW_PAGES)
    tl.store(field(scratch, count, RUN_PAGES + run) + item, page, mask=mask)
    tl.store(field(scratch, count, RUN_PAGES + pages + run) + item, word, mask=mask)
    tl.store(field(scratch, count, RUN_PAGES + 2 * pages + run) + item, base, mask=mask)
