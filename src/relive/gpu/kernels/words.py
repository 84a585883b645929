"""Functions that all kernels share: typed loads, page words, links between pages, and the cells of a call's scratch.

Kernels take addresses as int64 numbers, not as tensors. Triton's interpreter copies the storage of every tensor
argument to the host, and back after the launch. Writers write to a region meanwhile, and the copy back would undo their
writes. On a CUDA device, registered host memory has the same address as on the host.

Order of reads: a word that must be read first is read in an earlier launch on the same stream (rules G2, G4), or
decides the mask of the later load (rules G3, D6, A1). Words and rows, which writers may change during the read, are
read by volatile loads. PTX has no weaker load that may meet another processor's store without a race.
"""

from __future__ import annotations

import triton
import triton.language as tl

from relive.gpu.kernels.facts import (
    BURN_IN,
    COPIES_FROM,
    CROSSES,
    FRAME_BYTES,
    FRAMES_OFFSET,
    MOST_STEPS,
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
from relive.gpu.kernels.pointers import pointer
from relive.gpu.kernels.region_format import FORMAT

__all__: list[str] = []

# The arguments of kernels that are no constants. Triton would compile again for a value of 1 or a multiple of 16.
ARGUMENTS = ["region", "facts", "job", "scratch", "keys", "probabilities", "present", "count", "is_first"]
ARGUMENTS += ["mapped_frames", "mapped_cells", "chains", "points", "shuffle", "base", "first", "which"]

# The state of an item during a call.
GONE = tl.constexpr(0)
PRESENT = tl.constexpr(1)
WANTED = tl.constexpr(2)  # not read yet, or changed during the read
READY = tl.constexpr(3)  # in this round, no fault so far
LOST = tl.constexpr(4)  # in this round, a page of its window was not there

# The scratch of a call has 8-byte cells, in this order: the numbers of WANTED and GONE items after a round; the fields
# below, each [count] (TOTAL is float64); three fields for every page that a window may touch; and, if windows run over
# ends of episodes, one field for every step that a window may have (its content is in places.py).
NUM_COUNTERS = 2
STATE = tl.constexpr(0)
SLOT = tl.constexpr(1)
WORD = tl.constexpr(2)  # of the item's page, as it was first noted
NUM_STEPS = tl.constexpr(3)  # from the item's own step on
EPISODE_STEP = tl.constexpr(4)  # of the item's own step
TOTAL = tl.constexpr(5)  # mass of the tree at the draw
NUM_ROWS = tl.constexpr(6)  # of a window: burn-in, steps and, if the window shows it, the last state
IS_CUT = tl.constexpr(7)  # whether the tail after the last step ends its episode, and not the head of the step
LEAD = tl.constexpr(8)  # steps of a window before the item's own; only for windows that run over ends
RUN_PAGES = tl.constexpr(9)  # the pages of a window, the earliest first; -1: not touched
NUM_FIELDS = 9
FIELDS_A_PAGE = 3  # page; word; base (bytes from the region's start to the page's frame)
# Behind the fields, if the batch has more items than the table has pages: copies with one cell a page.
WORDS_BEFORE = tl.constexpr(0)
FRAMES = tl.constexpr(1)
STEP_ENDS = tl.constexpr(2)
WORDS_AFTER = tl.constexpr(3)
NUM_COPIES = 4


@triton.jit
def field(scratch: tl.tensor, count: tl.tensor, which: tl.tensor) -> tl.tensor:
    """The int64 pointer to a field of the first item."""
    return pointer(scratch, tl.int64) + 2 + which * count.to(tl.int64)


@triton.jit
def real_field(scratch: tl.tensor, count: tl.tensor, which: tl.constexpr) -> tl.tensor:
    """The float64 pointer to a field of the first item."""
    return field(scratch, count, which).to(tl.pointer_type(tl.float64))


@triton.jit
def begin_round(scratch: tl.tensor) -> None:
    """Sets the counters of the round to 0. Only the first launch of a round calls it."""
    if tl.program_id(0) == 0:
        tl.store(pointer(scratch, tl.int64) + tl.arange(0, 2), tl.full([2], 0, tl.int64))


@triton.jit
def still_wanted(
    scratch: tl.tensor, count: tl.tensor, item: tl.tensor, inside: tl.tensor, is_first: tl.tensor
) -> tl.tensor:
    """Whether this round must read each item. The first round reads all items: their states are not set yet."""
    fresh = is_first + item * 0 != 0  # one bool for each item: the interpreter confuses bools of blocks and scalars
    state = tl.load(field(scratch, count, STATE) + item, mask=inside & ~fresh, other=0)
    return inside & (fresh | (state == WANTED))


@triton.jit
def load_int64(address: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """Loads words that writers may be changing."""
    return tl.load(pointer(address, tl.int64), mask=mask, other=0, volatile=True)


@triton.jit
def load_int32(address: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """Loads values that writers may be changing."""
    return tl.load(pointer(address, tl.int32), mask=mask, other=0, volatile=True)


@triton.jit
def load_uint16(address: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """Loads values that writers may be changing, as int32."""
    return tl.load(pointer(address, tl.uint16), mask=mask, other=0, volatile=True).to(tl.int32)


@triton.jit
def load_float32(address: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """Loads values that writers may be changing."""
    return tl.load(pointer(address, tl.float32), mask=mask, other=0.0, volatile=True)


@triton.jit
def load_float64(address: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """Loads values that writers may be changing."""
    return tl.load(pointer(address, tl.float64), mask=mask, other=0.0, volatile=True)


@triton.jit
def load_page_word(region: tl.tensor, facts: tl.tensor, page: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """The words of pages: generation, moves and state, from the highest bit on."""
    return load_int64(region + fact(facts, WORDS_OFFSET) + page * FORMAT.value.word_bytes, mask)


@triton.jit
def has_snapshot(facts: tl.tensor, count: tl.tensor, page: tl.tensor) -> tl.tensor:
    """Whether words of pages are read from a copy, for each page: the batch has as many items as the table has pages.

    Loads of one word by many programs wait for each other on the bus, some microsecond each. A copy of all words is one
    read of each.
    """
    return fact(facts, COPIES_FROM) + page * 0 <= count.to(tl.int64)


@triton.jit
def snapshot(facts: tl.tensor, scratch: tl.tensor, count: tl.tensor, which: tl.constexpr) -> tl.tensor:
    """The int64 pointer to a copy in the scratch, one cell a page."""
    entries = fact(facts, CROSSES) * (fact(facts, BURN_IN) + fact(facts, MOST_STEPS))
    fields = RUN_PAGES + 3 * fact(facts, NUM_WINDOW_PAGES) + entries
    return field(scratch, count, fields) + which * fact(facts, NUM_PAGES)


@triton.jit
def load_noted_word(
    region: tl.tensor,
    facts: tl.tensor,
    scratch: tl.tensor,
    count: tl.tensor,
    page: tl.tensor,
    mask: tl.tensor,
    which: tl.constexpr,
) -> tl.tensor:
    """The words of pages, from the copy (WORDS_BEFORE or WORDS_AFTER) if there is one."""
    copied = has_snapshot(facts, count, page)
    word = load_page_word(region, facts, page, mask & ~copied)
    return tl.where(copied, tl.load(snapshot(facts, scratch, count, which) + page, mask=mask & copied, other=0), word)


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
    """Whether each row is a tail: a last state without a step."""
    number = page * fact(facts, TAIL_WORDS) + (row >> FORMAT.value.tail_row_shift)
    word = load_int64(region + fact(facts, TAILS_OFFSET) + number * FORMAT.value.tail_word_bytes, mask)
    return ((word >> (row & FORMAT.value.tail_row_mask)) & 1) != 0


@triton.jit
def step_end(region: tl.tensor, facts: tl.tensor, page: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """The row after the last step of each page."""
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
    return base_of(facts, frame), mask & (frame >= 0) & (frame < mapped_frames)


@triton.jit
def base_of(facts: tl.tensor, frame: tl.tensor) -> tl.tensor:
    """The bytes from the region's start to each frame."""
    slab = fact(facts, SLABS_OFFSET) + (frame >> fact(facts, SLAB_SHIFT)) * fact(facts, SLAB_BYTES)
    return slab + (frame & fact(facts, SLAB_MASK)) * fact(facts, FRAME_BYTES)


@triton.jit
def copy_frames(region: tl.tensor, facts: tl.tensor, scratch: tl.tensor, count: tl.tensor, page: tl.tensor) -> None:
    """Copies frame number and step end of these pages, if there is a copy. Launched after the words were copied."""
    inside = has_snapshot(facts, count, page) & (page < fact(facts, NUM_PAGES))
    number = region + fact(facts, FRAMES_OFFSET) + page * FORMAT.value.frame_number_bytes
    frame = load_int32(number, inside).to(tl.int64)
    tl.store(snapshot(facts, scratch, count, FRAMES) + page, frame, mask=inside)
    tl.store(snapshot(facts, scratch, count, STEP_ENDS) + page, step_end(region, facts, page, inside), mask=inside)


@triton.jit
def own_frame(
    region: tl.tensor,
    facts: tl.tensor,
    scratch: tl.tensor,
    count: tl.tensor,
    page: tl.tensor,
    mask: tl.tensor,
    mapped_frames: tl.tensor,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """(base, whether the device can see the frame, step end) of the items' own pages, from the copy if there is one.

    An item that was published after the copy may seem to lie behind the step end: it counts as not published yet.
    """
    copied = has_snapshot(facts, count, page)
    base, seen = frame_base(region, facts, page, mask & ~copied, mapped_frames)
    end = step_end(region, facts, page, mask & ~copied)
    frame = tl.load(snapshot(facts, scratch, count, FRAMES) + page, mask=mask & copied, other=-1)
    noted = tl.load(snapshot(facts, scratch, count, STEP_ENDS) + page, mask=mask & copied, other=0)
    base = tl.where(copied, base_of(facts, frame), base)
    seen = seen | (mask & copied & (frame >= 0) & (frame < mapped_frames))
    return base, seen, tl.where(copied, noted, end)


@triton.jit
def follow(
    region: tl.tensor, facts: tl.tensor, page: tl.tensor, which: tl.constexpr, mask: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The page that a link (NEXT_AT or PREV_AT) of each page names: (page, word, whether it is still that page).

    The word of the page is noted before any other read of the page, like the word of the item's own page.
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
    """Notes the run-th page of windows. recheck() reads its word again, and copies read from its base."""
    pages = fact(facts, NUM_WINDOW_PAGES)
    tl.store(field(scratch, count, RUN_PAGES + run) + item, page, mask=mask)
    tl.store(field(scratch, count, RUN_PAGES + pages + run) + item, word, mask=mask)
    tl.store(field(scratch, count, RUN_PAGES + 2 * pages + run) + item, base, mask=mask)
