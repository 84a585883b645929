"""Tables to read from, a table's bytes on the device, and the time of each launch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

import relive
from benchmarks.gpu.device import Device

__all__ = ["copied_region", "filled", "launch_times_us", "one_round"]


def filled(spec: relive.StepSpec, capacity: int, column: str, index: relive.Index) -> tuple[relive.Table, np.ndarray]:
    """A table full of steps of one column, in one episode, and the keys of all of them."""
    table = relive.Table(spec, capacity, index, max_lanes=1)
    shape = spec.columns[column].shape
    most = max(1, min(capacity, (32 << 20) // max(1, int(np.prod(shape, dtype=int)))))
    block = np.random.default_rng(0).integers(0, 256, (most, *shape), dtype=np.uint8)
    keys = []
    with table.writer() as writer:
        for begin in range(0, capacity, most):
            keys.append(writer.extend(**{column: block[: min(most, capacity - begin)]}))
    return table, np.concatenate(keys)


def one_round(reader: Any, index: str | None, columns: list[str] | None, keys: Any) -> Callable[[Any], None]:
    """The launches of one gather, without what a call does around them: a function of the region's span."""
    plan, outputs = reader._plan(index, columns)
    rounds = reader._rounds_of(plan.number)
    room = outputs.room(len(keys), None, reader.device)

    def launch(span: Any) -> None:
        rounds.gather(span, rounds.scratch(len(keys)), keys, room)

    return launch


def copied_region(device: Device, table: relive.Table, reader: Any) -> tuple[Any, Any]:
    """(the bytes of a table on the device, the span by which kernels read them there)."""
    region = np.frombuffer(table._core.region_bytes(), np.uint8).copy()
    there = device.torch.from_numpy(region).to(device.name)
    with reader._view.held() as span:
        return there, span._replace(address=there.data_ptr())


def launch_times_us(device: Device, reader: Any, call: Callable[[], Any], num_calls: int) -> dict[str, float]:
    """Median time between events around the launches of a call to the first index, by kernel."""
    rounds = reader._rounds_of(0)
    marks: list[tuple[str, Any, Any]] = []

    def start(kernel: Any, grid: Any, *arguments: Any, **constants: Any) -> None:
        begin, end = (device.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        rounds.start(kernel, grid, *arguments, **constants)
        end.record()
        marks.append((kernel.fn.__name__, begin, end))

    reader._rounds[0] = dataclasses.replace(rounds, start=start)
    times: dict[str, list[float]] = {}
    try:
        for _ in range(num_calls):
            marks.clear()
            call()
            device.wait()
            sums: dict[str, float] = {}
            for name, begin, end in marks:
                sums[name] = sums.get(name, 0.0) + begin.elapsed_time(end) * 1e3
            for name, time_us in sums.items():
                times.setdefault(name, []).append(time_us)
    finally:
        reader._rounds[0] = rounds
    return {name: round(float(np.median(readings)), 1) for name, readings in times.items()}
