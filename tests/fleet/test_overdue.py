"""Items of a table over shards that wait longer than max_wait_s: calls that wait for the totals have them dropped."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from contract.late import late_spec, write
from processes.shm import needs_shared_memory
from processes.tools import eventually

import relive
from relive import errors
from relive.fleet import ShardOwner, attach, calls

pytestmark = needs_shared_memory
LIMITER = relive.SamplesPerInsert(1.0, min_size=4, tolerance=4.0)  # inserted - sampled is at most 8
Make = Callable[..., Any]


@pytest.fixture(params=["mapped", "service"])
def make(request: Any, shm_name: Any) -> Iterator[Make]:
    """make(indexes): a table over two shards."""
    if request.param == "service":
        pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")
    with contextlib.ExitStack() as stack:

        def one(indexes: Any) -> Any:
            places = []
            for number in range(2):
                name = shm_name()
                config = relive.TableConfig(late_spec(), 1000, indexes, relive.SharedMemory(name))
                owner = stack.enter_context(ShardOwner(number, config))
                places.append(owner.serve("grpc://127.0.0.1:0") if request.param == "service" else name)
            return stack.enter_context(attach(places, path=request.param, timeout_s=60.0))

        yield one


def pending(table: Any) -> list[int]:
    return [one.pending for one in table.stats().indexes.values()]


@pytest.mark.parametrize("timeout_s", [0.0, 0.4])
def test_a_draw_that_waits_drops_overdue_items(make: Make, timeout_s: float) -> None:
    """The draw gains nothing. The writers of other processes get the room."""
    table = make({"timed": relive.Index(limiter=LIMITER, max_wait_s=0.05), "patient": relive.Index()})
    for shard in range(2):
        with table.writer(shard=shard) as writer:
            write(writer, 0, 4)

    def draws() -> bool:
        with pytest.raises(errors.DeadlineExceeded):
            table.sample(1, index="timed", timeout_s=timeout_s)
        return pending(table) == [0, 8]

    assert eventually(draws)


def test_overdue_items_of_a_shard_make_room_for_the_writers_of_another(make: Make) -> None:
    """Whichever of several limiters refuses: each asks the shards in which its own items wait."""
    more = {"limiter": LIMITER, "max_wait_s": 0.05}
    given = relive.Index(sampler=relive.Prioritized(1.0, initial="given"), **more)
    table = make({"late": relive.Index(**more), "given": given})
    with table.writer(shard=0) as writer:
        write(writer, 0, 8)
    with table.writer(shard=1) as writer:
        writer.append(observation=np.zeros(2), action=0, next_observation=np.zeros(2), timeout_s=20.0)
    assert all(one.timed_out for one in table.stats().indexes.values())


def make_overdue_later(make: Make) -> Any:
    """A table whose shard 0 has eight items, which are overdue after a second. Shard 1 then has no room for a step."""
    table = make({"timed": relive.Index(limiter=LIMITER, max_wait_s=1.0)})
    with table.writer(shard=0) as writer:  # all at once: no write drops the items of an earlier one
        writer.extend(observation=np.zeros((9, 2)), action=np.arange(8))
    return table


def append(table: Any) -> bool:
    """Whether a step of shard 1 is let in at once."""
    with table.writer(shard=1) as writer, contextlib.suppress(errors.DeadlineExceeded):
        writer.append(observation=np.zeros(2), action=0, next_observation=np.zeros(2), timeout_s=0.0)
        return True
    return False


def test_a_call_that_ends_now_looks_again_after_a_drop_of_another_thread(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The drop came after the call had read the roots, and too short a time ago for another one."""
    table = make_overdue_later(make)
    fleet, refusing = table._fleet, table._fleet._refusing

    def refusing_before_a_drop(asked: Any, left_s: float) -> Any:
        found = refusing(asked, left_s)
        monkeypatch.setattr(fleet, "_refusing", refusing)
        roots = found[0][1].shards
        assert eventually(lambda: fleet.calls.drop_overdue(0, roots, 0.0) and pending(table) == [0])
        monkeypatch.setattr(calls, "_LAST_DROP_EVERY_S", 60.0)
        return found

    monkeypatch.setattr(calls, "_LAST_DROP_EVERY_S", 0.0)
    monkeypatch.setattr(fleet, "_refusing", refusing_before_a_drop)
    assert append(table)


def test_a_call_that_ends_now_does_not_wait_for_a_drop_of_another_thread(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_overdue_later(make)
    written = time.monotonic()
    shard, has_begun, may_end = table._fleet.shards[0], threading.Event(), threading.Event()
    ask_free, roots = shard.ask_free, table._fleet.agreement.read(0, 60.0).shards

    def ask_free_late(left_s: float) -> Any:
        monkeypatch.setattr(shard, "ask_free", ask_free)
        has_begun.set()
        may_end.wait(60.0)
        return ask_free(left_s)

    monkeypatch.setattr(calls, "_LAST_DROP_EVERY_S", 60.0)
    monkeypatch.setattr(shard, "ask_free", ask_free_late)
    other = threading.Thread(target=table._fleet.calls.drop_overdue, args=(0, roots, 0.0))
    other.start()
    try:
        assert has_begun.wait(60.0)
        assert eventually(lambda: time.monotonic() > written + 1.1)  # the items are overdue
        assert append(table)
    finally:
        may_end.set()
        other.join()
