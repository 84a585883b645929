"""Whole groups of episodes, chosen by what their members got."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final, get_args

import numpy as np

from relive.checks.names import names_arguments
from relive.checks.values import finite
from relive.config.items import Episodes
from relive.config.kinds import DrawsBy, SamplerKind
from relive.config.spec import StepSpec
from relive.errors import InvalidConfig, SpecError, UnknownColumn

__all__ = ["GroupChoice", "PromptGroups"]

GroupChoice = Literal["recency", "mean", "variance"]


@names_arguments
@final
@dataclass(frozen=True)
class PromptGroups(SamplerKind):
    """Sampler of groups, Episodes(group_by=...): whole groups by recency, or by the rewards of their members.

    by 'recency': the newest groups first, as Lifo draws them. 'variance', 'mean': with probability mass / total, mass =
    (that of the members' values of column `of`) ** priority_exponent, with replacement; a group whose variance (whose
    mean) is not above 0 is never drawn. priority_exponent 0: each of the others is as likely. variance is that over all
    members, 0 where they have the same value: such a group has no advantage, and no gradient, in GRPO and RLOO.
    of: a column of one float, kind 'episode', or a step column, whose sum over the member's rows it is; a late one is
    waited for, as a group is published when all its rows are filled. The value is taken then, once.
    update_priorities gives a group another priority ('recency' has none: NoPriorities). Where no group has a mass the
    draw waits, as if there were none.
    Cost: at publication a look at each row of the group ('episode': at one of each member).
    Raises InvalidConfig; the table checks the column.
    """

    one_table_only: ClassVar[None] = None  # its items say so

    by: GroupChoice = "variance"
    of: str = "reward"
    priority_exponent: float = 1.0

    def __post_init__(self) -> None:
        choices = get_args(GroupChoice)
        if not isinstance(self.by, str) or self.by not in choices:
            raise InvalidConfig("by of PromptGroups", " or ".join(map(repr, choices)), self.by)
        if not isinstance(self.of, str):
            raise InvalidConfig("of of PromptGroups", "the name of a column", self.of)
        object.__setattr__(self, "priority_exponent", finite("priority_exponent", self.priority_exponent, 0.0))

    @property
    def is_weighed(self) -> bool:
        """Whether groups have priorities."""
        return self.by != "recency"

    @property
    def draws_by(self) -> DrawsBy:
        """By mass, but for recency."""
        return "mass" if self.is_weighed else "order"

    @property
    def initial_priority(self) -> float | None:
        """0 where groups have priorities: never used, as each group has its own when it is published."""
        return 0.0 if self.is_weighed else None

    def sampler_config(self) -> dict[str, Any]:
        """The sampler as the core reads it; what is of the groups says items_config."""
        if not self.is_weighed:
            return {"sampler": "lifo"}
        return {"sampler": "prioritized", "priority_exponent": self.priority_exponent or 1.0}

    def items_config(self) -> dict[str, Any]:
        """What the core reads over the groups' own: what their priority is."""
        if not self.is_weighed:
            return {}
        return {"weight": self.by if self.priority_exponent else f"any_{self.by}", "weighed": self.of}

    def check_items(self, items: object) -> None:
        """Raises InvalidConfig where the items are no groups."""
        if not isinstance(items, Episodes) or not items.is_grouped:
            expected = "groups: Episodes(max_length, group_by=, group_size=, max_groups=)"
            raise InvalidConfig("items of an index with PromptGroups", expected, items)

    def check_against(self, spec: StepSpec) -> None:
        """Raises UnknownColumn or SpecError where the spec lacks the column, unless it goes by recency."""
        if not self.is_weighed:
            return
        column = spec.columns.get(self.of)
        if column is None:
            raise UnknownColumn(self.of, tuple(spec.columns))
        is_float = column.dtype in (np.dtype(np.float32), np.dtype(np.float64))
        if column.kind not in ("step", "episode") or not is_float or column.shape:
            raise SpecError(f"column {self.of!r}", "one float of kind 'step' or 'episode'", repr(column))
