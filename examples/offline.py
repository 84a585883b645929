"""Offline reinforcement learning: implicit Q-learning (IQL) from a table that another run has saved.

Paper: Kostrikov et al. 2022 (Offline Reinforcement Learning with Implicit Q-Learning).

    L_V  = mean |tau - 1{Q_target(s, a) < V(s)}| * (Q_target(s, a) - V(s))^2        tau = 0.8: an upper expectile
    L_Q  = mean sum_k (R + discount * V(s') - Q_k(s, a))^2
    L_pi = -mean exp(beta * (Q_target(s, a) - V(s))) * log pi(a|s)                  weights of at most 100

Data: `--data FOLDER` is the folder of a run of sac.py (`runs/examples/sac-0`) or of `relive train`, whose environment
`--env` names. Its table is loaded as it was saved, and no environment is stepped for training. Without `--data`, the
example records a controller that swings the pendulum up, with much noise. sac.py stores actions in [-1, 1], and
`relive train` in the environment's units: the learner's actions are in [-1, 1] either way (`episodes.units`).

A step of this example is an update. `facts` contains the mean and the best return of the data's episodes, which are
read from the table itself by `table.episodes`. An episode that a load cut is not counted.

Deviations from the paper: the policy has no dropout and no cosine schedule; tau and beta are set for Pendulum.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import environments
import episodes
import frame
import numpy as np
import torch

import relive
from relive.adapters.gymnasium import record


@dataclass(frozen=True)
class Settings(frame.Settings):
    """The settings of IQL."""

    env: str = "Pendulum-v1"  # of the data, and of the evaluations
    data: str = ""  # folder of a run; "": record a noisy controller of the pendulum
    data_episodes: int = 100
    noise: float = 0.6  # share of random actions of the controller
    steps: int = 10_000  # updates
    eval_every: int = 1_000
    eval_episodes: int = 10
    hidden: int = 64
    batch_size: int = 256
    learning_rate: float = 1e-3
    gamma: float = frame.within(0, 1, 0.98)  # of recorded data; those of a run have the discount of the run
    target_rate: float = 0.01
    expectile: float = 0.8
    beta: float = 0.1  # rewards of Pendulum are in the tens


def swing_up(observation: np.ndarray) -> np.ndarray:
    """Pumps energy into the pendulum, and balances it near the top."""
    cosine, sine, speed = observation
    if cosine > 0.9:
        return np.clip([-(8.0 * sine + 2.0 * speed)], -1.0, 1.0).astype(np.float32)
    energy = speed**2 / 6.0 + 5.0 * cosine  # of a rod of length 1; 5 at rest at the top
    return np.clip([(5.5 - energy) * np.sign(speed) * 2.0], -1.0, 1.0).astype(np.float32)


def record_data(settings: Settings) -> relive.Table:
    """A table with episodes of the controller."""
    if settings.env != "Pendulum-v1":
        raise SystemExit(f"The recorded controller is for Pendulum-v1. Give the data of {settings.env}: --data FOLDER.")
    env = environments.make_bounded(settings.env)
    spec = relive.StepSpec.from_spaces(env.observation_space, env.action_space, float64_as="float32")
    index = relive.Index(relive.Transitions(gamma=settings.gamma))
    table = relive.Table(spec, 250 * settings.data_episodes, index, seed=settings.seed)
    rng, recorded = np.random.default_rng(settings.seed), record(env, table)
    for number in range(settings.data_episodes):
        observation, _ = recorded.reset(seed=settings.seed + 1_000 * number)
        ended = False
        while not ended:
            is_noise = rng.random() < settings.noise
            action = rng.uniform(-1.0, 1.0, 1).astype(np.float32) if is_noise else swing_up(observation)
            observation, _, terminated, truncated, _ = recorded.step(action)
            ended = terminated or truncated
    recorded.close()
    return table


class Learner:
    """Two critics, a value, a policy with a fixed scale."""

    def __init__(self, settings: Settings, num_inputs: int, units: tuple[np.ndarray, np.ndarray]) -> None:
        self.settings, hidden, num_actions = settings, settings.hidden, len(units[0])
        self.middle, self.half = map(torch.as_tensor, units)
        self.critics = torch.nn.ModuleList([frame.mlp(num_inputs + num_actions, hidden, hidden, 1) for _ in range(2)])
        self.targets = deepcopy(self.critics)
        self.value = frame.mlp(num_inputs, hidden, hidden, 1)
        self.policy = frame.mlp(num_inputs, hidden, hidden, num_actions, last=torch.nn.Tanh())
        parts = [*self.critics.parameters(), *self.value.parameters(), *self.policy.parameters()]
        self.optimizer = torch.optim.Adam(parts, settings.learning_rate)

    @torch.no_grad()
    def act(self, observations: np.ndarray) -> np.ndarray:
        """The policy's actions, without noise."""
        return self.policy(torch.as_tensor(observations, dtype=torch.float32)).numpy()

    def update(self, batch: relive.Batch) -> dict[str, float]:
        """One step for all parts. Their losses have no parameters in common, so one backward pass serves all."""
        rows, settings = batch.to_torch(), self.settings
        observations, actions = rows["observation"], (rows["action"] - self.middle) / self.half
        inputs = torch.cat([observations, actions], -1)
        with torch.no_grad():
            stored = torch.stack([critic(inputs)[:, 0] for critic in self.targets]).amin(0)
            target = rows["reward"] + rows["discount"] * self.value(rows["next_observation"])[:, 0]
        advantage = stored - self.value(observations)[:, 0]
        weights = torch.where(advantage < 0.0, 1.0 - settings.expectile, settings.expectile)
        value_loss = (weights * advantage**2).mean()
        critic_loss = torch.stack([((critic(inputs)[:, 0] - target) ** 2).mean() for critic in self.critics]).sum()
        gain = (settings.beta * advantage.detach()).exp().clamp(max=100.0)
        # a Gaussian with scale 0.3: its log-probability is a squared distance
        policy_loss = (gain * ((self.policy(observations) - actions) ** 2).sum(-1) / 0.18).mean()
        self.optimizer.zero_grad()
        (value_loss + critic_loss + policy_loss).backward()
        self.optimizer.step()
        with torch.no_grad():
            slow, fast = list(self.targets.parameters()), list(self.critics.parameters())
            torch._foreach_lerp_(slow, fast, weight=settings.target_rate)
        return {"value_loss": value_loss.item(), "critic_loss": critic_loss.item(), "policy_loss": policy_loss.item()}

    PARTS = ("critics", "targets", "value", "policy", "optimizer")


def main(arguments: Sequence[str] | None = None) -> frame.Result:
    """Runs the example and returns its result."""
    settings = frame.parse(Settings, arguments, __doc__)
    run = frame.Run("offline", settings)
    data = Path(settings.data) / "save" if settings.data else None
    saved = run.load(data=str(data or ""))
    if saved:
        table = saved.table
    elif data:
        table = relive.load(data)
        table.set_limiter(relive.MinSize())  # the run's own limiter would wait for new rows
    else:
        table = record_data(settings)
    made = partial(environments.make_bounded, settings.env)
    env = made()
    found = episodes.whole(table, ["action", "reward"], env.spec.max_episode_steps)
    returns = np.array([episode["reward"].sum() for episode in found])
    units = episodes.units(np.concatenate([episode["action"] for episode in found]), env.unwrapped.action_space)
    learner = Learner(settings, env.observation_space.shape[0], units)
    if saved:
        for name, state in saved.learner.items():
            getattr(learner, name).load_state_dict(state)
    run.result.facts |= {"data_mean": float(returns.mean()), "data_best": float(returns.max())}
    run.result.facts |= {"data_episodes": len(returns), "data_steps": len(table)}
    run.result.random_return = frame.random_return(made)

    step = run.step
    with run.course(lambda: (table, {name: getattr(learner, name).state_dict() for name in learner.PARTS})):
        while run.goes_on(step):
            run.log(**learner.update(table.sample(settings.batch_size)))
            step += 1
            if run.evaluation_is_due(step):
                run.evaluated(frame.evaluate(learner.act, made, settings.eval_episodes))
    print(f"offline: mean return of the data {returns.mean():.0f}, of the policy {run.result.final:.0f}")
    table.close()
    return run.result


if __name__ == "__main__":
    main()
