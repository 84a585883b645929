"""Items with a time axis beside bare memcpy of equally many random windows, in one process, in turns.

Two loads: windows of 121 frames of 84 x 84 (R2D2 on Atari), and windows of 32 small steps, and episodes of 32, in
tables of 1e5 to 1e7 steps: what matters there is how the time of a batch grows with the table.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import workload

BATCH = 64
FRAMES = 121
SMALL = 32
EPISODE = 1000
SMALL_SIZES = (100_000, 1_000_000, 10_000_000)


def plan(quick: bool) -> list[dict[str, Any]]:
    rounds = 1 if quick else 3
    frames = [{"load": "frames", "num_steps": 40_000 if quick else 200_000}]
    small = [{"load": "small", "num_steps": size} for size in (SMALL_SIZES[:2] if quick else SMALL_SIZES)]
    jobs = [{"contestant": "relive", "quick": quick, **load} for load in frames + small]
    return [job for _ in range(rounds) for job in jobs]


def work(job: dict[str, Any]) -> list[dict[str, Any]]:
    measured = _frames(job) if job["load"] == "frames" else _small(job)
    return [{"operation": name, "batch": BATCH, "readings_us": taken} for name, taken in measured.items()]


def _in_turns(calls: dict[str, Callable[[], Any]], num_calls: int) -> dict[str, list[float]]:
    """Microseconds of each call, all of them in turns; what a call returns lives until its next one."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    kept: dict[str, Any] = {}
    gc.disable()
    for position in range(num_calls + 3):
        for name, call in calls.items():
            start = time.perf_counter()
            kept[name] = call()
            if position >= 3:
                taken[name].append((time.perf_counter() - start) * 1e6)
    gc.enable()
    return taken


def _copier(source: Any, rows: int) -> Callable[[], Any]:
    """A batch of random windows of consecutive rows by memcpy, into memory that was used before."""
    rng = np.random.default_rng(5)
    target = np.empty((BATCH, rows, *source.shape[1:]), source.dtype)

    def copy() -> Any:
        for position, first in enumerate(rng.integers(0, len(source) - rows, BATCH).tolist()):
            target[position] = source[first : first + rows]
        return target

    return copy


def _frames(job: dict[str, Any]) -> dict[str, list[float]]:
    import relive

    spec = relive.StepSpec(
        {
            "observation": relive.ArraySpec(workload.FRAME, "uint8", kind="state"),
            "action": relive.ArraySpec((), "int64"),
            "reward": relive.ArraySpec((), "float32"),
        }
    )
    items = relive.Sequences(80, burn_in=40, bootstrap=1, period=40)
    table = relive.Table(spec, job["num_steps"], relive.Index(items), max_lanes=8)
    rng = np.random.default_rng(2)
    frames = rng.integers(0, 256, (EPISODE + 1, *workload.FRAME), dtype=np.uint8)
    step = {"action": np.zeros(EPISODE, np.int64), "reward": np.zeros(EPISODE, np.float32)}
    with table.writer() as writer:
        for _ in range(job["num_steps"] // EPISODE):
            writer.extend(observation=frames, truncated=True, **step)
    source = np.resize(frames, (job["num_steps"], *workload.FRAME))
    calls = {"windows of 121 frames": lambda: table.sample(BATCH), "memcpy of 121 frames": _copier(source, FRAMES)}
    taken = _in_turns(calls, 20 if job["quick"] else 60)
    table.close()
    return taken


def _small(job: dict[str, Any]) -> dict[str, list[float]]:
    import relive

    spec = relive.StepSpec({"values": relive.ArraySpec((15,), "float32")})  # with its head 64 bytes
    index = {
        "sequences": relive.Index(relive.Sequences(SMALL)),
        "episodes": relive.Index(relive.Episodes(SMALL, too_long="tail")),
    }
    table = relive.Table(spec, job["num_steps"], index, max_lanes=8)
    block = np.random.default_rng(3).random((100_000, 15), dtype=np.float32)
    ends = np.arange(1, len(block) + 1) % SMALL == 0
    with table.writer() as writer:
        for _ in range(job["num_steps"] // len(block)):
            writer.extend(values=block, truncated=ends)
    source = np.resize(np.hstack([block, block[:, :1]]), (job["num_steps"], 16))
    columns = ("values", "mask")
    calls = {
        "sequences of 32": lambda: table.sample(BATCH, columns, index="sequences"),
        "episodes of 32": lambda: table.sample(BATCH, columns, index="episodes"),
        "memcpy of 32": _copier(source, SMALL),
    }
    taken = _in_turns(calls, 200 if job["quick"] else 1000)
    table.close()
    return taken
