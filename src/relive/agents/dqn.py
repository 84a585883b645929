"""DQN: double, dueling, n-step, prioritized; networks, loss and update.

  target  y  = R + D * Q'(s', argmax_a Q(s', a))           van Hasselt et al. 2016 (double), Sutton 1988 (n-step)
  error   e  = y - Q(s, a)                                  R, D: the n-step return and discount the table gives
  loss       = mean_i w_i * huber(e_i)                      Schaul et al. 2016: w_i = (N p_i)^-beta / max_j w_j
  network    Q(s, a) = V(s) + A(s, a) - mean_a A(s, a)      Wang et al. 2016 (dueling)

Deviations from the papers: beta is constant; Adam in place of RMSprop; the gradient's norm is clipped.
Actors need no torch: `relive.agents.inference` runs the same networks on numpy.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from relive.agents.config import DQNConfig, NetworkConfig
from relive.errors import InvalidConfig


def _linear(num_inputs: int, num_outputs: int, generator: torch.Generator) -> nn.Linear:
    layer = nn.Linear(num_inputs, num_outputs, device="meta").to_empty(device="cpu")
    _initialise(layer, num_inputs, generator)
    return layer


def _convolution(num_inputs: int, num_outputs: int, size: int, stride: int, generator: torch.Generator) -> nn.Conv2d:
    layer = nn.Conv2d(num_inputs, num_outputs, size, stride, device="meta").to_empty(device="cpu")
    _initialise(layer, num_inputs * size * size, generator)
    return layer


def _initialise(layer: nn.Module, fan_in: int, generator: torch.Generator) -> None:
    """torch's own bounds, drawn from `generator`: the layers were made without touching the global one."""
    bound = 1.0 / math.sqrt(fan_in)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.uniform_(-bound, bound, generator=generator)


@final
class DuelingMLP(nn.Module):
    """Q values of float vectors: [B, ...] -> [B, num_actions]."""

    def __init__(self, observation_size: int, num_actions: int, hidden_size: int, generator: torch.Generator) -> None:
        super().__init__()
        self.hidden1 = _linear(observation_size, hidden_size, generator)
        self.hidden2 = _linear(hidden_size, hidden_size, generator)
        self.value = _linear(hidden_size, 1, generator)
        self.advantage = _linear(hidden_size, num_actions, generator)

    def forward(self, observations: Tensor) -> Tensor:
        hidden = torch.relu(self.hidden1(observations.flatten(1)))
        hidden = torch.relu(self.hidden2(hidden))
        return _dueling(self.value(hidden), self.advantage(hidden))


@final
class DuelingConv(nn.Module):
    """Q values of frame stacks: uint8 [B, stack, 84, 84] -> [B, num_actions] (the network of Mnih et al. 2015)."""

    def __init__(self, stack: int, num_actions: int, hidden_size: int, generator: torch.Generator) -> None:
        super().__init__()
        self.conv1 = _convolution(stack, 32, 8, 4, generator)
        self.conv2 = _convolution(32, 64, 4, 2, generator)
        self.conv3 = _convolution(64, 64, 3, 1, generator)
        self.hidden = _linear(64 * 7 * 7, hidden_size, generator)
        self.value = _linear(hidden_size, 1, generator)
        self.advantage = _linear(hidden_size, num_actions, generator)

    def forward(self, observations: Tensor) -> Tensor:
        planes = observations.to(torch.float32) * (1.0 / 255.0)
        planes = torch.relu(self.conv1(planes))
        planes = torch.relu(self.conv2(planes))
        planes = torch.relu(self.conv3(planes))
        hidden = torch.relu(self.hidden(planes.flatten(1)))
        return _dueling(self.value(hidden), self.advantage(hidden))


def _dueling(value: Tensor, advantage: Tensor) -> Tensor:
    return value + advantage - advantage.mean(dim=1, keepdim=True)


def build_network(
    config: NetworkConfig, observation_shape: tuple[int, ...], num_actions: int, generator: torch.Generator
) -> nn.Module:
    """The network for observations of `observation_shape` (without the batch axis), weights from `generator`."""
    if config.kind == "conv":
        return DuelingConv(observation_shape[0], num_actions, config.hidden_size, generator)
    return DuelingMLP(math.prod(observation_shape), num_actions, config.hidden_size, generator)


@dataclass(frozen=True)
class Experience:
    """A batch as tensors: observation, next_observation [B, ...]; action int64 [B]; the rest float32 [B]."""

    observation: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    next_observation: Tensor
    weight: Tensor


def td_errors(online: nn.Module, target: nn.Module, batch: Experience) -> Tensor:
    """y - Q(s, a) of each item, float32 [B]; the gradient flows through Q(s, a) only."""
    chosen: Tensor = online(batch.observation).gather(1, batch.action.unsqueeze(1)).squeeze(1)
    with torch.no_grad():
        best = online(batch.next_observation).argmax(dim=1, keepdim=True)
        bootstrap: Tensor = target(batch.next_observation).gather(1, best).squeeze(1)
        goal = batch.reward + batch.discount * bootstrap
    return goal - chosen


def weighted_huber(errors: Tensor, weights: Tensor) -> Tensor:
    """mean_i w_i * huber(e_i), the knee at 1."""
    return (weights * nn.functional.huber_loss(errors, torch.zeros_like(errors), reduction="none")).mean()


@dataclass(frozen=True)
class Update:
    """What one update tells: |e| of each item as the new priorities float64 [B], and the loss (a tensor: reading it
    as a number waits for the device)."""

    priorities: NDArray[np.float64]
    loss: Tensor


@final
class DQNLearner:
    """The learner's state: online and target network, optimizer, number of updates. One thread at a time."""

    def __init__(
        self, config: DQNConfig, observation_shape: tuple[int, ...], num_actions: int, *, seed: int, device: str
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.config = config
        try:
            self.device = torch.device(device)
        except (RuntimeError, TypeError) as error:
            raise InvalidConfig("device", "one that torch knows, such as 'cpu' or 'cuda:0'", device) from error
        self.online = build_network(config.network, observation_shape, num_actions, generator).to(self.device)
        self.target = build_network(config.network, observation_shape, num_actions, generator).to(self.device)
        self.target.load_state_dict(self.online.state_dict())
        self.target.requires_grad_(False)
        optimizer = config.optimizer
        self.optimizer = torch.optim.Adam(
            self.online.parameters(), lr=optimizer.learning_rate, eps=optimizer.adam_epsilon, fused=True
        )
        self._parameter_pairs = list(zip(self.target.parameters(), self.online.parameters(), strict=True))
        self.num_updates = 0

    def update(self, batch: Experience) -> Update:
        """One gradient step; the target network follows by `target_rate`."""
        errors = td_errors(self.online, self.target, batch)
        loss = weighted_huber(errors, batch.weight)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.online.parameters(), self.config.optimizer.max_gradient_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.optimizer.learning_rate_at(self.num_updates)
        self.optimizer.step()
        self.num_updates += 1
        with torch.no_grad():
            for target, online in self._parameter_pairs:
                target.lerp_(online, self.config.target_rate)
        priorities = errors.detach().abs().to("cpu", torch.float64).numpy() + 1e-6
        return Update(priorities, loss.detach())

    def parameters(self) -> dict[str, NDArray[np.float32]]:
        """The online network's parameters by name, copied to host memory: what actors act with."""
        return _host_parameters(self.online)

    def smoothed_parameters(self) -> dict[str, NDArray[np.float32]]:
        """The target network's: an average over the last 1 / target_rate updates, which plays steadier than any one."""
        return _host_parameters(self.target)

    def state_dict(self) -> dict[str, Any]:
        """Everything a checkpoint must hold for learning to go on as if never interrupted."""
        return {
            "online": self.online.state_dict(),
            "target": self.target.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "num_updates": self.num_updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` gave."""
        self.online.load_state_dict(state["online"])
        self.target.load_state_dict(state["target"])
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))  # it would share the tensors
        self.num_updates = int(state["num_updates"])


def _host_parameters(network: nn.Module) -> dict[str, NDArray[np.float32]]:
    return {
        name: value.detach().to("cpu", torch.float32).numpy().copy() for name, value in network.state_dict().items()
    }
