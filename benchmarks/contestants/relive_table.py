"""relive: the table under measurement, through its public face only."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import relive
from benchmarks import workload

CHUNK = 50_000
HOPPER_SPEC = {
    "observation": relive.ArraySpec((workload.OBSERVATION_SIZE,), "float32", kind="state"),
    "action": relive.ArraySpec((workload.ACTION_SIZE,), "float32"),
    "reward": relive.ArraySpec((), "float32"),
}
# The same 15 numbers a step in nested columns; a batch has 12: twice four states, two actions, reward, discount.
NESTED_SPEC = {
    "observation": {
        "joints": relive.ArraySpec((5,), "float32", kind="state"),
        "velocities": relive.ArraySpec((4,), "float32", kind="state"),
        "height": relive.ArraySpec((), "float32", kind="state"),
        "goal": relive.ArraySpec((), "float32", kind="state"),
    },
    "action": {
        "arm": relive.ArraySpec((2,), "float32"),
        "gripper": relive.ArraySpec((), "float32"),
    },
    "reward": relive.ArraySpec((), "float32"),
}
ATARI_SPEC = {
    "observation": relive.ArraySpec(workload.FRAME, "uint8", kind="state"),
    "action": relive.ArraySpec((), "int64"),
    "reward": relive.ArraySpec((), "float32"),
}
HOPPER_COLUMNS = ("observation", "action", "reward", "discount", "next_observation")
NESTED_COLUMNS = (
    *(f"{state}/{part}" for state in ("observation", "next_observation") for part in NESTED_SPEC["observation"]),
    "action/arm",
    "action/gripper",
    "reward",
    "discount",
)


class ReliveTable:
    """A filled table, one writer on it, and the columns a sample reads."""

    def __init__(self, table: Any, writer: Any, steps: list[dict[str, Any]], columns: Sequence[str]) -> None:
        self.table = table
        self._writer = writer
        self._steps = steps
        self._columns = columns
        self._position = 0
        self.has_priorities = _is_prioritized(table)

    def append(self) -> None:
        self._writer.append(**self._steps[self._position])
        self._position = (self._position + 1) % len(self._steps)

    def sample(self, num_items: int) -> tuple[Any, Any]:
        batch = self.table.sample(num_items)
        gathered = [batch[name] for name in self._columns]
        if self.has_priorities:
            gathered.append(batch.weights(workload.BETA))
        return batch.item_keys, gathered

    def update(self, keys: Any, priorities: np.ndarray) -> None:
        self.table.update_priorities(keys, priorities)

    def close(self) -> None:
        self._writer.close()
        self.table.close()


def _is_prioritized(table: Any) -> bool:
    return all(isinstance(index.sampler, relive.Prioritized) for index in table.indexes.values())


def make_table(spec: dict[str, Any], num_steps: int, sampler: Any, storage: str, **items: Any) -> Any:
    """storage: "local", or "shared" for a table in shared memory under a name of this process."""
    memory = relive.LocalMemory() if storage == "local" else relive.SharedMemory(f"benchmark-{os.getpid()}")
    index = relive.Index(relive.Transitions(gamma=0.99, **items), sampler, relive.MinSize(1))
    return relive.Table(relive.StepSpec(spec), num_steps, index, storage=memory, timeout_s=10.0)


def open_hopper(contestant: str, num_steps: int, num_lanes: int) -> ReliveTable:
    sampler = relive.Uniform() if "uniform" in contestant else relive.Prioritized(workload.PRIORITY_EXPONENT)
    table = make_table(HOPPER_SPEC, num_steps, sampler, "shared" if "shared" in contestant else "local")
    fill(table, workload.hopper_ring(CHUNK, 1), num_steps, lambda flat: flat)
    ring = workload.hopper_ring(1000 if num_lanes == 1 else 64, num_lanes)
    return _opened(table, ring, HOPPER_COLUMNS, lambda flat: flat)


def open_nested(num_steps: int) -> ReliveTable:
    table = make_table(NESTED_SPEC, num_steps, relive.Prioritized(workload.PRIORITY_EXPONENT), "local")
    fill(table, workload.hopper_ring(CHUNK, 1), num_steps, _nest)
    return _opened(table, workload.hopper_ring(1000, 1), NESTED_COLUMNS, _nest)


def open_atari(contestant: str, num_steps: int) -> ReliveTable:
    storage = "shared" if "shared" in contestant else "local"
    table = make_table(ATARI_SPEC, num_steps, relive.Uniform(), storage, stack={"observation": workload.STACK})
    fill(table, workload.atari_ring(500), num_steps, lambda flat: flat)
    return _opened(table, workload.atari_ring(500), HOPPER_COLUMNS, lambda flat: flat)


def fill(table: Any, ring: workload.Ring, num_steps: int, shape: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Writes num_steps steps through one writer, whole chunks at a time, and gives them random priorities."""
    prioritized = _is_prioritized(table)
    priorities = workload.random_priorities(ring.length)
    with table.writer() as writer:
        for begin in range(0, num_steps, ring.length):
            rows = slice(0, min(ring.length, num_steps - begin))
            flat = {
                "observation": ring.observation[rows, 0],
                "action": ring.action[rows, 0],
                "reward": ring.reward[rows, 0],
                "terminated": ring.terminated[rows, 0],
                "next_observation": ring.next_observation[rows, 0],
            }
            keys = writer.extend(**shape(flat))
            if prioritized:
                table.update_priorities(keys, priorities[rows])


def _opened(
    table: Any, ring: workload.Ring, columns: Sequence[str], shape: Callable[[dict[str, Any]], dict[str, Any]]
) -> ReliveTable:
    writer = table.writer() if ring.num_lanes == 1 else table.writer(num_lanes=ring.num_lanes)
    lanes: Any = 0 if ring.num_lanes == 1 else slice(None)
    steps = [
        shape(
            {
                "observation": ring.observation[t, lanes],
                "action": ring.action[t, lanes],
                "reward": ring.reward[t, lanes],
                "terminated": ring.terminated[t, lanes],
                "next_observation": ring.next_observation[t, lanes],
            }
        )
        for t in range(ring.length)
    ]
    return ReliveTable(table, writer, steps, columns)


def _nest(flat: dict[str, Any]) -> dict[str, Any]:
    def state(values: np.ndarray) -> dict[str, np.ndarray]:
        return {
            "joints": values[..., 0:5],
            "velocities": values[..., 5:9],
            "height": values[..., 9],
            "goal": values[..., 10],
        }

    return {
        **flat,
        "observation": state(flat["observation"]),
        "next_observation": state(flat["next_observation"]),
        "action": {"arm": flat["action"][..., 0:2], "gripper": flat["action"][..., 2]},
    }
