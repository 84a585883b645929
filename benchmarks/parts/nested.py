"""Twelve nested columns beside five flat ones: the same bytes a step, the same table size, in one process."""

from __future__ import annotations

from typing import Any

from benchmarks import contestants, timing, workload


def plan(quick: bool) -> list[dict[str, Any]]:
    num_steps = 100_000 if quick else 1_000_000
    return [{"contestant": "relive", "num_steps": num_steps, "quick": quick} for _ in range(1 if quick else 5)]


def work(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Flat and nested tables live side by side; their calls alternate in blocks."""
    module = contestants.load("relive")
    tables = {
        "5 columns": module.open_hopper("relive", job["num_steps"], 1),
        "12 nested columns": module.open_nested(job["num_steps"]),
    }
    scale = 0.2 if job["quick"] else 1.0
    found: dict[tuple[str, int], list[float]] = {}
    for batch, num_calls in ((32, 2000), (256, 1500), (2048, 300)):
        for _ in range(5):
            for name, table in tables.items():
                call = lambda table=table, batch=batch: table.sample(batch)  # noqa: E731
                taken = timing.time_calls(call, int(num_calls * scale / 5))
                found.setdefault((f"sample, {name}", batch), []).extend(taken)
    for name, table in tables.items():
        taken = timing.time_calls(table.append, int(20_000 * scale), calls_per_reading=20, warm_up=2000)
        found[f"insert 1, {name}", 1] = taken
        table.close()
    assert workload.OBSERVATION_SIZE == 11
    return [{"operation": name, "batch": batch, "readings_us": taken} for (name, batch), taken in found.items()]
