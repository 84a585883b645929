"""What one item is: which windows over the lanes are sampled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, final, get_args

from relive._checks import finite, integer
from relive.errors import InvalidConfig, SpecError
from relive.spec import StepSpec

__all__ = ["StackPad", "Transitions"]

StackPad = Literal["repeat", "zeros"]
MAX_STACK = 4096  # of a window, in the core


@final
@dataclass(frozen=True)
class Transitions:
    """Items are transitions: a step, its n-step return and the state after it.

    n_step: steps a return spans at most; m = min(n_step, steps to the end of the episode or lane), never across an end.
    gamma in [0, 1]: reward out = sum over k < m of (product over j < k of gamma d_j) r_k, discount out = product over
    k < m of gamma d_k, with d the stored discounts (default 1 - terminated): target = reward + discount * value(next).
    stack: {state column or group: k}: the column and its next_ come as the last k values, [B, k, ...], newest last.
    stack_pad: what stands before the episode's first value: 'repeat' it, or 'zeros'.
    Raises InvalidConfig; the table checks the columns it names.
    """

    n_step: int = 1
    gamma: float = 1.0
    stack: Mapping[str, int] = field(default_factory=dict, hash=False)
    stack_pad: StackPad = "repeat"

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_step", integer("n_step", self.n_step, 1, 1024))
        object.__setattr__(self, "gamma", finite("gamma", self.gamma, 0.0, 1.0))
        if not isinstance(self.stack, Mapping):
            raise InvalidConfig("stack", "a dict {state column: frames}", self.stack)
        for name in self.stack:
            if not isinstance(name, str):
                raise InvalidConfig("stack", "a dict {state column: frames}", self.stack)
        stack = {str(name): integer(f"stack of {name!r}", frames, 1, MAX_STACK) for name, frames in self.stack.items()}
        object.__setattr__(self, "stack", stack)
        if not isinstance(self.stack_pad, str) or self.stack_pad not in get_args(StackPad):
            raise InvalidConfig("stack_pad", "'repeat' or 'zeros'", self.stack_pad)

    @property
    def kept_back(self) -> int:
        """Steps of one lane, in a long episode, that are stored and that no item begins at.

        Its oldest (stack - 1), whose stacks reach further back, and its newest (n_step - 1), whose windows are open.
        """
        return max(self.stack.values(), default=1) - 1 + self.n_step - 1

    def check_against(self, spec: StepSpec) -> None:
        """Raises SpecError or UnknownColumn where the spec lacks what these items need."""
        spec.expand_stack(self.stack)
        reward = spec.columns.get("reward")
        if self.n_step > 1 and reward is not None and (reward.kind != "step" or reward.dtype.kind != "f"):
            raise SpecError("column 'reward'", f"a float step column, as n_step={self.n_step} sums it", repr(reward))

    def core_config(self, spec: StepSpec) -> dict[str, Any]:
        """The items as the core reads them."""
        return {
            "items": "transitions",
            "n_step": self.n_step,
            "gamma": self.gamma,
            "stack": spec.expand_stack(self.stack),
            "stack_pad": self.stack_pad,
        }
