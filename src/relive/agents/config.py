"""What an agent is: frozen values that check themselves. No framework is imported here: actors read them too."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from relive.errors import InvalidConfig


def require(condition: bool, what: str, expected: str, got: object) -> None:
    """Raises InvalidConfig unless `condition` holds."""
    if not condition:
        raise InvalidConfig(what=what, expected=expected, got=repr(got))


@dataclass(frozen=True)
class NetworkConfig:
    """The dueling network: `mlp` for vectors, `conv` for stacks of 84 x 84 frames."""

    kind: Literal["mlp", "conv"] = "mlp"
    hidden_size: int = 128

    def __post_init__(self) -> None:
        require(self.kind in ("mlp", "conv"), "network kind", "'mlp' or 'conv'", self.kind)
        require(self.hidden_size >= 1, "hidden_size", ">= 1", self.hidden_size)


@dataclass(frozen=True)
class OptimizerConfig:
    """Adam with a linear decay of the learning rate over `decay_updates`, and a clip of the gradient's norm."""

    learning_rate: float = 4e-3
    final_learning_rate: float = 2e-4
    decay_updates: int = 8_000
    adam_epsilon: float = 1e-5
    max_gradient_norm: float = 10.0

    def __post_init__(self) -> None:
        require(self.learning_rate > 0, "learning_rate", "> 0", self.learning_rate)
        require(
            0 < self.final_learning_rate <= self.learning_rate,
            "final_learning_rate",
            "in (0, learning_rate]",
            self.final_learning_rate,
        )
        require(self.decay_updates >= 1, "decay_updates", ">= 1", self.decay_updates)

    def learning_rate_at(self, num_updates: int) -> float:
        """The learning rate of update number `num_updates` (counted from 0)."""
        done = min(1.0, num_updates / self.decay_updates)
        return self.learning_rate + done * (self.final_learning_rate - self.learning_rate)


@dataclass(frozen=True)
class DQNConfig:
    """Double, dueling, n-step, prioritized DQN."""

    network: NetworkConfig = field(default_factory=NetworkConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    gamma: float = 0.99
    n_step: int = 3
    batch_size: int = 128
    target_rate: float = 0.01
    importance_beta: float = 0.5

    def __post_init__(self) -> None:
        require(0 < self.gamma <= 1, "gamma", "in (0, 1]", self.gamma)
        require(self.n_step >= 1, "n_step", ">= 1", self.n_step)
        require(self.batch_size >= 1, "batch_size", ">= 1", self.batch_size)
        require(0 < self.target_rate <= 1, "target_rate", "in (0, 1]", self.target_rate)
        require(0 <= self.importance_beta <= 1, "importance_beta", "in [0, 1]", self.importance_beta)
