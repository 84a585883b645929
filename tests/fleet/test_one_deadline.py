"""A call over several served shards has one deadline and hears one Ctrl-C, however many of them are slow or hang."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from processes.shm import needs_shared_memory

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from processes.tools import eventually

from fleet.tools import config_of, fill
from relive import errors
from relive.core.one_call import OneCall, asked_at
from relive.fleet import ShardOwner, attach
from relive.fleet.remote.shard import RemotePart, RemoteShard
from relive.fleet.remote.streams import Lines, Pending
from relive.fleet.shards import Missed
from relive.service.client import deadlines
from relive.service.client.asking import Asking
from relive.service.client.deadlines import LATE_S, cutoff
from relive.service.client.link import Link
from relive.service.client.remote_writer import SyncWriterCore

pytestmark = needs_shared_memory
NUM_SHARDS = 3


@pytest.fixture
def served(shm_name: Any) -> Iterator[Any]:
    """Opens a table over so many served shards, each with 50 steps; with the owners of its shards."""
    opened: list[Any] = []

    def over(num_shards: int = NUM_SHARDS) -> Any:
        owners = [ShardOwner(number, config_of(shm_name())) for number in range(num_shards)]
        opened.extend(owners)
        table = attach([owner.serve() for owner in owners], path="service", timeout_s=20.0)
        opened.append(table)
        for number in range(num_shards):
            fill(table, number, 100 * number, 50)
        return table, owners

    yield over
    for one in reversed(opened):
        one.close()


def in_flight(owners: Any) -> int:
    return sum(owner.table.stats().indexes["default"].in_flight for owner in owners)


# ---- one deadline ----------------------------------------------------------------------------------------------------


def test_questions_of_a_call_have_their_time_from_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    with OneCall():
        clock[0] = 103.0
        with OneCall():
            assert cutoff(5.1) == 105.0, "an inner call is a part of the outer one"
        assert cutoff(5.1) == 105.0 and cutoff(0.0) == 103.0 + LATE_S
    assert asked_at(7.0) == 7.0 and cutoff(5.1) == 108.0


def test_a_call_that_was_left_without_its_end_is_over() -> None:
    """As by a signal's handler that raises before the end."""
    OneCall().__enter__()
    gc.collect()
    assert asked_at(7.0) == 7.0


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "sample": lambda table, keys: table.sample(64, timeout_s=10.0),
    "draw": lambda table, keys: table.draw(64, timeout_s=10.0),
    "update": lambda table, keys: table.update_priorities(keys, np.ones(len(keys))),
    "gather": lambda table, keys: table.gather(keys),
    "delete": lambda table, keys: table.delete(keys),
    "len": lambda table, keys: len(table),
    "stats": lambda table, keys: table.stats(),
}


@pytest.mark.parametrize("what", CALLS)
def test_the_questions_to_all_shards_end_at_once(served: Any, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    table, _ = served()
    keys = np.sort(table.draw(200).item_keys)[::5]
    asked: dict[str, list[float]] = {}
    ask, send = Lines.ask, Asking.__init__

    def asks(lines: Any, header: Any, ends: float, *body: Any, **more: Any) -> Any:
        asked.setdefault(header["op"], []).append(ends)
        time.sleep(0.01)  # a question that takes its time
        return ask(lines, header, ends, *body, **more)

    def sends(asking: Any, connection: Any, op: str, message: bytes, ends: float, *more: Any) -> None:
        asked.setdefault(op, []).append(ends)
        time.sleep(0.01)
        send(asking, connection, op, message, ends, *more)

    CALLS[what](table, keys[:0] if what == "delete" else keys)
    monkeypatch.setattr(Lines, "ask", asks)
    monkeypatch.setattr(Asking, "__init__", sends)
    CALLS[what](table, keys)
    to_all = {op: ends for op, ends in asked.items() if len(ends) == NUM_SHARDS}
    assert to_all and all(max(ends) - min(ends) < 0.005 for ends in to_all.values()), asked


def test_a_large_question_is_not_sent_after_the_time_of_its_call(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    table, _ = served()
    keys = np.repeat(table.draw(64).item_keys, 1000)
    with monkeypatch.context() as patch:
        patch.setattr(deadlines, "asked_at", lambda now: now - 100.0)
        assert table.update_priorities(keys, np.ones(len(keys))) == 0
        assert table.update_priorities(keys[:1], np.ones(1)) == 1, "a small one may still be answered"
    assert all(shard.is_live for shard in table._fleet.shards)
    assert table.update_priorities(keys, np.ones(len(keys))) == len(keys)


def test_nothing_is_sent_over_a_full_connection_after_the_time_of_its_call(
    served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, _ = served()
    with monkeypatch.context() as patch:
        patch.setattr(Link, "is_full", lambda link: True)
        assert len(table.sample(8, timeout_s=5.0)) == 8
        patch.setattr(deadlines, "asked_at", lambda now: now - 100.0)
        with pytest.raises(errors.DeadlineExceeded):
            table.sample(8, timeout_s=0.0)
    assert all(shard.is_live for shard in table._fleet.shards)
    assert len(table.sample(8)) == 8


def test_a_gather_that_missed_its_only_shard_is_not_made_again(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    table, _ = served(1)
    keys = table.draw(4).item_keys
    asked: list[None] = []

    def misses(shard: Any, *_: Any) -> Any:
        asked.append(None)
        raise Missed(shard, errors.ServiceUnavailable(shard.address, 20.0, "no answer in time", True))

    monkeypatch.setattr(RemoteShard, "gather", misses)
    monkeypatch.setattr(RemoteShard, "ask_gather", misses)
    assert not table.gather(keys).present.any() and len(asked) == 1


def test_the_writers_of_all_shards_close_until_one_end(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    table, _ = served()
    writers = [table.writer(shard=number) for number in range(NUM_SHARDS)]
    for writer in writers:
        writer.append(**{name: np.zeros(one.shape, one.dtype) for name, one in table.spec.columns.items()})
    closes, close_by = list[float](), SyncWriterCore.close_by

    def closing(core: Any, ends: float) -> None:
        closes.append(ends)
        time.sleep(0.01)
        close_by(core, ends)

    monkeypatch.setattr(SyncWriterCore, "close_by", closing)
    table.close()
    assert len(closes) == NUM_SHARDS and len(set(closes)) == 1


# ---- one Ctrl-C ------------------------------------------------------------------------------------------------------


def test_ctrl_c_in_a_draw_waits_for_no_other_shard(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    table, owners = served()
    table.sample(64)
    taken, take = list[None](), Pending.take

    def interrupted(pending: Any, is_last: bool = True) -> Any:
        if pending._expects is None:  # a root
            return take(pending, is_last)
        taken.append(None)
        pending.drop()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Pending, "take", interrupted)
        with pytest.raises(KeyboardInterrupt):
            table.sample(64)
    assert len(taken) == 1
    assert eventually(lambda: in_flight(owners) == 0)
    assert len(table.sample(64)) == 64


def test_the_parts_of_a_draw_that_failed_go_back_until_one_end(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    table, owners = served()
    table.sample(64)
    ends, give_back, take, failed = list[float](), RemotePart.give_back, RemotePart.take, list[None]()

    def fails(part: Any) -> Any:
        if failed:
            return take(part)
        failed.append(None)
        take(part)
        raise Missed(part._shard, None)

    def noted(part: Any, until: float = 0.0) -> None:
        if not part._is_taken:
            time.sleep(0.01)
        ends.append(until)
        give_back(part, until)

    monkeypatch.setattr(RemotePart, "take", fails)
    monkeypatch.setattr(RemotePart, "give_back", noted)
    assert len(table.sample(64)) == 64
    assert len(ends) == NUM_SHARDS and len(set(ends)) == 1 and ends[0] > time.monotonic() - 60.0
    assert eventually(lambda: in_flight(owners) == 0)


def test_ctrl_c_in_a_close_waits_for_no_other_shard(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    table, _ = served()
    writers = [table.writer(shard=number) for number in range(NUM_SHARDS)]
    closes: list[None] = []

    def interrupted(core: Any, ends: float) -> None:
        closes.append(None)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SyncWriterCore, "close_by", interrupted)
        with pytest.raises(KeyboardInterrupt):
            table.close()
    assert len(closes) == 1 and all(shard.core.closed for shard in table._fleet.shards)
    for writer in writers:
        writer.close()
