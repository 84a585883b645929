"""relive over loopback: `relive serve` in a process of its own, as users run it, and clients of it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import relive
from benchmarks import workload
from benchmarks.contestants import relive_table
from relive.service import Streaming

HOPPER = """
address = "grpc://127.0.0.1:0"
[tables.table]
capacity = {num_steps}
storage = {{ shared = "benchmark-service-{pid}" }}
timeout_s = 10.0
[tables.table.columns]
observation = {{ shape = [11], dtype = "float32", kind = "state" }}
action = {{ shape = [3], dtype = "float32" }}
reward = {{ dtype = "float32" }}
[tables.table.index]
items = {{ type = "Transitions", gamma = 0.99 }}
sampler = {{ type = "Prioritized", priority_exponent = 0.6 }}
"""
ROWS = """
address = "grpc://127.0.0.1:0"
[tables.table]
capacity = {num_steps}
storage = {{ shared = "benchmark-service-{pid}" }}
[tables.table.columns]
frame = {{ shape = [{row_bytes}], dtype = "uint8" }}
"""
APPENDS = 2000


@contextlib.contextmanager
def served(text: str, **values: int) -> Iterator[str]:
    """The address of a table that another process serves meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.toml"
        path.write_text(text.format(pid=os.getpid(), **values))
        command = [sys.executable, "-m", "relive.cli", "serve", str(path)]
        environment = {**os.environ, "COLUMNS": "200"}
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert server.stdout is not None
        try:
            yield server.stdout.readline().split(": ")[0]
        finally:
            server.terminate()
            server.wait(30)
            for name in re.findall(r'shared = "(.*?)"', text.format(pid=os.getpid(), **values)):  # it keeps its tables
                subprocess.run([sys.executable, "-m", "relive.cli", "rm", name], capture_output=True, env=environment)


@contextlib.contextmanager
def open_hopper(num_steps: int) -> Iterator[dict[str, Any]]:
    """{operation: (batch, calls a reading, call)} over a filled table; None for the calls: a whole loop, timed here."""
    with served(HOPPER, num_steps=num_steps) as address, relive.connect(address) as table:
        relive_table.fill(table, workload.hopper_ring(min(20_000, num_steps), 1), num_steps, lambda flat: flat)
        columns = relive_table.HOPPER_COLUMNS

        def read(batch: Any) -> Any:
            return [batch[name] for name in columns], batch.item_keys, batch.weights(workload.BETA)

        drawn = table.sample(256).item_keys
        priorities = workload.random_priorities(256)
        ring = workload.hopper_ring(1000, 1)
        names = ("observation", "action", "reward", "terminated", "next_observation")
        steps = [{name: getattr(ring, name)[t, 0] for name in names} for t in range(ring.length)]
        with table.batches(256, prefetch=8) as batches, table.writer() as writer:
            with table.writer(streaming=Streaming()) as streaming:
                yield {
                    "sample": (256, lambda: read(table.sample(256))),
                    "sample ahead": (256, lambda: read(next(batches))),
                    "update": (256, lambda: table.update_priorities(drawn, priorities)),
                    "append, answered": (1, _round(writer, steps)),
                    "append, streamed": (1, _streamed(streaming, steps)),
                    "sample, clients": lambda count, duration_s: _clients(address, count, duration_s),
                }


def _round(writer: Any, steps: list[dict[str, Any]]) -> Callable[[], None]:
    position = 0

    def append() -> None:
        nonlocal position
        writer.append(**steps[position])
        position = (position + 1) % len(steps)

    return append


def _streamed(writer: Any, steps: list[dict[str, Any]]) -> Callable[[], list[float]]:
    """Microseconds an append, over a loop of them and the flush that waits until the last is stored."""

    def loop() -> list[float]:
        append = _round(writer, steps)
        readings = []
        for _ in range(10):
            start = time.perf_counter_ns()
            for _ in range(APPENDS):
                append()
            writer.flush()
            readings.append((time.perf_counter_ns() - start) / 1e3 / APPENDS)
        return readings

    return loop


def _clients(address: str, count: int, duration_s: float) -> float:
    """Samples of 256 a second, over `count` processes together."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(count), context.Queue()
    children = [
        context.Process(target=_client, args=(address, barrier, duration_s, results), daemon=True) for _ in range(count)
    ]
    for child in children:
        child.start()
    total = sum(results.get(timeout=60 + duration_s) for _ in children)
    for child in children:
        child.join()
    return float(total)


def _client(address: str, barrier: Any, duration_s: float, results: Any) -> None:
    with relive.connect(address) as table:
        for _ in range(100):
            table.sample(256)
        barrier.wait(timeout=60)
        start, calls = time.perf_counter(), 0
        while time.perf_counter() - start < duration_s:
            table.sample(256)
            calls += 1
        results.put(calls / (time.perf_counter() - start))


@contextlib.contextmanager
def open_rows(row_bytes: int, num_steps: int) -> Iterator[tuple[Any, Any]]:
    """A table of rows of so many bytes, full, and its batches' maker."""
    with served(ROWS, num_steps=num_steps, row_bytes=row_bytes) as address, relive.connect(address) as table:
        with table.writer() as writer:
            some = np.random.default_rng(0).integers(0, 256, (min(num_steps, 32), row_bytes), np.uint8)
            for _ in range(-(-num_steps // len(some))):
                writer.extend(frame=some, terminated=True)
        yield table, table.batches
