"""One process of benchmarks.compare: `python -m benchmarks.compare_worker GROUP SCALE_JSON PACKAGES`.

It opens the tables of a group of cases once, with the relive that lies in PACKAGES, and says so. From then on each line
of standard input names a case, and the answer, a line of JSON, is one figure, microseconds a call in a round of many,
and the pace of the machine, microseconds of a fixed loop before and behind the round, whichever took longer.
Between rounds the worker sleeps. The worker ends when its standard input ends. The worker calls relive as the other
measurements do and uses the public interface alone, so that it also runs with commits older than itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from benchmarks import contestants, timing, worker, workload
from benchmarks.parts import tiers

BATCH = 256
NUM_LANES = 256
PACE_STEPS = 20_000  # about a millisecond
Rounds = dict[str, Callable[[], float]]


@dataclasses.dataclass(frozen=True)
class Scale:
    """Sizes of the tables, in steps."""

    hopper: int = 1_000_000
    atari: int = 100_000  # 0.7 GB; a million would be 7, three times at once
    service: int = 100_000
    tiers: int = 1000  # 0.7 GB of rows, a quarter of them in memory


@contextlib.contextmanager
def open_hopper(scale: Scale) -> Iterator[Rounds]:
    buffer = contestants.load("relive").open_hopper("relive", scale.hopper, 1)
    priorities = workload.random_priorities(BATCH)
    with contextlib.closing(buffer):
        yield {
            "sample": _calls(lambda: buffer.sample(BATCH), 200),
            "update": lambda: statistics.median(
                timing.time_pairs(lambda: buffer.sample(BATCH)[0], lambda keys: buffer.update(keys, priorities), 120)
            ),
            "append": _calls(buffer.append, 2000, calls_per_reading=20),
        }


@contextlib.contextmanager
def open_uniform(scale: Scale) -> Iterator[Rounds]:
    buffer = contestants.load("relive uniform").open_hopper("relive uniform", scale.hopper, 1)
    with contextlib.closing(buffer):
        yield {"uniform": _calls(lambda: buffer.sample(BATCH), 200)}


@contextlib.contextmanager
def open_lanes(scale: Scale) -> Iterator[Rounds]:
    buffer = contestants.load("relive").open_hopper("relive", scale.hopper, NUM_LANES)
    with contextlib.closing(buffer):
        yield {"lanes": _calls(buffer.append, 150)}


@contextlib.contextmanager
def open_atari(scale: Scale) -> Iterator[Rounds]:
    buffer = contestants.load("relive").open_atari("relive", scale.atari)
    with contextlib.closing(buffer):
        yield {"atari": _calls(lambda: buffer.sample(BATCH), 8)}


@contextlib.contextmanager
def open_service(scale: Scale) -> Iterator[Rounds]:
    with contestants.load("relive service").open_hopper(scale.service) as operations:
        yield {"service": _calls(operations["sample"][1], 30)}


@contextlib.contextmanager
def open_tiers(scale: Scale) -> Iterator[Rounds]:
    job = {**tiers.FULL_SPEED["full speed, 700 kB"], "num_steps": scale.tiers}

    def read() -> float:
        """Its batches are read ahead only while the round lasts, so that nothing runs between rounds."""
        with table.batches(job["batch"], prefetch=job["ahead"]) as batches:
            for _ in range(2 * job["ahead"]):
                next(batches)
            return statistics.fmean(timing.time_calls(lambda: next(batches), 48, warm_up=0))

    with tempfile.TemporaryDirectory(dir=os.environ.get("RELIVE_BENCH_DIR")) as folder:
        with tiers.open_table(job, folder) as (table, _):
            yield {"tiers": read}


GROUPS: dict[str, Callable[[Scale], AbstractContextManager[Rounds]]] = {
    "hopper": open_hopper,
    "uniform": open_uniform,
    "lanes": open_lanes,
    "atari": open_atari,
    "service": open_service,
    "tiers": open_tiers,
}


def _calls(call: Callable[[], Any], num_calls: int, calls_per_reading: int = 1) -> Callable[[], float]:
    """A round: a fifth as many calls first, for the caches that another worker has used meanwhile; then the median."""
    return lambda: statistics.median(
        timing.time_calls(call, num_calls, calls_per_reading, warm_up=max(num_calls // 5, 1))
    )


def pace_us() -> float:
    """Microseconds of a fixed loop, the fastest of three: the speed of the processor core, independent of the build."""

    def loop() -> float:
        total, start = 0, time.perf_counter_ns()
        for number in range(PACE_STEPS):
            total += number
        return (time.perf_counter_ns() - start) / 1e3

    return min(loop() for _ in range(3))


def check_origin(packages: str) -> None:
    """Refuses to measure any relive but the one asked for: an editable install is easily found first."""
    for name in ("relive", "relive._core"):
        found = Path(str(importlib.import_module(name).__file__)).resolve()
        if not found.is_relative_to(Path(packages).resolve()):
            raise RuntimeError(f"{name} was imported from {found}, not from {packages}")


def main(group: str, scale: str, packages: str) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what anything else prints does not get between the answers

    def answer(**values: Any) -> None:
        try:
            answers.write(json.dumps(values) + "\n")
        except BrokenPipeError:
            raise SystemExit("the comparison has ended") from None  # tables, servers and files go as it unwinds

    try:
        check_origin(packages)
        with GROUPS[group](Scale(**json.loads(scale))) as rounds:
            answer(versions=worker.versions())
            for line in sys.stdin:
                before = pace_us()
                figure_us = rounds[line.strip()]()
                answer(figure_us=figure_us, pace_us=max(before, pace_us()))
    except Exception as error:
        answer(error=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
