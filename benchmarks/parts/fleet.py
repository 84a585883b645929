"""Compares one table over two shards in this machine's memory with one table of the same steps.

Measured with both shards in this process:
  the cost of a batch, drawn on request and drawn ahead
  rows a second of one process and of two processes that draw from both shards
  windows and episodes in batches of 32 to 1,024

Measured with the owner of each shard in a process of its own, by every path:
  large rows by key, compared with a local gather
  prioritized transitions
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from benchmarks import contestants, peering, races, workload

BATCH = 256
ROOT_AGES = (1, 8)
ROW_BYTES, ROWS_A_BATCH = 28_000, 32
TRAJECTORY, EPISODE, TRAJECTORIES = 32, 200, (32, 256, 1024)
AHEAD = 8


def plan(quick: bool) -> list[dict[str, Any]]:
    loads = {"transitions": 100_000 if quick else 1_000_000, "rows": 5_000 if quick else 20_000}
    loads["trajectories"] = 50_000 if quick else 500_000
    loads["large rows of owners"] = 400 if quick else 2_000
    loads["transitions of owners"] = 100_000 if quick else 1_000_000
    jobs = [
        {"contestant": "relive shared", "load": load, "num_steps": size, "quick": quick} for load, size in loads.items()
    ]
    return [job for _ in range(1 if quick else 3) for job in jobs]


def work(job: dict[str, Any]) -> list[dict[str, Any]]:
    loads = {"transitions": _transitions, "rows": _rows, "trajectories": _trajectories}
    loads |= {"large rows of owners": peering.large_rows, "transitions of owners": peering.transitions}
    return loads[job["load"]](job)


@contextmanager
def _tables(spec: Any, index: Any, job: dict[str, Any], fill: Callable[[Any, int], None]) -> Iterator[dict[str, Any]]:
    """The table, and both shards with roots of every age, each name with its handle; all of them full."""
    import relive
    from relive.fleet import ShardOwner, attach

    def config(name: str, num_steps: int) -> Any:
        return relive.TableConfig(spec, num_steps, index, relive.SharedMemory(name), max_lanes=4)

    names = [f"benchmark-{os.getpid()}-{number}" for number in range(2)]
    with ExitStack() as stack:
        for number, name in enumerate(names):
            stack.callback(ShardOwner(number, config(name, job["num_steps"] // 2)).close)
        local = stack.enter_context(relive.Table.from_config(config(f"benchmark-{os.getpid()}", job["num_steps"])))
        tables: dict[str, Any] = {"one table": local}
        for age in ROOT_AGES:
            tables[f"two shards, roots of {age}"] = stack.enter_context(attach(names, root_age=age))
        with local.writer() as writer:
            fill(writer, job["num_steps"])
        for number in range(2):
            with tables["two shards, roots of 1"].writer(shard=number) as writer:
                fill(writer, job["num_steps"] // 2)
        yield tables


def _in_turns(calls: dict[str, Callable[[], Any]], num_rounds: int, num_calls: int) -> dict[str, list[float]]:
    """Microseconds of a call, of so many in a row: what is drawn ahead meanwhile is in it."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for position in range(num_rounds + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(num_calls):
                call()
            if position:
                taken[name].append((time.perf_counter() - start) / num_calls * 1e6)
    return taken


def _transitions(job: dict[str, Any]) -> list[dict[str, Any]]:
    import relive

    module = contestants.load("relive")
    index = relive.Index(relive.Transitions(), relive.Prioritized(workload.PRIORITY_EXPONENT))

    def fill(writer: Any, num_steps: int) -> None:
        rng = np.random.default_rng(0)
        for _ in range(num_steps // 1000):
            steps = {"action": rng.random((1000, 3), np.float32), "reward": rng.random(1000, np.float32)}
            writer.extend(observation=rng.random((1001, 11), np.float32), truncated=True, **steps)

    def read(batch: Any) -> Any:
        return [batch[name] for name in module.HOPPER_COLUMNS], batch.item_keys, batch.weights(workload.BETA)

    with _tables(relive.StepSpec(module.HOPPER_SPEC), index, job, fill) as tables, ExitStack() as stack:
        calls: dict[str, Callable[[], Any]] = {}
        for name, table in tables.items():
            ahead = stack.enter_context(table.batches(BATCH, prefetch=AHEAD))
            calls[f"sample, {name}"] = lambda table=table: read(table.sample(BATCH))
            calls[f"drawn ahead, {name}"] = lambda ahead=ahead: read(next(ahead))
        taken = _in_turns(calls, 5 if job["quick"] else 20, 200)
    return [{"operation": name, "batch": BATCH, "readings_us": readings} for name, readings in taken.items()]


def _rows(job: dict[str, Any]) -> list[dict[str, Any]]:
    import relive

    spec = relive.StepSpec({"row": relive.ArraySpec((ROW_BYTES,), "uint8")})
    index = relive.Index(sampler=relive.Prioritized(workload.PRIORITY_EXPONENT))
    block = np.random.default_rng(0).integers(0, 256, (500, ROW_BYTES), np.uint8)

    def fill(writer: Any, num_steps: int) -> None:
        for _ in range(num_steps // len(block)):
            writer.extend(row=block)

    readings = []
    with _tables(spec, index, job, fill):
        names = [f"benchmark-{os.getpid()}-{number}" for number in range(2)]
        for num_ranks in (1, 2):
            finishes = races.race(names, [races.Racer("sample", _sampling)] * num_ranks, 1.0 if job["quick"] else 4.0)
            calls_per_s = sum(finish.calls_per_s for finish in finishes)
            rates = {"calls_per_s": calls_per_s, "rows_per_s": calls_per_s * ROWS_A_BATCH}
            taken = np.concatenate([finish.readings_us for finish in finishes]).tolist()
            operation = f"rows of 28 kB, two shards, {num_ranks} drawing"
            readings.append({"operation": operation, "batch": ROWS_A_BATCH, "readings_us": taken, "rates": rates})
    return readings


def _sampling(table: Any) -> Callable[[], None]:
    def call() -> None:
        batch = table.sample(ROWS_A_BATCH)
        batch["row"], batch.item_keys

    return call


def _trajectories(job: dict[str, Any]) -> list[dict[str, Any]]:
    import relive

    spec = relive.StepSpec({"values": relive.ArraySpec((15,), "float32")})
    indexes = {
        "windows": relive.Index(relive.Sequences(TRAJECTORY)),
        "episodes": relive.Index(relive.Episodes(EPISODE)),
    }

    def fill(writer: Any, num_steps: int) -> None:
        block = np.random.default_rng(0).random((EPISODE, 15), np.float32)
        for _ in range(num_steps // EPISODE):
            writer.extend(values=block, truncated=np.arange(EPISODE) == EPISODE - 1)

    readings = []
    with _tables(spec, indexes, job, fill) as tables:
        for kind in indexes:
            for batch in TRAJECTORIES:
                calls = {
                    f"{kind}, {name}": lambda table=table, batch=batch, kind=kind: table.sample(batch, index=kind)
                    for name, table in tables.items()
                }
                for name, taken in _in_turns(calls, 5 if job["quick"] else 10, 10).items():
                    readings.append({"operation": name, "batch": batch, "readings_us": taken})
    return readings
