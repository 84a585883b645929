"""The shards of one table as this process sees them: their cores, whether they live, what their roots say."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias, final

import numpy as np
import numpy.typing as npt

from relive._core import CoreTable
from relive.errors import ForeignKey, InvalidConfig
from relive.explicit import Explicit
from relive.fleet.errors import NotOverShards
from relive.fleet.owner import OwnerWatch, shard_of
from relive.fleet.placement import MAX_SHARDS, Root
from relive.items import Episodes
from relive.limiters import MinSize
from relive.samplers import Prioritized, Uniform
from relive.table import Table

__all__ = ["STALL_S", "Shard", "Shards", "State"]

State: TypeAlias = Literal["live", "dead", "stalled"]
Keys = npt.NDArray[np.int64]
Places = npt.NDArray[np.intp]

STALL_S = 0.5  # how long a draw waits for one shard; then it goes on without, and asks it again as much later
_LEAF_BITS = 51


@final
class Shard:
    """One shard: a handle on its region. watch: whether its owner lives; None: nobody has to own it."""

    def __init__(self, table: Table, watch: OwnerWatch | None) -> None:
        self.table = table
        self.core: CoreTable = table.core
        self.watch = watch
        self.number = shard_of(table)
        geometry = self.core.geometry
        self.uuid: bytes = geometry["uuid"]
        self._slot_bits: int = geometry["slot_bits"]
        self._num_slots: int = geometry["num_slots"]
        self._stalled_until = 0.0

    @property
    def state(self) -> State:
        """live; dead: no owner; stalled: somebody holds its lock and does not go on, it is left alone for a while."""
        if self.watch is not None and not self.watch.is_owned():
            return "dead"
        return "stalled" if time.monotonic() < self._stalled_until else "live"

    @property
    def is_live(self) -> bool:
        """Whether it is drawn from."""
        return self.state == "live"

    def stalls(self) -> None:
        """It kept a call waiting: it is left alone for STALL_S."""
        self._stalled_until = time.monotonic() + STALL_S

    def root(self, index: int) -> Root:
        """What it says of an index now; without a lock, a few microseconds."""
        mass, num_items, max_priority, inserted, sampled, pending, version = self.core.root(index)
        is_dead = not self.is_live
        return Root(self.number, mass, num_items, max_priority, inserted, sampled, version, is_dead, pending)

    def are_rows(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Which of the keys, all with its number, it may have given out for rows."""
        in_shard = keys & ((1 << _LEAF_BITS) - 1)
        slots, generations = in_shard & ((1 << self._slot_bits) - 1), in_shard >> self._slot_bits
        return (slots < self._num_slots) & (generations >= 1)

    def lock_s(self, num_shards: int) -> float:
        """How long calls without a deadline of their own wait for its lock: for the only shard as long as they like."""
        return math.inf if num_shards == 1 else STALL_S

    def close(self) -> None:
        """Closes the handle and the watch."""
        if self.watch is not None:
            self.watch.close()
        self.table.close()


@final
class Shards:
    """All shards in the order of their numbers. Owner of their handles.

    Raises InvalidConfig (no shard, a number twice, unlike specs, indexes or seeds, a limiter of a shard's own),
    NotOverShards where the indexes do not work over several.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        if not 1 <= len(shards) <= MAX_SHARDS:
            raise InvalidConfig("number of shards", f"1 to {MAX_SHARDS}", len(shards))
        self._shards = sorted(shards, key=lambda shard: shard.number)
        self._place_of = np.full(MAX_SHARDS, -1, np.intp)
        for place, shard in enumerate(self._shards):
            if self._place_of[shard.number] >= 0:
                raise InvalidConfig("numbers of shards", "each once", f"shard {shard.number} twice")
            self._place_of[shard.number] = place
        for shard in self._shards:
            self._check_alike(shard)
        if len(self) > 1:
            _check_indexes(self._shards[0].table)

    def __len__(self) -> int:
        return len(self._shards)

    def __iter__(self) -> Iterator[Shard]:
        return iter(self._shards)

    def __getitem__(self, place: int) -> Shard:
        return self._shards[place]

    @property
    def live(self) -> list[Shard]:
        """Those that are drawn from now."""
        return [shard for shard in self._shards if shard.is_live]

    def numbered(self, number: int) -> Shard:
        """The shard of a number. Raises InvalidConfig."""
        for shard in self._shards:
            if shard.number == number:
                return shard
        raise InvalidConfig("shard", " or ".join(str(shard.number) for shard in self._shards), number)

    def places_of(self, keys: Keys, are_changed: bool) -> Places:
        """[B] The place of each key's shard here. Raises ForeignKey: of no shard, or, where they are changed, no row.

        Keys that are read are looked at by their shard; those that change something are all checked before the first
        shard hears of it.
        """
        numbers = keys >> _LEAF_BITS
        places: Places = np.where(keys >= 0, self._place_of[numbers & (MAX_SHARDS - 1)], -1)
        wrong = places < 0
        if are_changed and len(self) > 1:
            for place in np.unique(places[~wrong]):
                mine = places == place
                wrong[mine] = ~self[place].are_rows(keys[mine])
        if wrong.any():
            position = int(np.flatnonzero(wrong)[0])
            raise ForeignKey(position, int(keys[position]))
        return places

    def close(self) -> None:
        """Closes every handle."""
        for shard in self._shards:
            shard.close()

    def _check_alike(self, shard: Shard) -> None:
        first, config = self._shards[0], shard.table.config
        expected: dict[str, Any] = {
            "spec": first.table.config.spec,
            "indexes": list(first.table.config.index.items()),
            "seed": first.table.config.seed,
        }
        given = {"spec": config.spec, "indexes": list(config.index.items()), "seed": config.seed}
        for what, value in expected.items():
            if given[what] != value:
                raise InvalidConfig(
                    f"{what} of shard {shard.number}", f"{value!r}, as shard {first.number}", given[what]
                )
        for name in config.index:
            own = shard.table.limiter(name)
            if own != MinSize():
                expected_limiter = "MinSize(1) in its region, as ShardOwner makes it: those of a fleet act on totals"
                raise InvalidConfig(f"limiter of index {name!r} in shard {shard.number}", expected_limiter, own)


def _check_indexes(table: Table) -> None:
    for name, index in table.config.index.items():
        if isinstance(index.items, Explicit):
            raise NotOverShards(
                f"index {name!r} with Explicit items",
                "an item's windows would have to lie in one shard",
                "make such items in a table of their own",
            )
        if isinstance(index.items, Episodes) and index.items.is_grouped:
            raise NotOverShards(
                f"index {name!r} with groups of episodes",
                "members in different shards would not meet",
                "write all groups to one table",
            )
        if not isinstance(index.drawn_by, (Uniform, Prioritized)):
            raise NotOverShards(
                f"the sampler {type(index.drawn_by).__name__} of index {name!r}",
                "orders and ranks of different shards are not compared yet",
                "use Uniform or Prioritized, or one table",
            )
        if not index.replacement:
            raise NotOverShards(
                f"replacement=False of index {name!r}",
                "shards do not know what others gave a batch, nor how much of their mass is left",
                "draw with replacement, or from one table",
            )
