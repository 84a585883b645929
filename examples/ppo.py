"""Proximal policy optimization over a queue, A2C as a setting of it, and an off-policy form with use counts.

Papers: Schulman et al. 2017 (PPO), Schulman et al. 2016 (GAE), Mnih et al. 2016 (A2C).

    ratio       = pi(a|s) / mu(a|s)                      mu: the policy that acted; its log-probability is a column
    advantage   = sum_k (gamma lambda)^k delta_{t+k}     delta_t = r_t + discount_t V(s_{t+1}) - V(s_t)
    policy loss = -mean min(ratio * A, clip(ratio, 1 - eps, 1 + eps) * A)
    value loss  = mean (V(s) - (A + V_old(s)))^2

The rollouts are windows of `horizon` steps that run over the ends of episodes (`Sequences(at_end="cross")`).

- On-policy (default): `Queue` and `max_times_sampled=1`. Every window is drawn once, and then trained `epochs` times.
- `--a2c`: one epoch, no clipping, one minibatch: the loss is then that of A2C.
- `--uses 4`: off-policy PPO. Each window is drawn up to `uses` times, by draws among newer windows, and leaves at
  `max_staleness` policy versions. Advantages are computed again at each draw, with the present values.

The learning rate falls linearly to `learning_rate_end` times its first value over the run.

Deviations from the papers: no annealing of the clip range; no clipping of the value loss; advantages are normalized by
the minibatch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import frame
import gymnasium
import numpy as np
import torch

import relive
from relive.adapters.gymnasium import record


@dataclass(frozen=True)
class Settings(frame.Settings):
    """The settings of PPO."""

    env: str = "CartPole-v1"
    steps: int = 60_000
    hidden: int = 64
    num_envs: int = 8
    horizon: int = 64  # steps of a rollout, for each environment
    epochs: int = 6
    minibatches: int = 4
    clip: float = 0.2
    learning_rate: float = 1e-3
    learning_rate_end: float = 0.02  # the last learning rate, as a share of the first
    gamma: float = frame.within(0, 1, 0.98)
    gae_lambda: float = 0.9
    entropy: float = 0.0
    value_weight: float = 0.5
    a2c: bool = False
    uses: int = 1  # above 1: off-policy
    max_staleness: int = frame.at_least(0, 8)  # in policy versions; off-policy only


class Network(torch.nn.Module):
    """Policy and value. Discrete actions are categorical, Box actions Gaussian with a learned scale."""

    def __init__(self, envs: gymnasium.vector.VectorEnv[Any, Any, Any], hidden: int) -> None:
        super().__init__()
        space, num_inputs = envs.single_action_space, envs.single_observation_space.shape[0]
        self.is_discrete = isinstance(space, gymnasium.spaces.Discrete)
        num_outputs = int(space.n) if self.is_discrete else space.shape[0]
        self.policy = frame.mlp(num_inputs, hidden, hidden, num_outputs)
        self.value = frame.mlp(num_inputs, hidden, hidden, 1)
        self.log_std = torch.nn.Parameter(torch.zeros(num_outputs))

    def distribution(self, observations: torch.Tensor) -> torch.distributions.Distribution:
        """The policy at observations [..., D]."""
        outputs = self.policy(observations)
        if self.is_discrete:
            return torch.distributions.Categorical(logits=outputs, validate_args=False)
        normal = torch.distributions.Normal(outputs, self.log_std.exp(), validate_args=False)
        return torch.distributions.Independent(normal, 1, validate_args=False)

    @torch.no_grad()
    def act(self, observations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Draws actions. Returns them with their log-probabilities."""
        policy = self.distribution(torch.as_tensor(observations, dtype=torch.float32))
        actions = policy.sample()
        return actions.numpy(), policy.log_prob(actions).numpy()

    @torch.no_grad()
    def best(self, observations: np.ndarray) -> np.ndarray:
        """The most likely actions."""
        outputs = self.policy(torch.as_tensor(observations, dtype=torch.float32))
        return (outputs.argmax(-1) if self.is_discrete else outputs).numpy()


def advantages(network: Network, rows: dict[str, torch.Tensor], gae_lambda: float) -> tuple[torch.Tensor, torch.Tensor]:
    """GAE over windows [B, T] that run over ends of episodes. Returns advantages and targets of the value."""
    with torch.no_grad():
        values = network.value(rows["observation"])[..., 0]
        following = network.value(rows["next_observation"])[..., 0]
    ends = rows["terminated"] | rows["truncated"]
    delta = rows["reward"] + rows["discount"] * following - values
    result, carried = torch.zeros_like(delta), torch.zeros(len(delta))
    for t in reversed(range(delta.shape[1])):
        carried = delta[:, t] + rows["discount"][:, t] * gae_lambda * ~ends[:, t] * carried
        result[:, t] = carried
    return result, result + values


def update(network: Network, optimizer: torch.optim.Optimizer, batch: relive.Batch, settings: Settings) -> float:
    """Trains on a batch of rollouts. Returns the last loss."""
    rows = batch.to_torch()
    advantage, target = advantages(network, rows, settings.gae_lambda)
    columns = [rows["observation"], rows["action"], rows["log_prob"], advantage, target]
    observations, actions, before, advantage, target = (column.flatten(0, 1) for column in columns)
    epochs, parts = (1, 1) if settings.a2c else (settings.epochs, settings.minibatches)
    for _ in range(epochs):
        for chosen in torch.randperm(len(actions)).chunk(parts):
            policy = network.distribution(observations[chosen])
            gain = advantage[chosen]
            gain = (gain - gain.mean()) / (gain.std(unbiased=False) + 1e-8)
            log_prob = policy.log_prob(actions[chosen])
            if settings.a2c:
                policy_loss = -(log_prob * gain).mean()
            else:
                ratio = (log_prob - before[chosen]).exp()
                clipped = ratio.clamp(1.0 - settings.clip, 1.0 + settings.clip)
                policy_loss = -torch.minimum(ratio * gain, clipped * gain).mean()
            value_loss = ((network.value(observations[chosen])[..., 0] - target[chosen]) ** 2).mean()
            loss = policy_loss + settings.value_weight * value_loss - settings.entropy * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 0.5)
            optimizer.step()
    return loss.item()


def make_table(settings: Settings, envs: gymnasium.vector.VectorEnv[Any, Any, Any]) -> relive.Table:
    """Rollouts as windows: a queue, or windows with a number of uses and a limit of staleness."""
    spec = relive.StepSpec.from_spaces(
        envs.single_observation_space,
        envs.single_action_space,
        extras={"log_prob": relive.ArraySpec((), "float32")},
        float64_as="float32",
    )
    items = relive.Sequences(settings.horizon, at_end="cross", gamma=settings.gamma)
    if settings.uses == 1:
        limiter = relive.Queue(2 * settings.num_envs)
        index = relive.Index(items, relive.Fifo(), limiter, max_times_sampled=1)
    else:
        limiter = relive.MinSize(1)
        index = relive.Index(
            items, limiter=limiter, max_times_sampled=settings.uses, max_staleness=settings.max_staleness
        )
    capacity = 4 * (settings.uses + 1) * settings.num_envs * settings.horizon
    return relive.Table(spec, capacity, index, seed=settings.seed)


def main(arguments: Sequence[str] | None = None) -> frame.Result:
    """Runs the example and returns its result."""
    settings = frame.parse(Settings, arguments, __doc__)
    run = frame.Run("ppo", settings)
    saved = run.load()

    def make_env() -> gymnasium.Env[Any, Any]:
        env = gymnasium.make(settings.env)
        if isinstance(env.action_space, gymnasium.spaces.Box):  # actions of any size, clipped to [-1, 1]
            one = np.float32(1.0)
            env = gymnasium.wrappers.ClipAction(gymnasium.wrappers.RescaleAction(env, -one, one))
        return env

    envs = gymnasium.vector.SyncVectorEnv([make_env] * settings.num_envs)
    table = saved.table if saved else make_table(settings, envs)
    network = Network(envs, settings.hidden)
    optimizer = torch.optim.Adam(network.parameters(), settings.learning_rate)
    state = {"network": network, "optimizer": optimizer}
    if saved:
        for name, part in state.items():
            part.load_state_dict(saved.learner[name])
        table.clear()  # the load has cut the open windows and padded them, and the queue would count them
        table.set_policy_version(run.step)
    run.result.random_return = frame.random_return(make_env)
    recorded = record(envs, table)
    observations, _ = recorded.reset(seed=settings.seed + run.step)
    columns = ["observation", "next_observation", "action", "log_prob", "reward", "discount", "terminated", "truncated"]

    step, version, trained = run.step, run.step, run.step
    with run.course(lambda: (table, {name: part.state_dict() for name, part in state.items()})):
        while run.goes_on(step):
            actions, log_prob = network.act(observations)
            observations, *_ = recorded.step(actions, extras={"log_prob": log_prob})
            step += settings.num_envs
            if table.num_items() >= settings.num_envs and step - trained >= settings.num_envs * settings.horizon:
                share = max(settings.learning_rate_end, 1.0 - step / settings.steps)
                optimizer.param_groups[0]["lr"] = settings.learning_rate * share
                for _ in range(settings.uses):
                    if table.num_items() < settings.num_envs:
                        break  # windows that were drawn `uses` times have left
                    batch = table.sample(settings.num_envs, columns=[*columns, "staleness"])
                    run.log(loss=update(network, optimizer, batch, settings), staleness=batch["staleness"].mean())
                version, trained = version + 1, step
                table.set_policy_version(version)
            if run.evaluation_is_due(step):
                run.evaluated(frame.evaluate(network.best, make_env, settings.eval_episodes))
    recorded.close()
    table.close()
    return run.result


if __name__ == "__main__":
    main()
