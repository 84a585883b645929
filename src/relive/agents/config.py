"""The options that an agent is made from: frozen values that check themselves. The module imports no framework."""

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
    """Raises InvalidConfig unless `condition` is true."""
    if not condition:
        raise InvalidConfig(what=what, expected=expected, got=repr(got))


@dataclass(frozen=True)
class AgentConfig(ABC):
    """The options of one kind of agent: a frozen dataclass with fields of bool, int, float, str, Literal, and tuples.

    Two class variables describe the agent:

    - name: the agent's name in the registry.
    - presets: {pattern of environment ids: {path of an option of a run: value}}. All patterns that match an environment
      are applied, in order. Paths are those of `--set`, such as "agent.gamma" or "replay.capacity".

    Args:
        batch_size: items in a batch. Default: 256.

    Raises:
        InvalidConfig: an option is out of its range.
    """

    name: ClassVar[str]
    presets: ClassVar[Mapping[str, Settings]] = {}

    batch_size: int = 256

    def __post_init__(self) -> None:
        require(1 <= self.batch_size <= _MOST_ITEMS, "batch_size", f"in [1, {_MOST_ITEMS}]", self.batch_size)

    @abstractmethod
    def make(self, spaces: Spaces, *, seed: int, device: str) -> Agent:
        """Makes the agent.

        Args:
            spaces: the spaces of the environment.
            seed: seed of all its random numbers.
            device: name of the device, as torch has it.

        Raises:
            InvalidConfig: the agent cannot work with these spaces, or torch does not know the device.
        """


@dataclass(frozen=True)
class TransitionsConfig(AgentConfig):
    """The options of an agent that learns from n-step transitions.

    p      = |error|^priority_exponent / its sum over all N items
    weight = (N p)^-importance_beta / the largest in the batch

    Args:
        batch_size: items in a batch. Default: 256.
        gamma: the discount of one step, in (0, 1]. Default: 0.99.
        n_step: steps that a return spans. Default: 1.
        priority_exponent: in [0, 1]. 0 draws uniformly. Default: 0.
        importance_beta: exponent of the importance weights, in [0, 1]. Default: 0.5.
        target_rate: how far a target network moves towards the learnt network in one step, in (0, 1]. Default: 0.005.

    Raises:
        InvalidConfig: an option is out of its range.
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
        """Returns an index of transitions with these options, and with the stacks of the spaces.

        Args:
            spaces: the spaces of the environment.
            limiter: the limiter of the index.
        """
        items = Transitions(n_step=self.n_step, gamma=self.gamma, stack=spaces.stack, stack_pad="zeros")
        sampler = Prioritized(priority_exponent=self.priority_exponent) if self.prioritized else Uniform()
        return Index(items, sampler, limiter)


@dataclass(frozen=True)
class LinearSchedule:
    """A number that goes linearly from `start` to `end` over `duration`, and is `end` after that."""

    start: float
    end: float
    duration: int

    def at(self, when: int) -> float:
        """Returns the number after `when` steps or updates."""
        return self.start + min(1.0, when / self.duration) * (self.end - self.start)


@dataclass(frozen=True)
class OptimizerConfig:
    """The options of Adam, with a learning rate that falls linearly and a clip of the gradient's norm.

    Args:
        learning_rate: the rate at the first update. Default: 3e-4.
        final_learning_rate: the rate after `decay_updates`. Default: 3e-4.
        decay_updates: updates until `final_learning_rate`. Default: 100,000.
        adam_epsilon: epsilon of Adam. Default: 1e-8.
        max_gradient_norm: a longer gradient is shortened to this norm. 0 clips nothing. Default: 0.

    Raises:
        InvalidConfig: an option is out of its range.
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
        """Returns the learning rate of update number `num_updates`, counted from 0."""
        return LinearSchedule(self.learning_rate, self.final_learning_rate, self.decay_updates).at(num_updates)


Precision = Literal["float32", "bfloat16"]


def check_precision(precision: str) -> None:
    """Raises InvalidConfig unless this is the name of a precision."""
    require(precision in get_args(Precision), "precision", "'float32' or 'bfloat16'", precision)


def check_hidden(hidden: tuple[int, ...]) -> None:
    """Raises InvalidConfig unless these are the widths of at least one hidden layer."""
    fit = len(hidden) >= 1 and all(1 <= width <= _WIDEST for width in hidden)
    require(fit, "hidden", f"at least one width, each in [1, {_WIDEST}]", hidden)
