"""How items are chosen: samplers choose what is drawn, removers what goes when the table is full."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, final

from relive._checks import MAX_FLOAT32, finite
from relive._wrong_names import names_arguments

__all__ = ["REMOVERS", "SAMPLERS", "Fifo", "InitialPriority", "Prioritized", "Remover", "Sampler", "Uniform"]

InitialPriority: TypeAlias = Literal["max", "given"] | float


@names_arguments
@final
@dataclass(frozen=True)
class Uniform:
    """Every live item with the same probability, with replacement."""

    def core_config(self) -> dict[str, Any]:
        """The sampler as the core reads it."""
        return {"sampler": "uniform"}


@names_arguments
@final
@dataclass(frozen=True)
class Prioritized:
    """Items with probability mass / total, mass = priority ** priority_exponent, with replacement.

    initial: the priority of an item that came without one: 'max', the largest priority ever given (1 at first);
    'given', the item waits, unpublished, until update_priorities or append gives one; or a number >= 0 that
    float32 holds.
    Raises InvalidConfig.
    """

    priority_exponent: float = 0.6
    initial: InitialPriority = "max"

    def __post_init__(self) -> None:
        object.__setattr__(self, "priority_exponent", finite("priority_exponent", self.priority_exponent, 0.0))
        initial: Any = self.initial
        if not isinstance(initial, str) or initial not in ("max", "given"):
            number = finite("initial (or 'max', 'given')", initial, 0.0, MAX_FLOAT32)
            object.__setattr__(self, "initial", number)

    def core_config(self) -> dict[str, Any]:
        """The sampler as the core reads it."""
        initial = (self.initial, 0.0) if isinstance(self.initial, str) else ("number", self.initial)
        return {"sampler": "prioritized", "priority_exponent": self.priority_exponent, "initial": initial}


@names_arguments
@final
@dataclass(frozen=True)
class Fifo:
    """Remover: the oldest steps go first, page by page; within a page length x open lanes steps of exact order."""

    def core_config(self) -> dict[str, Any]:
        """The remover as the core reads it."""
        return {"remover": "fifo"}


# What an Index takes; a class further is one name more here.
Sampler: TypeAlias = Uniform | Prioritized
Remover: TypeAlias = Fifo
SAMPLERS = (Uniform, Prioritized)
REMOVERS = (Fifo,)
