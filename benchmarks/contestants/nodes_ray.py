"""The same batches through Ray's object store: an actor on the other node draws and gathers, and answers with them."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks import trajectories

USES_RAY = True


class Holder:
    """Items in an array, drawn uniformly."""

    def __init__(self, load: str) -> None:
        self._items = trajectories.items(load)
        self._random = np.random.default_rng(1)

    def sample(self, batch: int) -> np.ndarray:
        return self._items[self._random.integers(0, len(self._items), batch)]

    def take_apart(self, batch: int, num_calls: int) -> tuple[list[float], list[float]]:
        """Microseconds of the choice and of the copy."""
        compute, memory = [], []
        for _ in range(num_calls):
            start = time.perf_counter()
            chosen = self._random.integers(0, len(self._items), batch)
            between = time.perf_counter()
            self._items[chosen]
            compute.append((between - start) * 1e6)
            memory.append((time.perf_counter() - between) * 1e6)
        return compute, memory


@contextlib.contextmanager
def open_nodes(load: str) -> Iterator[dict[str, tuple[int, Callable[[], Any]]]]:
    """{operation: (batch, call)}."""
    import ray

    ray.init(address="auto", log_to_driver=False, logging_level="error")
    holder = ray.remote(Holder).options(num_cpus=1, resources={"other": 1}).remote(load)
    ray.get(holder.sample.remote(1))
    yield {
        name: call for batch in trajectories.LOADS[load].batches for name, call in _calls(ray, holder, batch).items()
    }


def _calls(ray: Any, holder: Any, batch: int) -> dict[str, tuple[int, Callable[[], Any]]]:
    under_way: deque[Any] = deque()

    def ahead() -> Any:
        while len(under_way) < trajectories.AHEAD:
            under_way.append(holder.sample.remote(batch))
        return ray.get(under_way.popleft())

    return {
        f"object store, {batch}": (batch, lambda: ray.get(holder.sample.remote(batch))),
        f"object store, ahead, {batch}": (batch, ahead),
    }
