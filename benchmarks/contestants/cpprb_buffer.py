"""cpprb: prioritized, segment trees in C++. Its update is deferred: the next sample pays for it."""

from __future__ import annotations

from typing import Any

import cpprb
import numpy as np

from benchmarks import workload

CHUNK = 100_000


class CpprbBuffer:
    has_priorities = True

    def __init__(self, buffer: Any, steps: list[dict[str, Any]]) -> None:
        self._buffer = buffer
        self._steps = steps
        self._position = 0

    def append(self) -> None:
        self._buffer.add(**self._steps[self._position])
        self._position = (self._position + 1) % len(self._steps)

    def sample(self, num_items: int) -> tuple[Any, Any]:
        batch = self._buffer.sample(num_items, beta=workload.BETA)
        return batch["indexes"], batch

    def update(self, keys: Any, priorities: np.ndarray) -> None:
        self._buffer.update_priorities(keys, priorities)

    def close(self) -> None:
        del self._buffer


def open_hopper(contestant: str, num_steps: int, num_lanes: int) -> CpprbBuffer:
    fields = {
        "obs": {"shape": workload.OBSERVATION_SIZE},
        "act": {"shape": workload.ACTION_SIZE},
        "rew": {},
        "next_obs": {"shape": workload.OBSERVATION_SIZE},
        "done": {},
    }
    buffer = cpprb.PrioritizedReplayBuffer(num_steps, fields, alpha=workload.PRIORITY_EXPONENT)
    ring = workload.hopper_ring(1000, 1)
    chunk = {
        "obs": np.resize(ring.observation[:, 0], (CHUNK, workload.OBSERVATION_SIZE)),
        "act": np.resize(ring.action[:, 0], (CHUNK, workload.ACTION_SIZE)),
        "rew": np.resize(ring.reward[:, 0], CHUNK),
        "next_obs": np.resize(ring.next_observation[:, 0], (CHUNK, workload.OBSERVATION_SIZE)),
        "done": np.resize(ring.terminated[:, 0], CHUNK).astype(np.float32),
    }
    priorities = workload.random_priorities(CHUNK)
    for begin in range(0, num_steps, CHUNK):
        taken = min(CHUNK, num_steps - begin)
        buffer.add(**{name: values[:taken] for name, values in chunk.items()}, priorities=priorities[:taken])
    return CpprbBuffer(buffer, _steps(workload.hopper_ring(1000 if num_lanes == 1 else 64, num_lanes)))


def _steps(ring: workload.Ring) -> list[dict[str, Any]]:
    lanes: Any = 0 if ring.num_lanes == 1 else slice(None)
    return [
        {
            "obs": ring.observation[t, lanes],
            "act": ring.action[t, lanes],
            "rew": ring.reward[t, lanes],
            "next_obs": ring.next_observation[t, lanes],
            "done": ring.terminated[t, lanes].astype(np.float32),
        }
        for t in range(ring.length)
    ]
