"""The weighted draw over the tree of an index in the region (rules G1, G2).

Launches: chain_swaps -> draw_slots -> windows.resolve or take_leaves. The page word is noted before the leaf is read
again, and the mass of that later read counts. The mass that the descent saw does not count.
"""

from __future__ import annotations

import triton
import triton.language as tl

from relive.gpu.kernels.facts import (
    FIRST_LEVEL,
    NUM_LEVELS,
    PAGE_SHIFT,
    SHARD,
    SLOT_BITS,
    TREE_OFFSET,
    fact,
)
from relive.gpu.kernels.pointers import pointer
from relive.gpu.kernels.region_format import FORMAT
from relive.gpu.kernels.words import (
    ARGUMENTS,
    READY,
    SLOT,
    STATE,
    TOTAL,
    WANTED,
    WORD,
    WORDS_BEFORE,
    begin_round,
    copy_frames,
    field,
    generation_of,
    is_used,
    load_float64,
    load_noted_word,
    real_field,
    still_wanted,
)

__all__ = ["chain_swaps", "draw_slots", "strata_of", "take", "take_leaves"]


@triton.jit
def _mix(z: tl.tensor) -> tl.tensor:
    """The finaliser of SplitMix64."""
    z = (z ^ (z >> FORMAT.value.first_shift)) * FORMAT.value.first_factor
    z = (z ^ (z >> FORMAT.value.second_shift)) * FORMAT.value.second_factor
    return z ^ (z >> FORMAT.value.third_shift)


@triton.jit
def _bits(base: tl.tensor, number: tl.tensor) -> tl.tensor:
    return _mix(base.to(tl.uint64) + (number.to(tl.uint64) + 1) * FORMAT.value.golden)


@triton.jit
def _uniform(base: tl.tensor, number: tl.tensor) -> tl.tensor:
    """The number-th random number of a call, in [0, 1), a multiple of 2^-53."""
    return (_bits(base, number) >> 11).to(tl.float64) * 1.1102230246251565e-16


@triton.jit
def _swapped_with(base: tl.tensor, step: tl.tensor) -> tl.tensor:
    """The row, at most `step`, with which the core's shuffle swaps row `step`; int32."""
    number = step.to(tl.uint64)
    return (((_bits(base, number + FORMAT.value.permutation_from) >> 32) * (number + 1)) >> 32).to(tl.int32)


@triton.jit(do_not_specialize=ARGUMENTS)
def chain_swaps(chains: tl.int64, count: tl.int32, base: tl.uint64, BLOCK: tl.constexpr) -> None:
    """Lists the swaps of a call's shuffle by the row that each step swaps its own row with; one program.

    chains: int32[2, count]: the first swap in the list of each row (-1: none), and the swap after each swap.
    """
    heads = pointer(chains, tl.int32)
    for start in range(0, count, BLOCK):
        step = start + tl.arange(0, BLOCK)
        tl.store(heads + step, tl.full([BLOCK], -1, tl.int32), mask=step < count)
    tl.debug_barrier()
    for start in range(0, count, BLOCK):
        step = start + tl.arange(0, BLOCK)
        listed = tl.atomic_xchg(heads + _swapped_with(base, step), step, mask=step < count, sem="relaxed")
        tl.store(heads + count + step, listed, mask=step < count)


@triton.jit
def strata_of(
    chains: tl.tensor, count: tl.tensor, base: tl.tensor, item: tl.tensor, wanted: tl.tensor, BLOCK: tl.constexpr
) -> tl.tensor:
    """The stratum of each row: the place where the core's shuffle puts the row's number, found without the shuffle.

    The shuffle's swaps go from the last step down to step 0. Take a number that is at `place` before step `until`. The
    largest step below `until` that swaps with `place` moves the number to its final place, the row of that step. If
    there is no such step, step `place` moves the number, and the search goes on from its new place. A search looks at
    two places on average.
    """
    heads = pointer(chains, tl.int32)
    place = item
    until = tl.full([BLOCK], 0, tl.int32) + count
    step = tl.load(heads + place, mask=wanted, other=-1)
    last = tl.full([BLOCK], -1, tl.int32)
    asking = wanted
    while tl.max(asking.to(tl.int32), 0) > 0:
        listed = asking & (step >= 0)
        last = tl.where(listed & (step < until), tl.maximum(last, step), last)
        following = tl.load(heads + count + step, mask=listed, other=-1)
        moves = asking & ~listed & (last < 0)
        asking = listed | moves
        until = tl.where(moves, place, until)
        place = tl.where(moves, _swapped_with(base, place), place)
        step = tl.where(moves, tl.load(heads + place, mask=moves, other=-1), following)
    return last


@triton.jit
def _load_masses(address: tl.tensor, mask: tl.tensor, BLOCK: tl.constexpr) -> tuple[tl.tensor, ...]:
    """The eight masses at each address, the 64 bytes of a group of children, as one request to the bus.

    Not volatile: a stale mass only costs a redraw.
    """
    tl.static_assert(FORMAT.value.fanout == 8)
    masses = pointer(address, tl.float64)[:, None] + tl.arange(0, 8)[None, :]
    group = tl.load(masses, mask=mask[:, None], other=0.0, cache_modifier=".ca")
    even, odd = tl.split(tl.reshape(group, [BLOCK, 2, 2, 2]))
    even_low, even_high = tl.split(even)
    odd_low, odd_high = tl.split(odd)
    m0, m4 = tl.split(even_low)
    m2, m6 = tl.split(even_high)
    m1, m5 = tl.split(odd_low)
    m3, m7 = tl.split(odd_high)
    return m0, m1, m2, m3, m4, m5, m6, m7


@triton.jit(do_not_specialize=ARGUMENTS)
def draw_slots(
    region: tl.int64,
    facts: tl.int64,
    scratch: tl.int64,
    chains: tl.int64,
    points: tl.int64,
    count: tl.int32,
    shuffle: tl.uint64,
    base: tl.uint64,
    is_first: tl.int32,
    BLOCK: tl.constexpr,
) -> None:
    """Draws the slot of each wanted item, and notes its page word. Past the last leaf: slot -1, and WANTED again.

    The total is divided into `count` equal strata, and each item is drawn in one of them, or at points[item] if the
    address `points` is not 0. Children are summed from left to right, as their parent was. A child is taken only if
    point < running sum, so a child without mass is never taken. shuffle, base: states of the random numbers of the call
    and of this attempt.
    """
    begin_round(scratch)
    item = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    wanted = still_wanted(scratch, count, item, item < count, is_first)
    tree = region + fact(facts, TREE_OFFSET)
    FANOUT: tl.constexpr = FORMAT.value.fanout
    NODE_BYTES: tl.constexpr = FORMAT.value.node_bytes
    levels = pointer(facts, tl.int64) + FIRST_LEVEL + fact(facts, NUM_LEVELS) - 1
    top = tree + tl.load(levels) * NODE_BYTES + item.to(tl.int64) * 0
    masses = _load_masses(top, wanted, BLOCK)
    total = masses[0]
    for k in tl.static_range(1, FANOUT):
        total += masses[k]
    rest = tl.full([BLOCK], 0.0, tl.float64)
    if points != 0:
        rest = tl.load(pointer(points, tl.float64) + item, mask=wanted, other=0.0)
    else:
        stratum = strata_of(chains, count, shuffle, item, wanted, BLOCK)
        rest = (stratum.to(tl.float64) + _uniform(base, stratum)) * (total / count.to(tl.float64))
    slot = tl.full([BLOCK], 0, tl.int64)
    found = wanted
    for level in range(fact(facts, NUM_LEVELS)):
        masses = _load_masses(tree + (tl.load(levels - level) + slot * FANOUT) * NODE_BYTES, found, BLOCK)
        running = tl.full([BLOCK], 0.0, tl.float64)
        below = tl.full([BLOCK], 0.0, tl.float64)
        child = tl.full([BLOCK], 0, tl.int64)
        for k in tl.static_range(FANOUT):
            running = masses[k] if k == 0 else running + masses[k]
            behind = running <= rest
            child += behind.to(tl.int64)
            below = tl.where(behind, running, below)
        found = found & (child < FANOUT)
        rest = rest - below
        slot = tl.where(found, slot * FANOUT + child, 0)
    page = slot >> fact(facts, PAGE_SHIFT)
    word = load_noted_word(region, facts, scratch, count, page, found, WORDS_BEFORE)
    copy_frames(region, facts, scratch, count, item.to(tl.int64))
    tl.store(field(scratch, count, SLOT) + item, tl.where(found, slot, -1), mask=wanted)
    tl.store(field(scratch, count, WORD) + item, word, mask=wanted)
    tl.store(real_field(scratch, count, TOTAL) + item, total, mask=wanted)
    tl.store(field(scratch, count, STATE) + item, tl.where(found & is_used(word), READY, WANTED), mask=wanted)


@triton.jit
def take(
    region: tl.tensor,
    facts: tl.tensor,
    scratch: tl.tensor,
    keys: tl.tensor,
    probabilities: tl.tensor,
    count: tl.tensor,
    item: tl.tensor,
    ready: tl.tensor,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Whether each drawn item has a mass now. Writes keys int64[count] and probabilities float64[count] of those."""
    slot = tl.load(field(scratch, count, SLOT) + item, mask=ready, other=0)
    word = tl.load(field(scratch, count, WORD) + item, mask=ready, other=0)
    total = tl.load(real_field(scratch, count, TOTAL) + item, mask=ready, other=1.0)
    mass = load_float64(region + fact(facts, TREE_OFFSET) + slot * FORMAT.value.node_bytes, ready)
    good = ready & (mass > 0.0)
    generation = generation_of(word) << fact(facts, SLOT_BITS)
    key = (fact(facts, SHARD) << FORMAT.value.leaf_bits) | generation | slot
    one = tl.full([BLOCK], 1.0, tl.float64)
    tl.store(pointer(keys, tl.int64) + item, key, mask=good)
    tl.store(pointer(probabilities, tl.float64) + item, tl.minimum(one, mass * (one / total)), mask=good)
    return good


@triton.jit(do_not_specialize=ARGUMENTS)
def take_leaves(
    region: tl.int64,
    facts: tl.int64,
    scratch: tl.int64,
    keys: tl.int64,
    probabilities: tl.int64,
    count: tl.int32,
    BLOCK: tl.constexpr,
) -> None:
    """Ends a draw without rows: writes keys and probabilities. An item without mass is WANTED again."""
    item = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    states = field(scratch, count, STATE) + item
    ready = tl.load(states, mask=item < count, other=0) == READY
    good = take(region, facts, scratch, keys, probabilities, count, item, ready, BLOCK)
    tl.store(states, tl.full([BLOCK], WANTED, tl.int64), mask=ready & ~good)
