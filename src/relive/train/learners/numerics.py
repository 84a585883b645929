"""How a learner's process computes: its threads, and what happens to numbers too small to be normal."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def learner_numerics(num_threads: int) -> Iterator[None]:
    """torch with so many threads, denormal numbers flushed to zero; as it was before, at the end.

    Adam's moments of weights that get no gradient shrink by a constant factor an update, until every operation on them
    meets numbers below 1e-38, which processors take a hundred times longer over. The switch belongs to a thread and is
    inherited by those it starts: enter this before torch has computed anything in parallel.
    """
    threads, flushed = torch.get_num_threads(), _flushes_denormals()
    torch.set_num_threads(num_threads)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(flushed)


def threads_of(asked: int, num_actors: int, num_learners: int = 1) -> int:
    """Each learner's threads: as asked, or for 0 its share of the cores that the actor processes leave."""
    return asked if asked > 0 else max(1, ((os.cpu_count() or 1) - num_actors) // num_learners)


def _flushes_denormals() -> bool:
    return float(torch.tensor([1e-38]) * 0.01) == 0.0
