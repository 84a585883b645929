"""Hindsight: transitions of goal-conditioned episodes whose goal may be replaced by one that was reached later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, final, get_args

from relive.checks.names import names_arguments
from relive.checks.parts import from_parts, to_parts
from relive.checks.values import finite, integer, is_name
from relive.config.items import MAX_ROWS, Transitions
from relive.config.kinds import DrawsBy, InitialPriority, OneTableOnly, SamplerKind
from relive.config.samplers import SAMPLERS, Sampler, Uniform
from relive.config.spec import StepSpec
from relive.errors import InvalidConfig, SpecError, UnknownColumn

__all__ = ["Hindsight", "HindsightStrategy"]

HindsightStrategy = Literal["future", "final", "episode"]


@names_arguments
@final
@dataclass(frozen=True)
class Hindsight(SamplerKind):
    """Sampler of Transitions: a part of the drawn items gets a goal that their episode reached.

    A replaced goal appears in the goal's column, and in its next_ column if the goal is a state. The column
    `relabelled` says which items have one. `reward` is what the function in sample(reward=) or batches(reward=)
    computes. All other columns are as stored, also termination and discount. gather() returns the stored values, and
    `relabelled` is False there.

    Source: Andrychowicz et al. 2017, Hindsight Experience Replay.

    Args:
        goal: column of the wanted goal. Nested columns are named as 'observation/desired_goal'.
        achieved: state column of the reached goal, with the dtype and shape of `goal`. `sample` returns both columns.
        share: probability in [0, 1] that a drawn item gets another goal. Items are independent. The paper's k is share
            = k / (k + 1): k = 4 is 0.8.
        strategy: the state whose goal is taken. 'future': the state after a step from the item's own step to the last
            step of its episode, each with the same probability. 'final': the last state of the episode. 'episode': the
            state after any step of the episode that is still there (the table keeps the item's own step and all later
            ones).
        max_length: the most steps of an episode, 1 to 4,095. One more step is refused (EpisodeTooLong). A lane keeps so
            many steps, so the capacity is at least max_length.
        sampler: how items are drawn: Uniform, Prioritized, or another sampler of an Index.

    A step becomes an item when its episode ends. An episode that is cut off with its lane has no items. Pass
    next_<state> when an episode ends. If an episode terminates without a next state, the last state is a row of zeros,
    and that row can be drawn as a goal. n_step is 1 and nothing is stacked: a return of several steps has one goal, and
    the core cannot recompute the rewards of the others. On a Tiered table both columns have at most min_column_bytes
    each.

    Cost: O(steps to the end of the episode) an item.

    Raises:
        InvalidConfig: an argument has another type or value. The table checks the columns that are named.
    """

    replaces_goals: ClassVar[bool] = True

    goal: str
    achieved: str
    share: float = 0.8
    strategy: HindsightStrategy = "future"
    max_length: int = 1000
    sampler: Sampler = Uniform()

    def __post_init__(self) -> None:
        for name in ("goal", "achieved"):
            if not is_name(getattr(self, name), 120):
                raise InvalidConfig(f"{name} of Hindsight", "the name of a column", getattr(self, name))
        if self.goal == self.achieved:
            raise InvalidConfig("achieved of Hindsight", "another column than the goal", self.achieved)
        object.__setattr__(self, "share", finite("share", self.share, 0.0, 1.0))
        strategies = get_args(HindsightStrategy)
        if not isinstance(self.strategy, str) or self.strategy not in strategies:
            raise InvalidConfig("strategy of Hindsight", " or ".join(map(repr, strategies)), self.strategy)
        object.__setattr__(self, "max_length", integer("max_length", self.max_length, 1, MAX_ROWS - 1))
        sampler: Any = self.sampler
        if not isinstance(sampler, SAMPLERS):
            names = " or ".join(f"{kind.__name__}(...)" for kind in SAMPLERS)
            raise InvalidConfig("sampler of Hindsight", names, sampler)

    @property
    def drawn_by(self) -> SamplerKind:
        """The option `sampler`."""
        return self.sampler

    @property
    def draws_by(self) -> DrawsBy:
        """As its sampler."""
        return self.sampler.draws_by

    @property
    def initial_priority(self) -> InitialPriority | None:
        """As its sampler."""
        return self.sampler.initial_priority

    @property
    def one_table_only(self) -> OneTableOnly | None:
        """As its sampler."""
        return self.sampler.one_table_only

    @property
    def reach(self) -> int:
        """max_length - 1: an item needs every later step of its episode."""
        return self.max_length - 1

    def sampler_config(self) -> dict[str, Any]:
        """The sampler below, as the core reads it; items_config has the rest."""
        return self.sampler.sampler_config()

    def items_config(self) -> dict[str, Any]:
        """Replaces parts of the configuration of the Transitions: windows to the end of an episode that has ended."""
        return {
            "items": "sequences",
            "length": self.max_length,
            "burn_in": 0,
            "bootstrap": 0,
            "period": 1,
            "at_end": "pad",
            "pad": "right",
            "only_ended": True,
            "only_the_last": False,
            "longest": self.max_length,
            "hindsight": {
                "strategy": self.strategy,
                "goal": self.goal,
                "achieved": self.achieved,
                "share": self.share,
            },
        }

    def check_items(self, items: object) -> None:
        """Raises InvalidConfig if the goals of these items cannot be replaced."""
        if not isinstance(items, Transitions):
            raise InvalidConfig("items of an index with Hindsight", "Transitions()", items)
        if items.n_step != 1:
            raise InvalidConfig("n_step of an index with Hindsight", "1: a reward is recomputed step by step", items)
        if items.stack:
            raise InvalidConfig("stack of an index with Hindsight", "{}: it stacks nothing", items)

    def check_against(self, spec: StepSpec) -> None:
        """Raises UnknownColumn or SpecError if the spec lacks a column that Hindsight needs."""
        for name in (self.goal, self.achieved):
            if name not in spec.columns:
                raise UnknownColumn(name, tuple(spec.columns))
        if any(name.partition("/")[0] == "relabelled" for name in spec.columns):
            raise SpecError("column 'relabelled'", "another name: an index with Hindsight has its own", "relabelled")
        goal, achieved = spec.columns[self.goal], spec.columns[self.achieved]
        if achieved.kind != "state":
            raise SpecError(f"column {self.achieved!r}", "kind 'state': what each step reached", repr(achieved))
        if goal.kind == "start" or goal.late:
            raise SpecError(f"column {self.goal!r}", "kind 'state', 'step' or 'episode', and not late", repr(goal))
        if (goal.dtype, goal.shape) != (achieved.dtype, achieved.shape):
            raise SpecError(f"column {self.goal!r}", f"dtype and shape of {self.achieved!r}, {achieved}", repr(goal))

    def to_dict(self) -> dict[str, Any]:
        """The options as plain values."""
        options = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**options, "sampler": to_parts(self.sampler)}

    @classmethod
    def from_dict(cls, parts: Mapping[str, Any]) -> Hindsight:
        """The Hindsight that to_dict wrote. Options that are left out get their defaults. Raises InvalidConfig."""
        options = dict(parts)
        if isinstance(options.get("sampler"), Mapping):
            options["sampler"] = from_parts("sampler of Hindsight", options["sampler"], SAMPLERS)
        return cls(**options)
