"""An index: what an item is, how and when it is drawn, and how long it stays."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from relive.checks.names import names_arguments
from relive.checks.parts import from_parts, refuse_unknown, to_parts
from relive.checks.values import finite, integer, is_name
from relive.config.explicit import MAX_ITEMS, Explicit
from relive.config.hindsight import Hindsight
from relive.config.items import ITEMS, Items, Transitions
from relive.config.kinds import InitialPriority, SamplerKind
from relive.config.limiters import LIMITERS, Limiter, MinSize
from relive.config.prompt_groups import PromptGroups
from relive.config.samplers import REMOVERS, SAMPLERS, Fifo, Remover, Sampler, Uniform
from relive.config.spec import StepSpec
from relive.config.where import Operation, check_text, where_of
from relive.errors import CapacityTooSmall, InvalidConfig

__all__ = ["DEFAULT_INDEX_NAME", "Index", "Limiter", "Sampler", "check_min_sizes", "named_indexes"]

DEFAULT_INDEX_NAME = "default"
MAX_INDEXES = 8
MAX_TIMES_SAMPLED = 65_529
# The parts of an Index, and the classes that each part may have.
_KINDS: dict[str, tuple[type[Any], ...]] = {
    "items": (*ITEMS, Explicit),
    "sampler": (*SAMPLERS, Hindsight, PromptGroups),
    "limiter": LIMITERS,
    "remover": REMOVERS,
}
_VALUES = ("max_times_sampled", "max_items", "max_wait_s", "max_staleness", "where", "replacement")
MAX_WAIT_S = 1e9
_PAGE_ROWS = 8  # the fewest rows of a page, unless every page has one row
_ROWS_OF_A_HOLD = 256  # room is made at once for so many rows of a block
MAX_STALENESS = 2**32 - 1  # versions are below 2^32


@names_arguments
@final
@dataclass(frozen=True)
class Index:
    """Defines the items of a table and how they are drawn. A table may have several indexes over the same steps.

    Args:
        items: the kind of its items: Transitions, Sequences, Episodes or Explicit.
        sampler: how items are drawn: Uniform, Prioritized, Fifo, Lifo, MaxPriority, MinPriority, RankBased, TopK, Fresh
            or Shuffle; for Transitions also Hindsight, for groups also PromptGroups.
        limiter: when draws and inserts wait: MinSize, SamplesPerInsert, Queue or StalenessBudget. table.set_limiter
            replaces it. A limiter that asks for more samples of an item than max_times_sampled allows is refused.
        remover: which item leaves when the index has more than max_items: Fifo, Lifo, MinPriority, MaxPriority,
            Uniform, Prioritized or Reservoir. If the remover and the sampler both use priorities, give `initial` to the
            sampler only, or the same value to both.
        max_times_sampled: an item leaves after this many draws, counted exactly; None: no limit.
        max_items: the most items that live at a time; None: one for each stored step. Every remover except Fifo needs
            a number. Over several shards it is a number for each shard.
        max_wait_s: an item that waits longer than this many seconds is dropped; None: items wait for ever.
        where: a condition such as 'reward > 0 and lane < 4' (docs/where.md). Items that do not meet it never enter this
            index.
        max_staleness: an item leaves when its staleness is above this number; None: never.
        replacement: whether an item may occur twice in a batch.

    max_items: the remover chooses among all items. It may choose the new item, which then leaves at once. The step of a
    removed item stays in the table, for other indexes and for the windows of its neighbours. While a call adds items, a
    sampler may see up to 256 items more than max_items.

    Explicit items and groups have their own limit: Explicit(max_items=), Episodes(max_groups=). An explicit item or a
    group that still waits (for late columns, a priority or members) counts toward that limit. The remover does
    not choose it: with a limit of m, it leaves after m more items were added. Used-up items leave first.

    The remover of the first index also decides which steps leave a full table. With Fifo, the oldest steps leave. With
    any other remover, the table drops pages (runs of steps of one lane) that no item of that index needs; see
    steps_to_hold. When a step leaves, every item that contains it leaves its index.

    max_wait_s: an item waits for late columns, or for its priority if initial='given'. A group waits for members, or
    for the late columns of its members. The time of an item starts when its window is complete, and that of a
    group when its first member ends. An item that waited too long is dropped the next time that any process changes the
    table or waits on the table. A dropped item never enters this index, and the limiter no longer counts it. The
    steps of the item stay in the table. stats() counts the item as timed_out.

    where: the condition is checked once, when the item would enter the index. It reads the step with the item's key.
    stats() counts each step that does not meet the condition as filtered. Such a step stays in the table for other
    indexes. Explicit items and groups take no condition. A condition cannot name `staleness`, because it changes.

    max_staleness: the staleness of an item is the version of table.set_policy_version minus the version of the item's
    oldest row. With 0, the index has only items of the present version. set_policy_version returns when all items above
    the limit have left; until then draws may still return some of them. An item that is already too stale when it
    enters the index is removed at once, in the same critical section. The steps of a removed item stay in the table.
    stats() counts the item as expired.

    replacement=False: for samplers that draw at random (Uniform, Prioritized, RankBased, TopK, Fresh with last or
    decay, PromptGroups by mean or variance). Items are drawn one after another, each in proportion to its mass among
    the items that are not in the batch yet. batch.probabilities are mass / total of all items. A draw waits if it asks
    for more items than the index has. A draw that asks for more items than the index can ever have raises
    RequestTooLarge. Samplers with an order, and Shuffle, draw each item once before they draw one again.

    Cost:
        max_items: 9.2 bytes a step and O(log8 steps) an item. For explicit items and groups, a remover other than Fifo
            costs 18.3 bytes an item.
        max_wait_s: 9.2 bytes a step. With explicit items or groups: 9.2 bytes an item.
        max_staleness: the same bytes. Each row of an item is read once more when the item is published.

    Raises:
        InvalidConfig: an argument has another type or value, or two arguments do not go together.
    """

    items: Items | Explicit = Transitions()
    sampler: Sampler | Hindsight | PromptGroups = Uniform()
    limiter: Limiter = MinSize()
    remover: Remover = Fifo()
    max_times_sampled: int | None = None
    max_items: int | None = None
    max_wait_s: float | None = None
    where: str | None = None
    max_staleness: int | None = None
    replacement: bool = True

    def __post_init__(self) -> None:
        for what, kinds in _KINDS.items():
            value = getattr(self, what)
            if not isinstance(value, kinds):
                names = " or ".join(f"{kind.__name__}(...)" for kind in kinds)
                part = next((part for part, others in _KINDS.items() if isinstance(value, others)), "")
                raise InvalidConfig(
                    f"{what} of an Index", names + (f"; this one is given as {part}=" if part else ""), value
                )
        self.sampler.check_items(self.items)
        if self.max_times_sampled is not None:
            times = integer("max_times_sampled", self.max_times_sampled, 1, MAX_TIMES_SAMPLED)
            object.__setattr__(self, "max_times_sampled", times)
        if self.max_items is not None:
            object.__setattr__(self, "max_items", self._checked_max_items(self.max_items))
        if self.max_wait_s is not None:
            object.__setattr__(self, "max_wait_s", finite("max_wait_s", self.max_wait_s, 0.0, MAX_WAIT_S, above=True))
        if self.max_staleness is not None:
            stale = integer("max_staleness", self.max_staleness, 0, MAX_STALENESS)
            object.__setattr__(self, "max_staleness", stale)
        if self.where is not None:
            check_text(self.where)
        self._check_replacement()
        self._check_most()
        self.limiter.check_uses(self.max_times_sampled)
        self._check_remover()
        if self.items.is_grouped and self._initial == "given":
            raise InvalidConfig(
                "initial priority of groups of episodes", "'max' or a number: none comes with a step", "given"
            )

    def _check_replacement(self) -> None:
        if not isinstance(self.replacement, bool):
            raise InvalidConfig("replacement of an Index", "True or False", self.replacement)
        if not self.replacement and self.sampler.draws_by == "order":
            expected = f"left out: {type(self.drawn_by).__name__} brings each item once before any comes again"
            raise InvalidConfig("replacement of an Index", expected, False)

    def _checked_max_items(self, max_items: int) -> int:
        if self.items.most is not None:
            raise InvalidConfig(
                "max_items of an Index",
                f"none: these items have their own, {type(self.items).__name__}({self.items.most_name}=)",
                max_items,
            )
        return integer("max_items", max_items, 1, MAX_ITEMS)

    def _check_most(self) -> None:
        most = self.items.most or self.max_items
        if most is not None and self.limiter.num_admitted > most:
            raise InvalidConfig(
                self.limiter.size_name,
                f"at most {self.items.most_name} = {most}: the oldest item ends where one more comes",
                self.limiter.num_admitted,
            )

    @property
    def has_priorities(self) -> bool:
        """Whether its sampler or its remover looks at priorities: only then update_priorities works."""
        return self._initial is not None

    @property
    def draws_by_mass(self) -> bool:
        """Whether items are drawn by masses of their own; else by an order or by ranks."""
        return self.sampler.draws_by == "mass"

    @property
    def draws_by_priority(self) -> bool:
        """Whether its sampler looks at priorities. The remover may, in both cases."""
        return self.sampler.initial_priority is not None

    @property
    def drawn_by(self) -> SamplerKind:
        """The sampler that chooses the items; with Hindsight, which replaces goals, the sampler below it."""
        return self.sampler.drawn_by

    @property
    def steps_to_hold(self) -> int | None:
        """The capacity in steps at which the table keeps all max_items, if this is its first index; None: any.

        Kept items lie apart. A page of 8 steps, the smallest one, stays as long as one of its items does, or as another
        item needs a row of it. For items that need r rows besides their own, the capacity is

            max_items x (1 + 1/2 + ... + 1/(8 + r))  with Uniform
            max_items                                with Lifo
            max_items x (8 + r)                      with any other remover, which may keep items of any age

        Items that begin s steps apart, as the windows of a period and episodes do, need s x max_items x (1 + ... +
        s/(8 + r)) with Uniform, and s x max_items with Lifo. With Hindsight r reaches to the end of an episode. Added
        are some pages for each open lane, and 256 steps, for which room is made at once. None where the oldest steps
        leave in any case: Fifo, Explicit items, groups.

        With a condition (where), items lie apart as rarely as it is met, so that every remover needs max_items x (8 +
        r). Items that still wait for late columns or a priority need room besides.
        """
        between = self.items.steps_between
        rows = _PAGE_ROWS + max(self.items.kept_back, self.items.num_rows, self.sampler.reach)
        most = math.ceil(rows / between)
        an_item = self.remover.steps_per_item(most)
        if self.max_items is None or an_item is None:
            return None
        if self.where is not None:
            an_item = most
        return math.ceil(self.max_items * an_item * between) + 2 * rows + _ROWS_OF_A_HOLD

    @property
    def _initial(self) -> InitialPriority | None:
        """The priority of items that came without one; None: neither sampler nor remover looks at priorities."""
        drawn = self.sampler.initial_priority
        return self.remover.initial_priority if drawn is None else drawn

    def _check_remover(self) -> None:
        if self.remover.steps_per_item(_PAGE_ROWS) is None:  # the oldest steps leave, with or without max_items
            return
        name = type(self.remover).__name__
        if self.max_items is None and self.items.most is None:
            raise InvalidConfig("max_items", f"a number where the remover is {name}: what it removes goes by it", None)
        given, initial = self.remover.initial_priority, self.sampler.initial_priority
        if initial is not None and given not in (None, "max", initial):
            raise InvalidConfig("initial of the remover", f"the sampler's, {initial!r}, or none", given)

    def check_against(self, spec: StepSpec) -> None:
        """Raises SpecError or UnknownColumn if the spec lacks a column that this index needs."""
        self.items.check_against(spec)
        self.sampler.check_against(spec)
        self._program(spec)
        if self.max_wait_s is None or self._may_wait(spec):
            return
        raise InvalidConfig(
            "max_wait_s",
            "None: no item of this index waits, as there are no late columns, no initial='given' and no groups",
            self.max_wait_s,
        )

    def _program(self, spec: StepSpec) -> list[Operation]:
        """The condition as the core reads it. Raises InvalidConfig, UnknownColumn."""
        if self.where is None:
            return []
        if self.items.index_condition is not None:
            raise InvalidConfig("where of an Index", self.items.index_condition, self.where)
        checked = where_of(self.where, spec, self.items)
        for name in checked.changes:
            why = "changes while an item stands" if name == "staleness" else "is known when the item is read"
            expected = f"what is settled when an item is published: {name} {why}; give where= to a draw"
            raise InvalidConfig(f"column {name!r} of where", expected, self.where)
        return list(checked.operations)

    def _may_wait(self, spec: StepSpec) -> bool:
        is_given = self._initial == "given"
        return is_given or self.items.is_grouped or any(column.late for column in spec.columns.values())

    def core_config(self, name: str, spec: StepSpec) -> dict[str, Any]:
        """The index as the core reads it: the configurations of its parts, and its options."""
        return {
            "name": name,
            **self.items.core_config(spec),
            **self.sampler.items_config(),
            **self.sampler.sampler_config(),
            **self.limiter.core_config(),
            **self.remover.remover_config(),
            **self._initial_config(),
            "max_times_sampled": self.max_times_sampled or 0,
            **({} if self.max_items is None else {"max_items": self.max_items}),
            **({} if self.max_wait_s is None else {"max_wait_s": self.max_wait_s}),
            **({} if self.max_staleness is None else {"versions_kept": self.max_staleness + 1}),
            **({} if self.where is None else {"where": self._program(spec)}),
            **({} if self.replacement else {"distinct": True}),
        }

    def _initial_config(self) -> dict[str, Any]:
        initial = self._initial
        if initial is None:
            return {}
        return {"initial": (initial, 0.0) if isinstance(initial, str) else ("number", initial)}

    def to_dict(self) -> dict[str, Any]:
        """Plain values that JSON can hold; from_dict gives an equal Index back."""
        parts = {name: to_parts(getattr(self, name)) for name in _KINDS}
        return {**parts, **{name: getattr(self, name) for name in _VALUES}}

    @classmethod
    def from_dict(cls, parts: Mapping[str, Any]) -> Index:
        """The Index that to_dict wrote. Parts that are left out get their defaults. Raises InvalidConfig."""
        if not isinstance(parts, Mapping):
            raise InvalidConfig("an Index", "a dict of its parts", parts)
        refuse_unknown("part of an Index", parts, (*_KINDS, *_VALUES))
        built = {
            name: from_parts(f"{name} of an Index", value, _KINDS[name]) if name in _KINDS else value
            for name, value in parts.items()
        }
        return cls(**built)


def named_indexes(index: Index | Mapping[str, Index] | None, spec: StepSpec) -> dict[str, Index]:
    """{name: Index} from the argument index= of a table, each checked against the spec.

    Raises InvalidConfig, SpecError.
    """
    if index is None:
        index = Index()
    named = dict(index) if isinstance(index, Mapping) else {DEFAULT_INDEX_NAME: index}
    if not 1 <= len(named) <= MAX_INDEXES:
        raise InvalidConfig("index", f"1 to {MAX_INDEXES} indexes", len(named))
    for name, one in named.items():
        if not is_name(name, 63):
            raise InvalidConfig("name of an index", "1 to 63 bytes of text", name)
        if not isinstance(one, Index):
            raise InvalidConfig(f"index {name!r}", f"an Index({_part_of(one)}...)", one)
        one.check_against(spec)
    return named


def _part_of(value: object) -> str:
    """The argument of an Index that the value belongs to, such as 'sampler='; '' for any other value."""
    return next((f"{part}=" for part, kinds in _KINDS.items() if isinstance(value, kinds)), "")


def check_min_sizes(capacity: int, indexes: Mapping[str, Index]) -> None:
    """Raises CapacityTooSmall if a min_size could never be reached.

    A lane in a long episode keeps back stored steps that no item begins at (kept_back of the items). Items that must be
    whole windows begin steps_apart of each other. Stacks of other indexes cost an index nothing. A writer that does not
    give next_<state> also keeps its newest step back. Any number of explicit items may stand on one step: max_items
    bounds them.
    """
    for name, one in indexes.items():
        items, min_size = one.items, one.limiter.num_items
        kept_back = max(items.kept_back, one.sampler.reach)
        needed = 1 + (min_size - 1) * items.steps_apart + kept_back
        if needed > capacity:
            apart = f", {items.steps_apart} steps apart" if items.steps_apart > 1 else ""
            kept = f"{kept_back} steps that no item begins at ({items})"
            arithmetic = f"index {name!r}: {one.limiter.size_name} {min_size}{apart}, and of one lane {kept}"
            raise CapacityTooSmall(capacity, needed, arithmetic=arithmetic)
