"""Processes on one shared table that start together, each repeating one call, and stop after the same time."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

CALLS_BEFORE = 200
CONTEXT = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Racer:
    """The work of one process: make(table, *arguments) returns the call that the process repeats. Both must pickle."""

    role: str
    make: Callable[..., Callable[[], None]]
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Finish:
    """The result of one process: microseconds of each of its calls, in order, and the seconds of all calls together."""

    role: str
    readings_us: npt.NDArray[np.float64]
    seconds: float

    @property
    def calls_per_s(self) -> float:
        return len(self.readings_us) / self.seconds


def race(
    address: str | list[str], racers: Sequence[Racer], duration_s: float, calls_before: int = CALLS_BEFORE
) -> list[Finish]:
    """Blocks until all are done. Each attaches to the table of that address, with a stream of its own.

    A list: the names of shards; each attaches to all of them.
    """
    barrier = CONTEXT.Barrier(len(racers))
    results: Any = CONTEXT.Queue()
    children = [
        CONTEXT.Process(
            target=_run, args=(racer, position, address, duration_s, calls_before, barrier, results), daemon=True
        )
        for position, racer in enumerate(racers)
    ]
    for child in children:
        child.start()
    collected = [results.get(timeout=60 + duration_s) for _ in children]
    for child in children:
        child.join()
    return collected


def _run(
    racer: Racer,
    position: int,
    address: str | list[str],
    duration_s: float,
    calls_before: int,
    barrier: Any,
    results: Any,
) -> None:
    import relive
    from relive import fleet

    attach: Callable[..., Any] = fleet.attach if isinstance(address, list) else relive.attach
    table = attach(address, stream=position)
    call = racer.make(table, *racer.arguments)
    for _ in range(calls_before):
        call()
    barrier.wait(timeout=60)
    clock = time.perf_counter_ns
    taken = []
    start = clock()
    end = start + int(duration_s * 1e9)
    now = start
    while now < end:
        call()
        after = clock()
        taken.append(after - now)
        now = after
    results.put(Finish(racer.role, np.asarray(taken) / 1e3, (now - start) / 1e9))
    table.close()
