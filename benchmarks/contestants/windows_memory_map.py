"""A memory-mapped array of all steps: numpy copies the windows that begin at random steps."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import windows


@contextlib.contextmanager
def host(kind: str, length: int) -> Iterator[str]:
    """Writes the file. Yields its path."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "steps.bin"
        windows.episodes().tofile(path)
        yield str(path)


@contextlib.contextmanager
def open_windows(kind: str, place: str, length: int, rank: int) -> Iterator[dict[str, Callable[[], Any]]]:
    """{way: call}. A call returns the tensors of a batch."""
    steps = np.memmap(place, np.float32, "r", shape=(windows.NUM_EPISODES, windows.EPISODE, 16))
    rng = np.random.default_rng(rank)

    def sample() -> Any:
        episode = rng.integers(0, windows.NUM_EPISODES, windows.BATCH)
        begin = rng.integers(0, windows.EPISODE - length + 1, windows.BATCH)
        rows = np.empty((windows.BATCH, length, 16), np.float32)
        for row, which, first in zip(rows, episode, begin, strict=True):
            row[:] = steps[which, first : first + length]
        whole = torch.from_numpy(rows)
        return {name: whole[..., columns] for name, columns in windows.PARTS.items()}

    yield {"on request": sample}
