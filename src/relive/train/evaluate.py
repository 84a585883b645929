"""Greedy evaluation: one episode on each seed, all of them stepped together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from relive.agents.agent import Policy
from relive.train.environments import is_atari, make_environments


@final
class Evaluator:
    """Plays a policy's best actions, with given parameters. Keeps its environments between calls; one thread."""

    def __init__(self, env_id: str, policy: Policy, max_episode_steps: int) -> None:
        self._env_id = env_id
        self._policy = policy
        self._max_episode_steps = max_episode_steps
        self._environments: dict[int, VectorEnv[Any, Any, Any]] = {}

    def returns(
        self,
        parameters: Mapping[str, NDArray[np.float32]],
        seeds: Sequence[int],
        go_on: Callable[[], bool] = lambda: True,
    ) -> NDArray[np.float64] | None:
        """The undiscounted return of one greedy episode on each seed, [len(seeds)].

        Episodes longer than max_episode_steps are cut there. Returns None as soon as go_on() says False.
        """
        envs = self._environments.get(len(seeds))
        if envs is None:
            envs = self._environments[len(seeds)] = make_environments(self._env_id, len(seeds), evaluation=True)
        observations, _ = envs.reset(seed=np.asarray(seeds) if is_atari(self._env_id) else list(seeds))  # type: ignore[arg-type]
        returns = np.zeros(len(seeds))
        running = np.ones(len(seeds), np.bool_)
        actions = self._policy.best(parameters, observations)  # those who are done repeat their last one
        for _ in range(self._max_episode_steps):
            if not go_on():
                return None
            actions[running] = self._policy.best(parameters, observations[running])
            observations, rewards, terminated, truncated, _ = envs.step(actions)
            returns[running] += rewards[running]
            running &= ~(terminated | truncated)
            if not running.any():
                break
        return returns

    def close(self) -> None:
        """Closes the environments."""
        for envs in self._environments.values():
            envs.close()
        self._environments.clear()
