"""PromptGroups: whole groups of episodes, chosen by age or by the values of their members."""

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
    """Sampler of groups, Episodes(group_by=...): whole groups by age, or by the rewards of their members.

    | by | groups are drawn |
    |---|---|
    | 'recency' | the newest first, as Lifo draws |
    | 'mean' | with probability mass / total, with replacement; mass = mean ** priority_exponent |
    | 'variance' | the same with the variance over all members |

    A group whose mean (variance) is not above 0 is never drawn. If all members have the same value, the variance is 0:
    such a group has no advantage, and so no gradient, in GRPO and RLOO. If no group has a mass, a draw waits as if
    there were no group.

    Args:
        by: 'recency', 'mean' or 'variance'.
        of: column whose values count: one float of kind 'episode', or of kind 'step', which is summed over the member's
            rows. A late column is waited for, because a group is published when all of its rows are filled. The value
            is taken once, at that moment.
        priority_exponent: exponent of the mean or variance, >= 0. With 0 all groups with a mass are equally likely.

    update_priorities gives a group another priority; with 'recency' it raises NoPriorities.

    Cost: at publication a look at each row of the group, or at one row of each member for kind 'episode'.

    Raises:
        InvalidConfig: an argument has another type or value. The table checks the column.
    """

    one_table_only: ClassVar[None] = None

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
        """0 if groups have priorities. It is never used, because a group has its own priority when it is published."""
        return 0.0 if self.is_weighed else None

    def sampler_config(self) -> dict[str, Any]:
        """The sampler as the core reads it; items_config has the rest."""
        if not self.is_weighed:
            return {"sampler": "lifo"}
        return {"sampler": "prioritized", "priority_exponent": self.priority_exponent or 1.0}

    def items_config(self) -> dict[str, Any]:
        """Adds the source of a group's priority to the configuration of the groups."""
        if not self.is_weighed:
            return {}
        return {"weight": self.by if self.priority_exponent else f"any_{self.by}", "weighed": self.of}

    def check_items(self, items: object) -> None:
        """Raises InvalidConfig if the items are not groups."""
        if not isinstance(items, Episodes) or not items.is_grouped:
            expected = "groups: Episodes(max_length, group_by=, group_size=, max_groups=)"
            raise InvalidConfig("items of an index with PromptGroups", expected, items)

    def check_against(self, spec: StepSpec) -> None:
        """Raises UnknownColumn or SpecError if the spec lacks the column; by recency no column is needed."""
        if not self.is_weighed:
            return
        column = spec.columns.get(self.of)
        if column is None:
            raise UnknownColumn(self.of, tuple(spec.columns))
        is_float = column.dtype in (np.dtype(np.float32), np.dtype(np.float64))
        if column.kind not in ("step", "episode") or not is_float or column.shape:
            raise SpecError(f"column {self.of!r}", "one float of kind 'step' or 'episode'", repr(column))
