"""The data of `make bench-sequence-models`: the same windows of steps for every library.

A step is 16 floats: an observation of 11, an action of 3, the return-to-go, the number of the step in its episode. A
batch is 64 windows of `length` steps, drawn uniformly, in torch tensors [64, length, floats].
"""

from __future__ import annotations

import numpy as np

EPISODE, NUM_EPISODES, BATCH, AHEAD = 2_048, 100, 64, 8
PARTS = {"observation": slice(0, 11), "action": slice(11, 14), "return_to_go": slice(14, 15), "time": slice(15, 16)}
LENGTHS = (20, 1_024)


def episodes() -> np.ndarray:
    """Steps [episodes, steps, 16] of float32."""
    rows = np.random.default_rng(0).random((NUM_EPISODES, EPISODE, 16), np.float32)
    rows[..., 15] = np.arange(EPISODE)
    return rows
