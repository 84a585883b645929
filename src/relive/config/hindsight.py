"""Hindsight: transitions of goal-conditioned episodes, whose goal may be one that was reached later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, final, get_args

from relive.checks.names import names_arguments
from relive.checks.parts import from_parts, to_parts
from relive.checks.values import finite, integer, is_text
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
    """Sampler of Transitions: some of those drawn get a goal that their episode reached (Andrychowicz et al. 2017).

    goal: the column that says what was wanted, achieved: the state column of the same dtype and shape that says what
    was reached; nested ones as 'observation/desired_goal'. Both come with each step of `sample`.
    share in [0, 1]: a drawn item gets another goal with this probability, each by itself; 0.8 is k = 4 of the paper,
    k / (k + 1). strategy: whose goal: 'future', the state behind a step from the item's own to its episode's last, each
    as likely; 'final', the episode's last state; 'episode', the state behind any of the episode's steps (of those that
    are still there: the table keeps the item's own and all later ones).
    The goal then stands in the goal's column, and in its next_ column where it is a state; `relabelled` says whose is
    another. reward is what sample(reward=) or batches(reward=) makes of it; all else is as it was stored, termination
    and discount among it. gather() shows what was stored, and relabelled is False.
    sampler: which items are drawn: Uniform, Prioritized, or another that an Index takes.
    An item is one when its episode has ended; an episode that its lane's end cuts off has none. max_length: steps that
    an episode may have (1 to 4,095); one more is refused (EpisodeTooLong). A lane keeps so many steps, so capacity is
    at least that. n_step is 1 and nothing is stacked: a return of several steps is of one goal, and the core has no
    reward for another. Of a Tiered table both columns have at most min_column_bytes each. An end wants its next state:
    without one the state behind it, all zeros, is a goal.
    Cost: an item O(steps to its episode's end).
    Raises InvalidConfig; the table checks the columns it names.
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
            if not is_text(getattr(self, name), 120):
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

    def sampler_config(self) -> dict[str, Any]:
        """The sampler below as the core reads it; what is of the items says items_config."""
        return self.sampler.sampler_config()

    def items_config(self) -> dict[str, Any]:
        """What the core reads over the Transitions' own: windows to the end of an episode that has ended."""
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
        """Raises InvalidConfig where the items are none that goals can be replaced of."""
        if not isinstance(items, Transitions):
            raise InvalidConfig("items of an index with Hindsight", "Transitions()", items)
        if items.n_step != 1:
            raise InvalidConfig("n_step of an index with Hindsight", "1: a reward is recomputed step by step", items)
        if items.stack:
            raise InvalidConfig("stack of an index with Hindsight", "{}: it stacks nothing", items)

    def check_against(self, spec: StepSpec) -> None:
        """Raises UnknownColumn or SpecError where the spec lacks what it needs."""
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
        """Its options as plain values."""
        options = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**options, "sampler": to_parts(self.sampler)}

    @classmethod
    def from_dict(cls, parts: Mapping[str, Any]) -> Hindsight:
        """The Hindsight that to_dict wrote; options left out have their defaults. Raises InvalidConfig."""
        options = dict(parts)
        if isinstance(options.get("sampler"), Mapping):
            options["sampler"] = from_parts("sampler of Hindsight", options["sampler"], SAMPLERS)
        return cls(**options)
