"""Stable-Baselines3: uniform, arrays of observations and of next observations."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer

from benchmarks import workload


class Sb3Buffer:
    """Keys are not part of what it returns; there is nothing to update."""

    has_priorities = False

    def __init__(self, buffer: ReplayBuffer, steps: list[tuple[Any, ...]]) -> None:
        self._buffer = buffer
        self._steps = steps
        self._position = 0

    def append(self) -> None:
        self._buffer.add(*self._steps[self._position])
        self._position = (self._position + 1) % len(self._steps)

    def sample(self, num_items: int) -> tuple[None, Any]:
        return None, self._buffer.sample(num_items)

    def close(self) -> None:
        del self._buffer


def open_hopper(contestant: str, num_steps: int, num_lanes: int) -> Sb3Buffer:
    buffer = ReplayBuffer(
        num_steps,
        spaces.Box(-np.inf, np.inf, (workload.OBSERVATION_SIZE,), np.float32),
        spaces.Box(-1.0, 1.0, (workload.ACTION_SIZE,), np.float32),
        device="cpu",
        n_envs=num_lanes,
    )
    ring = workload.hopper_ring(1000 if num_lanes == 1 else 64, num_lanes)
    _fill(buffer, ring)
    return Sb3Buffer(buffer, _steps(ring))


def open_atari(contestant: str, num_steps: int) -> Sb3Buffer:
    buffer = ReplayBuffer(
        num_steps,
        spaces.Box(0, 255, (workload.STACK, *workload.FRAME), np.uint8),
        spaces.Discrete(6),
        device="cpu",
    )
    ring = workload.atari_ring(500)
    frames = ring.observation[:, 0]
    stacks = np.stack([np.roll(frames, workload.STACK - 1 - k, axis=0) for k in range(workload.STACK)], axis=1)
    stacked = workload.Ring(
        stacks[:, None], ring.action, ring.reward, ring.terminated, np.roll(stacks, -1, axis=0)[:, None]
    )
    _fill(buffer, stacked)
    return Sb3Buffer(buffer, _steps(stacked))


def _steps(ring: workload.Ring) -> list[tuple[Any, ...]]:
    infos: list[dict[str, Any]] = [{} for _ in range(ring.num_lanes)]
    return [
        (
            ring.observation[t],
            ring.next_observation[t],
            ring.action[t],
            ring.reward[t],
            ring.terminated[t],
            infos,
        )
        for t in range(ring.length)
    ]


def _fill(buffer: ReplayBuffer, ring: workload.Ring) -> None:
    """Writes the arrays directly: adding ten million steps one by one would take minutes."""
    for begin in range(0, buffer.buffer_size, ring.length):
        rows = slice(begin, min(begin + ring.length, buffer.buffer_size))
        taken = rows.stop - rows.start
        buffer.observations[rows] = ring.observation[:taken]
        buffer.next_observations[rows] = ring.next_observation[:taken]
        buffer.actions[rows] = ring.action[:taken].reshape(taken, ring.num_lanes, -1)
        buffer.rewards[rows] = ring.reward[:taken]
        buffer.dones[rows] = ring.terminated[:taken]
        buffer.timeouts[rows] = 0.0
    buffer.full = True
    buffer.pos = 0
