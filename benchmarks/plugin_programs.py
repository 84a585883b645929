"""The programs of benchmarks.plugins, each with the library's own buffer or with relive's: `CASES`.

A program runs in the environment of its library. It measures seconds of the process on the processor, of the whole
training and of the calls of the buffer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

Measured = dict[str, float]
CALLS = ("add", "sample", "update_priorities", "update_weight")


class Case(NamedTuple):
    """A program.

    Attributes:
        peer: The library, by the name of its environment (benchmarks.peers).
        steps_by: The program takes the steps of the command line divided by this number.
        run: (is_ours, seed, steps) to total_s, replay_s and mean_return.
        title: The name on the page.
    """

    peer: str
    steps_by: int
    run: Callable[[bool, int, int], Measured]
    title: str


def sb3_dqn(is_ours: bool, seed: int, steps: int) -> Measured:
    """Stable-Baselines3's DQN on CartPole with uniform draws."""
    return sb3_run("DQN", is_ours, seed, steps)


def sb3_dqn_prioritized(is_ours: bool, seed: int, steps: int) -> Measured:
    """The same, with priorities on relive's side: the library has none."""
    return sb3_run("DQN", is_ours, seed, steps, has_priorities=True)


def sb3_sac(is_ours: bool, seed: int, steps: int) -> Measured:
    """Stable-Baselines3's SAC on Pendulum."""
    return sb3_run("SAC", is_ours, seed, steps)


def sb3_run(name: str, is_ours: bool, seed: int, steps: int, has_priorities: bool = False) -> Measured:
    """A run of Stable-Baselines3. has_priorities: on relive's side, for DQN alone."""
    import numpy as np
    import stable_baselines3 as sb3
    from stable_baselines3.common.buffers import ReplayBuffer

    from relive.adapters import sb3 as ours

    class PrioritizedDQN(ours.Prioritized, sb3.DQN):  # type: ignore[misc, name-defined]
        """DQN with prioritized replay."""

    options: dict[str, Any] = {"device": "cpu", "seed": seed}
    kind, env = getattr(sb3, name), "Pendulum-v1"
    if name == "DQN":
        env = "CartPole-v1"
        options.update(learning_rate=2.3e-3, batch_size=64, learning_starts=1000, train_freq=4, gradient_steps=1)
        options.update(target_update_interval=500, exploration_fraction=0.16, policy_kwargs={"net_arch": [256, 256]})
    if is_ours and has_priorities:
        kind = PrioritizedDQN
    else:
        options["replay_buffer_class"] = ours.ReplayBuffer if is_ours else ReplayBuffer
    model = kind("MlpPolicy", env, buffer_size=100_000, **options)
    spent = timed(model.replay_buffer)
    began = time.process_time()
    model.learn(steps)
    total_s = time.process_time() - began
    returns = [episode["r"] for episode in model.ep_info_buffer][-20:]
    return {"total_s": total_s, "replay_s": sum(spent), "mean_return": float(np.mean(returns))}


def rllib_dqn_prioritized(is_ours: bool, seed: int, steps: int) -> Measured:
    """RLlib's DQN on CartPole in one process, with its default prioritized buffer, whose tree is Python."""
    import torch
    from ray.rllib.algorithms.dqn import DQNConfig

    torch.set_num_threads(1)
    own = "relive.adapters.rllib." if is_ours else ""
    buffer = {"type": f"{own}PrioritizedEpisodeReplayBuffer", "capacity": 100_000, "alpha": 0.6, "beta": 0.4}
    if is_ours:
        buffer |= {"n_step": 1, "gamma": 0.99}
    config = DQNConfig().environment("CartPole-v1").debugging(seed=seed).env_runners(num_env_runners=0)
    config = config.training(n_step=1, gamma=0.99, replay_buffer_config=buffer, train_batch_size_per_learner=64)
    algorithm = config.reporting(min_sample_timesteps_per_iteration=500, min_time_s_per_iteration=0).build_algo()
    spent = timed(algorithm.local_replay_buffer)
    began, told = time.process_time(), {}
    while told.get("num_env_steps_sampled_lifetime", 0) < steps:
        told = algorithm.train()["env_runners"]
    total_s = time.process_time() - began
    algorithm.stop()
    return {"total_s": total_s, "replay_s": sum(spent), "mean_return": float(told["episode_return_mean"])}


def tianshou_dqn_prioritized(is_ours: bool, seed: int, steps: int) -> Measured:
    """Tianshou's DQN on CartPole with priorities on both sides. The library's tree is compiled by Numba."""
    import gymnasium
    import numpy as np
    import torch
    from tianshou import data as library
    from tianshou.algorithm.modelfree.dqn import DQN, DiscreteQLearningPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.env import DummyVectorEnv
    from tianshou.trainer import OffPolicyTrainerParams
    from tianshou.utils.net.common import Net

    from relive.adapters import tianshou as ours

    torch.set_num_threads(1)
    np.random.seed(seed)
    torch.manual_seed(seed)
    returns: list[float] = []

    class Noted(gymnasium.Wrapper):  # type: ignore[misc, type-arg]
        """Notes the return of each episode."""

        total = 0.0

        def step(self, action: Any) -> Any:
            state, reward, is_over, is_cut, info = self.env.step(action)
            self.total += float(reward)
            if is_over or is_cut:
                returns.append(self.total)
                self.total = 0.0
            return state, reward, is_over, is_cut, info

    envs = DummyVectorEnv([lambda: Noted(gymnasium.make("CartPole-v1"))])
    envs.seed(seed)
    kind = ours.PrioritizedVectorReplayBuffer if is_ours else library.PrioritizedVectorReplayBuffer
    buffer = kind(100_000, 1, alpha=0.6, beta=0.4)
    net = Net(state_shape=(4,), action_shape=2, hidden_sizes=[256, 256])
    space = envs.action_space[0]
    policy = DiscreteQLearningPolicy(model=net, action_space=space, eps_training=0.1)
    dqn = DQN(policy=policy, optim=AdamOptimizerFactory(lr=1e-3), gamma=0.99, target_update_freq=200)
    collector = library.Collector(dqn, envs, buffer, exploration_noise=True)
    collector.reset()
    collector.collect(n_step=1000, random=True)
    options = {"batch_size": 64, "collection_step_num_env_steps": 4, "update_step_num_gradient_steps_per_sample": 0.25}
    options |= {"max_epochs": 1, "epoch_num_steps": steps - 1000, "test_collector": None, "verbose": False}
    spent = timed(buffer)
    began = time.process_time()
    dqn.run_training(OffPolicyTrainerParams(training_collector=collector, show_progress=False, **options))
    total_s = time.process_time() - began
    return {"total_s": total_s, "replay_s": sum(spent), "mean_return": float(np.mean(returns[-20:]))}


def timed(buffer: Any) -> list[float]:
    """Adds the seconds of each call of a buffer to the list that is returned."""
    spent = [0.0]
    for name in CALLS:
        call = getattr(buffer, name, None)
        if call is None:
            continue

        def wrapped(*arguments: Any, _call: Any = call, **options: Any) -> Any:
            began = time.process_time()
            made = _call(*arguments, **options)
            spent[0] += time.process_time() - began
            return made

        setattr(buffer, name, wrapped)
    return spent


CASES = {
    "sb3_dqn": Case("sb3", 1, sb3_dqn, "Stable-Baselines3, DQN"),
    "sb3_dqn_prioritized": Case("sb3", 1, sb3_dqn_prioritized, "Stable-Baselines3, DQN; priorities with relive alone"),
    "sb3_sac": Case("sb3", 10, sb3_sac, "Stable-Baselines3, SAC"),
    "tianshou_dqn_prioritized": Case(
        "tianshou", 1, tianshou_dqn_prioritized, "Tianshou, DQN with priorities on both sides"
    ),
    "rllib_dqn_prioritized": Case("rllib", 4, rllib_dqn_prioritized, "RLlib, DQN with priorities on both sides"),
}
