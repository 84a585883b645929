"""The weighted draw over the tree of an index, as it lies in the region (rules G1, G2).

draw_slots -> windows.note_words -> take_leaves: the page word is noted before the leaf is read, and the mass that
counts is that leaf's; what the descent saw of it does not.
"""

from __future__ import annotations

import triton
import triton.language as tl

from relive.gpu.kernels.words import READY, SLOT, TOTAL, WANTED, WORD, field, load_float64, real_field

__all__ = ["draw_slots", "take_leaves"]


@triton.jit
def _mix(z: tl.tensor) -> tl.tensor:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@triton.jit
def _uniform(base: tl.tensor, number: tl.tensor) -> tl.tensor:
    """The number-th of a call, in [0, 1), a multiple of 2^-53."""
    bits = _mix(base.to(tl.uint64) + (number.to(tl.uint64) + 1) * 0x9E3779B97F4A7C15)
    return (bits >> 11).to(tl.float64) * 1.1102230246251565e-16


@triton.jit
def _load_mass(address: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """Masses of the descent. Not volatile: the eight children share a cache line, and a stale one costs a redraw."""
    return tl.load(address.to(tl.pointer_type(tl.float64)), mask=mask, other=0.0)


@triton.jit(do_not_specialize=["count", "num_strata", "base"])
def draw_slots(
    region: tl.tensor,
    strata: tl.tensor,
    points: tl.tensor | None,
    slots: tl.tensor,
    windows: tl.tensor,
    status: tl.tensor,
    count: tl.tensor,
    num_strata: tl.tensor,
    base: tl.uint64,
    INDEX: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The slot of each wanted item, -1 where its point lies behind the last leaf.

    Item i is drawn in stratum strata[i] (int32[count]) of num_strata equal parts of the total, or at points[i] where
    points are given. Children are summed from left to right as their parent was, so only children with
    point < running sum are taken, and a child without mass never is.
    """
    item = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    wanted = tl.load(status.to(tl.pointer_type(tl.int32)) + item, mask=item < count, other=0) == WANTED
    tree = region + INDEX.tree_offset
    top = tree + INDEX.levels[len(INDEX.levels) - 1] * 8 + item.to(tl.int64) * 0
    total = _load_mass(top, wanted)
    for child in tl.static_range(1, 8):
        total += _load_mass(top + child * 8, wanted)
    if points is not None:
        rest = tl.load(points.to(tl.pointer_type(tl.float64)) + item, mask=wanted, other=0.0)
    else:
        stratum = tl.load(strata.to(tl.pointer_type(tl.int32)) + item, mask=wanted, other=0)
        width = total / num_strata.to(tl.float64)
        rest = (stratum.to(tl.float64) + _uniform(base, stratum)) * width
    position = tl.full([BLOCK], 0, tl.int64)
    found = wanted
    for level in tl.static_range(len(INDEX.levels)):
        group = tree + (INDEX.levels[len(INDEX.levels) - 1 - level] + position * 8) * 8
        running = tl.full([BLOCK], 0.0, tl.float64)
        below = tl.full([BLOCK], 0.0, tl.float64)
        child = tl.full([BLOCK], 0, tl.int64)
        for k in tl.static_range(8):
            mass = _load_mass(group + k * 8, found)
            running = mass if k == 0 else running + mass
            behind = running <= rest
            child += behind.to(tl.int64)
            below = tl.where(behind, running, below)
        found = found & (child < 8)
        rest = rest - below
        position = tl.where(found, position * 8 + child, 0)
    tl.store(slots.to(tl.pointer_type(tl.int64)) + item, tl.where(found, position, -1), mask=wanted)
    tl.store(real_field(windows, count, TOTAL) + item, total, mask=wanted)


@triton.jit(do_not_specialize=["count"])
def take_leaves(
    region: tl.tensor,
    windows: tl.tensor,
    status: tl.tensor,
    keys: tl.tensor,
    probabilities: tl.tensor,
    count: tl.tensor,
    INDEX: tl.constexpr,
    LAYOUT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Keys int64[count] and probabilities float64[count] of the slots that were noted; WANTED again without mass."""
    item = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    states = status.to(tl.pointer_type(tl.int32)) + item
    ready = tl.load(states, mask=item < count, other=0) == READY
    slot = tl.load(field(windows, count, SLOT) + item, mask=ready, other=0)
    word = tl.load(field(windows, count, WORD) + item, mask=ready, other=0)
    total = tl.load(real_field(windows, count, TOTAL) + item, mask=ready, other=1.0)
    mass = load_float64(region + INDEX.tree_offset + slot * 8, ready)
    good = ready & (mass > 0.0)
    key = ((word >> 18) << LAYOUT.slot_bits) | slot
    if LAYOUT.shard > 0:
        key = key | (LAYOUT.shard << 51)
    one = tl.full([BLOCK], 1.0, tl.float64)
    tl.store(keys.to(tl.pointer_type(tl.int64)) + item, key, mask=good)
    tl.store(probabilities.to(tl.pointer_type(tl.float64)) + item, tl.minimum(one, mass * (one / total)), mask=good)
    tl.store(states, WANTED, mask=ready & ~good)
