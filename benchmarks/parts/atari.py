"""Stacks of four frames of 84 x 84 bytes, observation and next observation, beside a plain copy of as many bytes.

Warm: only the batch before is kept, so that memory can serve again. Cold: every batch is kept, each has new memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks import contestants, timing, workload

CONTESTANTS = ("relive", "relive shared", "SB3 uniform", "Tianshou")
FRAME_BYTES = int(np.prod(workload.FRAME))
COPY_SOURCE_BYTES = 512 << 20


def plan(quick: bool) -> list[dict[str, Any]]:
    num_steps = 20_000 if quick else 100_000
    return [
        {"contestant": contestant, "num_steps": num_steps, "quick": quick}
        for _ in range(1 if quick else 3)
        for contestant in CONTESTANTS
    ]


def work(job: dict[str, Any]) -> list[dict[str, Any]]:
    buffer = contestants.load(job["contestant"]).open_atari(job["contestant"], job["num_steps"])
    readings = []
    for batch, num_calls in ((32, 300), (256, 100)):
        num_calls = max(int(num_calls * (0.3 if job["quick"] else 1.0)), 20)
        warm = lambda batch=batch: buffer.sample(batch)  # noqa: E731
        copies = _Copies(batch)
        # Sample and copy alternate in blocks, so that what else the machine does meets both.
        found: dict[str, list[float]] = {}
        for _ in range(5):
            for name, call in (
                ("sample, warm", warm),
                ("memcpy, source in cache", copies.from_one_source),
                ("memcpy, source in memory", copies.from_many_sources),
            ):
                taken = timing.time_calls(call, num_calls // 5, warm_up=3)
                found.setdefault(name, []).extend(taken)
        kept: list[Any] = []
        cold = lambda batch=batch, kept=kept: kept.append(buffer.sample(batch))  # noqa: E731
        found["sample, cold"] = timing.time_calls(cold, min(num_calls, 50), warm_up=0)
        kept.clear()
        readings += [{"operation": name, "batch": batch, "readings_us": taken} for name, taken in found.items()]
    buffer.close()
    return readings


def written_bytes(batch: int) -> int:
    """Bytes of a gathered batch of stacks: observation and next observation."""
    return 2 * batch * workload.STACK * FRAME_BYTES


class _Copies:
    """numpy's copy of a batch's bytes to memory already touched."""

    def __init__(self, batch: int) -> None:
        size = written_bytes(batch)
        self._target = np.ones(size, dtype=np.uint8)
        self._source = np.ones(max(COPY_SOURCE_BYTES, 2 * size), dtype=np.uint8)
        self._starts = np.random.default_rng(4).integers(0, len(self._source) - size, 1000)
        self._call = 0

    def from_one_source(self) -> None:
        np.copyto(self._target, self._source[: len(self._target)])

    def from_many_sources(self) -> None:
        start = self._starts[self._call % len(self._starts)]
        self._call += 1
        np.copyto(self._target, self._source[start : start + len(self._target)])
