"""How items are chosen: samplers choose what is drawn, removers what goes where an index holds too many."""

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
    """Sampler: every live item with the same probability, with replacement.

    Remover: any of the items there are, the one that came last among them, each as likely to go.
    """

    draws_by: ClassVar[DrawsBy] = "mass"
    initial_priority: ClassVar[None] = None
    one_table_only: ClassVar[None] = None

    def sampler_config(self) -> dict[str, Any]:
        """The sampler as the core reads it."""
        return {"sampler": "uniform"}

    def steps_per_item(self, rows: int) -> float:
        """The steps of kept items thin out evenly: the sum of 1 / k over the rows, and a tenth for chance."""
        return 1.1 * sum(1 / k for k in range(1, rows + 1))

    def remover_config(self) -> dict[str, Any]:
        """The remover as the core reads it."""
        return {"remover": "uniform"}


@names_arguments
@final
@dataclass(frozen=True)
class Prioritized(_LooksAtPriorities, SamplerKind, RemoverKind):
    """Sampler: items with probability mass / total, mass = priority ** priority_exponent, with replacement.

    table.set_priority_exponent changes the sampler's exponent while it is in use.
    Remover: an item goes with that probability; where all masses are 0, any.
    initial: the priority of an item that came without one: 'max', the largest priority ever given (1 at first);
    'given', the item waits, unpublished, until update_priorities or append gives one; or a number >= 0 that
    float32 holds.
    Raises InvalidConfig.
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
    """Sampler: the items that came first. Remover: the item that came first goes.

    A batch of n is the n first ones, in order; where there are fewer, they come again from the first on. With
    max_times_sampled=1 a queue: each comes once, and two samplers never get the same one. Cost: about 0.2 us an item.
    Steps of a table without max_items go page by page: within page length x open lanes steps of exact order.
    """

    draws_by: ClassVar[DrawsBy] = "order"
    initial_priority: ClassVar[None] = None
    one_table_only: ClassVar[None] = None

    def sampler_config(self) -> dict[str, Any]:
        """The sampler as the core reads it."""
        return {"sampler": "fifo"}

    def steps_per_item(self, rows: int) -> None:
        """None: the item that came first goes, with its steps."""
        return None

    def remover_config(self) -> dict[str, Any]:
        """The remover as the core reads it."""
        return {"remover": "fifo"}


@names_arguments
@final
@dataclass(frozen=True)
class Lifo(SamplerKind, RemoverKind):
    """Sampler: the items that came last, the newest first (see Fifo). Remover: the newcomer goes, older items stay."""

    draws_by: ClassVar[DrawsBy] = "order"
    initial_priority: ClassVar[None] = None
    one_table_only: ClassVar[None] = None

    def sampler_config(self) -> dict[str, Any]:
        """The sampler as the core reads it."""
        return {"sampler": "lifo"}

    def steps_per_item(self, rows: int) -> int:
        """Kept items are the oldest ones, in a row."""
        return 1

    def remover_config(self) -> dict[str, Any]:
        """The remover as the core reads it."""
        return {"remover": "lifo"}


@names_arguments
@final
@dataclass(frozen=True)
class MaxPriority(_LooksAtPriorities, SamplerKind, RemoverKind):
    """Sampler: the items of the highest priorities. Remover: the item of the highest priority goes.

    A batch of n is the n best ones, the best first; where there are fewer, they come again from the best on. Among
    equal priorities the item that came, or was updated, longest ago is the first (if 2**32 items and updates or fewer
    lie between them).
    initial: as Prioritized has it.
    Raises InvalidConfig.
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
    """As MaxPriority, of the lowest priorities: the best items of a remover stay."""

    draws_by: ClassVar[DrawsBy] = "order"
    one_table_only: ClassVar[None] = None

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
    """Sampler: without replacement, epoch by epoch, each epoch in an order of its own, shared by all processes.

    What lives through an epoch comes exactly once in it, what comes or goes meanwhile at most once; what a process had
    drawn when it died is lost to the epoch, so is what batches() drew ahead and nobody took. A batch that meets an
    epoch's end goes on in the next one. The order follows from the table's seed and the epoch's number; the table keeps
    8 bytes of it. probabilities are 1 / N live items.
    A draw with where= is refused, and on a read-only handle every draw: it takes a turn. Raises ReadOnly there.
    Cost: a permuted place and a miss of memory a slot, and as many slots an item as the index has to an item: a table
    much emptier than its capacity, or with far more lanes than it needs, is slow.
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
    """Sampler: by rank, with replacement: of n items the i-th best has mass (1 / i) ** priority_exponent.

    How large a priority is does not matter, only which are larger: outliers draw no more than their rank gives them
    (Schaul et al. 2016, the rank-based variant). As the paper, which keeps an array that is sorted now and then, it
    ranks with a stated resolution: priorities that agree in their exponent and the first 7 bits behind it, so that they
    differ by less than 1/128, are one class, as are all below 1.2e-38, 0 among them. A class stands on as many ranks as
    it has members, which share the mass of these ranks equally: ties are fair, and batch.probabilities are exact:

        p(item) = sum of mass over the ranks of its class / members / sum of mass over all ranks

    priority_exponent: 0 to 10; the paper's is 0.7. 0 draws uniformly.
    initial: as Prioritized has it.
    Cost: up to twice the draw of Prioritized and three times its updates. Memory: 12.3 bytes a step, and up to 17 MB
    where priorities are of very many classes. At most 1.7e9 steps in a table.
    Raises InvalidConfig.
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
    """Sampler: uniformly among the k items of the highest priorities, with replacement; the others are never drawn.

    k: how many, an int >= 1, or a float in (0, 1]: that share of the items there are, rounded, at least one. Where
    there are fewer than k, among all.
    Priorities are ranked as by RankBased: those within 1/128 of the k-th share its places, so that each of its class is
    drawn with probability (k - items of better classes) / members / k, and items of better classes with 1 / k.
    initial: as Prioritized has it. Cost and memory: as RankBased.
    Raises InvalidConfig.
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
    """Remover: what stays is a sample, drawn without replacement, of all items that ever came, each as likely.

    Each item has a random number of its own, which follows from the table's seed and its place among those that came;
    the items of the smallest numbers stay (a reservoir, Vitter 1985, by random keys, Efraimidis and Spirakis 2006).
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
    """Sampler: what is new. Fresh(): the items that came last, the newest first, which is Lifo().

    last: any of the `last` items that came last and are there still, each with the same probability, with replacement;
    nothing comes in the place of those that went.
    decay: above 0 and at most 1: items with probability mass / total, mass = decay ** staleness, with replacement.
    Staleness is counted in versions of the learner (table.set_policy_version; the writers stamp their steps with
    them): the version of the learner less that of the item's oldest row, as batch["staleness"] has it. What its writer
    stamped ahead of the learner has more mass than 1. What is 2 ** 488 times less likely than the newest that came, or
    less, has the least mass there is.
    Cost: last= an update of a tree more for each item that comes; decay= nothing at most versions, and a new mass for
    every item each 512 / log2(1 / decay) versions, under the lock.
    Raises InvalidConfig: both are given, or one of them is no such number.
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
        """By mass with `last` or `decay`, else the newest first."""
        return "order" if self.last is None and self.decay is None else "mass"

    @property
    def one_table_only(self) -> OneTableOnly | None:
        """With `decay`."""
        if self.decay is None:
            return None
        reason = "each shard counts staleness from a version of its own, so masses of two do not compare"
        return OneTableOnly("Fresh(decay=)", reason, "use Fresh(last=n), or one table")

    @property
    def moves_masses(self) -> bool:
        """With `decay`, whose masses fade with the learner's versions."""
        return self.decay is not None

    def shard_room(self, mass: float, num_items: int) -> int:
        """With `last` the items that may be drawn have the mass 1, and the others none."""
        return num_items if self.last is None else int(mass)

    def sampler_config(self) -> dict[str, Any]:
        """The sampler as the core reads it."""
        if self.last is not None:
            return {"sampler": "latest", "last": self.last}
        return {"sampler": "lifo"} if self.decay is None else {"sampler": "fading", "decay": self.decay}


# What an Index takes; a class further is one name more here.
Sampler: TypeAlias = (
    Uniform | Prioritized | Fifo | Lifo | MaxPriority | MinPriority | RankBased | TopK | Fresh | Shuffle
)
Remover: TypeAlias = Fifo | Lifo | MinPriority | MaxPriority | Uniform | Prioritized | Reservoir
SAMPLERS = (Uniform, Prioritized, Fifo, Lifo, MaxPriority, MinPriority, RankBased, TopK, Fresh, Shuffle)
REMOVERS = (Fifo, Lifo, MinPriority, MaxPriority, Uniform, Prioritized, Reservoir)
