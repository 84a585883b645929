"""Soft actor-critic, in one process.

Paper: Haarnoja et al. 2018 (Soft Actor-Critic Algorithms and Applications).

    target       = R + discount * (min_k Q_target_k(s', a') - alpha * log pi(a'|s')),   a' ~ pi(.|s')
    critic loss  = mean sum_k (Q_k(s, a) - target)^2
    actor loss   = mean (alpha * log pi(a|s) - min_k Q_k(s, a)),                        a ~ pi(.|s)
    alpha loss   = -log(alpha) * mean (log pi(a|s) + target entropy),    target entropy = -(number of action dimensions)

Deviations from the paper: none in the formulas. Layers and batches are smaller than the paper's 256, and the learning
rate and the target's rate are larger: Pendulum needs no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import environments
import frame
import gymnasium
import numpy as np
import torch
from torch.nn import functional as F

import relive
from relive.adapters.gymnasium import record


@dataclass(frozen=True)
class Settings(frame.Settings):
    """The settings of SAC."""

    env: str = "Pendulum-v1"
    steps: int = 6_000
    hidden: int = 64
    capacity: int = 100_000
    min_size: int = 200  # random steps before the first update
    batch_size: int = 64
    learning_rate: float = 3e-3
    gamma: float = frame.within(0, 1, 0.95)
    target_rate: float = 0.02
    eval_every: int = 500


class Actor(torch.nn.Module):
    """A Gaussian whose samples pass through tanh, so that actions lie in [-1, 1]."""

    def __init__(self, num_inputs: int, num_actions: int, hidden: int) -> None:
        super().__init__()
        self.body = frame.mlp(num_inputs, hidden, hidden, 2 * num_actions)

    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns actions [B, A] and their log-probabilities [B]."""
        mean, log_std = self.body(observations).chunk(2, dim=-1)
        log_std = log_std.clamp(-5.0, 2.0)
        before = mean + log_std.exp() * torch.randn_like(mean)
        log_prob = -0.5 * ((before - mean) / log_std.exp()) ** 2 - log_std - 0.9189385
        # log(1 - tanh(x)^2) without loss of accuracy
        log_prob = log_prob - 2.0 * (0.6931472 - before - F.softplus(-2.0 * before))
        return torch.tanh(before), log_prob.sum(-1)

    def mean(self, observations: np.ndarray) -> np.ndarray:
        """The action without noise."""
        with torch.no_grad():
            return torch.tanh(self.body(torch.as_tensor(observations, dtype=torch.float32)).chunk(2, -1)[0]).numpy()


class Learner:
    """Actor, two critics, temperature, and one update of each."""

    def __init__(self, settings: Settings, num_inputs: int, num_actions: int) -> None:
        self.settings, self.num_actions = settings, num_actions
        self.actor = Actor(num_inputs, num_actions, settings.hidden)
        sizes = (num_inputs + num_actions, settings.hidden, settings.hidden, 1)
        self.critics = torch.nn.ModuleList([frame.mlp(*sizes), frame.mlp(*sizes)])
        self.targets = deepcopy(self.critics)
        self.log_alpha = torch.nn.ParameterList([torch.zeros(())])
        self.actor_step, self.critic_step, self.alpha_step = (
            torch.optim.Adam(part.parameters(), settings.learning_rate)
            for part in (self.actor, self.critics, self.log_alpha)
        )

    @staticmethod
    def values(critics: torch.nn.ModuleList, observations: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """The values [2, B] of both critics."""
        inputs = torch.cat([observations, actions], -1)
        return torch.stack([critic(inputs)[:, 0] for critic in critics])

    def update(self, batch: relive.Batch) -> dict[str, float]:
        """One step of each optimizer. Returns the figures of the update."""
        rows = batch.to_torch()
        observations, alpha = rows["observation"], self.log_alpha[0].exp().detach()
        with torch.no_grad():
            actions, log_prob = self.actor(rows["next_observation"])
            value = self.values(self.targets, rows["next_observation"], actions).amin(0) - alpha * log_prob
            target = rows["reward"] + rows["discount"] * value
        critic_loss = ((self.values(self.critics, observations, rows["action"]) - target) ** 2).mean(1).sum()
        self.critic_step.zero_grad()
        critic_loss.backward()
        self.critic_step.step()

        actions, log_prob = self.actor(observations)
        self.critics.requires_grad_(False)
        actor_loss = (alpha * log_prob - self.values(self.critics, observations, actions).amin(0)).mean()
        self.actor_step.zero_grad()
        actor_loss.backward()
        self.actor_step.step()
        self.critics.requires_grad_(True)

        alpha_loss = -self.log_alpha[0] * (log_prob.detach().mean() - self.num_actions)
        self.alpha_step.zero_grad()
        alpha_loss.backward()
        self.alpha_step.step()
        with torch.no_grad():
            slow, fast = list(self.targets.parameters()), list(self.critics.parameters())
            torch._foreach_lerp_(slow, fast, weight=self.settings.target_rate)
        return {"critic_loss": critic_loss.item(), "alpha": alpha.item()}

    PARTS = ("actor", "critics", "targets", "log_alpha", "actor_step", "critic_step", "alpha_step")

    def state(self) -> dict[str, Any]:
        """Everything that a continued run needs."""
        return {name: getattr(self, name).state_dict() for name in self.PARTS}

    def load(self, state: dict[str, Any]) -> None:
        """Takes a state of `state()`."""
        for name, value in state.items():
            getattr(self, name).load_state_dict(value)


def main(arguments: Sequence[str] | None = None) -> frame.Result:
    """Runs the example and returns its result."""
    settings = frame.parse(Settings, arguments, __doc__)
    run = frame.Run("sac", settings)
    saved = run.load()

    def make_env() -> gymnasium.Env[Any, Any]:
        return environments.make_bounded(settings.env)

    env = make_env()
    if saved:
        table = saved.table
    else:
        spec = relive.StepSpec.from_spaces(env.observation_space, env.action_space, float64_as="float32")
        index = relive.Index(relive.Transitions(gamma=settings.gamma), limiter=relive.MinSize(settings.min_size))
        table = relive.Table(spec, settings.capacity, index, seed=settings.seed)
    learner = Learner(settings, env.observation_space.shape[0], env.action_space.shape[0])
    if saved:
        learner.load(saved.learner)
    run.result.random_return = frame.random_return(make_env)
    recorded = record(env, table)
    recorded.action_space.seed(settings.seed + run.step)
    observation, _ = recorded.reset(seed=settings.seed + run.step)

    step = run.step
    with run.course(lambda: (table, learner.state())):
        while run.goes_on(step):
            if step < settings.min_size:
                action = recorded.action_space.sample()
            else:
                with torch.no_grad():
                    seen = torch.as_tensor(observation, dtype=torch.float32)[None]
                    action = learner.actor(seen)[0][0].numpy()
            observation, _, terminated, truncated, _ = recorded.step(action)
            step += 1
            if terminated or truncated:
                observation, _ = recorded.reset()
            if table.num_items() >= settings.min_size:
                run.log(**learner.update(table.sample(settings.batch_size)))
            if run.evaluation_is_due(step):
                run.evaluated(frame.evaluate(learner.actor.mean, make_env, settings.eval_episodes))
    recorded.close()
    table.close()
    return run.result


if __name__ == "__main__":
    main()
