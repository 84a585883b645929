"""How a draw is shared out among shards, by the sampler of the index: what a shard's part is in proportion to.

Samplers that draw by masses which add up over shards are those of one table: the mass of a shard's root is its part.
An order or a rank is each shard's own, for nobody compares the items of two shards. So a draw is of the union of what
each shard's sampler chooses from: the k best *of each shard* for TopK, every item for ranks; and by an order each shard
gives its first ones, as many as its share of the live items.
"""

from __future__ import annotations

from dataclasses import replace
from typing import final

from relive.config.kinds import SamplerKind
from relive.fleet.draws.placement import Root
from relive.fleet.errors import NotOverShards

__all__ = ["Sharing", "sharing_of"]


@final
class Sharing:
    """How draws of an index are shared out, by its sampler."""

    def __init__(self, sampler: SamplerKind) -> None:
        self._sampler = sampler

    @property
    def is_certain(self) -> bool:
        """Whether an order leaves nothing to chance: then every item of a draw has the probability 1, and otherwise the
        shard's share of the probability in its shard.
        """
        return self._sampler.draws_by == "order"

    def room(self, root: Root) -> int:
        """Of a root that `of` made: items that may be drawn one after another."""
        return self._sampler.shard_room(root.mass, root.num_items)

    def of(self, root: Root) -> Root:
        """The same root, with what a shard's part of a draw is in proportion to as its mass."""
        part = self._sampler.shard_part(root.mass, root.num_items)
        return root if part == root.mass else replace(root, mass=part)


def sharing_of(name: str, sampler: SamplerKind) -> Sharing:
    """Of an index of this name. Raises NotOverShards for samplers that would have to know what other shards gave."""
    if sampler.one_table_only is not None:
        what, reason, instead = sampler.one_table_only
        raise NotOverShards(f"{what} of index {name!r}", reason, instead)
    return Sharing(sampler)
