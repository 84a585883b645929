"""Hindsight experience replay with priorities: SAC on a goal that is reached almost never by chance.

Papers: Andrychowicz et al. 2017 (HER), Haarnoja et al. 2018 (SAC), Zhao and Tresp 2018 (energy-based priorities).

    with probability k / (k + 1) an item gets another goal g': a state that its episode reached later ("future")
    reward    = r(s', g') = 0 if |s' - g'| < radius, else -1                    computed by the reader, for the new goal
    target    = reward + discount * (min_k Q_target_k(s', g', a') - alpha log pi(a'|s', g'))
    priority  = |target - Q(s, g, a)| + 0.01                                 belongs to the step, whatever its goal

The environment is ours: a point with momentum in the unit square, four walls, a goal anywhere, 30 steps, reward -1
until the end of the episode unless the point is at its goal. `--no-hindsight` is SAC alone: the same network, the same
table, the stored goals.

Deviations from the papers: a fixed entropy temperature; priorities are TD errors instead of energies; values are
clipped to the range that rewards allow, -1 / (1 - gamma) to 0, as HER does.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import frame
import gymnasium
import numpy as np
import torch
from torch.nn import functional as F

import relive
from relive.adapters.gymnasium import record

GOAL, ACHIEVED = "observation/desired_goal", "observation/achieved_goal"


@dataclass(frozen=True)
class Settings(frame.Settings):
    """The settings of SAC with hindsight."""

    steps: int = 20_000
    eval_every: int = 1_000
    eval_episodes: int = 20
    hidden: int = 64
    num_envs: int = 4
    capacity: int = 100_000
    min_size: int = 600
    batch_size: int = 128
    updates_per_step: float = 0.25
    learning_rate: float = 3e-3
    gamma: float = frame.within(0, 0.9999, 0.9)
    target_rate: float = 0.05
    alpha: float = 0.01  # of the entropy
    radius: float = 0.04  # of the goal; with 0.15, SAC alone finds it in the end
    share: float = 0.8  # of items with another goal: k = 4
    priority_exponent: float = 0.6  # 0: uniform draws
    hindsight: bool = True


def compute_reward(achieved: np.ndarray, desired: np.ndarray, _: Any, *, radius: float) -> np.ndarray:
    """0 at the goal, -1 elsewhere."""
    return -(np.linalg.norm(achieved - desired, axis=-1) > radius).astype(np.float32)


class PointReach(gymnasium.Env[dict[str, np.ndarray], np.ndarray]):
    """A point with momentum. The reward is -1 for every step that does not end at the goal."""

    def __init__(self, radius: float, num_steps: int = 30) -> None:
        box = gymnasium.spaces.Box
        self.observation_space = gymnasium.spaces.Dict(
            {
                "observation": box(-2.0, 2.0, (4,), np.float32),
                "achieved_goal": box(-2.0, 2.0, (2,), np.float32),
                "desired_goal": box(-2.0, 2.0, (2,), np.float32),
            }
        )
        self.action_space = box(-1.0, 1.0, (2,), np.float32)
        self.radius, self.num_steps = radius, num_steps

    def _seen(self) -> dict[str, np.ndarray]:
        at = self.at.astype(np.float32)
        observation = np.concatenate([at, self.speed.astype(np.float32)])
        return {"observation": observation, "achieved_goal": at, "desired_goal": self.goal}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        super().reset(seed=seed)
        self.at, self.speed, self.t = self.np_random.uniform(-1.0, -0.5, 2), np.zeros(2), 0
        self.goal = self.np_random.uniform(0.0, 1.0, 2).astype(np.float32)
        return self._seen(), {}

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        self.speed = 0.8 * self.speed + 0.06 * np.clip(action, -1.0, 1.0)
        self.at = np.clip(self.at + self.speed, -1.0, 1.0)
        self.t += 1
        seen = self._seen()
        reward = float(compute_reward(seen["achieved_goal"], self.goal, None, radius=self.radius))
        return seen, reward, False, self.t == self.num_steps, {}


class Success(PointReach):
    """The same task, with a return of 1 if the episode ends at its goal, else 0."""

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        seen, reward, terminated, truncated, info = super().step(action)
        return seen, float(truncated and reward == 0.0), terminated, truncated, info


class Agent:
    """A Gaussian policy through tanh and two critics. Their input is the observation and the goal."""

    def __init__(self, settings: Settings) -> None:
        self.settings, hidden = settings, settings.hidden
        self.actor = frame.mlp(6, hidden, hidden, 4)
        self.critics = torch.nn.ModuleList([frame.mlp(8, hidden, hidden, 1) for _ in range(2)])
        self.targets = deepcopy(self.critics)
        self.actor_step = torch.optim.Adam(self.actor.parameters(), settings.learning_rate)
        self.critic_step = torch.optim.Adam(self.critics.parameters(), settings.learning_rate)

    @staticmethod
    def inputs(seen: Any) -> torch.Tensor:
        """[B, 6]: observation and desired goal."""
        return torch.cat([torch.as_tensor(seen[name]) for name in ("observation", "desired_goal")], -1)

    def sample(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Actions [B, 2] and their log-probabilities [B]."""
        mean, log_std = self.actor(inputs).chunk(2, -1)
        log_std = log_std.clamp(-4.0, 1.0)
        before = mean + log_std.exp() * torch.randn_like(mean)
        log_prob = -0.5 * ((before - mean) / log_std.exp()) ** 2 - log_std - 0.9189385
        log_prob = log_prob - 2.0 * (0.6931472 - before - F.softplus(-2.0 * before))
        return torch.tanh(before), log_prob.sum(-1)

    @torch.no_grad()
    def act(self, seen: dict[str, np.ndarray], explore: bool = False) -> np.ndarray:
        """Actions for a vector of environments."""
        inputs = self.inputs(seen)
        return (self.sample(inputs)[0] if explore else torch.tanh(self.actor(inputs).chunk(2, -1)[0])).numpy()

    @staticmethod
    def values(critics: torch.nn.ModuleList, inputs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """The values [2, B] of both critics."""
        return torch.stack([critic(torch.cat([inputs, actions], -1))[:, 0] for critic in critics])

    def update(self, batch: relive.Batch) -> tuple[float, np.ndarray]:
        """One step of critics and actor. Returns the critics' loss and the priorities."""
        rows, settings = batch.to_torch(), self.settings
        inputs, following = self.inputs(rows["observation"]), self.inputs(rows["next_observation"])
        with torch.no_grad():
            actions, log_prob = self.sample(following)
            value = self.values(self.targets, following, actions).amin(0) - settings.alpha * log_prob
            target = rows["reward"] + rows["discount"] * value.clamp(-1.0 / (1.0 - settings.gamma), 0.0)
        error = target - self.values(self.critics, inputs, rows["action"])
        weights = torch.as_tensor(batch.weights(beta=0.4)).float()
        critic_loss = (weights * error**2).mean(1).sum()
        self.critic_step.zero_grad()
        critic_loss.backward()
        self.critic_step.step()

        actions, log_prob = self.sample(inputs)
        self.critics.requires_grad_(False)
        actor_loss = (settings.alpha * log_prob - self.values(self.critics, inputs, actions).amin(0)).mean()
        self.actor_step.zero_grad()
        actor_loss.backward()
        self.actor_step.step()
        self.critics.requires_grad_(True)
        with torch.no_grad():
            slow, fast = list(self.targets.parameters()), list(self.critics.parameters())
            torch._foreach_lerp_(slow, fast, weight=settings.target_rate)
        return critic_loss.item(), error.detach().abs().mean(0).numpy() + 0.01

    PARTS = ("actor", "critics", "targets", "actor_step", "critic_step")


def make_table(settings: Settings) -> relive.Table:
    """Transitions; with hindsight, most of them with a goal that their episode reached."""
    env = PointReach(settings.radius)
    spec = relive.StepSpec.from_spaces(env.observation_space, env.action_space)
    sampler: Any = relive.Prioritized(settings.priority_exponent)
    if settings.hindsight:
        sampler = relive.Hindsight(
            GOAL, ACHIEVED, share=settings.share, strategy="future", max_length=env.num_steps, sampler=sampler
        )
    index = relive.Index(relive.Transitions(gamma=settings.gamma), sampler, relive.MinSize(settings.min_size))
    return relive.Table(spec, settings.capacity, index, seed=settings.seed)


def main(arguments: Sequence[str] | None = None) -> frame.Result:
    """Runs the example and returns its result."""
    settings = frame.parse(Settings, arguments, __doc__)
    run = frame.Run("her_sac", settings)
    saved = run.load()
    table = saved.table if saved else make_table(settings)
    agent = Agent(settings)
    if saved:
        for name, state in saved.learner.items():
            getattr(agent, name).load_state_dict(state)
    run.result.random_return = frame.random_return(partial(Success, settings.radius), 50)
    recorded = record(gymnasium.vector.SyncVectorEnv([partial(PointReach, settings.radius)] * settings.num_envs), table)
    seen, _ = recorded.reset(seed=settings.seed + run.step)
    reward = {"reward": partial(compute_reward, radius=settings.radius)} if settings.hindsight else {}

    step, owed = run.step, 0.0
    with run.course(lambda: (table, {name: getattr(agent, name).state_dict() for name in agent.PARTS})):
        while run.goes_on(step):
            seen, *_ = recorded.step(agent.act(seen, explore=True))
            step += settings.num_envs
            if table.num_items() >= settings.min_size:
                owed += settings.updates_per_step * settings.num_envs
            while owed >= 1.0:
                owed -= 1.0
                batch = table.sample(settings.batch_size, **reward)
                loss, priorities = agent.update(batch)
                table.update_priorities(batch.item_keys, priorities)
                run.log(critic_loss=loss)
            if run.evaluation_is_due(step):
                run.evaluated(frame.evaluate(agent.act, partial(Success, settings.radius), settings.eval_episodes))
    recorded.close()
    table.close()
    return run.result


if __name__ == "__main__":
    main()
