"""dm-reverb: its server in a process of its own, its client here. Every transition is an item and a chunk of its own,
which is its quickest layout for drawing single transitions.

Two of its ordinary ways to sample are measured: client.sample, whose items are stacked into arrays, as a learner needs
them, and TrajectoryDataset, batched and prefetched by tf.data, read as numpy arrays.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before tensorflow is imported

import numpy as np

from benchmarks import workload

IN_FLIGHT = 2 * 256  # samples under way for one worker of the dataset: two batches
AHEAD = 8


def _signature() -> dict[str, Any]:
    import tensorflow as tf

    return {
        "observation": tf.TensorSpec((workload.OBSERVATION_SIZE,), tf.float32),
        "action": tf.TensorSpec((workload.ACTION_SIZE,), tf.float32),
        "reward": tf.TensorSpec((), tf.float32),
        "discount": tf.TensorSpec((), tf.float32),
        "next_observation": tf.TensorSpec((workload.OBSERVATION_SIZE,), tf.float32),
    }


def serve(num_steps: int) -> None:
    """Serves a prioritized table, says at which port, and ends with its standard input."""
    import reverb

    table = reverb.Table(
        "table",
        sampler=reverb.selectors.Prioritized(workload.PRIORITY_EXPONENT),
        remover=reverb.selectors.Fifo(),
        max_size=num_steps,
        rate_limiter=reverb.rate_limiters.MinSize(1),
        signature=_signature(),
    )
    server = reverb.Server([table])
    print(server.port, flush=True)
    sys.stdin.read()
    server.stop()


@contextlib.contextmanager
def open_hopper(num_steps: int) -> Iterator[dict[str, Any]]:
    """{operation: (batch, call)} over a filled table."""
    import reverb

    command = [sys.executable, "-m", "benchmarks.contestants.reverb_table", str(num_steps)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdin is not None and server.stdout is not None
    try:
        address = f"localhost:{int(server.stdout.readline())}"
        client = reverb.Client(address)
        _fill(client, num_steps)
        dataset = reverb.TrajectoryDataset.from_table_signature(
            address, "table", max_in_flight_samples_per_worker=IN_FLIGHT
        )
        batches = dataset.batch(256).prefetch(AHEAD).as_numpy_iterator()

        def sample() -> Any:
            items = list(client.sample("table", 256, emit_timesteps=False))
            columns = [np.stack(parts) for parts in zip(*(item.data for item in items), strict=True)]
            live, chances = items[0].info.table_size, np.array([item.info.probability for item in items])
            weights = (live * chances) ** -workload.BETA
            return columns, [item.info.key for item in items], weights / weights.max()

        def ahead() -> Any:
            batch = next(batches)
            weights = (batch.info.table_size * batch.info.probability) ** -workload.BETA
            return batch.data, batch.info.key, weights / weights.max()

        yield {"sample": (256, sample), "sample ahead": (256, ahead)}
    finally:
        server.stdin.close()
        server.wait(30)


def _fill(client: Any, num_steps: int) -> None:
    ring = workload.hopper_ring(1000, 1)
    priorities = workload.random_priorities(1000)
    with client.trajectory_writer(num_keep_alive_refs=1) as writer:
        for t in range(num_steps):
            row = t % 1000
            writer.append(
                {
                    "observation": ring.observation[row, 0],
                    "action": ring.action[row, 0],
                    "reward": ring.reward[row, 0],
                    "discount": np.float32(0.99),
                    "next_observation": ring.next_observation[row, 0],
                }
            )
            writer.create_item("table", priorities[row], {name: part[-1] for name, part in writer.history.items()})
            if row % 40 == 39:
                writer.flush(block_until_num_items=20)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
