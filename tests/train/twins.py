"""Naive twins of the agents: plain autograd, one optimizer of torch's a network, nothing shared with the library.

Each says its algorithm once more, as one would write it down without a thought for speed. They start from an agent's
parameters and are fed the same batches.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import huber_loss


class TwinMLP(nn.Module):
    """Layers `name.0`, `name.1`, ..., with the names of the agent's parameters."""

    def __init__(self, name: str, parameters: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.name = name
        self.layers = nn.ModuleList()
        while (weight := parameters.get(f"{name}.{len(self.layers)}.weight")) is not None:
            layer = nn.Linear(weight.shape[1], weight.shape[0])
            layer.weight.data.copy_(weight)
            layer.bias.data.copy_(parameters[f"{name}.{len(self.layers)}.bias"])
            self.layers.append(layer)

    def forward(self, inputs: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            inputs = torch.relu(layer(inputs))
        return self.layers[-1](inputs)

    def tensors(self) -> dict[str, Tensor]:
        named = {}
        for number, layer in enumerate(self.layers):
            named[f"{self.name}.{number}.weight"] = layer.weight.data
            named[f"{self.name}.{number}.bias"] = layer.bias.data
        return named


def columns_of(batch: Any) -> list[Tensor]:
    names = ("observation", "action", "reward", "discount", "next_observation")
    return [torch.from_numpy(np.asarray(batch[name])) for name in names]


def follow(target: nn.Module, online: nn.Module, rate: float) -> None:
    for theirs, mine in zip(target.parameters(), online.parameters(), strict=True):
        theirs.data.copy_((1.0 - rate) * theirs.data + rate * mine.data)


def gradient_step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class TwinDQN:
    def __init__(self, config: Any, parameters: Mapping[str, Tensor], num_actions: int) -> None:
        self.config = config
        self.online = TwinMLP("q", parameters)
        self.target = copy.deepcopy(self.online)
        self.optimizer = torch.optim.Adam(self.online.parameters(), eps=config.optimizer.adam_epsilon)
        self.num_updates = 0

    def q(self, network: TwinMLP, observation: Tensor) -> Tensor:
        outputs = network(observation)
        if not self.config.network.dueling:
            return outputs
        value, advantage = outputs[:, :1], outputs[:, 1:]
        return value + advantage - advantage.mean(dim=1, keepdim=True)

    def update(self, batch: Any) -> np.ndarray:
        config, options = self.config, self.config.optimizer
        observation, action, reward, discount, following = columns_of(batch)
        weight = torch.from_numpy(batch.weights(0.5)) if config.priority_exponent > 0 else torch.ones_like(reward)
        with torch.no_grad():
            chooser = self.online if config.double else self.target
            best = self.q(chooser, following).argmax(dim=1)
            goal = reward + discount * self.q(self.target, following)[torch.arange(len(best)), best]
        error = goal - self.q(self.online, observation)[torch.arange(len(action)), action]
        loss = (weight * huber_loss(error, torch.zeros_like(error), reduction="none")).mean()
        done = min(1.0, self.num_updates / options.decay_updates)
        for group in self.optimizer.param_groups:
            group["lr"] = options.learning_rate + done * (options.final_learning_rate - options.learning_rate)
        self.optimizer.zero_grad()
        loss.backward()
        if options.max_gradient_norm:
            nn.utils.clip_grad_norm_(self.online.parameters(), options.max_gradient_norm)
        self.optimizer.step()
        self.num_updates += 1
        if self.num_updates % config.target_period == 0:
            follow(self.target, self.online, config.target_rate)
        return error.detach().abs().numpy()
