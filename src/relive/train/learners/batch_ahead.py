"""Draws batches for a learner: ahead of time if the agent asks for that, else when they are needed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from relive import Batch
from relive.agents.agent import Agent
from relive.errors import DeadlineExceeded
from relive.table.handle import TableHandle

SLICE_S = 0.1
_SOON_S = 0.02
T = TypeVar("T")


@contextmanager
def batches_of(
    table: TableHandle, agent: Agent, num_items: int, slice_s: float = SLICE_S
) -> Iterator[Callable[[], Batch]]:
    """Gives a function that returns the next batch of num_items, or raises DeadlineExceeded after slice_s."""
    columns = tuple(agent.columns)
    if agent.prefetch:
        with table.batches(num_items, prefetch=agent.prefetch, columns=columns, timeout_s=slice_s) as batches:
            yield lambda: next(batches)
    else:
        yield lambda: table.sample(num_items, columns=columns, timeout_s=slice_s)


def or_none(take: Callable[[], T]) -> T | None:
    """Returns take(); None if it met its deadline, after 20 ms at least."""
    try:
        return take()
    except DeadlineExceeded as late:
        # Before the first actor has attached, the deadline is met at once.
        time.sleep(max(0.0, _SOON_S - late.waited_s))
        return None
