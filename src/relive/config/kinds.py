"""The questions that other code asks about samplers, removers, limiters and items; each class answers for itself.

Other code reads these answers and does not compare classes. Every new class must answer a question without a default.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

from relive.config.spec import ArraySpec, StepSpec

__all__ = [
    "DrawsBy",
    "InitialPriority",
    "ItemsKind",
    "LimiterKind",
    "OneTableOnly",
    "RemoverKind",
    "SamplerKind",
    "WindowShape",
]

DrawsBy: TypeAlias = Literal["mass", "rank", "order"]
InitialPriority: TypeAlias = Literal["max", "given"] | float


class OneTableOnly(NamedTuple):
    """The reason why something works in one table and not over several shards."""

    what: str  # for example "Fresh(decay=)"
    reason: str
    instead: str  # the way out


class SamplerKind(ABC):
    """The answers of a sampler."""

    @property
    @abstractmethod
    def draws_by(self) -> DrawsBy:
        """How an item is chosen.

        'mass': each with probability mass / total, the mass being the item's own. 'rank': by chance, with a mass that
        follows from the ranks of all priorities. 'order': nothing is left to chance, the next items come.
        """

    @property
    @abstractmethod
    def initial_priority(self) -> InitialPriority | None:
        """The priority of an item that came without one; None: the sampler ignores priorities."""

    @property
    @abstractmethod
    def one_table_only(self) -> OneTableOnly | None:
        """The reason why the sampler does not work over shards; None: it does."""

    @abstractmethod
    def sampler_config(self) -> dict[str, Any]:
        """The sampler as the core reads it."""

    @property
    def drawn_by(self) -> SamplerKind:
        """The sampler that chooses the items: another one where this sampler only changes what the items show."""
        return self

    @property
    def best_is_least(self) -> bool:
        """Whether the best item is that of the least value, if items are drawn by an order or by ranks."""
        return False

    @property
    def has_exponent(self) -> bool:
        """Whether table.set_priority_exponent works."""
        return False

    @property
    def moves_masses(self) -> bool:
        """Whether masses change while no item is added, updated or removed."""
        return False

    @property
    def reach(self) -> int:
        """The most steps after an item's own that must exist as long as the item does; 0: as its window says."""
        return 0

    @property
    def replaces_goals(self) -> bool:
        """Whether items that are sampled may show another goal than the stored one."""
        return False

    def shard_part(self, mass: float, num_items: int) -> float:
        """The part of a draw over shards that a shard gets, in proportion to the parts of the others.

        Args:
            mass: the sum of the masses of the shard's live items.
            num_items: the live items of the shard.
        """
        return mass if self.draws_by == "mass" else float(num_items)

    def shard_room(self, mass: float, num_items: int) -> int:
        """The items that a draw without replacement can take from such a shard."""
        return num_items

    def check_items(self, items: Any) -> None:  # noqa: B027 - most samplers take any items
        """Raises InvalidConfig where the sampler does not work with these items."""

    def check_against(self, spec: StepSpec) -> None:  # noqa: B027 - most samplers need no column
        """Raises SpecError or UnknownColumn where the spec lacks a column that the sampler needs."""

    def items_config(self) -> dict[str, Any]:
        """Options that replace those of the items, as the core reads them."""
        return {}


class RemoverKind(ABC):
    """The answers of a remover."""

    @property
    @abstractmethod
    def initial_priority(self) -> InitialPriority | None:
        """The priority of an item that came without one; None: the remover ignores priorities."""

    def steps_per_item(self, rows: int) -> float | None:
        """The steps of capacity that each item of a full index takes: kept items may lie anywhere, so a run of rows.

        Args:
            rows: the shortest run of rows that one item keeps from being removed.

        Returns:
            None where the items go in the order of their steps: then no item keeps a step longer than others.
        """
        return rows

    @abstractmethod
    def remover_config(self) -> dict[str, Any]:
        """The remover as the core reads it."""


class LimiterKind(ABC):
    """The answers of a limiter.

    A limiter is sent as numbers: `core_numbers` writes them, and `num_numbers` and `of_numbers` of the class read them.
    It also has the methods of relive.fleet.draws.pace.Pace, by which it acts over the totals of shards.
    """

    @property
    @abstractmethod
    def num_items(self) -> int:
        """The items that the index must have room for."""

    @property
    def bounds_items(self) -> bool:
        """Whether it bounds the number of items: then it acts in each shard, too, and not over the totals alone."""
        return False

    @property
    def size_name(self) -> str:
        """The name of the option that num_items comes from."""
        return "min_size"

    @property
    def num_admitted(self) -> int:
        """The items that may wait to be drawn at once, which max_items or max_groups must allow."""
        return self.num_items

    @property
    def window(self) -> float | None:
        """The most items of one draw; None: any number."""
        return None

    def has(self, totals: Any) -> object:
        """The live items of the totals of shards, for the error of a draw that waited for more."""
        return totals.num_items

    def arithmetic(self) -> str:
        """The window and the numbers that it follows from, for messages."""
        return ""

    def check_uses(self, max_times_sampled: int | None) -> None:  # noqa: B027 - most limiters take any number
        """Raises InvalidConfig where an index with this max_times_sampled cannot have the limiter."""

    @abstractmethod
    def core_config(self) -> dict[str, Any]:
        """The limiter as the core reads it."""

    @abstractmethod
    def core_numbers(self) -> tuple[float, ...]:
        """The same as numbers: the position of its class in LIMITERS, then the numbers that of_numbers takes."""


class WindowShape(NamedTuple):
    """The steps of one lane that an item over lanes shows at most."""

    before: int  # burn-in, before the item's own step
    loss: int  # steps that carry loss, from the item's own step on
    num_steps: int  # all steps from the item's own step on


class ItemsKind(ABC):
    """The answers of a kind of items. The defaults are those of one step, whose key names it."""

    @property
    def one_table_only(self) -> OneTableOnly | None:
        """The reason why the items do not work over shards; None: they do."""
        return None

    @property
    def keys_are_steps(self) -> bool:
        """Whether the key of an item is the key of a step; else items have keys of their own."""
        return True

    @property
    def is_explicit(self) -> bool:
        """Whether create_items() makes the items; else they follow from the steps."""
        return False

    @property
    def is_grouped(self) -> bool:
        """Whether an item is several episodes."""
        return False

    @property
    def end_with_episodes(self) -> bool:
        """Whether each item is made of whole episodes, so that the end of an episode makes at most one item."""
        return False

    @property
    def has_time(self) -> bool:
        """Whether columns have a time axis."""
        return False

    @property
    def time_major(self) -> bool:
        """Whether the time axis is the first one."""
        return False

    @property
    def is_trimmed(self) -> bool:
        """Whether the time axis ends with the longest item of a batch."""
        return False

    @property
    def is_ragged(self) -> bool:
        """Whether the rows of the items of a batch lie end to end."""
        return False

    @property
    def crosses(self) -> bool:
        """Whether a window may cross the ends of episodes."""
        return False

    @property
    def pads_left(self) -> bool:
        """Whether padding stands before the rows."""
        return False

    @property
    def sums_rewards(self) -> bool:
        """Whether the reward of an item is a sum over several steps."""
        return False

    @property
    def rows_behind(self) -> int:
        """Rows after an episode's last step that the item shows."""
        return 0

    @property
    def num_rows(self) -> int:
        """The most rows of a column that an item shows."""
        return 1

    @property
    def steps_apart(self) -> int:
        """The fewest steps from one item to the next, whatever the episodes are."""
        return 1

    @property
    def steps_between(self) -> int:
        """The most steps from one item to the next of a lane, as far as steps between them belong to an item."""
        return 1

    @property
    def kept_back(self) -> int:
        """The most steps of one lane that no item begins at, whatever the episodes are."""
        return 0

    @property
    def most(self) -> int | None:
        """The most items that live at a time by the items' own option; None: the items have no such number."""
        return None

    @property
    def most_name(self) -> str:
        """The name of the option that bounds the number of items."""
        return "max_items"

    @property
    def in_words(self) -> str:
        """The items in words, for messages."""
        return f"{type(self).__name__} items"

    @property
    def window_names(self) -> tuple[str, ...]:
        """The names that stand before the names of columns in a batch."""
        return ()

    @property
    def index_condition(self) -> str | None:
        """The value that Index(where=) must have, in words; None: any condition."""
        return None

    def condition_columns(self, spec: StepSpec) -> Mapping[str, ArraySpec] | None:
        """The columns that a condition may name, one value an item; None: those of the step that the key names."""
        return None

    @abstractmethod
    def batch_names(
        self, spec: StepSpec, asked: tuple[str, ...] | None, more: tuple[str, ...], others: tuple[str, ...] = ()
    ) -> tuple[str, ...]:
        """The flat names of a batch's columns.

        Args:
            spec: the columns of a step.
            asked: the names that the call asks for; None: the usual ones.
            more: names that the sampler adds.
            others: names that may be asked for, because the index has priorities.

        Raises UnknownColumn.
        """

    @abstractmethod
    def check_against(self, spec: StepSpec) -> None:
        """Raises SpecError or UnknownColumn where the spec lacks a column that the items need."""

    @abstractmethod
    def core_config(self, spec: StepSpec) -> dict[str, Any]:
        """The items as the core reads them."""
