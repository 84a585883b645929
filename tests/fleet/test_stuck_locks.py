"""Calls that wait for the lock of a shard, which a stopped process has: how long they wait, and for which shard."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from processes.shm import needs_shared_memory
from processes.test_locks import stopped_holder
from processes.tools import eventually

import relive
from relive import errors
from relive.fleet import ShardOwner, attach, mapped, shards

pytestmark = needs_shared_memory
SPEC = relive.StepSpec({"a": relive.ArraySpec((), "int64")})
INDEX = relive.Index(sampler=relive.Prioritized(0.6), max_times_sampled=1000)
LATE = (errors.DeadlineExceeded, errors.ServiceUnavailable)  # the latter on a busy machine: the answer is on its way
Make = Callable[..., tuple[Any, list[str]]]


@pytest.fixture(params=["mapped", "service"])
def path(request: Any) -> str:
    if request.param == "service":
        pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")
    return str(request.param)


@pytest.fixture
def make(path: str, shm_name: Any) -> Iterator[Make]:
    """make(number of shards): a table over shards of this process, and the names of their memory.

    lock_s: how long its calls without a deadline of their own wait for a lock.
    """
    with contextlib.ExitStack() as stack:

        def one(count: int, index: relive.Index = INDEX, lock_s: float = 60.0) -> tuple[Any, list[str]]:
            names, places = [shm_name() for _ in range(count)], []
            for number, name in enumerate(names):
                config = relive.TableConfig(SPEC, 1000, index, relive.SharedMemory(name), timeout_s=lock_s)
                owner = stack.enter_context(ShardOwner(number, config))
                places.append(owner.serve("grpc://127.0.0.1:0") if path == "service" else name)
            waits_s = 60.0 if path == "service" else lock_s
            return stack.enter_context(attach(places, path=path, timeout_s=waits_s)), names

        yield one


def set_waits(monkeypatch: pytest.MonkeyPatch, path: str, stall_s: float) -> None:
    """Calls wait stall_s for the lock of one of several shards, and a minute for a byte of an owner."""
    monkeypatch.setattr(mapped, "STALL_S", stall_s)
    monkeypatch.setattr(shards, "STALL_S", stall_s)
    if path == "service":
        from relive.fleet.remote import answers, shard

        monkeypatch.setattr(answers, "STALL_S", stall_s)
        monkeypatch.setattr(shard, "STALL_S", stall_s)
        monkeypatch.setattr(shard, "SILENCE_S", 60.0)


def write(table: Any, shard: int, count: int = 8) -> np.ndarray:
    with table.writer(shard=shard) as writer:
        keys: np.ndarray = writer.extend(a=np.arange(count), truncated=True)
    return keys


def own(keys: np.ndarray) -> relive.Draw:
    """The draw of these keys by a sampler of the caller."""
    return relive.Draw.of(keys, np.full(len(keys), 0.01))


@contextlib.contextmanager
def stuck_for(name: str, seconds: float) -> Iterator[None]:
    """A stopped process has the lock, at least as long as this, and is then killed."""
    with stopped_holder(name) as holder:
        timer = threading.Timer(seconds, holder.kill)
        timer.start()
        try:
            yield
        finally:
            timer.join()


def test_a_claim_waits_for_the_lock_of_one_of_several_shards(
    make: Make, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_waits(monkeypatch, path, 60.0)
    table, names = make(2)
    keys = np.concatenate([write(table, number) for number in (0, 1)])
    for name in names:
        with stuck_for(name, 0.5):
            assert table.claim(own(keys)).item_keys.tolist() == keys.tolist()
        assert [shard.state for shard in table.stats().shards] == ["live", "live"]


def test_a_claim_of_a_stuck_shard_ends_and_leaves_the_shard_out(
    make: Make, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, names = make(2)
    set_waits(monkeypatch, path, 0.2)
    keys = np.concatenate([write(table, number) for number in (0, 1)])
    with stopped_holder(names[1]) as holder:
        assert table.claim(own(keys)).item_keys.tolist() == keys[:8].tolist()
        assert [shard.state for shard in table._fleet.shards] == ["live", "stalled"]
        holder.kill()


def test_a_claim_of_a_queue_takes_the_items_that_are_there_beside_a_stuck_shard(
    make: Make, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = relive.Index(sampler=relive.Fifo(), limiter=relive.Queue(100), max_times_sampled=1)
    table, names = make(2, index)
    set_waits(monkeypatch, path, 0.2)
    near, far = (write(table, number) for number in (0, 1))
    assert table.claim(own(near[:3])).num_items == 3
    with stopped_holder(names[1]) as holder:
        keys = np.concatenate([far[:3], near, near[:2]])
        assert table.claim(own(keys)).item_keys.tolist() == near[3:].tolist()
        holder.kill()
    set_waits(monkeypatch, path, 60.0)
    with stuck_for(names[1], 0.5):
        assert table.claim(own(np.tile(far[:4], 2))).item_keys.tolist() == far[:4].tolist()


CALLS: dict[str, Callable[[Any, np.ndarray], Any]] = {
    "update_priorities": lambda table, keys: table.update_priorities(keys, np.ones(16)),
    "claim": lambda table, keys: table.claim(own(keys), timeout_s=0.05).num_items,
    "sample": lambda table, keys: table.sample(8, timeout_s=0.05).num_items,
}


@pytest.mark.parametrize("call", CALLS)
def test_a_shorter_wait_for_the_lock_leaves_the_shard_in_use(
    make: Make, path: str, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    set_waits(monkeypatch, path, 60.0)
    table, names = make(2, lock_s=0.05)
    keys = np.concatenate([write(table, number) for number in (0, 1)])
    with stopped_holder(names[1]) as holder:
        for _ in range(3):
            with contextlib.suppress(*LATE):
                assert CALLS[call](table, keys) == 8
            assert [shard.state for shard in table._fleet.shards] == ["live", "live"]
        holder.kill()


def test_draws_that_miss_the_lock_one_after_another_leave_the_shard_out(
    make: Make, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_waits(monkeypatch, path, 1.0)
    table, names = make(2)
    for number in (0, 1):
        write(table, number)

    def stalls() -> bool:
        with contextlib.suppress(*LATE):
            table.sample(8, timeout_s=0.05)
        return bool(table._fleet.shards[1].state == "stalled")

    with stopped_holder(names[1]) as holder:
        assert eventually(stalls)
        holder.kill()
    assert eventually(lambda: np.any(table.sample(8).item_keys >> 51 == 1))
    assert table._fleet.shards[1]._lock_missed is None


CHANGES: dict[str, Callable[[Any], Any]] = {
    "clear": lambda table: table.clear(),
    "set_priority_exponent": lambda table: table.set_priority_exponent(0.5),
}


def test_calls_wait_for_the_lock_of_the_only_shard_until_their_deadline(
    make: Make, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_waits(monkeypatch, path, 0.05)
    table, (name,) = make(1)
    keys = write(table, 0)
    with stuck_for(name, 1.0):
        assert len(table.claim(own(keys)).item_keys) == 8
    for change in CHANGES.values():
        with stuck_for(name, 1.0):
            change(table)
    assert len(table) == 0 and table.priority_exponent() == 0.5


def test_a_claim_of_the_only_shard_ends_at_its_deadline(make: Make, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_waits(monkeypatch, path, 0.1)
    table, (name,) = make(1)
    keys = write(table, 0)
    started = time.monotonic()
    with stopped_holder(name) as holder:
        with pytest.raises(LATE) as late:
            table.claim(own(keys), timeout_s=0.6)
        holder.kill()
    assert time.monotonic() - started < 30.0
    if isinstance(late.value, errors.DeadlineExceeded):
        assert late.value.holder_pid and late.value.waited_s >= 0.6


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_only_shard_ends_at_its_deadline(
    make: Make, path: str, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    set_waits(monkeypatch, path, 0.1)
    table, (name,) = make(1)
    write(table, 0)
    table._fleet.set_patience(0.6)
    started = time.monotonic()
    with stopped_holder(name) as holder:
        with pytest.raises(LATE):
            CHANGES[change](table)
        holder.kill()
    assert time.monotonic() - started < 30.0
    table._fleet.set_patience(60.0)
    assert eventually(lambda: len(table) == 8) and table.priority_exponent() == 0.6


def test_a_table_whose_only_shard_has_a_stuck_lock_keeps_its_items(
    make: Make, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change that ended at its deadline may be made again: it waits again, and counts."""
    set_waits(monkeypatch, path, 0.5)
    table, (name,) = make(1)
    keys = write(table, 0)
    table._fleet.set_patience(0.6)
    with stopped_holder(name) as holder:
        for _ in range(2):
            with pytest.raises(LATE) if path == "mapped" else contextlib.nullcontext():
                assert table.update_priorities(keys, np.ones(8)) == 0  # as for a served shard that is silent
            assert table.gather(keys).present.all() and table._fleet.shards[0].is_live
        holder.kill()
    table._fleet.set_patience(60.0)
    assert table.update_priorities(keys, np.ones(8)) == 8


def test_a_claim_does_not_wait_for_the_items_of_an_empty_shard(
    make: Make, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_waits(monkeypatch, path, 60.0)
    table, _ = make(2)
    near, far = (write(table, number) for number in (0, 1))
    table.delete(far)
    started = time.monotonic()
    assert table.claim(own(np.concatenate([near, far]))).item_keys.tolist() == near.tolist()
    assert time.monotonic() - started < 30.0
    assert [shard.state for shard in table.stats().shards] == ["live", "live"]
