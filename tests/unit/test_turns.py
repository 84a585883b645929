"""Locks that Ctrl-C leaves free."""

from __future__ import annotations

import threading

from processes.moments import interrupted

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

    moment = 0
    while interrupted(use, moment, {turns.__name__, "contextlib", __name__}) is not None:
        assert not lock.locked(), f"at moment {moment}"
        moment += 1
    assert moment > 10
