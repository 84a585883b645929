"""Places the points of a draw on the shards of a table, by arithmetic on roots alone.

A shard is one more child of the tree's root. Its own root gives its mass, and a draw first chooses among shards as it
chooses among the children of any node. Processes with the same roots and the same point compute the same answer, so
ranks need to agree on O(shards) bytes only, for any number of items and any batch size.

The module uses no network, no table and no clock: it takes roots and numbers and returns counts.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import numpy.typing as npt

from relive import _core
from relive.core.forks import computed_once
from relive.core.limiter_words import NO_WORDS, LimiterWords
from relive.errors import FormatMismatch, InvalidConfig

__all__ = ["MAX_SHARDS", "ROOT_BYTES", "Point", "Root", "Roots", "home", "offsets", "place", "shared_point", "within"]

MAX_SHARDS = 4096  # a key has 12 bits for the shard
_ROOT = struct.Struct("<HHIdqdqqq")
ROOT_BYTES = _ROOT.size  # sent for one index of one shard
_WORD = 2**64 - 1

Counts = npt.NDArray[np.int64]


# ---- roots -------------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Root:
    """The numbers of one index in one shard. A dead shard counts as without mass and live items."""

    shard: int
    mass: float  # of its live items
    num_items: int  # live
    max_priority: float = 0.0  # the largest ever given
    inserted: int = 0  # items published since the shard was made
    sampled: int = 0  # items handed out, and those in flight
    policy_version: int = 0
    is_dead: bool = False
    pending: int = 0  # items that wait for late columns or a priority
    words: LimiterWords = NO_WORDS  # of a limiter that bounds items, for writers of this handle. Ranks do not send them

    def progress(self, newest: int) -> int:
        """Number of versions since the shard's first row. `newest`: the newest version of the live shards."""
        seen = self.policy_version - self.words.base_version
        return max(seen, newest - self.words.base_version) if self.is_dead and self.inserted else seen

    def pack(self) -> bytes:
        """The root as ROOT_BYTES bytes."""
        counted = (self.mass, self.num_items, self.max_priority, self.inserted, self.sampled, self.pending)
        return _ROOT.pack(self.shard, self.is_dead, self.policy_version, *counted)

    @classmethod
    def unpack(cls, packed: bytes) -> Root:
        """The root from the bytes of pack(). Raises FormatMismatch."""
        if len(packed) != ROOT_BYTES:
            raise FormatMismatch("bytes of a root", ROOT_BYTES, len(packed))
        shard, is_dead, version, mass, num_items, max_priority, inserted, sampled, pending = _ROOT.unpack(packed)
        return cls(shard, mass, num_items, max_priority, inserted, sampled, version, bool(is_dead), pending)


@final
@dataclass(frozen=True)
class Roots:
    """The roots of one index in all shards, ordered by shard number. Ranks agree on them for a draw.

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
        """Makes roots from any order."""
        return cls(tuple(roots))

    def without(self, shards: Set[int]) -> Roots:
        """The same roots with these shards dead. All probabilities refer to the remaining shards."""
        return Roots(tuple(replace(root, is_dead=root.is_dead or root.shard in shards) for root in self.shards))

    def with_dead(self) -> Roots:
        """The same roots with all shards alive, each as it was last known."""
        return Roots(tuple(replace(root, is_dead=False) for root in self.shards))

    @computed_once
    def bounds(self) -> tuple[float, ...]:
        """[S] The fraction of the total mass in the shards up to and including each one.

        The bound of the last shard with mass is exactly 1. All bounds are 0 if there is no mass.
        """
        masses = [0.0 if root.is_dead or not root.num_items else root.mass for root in self.shards]
        largest = max(masses)
        if largest == 0.0:
            return (0.0,) * len(masses)
        # The sum runs in order, so it is the same on every rank. The scaled masses cannot overflow.
        sums = list(itertools.accumulate(mass / largest for mass in masses))
        return tuple(some / sums[-1] for some in sums)

    @computed_once
    def shares(self) -> tuple[float, ...]:
        """[S] The fraction of the total mass in each shard."""
        return tuple(bound - before for before, bound in zip((0.0, *self.bounds), self.bounds, strict=False))

    @computed_once
    def num_items(self) -> int:
        """N: number of live items in all shards that are not dead."""
        return sum(root.num_items for root in self.shards if not root.is_dead)

    @property
    def inserted(self) -> int:
        """Number of items published.

        Dead shards count, so that the limiter's balance does not jump when a shard dies.
        """
        return sum(root.inserted for root in self.shards)

    @property
    def pending(self) -> int:
        """Number of items that wait, in shards that are not dead."""
        return sum(root.pending for root in self.shards if not root.is_dead)

    @property
    def sampled(self) -> int:
        """Number of items drawn. Dead shards count."""
        return sum(root.sampled for root in self.shards)

    @property
    def drawable(self) -> int:
        """Number of live items with a mass."""
        return self.num_items - sum(root.words.num_massless for root in self.shards if not root.is_dead)

    @property
    def lacks(self) -> bool:
        """Whether there are live items, and none of them has a mass."""
        return self.num_items > 0 and self.bounds[-1] == 0.0

    @property
    def used_or_unused(self) -> int:
        """Number of items that were ever drawn, and of live items with a mass that never were, if uses are counted.

        Items of a dead shard count if they were drawn: no draw finds the others.
        """
        unused = (root.num_items - root.words.num_massless if root.is_dead else 0 for root in self.shards)
        return self.inserted - sum(unused)

    @property
    def progress(self) -> int:
        """Number of versions since the budget of versions began: of the shard that has seen most of them.

        A shard without a row begins with its first row, and a shard may not have the newest version yet. A dead shard
        counts with its items that were drawn, so the versions that the live shards have seen since count for it, too.
        """
        newest = max((root.policy_version for root in self.shards if not root.is_dead), default=0)
        return max(root.progress(newest) for root in self.shards)


# ---- the shared stream ---------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Point:
    """The random part of the choice of shards: the comb's offset, and the rank that takes its first point."""

    at: float  # in [0, 1)
    shift: int  # in ranks


def shared_point(seed: int, stream: int, call: int, attempt: int, world: int = 1) -> Point:
    """The point of a draw, from counters alone.

    The point is the same on every rank, and no draw shifts the point of another draw.
    """
    word = _core.random_base(seed, stream, call, attempt)
    return Point((word >> 11) * 2.0**-53, _core.splitmix64(word) % world)


# ---- the choice ----------------------------------------------------------------------------------------------------


def place(roots: Roots, num_items: int, point: Point, rank: int = 0, world: int = 1) -> list[int]:
    """Number of items that a rank draws from each shard, if `world` ranks draw num_items items each.

    The ranks' points are a comb over the total mass. Point j of num_items * world lies at

        (j + at) / (num_items * world)

    and rank r has the points with j = r + shift (modulo world). This comb has these properties:

    - Every rank has exactly num_items points, and no two ranks share a point.
    - A shard's count is within 1 of its share.
    - Averaged over `at` and `shift`, a shard's count is exactly its share, on each rank.
    - A shard without mass has no point.

    Args:
        roots: the roots of the draw.
        num_items: number of items of each rank.
        point: the random offset and shift.
        rank: this rank, 0 to world - 1.
        world: number of ranks.

    Returns:
        [S] the counts.

    Raises:
        InvalidConfig: no live shard has mass, or rank is out of range.

    Cost:
        O(S).
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
        # Points in the shards up to and including this one. If bound is 1, all points: the difference may round below.
        below = math.ceil(num_points * bound - point.at) if bound < 1.0 else num_points
        mine = max(below - first + world - 1, 0) // world  # the rank's part of these points
        counts.append(mine - mine_before)
        mine_before = mine
    return counts


def home(value: int, shards: Sequence[int]) -> int:
    """The shard, of those with these numbers, for everything that has this value. The same in every process.

    Each shard gets an equal part of all values. If a shard is added or removed, values move to or from that shard only.

    Args:
        value: a number of 64 bits.
        shards: numbers of shards, at least one.

    Returns:
        The number of the shard with the largest hash of its number and the value (rendezvous hashing; Thaler and
        Ravishankar 1998, IEEE/ACM Transactions on Networking 6(1)).
    """
    word = _core.splitmix64(value & _WORD)
    return max(shards, key=lambda number: (_core.splitmix64(word ^ number), number))


def within(counts: list[int], room: Sequence[int]) -> list[int] | None:
    """[S] The counts, cut to the room of each shard.

    The cut items go to the other shards, in proportion to the room that these have left. None if all shards together
    have
    too little room.
    """
    cut = [min(count, most) for count, most in zip(counts, room, strict=True)]
    left = sum(counts) - sum(cut)
    spare = [most - count for count, most in zip(cut, room, strict=True)]
    if left > sum(spare):
        return None
    if not left:
        return cut
    # Cumulative sums are rounded down, so the parts add up. left <= sum(spare): no part exceeds its shard's spare room.
    bounds = [left * behind // sum(spare) for behind in itertools.accumulate(spare)]
    return [count + behind - before for count, before, behind in zip(cut, (0, *bounds), bounds, strict=False)]


def offsets(roots: Roots, num_items: int, point: Point, world: int) -> tuple[Counts, Counts]:
    """(first, count) [W, S]: which of a shard's drawn keys go to which rank, if each owner draws for all ranks.

    An owner's keys come at permuted positions, so every run of them is a fair sample. Rank r gets the keys of shard s
    from
    first[r, s] on. The keys that an owner draws beyond the need of its own rank are the surplus that moves.
    """
    counts = np.array([place(roots, num_items, point, rank, world) for rank in range(world)], np.int64)
    return np.cumsum(counts, axis=0) - counts, counts
