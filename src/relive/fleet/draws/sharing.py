"""How a draw is shared out among shards, by the sampler of the index: what a shard's part is in proportion to.

Samplers that draw by masses which add up over shards are those of one table: the mass of a shard's root is its part.
An order or a rank is each shard's own, for nobody compares the items of two shards. So a draw is of the union of what
each shard's sampler chooses from: the k best *of each shard* for TopK, every item for ranks; and by an order each shard
gives its first ones, as many as its share of the live items.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, final

from relive.config.samplers import Fifo, Fresh, Lifo, MaxPriority, MinPriority, Prioritized, RankBased, TopK, Uniform
from relive.fleet.draws.placement import Root
from relive.fleet.errors import NotOverShards

__all__ = ["Sharing", "sharing_of"]

_SUMS = (Uniform, Prioritized)
_ORDERS = (Fifo, Lifo, MaxPriority, MinPriority)


def _mass(root: Root) -> float:
    return root.mass


def _items(root: Root) -> float:
    return float(root.num_items)


@final
@dataclass(frozen=True)
class Sharing:
    """part: of a root, what a shard's part of a draw is in proportion to. is_certain: an order leaves nothing to
    chance, so that every item of a draw has the probability 1; otherwise it is the shard's share of that in its shard.
    only_part: nothing but the part is drawn, however much lives; else what is best next takes a place that is left.
    """

    part: Callable[[Root], float]
    is_certain: bool = False
    only_part: bool = False

    def room(self, root: Root) -> int:
        """Of a root that `of` made: items that may be drawn one after another."""
        return int(root.mass) if self.only_part else root.num_items

    def of(self, root: Root) -> Root:
        """The same root, with the part as its mass."""
        part = self.part(root)
        return root if part == root.mass else replace(root, mass=part)


def sharing_of(name: str, sampler: Any) -> Sharing:
    """Of an index of this name. Raises NotOverShards for samplers that would have to know what other shards gave."""
    if isinstance(sampler, _SUMS):
        return Sharing(_mass)
    if isinstance(sampler, Fresh) and sampler.last is not None:
        return Sharing(_mass, only_part=True)
    if isinstance(sampler, _ORDERS) or isinstance(sampler, Fresh) and sampler.decay is None:
        return Sharing(_items, is_certain=True)
    if isinstance(sampler, RankBased):
        return Sharing(_items)
    if isinstance(sampler, TopK):
        k = sampler.k
        return Sharing(
            lambda root: float(min(root.num_items, k if isinstance(k, int) else _rounded(k * root.num_items)))
        )
    if isinstance(sampler, Fresh):
        reason = "each shard counts staleness from a version of its own, so masses of two do not compare"
        raise NotOverShards(f"Fresh(decay=) of index {name!r}", reason, "use Fresh(last=n), or one table")
    raise NotOverShards(
        f"the sampler {type(sampler).__name__} of index {name!r}",
        "shards do not know what others gave of an epoch",
        "use another sampler, or one table",
    )


def _rounded(share: float) -> int:
    return max(1, math.floor(share + 0.5))
