"""Where a measurement runs, how a call on it is timed, and the row that is kept of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import timing

__all__ = ["Device", "Row", "Scale", "row_of"]

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
    batches: tuple[int, ...] = (256, 4096)
    ring_steps: int = 1_000_000
    frames: int = 100_000  # steps of the table of Atari frames
    window: int = 80
    windows: int = 64  # of a batch


SMALL = Scale(
    row_bytes=(64, 1024), batch_bytes=2048, pool_bytes=16_384, num_leaves=(500,), num_drawn=20, num_calls=1,
    batches=(8,), ring_steps=500, frames=200, window=8, windows=4,
)  # fmt: skip


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


def row_of(
    operation: str, num_bytes: int, batch: int, times_us: list[float], device_us: list[float], **more: Any
) -> Row:
    """A row of the results.

    Args:
        operation: what is timed.
        num_bytes: bytes that reach the batch from different places of the source; 0: no rows are read.
        batch: items of a call.
        times_us: wall time of the calls.
        device_us: time on the device, between events around the launches.
        more: further fields of the row.
    """
    row: Row = {"operation": operation, "batch": batch, **more, **timing.summarise([times_us])}
    if num_bytes:
        row["distinct_bytes"] = num_bytes
        row["gigabytes_per_s"] = round(num_bytes / row["median_us"] / 1e3, 3)
    if device_us:
        row["device_median_us"] = round(float(np.median(device_us)), 3)
        if num_bytes:
            row["device_gigabytes_per_s"] = round(num_bytes / row["device_median_us"] / 1e3, 3)
    return row
