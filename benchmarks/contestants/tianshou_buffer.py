"""Tianshou: prioritized, a segment tree in numba."""

from __future__ import annotations

from typing import Any

import numpy as np
from tianshou.data import Batch, PrioritizedReplayBuffer, PrioritizedVectorReplayBuffer, ReplayBuffer

from benchmarks import workload

CHUNK = 100_000


class TianshouBuffer:
    def __init__(self, buffer: Any, steps: list[dict[str, Any]], lane_ids: np.ndarray | None) -> None:
        self._buffer = buffer
        self._steps = steps
        self._lane_ids = lane_ids
        self._position = 0
        self.has_priorities = hasattr(buffer, "weight")

    def append(self) -> None:
        self._buffer.add(Batch(**self._steps[self._position]), self._lane_ids)
        self._position = (self._position + 1) % len(self._steps)

    def sample(self, num_items: int) -> tuple[np.ndarray, Any]:
        batch, indices = self._buffer.sample(num_items)
        return indices, batch

    def update(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        self._buffer.update_weight(keys, priorities)

    def close(self) -> None:
        del self._buffer


def open_hopper(contestant: str, num_steps: int, num_lanes: int) -> TianshouBuffer:
    options = {"alpha": workload.PRIORITY_EXPONENT, "beta": workload.BETA}
    if num_lanes == 1:
        buffer = PrioritizedReplayBuffer(num_steps, **options)
        steps = _steps(workload.hopper_ring(1000, 1))
        lane_ids = None
    else:
        buffer = PrioritizedVectorReplayBuffer(num_steps, num_lanes, **options)
        steps = _steps(workload.hopper_ring(64, num_lanes))
        lane_ids = np.arange(num_lanes)
    filled = TianshouBuffer(buffer, steps, lane_ids)
    filled.append()  # the first step lays the arrays out
    _fill(buffer, workload.hopper_ring(1000, 1))
    for part in getattr(buffer, "buffers", []):
        part._size = part.maxsize
    priorities = workload.random_priorities(CHUNK)
    for begin in range(0, buffer.maxsize, CHUNK):
        taken = min(CHUNK, buffer.maxsize - begin)
        buffer.update_weight(np.arange(begin, begin + taken), priorities[:taken])
    return filled


def open_atari(contestant: str, num_steps: int) -> TianshouBuffer:
    """Frames are stored once; stacks and next observations are put together at a sample."""
    buffer = ReplayBuffer(num_steps, stack_num=workload.STACK, ignore_obs_next=True)
    ring = workload.atari_ring(500)
    steps = _steps(ring)
    filled = TianshouBuffer(buffer, [{**one, "obs_next": one["obs"]} for one in steps], None)
    filled.append()
    _fill(buffer, ring)
    return filled


def _steps(ring: workload.Ring) -> list[dict[str, Any]]:
    lanes: Any = 0 if ring.num_lanes == 1 else slice(None)
    never = np.zeros(ring.num_lanes, dtype=bool)[lanes]
    return [
        {
            "obs": ring.observation[t, lanes],
            "act": ring.action[t, lanes],
            "rew": ring.reward[t, lanes],
            "terminated": ring.terminated[t, lanes],
            "truncated": never,
            "obs_next": ring.next_observation[t, lanes],
            "info": {},
        }
        for t in range(ring.length)
    ]


def _fill(buffer: ReplayBuffer, ring: workload.Ring) -> None:
    """Writes the arrays directly: adding ten million steps one by one would take minutes."""
    rows = np.arange(buffer.maxsize) % ring.length
    stored = buffer._meta
    columns = {
        "obs": ring.observation,
        "act": ring.action,
        "rew": ring.reward,
        "terminated": ring.terminated,
        "done": ring.terminated,
        "obs_next": ring.next_observation,
    }
    for name, values in columns.items():
        if name in stored.get_keys():
            for begin in range(0, buffer.maxsize, CHUNK):
                stored[name][begin : begin + CHUNK] = values[rows[begin : begin + CHUNK], 0]
    buffer._size = buffer.maxsize
