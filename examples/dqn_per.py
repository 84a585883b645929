"""DQN with prioritized replay, in one process.

Papers: Mnih et al. 2015 (DQN), van Hasselt et al. 2016 (double DQN), Schaul et al. 2016 (prioritized replay).

    target    = R + discount * Q_target(s', argmax_a Q(s', a))     R, discount: the n-step return of the table
    loss      = mean_i w_i * huber(target_i - Q(s_i, a_i))         w_i = (N p_i)^-beta / max_j w_j
    priority  = |target - Q(s, a)| + 1e-6                          p_i ~ priority^0.6

Deviations from the papers: three-step returns; Adam; the target network follows by a moving average; the importance
exponent beta grows linearly from 0.4 to 1 over the run.
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
    """The settings of DQN."""

    env: str = "CartPole-v1"
    steps: int = 50_000
    hidden: int = 128
    capacity: int = 50_000
    min_size: int = 500  # steps before the first update
    num_envs: int = 4
    batch_size: int = 128
    updates_per_step: float = 0.5
    learning_rate: float = 1e-3
    gamma: float = frame.within(0, 1, 0.99)
    n_step: int = 3
    priority_exponent: float = 0.6  # 0: uniform draws
    beta: float = 0.4
    target_rate: float = 0.005
    epsilon: float = 0.05  # after the first fifth of the run
    learning_rate_end: float = 0.05  # the last learning rate, as a share of the first


class Learner:
    """The network, its target, its optimizer and one update."""

    def __init__(self, settings: Settings, num_inputs: int, num_actions: int) -> None:
        self.settings = settings
        self.q = frame.mlp(num_inputs, settings.hidden, settings.hidden, num_actions)
        self.target = deepcopy(self.q)
        self.optimizer = torch.optim.Adam(self.q.parameters(), settings.learning_rate)

    def greedy(self, observations: np.ndarray) -> np.ndarray:
        """The best action of each observation [M, ...]."""
        with torch.no_grad():
            return self.q(torch.as_tensor(observations)).argmax(1).numpy()

    def update(self, batch: relive.Batch, progress: float) -> tuple[float, np.ndarray]:
        """One step of the optimizer, at this share of the run. Returns the loss and the new priorities of the batch."""
        settings, rows = self.settings, batch.to_torch()
        beta = settings.beta + (1.0 - settings.beta) * progress
        rate = settings.learning_rate * max(settings.learning_rate_end, 1.0 - progress)
        self.optimizer.param_groups[0]["lr"] = rate
        with torch.no_grad():
            best = self.q(rows["next_observation"]).argmax(1, keepdim=True)
            value = self.target(rows["next_observation"]).gather(1, best)[:, 0]
            target = rows["reward"] + rows["discount"] * value
        chosen = self.q(rows["observation"]).gather(1, rows["action"][:, None])[:, 0]
        weights = torch.as_tensor(batch.weights(beta=beta)).float()
        loss = (weights * F.smooth_l1_loss(chosen, target, reduction="none")).mean()
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.q.parameters(), 10.0)
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(self.target.parameters()), list(self.q.parameters()), weight=settings.target_rate)
        return loss.item(), (target - chosen.detach()).abs().numpy() + 1e-6

    def state(self) -> dict[str, Any]:
        """Everything that a continued run needs."""
        return {name: getattr(self, name).state_dict() for name in ("q", "target", "optimizer")}

    def load(self, state: dict[str, Any]) -> None:
        """Takes a state of `state()`."""
        for name, value in state.items():
            getattr(self, name).load_state_dict(value)


def make_table(settings: Settings, envs: gymnasium.vector.VectorEnv[Any, Any, Any]) -> relive.Table:
    """One table: transitions over n steps, drawn by priority."""
    spec = relive.StepSpec.from_spaces(envs.single_observation_space, envs.single_action_space)
    index = relive.Index(
        relive.Transitions(n_step=settings.n_step, gamma=settings.gamma),
        relive.Prioritized(settings.priority_exponent),
        relive.MinSize(settings.min_size),
    )
    return relive.Table(spec, settings.capacity, index, seed=settings.seed)


def main(arguments: Sequence[str] | None = None) -> frame.Result:
    """Runs the example and returns its result."""
    settings = frame.parse(Settings, arguments, __doc__)
    run = frame.Run("dqn_per", settings)
    saved = run.load()

    def make_env() -> gymnasium.Env[Any, Any]:
        return gymnasium.make(settings.env)

    envs = gymnasium.vector.SyncVectorEnv([make_env] * settings.num_envs)
    num_actions = environments.num_actions(envs.single_action_space, settings.env)
    table = saved.table if saved else make_table(settings, envs)
    learner = Learner(settings, envs.single_observation_space.shape[0], num_actions)
    if saved:
        learner.load(saved.learner)
    run.result.random_return = frame.random_return(make_env)
    recorded = record(envs, table)
    rng = np.random.default_rng([settings.seed, run.step])
    observations, _ = recorded.reset(seed=int(rng.integers(1 << 31)))

    step, owed = run.step, 0.0
    with run.course(lambda: (table, learner.state())):
        while run.goes_on(step):
            progress = step / settings.steps
            epsilon = max(settings.epsilon, 1.0 - 5.0 * progress * (1.0 - settings.epsilon))
            actions = learner.greedy(observations)
            explores = rng.random(settings.num_envs) < epsilon
            actions = np.where(explores, rng.integers(num_actions, size=settings.num_envs), actions)
            observations, *_ = recorded.step(actions)
            step += settings.num_envs
            if table.num_items() < settings.min_size:
                continue
            owed += settings.updates_per_step * settings.num_envs
            while owed >= 1.0:
                batch = table.sample(settings.batch_size)
                loss, priorities = learner.update(batch, progress)
                table.update_priorities(batch.item_keys, priorities)
                owed -= 1.0
                run.log(loss=loss, epsilon=epsilon)
            if run.evaluation_is_due(step):
                run.evaluated(frame.evaluate(learner.greedy, make_env, settings.eval_episodes))
    recorded.close()
    table.close()
    return run.result


if __name__ == "__main__":
    main()
