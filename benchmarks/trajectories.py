"""The load of the part `nodes`: items of three lengths, the same numbers for every library.

A step is 15 floats, as one of Hopper (observation 11, action 3, reward). Items are drawn uniformly, and a batch is
float32[B, T, 15] (of transitions [B, 15]) with the keys of its items where the library has some.
"""

from __future__ import annotations

import numpy as np

FLOATS = 15
STEP_BYTES = 4 * FLOATS
LENGTHS = {"transitions": 1, "windows": 32, "episodes": 200}
BATCHES = {"transitions": (256, 1024), "windows": (32, 256, 1024), "episodes": (32, 256, 1024)}
NUM_STEPS = 100_000
AHEAD = 4  # batches asked for before the first is used
EPISODE = LENGTHS["episodes"]
OTHER_NODE = "127.0.0.2"


def steps() -> np.ndarray:
    """[NUM_STEPS, 15]."""
    return np.random.default_rng(0).random((NUM_STEPS, FLOATS), np.float32)


def items(load: str) -> np.ndarray:
    """[N, T, 15] without overlaps; of transitions [N, 15]. What does not fill an item is left out."""
    length = LENGTHS[load]
    if length == 1:
        return steps()
    return steps()[: NUM_STEPS // length * length].reshape(-1, length, FLOATS)


def batch_bytes(load: str, batch: int) -> int:
    """Bytes of the rows of a batch."""
    return batch * LENGTHS[load] * STEP_BYTES
