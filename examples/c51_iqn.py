"""Distributional Q-learning: C51, IQN, and DQN with the same loop for comparison.

Papers: Bellemare et al. 2017 (C51), Dabney et al. 2018 (IQN).

    C51   p(s, a) over fixed atoms z_1 ... z_K.  Target: the distribution of R + discount * z, projected on the atoms.
          loss = -sum_i m_i log p_i(s, a)
    IQN   Z_tau(s, a) for tau ~ U(0, 1), by an embedding cos(pi i tau), i = 0 ... 31, multiplied into the features.
          loss = mean_j sum_i rho_tau_i(R + discount * Z_tau'_j(s', a*) - Z_tau_i(s, a))        rho: quantile Huber loss
    DQN   loss = huber(R + discount * max_a Q(s', a) - Q(s, a))

`R` and `discount` are the table's n-step return, so termination needs no case of its own: discount 0 collapses the
target to R.

Deviations from the papers: three-step returns; small networks; 8 samples of tau for the loss; actions by the
mean over 16 evenly spaced levels (IQN: 32 samples); the target network follows by a moving average.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
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
    """The settings of the three algorithms."""

    algorithm: str = frame.one_of("iqn", "c51", "dqn")
    env: str = "CartPole-v1"
    steps: int = 50_000
    hidden: int = 128
    capacity: int = 50_000
    min_size: int = 500
    num_envs: int = 4
    batch_size: int = 64
    updates_per_step: float = 0.5
    learning_rate: float = 1e-3
    gamma: float = frame.within(0, 1, 0.99)
    n_step: int = 3
    target_rate: float = 0.01
    epsilon: float = 0.05
    num_atoms: int = 51  # of C51
    low: float = frame.at_least(-math.inf, 0.0)  # the first atom
    high: float = frame.at_least(-math.inf, 100.0)  # the last atom
    num_taus: int = 8  # of IQN


class Dqn(torch.nn.Module):
    """Values, and the loss of DQN."""

    def __init__(self, space: gymnasium.Space[Any], num_actions: int, settings: Settings) -> None:
        super().__init__()
        body = environments.make_body(space, settings.hidden, settings.hidden)
        self.body = torch.nn.Sequential(*body, torch.nn.Linear(settings.hidden, num_actions))

    def q(self, observations: torch.Tensor) -> torch.Tensor:
        """The values [B, A]."""
        return self.body(observations)

    def loss(self, target: Dqn, rows: dict[str, torch.Tensor]) -> torch.Tensor:
        """The loss of each item [B]."""
        with torch.no_grad():
            wanted = rows["reward"] + rows["discount"] * target.q(rows["next_observation"]).amax(1)
        value = self.q(rows["observation"]).gather(1, rows["action"][:, None])[:, 0]
        return F.smooth_l1_loss(value, wanted, reduction="none")


class C51(torch.nn.Module):
    """Probabilities of fixed atoms."""

    def __init__(self, space: gymnasium.Space[Any], num_actions: int, settings: Settings) -> None:
        super().__init__()
        self.num_atoms, self.low, self.high = settings.num_atoms, settings.low, settings.high
        body = environments.make_body(space, settings.hidden, settings.hidden)
        self.body = torch.nn.Sequential(*body, torch.nn.Linear(settings.hidden, num_actions * self.num_atoms))
        self.register_buffer("atoms", torch.linspace(self.low, self.high, self.num_atoms))

    def log_probabilities(self, observations: torch.Tensor) -> torch.Tensor:
        """log p [B, A, K]."""
        return self.body(observations).unflatten(1, (-1, self.num_atoms)).log_softmax(-1)

    def q(self, observations: torch.Tensor) -> torch.Tensor:
        """The means [B, A]."""
        return self.log_probabilities(observations).exp() @ self.atoms

    def loss(self, target: C51, rows: dict[str, torch.Tensor]) -> torch.Tensor:
        """The cross entropy to the projected target [B]."""
        each = torch.arange(len(rows["action"]))
        with torch.no_grad():
            following = target.log_probabilities(rows["next_observation"]).exp()
            following = following[each, (following @ self.atoms).argmax(1)]
            atoms = rows["reward"][:, None] + rows["discount"][:, None] * self.atoms
            place = (atoms.clamp(self.low, self.high) - self.low) / (self.high - self.low) * (self.num_atoms - 1)
            # each target atom gives to every atom of the grid the share 1 - distance, if the distance is below 1
            near = (1.0 - (place[:, :, None] - torch.arange(self.num_atoms)).abs()).clamp(min=0.0)
            wanted = (following[:, :, None] * near).sum(1)
        return -(wanted * self.log_probabilities(rows["observation"])[each, rows["action"]]).sum(1)


class Iqn(torch.nn.Module):
    """Quantiles of the return at random levels."""

    def __init__(self, space: gymnasium.Space[Any], num_actions: int, settings: Settings) -> None:
        super().__init__()
        self.num_taus = settings.num_taus
        self.features = environments.make_body(space, settings.hidden)
        self.embedding = frame.mlp(32, settings.hidden, last=torch.nn.ReLU())
        self.head = frame.mlp(settings.hidden, settings.hidden, num_actions)
        self.register_buffer("frequencies", math.pi * torch.arange(32.0))

    def quantiles(self, observations: torch.Tensor, taus: torch.Tensor) -> torch.Tensor:
        """Z_tau [B, K, A] at the levels [B, K] or [1, K]."""
        embedded = self.embedding(torch.cos(taus[..., None] * self.frequencies))
        return self.head(self.features(observations)[:, None] * embedded)

    def q(self, observations: torch.Tensor) -> torch.Tensor:
        """The means [B, A] over evenly spaced levels: random ones would add noise to the choice of an action."""
        return self.quantiles(observations, (torch.arange(16.0)[None] + 0.5) / 16.0).mean(1)

    def loss(self, target: Iqn, rows: dict[str, torch.Tensor]) -> torch.Tensor:
        """The quantile Huber loss [B]."""
        each = torch.arange(len(rows["action"]))
        with torch.no_grad():
            best = target.q(rows["next_observation"]).argmax(1)
            following = target.quantiles(rows["next_observation"], torch.rand(len(each), self.num_taus))[each, :, best]
            wanted = rows["reward"][:, None] + rows["discount"][:, None] * following
        taus = torch.rand(len(each), self.num_taus)
        values = self.quantiles(rows["observation"], taus)
        error = wanted[:, None, :] - values[each, :, rows["action"]][:, :, None]  # [B, tau, tau']
        huber = F.huber_loss(error, torch.zeros_like(error), reduction="none")
        return ((taus[:, :, None] - (error.detach() < 0.0).float()).abs() * huber).mean(2).sum(1)


ALGORITHMS = {"dqn": Dqn, "c51": C51, "iqn": Iqn}


def main(arguments: Sequence[str] | None = None) -> frame.Result:
    """Runs the example and returns its result."""
    settings = frame.parse(Settings, arguments, __doc__)
    run = frame.Run("c51_iqn", settings)
    saved = run.load()

    make = partial(environments.make_env, settings.env)
    envs = gymnasium.vector.SyncVectorEnv([make] * settings.num_envs)
    num_actions = environments.num_actions(envs.single_action_space, settings.env)
    if saved:
        table = saved.table
    else:
        spec = relive.StepSpec.from_spaces(envs.single_observation_space, envs.single_action_space)
        items = relive.Transitions(n_step=settings.n_step, gamma=settings.gamma)
        index = relive.Index(items, limiter=relive.MinSize(settings.min_size))
        table = relive.Table(spec, settings.capacity, index, seed=settings.seed)
    network = ALGORITHMS[settings.algorithm](envs.single_observation_space, num_actions, settings)
    target = deepcopy(network)
    optimizer = torch.optim.Adam(network.parameters(), settings.learning_rate)
    parts: dict[str, Any] = {"network": network, "target": target, "optimizer": optimizer}
    if saved:
        for name, part in parts.items():
            part.load_state_dict(saved.learner[name])

    @torch.no_grad()
    def greedy(observations: np.ndarray) -> np.ndarray:
        return network.q(torch.as_tensor(observations)).argmax(1).numpy()

    run.result.random_return = frame.random_return(make)
    recorded = record(envs, table)
    rng = np.random.default_rng([settings.seed, run.step])
    observations, _ = recorded.reset(seed=int(rng.integers(1 << 31)))

    step, owed = run.step, 0.0
    with run.course(lambda: (table, {name: part.state_dict() for name, part in parts.items()})):
        while run.goes_on(step):
            epsilon = max(settings.epsilon, 1.0 - 5.0 * step / settings.steps)
            explores = rng.random(settings.num_envs) < epsilon
            actions = np.where(explores, rng.integers(num_actions, size=settings.num_envs), greedy(observations))
            observations, *_ = recorded.step(actions)
            step += settings.num_envs
            if table.num_items() >= settings.min_size:
                owed += settings.updates_per_step * settings.num_envs
            while owed >= 1.0:
                owed -= 1.0
                loss = network.loss(target, table.sample(settings.batch_size).to_torch()).mean()
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(network.parameters(), 10.0)
                optimizer.step()
                with torch.no_grad():
                    slow, fast = list(target.parameters()), list(network.parameters())
                    torch._foreach_lerp_(slow, fast, weight=settings.target_rate)
                run.log(loss=loss.item(), epsilon=epsilon)
            if run.evaluation_is_due(step):
                run.evaluated(frame.evaluate(greedy, make, settings.eval_episodes))
    recorded.close()
    table.close()
    return run.result


if __name__ == "__main__":
    main()
