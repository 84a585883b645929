"""The same evaluation for every side: one episode on each seed, deterministic actions. Imports nothing of any side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np

_FINAL_SEEDS = 2**30 + 2**29
_CURVE_SEEDS = 2**30


def final_seeds(seed: int, num_episodes: int) -> list[int]:
    """Seeds of environments for the last evaluation of the run with this seed: the same for every side."""
    return [_FINAL_SEEDS + 1_000 * seed + episode for episode in range(num_episodes)]


def curve_seeds(seed: int, point: int, num_episodes: int) -> list[int]:
    """The same for point number `point` of its curve."""
    first = _CURVE_SEEDS + 1_000_000 * seed + point * num_episodes
    return [first + episode for episode in range(num_episodes)]


def play(env_id: str, seeds: Sequence[int], act: Callable[[Any], Any]) -> list[float]:
    """Undiscounted returns of whole episodes. act: observations [n, ...] -> actions [n, ...] of the environment."""
    envs = gymnasium.make_vec(env_id, num_envs=len(seeds), vectorization_mode="sync")
    try:
        observations, _ = envs.reset(seed=list(seeds))
        returns, over = np.zeros(len(seeds)), np.zeros(len(seeds), bool)
        while not over.all():
            observations, rewards, terminated, truncated, _ = envs.step(act(observations))
            returns += np.where(over, 0.0, rewards)
            over |= terminated | truncated
    finally:
        envs.close()
    return [float(value) for value in returns]
