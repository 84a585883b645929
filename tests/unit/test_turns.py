"""Locks that Ctrl-C leaves free, and objects that another thread makes and undoes."""

from __future__ import annotations

import signal
import threading
import time
from itertools import count
from typing import Any

import pytest
from processes.interrupts import interrupted_at
from processes.tools import eventually

from relive.core import turns
from relive.core.ending import made_apart
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


@pytest.mark.parametrize("num_signals", [1, 2])
def test_an_object_is_undone_however_often_ctrl_c_comes_while_it_is_made(num_signals: int) -> None:
    undone: list[str] = []

    def make() -> str:
        for _ in range(num_signals):
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # type: ignore[arg-type]
            time.sleep(0.1)
        return "made"

    with pytest.raises(KeyboardInterrupt):
        made_apart(make, undone.append)
    assert eventually(lambda: undone == ["made"])
