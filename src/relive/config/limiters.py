"""When sampling and inserting may go on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

from relive.checks.names import names_arguments
from relive.checks.values import finite, integer
from relive.errors import InvalidConfig

__all__ = ["LIMITERS", "Limiter", "MinSize", "Queue", "SamplesPerInsert", "StalenessBudget", "limiter_of"]

_MOST = 2**53  # what a float64 holds exactly: limiters travel as such


@names_arguments
@final
@dataclass(frozen=True)
class MinSize:
    """A draw waits until min_size items are live; writers never wait. Raises InvalidConfig."""

    min_size: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "min_size", integer("min_size", self.min_size, 1))

    @property
    def num_items(self) -> int:
        """Items that the index must be able to hold."""
        return self.min_size

    def core_config(self) -> dict[str, Any]:
        """The limiter as the core reads it."""
        return {"limiter": "min_size", "min_size": self.min_size}

    def core_numbers(self) -> tuple[float, ...]:
        """The same as numbers, its kind first."""
        return 0, self.min_size


@names_arguments
@final
@dataclass(frozen=True)
class SamplesPerInsert:
    """Keeps items sampled / items inserted near samples_per_insert, making whichever side is ahead wait.

    (Items sampled over all batches: samples_per_insert = replay ratio x batch size at one item a step.)
    With difference d = inserted x samples_per_insert - sampled, a draw of n passes when live >= min_size and d - n >=
    low, an insert of n when the first fill lasts (live + n <= min_size), or d + n x samples_per_insert <= high, or
    live < min_size and n is worth no more than the window (n x samples_per_insert <= high - low);
    low, high = samples_per_insert x min_size -/+ tolerance. tolerance None: the larger of 0.1 x samples_per_insert x
    min_size and 1024. A draw and one row must fit the window high - low together, else both could wait for each other:
    larger draws are refused, and blocks of rows worth more than the window. A block that does not fit the window beside
    the draws that wait is let in by parts.
    Raises InvalidConfig, also where the window is so small that no insert or no draw could ever pass.
    """

    samples_per_insert: float
    min_size: int
    tolerance: float | None = None

    def __post_init__(self) -> None:
        ratio = finite("samples_per_insert", self.samples_per_insert, 0.0, above=True)
        object.__setattr__(self, "samples_per_insert", ratio)
        object.__setattr__(self, "min_size", integer("min_size", self.min_size, 1))
        if self.tolerance is not None:
            object.__setattr__(self, "tolerance", finite("tolerance", self.tolerance, 0.0))
        if self.window < ratio + 1:
            raise InvalidConfig(
                "tolerance",
                f"at least (samples_per_insert + 1) / 2 = {(ratio + 1) / 2:g}, so that an insert of one item, worth"
                f" {ratio:g} samples, and a draw of one fit the window of 2 x tolerance together; under it both sides"
                " would come to wait for each other",
                self.tolerance if self.tolerance is not None else self.half_window,
            )

    @property
    def num_items(self) -> int:
        """Items that the index must be able to hold."""
        return self.min_size

    @property
    def half_window(self) -> float:
        """The tolerance in use, in samples."""
        if self.tolerance is not None:
            return self.tolerance
        return max(0.1 * self.samples_per_insert * self.min_size, 1024.0)

    @property
    def window(self) -> float:
        """high - low, in samples: a draw and a row must fit it together."""
        return 2.0 * self.half_window

    def arithmetic(self) -> str:
        """The window and how it came about, for messages."""
        middle = self.samples_per_insert * self.min_size
        return (
            f"samples_per_insert {self.samples_per_insert:g} x min_size {self.min_size} = {middle:g}, tolerance"
            f" {self.half_window:g}: window [{middle - self.half_window:g}, {middle + self.half_window:g}]"
        )

    def core_config(self) -> dict[str, Any]:
        """The limiter as the core reads it."""
        return {
            "limiter": "samples_per_insert",
            "min_size": self.min_size,
            "samples_per_insert": self.samples_per_insert,
            "tolerance": self.half_window,
        }

    def core_numbers(self) -> tuple[float, ...]:
        """The same as numbers, its kind first."""
        return 1, self.samples_per_insert, self.min_size, self.half_window


@names_arguments
@final
@dataclass(frozen=True)
class Queue:
    """At most max_size items live at a time: an insert waits for room, a draw of n for n live items.

    Nothing makes room but a draw that takes the last use of an item, so the index needs max_times_sampled (1: every
    item is drawn once); what is deleted, or goes with old steps, makes room, too. The sampler says in which order they
    are drawn. Items that wait for late columns or a priority have their place. A draw of more than max_size is refused,
    and a block of steps of more items; a block that does not fit beside the draws that wait is let in by parts.
    Raises InvalidConfig.
    """

    max_size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_size", integer("max_size", self.max_size, 1, _MOST))

    @property
    def min_size(self) -> int:
        """Live items that any draw waits for."""
        return 1

    @property
    def num_items(self) -> int:
        """Items that the index must be able to hold."""
        return self.max_size

    @property
    def window(self) -> float:
        """Items that a draw, or a block of steps, may ask for."""
        return float(self.max_size)

    def arithmetic(self) -> str:
        """The window and how it came about, for messages."""
        return f"a queue of {self.max_size} items"

    def core_config(self) -> dict[str, Any]:
        """The limiter as the core reads it."""
        return {"limiter": "queue", "max_size": self.max_size}

    def core_numbers(self) -> tuple[float, ...]:
        """The same as numbers, its kind first."""
        return 2, self.max_size


@names_arguments
@final
@dataclass(frozen=True)
class StalenessBudget:
    """Inserts wait for the learner's version: no more items than eta versions ahead of it can use.

    An insert of n passes while inserted + pending + n - removed unused <= (eta + version + 1) x items_per_version.
    version: what table.set_policy_version set last; setting it wakes the writers that wait. removed unused: items that
    went without ever being drawn. items_per_version: items that one version of the learner uses. eta 0: those of the
    present version alone (on policy). A draw waits for items only. A block is let in as far as the budget goes, to its
    last item. The index needs max_times_sampled, by which the table knows what was drawn. Where a process is killed
    between drawing an item and counting it, the budget grows by that item.
    (Staleness control of asynchronous RL for language models: Fu et al. 2025, AReaL, arXiv 2505.24298.)
    Raises InvalidConfig.
    """

    eta: float
    items_per_version: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "eta", finite("eta", self.eta, 0.0, float(_MOST)))
        count = integer("items_per_version", self.items_per_version, 1, _MOST)
        object.__setattr__(self, "items_per_version", count)

    @property
    def min_size(self) -> int:
        """Live items that any draw waits for."""
        return 1

    @property
    def num_items(self) -> int:
        """Items that the index must be able to hold."""
        return 1

    def core_config(self) -> dict[str, Any]:
        """The limiter as the core reads it."""
        return {
            "limiter": "staleness_budget",
            "eta": self.eta,
            "items_per_version": float(self.items_per_version),
        }

    def core_numbers(self) -> tuple[float, ...]:
        """The same as numbers, its kind first."""
        return 3, self.eta, self.items_per_version


Limiter: TypeAlias = MinSize | SamplesPerInsert | Queue | StalenessBudget
LIMITERS = (MinSize, SamplesPerInsert, Queue, StalenessBudget)


def limiter_of(numbers: Sequence[float]) -> Limiter:
    """The limiter that core_numbers() gave; of SamplesPerInsert with its tolerance, given or not.

    Raises InvalidConfig where they are of none: the words of a region that was damaged.
    """
    kind, first, *more = numbers
    if not all(map(math.isfinite, numbers)) or len(more) != {0: 0, 1: 2, 2: 0, 3: 1}.get(int(kind)):
        raise InvalidConfig("limiter of a table", "numbers that are of one; its memory was damaged", list(numbers))
    if kind == 0:
        return MinSize(int(first))
    if kind == 1:
        return SamplesPerInsert(first, int(more[0]), more[1])
    return Queue(int(first)) if kind == 2 else StalenessBudget(first, int(more[0]))
