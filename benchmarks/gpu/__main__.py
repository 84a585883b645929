"""Reading a table on a GPU: `python -m benchmarks.gpu` on a machine with a CUDA GPU; elsewhere it says so and fails.

Rows of 64 B to 1 MiB, three ways to bring as many bytes to the device:
  zero-copy           the kernels read the table's own registered memory (what relive.gpu.DeviceReader.gather does)
  pinned copy         one cudaMemcpyAsync of the same bytes, contiguous and pinned: the link at its best
  gather, then copy   the core gathers into pinned memory on the host, then one copy
and the weighted draw of 1,000 items from trees of 1e6 and 1e7 leaves. Call times are wall time of the Python call until
the device is done; device times are between two CUDA events around the launches.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import relive
from benchmarks import machine, timing
from benchmarks.tables import aligned, markdown_table

RESULTS = Path(__file__).resolve().parent / "results"
NO_GPU = 2  # exit status
WARM_UP = 3
Row = dict[str, Any]


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    row_bytes: tuple[int, ...] = (64, 1024, 28_224, 1 << 20)
    batch_bytes: int = 64 << 20
    most_items: int = 65_536
    pool_bytes: int = 1 << 30  # rows of a table, together: far beyond any cache
    num_leaves: tuple[int, ...] = (1_000_000, 10_000_000)
    num_drawn: int = 1000
    num_calls: int = 50


@dataclass(frozen=True)
class Device:
    """Where it runs: the torch device, and what waits for it."""

    torch: Any
    name: str

    @property
    def is_cuda(self) -> bool:
        return self.name.startswith("cuda")

    def wait(self) -> None:
        if self.is_cuda:
            self.torch.cuda.synchronize()

    def host_bytes(self, num_bytes: int) -> Any:
        """Host memory that copies to the device need not stage."""
        return self.torch.empty(num_bytes, dtype=self.torch.uint8, pin_memory=self.is_cuda)

    def call_times_us(self, call: Callable[[], Any], num_calls: int) -> list[float]:
        """Wall time until the device is done."""

        def whole() -> Any:
            kept = call()
            self.wait()
            return kept

        return timing.time_calls(whole, num_calls, warm_up=WARM_UP)

    def device_times_us(self, launch: Callable[[], Any], num_calls: int) -> list[float]:
        """Between events on the device; nothing where there are none."""
        if not self.is_cuda:
            return []
        readings = []
        for _ in range(num_calls):
            begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            launch()
            end.record()
            end.synchronize()
            readings.append(begin.elapsed_time(end) * 1e3)
        return readings


def row_of(operation: str, row_bytes: int, batch: int, times_us: list[float], device_us: list[float]) -> Row:
    row: Row = {"operation": operation, "row_bytes": row_bytes, "batch": batch, **timing.summarise([times_us])}
    median_us = float(np.median(times_us))
    if row_bytes:
        row["gigabytes_per_s"] = round(row_bytes * batch / median_us / 1e3, 3)
    if device_us:
        row["device_median_us"] = round(float(np.median(device_us)), 3)
        if row_bytes:
            row["device_gigabytes_per_s"] = round(row_bytes * batch / row["device_median_us"] / 1e3, 3)
    return row


def filled(spec: relive.StepSpec, capacity: int, column: str, index: relive.Index) -> tuple[relive.Table, np.ndarray]:
    """A table full of steps without states, and the keys of all of them."""
    table = relive.Table(spec, capacity, index, max_lanes=1)
    shape = spec.columns[column].shape
    most = max(1, min(capacity, (32 << 20) // max(1, int(np.prod(shape, dtype=int)))))
    block = np.random.default_rng(0).integers(0, 256, (most, *shape), dtype=np.uint8)
    keys = []
    with table.writer() as writer:
        for begin in range(0, capacity, most):
            keys.append(writer.extend(**{column: block[: min(most, capacity - begin)]}))
    return table, np.concatenate(keys)


def gather_rows(device: Device, row_bytes: int, scale: Scale) -> Iterator[Row]:
    """The three ways for one size of rows."""
    from relive.gpu import DeviceReader

    torch = device.torch
    batch = max(1, min(scale.batch_bytes // row_bytes, scale.most_items))
    capacity = max(batch, scale.pool_bytes // row_bytes)
    spec = relive.StepSpec({"blob": relive.ArraySpec((row_bytes,), "uint8")})
    table, keys = filled(spec, capacity, "blob", relive.Index())
    chosen = np.random.default_rng(1).choice(keys[-capacity:], batch)
    target = torch.empty((batch, row_bytes), dtype=torch.uint8, device=device.name)
    host = device.host_bytes(batch * row_bytes).view(batch, row_bytes)
    with table, DeviceReader(table, device.name) as reader:
        there = torch.from_numpy(chosen).to(device.name)
        plan, outputs = reader._plan(None, ["blob"])
        rounds = reader._rounds_of(plan.number)

        def gather_then_copy() -> None:
            table.gather(chosen, ["blob"], out={"blob": host.numpy()})
            target.copy_(host, non_blocking=True)

        ways: dict[str, Callable[[], Any]] = {
            "zero-copy": lambda: reader.gather(there, ["blob"], out={"blob": target}),
            "pinned copy": lambda: target.copy_(host, non_blocking=True),
            "gather, then copy": gather_then_copy,
        }
        device_us = {}
        room = outputs.room(batch, {"blob": target}, reader.device)
        with reader._view.held() as span:  # the launches alone, one round of them

            def launch() -> None:
                rounds.gather(span, rounds.scratch(batch), there, room)

            device_us["zero-copy"] = device.device_times_us(launch, scale.num_calls)
        device_us["pinned copy"] = device.device_times_us(ways["pinned copy"], scale.num_calls)
        for name, call in ways.items():
            times_us = device.call_times_us(call, scale.num_calls)
            yield row_of(name, row_bytes, batch, times_us, device_us.get(name, []))


def draw_items(device: Device, num_leaves: int, scale: Scale) -> Iterator[Row]:
    """The weighted draw over a full tree, beside the core's."""
    from relive.gpu import DeviceReader
    from relive.gpu.draw import DeviceSampler

    spec = relive.StepSpec({"flag": relive.ArraySpec((), "uint8")})
    index = relive.Index(sampler=relive.Prioritized(priority_exponent=1.0))
    table, keys = filled(spec, num_leaves, "flag", index)
    rng = np.random.default_rng(2)
    for begin in range(0, num_leaves, 1 << 20):
        some = keys[begin : begin + (1 << 20)]
        table.update_priorities(some, rng.random(len(some), np.float32))
    with table, DeviceReader(table, device.name) as reader:
        sampler = DeviceSampler(table._core, 0, 0, reader._view)
        rounds, drawing = reader._rounds_of(0), sampler.drawing(scale.num_drawn, 0, 0, reader.device)
        with reader._view.held() as span:

            def launch() -> None:
                rounds.draw(span, rounds.scratch(scale.num_drawn), drawing)

            device_us = device.device_times_us(launch, scale.num_calls)
        times_us = device.call_times_us(lambda: reader.draw(scale.num_drawn), scale.num_calls)
        yield {**row_of("draw on the device", 0, scale.num_drawn, times_us, device_us), "num_steps": num_leaves}
        times_us = device.call_times_us(lambda: table.draw(scale.num_drawn), scale.num_calls)
        yield {**row_of("draw by the core", 0, scale.num_drawn, times_us, []), "num_steps": num_leaves}


def measure(torch: Any, device_name: str, scale: Scale) -> dict[str, Any]:
    """Everything, with the card's name."""
    device = Device(torch, device_name)
    start = time.monotonic()
    rows: list[Row] = []
    for row_bytes in scale.row_bytes:
        rows.extend(gather_rows(device, row_bytes, scale))
    for num_leaves in scale.num_leaves:
        rows.extend(draw_items(device, num_leaves, scale))
    card = torch.cuda.get_device_name() if device.is_cuda else "none: Triton's interpreter on the CPU"
    versions = {"torch": torch.__version__, "cuda": str(torch.version.cuda)}
    return {
        "part": "gpu",
        "card": card,
        "machine": machine.describe(),
        "versions": versions,
        "rows": rows,
        "seconds": round(time.monotonic() - start, 1),
    }


def lines_of(rows: list[Row]) -> list[list[str]]:
    headings = ["operation", "row bytes", "leaves", "batch", "median us", "GB/s", "device us", "device GB/s"]
    names = ["operation", "row_bytes", "num_steps", "batch", "median_us", "gigabytes_per_s"]
    names += ["device_median_us", "device_gigabytes_per_s"]
    return [headings, *([shown(name, row.get(name)) for name in names] for row in rows)]


def shown(name: str, value: Any) -> str:
    if name == "operation":
        return str(value)
    return f"{value:,}" if value else ""


def save(values: dict[str, Any], folder: Path) -> None:
    import json

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gpu.json").write_text(json.dumps(values, indent=1) + "\n")
    title = f"# Reading a table on a GPU\n\n{values['card']}; {values['machine']['cpu']}.\n\n"
    (folder / "gpu.md").write_text(title + markdown_table(lines_of(values["rows"]), right_from=1))


def main() -> int:
    try:
        import torch

        import relive.gpu  # noqa: F401
    except ModuleNotFoundError as missing:
        print(f"nothing measured: {missing}", file=sys.stderr)
        return NO_GPU
    if not torch.cuda.is_available():
        print("nothing measured, nothing written: torch sees no CUDA GPU on this machine", file=sys.stderr)
        return NO_GPU
    values = measure(torch, "cuda", Scale())
    save(values, RESULTS)
    print(f"{values['card']}\n\n{aligned(lines_of(values['rows']))}\nsaved in benchmarks/results/gpu.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
