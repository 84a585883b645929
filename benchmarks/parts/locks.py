"""Publication without a lock held over rows, beside the same calls each under one lock of all processes.

Two writers and two samplers of rows of 28 kB, each in a process of its own, on one shared table; all else is alike.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from benchmarks import races

ROW_BYTES = 28_000
BATCH = 32
WAYS = ("as it is", "one global lock")


def plan(quick: bool) -> list[dict[str, Any]]:
    job = {"contestant": "relive shared", "num_steps": 5_000 if quick else 20_000, "quick": quick}
    return [job for _ in range(1 if quick else 5)]


def work(job: dict[str, Any]) -> list[dict[str, Any]]:
    """One table, raced both ways."""
    import relive

    name = f"benchmark-{os.getpid()}"
    spec = relive.StepSpec({"row": relive.ArraySpec((ROW_BYTES,), "uint8")})
    sampler = relive.Prioritized(0.6)
    storage = relive.SharedMemory(name)
    readings = []
    with relive.Table(spec, job["num_steps"], relive.Index(sampler=sampler), storage=storage, max_lanes=8) as table:
        block = np.random.default_rng(0).integers(0, 256, (500, ROW_BYTES), np.uint8)
        with table.writer() as writer:
            for _ in range(job["num_steps"] // len(block)):
                writer.extend(row=block)
        for way in WAYS:
            lock = races.CONTEXT.Lock() if way == WAYS[1] else None
            racers = [races.Racer("append", _appending, (lock,))] * 2 + [races.Racer("sample", _sampling, (lock,))] * 2
            finishes = races.race(name, racers, 1.0 if job["quick"] else 4.0, calls_before=20)
            rows_per_s = 0.0
            for role, batch in (("append", 1), ("sample", BATCH)):
                own = [finish for finish in finishes if finish.role == role]
                calls_per_s = sum(finish.calls_per_s for finish in own)
                rates = {"calls_per_s": calls_per_s, "rows_per_s": calls_per_s * batch}
                taken = np.concatenate([finish.readings_us for finish in own]).tolist()
                readings.append({"operation": f"{role}, {way}", "batch": batch, "readings_us": taken, "rates": rates})
                rows_per_s += calls_per_s * batch
            rates = {"rows_per_s": rows_per_s}
            readings.append({"operation": f"both, {way}", "batch": BATCH, "readings_us": [], "rates": rates})
    return readings


def _under(lock: Any) -> AbstractContextManager[Any]:
    return nullcontext() if lock is None else lock


def _sampling(table: Any, lock: Any) -> Callable[[], None]:
    def call() -> None:
        with _under(lock):
            batch = table.sample(BATCH)
            batch["row"], batch.item_keys

    return call


def _appending(table: Any, lock: Any) -> Callable[[], None]:
    writer = table.writer()
    row = np.random.default_rng(os.getpid()).integers(0, 256, ROW_BYTES, np.uint8)

    def call() -> None:
        with _under(lock):
            writer.append(row=row)

    return call
