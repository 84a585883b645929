"""TorchRL's RayReplayBuffer, its storage in an actor on the other node."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from benchmarks import trajectories

USES_RAY = True


@contextlib.contextmanager
def open_nodes(load: str) -> Iterator[dict[str, tuple[int, Callable[[], Any]]]]:
    """{operation: (batch, call)}."""
    import ray
    import torch
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, RayReplayBuffer

    ray.init(address="auto", log_to_driver=False, logging_level="error")
    items = torch.from_numpy(trajectories.items(load))
    buffer = RayReplayBuffer(
        storage=partial(LazyTensorStorage, len(items)),
        batch_size=32,
        remote_config={"num_cpus": 1, "resources": {"other": 1}},
    )
    for part in items.split(max(1, len(items) // 10)):
        buffer.extend(TensorDict({"values": part}, [len(part)]))
    yield {
        f"RayReplayBuffer, {batch}": (batch, partial(_sample, buffer, batch))
        for batch in trajectories.LOADS[load].batches
    }


def _sample(buffer: Any, batch: int) -> Any:
    return buffer.sample(batch_size=batch)["values"]
