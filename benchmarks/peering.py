"""Shards of owners in processes of their own, read mapped, by NIXL and by the service; beside a local gather.

Over loopback, on one host: what a network card does is not measured here.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from benchmarks import contestants, workload

BATCH, ROWS_A_BATCH, ROW_BYTES = 256, 32, 110_592
TRANSPORTS = "sm,tcp,self"  # of UCX, unless UCX_TLS says otherwise
CONTEXT = multiprocessing.get_context("spawn")


def paths() -> list[str]:
    """The paths that this machine has."""
    has_nixl = importlib.util.find_spec("nixl_cu12") is not None
    return ["mapped", "service", *(["nixl"] if has_nixl else [])]


@contextmanager
def owned(configs: list[Any], fill: Callable[[Any, int], None], num_steps: int) -> Iterator[list[str]]:
    """Addresses of full shards, each owned by a process of its own."""
    os.environ.setdefault("UCX_TLS", TRANSPORTS)
    with ExitStack() as stack:
        addresses = []
        for number, config in enumerate(configs):
            pipe, theirs = CONTEXT.Pipe()
            process = CONTEXT.Process(target=_own, args=(theirs, number, config, fill, num_steps), daemon=True)
            process.start()
            stack.callback(_end, pipe, process)
            if not pipe.poll(120.0):
                raise TimeoutError("an owner did not start")
            addresses.append(pipe.recv())
        yield addresses


def _own(pipe: Any, number: int, config: Any, fill: Callable[[Any, int], None], num_steps: int) -> None:
    from relive.fleet import ShardOwner
    from relive.service import Door

    with ShardOwner(number, config) as owner:
        with owner.table.writer() as writer:
            fill(writer, num_steps)
        pipe.send(owner.serve(door=Door(offers=True)))
        pipe.poll(None)


def _end(pipe: Any, process: Any) -> None:
    pipe.close()
    process.join(30.0)
    if process.is_alive():
        process.kill()


def in_turns(calls: dict[str, Callable[[], Any]], num_rounds: int, num_calls: int) -> dict[str, list[float]]:
    """Microseconds of a call, of so many in a row, the contestants one after another."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for position in range(num_rounds + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(num_calls):
                call()
            if position:
                taken[name].append((time.perf_counter() - start) / num_calls * 1e6)
    return taken


# ---- large rows ----------------------------------------------------------------------------------------------------


def fill_rows(writer: Any, num_steps: int) -> None:
    """Large rows."""
    block = np.random.default_rng(0).integers(0, 256, (100, ROW_BYTES), np.uint8)
    for _ in range(num_steps // len(block)):
        writer.extend(row=block)


def large_rows(job: dict[str, Any]) -> list[dict[str, Any]]:
    """32 rows of 110 kB by key: a local gather, and the same keys by every path."""
    import relive
    from relive.fleet import attach

    spec = relive.StepSpec({"row": relive.ArraySpec((ROW_BYTES,), "uint8")})
    index = relive.Index(sampler=relive.Prioritized(workload.PRIORITY_EXPONENT))
    name = f"benchmark-{os.getpid()}-peer"
    config = relive.TableConfig(spec, job["num_steps"], index, relive.SharedMemory(name), max_lanes=4)
    rng = np.random.default_rng(1)
    with owned([config], fill_rows, job["num_steps"]) as addresses, ExitStack() as stack:
        tables: dict[str, Any] = {"a local table": stack.enter_context(relive.attach(name))}
        for path in paths():
            tables[f"a shard, {path}"] = stack.enter_context(attach(addresses, path=path))
        keys = np.concatenate(list(tables["a local table"].keys()))

        def call(table: Any) -> Callable[[], Any]:
            return lambda: table.gather(rng.choice(keys, ROWS_A_BATCH), columns=["row"])["row"]

        calls = {where: call(table) for where, table in tables.items()}
        taken = in_turns(calls, 5 if job["quick"] else 40, 10)
    readings = []
    for where, readings_us in taken.items():
        median_us = float(np.median(readings_us))
        rates = {"gb_per_s": ROWS_A_BATCH * ROW_BYTES / median_us / 1e3}
        rates["of_local"] = float(np.median(taken["a local table"])) / median_us
        operation = f"gather of 32 rows of 110 kB, {where}"
        readings.append({"operation": operation, "batch": ROWS_A_BATCH, "readings_us": readings_us, "rates": rates})
    return readings


# ---- small transitions ---------------------------------------------------------------------------------------------


def fill_hopper(writer: Any, num_steps: int) -> None:
    """Hopper's steps."""
    rng = np.random.default_rng(0)
    for _ in range(num_steps // 1000):
        steps = {"action": rng.random((1000, 3), np.float32), "reward": rng.random(1000, np.float32)}
        writer.extend(observation=rng.random((1001, 11), np.float32), truncated=True, **steps)


def transitions(job: dict[str, Any]) -> list[dict[str, Any]]:
    """256 prioritized transitions of two shards, by every path."""
    import relive
    from relive.fleet import attach

    module = contestants.load("relive")
    index = relive.Index(relive.Transitions(), relive.Prioritized(workload.PRIORITY_EXPONENT))
    spec = relive.StepSpec(module.HOPPER_SPEC)
    half = job["num_steps"] // 2
    names = [f"benchmark-{os.getpid()}-far-{number}" for number in range(2)]
    configs = [relive.TableConfig(spec, half, index, relive.SharedMemory(name), max_lanes=4) for name in names]

    def read(batch: Any) -> Any:
        return [batch[name] for name in module.HOPPER_COLUMNS], batch.item_keys, batch.weights(workload.BETA)

    with owned(configs, fill_hopper, half) as addresses, ExitStack() as stack:
        calls: dict[str, Callable[[], Any]] = {}
        for path in paths():
            for age in (1, 8):
                table = stack.enter_context(attach(addresses, path=path, root_age=age))
                calls[f"sample, two owners, {path}, roots of {age}"] = lambda table=table: read(table.sample(BATCH))
        taken = in_turns(calls, 3 if job["quick"] else 20, 20)
    return [{"operation": name, "batch": BATCH, "readings_us": readings} for name, readings in taken.items()]
