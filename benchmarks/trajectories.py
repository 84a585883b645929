"""The loads of the part `nodes`: items of four shapes, the same numbers for every library.

A step is 15 floats, as one of Hopper (observation 11, action 3, reward), and of large rows 110 kB. Items are drawn
uniformly, and a batch is float32[B, T, floats] (of single steps [B, floats]), with its keys where the library has some.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Load(NamedTuple):
    """length: steps of an item."""

    length: int
    floats: int
    num_steps: int
    batches: tuple[int, ...]


LOADS = {
    "transitions": Load(1, 15, 100_000, (256, 1024)),
    "windows": Load(32, 15, 100_000, (32, 256, 1024)),
    "episodes": Load(200, 15, 100_000, (32, 256, 1024)),
    "large rows": Load(1, 27_500, 1_000, (8, 32, 128)),
}
EPISODE = 200
AHEAD = 4  # batches asked for before the first is used
OTHER_NODE = "127.0.0.2"


def steps(load: str) -> np.ndarray:
    """[num_steps, floats]."""
    _, floats, num_steps, _ = LOADS[load]
    return np.random.default_rng(0).random((num_steps, floats), np.float32)


def items(load: str) -> np.ndarray:
    """Items [N, T, floats] without overlaps; single steps are [N, floats]. Steps that fill no item are left out."""
    length, floats, num_steps, _ = LOADS[load]
    if length == 1:
        return steps(load)
    return steps(load)[: num_steps // length * length].reshape(-1, length, floats)


def batch_bytes(load: str, batch: int) -> int:
    """Bytes of the rows of a batch."""
    return batch * LOADS[load].length * LOADS[load].floats * 4
