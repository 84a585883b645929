"""Writers and samplers in processes of their own on one shared table: throughput, and how long single calls take."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from benchmarks import contestants, races, workload

BATCH = 256
NUM_LANES = 8  # of each writer: one append is one step of all of them
KEPT_READINGS = 20_000


def plan(quick: bool) -> list[dict[str, Any]]:
    job = {"contestant": "relive shared", "num_steps": 100_000 if quick else 1_000_000, "quick": quick}
    return [job for _ in range(1 if quick else 3)]


def work(job: dict[str, Any]) -> list[dict[str, Any]]:
    """One table; for each mix, processes that start together and stop after the same time."""
    import relive

    module = contestants.load("relive")
    sampler = relive.Prioritized(workload.PRIORITY_EXPONENT)
    table = module.make_table(module.HOPPER_SPEC, job["num_steps"], sampler, "shared")
    module.fill(table, workload.hopper_ring(module.CHUNK, 1), job["num_steps"], lambda flat: flat)
    duration_s = 1.0 if job["quick"] else 3.0
    readings = []
    for num_writers in (0, 1, 2):
        for num_samplers in (1, 2):
            name = f"{num_writers} writing, {num_samplers} sampling"
            racers = [races.Racer("append", _appending)] * num_writers + [
                races.Racer("sample", _sampling)
            ] * num_samplers
            results = races.race(f"benchmark-{os.getpid()}", racers, duration_s)
            for role, batch in (("sample", BATCH), ("append", NUM_LANES)):
                own = [result for result in results if result.role == role]
                if own:
                    readings.append(_joined(f"{role}, {name}", batch, own))
    table.close()
    return readings


def _joined(operation: str, batch: int, results: list[races.Finish]) -> dict[str, Any]:
    every = np.concatenate([result.readings_us for result in results])
    calls_per_s = sum(result.calls_per_s for result in results)
    kept = every[:: max(len(every) // KEPT_READINGS, 1)]
    rates = {"calls_per_s": calls_per_s, "rows_per_s": calls_per_s * batch}
    return {"operation": operation, "batch": batch, "readings_us": kept.tolist(), "rates": rates}


def _sampling(table: Any) -> Any:
    columns = contestants.load("relive").HOPPER_COLUMNS

    def call() -> None:
        batch = table.sample(BATCH)
        for name in columns:
            batch[name]
        batch.item_keys, batch.weights(workload.BETA)

    return call


def _appending(table: Any) -> Any:
    ring = workload.hopper_ring(256, NUM_LANES)
    writer = table.writer(num_lanes=NUM_LANES)
    steps = [
        {name: getattr(ring, name)[t] for name in ("observation", "action", "reward", "terminated", "next_observation")}
        for t in range(ring.length)
    ]
    position = 0

    def call() -> None:
        nonlocal position
        writer.append(**steps[position])
        position = (position + 1) % len(steps)

    return call
