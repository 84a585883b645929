"""The prepared data of every measurement: the same for each contestant, made before any clock runs.

Each ring is a closed trajectory: the next observation of its last step is the observation of its first, so that it can
be appended round and round. Contestants take from it whatever shape their own interface asks for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

OBSERVATION_SIZE = 11  # Hopper
ACTION_SIZE = 3
FRAME = (84, 84)
STACK = 4
PRIORITY_EXPONENT = 0.6
BETA = 0.4


@dataclass(frozen=True)
class Ring:
    """`length` steps of `num_lanes` environments; every array is [length, num_lanes, ...]."""

    observation: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    next_observation: np.ndarray

    @property
    def length(self) -> int:
        return len(self.reward)

    @property
    def num_lanes(self) -> int:
        return self.reward.shape[1]


def hopper_ring(length: int, num_lanes: int, episode_length: int = 1000) -> Ring:
    rng = np.random.default_rng(1)
    observation = rng.standard_normal((length, num_lanes, OBSERVATION_SIZE), dtype=np.float32)
    terminated = np.zeros((length, num_lanes), dtype=bool)
    terminated[episode_length - 1 :: episode_length] = True
    return Ring(
        observation=observation,
        action=rng.standard_normal((length, num_lanes, ACTION_SIZE), dtype=np.float32),
        reward=rng.standard_normal((length, num_lanes), dtype=np.float32),
        terminated=terminated,
        next_observation=np.roll(observation, -1, axis=0),
    )


def atari_ring(length: int) -> Ring:
    """One lane of single frames (no stack): observation is [length, 1, 84, 84], an episode every 500 steps."""
    rng = np.random.default_rng(2)
    observation = rng.integers(0, 256, (length, 1, *FRAME), dtype=np.uint8)
    terminated = np.zeros((length, 1), dtype=bool)
    terminated[499::500] = True
    return Ring(
        observation=observation,
        action=rng.integers(0, 6, (length, 1)),
        reward=rng.standard_normal((length, 1), dtype=np.float32),
        terminated=terminated,
        next_observation=np.roll(observation, -1, axis=0),
    )


def random_priorities(num_values: int) -> np.ndarray:
    return np.random.default_rng(3).random(num_values) + 1e-3
