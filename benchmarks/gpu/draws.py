"""Weighted draws and updates of priorities, beside TorchRL's tree and plain torch; and a ring buffer of plain torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import relive
from benchmarks.gpu.device import Device, Row, Scale, row_of
from benchmarks.gpu.sources import filled, launch_times_us

__all__ = ["draws", "ring_buffer", "torchrl_tree"]


def draws(device: Device, num_leaves: int, scale: Scale) -> Iterator[Row]:
    """The weighted draw over a full tree, an update of the drawn priorities, and the same by the core."""
    from relive.gpu import DeviceReader
    from relive.gpu.draw import DeviceSampler

    spec = relive.StepSpec({"flag": relive.ArraySpec((), "uint8")})
    index = relive.Index(sampler=relive.Prioritized(priority_exponent=1.0))
    table, keys = filled(spec, num_leaves, "flag", index)
    rng = np.random.default_rng(2)
    for begin in range(0, num_leaves, 1 << 20):
        some = keys[begin : begin + (1 << 20)]
        table.update_priorities(some, rng.random(len(some), np.float32))
    count, more = scale.num_drawn, {"num_steps": num_leaves}
    with table, DeviceReader(table, device.name) as reader:
        sampler = DeviceSampler(table._core, 0, 0, reader._view)
        rounds, drawing = reader._rounds_of(0), sampler.drawing(count, 0, 0, reader.device)
        with reader._view.held() as span:

            def launch() -> None:
                rounds.draw(span, rounds.scratch(count), drawing)

            device_us = device.device_times_us(launch, scale.num_calls)
        times_us = device.call_times_us(lambda: reader.draw(count), scale.num_calls)
        launches = {}
        if device.is_cuda:
            launches["launches_us"] = launch_times_us(device, reader, lambda: reader.draw(count), scale.num_calls)
        yield row_of("draw on the device", 0, count, times_us, device_us, **more, **launches)
        times_us = device.call_times_us(lambda: table.draw(count), scale.num_calls)
        yield row_of("draw by the core", 0, count, times_us, [], **more)
        drawn = reader.draw(count)
        priorities = device.torch.rand(count, device=device.name)

        def update() -> None:
            table.update_priorities(drawn.item_keys.cpu().numpy(), priorities.cpu().numpy())

        times_us = device.call_times_us(update, scale.num_calls)
        yield row_of("update of priorities from the device", 0, count, times_us, [], **more)
    yield from _plain_draw(device, num_leaves, scale)


def _plain_draw(device: Device, num_leaves: int, scale: Scale) -> Iterator[Row]:
    """A weighted draw by plain torch: it computes all sums and searches them."""
    torch = device.torch
    masses = torch.rand(num_leaves, device=device.name)

    def draw() -> Any:
        sums = torch.cumsum(masses, 0)
        return torch.searchsorted(sums, torch.rand(scale.num_drawn, device=device.name) * sums[-1])

    times_us = device.call_times_us(draw, scale.num_calls)
    device_us = device.device_times_us(draw, scale.num_calls)
    yield row_of("torch cumsum and searchsorted", 0, scale.num_drawn, times_us, device_us, num_steps=num_leaves)


def torchrl_tree(device: Device, num_leaves: int, scale: Scale) -> tuple[list[Row], str]:
    """TorchRL's sum tree in device memory: (rows, why there are none)."""
    try:
        import torchrl
        from torchrl import _torchrl as extension
    except ImportError as missing:
        return [], f"TorchRL's tree: {missing}"
    made = getattr(extension, "CudaSumSegmentTreeFp32", None)
    if made is None or not device.is_cuda:
        return [], f"TorchRL's tree: torchrl {torchrl.__version__} here was built without trees in device memory"
    torch = device.torch
    tree = made(num_leaves, torch.device(device.name))
    every = torch.arange(num_leaves, device=device.name)
    tree.update(every, torch.rand(num_leaves, device=device.name))
    priorities = torch.rand(scale.num_drawn, device=device.name)
    chosen = every[: scale.num_drawn].contiguous()

    def draw() -> Any:
        total = tree.query(0, num_leaves)
        return tree.scan_lower_bound(torch.rand(scale.num_drawn, device=device.name) * total)

    rows = []
    for name, call in (("draw", draw), ("update", lambda: tree.update(chosen, priorities))):
        times_us = device.call_times_us(call, scale.num_calls)
        device_us = device.device_times_us(call, scale.num_calls)
        operation = f"{name}, TorchRL {torchrl.__version__}"
        rows.append(row_of(operation, 0, scale.num_drawn, times_us, device_us, num_steps=num_leaves))
    return rows, ""


def ring_buffer(device: Device, scale: Scale) -> Iterator[Row]:
    """Uniform transitions from tensors in device memory, as simulators on the device keep them (FastTD3's buffer)."""
    torch = device.torch
    count = scale.ring_steps
    kept = {
        "observation": torch.rand((count, 48), device=device.name),
        "next_observation": torch.rand((count, 48), device=device.name),
        "action": torch.rand((count, 12), device=device.name),
        "reward": torch.rand(count, device=device.name),
        "discount": torch.rand(count, device=device.name),
    }
    for batch in scale.batches:
        num_bytes = sum(tensor[:batch].nbytes for tensor in kept.values())

        def sample(batch: int = batch) -> Any:
            rows = torch.randint(0, count, (batch,), device=device.name)
            return {name: tensor[rows] for name, tensor in kept.items()}

        times_us = device.call_times_us(sample, scale.num_calls)
        device_us = device.device_times_us(sample, scale.num_calls)
        yield row_of("torch ring buffer in device memory", num_bytes, batch, times_us, device_us)
