"""What an agent is made from: frozen values that check themselves. No framework is imported here."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from relive import Index, MinSize, Prioritized, SamplesPerInsert, Transitions, Uniform
from relive.agents.agent import Agent, Spaces
from relive.errors import InvalidConfig

Settings = Mapping[str, object]
_MOST_ITEMS = 2**20
_WIDEST = 2**16


def require(condition: bool, what: str, expected: str, got: object) -> None:
    """Raises InvalidConfig unless `condition` holds."""
    if not condition:
        raise InvalidConfig(what=what, expected=expected, got=repr(got))


@dataclass(frozen=True)
class AgentConfig(ABC):
    """The options of one kind of agent: a frozen dataclass whose fields are bool, int, float, str, Literal, or tuples.

    name: as the registry has it. presets: {pattern of environment ids: {path of an option of a run: value}}, of which
    all that match are applied in order; paths are those of `--set`, such as "agent.gamma" or "replay.capacity".
    """

    name: ClassVar[str]
    presets: ClassVar[Mapping[str, Settings]] = {}

    batch_size: int = 256

    def __post_init__(self) -> None:
        require(1 <= self.batch_size <= _MOST_ITEMS, "batch_size", f"in [1, {_MOST_ITEMS}]", self.batch_size)

    @abstractmethod
    def make(self, spaces: Spaces, *, seed: int, device: str) -> Agent:
        """The agent. Raises InvalidConfig for spaces that it cannot take, and for a device that torch does not know."""


@dataclass(frozen=True)
class TransitionsConfig(AgentConfig):
    """An agent that learns from n-step transitions.

    gamma: the discount. n_step: steps that a return spans. priority_exponent: 0 draws uniformly, otherwise in
    proportion to |error| ** priority_exponent, corrected by importance weights (N p) ** -importance_beta.
    target_rate: how far a target network goes towards the learnt one with each of its steps.
    """

    gamma: float = 0.99
    n_step: int = 1
    priority_exponent: float = 0.0
    importance_beta: float = 0.5
    target_rate: float = 0.005

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.gamma <= 1, "gamma", "in (0, 1]", self.gamma)
        Transitions(n_step=self.n_step)  # checks it
        require(0 <= self.priority_exponent <= 1, "priority_exponent", "in [0, 1]", self.priority_exponent)
        require(0 <= self.importance_beta <= 1, "importance_beta", "in [0, 1]", self.importance_beta)
        require(0 < self.target_rate <= 1, "target_rate", "in (0, 1]", self.target_rate)

    @property
    def prioritized(self) -> bool:
        """Whether items are drawn by their priorities."""
        return self.priority_exponent > 0

    def index(self, spaces: Spaces, limiter: MinSize | SamplesPerInsert) -> Index:
        """Transitions as the options say, with the stacks that the spaces have."""
        items = Transitions(n_step=self.n_step, gamma=self.gamma, stack=spaces.stack, stack_pad="zeros")
        sampler = Prioritized(priority_exponent=self.priority_exponent) if self.prioritized else Uniform()
        return Index(items, sampler, limiter)


@dataclass(frozen=True)
class LinearSchedule:
    """From `start` to `end` over `duration`, then `end`."""

    start: float
    end: float
    duration: int

    def at(self, when: int) -> float:
        """The value after `when`."""
        return self.start + min(1.0, when / self.duration) * (self.end - self.start)


@dataclass(frozen=True)
class OptimizerConfig:
    """Adam with a linear decay of the learning rate over `decay_updates`, and a clip of the gradient's norm.

    max_gradient_norm: 0 clips nothing.
    """

    learning_rate: float = 3e-4
    final_learning_rate: float = 3e-4
    decay_updates: int = 100_000
    adam_epsilon: float = 1e-8
    max_gradient_norm: float = 0.0

    def __post_init__(self) -> None:
        require(0 < self.learning_rate < math.inf, "learning_rate", "> 0, finite", self.learning_rate)
        require(
            0 < self.final_learning_rate <= self.learning_rate,
            "final_learning_rate",
            "in (0, learning_rate]",
            self.final_learning_rate,
        )
        require(self.decay_updates >= 1, "decay_updates", ">= 1", self.decay_updates)
        require(self.adam_epsilon > 0, "adam_epsilon", "> 0", self.adam_epsilon)
        require(self.max_gradient_norm >= 0, "max_gradient_norm", ">= 0", self.max_gradient_norm)

    def learning_rate_at(self, num_updates: int) -> float:
        """The learning rate of update number `num_updates` (counted from 0)."""
        return LinearSchedule(self.learning_rate, self.final_learning_rate, self.decay_updates).at(num_updates)


Precision = Literal["float32", "bfloat16"]


def check_precision(precision: str) -> None:
    """Raises InvalidConfig for another one than there is."""
    require(precision in get_args(Precision), "precision", "'float32' or 'bfloat16'", precision)


def check_hidden(hidden: tuple[int, ...]) -> None:
    """Raises InvalidConfig unless these are the widths of at least one hidden layer."""
    fit = len(hidden) >= 1 and all(1 <= width <= _WIDEST for width in hidden)
    require(fit, "hidden", f"at least one width, each in [1, {_WIDEST}]", hidden)
