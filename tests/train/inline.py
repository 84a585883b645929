"""A whole run in one process and one thread: nothing in it depends on how fast anything is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np
import torch

from relive import MinSize, Table
from relive.adapters.gymnasium import record

NUM_ENVS = 4


@contextmanager
def one_thread() -> Iterator[None]:
    """What is as small as these networks is slower on several."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def learn(agent: Any, env_id: str, num_updates: int, *, updates_per_round: int = 2, seed: int = 0) -> None:
    """Rounds of a step of each environment and a few updates, after `batch_size` rounds without."""
    policy, rng = agent.policy(), np.random.default_rng(seed)
    with Table(agent.spec(), 10_000, agent.index(MinSize(NUM_ENVS)), seed=seed) as table:
        envs = record(gymnasium.make_vec(env_id, NUM_ENVS), table)
        observations, _ = envs.reset(seed=seed)
        num_rounds = 0
        while agent.num_updates < num_updates:
            actions = policy.explore(agent.parameters(), observations, NUM_ENVS * num_rounds, rng)
            observations, *_ = envs.step(actions)
            num_rounds += 1
            if num_rounds > agent.config.batch_size:
                for _ in range(updates_per_round):
                    batch = table.sample(agent.config.batch_size, columns=agent.columns)
                    priorities = agent.update(batch)
                    if priorities is not None:
                        table.update_priorities(batch.item_keys, priorities)
        envs.close()


def mean_return(agent: Any, env_id: str, num_episodes: int = 10) -> float:
    """Of whole episodes, played with what the agent holds for best."""
    policy, parameters = agent.policy(), agent.evaluation_parameters()
    envs = gymnasium.make_vec(env_id, num_episodes)
    observations, _ = envs.reset(seed=1000)
    returns, over = np.zeros(num_episodes), np.zeros(num_episodes, np.bool_)
    while not over.all():
        observations, rewards, terminated, truncated, _ = envs.step(policy.best(parameters, observations))
        returns += rewards * ~over
        over |= terminated | truncated
    envs.close()
    return float(returns.mean())
