"""One process of benchmarks.sequence_models: the host of a contestant's data, a rank that trains, or the step alone.

usage: python -m benchmarks.sequence_worker host MODULE KIND LENGTH
       python -m benchmarks.sequence_worker rank MODULE KIND LENGTH PLACE RANK
       python -m benchmarks.sequence_worker step LENGTH SIZE
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import windows
from benchmarks.worker import versions

TRAINED = "0.1M"  # the model of the loop that a rank times with its data
MOST_READINGS, MOST_S = 300, 2.0
LOOPS, LEAST_LOOPS, LOOPS_S = 12, 3, 60.0  # a step of long windows takes 15 s
GROUP = 2 * windows.AHEAD  # calls of a reading: batches that are drawn ahead may come several at a time


def timed(call: Callable[[], Any]) -> list[float]:
    """Microseconds of a call, each the mean of GROUP calls one after another."""
    readings: list[float] = []
    began = time.perf_counter()
    while not readings or (len(readings) < MOST_READINGS and time.perf_counter() - began < MOST_S):
        start = time.perf_counter()
        for _ in range(GROUP):
            call()
        readings.append((time.perf_counter() - start) * 1e6 / GROUP)
    return readings


def cpu_us(call: Callable[[], Any]) -> float:
    """Microseconds of processor time of this thread, which other programs on the machine do not lengthen much."""
    start = time.thread_time()
    call()
    return (time.thread_time() - start) * 1e6


def rank(module: str, kind: str, length: int, place: str, number: int, ready: Callable[[], None]) -> dict[str, Any]:
    """Times the batches of a contestant, and a loop that trains on them. Calls ready, then waits for a line."""
    contestant = importlib.import_module(f"benchmarks.contestants.{module}")
    with contestant.open_windows(kind, place, length, number) as ways:
        for call in ways.values():
            for _ in range(5):
                batch = call()
        assert {name: tuple(values.shape[:2]) for name, values in batch.items() if name in windows.PARTS} == {
            name: (windows.BATCH, length) for name in windows.PARTS
        }
        step = make_step(length, TRAINED)
        if step is not None:
            step(batch)
        ready()
        sys.stdin.readline()
        told: dict[str, Any] = {"ways": {way: timed(call) for way, call in ways.items()}}
        call = ways.get("ahead", ways["on request"])
        waits, steps = [], []
        ends = time.perf_counter() + LOOPS_S
        for number in range(LOOPS if step is not None else 0):
            start = time.perf_counter()
            if number >= LEAST_LOOPS and start > ends:
                break
            batch = call()
            waits.append((time.perf_counter() - start) * 1e6)
            steps.append(cpu_us(lambda: step(batch)) * step.scale)  # noqa: B023  (called at once)
    return told | {"waits": waits, "steps": steps}


def make_step(length: int, size: str) -> Any:
    """The step in this environment; None if the environment has no torch."""
    if importlib.util.find_spec("torch") is None:
        return None
    importlib.import_module("torch").set_num_threads(1)
    return importlib.import_module("benchmarks.sequence_step").Step(length, size)


def step_alone(length: int, size: str) -> dict[str, Any]:
    """Times the step of a model with a batch that is there."""
    torch = importlib.import_module("torch")
    step = make_step(length, size)
    rows = torch.from_numpy(np.ascontiguousarray(windows.episodes()[: windows.BATCH, :length]))
    batch = {name: rows[..., columns] for name, columns in windows.PARTS.items()}
    step(batch)
    readings = [cpu_us(lambda: step(batch)) for _ in range(2)]
    count = sum(parameter.numel() for parameter in step.parameters)
    return {"step_us": min(readings) * step.scale, "parameters": count, "from_one_window": step.scale > 1}


def main() -> None:
    """Does the work of the command line, and prints its result as one line of JSON."""
    role, *rest = sys.argv[1:]
    told, sys.stdout = sys.stdout, sys.stderr  # a library may log to sys.stdout
    if role == "host":
        module, kind, length = rest
        with importlib.import_module(f"benchmarks.contestants.{module}").host(kind, int(length)) as place:
            print(json.dumps(place), file=told, flush=True)
            sys.stdin.read()
    elif role == "rank":
        module, kind, length, place, number = rest
        ready = functools.partial(print, "ready", file=told, flush=True)
        readings = rank(module, kind, int(length), place, int(number), ready)
        print(json.dumps(readings | {"versions": versions()}), file=told, flush=True)
    else:
        print(json.dumps(step_alone(int(rest[0]), rest[1])), file=told, flush=True)


if __name__ == "__main__":
    main()
