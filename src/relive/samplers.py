"""How items are chosen: samplers choose what is drawn, removers what goes where an index holds too many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, final

from relive._checks import MAX_FLOAT32, finite
from relive._wrong_names import names_arguments

__all__ = [
    "REMOVERS",
    "SAMPLERS",
    "Fifo",
    "InitialPriority",
    "Lifo",
    "MaxPriority",
    "MinPriority",
    "Prioritized",
    "Remover",
    "Reservoir",
    "Sampler",
    "Uniform",
    "initial_of",
]

InitialPriority: TypeAlias = Literal["max", "given"] | float


def _checked_initial(initial: Any) -> InitialPriority:
    if isinstance(initial, str) and initial in ("max", "given"):
        return "max" if initial == "max" else "given"
    return finite("initial (or 'max', 'given')", initial, 0.0, MAX_FLOAT32)


@names_arguments
@final
@dataclass(frozen=True)
class Uniform:
    """Sampler: every live item with the same probability, with replacement.

    Remover: any of the items there are, the one that came last among them, each as likely to go.
    """

    def sampler_config(self) -> dict[str, Any]:
        """The sampler as the core reads it."""
        return {"sampler": "uniform"}

    def remover_config(self) -> dict[str, Any]:
        """The remover as the core reads it."""
        return {"remover": "uniform"}


@names_arguments
@final
@dataclass(frozen=True)
class Prioritized:
    """Sampler: items with probability mass / total, mass = priority ** priority_exponent, with replacement.

    Remover: an item goes with that probability; where all masses are 0, any.
    initial: the priority of an item that came without one: 'max', the largest priority ever given (1 at first);
    'given', the item waits, unpublished, until update_priorities or append gives one; or a number >= 0 that
    float32 holds.
    Raises InvalidConfig.
    """

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
class Fifo:
    """Sampler: the items that came first. Remover: the item that came first goes.

    A batch of n is the n first ones, in order; where there are fewer, they come again from the first on. With
    max_times_sampled=1 a queue: each comes once, and two samplers never get the same one. Cost: about 0.2 us an item.
    Steps of a table without max_items go page by page: within page length x open lanes steps of exact order.
    """

    def sampler_config(self) -> dict[str, Any]:
        """The sampler as the core reads it."""
        return {"sampler": "fifo"}

    def remover_config(self) -> dict[str, Any]:
        """The remover as the core reads it."""
        return {"remover": "fifo"}


@names_arguments
@final
@dataclass(frozen=True)
class Lifo:
    """Sampler: the items that came last, the newest first (see Fifo). Remover: the newcomer goes, older items stay."""

    def sampler_config(self) -> dict[str, Any]:
        """The sampler as the core reads it."""
        return {"sampler": "lifo"}

    def remover_config(self) -> dict[str, Any]:
        """The remover as the core reads it."""
        return {"remover": "lifo"}


@names_arguments
@final
@dataclass(frozen=True)
class MaxPriority:
    """Sampler: the items of the highest priorities. Remover: the item of the highest priority goes.

    A batch of n is the n best ones, the best first; where there are fewer, they come again from the best on. Among
    equal priorities the item that came, or was updated, longest ago is the first (if 2**32 items and updates or fewer
    lie between them).
    initial: as Prioritized has it.
    Raises InvalidConfig.
    """

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
class MinPriority:
    """As MaxPriority, of the lowest priorities: the best items of a remover stay."""

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
class Reservoir:
    """Remover: what stays is a sample, drawn without replacement, of all items that ever came, each as likely.

    Each item has a random number of its own, which follows from the table's seed and its place among those that came;
    the items of the smallest numbers stay (a reservoir, Vitter 1985, by random keys, Efraimidis and Spirakis 2006).
    """

    def remover_config(self) -> dict[str, Any]:
        """The remover as the core reads it."""
        return {"remover": "reservoir"}


# What an Index takes; a class further is one name more here.
Sampler: TypeAlias = Uniform | Prioritized | Fifo | Lifo | MaxPriority | MinPriority
Remover: TypeAlias = Fifo | Lifo | MinPriority | MaxPriority | Uniform | Prioritized | Reservoir
SAMPLERS = (Uniform, Prioritized, Fifo, Lifo, MaxPriority, MinPriority)
REMOVERS = (Fifo, Lifo, MinPriority, MaxPriority, Uniform, Prioritized, Reservoir)


def initial_of(kind: Sampler | Remover) -> InitialPriority | None:
    """The priority of items that came without one; None of what looks at no priorities."""
    return kind.initial if isinstance(kind, Prioritized | MaxPriority | MinPriority) else None
