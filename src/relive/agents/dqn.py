"""DQN: double, dueling, n-step, prioritized; each of the four can be left out.

  target  y  = R + D * Q'(s', argmax_a Q(s', a))           van Hasselt et al. 2016 (double), Sutton 1988 (n-step)
             R + D * max_a Q'(s', a)                       Mnih et al. 2015, where double = False
  error   e  = y - Q(s, a)                                 R, D: the n-step return and discount the table gives;
                                                           D is 0 where the episode terminated, not where it was cut
  loss       = mean_i w_i * huber(e_i)                     Schaul et al. 2016: w_i = (N p_i)^-beta / max_j w_j
  network    Q(s, a) = V(s) + A(s, a) - mean_a A(s, a)     Wang et al. 2016 (dueling)

  gradient   dL/dQ(s_i, a_i) = -w_i * clip(e_i, -1, 1) / B, handed to the network's backward

Deviations from the papers: beta is constant; Adam in place of RMSprop; the gradient's norm is clipped; the target
network is a moving average (`target_period` and `target_rate` 1 give the hard copies of Mnih et al.).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from relive import Index, MinSize, SamplesPerInsert, StepSpec
from relive.agents.agent import Items, Policy, Replicas, Spaces
from relive.agents.batches import fill, load_state, priorities_of, require_box, require_discrete, state_of
from relive.agents.config import LinearSchedule, OptimizerConfig, Settings, TransitionsConfig, check_hidden, require
from relive.agents.conv import ConvNetwork
from relive.agents.mlp import MLP, Adam, FlatParameters, Network, device_of
from relive.agents.policies import EpsilonGreedy


@dataclass(frozen=True)
class QNetworkConfig:
    """The network: `mlp` for vectors, `conv` for stacks of 84 x 84 frames; `hidden` are the widths of its layers."""

    kind: Literal["mlp", "conv"] = "mlp"
    hidden: tuple[int, ...] = (128, 128)
    dueling: bool = True

    def __post_init__(self) -> None:
        require(self.kind in ("mlp", "conv"), "network kind", "'mlp' or 'conv'", self.kind)
        check_hidden(self.hidden)


@final
@dataclass(frozen=True)
class DQNConfig(TransitionsConfig):
    """Double, dueling, n-step, prioritized DQN.

    Epsilon falls linearly from `epsilon_start` to `epsilon_end` over `epsilon_steps` environment steps of all actors.
    The target network goes `target_rate` towards the learnt one after every `target_period` updates.
    """

    name: ClassVar[str] = "dqn"

    batch_size: int = 128
    n_step: int = 3
    priority_exponent: float = 0.6
    target_rate: float = 0.01
    target_period: int = 1
    double: bool = True
    network: QNetworkConfig = field(default_factory=QNetworkConfig)
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
        # The cart drifts off slowly: at 0.99 the fall lies too far ahead to be seen in time. 500 is the most there
        # is: none of the hundred confirming episodes may fall before its last tenth.
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

    def make(self, spaces: Spaces, *, seed: int, device: str) -> DQN:
        """See AgentConfig. Actions are Discrete, observations a Box."""
        return DQN(self, spaces, seed=seed, device=device)


def action_values(outputs: Tensor, *, dueling: bool) -> Tensor:
    """Q values [B, n] of a network's outputs: these themselves, or of V and A beside each other, [B, 1 + n]."""
    if not dueling:
        return outputs
    advantage = outputs[:, 1:]
    return advantage - advantage.mean(dim=1, keepdim=True) + outputs[:, :1]


def outputs_gradient(chosen: Tensor, actions: Tensor, num_actions: int, *, dueling: bool, out: Tensor) -> None:
    """Writes the outputs' gradient [B, n] of a loss that depends on Q(s, a) alone, dL/dQ(s, a) being chosen [B, 1]."""
    if dueling:
        out[:, :1] = chosen
        out[:, 1:] = chosen * (-1.0 / num_actions)
        out[:, 1:].scatter_add_(1, actions, chosen)
    else:
        out.zero_().scatter_(1, actions, chosen)


@final
class DQN:
    """The learner's state: the learnt and the target network, Adam, the number of updates. An `Agent`."""

    columns = ("observation", "action", "reward", "discount", "next_observation")

    def __init__(self, config: DQNConfig, spaces: Spaces, *, seed: int, device: str) -> None:
        observation = require_box(spaces, config.name)
        self.num_actions = require_discrete(spaces, config.name)
        self.config, self.spaces = config, spaces
        self.device = device_of(device)
        self.num_updates = 0
        self.prefetch = 2 if config.network.kind == "conv" else 0  # large batches: gathered while the last is learnt
        self._dueling = config.network.dueling
        sizes = (*config.network.hidden, self.num_actions + self._dueling)
        if config.network.kind == "conv":
            require(
                len(observation) == 3 and observation[1:] == (84, 84),
                f"observation of {spaces.env_id} for network kind 'conv'",
                "frames (stack, 84, 84)",
                observation,
            )
            shapes = ConvNetwork.shapes("q", observation[0], sizes)
        else:
            shapes = MLP.shapes("q", (spaces.observation_size, *sizes))
        self.online = FlatParameters(shapes, self.device)
        self.online.initialise(torch.Generator().manual_seed(seed))
        self.target = self.online.copy()
        self._optimizer = Adam(
            self.online,
            epsilon=config.optimizer.adam_epsilon,
            max_gradient_norm=config.optimizer.max_gradient_norm,
        )
        self._network = self._network_over(self.online, learns=True)
        self._target_network = self._network_over(self.target, learns=False)
        rows = config.batch_size
        self._observation, self._next_observation = (self._observation_buffer() for _ in range(2))
        self._action = torch.zeros(rows, 1, dtype=torch.int64, device=self.device)
        self._reward, self._discount, self._weight, self._error = (
            torch.ones(rows, 1, device=self.device) for _ in range(4)
        )
        self._gradient = torch.zeros(rows, sizes[-1], device=self.device)
        self._buffers = {
            "observation": self._observation,
            "action": self._action,
            "reward": self._reward,
            "discount": self._discount,
            "next_observation": self._next_observation,
        }

    def _network_over(self, parameters: FlatParameters, *, learns: bool) -> Network:
        if self.config.network.kind == "conv":
            return ConvNetwork(parameters, "q", learns=learns)
        return MLP(parameters, "q", self.config.batch_size)

    def _observation_buffer(self) -> Tensor:
        rows = self.config.batch_size
        if self.config.network.kind == "conv":
            return torch.zeros(rows, *self.spaces.observation_shape, dtype=torch.uint8, device=self.device)
        return torch.zeros(rows, self.spaces.observation_size, device=self.device)

    # ---- what it stores, draws and does ----------------------------------------------------------------------------

    def spec(self) -> StepSpec:
        """See Agent."""
        return self.spaces.spec()

    def index(self, limiter: MinSize | SamplesPerInsert) -> Index:
        """See Agent."""
        return self.config.index(self.spaces, limiter)

    def policy(self) -> Policy:
        """See Agent."""
        config = self.config
        return EpsilonGreedy(
            LinearSchedule(config.epsilon_start, config.epsilon_end, config.epsilon_steps), self._dueling
        )

    # ---- learning --------------------------------------------------------------------------------------------------

    def update(self, batch: Items) -> NDArray[np.float64] | None:
        """See Agent. The target network follows."""
        config = self.config
        self._load(batch)
        with torch.no_grad():
            self._error = self._td_errors()
            chosen = self._error.clamp(-1.0, 1.0).mul_(self._weight).mul_(-1.0 / config.batch_size)
            outputs_gradient(chosen, self._action, self.num_actions, dueling=self._dueling, out=self._gradient)
            self._network.backward(self._gradient)
            self._optimizer.step(config.optimizer.learning_rate_at(self.num_updates))
            self.num_updates += 1
            if self.num_updates % config.target_period == 0:
                self.target.follow(self.online, config.target_rate)
        if not config.prioritized:
            return None
        return priorities_of([self._error])

    def _load(self, batch: Items) -> None:
        fill(batch, self._buffers)
        if self.config.prioritized:
            self._weight.copy_(torch.from_numpy(batch.weights(self.config.importance_beta)).view(self._weight.shape))

    def _td_errors(self) -> Tensor:
        """y - Q(s, a) [B, 1]. The network's last forward is that of Q(s, a), whose gradient is wanted."""
        dueling = self._dueling
        following = action_values(self._target_network.forward(self._next_observation), dueling=dueling)
        if self.config.double:
            mine = action_values(self._network.forward(self._next_observation), dueling=dueling)
            bootstrap = following.gather(1, mine.argmax(dim=1, keepdim=True))
        else:
            bootstrap = following.amax(dim=1, keepdim=True)
        goal = torch.addcmul(self._reward, self._discount, bootstrap)
        values = action_values(self._network.forward(self._observation), dueling=dueling)
        return goal - values.gather(1, self._action)

    def join(self, replicas: Replicas) -> None:
        """See Agent."""
        self._optimizer.combine_by(replicas.combine)

    def metrics(self) -> dict[str, float]:
        """See Agent."""
        if self.num_updates == 0:
            return {}
        huber = torch.nn.functional.huber_loss(self._error, torch.zeros_like(self._error), reduction="none")
        return {"loss": float((self._weight * huber).mean()), "error": float(self._error.abs().mean())}

    # ---- what it hands out -----------------------------------------------------------------------------------------

    def parameters(self) -> dict[str, NDArray[np.float32]]:
        """See Agent: the learnt network."""
        return self.online.on_host()

    def evaluation_parameters(self) -> dict[str, NDArray[np.float32]]:
        """See Agent: the target network, an average over the last updates, which plays steadier than any one."""
        return self.target.on_host()

    def _parts(self) -> dict[str, Any]:
        return {"online": self.online, "target": self.target, "optimizer": self._optimizer}

    def state_dict(self) -> dict[str, Any]:
        """See Agent."""
        return state_of(self._parts(), self.num_updates)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See Agent."""
        self.num_updates = load_state(self._parts(), state)
