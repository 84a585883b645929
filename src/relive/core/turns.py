"""Turns: a mutex whose waits have a deadline and hear signals, for objects whose calls may take long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from relive._core import Turn
from relive.errors import WaitsForItself

__all__ = ["Turn", "held"]


@contextmanager
def held(turn: Turn, purpose: str, timeout_s: float) -> Iterator[None]:
    """Keeps the turn for the block.

    Args:
        turn: the mutex.
        purpose: what the calling thread waits for, in the error.
        timeout_s: how long to wait for the turn, in seconds.

    Raises:
        DeadlineExceeded: another thread had the turn until the deadline.
        WaitsForItself: a signal's handler interrupted the owner of the turn. The owner keeps it.
    """
    is_inner = False
    try:
        try:
            turn.take(purpose, timeout_s)
        except WaitsForItself:
            is_inner = True
            raise
        yield
    finally:  # a signal's handler may raise when the turn is taken; release() does nothing for another thread's turn
        if not is_inner:
            turn.release()
