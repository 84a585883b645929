"""Sets how the process of a learner computes: its threads, and the flush of denormal numbers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def learner_numerics(num_threads: int) -> Iterator[None]:
    """Gives torch num_threads threads and flushes denormal numbers to zero, until the block ends.

    Without a gradient, Adam's moments of a weight shrink by a constant factor an update, until every operation on them
    meets numbers below 1e-38, and those take a processor a hundred times as long. The switch belongs to a thread, and
    the threads that it starts inherit it: enter the block before torch has computed anything in parallel.
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
    """Returns the threads of each learner: `asked`; for 0 its share of the cores that the actor processes leave.

    The cores are those that this process may use.
    """
    return asked if asked > 0 else max(1, (len(os.sched_getaffinity(0)) - num_actors) // num_learners)


def _flushes_denormals() -> bool:
    return float(torch.tensor([1e-38]) * 0.01) == 0.0
