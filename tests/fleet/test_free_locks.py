"""Ctrl-C at any step of a call over shards leaves the lock of the call free, also while the program keeps the error."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest
from processes.interrupts import interrupted_at
from processes.shm import needs_shared_memory

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from contract.tools import write_steps

from fleet.fake_nixl import Pair
from fleet.test_nixl_readers import peers
from fleet.tools import config_of
from relive.fleet import ShardOwner, attach, drawing, mapped
from relive.fleet.draws.pace import Wait
from relive.fleet.onesided import peer

pytestmark = needs_shared_memory
Case = tuple[Any, Callable[[], object]]  # a lock, and a call that takes it


class Echo:
    """An exchange of two ranks. The other one gives what this one gives."""

    rank, world = 0, 2

    def all_gather(self, mine: bytes, timeout_s: float) -> list[bytes]:
        return [mine, mine]

    def broadcast(self, given: Any, num_bytes: int, source: int, timeout_s: float) -> Any:
        return given


@contextmanager
def of_ranks(pair: Pair, name: str, what: str) -> Iterator[Case]:
    with ShardOwner(0, config_of(name)), attach([name], exchange=Echo()) as table:
        draws: Any = table._core.drawing
        draws.agreement.roots = lambda *_: {}
        draws.agreement.close_batches = lambda: None
        calls = {"a draw": lambda: draws._begin(0, 8, None, Wait(1.0)), "the end of batches": draws.close_batches}
        yield draws._lock, calls[what]


@contextmanager
def of_versions(pair: Pair, name: str, what: str) -> Iterator[Case]:
    with ShardOwner(0, config_of(name)), attach([name]) as table:
        shard: Any = table._core.shards[0]
        versions = count(1)

        def catches_up() -> None:
            shard._missed_version = next(versions), shard.core.policy_version
            shard._catch_up()
            assert shard._missed_version is None

        yield shard._versions, catches_up


@contextmanager
def of_reads(pair: Pair, name: str, what: str) -> Iterator[Case]:
    with (
        ShardOwner(0, config_of(name, capacity=64)) as owner,
        peers(pair, [owner]) as shards,
        owner.table.writer() as writer,
    ):
        write_steps(writer, 0, 8)
        shard: Any = shards[0]
        keys = next(iter(owner.table.keys()))

        def reads() -> None:
            shard._not_before = 0.0
            shard._read(0, ["reward"], keys)

        yield shard._reading, reads if what == "a read" else shard.is_gone


CASES = {
    "a draw": of_ranks,
    "the end of batches": of_ranks,
    "a missed version": of_versions,
    "a read": of_reads,
    "the end of a reader": of_reads,
}


def is_free(lock: Any) -> bool:
    """Whether another thread may take the lock."""
    answers: list[bool] = []
    other = threading.Thread(target=lambda: answers.append(lock.acquire(blocking=False) and lock.release() is None))
    other.start()
    other.join()
    return answers[0]


@pytest.mark.parametrize("what", CASES)
def test_the_lock_is_free_after_ctrl_c_at_any_step(pair: Pair, shm_name: Any, what: str) -> None:
    with CASES[what](pair, shm_name(), what) as (lock, call):
        for at in count():
            kept = interrupted_at(at, call, *(module.__file__ for module in (drawing, mapped, peer)))
            if not is_free(lock):
                lock.release()  # the end of the test takes it
                pytest.fail(f"the lock stays taken after step {at}")
            if kept is None:
                break
        assert at > 1
