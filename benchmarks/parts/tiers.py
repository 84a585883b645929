"""A table four times as large as its memory: two workloads at their own rates, and memory mapping at full speed.

Items are one step with a `step` column of so many bytes; both sides have memory for a quarter of them, batches handed
out not counted. relive keeps the page cache out with direct I/O (`direct_io` says whether it could); the mapping's page
cache is held to the same quarter by a memory cgroup. Files lie in RELIVE_BENCH_DIR, else in the temporary folder.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.contestants import memory_map

BUDGET = 0.25  # of the table's bytes
SETTLE_S = 2.0  # from the first batch to the clock

# Capacities are a hundredth of the workloads' own, item sizes and rates are whole. 512 draws of a thousand items
# planned ahead, and 96 of a hundred: what is read twice within that is read once. Small batches make smaller steps.
RATES: dict[str, dict[str, Any]] = {
    "R2D2 at 1x": {"num_steps": 100, "num_bytes": 10_000_000, "sampled": 45, "inserted": 3, "batch": 16, "ahead": 6},
    "IMPALA at 1x": {
        "num_steps": 1000,
        "num_bytes": 3_000_000,
        "sampled": 253,
        "inserted": 4,
        "batch": 32,
        "ahead": 16,
    },
}
FULL_SPEED: dict[str, dict[str, Any]] = {
    "full speed, 28 kB": {"num_steps": 40_000, "num_bytes": 28_224, "batch": 64, "ahead": 32},
    "full speed, 700 kB": {"num_steps": 2000, "num_bytes": 700_000, "batch": 32, "ahead": 16},
    "full speed, 10 MB": {"num_steps": 150, "num_bytes": 10_000_000, "batch": 16, "ahead": 8},
}


def plan(quick: bool) -> list[dict[str, Any]]:
    jobs = []
    for operation, workload in RATES.items():
        jobs.append({"contestant": "relive tiered", "operation": operation, "seconds": 5 if quick else 60, **workload})
    for operation, workload in FULL_SPEED.items():
        for _ in range(1 if quick else 3):
            for contestant in ("relive tiered", "memory map", "memory map, advised"):
                seconds = 3 if quick else 8
                jobs.append({"contestant": contestant, "operation": operation, "seconds": seconds, **workload})
    return jobs


def work(job: dict[str, Any]) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(dir=os.environ.get("RELIVE_BENCH_DIR")) as folder:
        reading = _mapped(job, folder) if job["contestant"].startswith("memory map") else _tiered(job, folder)
    return [{"operation": job["operation"], "batch": job["batch"], **reading}]


def _reading(job: dict[str, Any], waits_us: list[float], elapsed_s: float, **rates: float) -> dict[str, Any]:
    items_per_s = len(waits_us) * job["batch"] / elapsed_s
    own = {"items_per_s": items_per_s, "mb_per_s": items_per_s * job["num_bytes"] / 1e6}
    return {"readings_us": waits_us, "rates": own | rates}


def _mapped(job: dict[str, Any], folder: str) -> dict[str, Any]:
    rows = memory_map.MappedRows(
        folder, job["num_steps"], job["num_bytes"], job["batch"], "advised" in job["contestant"]
    )
    waits: list[float] = []
    with memory_map.memory_budget(int(BUDGET * job["num_steps"] * job["num_bytes"])):
        run_for(SETTLE_S, rows.sample, [])
        elapsed_s = run_for(job["seconds"], rows.sample, waits)
    return _reading(job, waits, elapsed_s)


def run_for(seconds: float, call: Callable[[], Any], waits_us: list[float]) -> float:
    """Calls over and over for so long, each call's microseconds noted; returns the seconds it really took."""
    start = now = time.perf_counter()
    while now < start + seconds:
        call()
        after = time.perf_counter()
        waits_us.append((after - now) * 1e6)
        now = after
    return now - start


@contextmanager
def open_table(job: dict[str, Any], folder: str) -> Iterator[tuple[Any, Callable[[], Any]]]:
    """A full table with memory for a quarter of it, and what appends one more row."""
    import relive

    spec = relive.StepSpec({"item": relive.ArraySpec((job["num_bytes"],), "uint8")})
    storage = relive.Tiered(folder, int(BUDGET * job["num_steps"] * job["num_bytes"]))
    row = np.random.default_rng(0).integers(0, 256, job["num_bytes"], dtype=np.uint8)
    with relive.Table(spec, job["num_steps"], storage=storage, max_lanes=1) as table, table.writer() as writer:
        for _ in range(job["num_steps"]):
            writer.append(item=row)
        yield table, lambda: writer.append(item=row)


def _tiered(job: dict[str, Any], folder: str) -> dict[str, Any]:
    waits: list[float] = []
    with open_table(job, folder) as (table, append), table.batches(job["batch"], prefetch=job["ahead"]) as batches:
        if "sampled" in job:
            next(batches)
            time.sleep(SETTLE_S)
        else:
            run_for(SETTLE_S, lambda: next(batches), [])
        before = table.stats().tiers
        if "sampled" in job:
            elapsed_s = _open_loop(job, batches, append, waits)
        else:
            elapsed_s = run_for(job["seconds"], lambda: next(batches), waits)
        after = table.stats().tiers
    assert before is not None and after is not None
    read = after.bytes_read - before.bytes_read
    return _reading(
        job,
        waits,
        elapsed_s,
        num_batches=len(waits),
        late_batches=after.late_batches - before.late_batches,
        read_mb_per_s=read / elapsed_s / 1e6,
        written_mb_per_s=(after.bytes_written - before.bytes_written) / elapsed_s / 1e6,
        reads_per_item=read / (len(waits) * job["batch"] * job["num_bytes"]),
        direct_io=float(after.direct_io),
    )


def _open_loop(job: dict[str, Any], batches: Any, append: Any, waits_us: list[float]) -> float:
    """Batches and appends when they are due, whatever the ones before took."""
    start = time.perf_counter()
    batch_s, append_s = job["batch"] / job["sampled"], 1 / job["inserted"]
    due_batch, due_append = start, start + append_s / 2
    while min(due_batch, due_append) < start + job["seconds"]:
        time.sleep(max(0.0, min(due_batch, due_append) - time.perf_counter()))
        if due_append < due_batch:
            append()
            due_append += append_s
            continue
        asked = time.perf_counter()
        next(batches)
        waits_us.append((time.perf_counter() - asked) * 1e6)
        due_batch += batch_s
    return time.perf_counter() - start
