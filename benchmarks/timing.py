"""How a call is timed and what is kept of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

LONGEST_S = 1.5
LEAST_READINGS = 30
PERCENTILES = {"p10_us": 10, "median_us": 50, "p90_us": 90, "p99_us": 99}


def time_calls(call: Callable[[], Any], num_calls: int, calls_per_reading: int = 1, warm_up: int = 30) -> list[float]:
    """Microseconds a call. The clock is read once for `calls_per_reading` calls, so that it costs short calls little.

    The result of a call lives until the next call has returned, as a batch does in a training loop. A slow contestant
    gets fewer calls: the loop stops after LONGEST_S seconds, but not before LEAST_READINGS readings.
    """
    kept = None
    for _ in range(warm_up):
        kept = call()
    readings = []
    clock = time.perf_counter_ns
    last = clock() + int(LONGEST_S * 1e9)
    for position in range(max(num_calls // calls_per_reading, 1)):
        if position >= LEAST_READINGS and clock() > last:
            break
        if calls_per_reading == 1:
            start = clock()
            kept = call()
            readings.append((clock() - start) / 1e3)
        else:
            repeat = range(calls_per_reading)
            start = clock()
            for _ in repeat:
                kept = call()
            readings.append((clock() - start) / 1e3 / calls_per_reading)
    del kept
    return readings


def time_pairs(
    prepare: Callable[[], Any], call: Callable[[Any], Any], num_calls: int, warm_up: int = 30
) -> list[float]:
    """Microseconds of `call(prepare())` without what prepare takes."""
    readings = []
    clock = time.perf_counter_ns
    last = clock() + int(LONGEST_S * 1e9)
    for position in range(num_calls + warm_up):
        if position >= warm_up + LEAST_READINGS and clock() > last:
            break
        prepared = prepare()
        start = clock()
        call(prepared)
        taken = (clock() - start) / 1e3
        if position >= warm_up:
            readings.append(taken)
    return readings


def summarise(rounds: list[list[float]]) -> dict[str, float | int | list[float]]:
    """Median of the rounds' medians; the other percentiles and the minimum over the calls of all rounds."""
    every = np.concatenate([np.asarray(one) for one in rounds])
    summary: dict[str, float | int | list[float]] = {
        name: round(float(np.percentile(every, percentile)), 3) for name, percentile in PERCENTILES.items()
    }
    medians = [round(float(np.median(one)), 3) for one in rounds]
    summary["median_us"] = round(float(np.median(medians)), 3)
    summary["min_us"] = round(float(every.min()), 3)
    summary["round_medians_us"] = medians
    summary["num_calls"] = len(every)
    return summary
