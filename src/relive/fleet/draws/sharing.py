"""Shares a draw out among shards, in proportion to a quantity that the sampler of the index determines.

Masses add up over shards. A sampler that draws by mass therefore works as on one table: the mass of a shard's root is
its part.

Orders and ranks are per shard, because no process compares the items of two shards. A draw is then from the union of
the items that each shard's sampler chooses from: the k best items *of each shard* for TopK, every item for ranks. By an
order each shard gives its first items, as many as its share of the live items.
"""

from __future__ import annotations

from dataclasses import replace
from typing import final

from relive.config.kinds import SamplerKind
from relive.fleet.draws.placement import MAX_SHARDS, Root
from relive.fleet.errors import NotOverShards

__all__ = ["Sharing", "sharing_of"]


@final
class Sharing:
    """How a sampler shares out the draws of an index."""

    def __init__(self, sampler: SamplerKind) -> None:
        self._sampler = sampler

    @property
    def is_certain(self) -> bool:
        """Whether the sampler draws by an order, so that every item of a draw has the probability 1.

        Otherwise an item's probability is the shard's share times the item's probability in its shard.
        """
        return self._sampler.draws_by == "order"

    def room(self, root: Root) -> int:
        """Number of items that may be drawn one after another, from a root that `of` made."""
        return self._sampler.shard_room(root.mass, root.num_items)

    def of(self, root: Root) -> Root:
        """The same root, with its mass replaced by the quantity that the shard's part of a draw is proportional to."""
        part = self._sampler.shard_part(root.mass, root.num_items)
        return root if part == root.mass else replace(root, mass=part)


def sharing_of(name: str, sampler: SamplerKind, num_shards: int = MAX_SHARDS) -> Sharing:
    """The sharing of the index of this name. A single shard gets every draw, if it has items.

    Raises NotOverShards for samplers that need to know the draws of other shards, if there are any.
    """
    if num_shards > 1 and sampler.one_table_only is not None:
        what, reason, instead = sampler.one_table_only
        raise NotOverShards(f"{what} of index {name!r}", reason, instead)
    return Sharing(sampler)
