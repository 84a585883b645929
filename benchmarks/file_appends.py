"""Appends to a table that lives in a folder, beside appends to one in shared memory: medians and p99.9, in turns."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import relive

SYNC_S = 2.0
APPENDS_PER_S = 10_000  # a writer without a pace outruns every save
ROUNDS = 3
TURN_S = 5.0
ROWS: dict[str, tuple[tuple[int, ...], str, int]] = {
    "7 kB rows": ((84, 84), "uint8", 40_000),
    "64 B rows": ((10,), "float32", 1_000_000),
}


def appends_of(table: relive.Table, observation: Any) -> list[float]:
    """Seconds of each append of a turn."""
    waits = []
    with table.writer() as writer:
        ends = time.perf_counter() + TURN_S
        while (began := time.perf_counter()) < ends:
            writer.append(observation=observation, reward=0.0)
            waits.append(time.perf_counter() - began)
            while time.perf_counter() - began < 1 / APPENDS_PER_S:
                time.sleep(0)
    return waits


def file_appends(folder: Path) -> dict[str, Any]:
    """The ratios of File(sync_s=2) to SharedMemory, after each table was filled once."""
    found: dict[str, Any] = {"sync_s": SYNC_S}
    for name, (shape, dtype, capacity) in ROWS.items():
        spec = relive.StepSpec(
            {"observation": relive.ArraySpec(shape, dtype, kind="state"), "reward": relive.ArraySpec((), "float32")}
        )
        index = relive.Index(sampler=relive.Prioritized(0.6))
        storages = {
            "shared": relive.SharedMemory("bench-appends"),
            "file": relive.File(folder / name[:4].strip(), SYNC_S),
        }
        readings: dict[str, list[tuple[float, float]]] = {}
        tables = {which: relive.Table(spec, capacity, index, storage=storage) for which, storage in storages.items()}
        observation = np.zeros(shape, dtype)
        for table in tables.values():
            with table.writer() as writer:
                for _ in range(capacity // 1000):
                    writer.extend(observation=np.zeros((1000, *shape), dtype), reward=np.zeros(1000, np.float32))
        for _ in range(ROUNDS):
            for which, table in tables.items():
                waits = np.array(appends_of(table, observation)) * 1e6
                readings.setdefault(which, []).append((float(np.median(waits)), float(np.quantile(waits, 0.999))))
        for table in tables.values():
            table.close()
        found[name] = {
            which: {
                "median_us": round(median(one for one, _ in rows), 2),
                "p999_us": round(median(one for _, one in rows), 1),
                "spread_p999_us": [round(one, 1) for _, one in rows],
            }
            for which, rows in readings.items()
        }
        for quantile in ("median_us", "p999_us"):
            ratio = found[name]["file"][quantile] / found[name]["shared"][quantile]
            found[name][f"{quantile.removesuffix('_us')}_file_to_shared"] = round(ratio, 2)
    return found
