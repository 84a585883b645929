"""The parts that agents with values of discrete actions share. The formulas are in the files of the agents.

An agent has a network, a target network, and one update:

  load the batch  ->  _learn(): the algorithm's formulas, which write the gradient  ->  Adam  ->  num_updates + 1
                  ->  the target network follows  ->  priorities, if items have priorities

The agent hands out the network. An actor takes the action with the highest value or, with probability epsilon, a random
action.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from relive import Index, MinSize, SamplesPerInsert, StepSpec
from relive.agents.agent import Exchange, Items, Policy, Replicas, Spaces
from relive.agents.batches import exchange_of, fill, load_state, priorities_of, require_box, require_discrete, state_of
from relive.agents.config import LinearSchedule, OptimizerConfig, Settings, TransitionsConfig, check_hidden, require
from relive.agents.functional import Functional
from relive.agents.mlp import Adam, FlatParameters, Shapes, device_of
from relive.agents.policies import ActionValues, EpsilonGreedy

FRAMES = (84, 84)


@dataclass(frozen=True)
class NetworkConfig:
    """The options of a network of action values.

    Args:
        kind: "mlp" for vectors, "conv" for stacks of 84 x 84 frames. Default: "mlp".
        hidden: widths of the hidden layers; with "conv", of those after the convolutions. Default: (128, 128).

    Raises:
        InvalidConfig: another kind, or no layer, or a width out of range.
    """

    kind: Literal["mlp", "conv"] = "mlp"
    hidden: tuple[int, ...] = (128, 128)

    def __post_init__(self) -> None:
        require(self.kind in ("mlp", "conv"), "network kind", "'mlp' or 'conv'", self.kind)
        check_hidden(self.hidden)


@dataclass(frozen=True)
class ActionValueConfig(TransitionsConfig):
    """The options of an agent with action values: network, target network, optimizer, exploration.

    Args:
        batch_size: items in a batch. Default: 128.
        n_step: steps that a return spans. Default: 3.
        priority_exponent: see TransitionsConfig. Default: 0.6.
        target_rate: how far the target network moves towards the learnt network in one step. Default: 0.01.
        target_period: updates between two steps of the target network. Default: 1.
        double: the learnt network chooses the action, and the target network values it (van Hasselt et al. 2016).
            Default: True.
        network: see NetworkConfig.
        optimizer: see OptimizerConfig.
        epsilon_start: probability of a random action at the first step. Default: 1.
        epsilon_end: the same after `epsilon_steps`; epsilon falls linearly between the two. Default: 0.05.
        epsilon_steps: environment steps of all actors until `epsilon_end`. Default: 10,000.

    Raises:
        InvalidConfig: an option is out of its range.
    """

    batch_size: int = 128
    n_step: int = 3
    priority_exponent: float = 0.6
    target_rate: float = 0.01
    target_period: int = 1
    double: bool = True
    network: NetworkConfig = field(default_factory=NetworkConfig)
    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(
            4e-3, 2e-4, decay_updates=8_000, adam_epsilon=1e-5, max_gradient_norm=10
        )
    )
    epsilon_start: float = 1.0
    epsilon_end: float = 0.05
    epsilon_steps: int = 10_000

    presets: ClassVar[Mapping[str, Settings]] = {
        "*": {"replay.updates_per_step": 0.25},
        # The cart drifts off slowly. With gamma 0.99 the fall is too far ahead for the agent to see in time. 500 is the
        # highest return: none of the hundred confirming episodes may fall before its last tenth.
        "CartPole-v1": {"agent.gamma": 0.995, "evaluation.stop_return": 499.5, "limits.max_minutes": 5.0},
        "ALE/*": {
            "environment.num_envs_per_actor": 4,
            "agent.network.kind": "conv",
            "agent.network.hidden": (512,),
            "agent.optimizer.learning_rate": 1e-4,
            "agent.optimizer.final_learning_rate": 5e-5,
            "agent.optimizer.decay_updates": 1_000_000,
            "agent.optimizer.adam_epsilon": 1.5e-4,
            "agent.batch_size": 32,
            "agent.target_rate": 0.0005,
            "agent.epsilon_end": 0.02,
            "agent.epsilon_steps": 100_000,
            "replay.capacity": 200_000,
            "replay.min_size": 5_000,
            "acting.publish_period": 100,
            "evaluation.period_updates": 2_500,
            "evaluation.num_episodes": 4,
            "evaluation.num_confirm_episodes": 8,
            "evaluation.num_final_episodes": 4,
            "limits.max_steps": 10_000_000,
            "limits.max_minutes": 24 * 60.0,
            "limits.checkpoint_period_s": 120.0,
            "threads": 0,
        },
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.target_period >= 1, "target_period", ">= 1", self.target_period)
        require(
            0 <= self.epsilon_end <= self.epsilon_start <= 1,
            "epsilon",
            "0 <= epsilon_end <= epsilon_start <= 1",
            (self.epsilon_start, self.epsilon_end),
        )
        require(self.epsilon_steps >= 1, "epsilon_steps", ">= 1", self.epsilon_steps)


class ActionValueAgent(ABC):
    """The state of a learner: the learnt network, the target network, and Adam.

    The class is an `Agent` without two parts: its algorithm (`_learn`) and its network (`_shapes`, `_action_values`).
    """

    columns = ("observation", "action", "reward", "discount", "next_observation")
    config: ActionValueConfig

    def __init__(self, config: ActionValueConfig, spaces: Spaces, *, seed: int, device: str) -> None:
        observation = require_box(spaces, config.name)
        self.num_actions = require_discrete(spaces, config.name)
        self.config, self.spaces = config, spaces
        self.device = device_of(device)
        self.num_updates = 0
        self.sees_images = config.network.kind == "conv"
        self.prefetch = 2 if self.sees_images else 0  # large batches are gathered during the update before
        if self.sees_images:
            require(
                len(observation) == 3 and observation[1:] == FRAMES,
                f"observation of {spaces.env_id} for network kind 'conv'",
                "frames (stack, 84, 84)",
                observation,
            )
        self.online = FlatParameters(self._shapes(), self.device)
        self.online.initialise(torch.Generator().manual_seed(seed))
        self.target = self.online.copy()
        self.optimizer = Adam(
            self.online,
            epsilon=config.optimizer.adam_epsilon,
            max_gradient_norm=config.optimizer.max_gradient_norm,
        )
        self._make_buffers()

    def _make_buffers(self) -> None:
        """Makes observation, next_observation [B, ...] and action, reward, discount, weight, error [B, 1]."""
        rows = self.config.batch_size
        self._observation, self._next_observation = (self._observation_buffer() for _ in range(2))
        self._action = torch.zeros(rows, 1, dtype=torch.int64, device=self.device)
        self._reward, self._discount, self._weight, self._error = (
            torch.ones(rows, 1, device=self.device) for _ in range(4)
        )
        self._buffers = {
            "observation": self._observation,
            "action": self._action,
            "reward": self._reward,
            "discount": self._discount,
            "next_observation": self._next_observation,
        }

    def _observation_buffer(self) -> Tensor:
        rows = self.config.batch_size
        if self.sees_images:
            return torch.zeros(rows, *self.spaces.observation_shape, dtype=torch.uint8, device=self.device)
        return torch.zeros(rows, self.spaces.observation_size, device=self.device)

    # ---- the algorithm's part --------------------------------------------------------------------------------------

    @abstractmethod
    def _shapes(self) -> Shapes:
        """Names and shapes of the network's parameters."""

    @abstractmethod
    def _action_values(self) -> ActionValues:
        """The function by which an actor values actions, on numpy."""

    @abstractmethod
    def _learn(self) -> Tensor:
        """Writes the gradient for the batch in the buffers.

        Returns errors [B, 1]. The absolute value of an item's error is its priority.
        """

    # ---- steps, items, actions -------------------------------------------------------------------------------------

    def spec(self) -> StepSpec:
        """See Agent."""
        return self.spaces.spec()

    def index(self, limiter: MinSize | SamplesPerInsert) -> Index:
        """See Agent."""
        return self.config.index(self.spaces, limiter)

    def policy(self) -> Policy:
        """See Agent."""
        config = self.config
        epsilon = LinearSchedule(config.epsilon_start, config.epsilon_end, config.epsilon_steps)
        return EpsilonGreedy(epsilon, self._action_values(), np.dtype(self.spaces.action.dtype).name)

    # ---- learning --------------------------------------------------------------------------------------------------

    def update(self, batch: Items) -> NDArray[np.float64] | None:
        """See Agent. The target network takes its step too."""
        self.load(batch)
        error = self._learn()
        with torch.no_grad():
            self.optimizer.step(self.config.optimizer.learning_rate_at(self.num_updates))
            return self.finished(error)

    def finished(self, error: Tensor) -> NDArray[np.float64] | None:
        """Ends an update after the optimizer's step: the target network's step, and the count of updates.

        Args:
            error: errors [B, 1] of the items.

        Returns:
            New priorities float64 [B], or None if the items have no priorities.
        """
        self._error = error
        self._count_update()
        return priorities_of([error]) if self.config.prioritized else None

    def functional(self) -> Functional | None:
        """See Agent. None unless the agent overrides it."""
        return None

    def batch_tensors(self) -> tuple[Tensor, ...]:
        """The tensors that `load` fills: observation, action, reward, discount, next_observation, weight."""
        return (*self._buffers.values(), self._weight)

    def apply(self, gradients: Sequence[Any]) -> None:
        """See Agent. The target network takes its step too."""
        (gradient,) = gradients
        with torch.no_grad():
            self.optimizer.step_along(gradient, self.config.optimizer.learning_rate_at(self.num_updates))
            self._count_update()

    def _count_update(self) -> None:
        self.num_updates += 1
        if self.num_updates % self.config.target_period == 0:
            self.target.follow(self.online, self.config.target_rate)

    def join(self, replicas: Replicas) -> None:
        """See Agent."""
        self.optimizer.combine_by(replicas.combine)

    def load(self, batch: Items) -> None:
        """Copies a batch of the table into the agent's buffers.

        Raises:
            InvalidConfig: the batch has another number of items, or items of another size.
        """
        fill(batch, self._buffers)
        if self.config.prioritized:
            self._weight.copy_(torch.from_numpy(batch.weights(self.config.importance_beta)).view(self._weight.shape))

    @abstractmethod
    def metrics(self) -> dict[str, float]:
        """See Agent."""

    # ---- parameters and state --------------------------------------------------------------------------------------

    def parameters(self) -> dict[str, NDArray[np.float32]]:
        """See Agent. The parameters are those of the learnt network."""
        return self.online.on_host()

    def evaluation_parameters(self) -> dict[str, NDArray[np.float32]]:
        """See Agent. The parameters are those of the target network.

        It is an average over the last updates, and plays more steadily than the network after any one update.
        """
        return self.target.on_host()

    def _parts(self) -> dict[str, Any]:
        return {"online": self.online, "target": self.target, "optimizer": self.optimizer, **self._own_parts()}

    def _own_parts(self) -> Mapping[str, Any]:
        """The parts that a checkpoint keeps in addition to the networks and the optimizer."""
        return {}

    def exchange(self) -> Exchange:
        """See Agent."""
        return exchange_of(self._parts())

    def state_dict(self) -> dict[str, Any]:
        """See Agent."""
        return state_of(self._parts(), self.num_updates)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See Agent."""
        self.num_updates = load_state(self._parts(), state)
