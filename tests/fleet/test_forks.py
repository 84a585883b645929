"""A forked child uses the handle of its parent, although another thread of the parent was inside a lock at the fork."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from processes.shm import needs_shared_memory
from processes.tools import children

import relive
from relive.fleet.onesided import nixl_agent

pytestmark = needs_shared_memory


@contextmanager
def taken_by_another_thread(lock: Any) -> Iterator[None]:
    """Another thread has the lock meanwhile. A reentrant lock is then also taken for the thread that forks."""
    is_taken, may_end = threading.Event(), threading.Event()

    def take() -> None:
        with lock:
            is_taken.set()
            may_end.wait(120.0)

    thread = threading.Thread(target=take)
    thread.start()
    try:
        assert is_taken.wait(60.0)
        yield
    finally:
        may_end.set()
        thread.join()


def draw(pipe: Any, table: relive.fleet.ShardedTable) -> None:
    pipe.send(table.sample(8).num_items)


def set_version(pipe: Any, table: relive.fleet.ShardedTable) -> None:
    table.set_policy_version(3)
    pipe.send(table.policy_version)


def take_agents_lock(pipe: Any, table: relive.fleet.ShardedTable) -> None:
    with nixl_agent._making:
        pipe.send("taken")


@pytest.mark.parametrize("call", [draw, set_version, take_agents_lock])
def test_a_child_does_not_inherit_a_lock_of_another_thread(whole: relive.fleet.ShardedTable, call: Any) -> None:
    lock = {
        draw: whole._fleet.drawing._numbers,
        set_version: whole._fleet.shards[0]._versions,  # type: ignore[attr-defined]
        take_agents_lock: nixl_agent._making,
    }[call]
    with children() as start:
        with taken_by_another_thread(lock):
            child = start("fork", call, whole)
            assert child.answer() == {draw: 8, set_version: 3, take_agents_lock: "taken"}[call]
        child.join()
    assert whole.sample(8).num_items == 8 and lock.acquire(blocking=False)
    lock.release()
