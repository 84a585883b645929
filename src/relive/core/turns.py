"""Mutexes that Ctrl-C leaves free. A turn also has a deadline for its waits, for objects whose calls may take long."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from relive._core import Turn
from relive.errors import WaitsForItself

__all__ = ["Turn", "held", "take"]


class _Lock(Protocol):
    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...

    def release(self) -> None: ...


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


def take(lock: _Lock, timeout_s: float, mine: list[bool]) -> bool:
    """Takes a lock if it is free in time, and returns whether it is.

    Releases nothing. A handler of a signal that raises at any moment leaves the lock free if the caller writes:

        mine: list[bool] = []
        try:
            if take(lock, timeout_s, mine):
                ...
        finally:
            if True in mine:
                lock.release()

    The lock is taken, and `mine` gets True, in one step of the interpreter, which runs handlers between its steps only.
    A context manager could not do that: if a handler raises within its own code, the exception keeps its frame.

    Args:
        lock: a lock of threading.
        timeout_s: how long to wait for the lock, in seconds.
        mine: an empty list, which gets the answer.
    """
    mine.extend(map(lock.acquire, (True,), (min(max(timeout_s, 0.0), threading.TIMEOUT_MAX),)))
    return mine[0]
