"""Rows brought to the device: by the kernels from host memory, by copies, and from memory of the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import relive
from benchmarks.gpu.device import Device, Row, Scale, row_of
from benchmarks.gpu.sources import copied_region, filled, launch_times_us, one_round

__all__ = ["item_reads", "row_reads"]


def row_reads(device: Device, row_bytes: int, scale: Scale) -> Iterator[Row]:
    """Rows of one size: zero-copy, a pinned copy, gather then copy, and two ways within device memory."""
    from relive.gpu import DeviceReader

    torch = device.torch
    batch = max(1, min(scale.batch_bytes // row_bytes, scale.most_items))
    capacity = max(batch, scale.pool_bytes // row_bytes)
    spec = relive.StepSpec({"blob": relive.ArraySpec((row_bytes,), "uint8")})
    table, keys = filled(spec, capacity, "blob", relive.Index())
    chosen = np.random.default_rng(1).choice(keys[-capacity:], batch)
    distinct = len(np.unique(chosen)) * row_bytes
    target = torch.empty((batch, row_bytes), dtype=torch.uint8, device=device.name)
    host = device.host_bytes(batch * row_bytes).view(batch, row_bytes)
    with table, DeviceReader(table, device.name) as reader:
        there = torch.from_numpy(chosen).to(device.name)
        launch = one_round(reader, None, ["blob"], there)
        copy, held = copied_region(device, table, reader)

        def gather_then_copy() -> None:
            table.gather(chosen, ["blob"], out={"blob": host.numpy()})
            target.copy_(host, non_blocking=True)

        def from_the_table() -> None:
            with reader._view.held() as span:
                launch(span)

        plain = torch.empty((capacity, row_bytes), dtype=torch.uint8, device=device.name)
        rows = torch.from_numpy(np.random.default_rng(2).integers(0, capacity, batch)).to(device.name)
        ways: dict[str, tuple[Callable[[], Any], Callable[[], Any] | None]] = {
            "zero-copy": (lambda: reader.gather(there, ["blob"], out={"blob": target}), from_the_table),
            "pinned copy": (lambda: target.copy_(host, non_blocking=True),) * 2,
            "gather, then copy": (gather_then_copy, None),
            "table in device memory": (lambda: launch(held),) * 2,
            "torch index in device memory": (lambda: torch.index_select(plain, 0, rows, out=target),) * 2,
        }
        for name, (call, alone) in ways.items():
            times_us = device.call_times_us(call, scale.num_calls)
            device_us = [] if alone is None else device.device_times_us(alone, scale.num_calls)
            yield row_of(name, distinct, batch, times_us, device_us, row_bytes=row_bytes)


FRAME = (84, 84)


def item_reads(device: Device, scale: Scale) -> Iterator[Row]:
    """Batches as agents ask for them: transitions, stacks of Atari frames, and windows of a sequence model."""
    for kind in _kinds(scale):
        yield from _reads_of_kind(device, scale, kind)


class Kind(NamedTuple):
    """One kind of batch: its table, its items, and how many rows an item has."""

    name: str
    columns: dict[str, relive.ArraySpec]
    capacity: int  # steps
    items: Any
    batch: int
    num_states: int  # of an item; a state that two outputs show counts once
    num_steps: int = 1  # of an item


def _kinds(scale: Scale) -> Iterator[Kind]:
    control = {
        "observation": relive.ArraySpec((48,), "float32", kind="state"),
        "action": relive.ArraySpec((12,), "float32"),
        "reward": relive.ArraySpec((), "float32"),
    }
    frames = {
        "observation": relive.ArraySpec(FRAME, "uint8", kind="state"),
        "action": relive.ArraySpec((), "int64"),
        "reward": relive.ArraySpec((), "float32"),
    }
    for batch in scale.batches:
        yield Kind("transitions", control, scale.ring_steps, relive.Transitions(), batch, 2)
        stacks = relive.Transitions(stack={"observation": 4})
        yield Kind("Atari stacks", frames, scale.frames, stacks, min(batch, 1024), 5)
    windows = relive.Sequences(scale.window, bootstrap=1)
    yield Kind("windows", frames, scale.frames, windows, scale.windows, scale.window + 1, scale.window)


def _reads_of_kind(device: Device, scale: Scale, kind: Kind) -> Iterator[Row]:
    from relive.gpu import DeviceReader

    torch, name, batch = device.torch, kind.name, kind.batch
    spec = relive.StepSpec(kind.columns)
    index = relive.Index(kind.items, relive.Prioritized(priority_exponent=1.0))
    with relive.Table(spec, kind.capacity, index, max_lanes=1) as table:
        _fill(table, kind.capacity)
        rows = {True: kind.num_states, False: kind.num_steps}
        distinct = batch * sum(one.num_bytes * rows[one.kind == "state"] for one in spec.columns.values())
        with DeviceReader(table, device.name) as reader:
            keys = reader.draw(batch).item_keys
            launch = one_round(reader, None, None, keys)

            def from_the_table() -> None:
                with reader._view.held() as span:
                    launch(span)

            device_us = device.device_times_us(from_the_table, scale.num_calls)
            times_us = device.call_times_us(lambda: reader.gather(keys), scale.num_calls)
            yield row_of(f"gather of {name}", distinct, batch, times_us, device_us)
            times_us = device.call_times_us(lambda: reader.sample(batch), scale.num_calls)
            more = {}
            if device.is_cuda:
                more["launches_us"] = launch_times_us(device, reader, lambda: reader.sample(batch), scale.num_calls)
            yield row_of(f"sample of {name}", distinct, batch, times_us, [], **more)
            copy, held = copied_region(device, table, reader)
            device_us = device.device_times_us(lambda: launch(held), scale.num_calls)
            times_us = device.call_times_us(lambda: launch(held), scale.num_calls)
            yield row_of(f"{name}, table in device memory", distinct, batch, times_us, device_us)
        host = device.host_bytes(distinct)
        target = torch.empty(distinct, dtype=torch.uint8, device=device.name)
        call = lambda: target.copy_(host, non_blocking=True)  # noqa: E731
        times_us = device.call_times_us(call, scale.num_calls)
        yield row_of(f"pinned copy, bytes of {name}", distinct, batch, times_us, device.device_times_us(call, 20))
        times_us = device.call_times_us(_host_sample(device, table, batch), scale.num_calls)
        yield row_of(f"sample by the core, then copy, of {name}", distinct, batch, times_us, [])


def _host_sample(device: Device, table: relive.Table, batch: int) -> Callable[[], Any]:
    torch = device.torch

    def call() -> Any:
        arrays = table.sample(batch).flat()
        return {name: torch.from_numpy(array).to(device.name, non_blocking=True) for name, array in arrays.items()}

    return call


def _fill(table: relive.Table, capacity: int) -> None:
    """Episodes of 1,000 steps of random bytes."""
    rng = np.random.default_rng(0)
    length = min(1000, capacity // 2)
    rows = {}
    for name, one in table.spec.columns.items():
        count = length + (one.kind == "state")
        block = rng.integers(0, 256, (count, one.num_bytes), dtype=np.uint8)
        if np.dtype(one.dtype).kind == "f":
            block = rng.normal(size=(count, *one.shape)).astype(one.dtype)
        rows[name] = block.view(one.dtype).reshape((count, *one.shape))
    with table.writer() as writer:
        for _ in range(capacity // (length + 1)):
            writer.extend(**rows, truncated=True)
