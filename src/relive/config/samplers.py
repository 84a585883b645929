"""The ways to choose items: a sampler chooses the items of a draw, a remover the items that leave a full index."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias, final

import numpy as np

from relive.checks.names import names_arguments
from relive.checks.values import MAX_FLOAT32, finite, integer
from relive.config.kinds import DrawsBy, InitialPriority, OneTableOnly, RemoverKind, SamplerKind
from relive.errors import InvalidConfig

__all__ = [
    "REMOVERS",
    "SAMPLERS",
    "Fifo",
    "Fresh",
    "Lifo",
    "MaxPriority",
    "MinPriority",
    "Prioritized",
    "RankBased",
    "Remover",
    "Reservoir",
    "Sampler",
    "Shuffle",
    "TopK",
    "Uniform",
]

_MAX_RANK_EXPONENT = 10.0
_MAX_K = 2**31


class _LooksAtPriorities:
    """A sampler or remover whose option `initial` is the priority of items that came without one."""

    initial: InitialPriority

    @property
    def initial_priority(self) -> InitialPriority:
        """The option `initial`."""
        return self.initial


def _checked_initial(initial: Any) -> InitialPriority:
    if isinstance(initial, str) and initial in ("max", "given"):
        return "max" if initial == "max" else "given"
    return finite("initial (or 'max', 'given')", initial, 0.0, MAX_FLOAT32)


@names_arguments
@final
@dataclass(frozen=True)
class Uniform(SamplerKind, RemoverKind):
    """Sampler and remover: every item has the same probability.

    As a sampler it draws with replacement. As a remover it may also remove the item that came last.
    """

    draws_by: ClassVar[DrawsBy] = "mass"
    initial_priority: ClassVar[None] = None
    one_table_only: ClassVar[None] = None

    def sampler_config(self) -> dict[str, Any]:
        """The sampler as the core reads it."""
        return {"sampler": "uniform"}

    def steps_per_item(self, rows: int) -> float:
        """The sum of 1 / k over the rows, as the steps of kept items thin out evenly, and a tenth more for chance."""
        return 1.1 * sum(1 / k for k in range(1, rows + 1))

    def remover_config(self) -> dict[str, Any]:
        """The remover as the core reads it."""
        return {"remover": "uniform"}


@names_arguments
@final
@dataclass(frozen=True)
class Prioritized(_LooksAtPriorities, SamplerKind, RemoverKind):
    """Draws items by priority as a sampler, or removes items by priority as a remover.

    The mass of an item is priority ** priority_exponent. The item is drawn, or removed, with this probability:

        p(item) = mass / sum of all masses

    A sampler draws with replacement, except in an Index(replacement=False). table.set_priority_exponent changes the
    exponent of a sampler that is in use. If all masses are 0, a remover removes an arbitrary item.

    Args:
        priority_exponent: exponent of the priorities, >= 0.
        initial: the priority of an item that was added without a priority. A number >= 0 that float32 can represent, or
            'max': the largest priority that was ever given (1 at first), or 'given': the item waits, unpublished, until
            update_priorities or append gives its priority.

    Raises:
        InvalidConfig: an argument has another type or value.

    Source: Schaul et al. 2016, Prioritized Experience Replay.
    """

    draws_by: ClassVar[DrawsBy] = "mass"
    one_table_only: ClassVar[None] = None
    has_exponent: ClassVar[bool] = True

    priority_exponent: float = 0.6
    initial: InitialPriority = "max"

    def __post_init__(self) -> None:
        object.__setattr__(self, "priority_exponent", finite("priority_exponent", self.priority_exponent, 0.0))
        object.__setattr__(self, "initial", _checked_initial(self.initial))

    def sampler_config(self) -> dict[str, Any]:
        """The sampler as the core reads it."""
        return {"sampler": "prioritized", "priority_exponent": self.priority_exponent}

    def remover_config(self) -> dict[str, Any]:
        """The remover as the core reads it."""
        return {"remover": "prioritized", "removal_exponent": self.priority_exponent}


@names_arguments
@final
@dataclass(frozen=True)
class Fifo(SamplerKind, RemoverKind):
    """Sampler: the items that came first. Remover: the item that came first leaves.

    A batch of n has the first n items, in order. If there are fewer, they come again from the first on. With
    max_times_sampled=1 the index is a queue: each item comes once, and two samplers never get the same item. The steps
    of a table without max_items leave page by page, within page length x open lanes steps of the exact order.

    Cost: about 0.2 us an item.
    """

    draws_by: ClassVar[DrawsBy] = "order"
    initial_priority: ClassVar[None] = None
    one_table_only: ClassVar[None] = None
    best_is_least: ClassVar[bool] = True

    def sampler_config(self) -> dict[str, Any]:
        """The sampler as the core reads it."""
        return {"sampler": "fifo"}

    def steps_per_item(self, rows: int) -> None:
        """None: items leave in the order of their steps."""
        return None

    def remover_config(self) -> dict[str, Any]:
        """The remover as the core reads it."""
        return {"remover": "fifo"}


@names_arguments
@final
@dataclass(frozen=True)
class Lifo(SamplerKind, RemoverKind):
    """Sampler: the items that came last, the newest first (see Fifo).

    Remover: the newcomer leaves, older items stay.
    """

    draws_by: ClassVar[DrawsBy] = "order"
    initial_priority: ClassVar[None] = None
    one_table_only: ClassVar[None] = None

    def sampler_config(self) -> dict[str, Any]:
        """The sampler as the core reads it."""
        return {"sampler": "lifo"}

    def steps_per_item(self, rows: int) -> int:
        """1: the kept items are the oldest ones, in a row."""
        return 1

    def remover_config(self) -> dict[str, Any]:
        """The remover as the core reads it."""
        return {"remover": "lifo"}


@names_arguments
@final
@dataclass(frozen=True)
class MaxPriority(_LooksAtPriorities, SamplerKind, RemoverKind):
    """Sampler: the items with the highest priorities. Remover: the item with the highest priority leaves.

    A batch of n has the n best items, the best first. If there are fewer, they come again from the best on. Among equal
    priorities, the item that came or was updated longest ago is first, if at most 2**32 items and updates lie between
    them.

    Args:
        initial: as for Prioritized.

    Raises:
        InvalidConfig: `initial` has another type or value.
    """

    draws_by: ClassVar[DrawsBy] = "order"
    one_table_only: ClassVar[None] = None

    initial: InitialPriority = "max"

    def __post_init__(self) -> None:
        object.__setattr__(self, "initial", _checked_initial(self.initial))

    def sampler_config(self) -> dict[str, Any]:
        """The sampler as the core reads it."""
        return {"sampler": "max_priority"}

    def remover_config(self) -> dict[str, Any]:
        """The remover as the core reads it."""
        return {"remover": "max_priority"}


@names_arguments
@final
@dataclass(frozen=True)
class MinPriority(_LooksAtPriorities, SamplerKind, RemoverKind):
    """The same as MaxPriority with the lowest priorities: as a remover, the best items stay."""

    draws_by: ClassVar[DrawsBy] = "order"
    one_table_only: ClassVar[None] = None
    best_is_least: ClassVar[bool] = True

    initial: InitialPriority = "max"

    def __post_init__(self) -> None:
        object.__setattr__(self, "initial", _checked_initial(self.initial))

    def sampler_config(self) -> dict[str, Any]:
        """The sampler as the core reads it."""
        return {"sampler": "min_priority"}

    def remover_config(self) -> dict[str, Any]:
        """The remover as the core reads it."""
        return {"remover": "min_priority"}


@names_arguments
@final
@dataclass(frozen=True)
class Shuffle(SamplerKind):
    """Sampler: epochs without replacement; each epoch has an order of its own, which all processes share.

    - An item that is present for the whole epoch is drawn exactly once. An item that is added or removed during the
      epoch is drawn at most once.
    - A batch that reaches the end of an epoch continues in the next one.
    - The order follows from the table's seed and the number of the epoch. The table keeps 8 bytes of it.
    - probabilities are 1 / N for N live items.
    - Items that a process had drawn when it died are lost to the epoch. So are items that batches() drew ahead and did
      not hand out, if another draw came after them. Else they come again.
    - A draw advances the epoch. So a read-only handle cannot draw: ReadOnly. A draw with where= is refused.

    Cost: a permuted place and a cache miss a slot, and as many slots an item as the index has for each item. A table
    that is much emptier than its capacity, or that has far more lanes than it needs, is slow.
    """

    draws_by: ClassVar[DrawsBy] = "order"
    initial_priority: ClassVar[None] = None
    one_table_only: ClassVar[OneTableOnly] = OneTableOnly(
        "the sampler Shuffle", "shards do not know what others gave of an epoch", "use another sampler, or one table"
    )

    def sampler_config(self) -> dict[str, Any]:
        """The sampler as the core reads it."""
        return {"sampler": "shuffle"}


@names_arguments
@final
@dataclass(frozen=True)
class RankBased(_LooksAtPriorities, SamplerKind):
    """Sampler: by rank, with replacement: the i-th best of n items has mass (1 / i) ** priority_exponent.

    Only the order of priorities counts and not their size, so an outlier is drawn no more often than its rank allows.
    The paper keeps an array that is sorted from time to time. This sampler ranks with a stated resolution instead:
    priorities that agree in their exponent and in the first 7 bits of their fraction form one class. They differ by
    less than 1/128. All priorities below 1.2e-38, and 0, form one class, too. A class takes as many ranks as it has
    members, and its members share the mass of these ranks equally. So ties are fair, and batch.probabilities are exact:

        p(item) = sum of mass over the ranks of its class / members / sum of mass over all ranks

    Args:
        priority_exponent: 0 to 10; the paper uses 0.7; 0 draws uniformly.
        initial: as for Prioritized.

    Cost: up to twice the draw of Prioritized and three times its updates. Memory: 12.3 bytes a step, and up to 17 MB if
    priorities fall into very many classes. A table can have at most 1.7e9 steps.

    Raises:
        InvalidConfig: an argument has another type or value.

    Source: Schaul et al. 2016, the rank-based variant.
    """

    draws_by: ClassVar[DrawsBy] = "rank"
    one_table_only: ClassVar[None] = None

    priority_exponent: float = 0.7
    initial: InitialPriority = "max"

    def __post_init__(self) -> None:
        exponent = finite("priority_exponent", self.priority_exponent, 0.0, _MAX_RANK_EXPONENT)
        object.__setattr__(self, "priority_exponent", exponent)
        object.__setattr__(self, "initial", _checked_initial(self.initial))

    def sampler_config(self) -> dict[str, Any]:
        """The sampler as the core reads it."""
        return {"sampler": "rank_based", "priority_exponent": self.priority_exponent}


@names_arguments
@final
@dataclass(frozen=True)
class TopK(_LooksAtPriorities, SamplerKind):
    """Sampler: uniform among the k items with the highest priorities, with replacement. Other items are never drawn.

    Priorities have the classes of RankBased: items within 1/128 of the k-th one share the places that are left. An item
    of that class has probability (k - items of better classes) / members / k, and an item of a better class 1 / k.

    Args:
        k: the number of items, an int >= 1; or a float in (0, 1]: that share of the present items, rounded, at least
            one. If there are fewer items than k, all of them.
        initial: as for Prioritized.

    Cost: draws, updates and memory as for RankBased.

    Raises:
        InvalidConfig: an argument has another type or value.
    """

    draws_by: ClassVar[DrawsBy] = "rank"
    one_table_only: ClassVar[None] = None

    k: int | float
    initial: InitialPriority = "max"

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", _checked_k(self.k))
        object.__setattr__(self, "initial", _checked_initial(self.initial))

    def shard_part(self, mass: float, num_items: int) -> float:
        """The k best of each shard."""
        k = self.k if isinstance(self.k, int) else max(1, math.floor(self.k * num_items + 0.5))
        return float(min(num_items, k))

    def sampler_config(self) -> dict[str, Any]:
        """The sampler as the core reads it."""
        return {"sampler": "top_k", "best_share" if isinstance(self.k, float) else "best_items": self.k}


def _checked_k(k: Any) -> int | float:
    if isinstance(k, (float, np.floating)):
        share = float(k)
        if not 0.0 < share <= 1.0:
            raise InvalidConfig("k", "a whole number >= 1, or a share of the items as a float in (0, 1]", k)
        return share
    return integer("k (or a share of the items, a float in (0, 1])", k, 1, _MAX_K)


@names_arguments
@final
@dataclass(frozen=True)
class Reservoir(RemoverKind):
    """Remover: the kept items are a sample, without replacement, of all items that ever came, each equally likely.

    Each item has a random number, which follows from the table's seed and the item's place among all that came. The
    items with the smallest numbers stay.

    Source: a reservoir (Vitter 1985) by random keys (Efraimidis and Spirakis 2006).
    """

    initial_priority: ClassVar[None] = None

    def remover_config(self) -> dict[str, Any]:
        """The remover as the core reads it."""
        return {"remover": "reservoir"}


_MOST_LAST = 2**52


@names_arguments
@final
@dataclass(frozen=True)
class Fresh(SamplerKind):
    """Sampler: new items. Fresh() draws the items that came last, the newest first, as Lifo() does.

    Staleness is counted in versions of the learner (table.set_policy_version; writers stamp their steps with them): the
    learner's version minus the version of the item's oldest row, as in batch["staleness"].

    Args:
        last: draws with replacement among the `last` newest items that are still there, each with the same probability.
            No older item replaces one that is gone.
        decay: in (0, 1]: draws with replacement, with probability mass / total, mass = decay ** staleness. A row that
            its writer stamped ahead of the learner has a mass above 1. An item that is 2 ** 488 times less likely than
            the newest one, or less likely still, has the smallest possible mass.

    Cost: `last` updates a tree once more for each new item. `decay` costs nothing at most versions, and every 512 /
    log2(1 / decay) versions a new mass for every item, under the lock.

    Raises:
        InvalidConfig: both options are given, or one is not such a number.
    """

    initial_priority: ClassVar[None] = None

    last: int | None = None
    decay: float | None = None

    def __post_init__(self) -> None:
        if self.last is not None and self.decay is not None:
            raise InvalidConfig("last and decay of Fresh", "one of them at most", (self.last, self.decay))
        if self.last is not None:
            object.__setattr__(self, "last", integer("last", self.last, 1, _MOST_LAST))
        if self.decay is not None:
            object.__setattr__(self, "decay", finite("decay", self.decay, 0.0, 1.0, above=True))

    @property
    def draws_by(self) -> DrawsBy:
        """By mass with `last` or `decay`; else the newest first."""
        return "order" if self.last is None and self.decay is None else "mass"

    @property
    def one_table_only(self) -> OneTableOnly | None:
        """The reason, with `decay`."""
        if self.decay is None:
            return None
        reason = "each shard counts staleness from a version of its own, so masses of two do not compare"
        return OneTableOnly("Fresh(decay=)", reason, "use Fresh(last=n), or one table")

    @property
    def moves_masses(self) -> bool:
        """With `decay`: masses fade as the learner's version grows."""
        return self.decay is not None

    def shard_room(self, mass: float, num_items: int) -> int:
        """With `last`, the items that can be drawn have mass 1 and all others none."""
        return num_items if self.last is None else int(mass)

    def sampler_config(self) -> dict[str, Any]:
        """The sampler as the core reads it."""
        if self.last is not None:
            return {"sampler": "latest", "last": self.last}
        return {"sampler": "lifo"} if self.decay is None else {"sampler": "fading", "decay": self.decay}


# The kinds that an Index takes. A new class adds its name here.
Sampler: TypeAlias = (
    Uniform | Prioritized | Fifo | Lifo | MaxPriority | MinPriority | RankBased | TopK | Fresh | Shuffle
)
Remover: TypeAlias = Fifo | Lifo | MinPriority | MaxPriority | Uniform | Prioritized | Reservoir
SAMPLERS = (Uniform, Prioritized, Fifo, Lifo, MaxPriority, MinPriority, RankBased, TopK, Fresh, Shuffle)
REMOVERS = (Fifo, Lifo, MinPriority, MaxPriority, Uniform, Prioritized, Reservoir)
