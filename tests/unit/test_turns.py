"""Locks that Ctrl-C leaves free."""

from __future__ import annotations

import threading
from itertools import count
from typing import Any

import pytest
from processes.interrupts import interrupted_at

from relive.core import turns
from relive.core.turns import take


def use(lock: Any, timeout_s: float) -> bool:
    """The form that take() asks for. Returns whether the lock was free in time."""
    mine: list[bool] = []
    try:
        return take(lock, timeout_s, mine) and lock.locked()
    finally:
        if True in mine:
            lock.release()


@pytest.mark.parametrize("timeout_s", [-1.0, 0.0, 0.01, float("inf")])
def test_a_lock_is_taken_or_the_time_is_over(timeout_s: float) -> None:
    lock = threading.Lock()
    assert use(lock, timeout_s) and not lock.locked()
    with lock:
        assert not use(lock, min(timeout_s, 0.01)) and lock.locked()


def test_ctrl_c_at_any_moment_leaves_the_lock_free() -> None:
    """Also while the program keeps the error, whose frames a notebook keeps."""
    lock = threading.Lock()
    for at in count():
        kept = interrupted_at(at, lambda: use(lock, 1.0), turns.__file__, __file__)
        if kept is None:
            break
        assert not lock.locked(), f"at step {at}"
    assert at > 3
