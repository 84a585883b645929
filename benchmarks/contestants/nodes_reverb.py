"""dm-reverb with its server on the other node: an item is one whole window or episode, its quickest layout for them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before tensorflow is imported

import numpy as np

from benchmarks import trajectories

USES_RAY = False


def serve(load: str) -> None:
    """Serves a table, says at which port, and ends with its standard input."""
    import reverb
    import tensorflow as tf

    items = trajectories.items(load)
    table = reverb.Table(
        "table",
        sampler=reverb.selectors.Uniform(),
        remover=reverb.selectors.Fifo(),
        max_size=len(items),
        rate_limiter=reverb.rate_limiters.MinSize(1),
        signature={"values": tf.TensorSpec(items.shape[1:], tf.float32)},
    )
    server = reverb.Server([table])
    print(server.port, flush=True)
    sys.stdin.read()
    server.stop()


@contextlib.contextmanager
def open_nodes(load: str) -> Iterator[dict[str, tuple[int, Callable[[], Any]]]]:
    """{operation: (batch, call)} over a full table."""
    import reverb

    command = [sys.executable, "-m", "benchmarks.contestants.nodes_reverb", load]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdin is not None and server.stdout is not None
    try:
        address = f"{trajectories.OTHER_NODE}:{int(server.stdout.readline())}"
        client = reverb.Client(address)
        _fill(client, trajectories.items(load))
        yield {
            name: one
            for batch in trajectories.LOADS[load].batches
            for name, one in _calls(client, address, batch).items()
        }
    finally:
        server.stdin.close()
        server.wait(30)


def _calls(client: Any, address: str, batch: int) -> dict[str, tuple[int, Callable[[], Any]]]:
    import reverb

    dataset = reverb.TrajectoryDataset.from_table_signature(
        address, "table", max_in_flight_samples_per_worker=2 * batch
    )
    batches = dataset.batch(batch).prefetch(trajectories.AHEAD).as_numpy_iterator()

    def sample() -> Any:
        return np.stack([one.data[0] for one in client.sample("table", batch, emit_timesteps=False)])

    return {
        f"Reverb, {batch}": (batch, sample),
        f"Reverb, ahead, {batch}": (batch, lambda: next(batches).data["values"]),
    }


def _fill(client: Any, items: np.ndarray) -> None:
    with client.trajectory_writer(num_keep_alive_refs=1) as writer:
        for number, item in enumerate(items):
            writer.append({"values": item})
            writer.create_item("table", 1.0, {"values": writer.history["values"][-1]})
            if number % 40 == 39:
                writer.flush(block_until_num_items=20)


if __name__ == "__main__":
    serve(sys.argv[1])
