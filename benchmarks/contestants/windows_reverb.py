"""dm-reverb: an item is a whole window in one chunk, its quickest layout. TrajectoryDataset reads ahead. No torch."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before tensorflow is imported

import numpy as np
import reverb
import tensorflow as tf

from benchmarks import windows


@contextlib.contextmanager
def host(kind: str, length: int) -> Iterator[str]:
    """Serves and fills a table of windows without overlaps. Yields its address."""
    steps = windows.episodes()
    items = steps[:, : windows.EPISODE // length * length].reshape(-1, length, 16)
    table = reverb.Table(
        "table",
        sampler=reverb.selectors.Uniform(),
        remover=reverb.selectors.Fifo(),
        max_size=len(items),
        rate_limiter=reverb.rate_limiters.MinSize(1),
        signature={"values": tf.TensorSpec(items.shape[1:], tf.float32)},
    )
    server = reverb.Server([table])
    address = f"localhost:{server.port}"
    with reverb.Client(address).trajectory_writer(num_keep_alive_refs=1) as writer:
        for number, item in enumerate(items):
            writer.append({"values": item})
            writer.create_item("table", 1.0, {"values": writer.history["values"][-1]})
            if number % 40 == 39:
                writer.flush(block_until_num_items=20)
    yield address
    server.stop()


@contextlib.contextmanager
def open_windows(kind: str, place: str, length: int, rank: int) -> Iterator[dict[str, Callable[[], Any]]]:
    """{way: call}. A call returns the arrays of a batch."""
    client = reverb.Client(place)
    dataset = reverb.TrajectoryDataset.from_table_signature(
        place, "table", max_in_flight_samples_per_worker=2 * windows.BATCH
    )
    batches = dataset.batch(windows.BATCH).prefetch(windows.AHEAD).as_numpy_iterator()

    def parts(values: np.ndarray) -> Any:
        return {name: values[..., columns] for name, columns in windows.PARTS.items()}

    def sample() -> Any:
        return parts(np.stack([one.data[0] for one in client.sample("table", windows.BATCH, emit_timesteps=False)]))

    yield {"on request": sample, "ahead": lambda: parts(next(batches).data["values"])}
