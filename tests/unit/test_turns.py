"""Locks that Ctrl-C leaves free."""

from __future__ import annotations

import contextlib
import threading
from itertools import count

from processes.interrupts import interrupted_at

from relive.core import turns
from relive.core.turns import taken


def test_a_lock_is_taken_for_the_block_or_the_time_is_over() -> None:
    lock = threading.Lock()
    with taken(lock, 0.0) as is_mine:
        assert is_mine and lock.locked()
        with taken(lock, 0.01) as is_mine:
            assert not is_mine
        assert lock.locked()
    with taken(lock, float("inf")) as is_mine:
        assert is_mine
    assert not lock.locked()


def test_ctrl_c_at_any_moment_leaves_the_lock_free() -> None:
    lock = threading.Lock()

    def use() -> None:
        with taken(lock, 1.0) as is_mine:
            assert is_mine

    for at in count():
        if interrupted_at(at, use, turns.__file__, contextlib.__file__, __file__) is None:
            break
        assert not lock.locked(), f"at step {at}"
    assert at > 5
