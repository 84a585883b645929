"""Ways to choose beside the proportional draw, and conditions beside none: two tables in one process, in turns.

A million Hopper steps of a thousand versions, batches of 256. Between two draws 256 priorities are updated where the
sampler looks at them, the learner's version goes up by one and a thousand steps of the new one come in place of the
oldest; none of it is inside the time of a draw.

And what it takes to put a million leaves in order again, for the first call after a process was killed in the lock.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import workload

BATCH = 256
BLOCK = 2048
PROPORTIONAL = "Prioritized"
SHARES = (1.0, 0.5, 0.1, 0.01)
NUM_VERSIONS = 1000
STALE = f"max_staleness={NUM_VERSIONS // 2}"
RECOVERED = (PROPORTIONAL, "RankBased", "MaxPriority", "Fresh(last=1%)", "Fresh(decay=0.99)", STALE)
KILLS = 9


def indexes() -> dict[str, Any]:
    """By the name that a row of the results has; each beside an index of the proportional sampler."""
    import relive

    samplers = {
        "Uniform": relive.Uniform(),
        "RankBased": relive.RankBased(),
        "TopK 1%": relive.TopK(0.01),
        "Fifo": relive.Fifo(),
        "Lifo": relive.Lifo(),
        "MaxPriority": relive.MaxPriority(),
        "MinPriority": relive.MinPriority(),
        "Fresh(last=1%)": relive.Fresh(last=10_000),
        "Fresh(decay=0.99)": relive.Fresh(decay=0.99),
        "Shuffle": relive.Shuffle(),
    }
    made = {name: relive.Index(sampler=sampler) for name, sampler in samplers.items()}
    # The table has a thousand versions, and half of them are drawn. Each version adds as many items as it removes.
    stale = relive.Index(sampler=relive.Prioritized(), max_staleness=NUM_VERSIONS // 2)
    return made | {STALE: stale}


def plan(quick: bool) -> list[dict[str, Any]]:
    num_steps = 100_000 if quick else 1_000_000
    loads = [{"load": "sampler", "sampler": name} for name in indexes()] + [{"load": "draw where"}]
    jobs = [{"contestant": "relive", "num_steps": num_steps, "quick": quick, **load} for load in loads]
    jobs += [{"contestant": "relive", "num_steps": 100_000, "quick": quick, "load": "index where"}]
    jobs += [
        {"contestant": "relive", "num_steps": num_steps, "quick": quick, "load": "recovery", "sampler": name}
        for name in RECOVERED
    ]
    return [job for _ in range(1 if quick else 3) for job in jobs]


def work(job: dict[str, Any]) -> list[dict[str, Any]]:
    loads = {"sampler": _sampler, "draw where": _draw_where, "index where": _index_where, "recovery": _recovery}
    return [
        {"operation": name, "batch": batch, "readings_us": taken}
        for (name, batch), taken in loads[job["load"]](job).items()
    ]


Calls = dict[tuple[str, int], Callable[[], Any]]


def _in_turns(
    calls: Calls, num_calls: int, between: Callable[[], Any] = lambda: None
) -> dict[tuple[str, int], list[float]]:
    """Microseconds of each call, all in turns, each first in its turn; what one returns lives until its next."""
    names = list(calls)
    taken: dict[tuple[str, int], list[float]] = {name: [] for name in calls}
    kept: dict[tuple[str, int], Any] = {}
    gc.disable()
    for position in range(num_calls + 20):
        between()
        for turn in range(len(names)):
            name = names[(turn + position) % len(names)]
            start = time.perf_counter()
            kept[name] = calls[name]()
            if position >= 20:
                taken[name].append((time.perf_counter() - start) * 1e6)
    gc.enable()
    return taken


def _table(num_steps: int, index: Any, **options: Any) -> Any:
    import relive

    spec = relive.StepSpec(
        {
            "observation": relive.ArraySpec((workload.OBSERVATION_SIZE,), "float32"),
            "action": relive.ArraySpec((workload.ACTION_SIZE,), "float32"),
            "reward": relive.ArraySpec((), "float32"),
        }
    )
    return relive.Table(spec, num_steps, index, max_lanes=4, seed=1, **options)


def _block(size: int) -> dict[str, Any]:
    """Steps of which a share s has a reward of at most s, whatever their number."""
    rng = np.random.default_rng(3)
    return {
        "observation": rng.random((size, workload.OBSERVATION_SIZE), dtype=np.float32),
        "action": rng.random((size, workload.ACTION_SIZE), dtype=np.float32),
        "reward": rng.permutation((np.arange(size, dtype=np.float32) + 0.5) / size),
    }


def _fill(table: Any, num_steps: int) -> Any:
    """The keys of all steps, as many of each version. Priorities are random if the index has priorities."""
    block = _block(num_steps // NUM_VERSIONS)
    rng = np.random.default_rng(4)
    parts = []
    with table.writer() as writer:
        for version in range(NUM_VERSIONS):
            table.set_policy_version(version)
            parts.append(writer.extend(**block))
    keys = np.concatenate(parts)
    if table.config.index["default"].has_priorities:
        table.update_priorities(keys, rng.random(len(keys), dtype=np.float32) + 0.01)
    return keys


def _sampler(job: dict[str, Any]) -> dict[tuple[str, int], list[float]]:
    import relive

    name = job["sampler"]
    pair = {name: indexes()[name], f"{PROPORTIONAL} beside {name}": relive.Index(sampler=relive.Prioritized())}
    tables = {row: _table(job["num_steps"], index) for row, index in pair.items()}
    keys = {row: _fill(table, job["num_steps"]) for row, table in tables.items()}
    writers = {row: table.writer() for row, table in tables.items()}
    rng = np.random.default_rng(5)
    chosen = {row: np.empty(BATCH, np.int64) for row in tables}
    priorities = np.empty(BATCH, np.float32)
    block = _block(job["num_steps"] // NUM_VERSIONS)
    version = NUM_VERSIONS - 1

    def between() -> None:
        nonlocal version
        version += 1
        priorities[:] = rng.random(BATCH, dtype=np.float32) + 0.01
        oldest = version % NUM_VERSIONS * len(block["reward"])
        for row, table in tables.items():
            table.set_policy_version(version)
            keys[row][oldest : oldest + len(block["reward"])] = writers[row].extend(**block)
            chosen[row][:] = rng.choice(keys[row], BATCH)

    calls: Calls = {}
    for row, table in tables.items():
        calls[f"sample, {row}", BATCH] = lambda table=table: table.sample(BATCH)
        if table.config.index["default"].has_priorities:
            calls[f"update, {row}", BATCH] = lambda row=row, table=table: table.update_priorities(
                chosen[row], priorities
            )
    taken = _in_turns(calls, 200 if job["quick"] else 1000, between)
    for row, table in tables.items():
        writers[row].close()
        table.close()
    return taken


def _draw_where(job: dict[str, Any]) -> dict[tuple[str, int], list[float]]:
    import relive

    table = _table(job["num_steps"], relive.Index())
    _fill(table, job["num_steps"])
    calls: Calls = {("sample without a condition", BATCH): lambda: table.sample(BATCH)}
    for share in SHARES:
        calls[f"sample where {share:g} passes", BATCH] = lambda share=share: table.sample(
            BATCH, where=f"reward <= {share}"
        )
    taken = _in_turns(calls, 100 if job["quick"] else 500)
    table.close()
    return taken


def _index_where(job: dict[str, Any]) -> dict[tuple[str, int], list[float]]:
    import relive

    conditions = {"no condition": None, "all pass": "reward >= 0", "half pass": "reward >= 0.5"}
    ring, block = _block(BLOCK), _block(BLOCK)
    steps = [{name: column[t] for name, column in ring.items()} for t in range(BLOCK)]
    tables, calls = [], {}
    for name, where in conditions.items():
        table = _table(job["num_steps"], relive.Index(where=where))
        _fill(table, job["num_steps"])
        writer = table.writer()
        tables.append((table, writer))

        def append(writer: Any = writer, turn: list[int] = [0]) -> None:  # noqa: B006
            for _ in range(20):
                writer.append(**steps[turn[0]])
                turn[0] = (turn[0] + 1) % BLOCK

        calls[f"append 20 steps, {name}", 1] = append
        calls[f"extend, {name}", BLOCK] = lambda writer=writer: writer.extend(**block)
    taken = _in_turns(calls, 300 if job["quick"] else 1500)
    for table, writer in tables:
        writer.close()
        table.close()
    return taken


def _busy_in_the_lock(name: str) -> None:
    """Blocks of steps, one hold after another, until it is killed."""
    import relive

    table = relive.attach(name)
    with table.writer() as writer, contextlib.suppress(relive.ReliveError):
        block = _block(BLOCK)
        while True:
            writer.extend(**block)


def _recovery(job: dict[str, Any]) -> dict[tuple[str, int], list[float]]:
    """Microseconds of the first call that takes the lock after its holder was killed: it does what recovery has to."""
    import relive

    name = f"benchmark-{os.getpid()}"
    made = {PROPORTIONAL: relive.Index(sampler=relive.Prioritized())} | indexes()
    table = _table(job["num_steps"], made[job["sampler"]], storage=relive.SharedMemory(name), timeout_s=60.0)
    _fill(table, job["num_steps"])
    context, taken = multiprocessing.get_context("spawn"), []
    for attempt in range(20 * KILLS):
        child = context.Process(target=_busy_in_the_lock, args=(name,))
        child.start()
        before = table.stats()
        while table.stats().indexes["default"].inserted == before.indexes["default"].inserted:
            time.sleep(0.001)
        time.sleep(0.05 + 0.0007 * attempt)
        child.kill()
        child.join()
        start = time.perf_counter()
        writer = table.writer()  # takes the lock, and little else
        elapsed_us = (time.perf_counter() - start) * 1e6
        writer.close()
        if table.stats().recoveries > before.recoveries:
            taken.append(elapsed_us)
        if len(taken) == (2 if job["quick"] else KILLS):
            break
    table.close()
    return {(f"recovery, {job['sampler']}", 1): taken}
