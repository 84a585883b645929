"""Evaluates a policy greedily: one episode on each seed, all episodes stepped together."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from relive.agents.agent import Policy
from relive.train.acting.environments import environment_errors, is_atari, make_environments
from relive.train.child import END_S
from relive.train.signals import GRACE_S, Call


@final
@dataclass(frozen=True, eq=False)
class Played:
    """Episodes that were played, one for each of n seeds.

    Attributes:
        returns: Undiscounted returns so far [n].
        lengths: Steps so far [n].
        ended: Whether each episode has ended [n].
    """

    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    ended: NDArray[np.bool_]

    @property
    def num_cut(self) -> int:
        """Episodes that had not ended."""
        return int((~self.ended).sum())


@final
class Evaluator:
    """Plays the best actions of a policy. It keeps its environments between calls. One thread uses it.

    Attributes:
        num_ended: Ended episodes of the current call, for progress.
        num_steps: Steps of the current call.
    """

    def __init__(self, env_id: str, policy: Policy, max_episode_steps: int) -> None:
        self._env_id = env_id
        self._policy = policy
        self._max_episode_steps = max_episode_steps
        self._environments: dict[int, VectorEnv[Any, Any, Any]] = {}
        self.num_ended = self.num_steps = 0

    def play(
        self,
        parameters: Mapping[str, NDArray[np.float32]],
        seeds: Sequence[int],
        go_on: Callable[[], bool] = lambda: True,
        ends_s: float = math.inf,
    ) -> Played:
        """Plays one greedy episode on each seed.

        Args:
            parameters: Parameters of the policy.
            seeds: Seeds of the episodes.
            go_on: Called after every step; False ends all episodes.
            ends_s: Time on time.monotonic() at which go_on will return False. A call of an environment that has not
                returned soon after it is interrupted, if a run listens for signals (`relive.train.signals`).

        Returns:
            The episodes. An episode of max_episode_steps counts as ended.

        Raises:
            EnvironmentRaised: An environment raised an error.
            EnvironmentHangs: A call of an environment was interrupted.
        """
        call = Call("an environment of an evaluation", ends_s, GRACE_S)
        with call, environment_errors("in the first reset of an evaluation", 0):
            envs = self._environments.get(len(seeds))
            if envs is None:
                envs = self._environments[len(seeds)] = make_environments(self._env_id, len(seeds), evaluation=True)
            observations, _ = envs.reset(seed=np.asarray(seeds) if is_atari(self._env_id) else list(seeds))  # type: ignore[arg-type]
        returns, lengths = np.zeros(len(seeds)), np.zeros(len(seeds), np.int64)
        running = np.ones(len(seeds), np.bool_)
        self.num_ended = self.num_steps = 0
        actions = self._policy.best(parameters, observations)  # an environment that is done repeats its last action
        for step in range(self._max_episode_steps):
            if step:
                actions[running] = self._policy.best(parameters, observations[running])
            with call, environment_errors(f"in step {step + 1:,} of an evaluation", step + 1):
                observations, rewards, terminated, truncated, _ = envs.step(actions)
            returns[running] += rewards[running]
            lengths[running] += 1
            self.num_steps += int(running.sum())
            running &= ~(terminated | truncated)
            self.num_ended = len(seeds) - int(running.sum())
            if not running.any():
                break
            if not go_on():
                return Played(returns, lengths, ~running)
        return Played(returns, lengths, np.ones(len(seeds), np.bool_))

    def close(self) -> None:
        """Closes the environments, within 5 s."""
        call = Call("the close of an environment of an evaluation", time.monotonic() + END_S)
        with call, environment_errors("when it was closed"), ExitStack() as stack:
            for envs in self._environments.values():
                stack.callback(envs.close)
            self._environments.clear()
