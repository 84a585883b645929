"""Memory of a million Atari steps, all of them written: bytes that are really allocated, not bytes requested."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import contestants, workload

NUM_LANES = 8
ROWS_A_CALL = 50


def plan(quick: bool) -> list[dict[str, Any]]:
    num_steps = 100_000 if quick else 1_000_000
    names = ("relive", "relive shared", "SB3 uniform", "Tianshou")
    return [{"contestant": name, "num_steps": num_steps, "quick": quick} for name in names]


def work(job: dict[str, Any]) -> list[dict[str, Any]]:
    measured = {"relive": _relive_bytes, "relive shared": _relive_bytes, "SB3 uniform": _sb3_bytes}
    num_bytes = measured.get(job["contestant"], _tianshou_bytes)(job)
    return [{"operation": "memory", "batch": 0, "readings_us": [], "rates": {"gigabytes": num_bytes / 1e9}}]


def _relive_bytes(job: dict[str, Any]) -> int:
    import relive

    module = contestants.load("relive")
    storage = "shared" if "shared" in job["contestant"] else "local"
    # One call's data: as many rows for each lane, the same ones every time.
    frames = np.random.default_rng(2).integers(0, 256, (ROWS_A_CALL, NUM_LANES, *workload.FRAME), dtype=np.uint8)
    step = {"action": np.zeros((ROWS_A_CALL, NUM_LANES), np.int64), "reward": np.zeros((ROWS_A_CALL, NUM_LANES), "f4")}
    before = _resident_bytes()
    items = {"stack": {"observation": workload.STACK}}
    table = module.make_table(module.ATARI_SPEC, job["num_steps"], relive.Prioritized(), storage, **items)
    with table.writer(num_lanes=NUM_LANES) as writer:
        while len(table) + ROWS_A_CALL * NUM_LANES <= job["num_steps"]:
            writer.extend(observation=frames, **step)
        for _ in range(20):  # on into the steady state, where the oldest page goes for each new one
            writer.extend(observation=frames, **step)
    if storage == "local":
        taken = _resident_bytes() - before
    else:
        taken = sum(
            path.stat().st_blocks * 512
            for path in Path("/dev/shm").iterdir()
            if f"benchmark-{os.getpid()}" in path.name
        )
    table.close()
    return taken


def _sb3_bytes(job: dict[str, Any]) -> int:
    """From its arrays of 2,000 steps: the whole does not fit into most machines."""
    opened = contestants.load("SB3 uniform").open_atari("SB3 uniform", 2000)
    arrays = [value for value in vars(opened._buffer).values() if isinstance(value, np.ndarray)]
    return sum(array.nbytes for array in arrays) * (job["num_steps"] // 2000)


def _tianshou_bytes(job: dict[str, Any]) -> int:
    """Uniform, frames stored once; from its arrays of 2,000 steps."""
    opened = contestants.load("Tianshou").open_atari("Tianshou", 2000)
    stored = opened._buffer._meta
    arrays = [stored[name] for name in stored.get_keys() if isinstance(stored[name], np.ndarray)]
    return sum(array.nbytes for array in arrays) * (job["num_steps"] // 2000)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
