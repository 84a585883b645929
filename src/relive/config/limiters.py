"""Limiters: when draws and inserts must wait."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias, final

from relive.checks.names import names_arguments
from relive.checks.values import finite, integer
from relive.config.kinds import LimiterKind
from relive.errors import InvalidConfig, RequestTooLarge

__all__ = ["LIMITERS", "Limiter", "MinSize", "Queue", "SamplesPerInsert", "StalenessBudget", "Totals", "limiter_of"]

_MOST = 2**53  # a float64 represents it exactly, and limiters travel as float64
_ROUNDING = 2.0**-51  # SamplesPerInsert meets its bounds within this relative error of float64, as the core does


class Totals(Protocol):
    """The counters of all shards of an index, by which a limiter acts over shards."""

    @property
    def num_items(self) -> int:
        """Live items."""
        ...

    @property
    def pending(self) -> int:
        """Items that wait for late columns or a priority."""
        ...

    @property
    def inserted(self) -> int:
        """Items published."""
        ...

    @property
    def sampled(self) -> int:
        """Items drawn."""
        ...

    @property
    def drawable(self) -> int:
        """Live items that a draw can find: those with a mass."""
        ...

    @property
    def lacks(self) -> bool:
        """Whether there are live items, and none of them has a mass."""
        ...

    @property
    def used_or_unused(self) -> int:
        """Items that were ever drawn, and items that can still be drawn for the first time."""
        ...

    @property
    def progress(self) -> int:
        """Versions of the learner since the budget began."""
        ...


@names_arguments
@final
@dataclass(frozen=True)
class MinSize(LimiterKind):
    """A draw waits until min_size items are live. Writers never wait.

    Raises:
        InvalidConfig: min_size is not an integer >= 1.
    """

    num_numbers: ClassVar[int] = 1
    stops_inserts: ClassVar[bool] = False

    min_size: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "min_size", integer("min_size", self.min_size, 1))

    @property
    def num_items(self) -> int:
        """The items that the index must have room for."""
        return self.min_size

    # ---- over shards -----------------------------------------------------------------------------------------------

    def check_draw(self, num_items: int) -> None:
        """Any draw can pass."""

    def can_sample(self, totals: Totals, num_items: int) -> bool:
        """live >= min_size."""
        return totals.num_items >= self.min_size

    def check_insert(self, num_items: int) -> None:
        """Any insert can pass."""

    def can_insert(self, totals: Totals, num_items: int) -> bool:
        """Writers never wait."""
        return True

    def needs(self, num_items: int) -> str:
        """The live items, in words."""
        return f"{self.min_size} live items"

    # ---- for the core ----------------------------------------------------------------------------------------------

    def core_config(self) -> dict[str, Any]:
        """The limiter as the core reads it."""
        return {"limiter": "min_size", "min_size": self.min_size}

    def core_numbers(self) -> tuple[float, ...]:
        """The same as numbers, its kind first."""
        return 0, self.min_size

    @classmethod
    def of_numbers(cls, min_size: float) -> MinSize:
        """The limiter that core_numbers() gave."""
        return cls(int(min_size))


@names_arguments
@final
@dataclass(frozen=True)
class SamplesPerInsert(LimiterKind):
    """Keeps items sampled / items inserted near samples_per_insert: the side that is ahead waits.

    d    = inserted x samples_per_insert - sampled
    low  = samples_per_insert x min_size - tolerance
    high = samples_per_insert x min_size + tolerance
    live = the number of items in the index:

        a draw of n passes     if live >= min_size and d - n >= low
        an insert of n passes  if live + n <= min_size (the first fill),
                               or d + n x samples_per_insert <= high,
                               or live < min_size and n x samples_per_insert <= high - low (a refill)

    high - low must be large enough for a draw and one row together. Otherwise a draw and a writer could wait for each
    other. A table therefore
    refuses a draw of n > high - low - samples_per_insert, and a block of rows with rows x samples_per_insert > high -
    low. If a block and a waiting draw do not fit together, the table inserts the block in parts. Each item of a batch
    counts as one sample: with one item a step, samples_per_insert = updates per step x batch size.

    Args:
        samples_per_insert: how often an item is sampled on average, > 0.
        min_size: live items that any draw waits for.
        tolerance: half of high - low, in samples; None: the larger of 0.1 x samples_per_insert x min_size and 1024.

    Raises:
        InvalidConfig: an argument has another type or value, or high - low is too small for any draw or any insert.
    """

    num_numbers: ClassVar[int] = 3
    stops_inserts: ClassVar[bool] = True

    samples_per_insert: float
    min_size: int
    tolerance: float | None = None

    def __post_init__(self) -> None:
        ratio = finite("samples_per_insert", self.samples_per_insert, 0.0, above=True)
        object.__setattr__(self, "samples_per_insert", ratio)
        object.__setattr__(self, "min_size", integer("min_size", self.min_size, 1))
        if self.tolerance is not None:
            object.__setattr__(self, "tolerance", finite("tolerance", self.tolerance, 0.0))
        if self.window < (ratio + 1) * (1.0 - _ROUNDING):
            raise InvalidConfig(
                "tolerance",
                f"at least (samples_per_insert + 1) / 2 = {(ratio + 1) / 2:g}, so that an insert of one item, worth"
                f" {ratio:g} samples, and a draw of one fit the window of 2 x tolerance together; under it both sides"
                " would come to wait for each other",
                self.tolerance if self.tolerance is not None else self.half_window,
            )

    @property
    def num_items(self) -> int:
        """The items that the index must have room for."""
        return self.min_size

    @property
    def half_window(self) -> float:
        """The tolerance in use, in samples."""
        if self.tolerance is not None:
            return self.tolerance
        return max(0.1 * self.samples_per_insert * self.min_size, 1024.0)

    @property
    def window(self) -> float:
        """high - low, in samples. A draw and a row must fit it together."""
        return 2.0 * self.half_window

    def arithmetic(self) -> str:
        """The window and the numbers that it follows from, for messages."""
        middle = self.samples_per_insert * self.min_size
        return (
            f"samples_per_insert {self.samples_per_insert:g} x min_size {self.min_size} = {middle:g}, tolerance"
            f" {self.half_window:g}: window [{middle - self.half_window:g}, {middle + self.half_window:g}]"
        )

    def check_uses(self, max_times_sampled: int | None) -> None:
        """Raises InvalidConfig if items are used up before they are sampled samples_per_insert times."""
        if max_times_sampled is None or self.samples_per_insert <= max_times_sampled:
            return
        times, ratio = max_times_sampled, self.samples_per_insert
        raise InvalidConfig(
            "samples_per_insert",
            f"at most max_times_sampled = {times}: an item goes after {times} draws, so inserted x {ratio:g} - sampled"
            f" grows by at least {ratio - times:g} with every item, and writers come to wait for draws of items that"
            " are used up",
            ratio,
        )

    # ---- over shards -----------------------------------------------------------------------------------------------

    def check_draw(self, num_items: int) -> None:
        """Raises RequestTooLarge if the draw and one row do not fit the window together.

        If samples_per_insert is a whole number, so is d, and slightly larger draws fit.
        """
        error, ratio = self._error(0), self.samples_per_insert
        low, high = self._low - error, self._low + self.window + error
        fits = num_items <= self.window - ratio + error
        if not fits and ratio == math.floor(ratio):
            fits = num_items + math.ceil(low) <= math.floor(high) - ratio + 1
        if not fits:
            raise RequestTooLarge(num_items, self.window)

    def uses_left(self, max_times_sampled: int) -> float:
        """The fewest uses that all items together may have left where writers wait, if each item has all its uses.

        uses = inserted x max_times_sampled - sampled, for all numbers at which d + samples_per_insert > high. The
        smallest is that of the fewest items, just before the next draw of one lets the next item in.
        """
        ratio, high = self.samples_per_insert, self._low + self.window
        if not math.isfinite(high / ratio):
            return math.inf
        inserted = math.floor(high / ratio)
        sampled = math.ceil((inserted + 1) * ratio - high) - 1
        return inserted * max_times_sampled - sampled

    def can_sample(self, totals: Totals, num_items: int) -> bool:
        """live >= min_size and d - n >= low."""
        return totals.num_items >= self.min_size and (
            self._balance(totals) - num_items >= self._low - self._error(totals.inserted)
        )

    def check_insert(self, num_items: int) -> None:
        """Raises RequestTooLarge if the block is worth more than the window: after the first fill it never passes."""
        if num_items * self.samples_per_insert > self.window + self._error(0):
            raise RequestTooLarge(num_items, self.window, self.arithmetic())

    def can_insert(self, totals: Totals, num_items: int) -> bool:
        """The first fill, or d + n x samples_per_insert <= high. Waiting items count as inserted.

        An insert during the first fill may go beyond min_size, if it is worth at most the window. Such an insert also
        passes while no live item has a mass: no draw can make room.
        """
        live = totals.num_items + totals.pending
        if live + num_items <= self.min_size:
            return True
        worth = (totals.pending + num_items) * self.samples_per_insert
        if self._balance(totals) + worth <= self._low + self.window + self._error(totals.inserted):
            return True
        fits = num_items * self.samples_per_insert <= self.window + self._error(0)
        return fits and (live < self.min_size or totals.lacks)

    def needs(self, num_items: int) -> str:
        """The live items, and the samples above the lower bound, in words."""
        return f"{self.min_size} live items, and {num_items} samples left to draw"

    def has(self, totals: Totals) -> str:
        """The same of these totals."""
        left = max(0.0, self._balance(totals) - self._low)
        return f"{totals.num_items} live items, and {left:g} samples left to draw"

    def _balance(self, totals: Totals) -> float:
        return totals.inserted * self.samples_per_insert - totals.sampled

    def _error(self, inserted: int) -> float:
        """The most by which rounding may move the balance or a bound."""
        return _ROUNDING * (self.samples_per_insert * (self.min_size + inserted) + self.half_window)

    @property
    def _low(self) -> float:
        return self.samples_per_insert * self.min_size - self.half_window

    # ---- for the core ----------------------------------------------------------------------------------------------

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

    @classmethod
    def of_numbers(cls, samples_per_insert: float, min_size: float, tolerance: float) -> SamplesPerInsert:
        """The limiter that core_numbers() gave."""
        return cls(samples_per_insert, int(min_size), tolerance)


@names_arguments
@final
@dataclass(frozen=True)
class Queue(LimiterKind):
    """A queue of max_size items: an insert waits for room, and a draw of n waits for n live items.

    An item leaves the queue when it was drawn max_times_sampled times, so the index needs that number (1: every item is
    drawn once). Items that are deleted, or that leave with old steps, make room, too. The sampler gives the order of
    draws. Items that wait for late columns or a priority count toward max_size. A window of n steps counts from its
    last step on. Each lane may have n_step - 1 unfinished windows, by which the queue may grow above max_size. A draw
    of more than max_size items is refused, and so is a block of steps with more items. If a block and a waiting draw
    do not fit the queue together, the block is stored in parts.

    Args:
        max_size: number of items at which writers wait, >= 1.

    Raises:
        InvalidConfig: max_size is not such a number.
    """

    num_numbers: ClassVar[int] = 1
    stops_inserts: ClassVar[bool] = True

    max_size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_size", integer("max_size", self.max_size, 1, _MOST))

    @property
    def min_size(self) -> int:
        """Live items that any draw waits for."""
        return 1

    @property
    def num_items(self) -> int:
        """The items that the index must have room for."""
        return self.max_size

    @property
    def size_name(self) -> str:
        """max_size."""
        return "max_size"

    @property
    def window(self) -> float:
        """The most items of a draw, or of a block of steps."""
        return float(self.max_size)

    def arithmetic(self) -> str:
        """The window and the numbers that it follows from, for messages."""
        return f"a queue of {self.max_size} items"

    def check_uses(self, max_times_sampled: int | None) -> None:
        """Raises InvalidConfig if the index does not count uses."""
        _check_counted(self, max_times_sampled)

    # ---- over shards -----------------------------------------------------------------------------------------------

    @property
    def bounds_items(self) -> bool:
        """Always."""
        return True

    def check_draw(self, num_items: int) -> None:
        """Raises RequestTooLarge for more items than the queue ever has."""
        if num_items > self.max_size:
            raise RequestTooLarge(num_items, self.window)

    def can_sample(self, totals: Totals, num_items: int) -> bool:
        """live >= n."""
        return totals.num_items >= num_items

    def check_insert(self, num_items: int) -> None:
        """Any insert: the shard that gets it refuses those that can never pass."""

    def can_insert(self, totals: Totals, num_items: int) -> bool:
        """There is room for one item, if the insert makes one. Items without a mass make room."""
        return totals.drawable + totals.pending + min(num_items, 1) <= self.max_size

    def needs(self, num_items: int) -> str:
        """The live items, in words."""
        return f"{num_items} live items"

    # ---- for the core ----------------------------------------------------------------------------------------------

    def core_config(self) -> dict[str, Any]:
        """The limiter as the core reads it."""
        return {"limiter": "queue", "max_size": self.max_size}

    def core_numbers(self) -> tuple[float, ...]:
        """The same as numbers, its kind first."""
        return 2, self.max_size

    @classmethod
    def of_numbers(cls, max_size: float) -> Queue:
        """The limiter that core_numbers() gave."""
        return cls(int(max_size))


@names_arguments
@final
@dataclass(frozen=True)
class StalenessBudget(LimiterKind):
    """Inserts wait for the learner: writers make no more items than `eta` more versions of it can use.

    An insert of n passes while

        inserted + pending + n - removed unused <= (eta + version + 1) x items_per_version

    version is the version that table.set_policy_version set last; setting it wakes the waiting writers. `removed
    unused` counts the items that left without ever being drawn. A draw waits for items only. A block is let in as far
    as the budget goes, to its last item. The index needs max_times_sampled, by which the table knows which items were
    drawn. If a process is killed between the draw of an item and its count, the budget grows by that item.

    Args:
        eta: versions ahead of the learner, >= 0. 0: only items of the present version (on policy).
        items_per_version: items that one version of the learner uses, >= 1.

    Raises:
        InvalidConfig: an argument has another type or value.

    Source: staleness control of asynchronous RL for language models, Fu et al. 2025, AReaL, arXiv 2505.24298.
    """

    num_numbers: ClassVar[int] = 2
    stops_inserts: ClassVar[bool] = True

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
        """The items that the index must have room for."""
        return 1

    @property
    def size_name(self) -> str:
        """The product that num_admitted comes from."""
        return "(eta + 1) x items_per_version"

    @property
    def num_admitted(self) -> int:
        """The budget of one version and of eta more."""
        return math.ceil((self.eta + 1.0) * self.items_per_version)

    def check_uses(self, max_times_sampled: int | None) -> None:
        """Raises InvalidConfig if the index does not count uses."""
        _check_counted(self, max_times_sampled)

    # ---- over shards -----------------------------------------------------------------------------------------------

    @property
    def bounds_items(self) -> bool:
        """Always."""
        return True

    def check_draw(self, num_items: int) -> None:
        """Any draw can pass."""

    def can_sample(self, totals: Totals, num_items: int) -> bool:
        """There is an item."""
        return totals.num_items >= 1

    def check_insert(self, num_items: int) -> None:
        """Any insert: the shard that gets it refuses those that can never pass."""

    def can_insert(self, totals: Totals, num_items: int) -> bool:
        """The budget has room for one item, if the insert makes one."""
        budget = (self.eta + totals.progress + 1.0) * self.items_per_version
        return totals.used_or_unused + totals.pending + min(num_items, 1) <= budget

    def needs(self, num_items: int) -> str:
        """The live items, in words."""
        return "1 live item"

    # ---- for the core ----------------------------------------------------------------------------------------------

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

    @classmethod
    def of_numbers(cls, eta: float, items_per_version: float) -> StalenessBudget:
        """The limiter that core_numbers() gave."""
        return cls(eta, int(items_per_version))


Limiter: TypeAlias = MinSize | SamplesPerInsert | Queue | StalenessBudget
LIMITERS = (MinSize, SamplesPerInsert, Queue, StalenessBudget)


def _check_counted(limiter: Limiter, max_times_sampled: int | None) -> None:
    if max_times_sampled is None:
        raise InvalidConfig(
            "max_times_sampled",
            f"a number, for {limiter} counts which items were drawn; 1: each of them once",
            max_times_sampled,
        )


def limiter_of(numbers: Sequence[float]) -> Limiter:
    """The limiter that core_numbers() gave. SamplesPerInsert has its tolerance as a number.

    Raises InvalidConfig if the numbers are those of no limiter: the memory of the region is damaged.
    """
    number, *values = numbers
    kind: Any = LIMITERS[int(number)] if 0 <= number < len(LIMITERS) else None
    if kind is None or not all(map(math.isfinite, values)) or len(values) != kind.num_numbers:
        raise InvalidConfig("limiter of a table", "numbers that are of one; its memory was damaged", list(numbers))
    limiter: Limiter = kind.of_numbers(*values)
    return limiter
