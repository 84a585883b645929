"""MASAC: soft actor-critic for a team, with critics that see all agents and actors that see one.

Papers: Lowe et al. 2017 (MADDPG: central critics, own actors), Haarnoja et al. 2018 (SAC).

    target       = r + discount * (min_k Q_target_k(o', a') - alpha * sum_i present_i' log pi(a_i'|o_i'))
    critic loss  = mean sum_k (Q_k(o_1 ... o_n, a_1 ... a_n) - target)^2
    actor loss   = mean (alpha * sum_i log pi(a_i|o_i) - min_k Q_k(o, a)),      all a_i ~ pi(.|o_i)

Environment: simple_spread of mpe2 (PettingZoo): n agents share the reward, cover n landmarks and do not collide.
`--independent` gives each agent a critic that sees its own observation and action only: independent learners.

Data flow: one row for each step of the team: observations [n, D], actions [n, A], the agents that are present [n].
PettingZoo's agents may come and go: an agent that is not in `env.agents` has a row of zeros and `present` False, and
adds nothing to values or losses: its action counts as zeros, and its log-probability as 0.

Deviations from the papers: the agents share one actor, which knows the number of its agent; a fixed entropy
temperature; the reward of the team is the mean over its agents.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import frame
import gymnasium
import numpy as np
import torch
from torch.nn import functional as F

import relive


@dataclass(frozen=True)
class Settings(frame.Settings):
    """The settings of MASAC."""

    num_agents: int = 2
    max_steps: int = 25  # of an episode
    steps: int = 40_000
    eval_every: int = 4_000
    eval_episodes: int = 20
    independent: bool = False
    hidden: int = 64
    num_envs: int = 4
    capacity: int = 100_000
    min_size: int = 500
    batch_size: int = 128
    steps_per_update: int = 4
    learning_rate: float = 1e-3
    gamma: float = frame.within(0, 1, 0.95)
    target_rate: float = 0.02
    alpha: float = 0.02


class Spread(gymnasium.Env[np.ndarray, np.ndarray]):
    """A team of PettingZoo's parallel interface as one environment: observations [n, D], actions [n, A] in [-1, 1]."""

    def __init__(self, settings: Settings) -> None:
        module = frame.package("mpe2.simple_spread_v3", "mpe2 and pettingzoo")
        self.team = module.parallel_env(
            N=settings.num_agents, max_cycles=settings.max_steps, continuous_actions=True, local_ratio=0.0
        )
        self.names = self.team.possible_agents
        size = self.team.observation_space(self.names[0]).shape[0] + len(self.names)
        num_actions = self.team.action_space(self.names[0]).shape[0]
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (len(self.names), size), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (len(self.names), num_actions), np.float32)

    def _seen(self, observations: dict[str, np.ndarray]) -> np.ndarray:
        self.present = np.array([name in observations for name in self.names])
        seen = np.zeros(self.observation_space.shape, np.float32)
        for number, name in enumerate(self.names):
            if name in observations:
                seen[number, : -len(self.names)] = observations[name]
                seen[number, number - len(self.names)] = 1.0
        return seen

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        observations, _ = self.team.reset(seed=seed)
        return self._seen(observations), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        taken = {name: (action[k] + 1.0) / 2.0 for k, name in enumerate(self.names) if name in self.team.agents}
        observations, rewards, terminated, truncated, _ = self.team.step(taken)
        reward = float(np.mean(list(rewards.values()))) if rewards else 0.0
        return self._seen(observations), reward, all(terminated.values()), all(truncated.values()), {}


class Agent:
    """The shared actor, and two critics of the whole team (or of one agent)."""

    def __init__(self, settings: Settings, shape: tuple[int, ...], num_actions: int) -> None:
        self.settings, hidden = settings, settings.hidden
        num_agents, num_inputs = shape
        self.actor = frame.mlp(num_inputs, hidden, hidden, 2 * num_actions)
        size = (num_inputs + num_actions) * (1 if settings.independent else num_agents)
        self.critics = torch.nn.ModuleList([frame.mlp(size, hidden, hidden, 1) for _ in range(2)])
        self.targets = deepcopy(self.critics)
        self.actor_step = torch.optim.Adam(self.actor.parameters(), settings.learning_rate)
        self.critic_step = torch.optim.Adam(self.critics.parameters(), settings.learning_rate)

    def sample(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Actions [..., n, A] and their log-probabilities [..., n]."""
        mean, log_std = self.actor(observations).chunk(2, -1)
        log_std = log_std.clamp(-4.0, 1.0)
        before = mean + log_std.exp() * torch.randn_like(mean)
        log_prob = -0.5 * ((before - mean) / log_std.exp()) ** 2 - log_std - 0.9189385
        log_prob = log_prob - 2.0 * (0.6931472 - before - F.softplus(-2.0 * before))
        return torch.tanh(before), log_prob.sum(-1)

    @torch.no_grad()
    def act(self, observations: np.ndarray, explore: bool = False) -> np.ndarray:
        """Actions of all agents of several environments [M, n, A]."""
        seen = torch.as_tensor(observations)
        return (self.sample(seen)[0] if explore else torch.tanh(self.actor(seen).chunk(2, -1)[0])).numpy()

    def values(
        self, critics: torch.nn.ModuleList, observations: torch.Tensor, actions: torch.Tensor, present: torch.Tensor
    ) -> torch.Tensor:
        """The values of both critics: [2, B, 1] of the team, or [2, B, n] of each agent."""
        inputs = torch.cat([observations, actions * present[..., None]], -1)
        if self.settings.independent:
            return torch.stack([critic(inputs)[..., 0] * present for critic in critics])
        return torch.stack([critic(inputs.flatten(1)) for critic in critics])

    def entropy_cost(self, log_prob: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
        """alpha log pi of the team [B, 1], or of each agent [B, n]."""
        cost = self.settings.alpha * log_prob * present
        return cost if self.settings.independent else cost.sum(-1, keepdim=True)

    def update(self, batch: relive.Batch) -> dict[str, float]:
        """One step of critics and actor."""
        rows = batch.to_torch()
        observations, present = rows["observation"], rows["present"].float()
        following, then = rows["next_observation"], rows["next_present"].float()
        counts = present if self.settings.independent else torch.ones(len(present), 1)
        with torch.no_grad():
            actions, log_prob = self.sample(following)
            value = self.values(self.targets, following, actions, then).amin(0) - self.entropy_cost(log_prob, then)
            target = rows["reward"][:, None] + rows["discount"][:, None] * value
        error = (self.values(self.critics, observations, rows["action"], present) - target) * counts
        critic_loss = (error**2).mean((1, 2)).sum()
        self.critic_step.zero_grad()
        critic_loss.backward()
        self.critic_step.step()

        actions, log_prob = self.sample(observations)
        self.critics.requires_grad_(False)
        value = self.values(self.critics, observations, actions, present).amin(0)
        actor_loss = ((self.entropy_cost(log_prob, present) - value) * counts).mean()
        self.actor_step.zero_grad()
        actor_loss.backward()
        self.actor_step.step()
        self.critics.requires_grad_(True)
        with torch.no_grad():
            slow, fast = list(self.targets.parameters()), list(self.critics.parameters())
            torch._foreach_lerp_(slow, fast, weight=self.settings.target_rate)
        return {"critic_loss": critic_loss.item(), "actor_loss": actor_loss.item()}

    PARTS = ("actor", "critics", "targets", "actor_step", "critic_step")


def make_table(settings: Settings, env: Spread) -> relive.Table:
    """Transitions of the whole team."""
    spec = relive.StepSpec(
        {
            "observation": relive.ArraySpec(env.observation_space.shape, "float32", kind="state"),
            "action": relive.ArraySpec(env.action_space.shape, "float32"),
            "reward": relive.ArraySpec((), "float32"),
            "present": relive.ArraySpec((settings.num_agents,), "bool", kind="state"),
        }
    )
    index = relive.Index(relive.Transitions(gamma=settings.gamma), limiter=relive.MinSize(settings.min_size))
    return relive.Table(spec, settings.capacity, index, seed=settings.seed)


def main(arguments: Sequence[str] | None = None) -> frame.Result:
    """Runs the example and returns its result."""
    settings = frame.parse(Settings, arguments, __doc__)
    run = frame.Run("masac", settings)
    saved = run.load()
    envs = [Spread(settings) for _ in range(settings.num_envs)]
    table = saved.table if saved else make_table(settings, envs[0])
    agent = Agent(settings, envs[0].observation_space.shape, envs[0].action_space.shape[1])
    if saved:
        for name, state in saved.learner.items():
            getattr(agent, name).load_state_dict(state)
    run.result.random_return = frame.random_return(lambda: Spread(settings), 20)
    rng = np.random.default_rng([settings.seed, run.step])
    observations = np.stack([env.reset(seed=int(rng.integers(1 << 31)))[0] for env in envs])

    step, writer = run.step, table.writer(settings.num_envs)
    with run.course(lambda: (table, {name: getattr(agent, name).state_dict() for name in agent.PARTS})):
        while run.goes_on(step):
            actions, present = agent.act(observations, explore=True), np.stack([env.present for env in envs])
            stepped = [env.step(action) for env, action in zip(envs, actions, strict=True)]
            following, rewards, terminated, truncated, _ = zip(*stepped, strict=True)
            writer.append(
                observation=observations,
                action=actions,
                reward=np.float32(rewards),
                present=present,
                terminated=terminated,
                truncated=truncated,
                next_observation=np.stack(following),
                next_present=np.stack([env.present for env in envs]),
            )
            step += settings.num_envs
            observations = np.stack(following)
            for number, env in enumerate(envs):
                if terminated[number] or truncated[number]:
                    observations[number], _ = env.reset()
            for _ in run.updates_due(step, table):
                run.log(**agent.update(table.sample(settings.batch_size)))
            if run.evaluation_is_due(step):
                run.evaluated(frame.evaluate(agent.act, lambda: Spread(settings), settings.eval_episodes))
    writer.close()
    table.close()
    return run.result


if __name__ == "__main__":
    main()
