"""Batches for agents without a table, and the spaces of small environments."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from relive.agents.agent import Spaces


class MadeBatch:
    """Columns by name, with weights of their own: what an update reads of a batch."""

    def __init__(self, weights: np.ndarray | None = None, **columns: Any) -> None:
        self.columns = {name: np.ascontiguousarray(values) for name, values in columns.items()}
        self.num_items = len(self.columns["reward"])
        self._weights = np.ones(self.num_items, np.float32) if weights is None else np.asarray(weights, np.float32)

    def __getitem__(self, name: str) -> Any:
        return self.columns[name]

    def weights(self, beta: float) -> Any:
        return self._weights


def discrete_spaces(shape: tuple[int, ...] = (4,), num_actions: int = 2, dtype: str = "float32") -> Spaces:
    low, high = (0, 255) if dtype == "uint8" else (-np.inf, np.inf)
    box = gymnasium.spaces.Box(low, high, shape, np.dtype(dtype).type)
    return Spaces("Made-v0", box, gymnasium.spaces.Discrete(num_actions))


def box_spaces(size: int = 3, low: Any = -2.0, high: Any = 2.0, num_actions: int = 2) -> Spaces:
    bounds = (np.full(num_actions, bound, np.float32) if np.ndim(bound) == 0 else np.asarray(bound, np.float32)
              for bound in (low, high))  # fmt: skip
    return Spaces(
        "Made-v0", gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32), gymnasium.spaces.Box(*bounds, None)
    )


def discrete_batch(seed: int, rows: int = 16, spaces: Spaces | None = None) -> MadeBatch:
    spaces = spaces or discrete_spaces()
    rng = np.random.default_rng(seed)
    states = rng.normal(size=(2, rows, *spaces.observation_shape)).astype(np.float32)
    if spaces.observation.dtype == np.uint8:
        states = rng.integers(0, 256, states.shape).astype(np.uint8)
    reward, discount, weights = rng.random((3, rows)).astype(np.float32)
    discount[::5] = 0.0
    actions = rng.integers(0, int(spaces.action.n), rows)
    return MadeBatch(
        weights, observation=states[0], action=actions, reward=reward, discount=discount, next_observation=states[1]
    )


def continuous_batch(seed: int, rows: int = 32, spaces: Spaces | None = None) -> MadeBatch:
    spaces = spaces or box_spaces()
    rng = np.random.default_rng(seed)
    states = rng.normal(size=(2, rows, *spaces.observation_shape)).astype(np.float32)
    reward, discount, weights = rng.random((3, rows)).astype(np.float32)
    discount[::5] = 0.0
    actions = rng.uniform(spaces.action.low, spaces.action.high, (rows, *spaces.action.shape)).astype(np.float32)
    return MadeBatch(
        weights, observation=states[0], action=actions, reward=reward, discount=discount, next_observation=states[1]
    )
