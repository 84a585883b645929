"""Reverb's selectors, as samplers of an index."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias, final

from relive.config import samplers
from relive.config.samplers import Sampler

__all__ = ["Fifo", "Lifo", "MaxHeap", "MinHeap", "Prioritized", "Selector", "Uniform"]


@final
@dataclass(frozen=True)
class Uniform:
    """Every item has the same probability."""

    by_chance: ClassVar[bool] = True

    def sampler(self) -> Sampler:
        """relive's sampler."""
        return samplers.Uniform()


@final
@dataclass(frozen=True)
class Prioritized:
    """The probability of an item is in proportion to priority ** priority_exponent."""

    by_chance: ClassVar[bool] = True
    priority_exponent: float = 1.0

    def sampler(self) -> Sampler:
        """relive's sampler."""
        return samplers.Prioritized(self.priority_exponent)


@final
@dataclass(frozen=True)
class Fifo:
    """The oldest item."""

    by_chance: ClassVar[bool] = False

    def sampler(self) -> Sampler:
        """relive's sampler."""
        return samplers.Fifo()


@final
@dataclass(frozen=True)
class Lifo:
    """The newest item."""

    by_chance: ClassVar[bool] = False

    def sampler(self) -> Sampler:
        """relive's sampler."""
        return samplers.Lifo()


@final
@dataclass(frozen=True)
class MaxHeap:
    """The item of the largest priority."""

    by_chance: ClassVar[bool] = False

    def sampler(self) -> Sampler:
        """relive's sampler."""
        return samplers.MaxPriority()


@final
@dataclass(frozen=True)
class MinHeap:
    """The item of the smallest priority."""

    by_chance: ClassVar[bool] = False

    def sampler(self) -> Sampler:
        """relive's sampler."""
        return samplers.MinPriority()


Selector: TypeAlias = Uniform | Prioritized | Fifo | Lifo | MaxHeap | MinHeap
