"""A parallel environment of two agents, whose observation is (agent, episode, t)."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from pettingzoo import ParallelEnv


class Pair(ParallelEnv):  # type: ignore[misc]
    """Agents x and y. Both terminate after `length` steps."""

    metadata: dict[str, Any] = {"name": "pair"}

    def __init__(self, length: int = 1000) -> None:
        self.possible_agents = ["x", "y"]
        self.agents: list[str] = []
        self.length, self.episode, self.t = length, -1, 0

    def observation_space(self, agent: str) -> Any:
        return gymnasium.spaces.Box(-1000, 1000, (3,), np.float32)

    def action_space(self, agent: str) -> Any:
        return gymnasium.spaces.Discrete(2)

    def shown(self) -> dict[str, Any]:
        return {agent: np.array([number, self.episode, self.t], np.float32) for number, agent in enumerate(self.agents)}

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents = list(self.possible_agents)
        self.episode, self.t = self.episode + 1, 0
        return self.shown(), {agent: {} for agent in self.agents}

    def step(self, actions: Any) -> Any:
        assert set(actions) == set(self.agents)
        self.t += 1
        observations, over = self.shown(), self.t == self.length
        rewards, infos = dict.fromkeys(actions, 1.0), {agent: {} for agent in actions}
        terminations, truncations = dict.fromkeys(actions, over), dict.fromkeys(actions, False)
        self.agents = [] if over else self.agents
        return observations, rewards, terminations, truncations, infos
