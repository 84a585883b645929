"""Naive twins of the agents: plain autograd, one optimizer of torch's a network, nothing shared with the library.

Each says its algorithm once more, as one would write it down without a thought for speed. They start from an agent's
parameters and are fed the same batches.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
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


def adam(parameters: Iterable[Tensor], options: Any) -> torch.optim.Adam:
    return torch.optim.Adam(parameters, eps=options.adam_epsilon)


def gradient_step(optimizer: torch.optim.Optimizer, loss: Tensor, options: Any, num_updates: int) -> None:
    """With the learning rate on its line from first to last, and the gradient's norm clipped."""
    done = min(1.0, num_updates / options.decay_updates)
    (group,) = optimizer.param_groups
    group["lr"] = options.learning_rate + done * (options.final_learning_rate - options.learning_rate)
    optimizer.zero_grad()
    loss.backward()
    if options.max_gradient_norm:
        nn.utils.clip_grad_norm_(group["params"], options.max_gradient_norm)
    optimizer.step()


def weights_of(batch: Any, config: Any) -> Tensor:
    if config.priority_exponent == 0:
        return torch.ones(batch.num_items)
    return torch.from_numpy(batch.weights(config.importance_beta))


class TwinDQN:
    def __init__(self, config: Any, agent: Any) -> None:
        self.config = config
        state = agent.state_dict()
        self.online, self.target = TwinMLP("q", state["online"]), TwinMLP("q", state["target"])
        self.optimizer = adam(self.online.parameters(), config.optimizer)
        self.num_updates = 0

    def q(self, network: TwinMLP, observation: Tensor) -> Tensor:
        outputs = network(observation)
        if not self.config.network.dueling:
            return outputs
        value, advantage = outputs[:, :1], outputs[:, 1:]
        return value + advantage - advantage.mean(dim=1, keepdim=True)

    def update(self, batch: Any) -> np.ndarray:
        config = self.config
        observation, action, reward, discount, following = columns_of(batch)
        with torch.no_grad():
            chooser = self.online if config.double else self.target
            best = self.q(chooser, following).argmax(dim=1)
            goal = reward + discount * self.q(self.target, following)[torch.arange(len(best)), best]
        error = goal - self.q(self.online, observation)[torch.arange(len(action)), action]
        loss = (weights_of(batch, config) * huber_loss(error, torch.zeros_like(error), reduction="none")).mean()
        gradient_step(self.optimizer, loss, config.optimizer, self.num_updates)
        self.num_updates += 1
        if self.num_updates % config.target_period == 0:
            follow(self.target, self.online, config.target_rate)
        return error.detach().abs().numpy()

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        return {"online": self.online.tensors(), "target": self.target.tensors()}


class TwinIQN:
    """One fraction at a time, one pair of fractions at a time."""

    def __init__(self, config: Any, agent: Any) -> None:
        self.config = config
        state = agent.state_dict()
        self.online, self.target = (
            nn.ModuleDict({name: TwinMLP(name, state[part]) for name in ("psi", "phi", "q")})
            for part in ("online", "target")
        )
        self.optimizer = adam(self.online.parameters(), config.optimizer)
        self.generator = agent._generator.clone_state()
        self.num_updates = 0

    def returns(self, networks: nn.ModuleDict, state: Tensor, fraction: Tensor) -> Tensor:
        """[B, num_actions] of states [B, S], each at its own fraction [B]."""
        waves = [torch.cos(np.pi * i * fraction) for i in range(self.config.network.num_cosines)]
        embedding = torch.relu(networks["phi"](torch.stack(waves, dim=1)))
        return networks["q"](torch.relu(networks["psi"](state)) * embedding)

    def best(self, networks: nn.ModuleDict, state: Tensor) -> Tensor:
        number, total = self.config.num_greedy_quantiles, 0.0
        for k in range(number):
            total += self.returns(networks, state, torch.full((len(state),), self.config.cvar * (k + 0.5) / number))
        return total.argmax(dim=1)

    def update(self, batch: Any) -> np.ndarray:
        config, kappa = self.config, self.config.kappa
        observation, action, reward, discount, following = columns_of(batch)
        rows = torch.arange(len(action))
        mine_at = torch.rand(len(action), config.num_quantiles, generator=self.generator)
        theirs_at = torch.rand(len(action), config.num_target_quantiles, generator=self.generator)
        with torch.no_grad():
            best = self.best(self.online if config.double else self.target, following)
        item_loss = torch.zeros(len(action))
        for i in range(config.num_quantiles):
            mine = self.returns(self.online, observation, mine_at[:, i])[rows, action]
            for j in range(config.num_target_quantiles):
                with torch.no_grad():
                    goal = reward + discount * self.returns(self.target, following, theirs_at[:, j])[rows, best]
                error = goal - mine
                huber = torch.where(error.abs() <= kappa, error**2 / 2, kappa * (error.abs() - kappa / 2))
                side = torch.where(error < 0, 1 - mine_at[:, i], mine_at[:, i])
                item_loss = item_loss + side * huber / kappa / config.num_target_quantiles
        gradient_step(
            self.optimizer, (weights_of(batch, config) * item_loss).mean(), config.optimizer, self.num_updates
        )
        self.num_updates += 1
        if self.num_updates % config.target_period == 0:
            follow(self.target, self.online, config.target_rate)
        return item_loss.detach().numpy()

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        named = {}
        for part, networks in (("online", self.online), ("target", self.target)):
            named[part] = {name: value for one in networks.values() for name, value in one.tensors().items()}
        return named


class TwinCritics:
    """n critics and their targets, and the actor's network."""

    def __init__(self, config: Any, agent: Any, number: int) -> None:
        self.config = config
        self.middle, self.half = torch.from_numpy(agent.box.middle), torch.from_numpy(agent.box.half)
        state = agent.state_dict()
        self.actor = TwinMLP("actor", state["actor"])
        self.critics = nn.ModuleList(TwinMLP(f"q{i}", state["critics"]) for i in range(number))
        self.target_critics = copy.deepcopy(self.critics)
        self.target_actor = copy.deepcopy(self.actor)
        self.critic_optimizer = adam(self.critics.parameters(), config.critic)
        self.actor_optimizer = adam(self.actor.parameters(), config.actor)
        self.generator = agent._generator.clone_state() if hasattr(agent, "_generator") else None
        self.num_updates = 0

    def values(self, networks: Any, state: Tensor, action: Tensor) -> list[Tensor]:
        pair = torch.cat([state, action], dim=1)
        return [network(pair).squeeze(1) for network in networks]

    def columns(self, batch: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        state, action, reward, discount, following = columns_of(batch)
        weight = weights_of(batch, self.config)
        return state.flatten(1), (action.flatten(1) - self.middle) / self.half, reward, discount, following, weight

    def learn_critics(self, state: Tensor, action: Tensor, goal: Tensor, weight: Tensor) -> np.ndarray:
        values = self.values(self.critics, state, action)
        loss = sum((weight * (value - goal) ** 2).mean() / 2 for value in values)
        errors = torch.stack([(value - goal).abs() for value in values]).mean(0)
        gradient_step(self.critic_optimizer, loss, self.config.critic, self.num_updates)
        return errors.detach().numpy()

    def learn_actor(self, loss: Tensor) -> None:
        gradient_step(self.actor_optimizer, loss, self.config.actor, self.num_updates)

    def noise(self, like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=self.generator)

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        critics: dict[str, Tensor] = {}
        targets: dict[str, Tensor] = {}
        for mine, theirs in zip(self.critics, self.target_critics, strict=True):
            critics |= mine.tensors()
            targets |= theirs.tensors()
        return {"critics": critics, "target_critics": targets, "actor": self.actor.tensors()}


class TwinDDPG(TwinCritics):
    def __init__(self, config: Any, agent: Any) -> None:
        super().__init__(config, agent, 1)

    def update(self, batch: Any) -> np.ndarray:
        state, action, reward, discount, following, weight = self.columns(batch)
        with torch.no_grad():
            (value,) = self.values(self.target_critics, following, torch.tanh(self.target_actor(following)))
        errors = self.learn_critics(state, action, reward + discount * value, weight)
        self.learn_actor(-self.values(self.critics, state, torch.tanh(self.actor(state)))[0].mean())
        follow(self.target_critics, self.critics, self.config.target_rate)
        follow(self.target_actor, self.actor, self.config.target_rate)
        self.num_updates += 1
        return errors


class TwinTD3(TwinCritics):
    def __init__(self, config: Any, agent: Any) -> None:
        super().__init__(config, agent, 2)

    def update(self, batch: Any) -> np.ndarray:
        config = self.config
        state, action, reward, discount, following, weight = self.columns(batch)
        with torch.no_grad():
            clip = config.target_noise_clip
            noise = (self.noise(action) * config.target_noise).clamp(-clip, clip)
            smoothed = (torch.tanh(self.target_actor(following)) + noise).clamp(-1, 1)
            first, second = self.values(self.target_critics, following, smoothed)
        errors = self.learn_critics(state, action, reward + discount * torch.min(first, second), weight)
        if (self.num_updates + 1) % config.policy_delay == 0:
            first, _ = self.values(self.critics, state, torch.tanh(self.actor(state)))
            self.learn_actor(-first.mean())
            follow(self.target_critics, self.critics, config.target_rate)
            follow(self.target_actor, self.actor, config.target_rate)
        self.num_updates += 1
        return errors


class TwinSAC(TwinCritics):
    def __init__(self, config: Any, agent: Any) -> None:
        super().__init__(config, agent, 2)
        self.log_alpha = torch.tensor(np.log(config.initial_alpha), dtype=torch.float32, requires_grad=True)
        self.alpha_optimizer = torch.optim.Adam([self.log_alpha], lr=config.alpha_learning_rate)
        self.target_entropy = -len(self.half) if config.target_entropy is None else config.target_entropy

    def sample(self, state: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.actor(state).chunk(2, dim=1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
        before = mean + normal.scale * self.noise(mean)
        squash = torch.distributions.transforms.TanhTransform()
        action = squash(before)
        return action, (normal.log_prob(before) - squash.log_abs_det_jacobian(before, action)).sum(1)

    def update(self, batch: Any) -> np.ndarray:
        config = self.config
        state, action, reward, discount, following, weight = self.columns(batch)
        alpha = self.log_alpha.detach().exp() if config.alpha is None else torch.tensor(config.alpha)
        with torch.no_grad():
            next_action, log_probability = self.sample(following)
            first, second = self.values(self.target_critics, following, next_action)
            goal = reward + discount * (torch.min(first, second) - alpha * log_probability)
        errors = self.learn_critics(state, action, goal, weight)
        mine, log_probability = self.sample(state)
        first, second = self.values(self.critics, state, mine)
        self.learn_actor((alpha * log_probability - torch.min(first, second)).mean())
        if config.alpha is None:
            entropy_gap = (log_probability.detach() + self.target_entropy).mean()
            self.alpha_optimizer.zero_grad()
            (-self.log_alpha * entropy_gap).backward()
            self.alpha_optimizer.step()
        follow(self.target_critics, self.critics, config.target_rate)
        self.num_updates += 1
        return errors
