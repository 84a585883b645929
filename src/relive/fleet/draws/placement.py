"""Where the points of a draw fall when a table lives in several shards: arithmetic on roots, and nothing else.

A shard is one more child of the tree's root: its root says its mass, and a draw first chooses among shards as it
chooses among the children of any node. Whoever has the same roots and the same point finds the same answer, so ranks
need to agree on O(shards) bytes only, whatever the number of items and of a batch.

No network, no table, no clock: roots and numbers in, counts out.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import numpy as np
import numpy.typing as npt

from relive import _core
from relive.errors import FormatMismatch, InvalidConfig

__all__ = ["MAX_SHARDS", "ROOT_BYTES", "Point", "Root", "Roots", "offsets", "place", "shared_point", "within"]

MAX_SHARDS = 4096  # a key has 12 bits for the shard
_ROOT = struct.Struct("<HHIdqdqqq")
ROOT_BYTES = _ROOT.size  # that travel for an index of a shard

Counts = npt.NDArray[np.int64]


# ---- roots -------------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Root:
    """What one shard says of one index. A dead shard has no mass and no items, whatever it had."""

    shard: int
    mass: float  # of its live items
    num_items: int  # live
    max_priority: float = 0.0  # the largest ever given
    inserted: int = 0  # items published since the shard was made
    sampled: int = 0  # items handed out, and those in flight
    policy_version: int = 0
    is_dead: bool = False
    pending: int = 0  # items that wait for late columns or a priority

    def pack(self) -> bytes:
        """ROOT_BYTES bytes."""
        counted = (self.mass, self.num_items, self.max_priority, self.inserted, self.sampled, self.pending)
        return _ROOT.pack(self.shard, self.is_dead, self.policy_version, *counted)

    @classmethod
    def unpack(cls, packed: bytes) -> Root:
        """What pack() wrote. Raises FormatMismatch."""
        if len(packed) != ROOT_BYTES:
            raise FormatMismatch("bytes of a root", ROOT_BYTES, len(packed))
        shard, is_dead, version, mass, num_items, max_priority, inserted, sampled, pending = _ROOT.unpack(packed)
        return cls(shard, mass, num_items, max_priority, inserted, sampled, version, bool(is_dead), pending)


@final
@dataclass(frozen=True)
class Roots:
    """The roots of one index of all shards, in the order of their numbers: what a draw is agreed upon.

    Raises InvalidConfig: no shard, more than MAX_SHARDS, a number twice or out of range, a mass that is not finite.
    """

    shards: tuple[Root, ...]

    def __post_init__(self) -> None:
        ordered = tuple(sorted(self.shards, key=lambda root: root.shard))
        if not 1 <= len(ordered) <= MAX_SHARDS:
            raise InvalidConfig("number of shards", f"1 to {MAX_SHARDS}", len(ordered))
        for before, root in zip((None, *ordered), ordered, strict=False):
            if not 0 <= root.shard < MAX_SHARDS:
                raise InvalidConfig("number of a shard", f"0 to {MAX_SHARDS - 1}", root.shard)
            if before is not None and before.shard == root.shard:
                raise InvalidConfig("numbers of shards", "each once", f"shard {root.shard} twice")
            if not (math.isfinite(root.mass) and root.mass >= 0.0):
                raise InvalidConfig(f"mass of shard {root.shard}", "a finite number >= 0", root.mass)
        object.__setattr__(self, "shards", ordered)

    @classmethod
    def of(cls, roots: Iterable[Root]) -> Roots:
        """Roots in any order."""
        return cls(tuple(roots))

    def without(self, shards: Set[int]) -> Roots:
        """The same, these shards dead: all probabilities are of what is left."""
        return Roots(tuple(replace(root, is_dead=root.is_dead or root.shard in shards) for root in self.shards))

    @cached_property
    def bounds(self) -> tuple[float, ...]:
        """[S] The part of the total mass that lies in the shards up to and with each, the last with any exactly 1.

        All 0 where there is no mass.
        """
        masses = [0.0 if root.is_dead or not root.num_items else root.mass for root in self.shards]
        largest = max(masses)
        if largest == 0.0:
            return (0.0,) * len(masses)
        # One after the other: the same on every rank; and no overflow.
        sums = list(itertools.accumulate(mass / largest for mass in masses))
        return tuple(some / sums[-1] for some in sums)

    @cached_property
    def shares(self) -> tuple[float, ...]:
        """[S] The part of the total mass that each shard has."""
        return tuple(bound - before for before, bound in zip((0.0, *self.bounds), self.bounds, strict=False))

    @cached_property
    def num_items(self) -> int:
        """N: live items of all shards that are not dead."""
        return sum(root.num_items for root in self.shards if not root.is_dead)

    @property
    def inserted(self) -> int:
        """Items published. Dead shards count: what they published was, and the limiter's balance does not jump."""
        return sum(root.inserted for root in self.shards)

    @property
    def pending(self) -> int:
        """Items that wait, of shards that are not dead."""
        return sum(root.pending for root in self.shards if not root.is_dead)

    @property
    def sampled(self) -> int:
        """Items drawn; dead shards count."""
        return sum(root.sampled for root in self.shards)


# ---- the shared stream ---------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Point:
    """What is random in the choice of shards: where the comb of points stands, and which rank takes its first one."""

    at: float  # in [0, 1)
    shift: int  # of ranks


def shared_point(seed: int, stream: int, call: int, attempt: int, world: int = 1) -> Point:
    """The point of a draw, from counters alone: the same on every rank, and no draw shifts another."""
    word = _core.random_base(seed, stream, call, attempt)
    return Point((word >> 11) * 2.0**-53, _core.splitmix64(word) % world)


# ---- the choice ----------------------------------------------------------------------------------------------------


def place(roots: Roots, num_items: int, point: Point, rank: int = 0, world: int = 1) -> list[int]:
    """[S] How many of its num_items items a rank draws from each shard, when world ranks draw as many each.

    The ranks' points are a comb: point j of num_items x world stands at (j + at) / (num_items x world) of the total
    mass, and rank r has those with j = r + shift modulo world. So every rank has exactly num_items, no two ranks share
    one, a shard's count is within 1 of its share, and on average (over at and shift) exactly its share, on each rank.
    A shard without mass has none. Cost: O(S). Raises InvalidConfig where no shard has mass.
    """
    if not 0 <= rank < world:
        raise InvalidConfig("rank", f"0 to {world - 1}", rank)
    bounds = roots.bounds
    if bounds[-1] != 1.0:
        raise InvalidConfig("mass of the shards", "more than 0 of some that lives", 0.0)
    num_points = num_items * world
    first = (rank + point.shift) % world
    counts, mine_before = [], 0
    for bound in bounds:
        # Points in the shards up to and with this; said outright where it is all, for a difference may round below it.
        below = math.ceil(num_points * bound - point.at) if bound < 1.0 else num_points
        mine = max(below - first + world - 1, 0) // world  # of these, the rank's
        counts.append(mine - mine_before)
        mine_before = mine
    return counts


def within(counts: list[int], room: Sequence[int]) -> list[int] | None:
    """[S] The counts cut to the room of each shard, what is cut given to the others in proportion to the room that
    they have left; None where all of them together have too little room.
    """
    cut = [min(count, most) for count, most in zip(counts, room, strict=True)]
    left = sum(counts) - sum(cut)
    spare = [most - count for count, most in zip(cut, room, strict=True)]
    if left > sum(spare):
        return None
    if not left:
        return cut
    # Rounded down up to and with each shard, so that the parts add up; none is more than its spare room, left <= sum.
    bounds = [left * behind // sum(spare) for behind in itertools.accumulate(spare)]
    return [count + behind - before for count, before, behind in zip(cut, (0, *bounds), bounds, strict=False)]


def offsets(roots: Roots, num_items: int, point: Point, world: int) -> tuple[Counts, Counts]:
    """(first, count) [W, S]: which of a shard's drawn keys go to which rank, where each owner draws for all ranks.

    An owner's keys come at permuted positions, so that any run of them is a fair part. Keys of shard s from first[r, s]
    on are rank r's: what an owner draws beyond its own rank's need is the surplus that moves.
    """
    counts = np.array([place(roots, num_items, point, rank, world) for rank in range(world)], np.int64)
    return np.cumsum(counts, axis=0) - counts, counts
