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
from service.gates import until

from fleet.tools import config_of, fill
from relive import errors
from relive.core.one_call import OneCall, asked_at
from relive.fleet import ShardOwner, attach
from relive.fleet.remote.answers import RemoteAnswer
from relive.fleet.remote.part import RemotePart
from relive.fleet.remote.shard import RemoteShard
from relive.fleet.remote.streams import Lines, Pending
from relive.fleet.shards import Missed
from relive.service.client import deadlines
from relive.service.client.asking import Asking
from relive.service.client.deadlines import LATE_S, cutoff
from relive.service.client.exchange import Exchange, Watch
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
    with pytest.raises(errors.ServiceUnavailable, match="give a larger timeout_s"):
        table.gather(keys)
    assert len(asked) == 1


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


def test_ctrl_c_in_the_statistics_leaves_no_stream_between_question_and_answer(
    served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lock would keep what became of the draws in it from their owner for good."""
    table, owners = served()
    for _ in range(3):
        table.sample(64)
    asked, confirming = list[Pending](), Lines.confirming

    def confirms(lines: Any, ends: float) -> Any:
        asked.extend(found := confirming(lines, ends))
        return found

    def interrupted(pending: Any, is_last: bool = True) -> Any:
        pending.drop()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Lines, "confirming", confirms)
        patch.setattr(Pending, "take", interrupted)
        with pytest.raises(KeyboardInterrupt):
            table.stats()
    assert len(asked) == NUM_SHARDS and all(pending.line.is_over for pending in asked)
    assert eventually(lambda: in_flight(owners) == 0)
    assert len(table.sample(64)) == 64 and table.stats().indexes["default"].in_flight == 0


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


# ---- a shard that is late is not dead --------------------------------------------------------------------------------


def late(shard: Any) -> Missed:
    return Missed(shard, errors.ServiceUnavailable(shard.address, 1.0, "no answer in time", True))


def test_a_root_that_is_late_is_the_last_known_one(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its shard the draw would be of another distribution, and a queue would take more than its size."""
    table, _ = served()
    slow, answered = table._fleet.shards[0], RemoteShard.answered

    def is_late(shard: Any, call: Any) -> Any:
        if shard is slow:
            raise late(shard)
        return answered(shard, call)

    known = slow.ask_root(0, 5.0)()
    with monkeypatch.context() as patch:
        patch.setattr(RemoteShard, "answered", is_late)
        assert slow.ask_root(0, 5.0)() == known and known.mass > 0.0 and not known.is_dead
        with pytest.raises(errors.DeadlineExceeded, match="shard 0 are on their way"):
            table.sample(64, timeout_s=0.0)
    assert all(shard.is_live for shard in table._fleet.shards)
    counts = np.bincount(table.sample(300).item_keys >> 51, minlength=NUM_SHARDS)
    assert counts.min() > 50


def test_an_answer_that_came_during_another_wait_counts(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call has no time left when it takes the answer. The watch would cut off a stream without a moment more."""
    table, _ = served(1)
    ended, begin = list[float](), Exchange.begin

    def begins(stream: Any, ends: float, *more: Any) -> None:
        ended.append(ends - time.monotonic())
        begin(stream, ends, *more)

    asked = table._fleet.shards[0].core.start("num_steps")
    asked._asking._ends = time.monotonic() - 1000.0
    monkeypatch.setattr(Exchange, "begin", begins)
    assert asked.take() == 50 and ended[0] > -500.0


def test_the_roots_of_a_new_handle_are_known(served: Any) -> None:
    table, _ = served()
    assert all(0 in shard._last_root for shard in table._fleet.shards)


def test_a_question_that_had_no_time_makes_no_shard_dead(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another shard may have taken the time of the call; an answer may take longer than LATE_S."""
    table, _ = served()
    keys = table.draw(64).item_keys
    receive = Exchange.receive

    def slowly(stream: Any) -> Any:
        until(lambda: stream.expired)
        return receive(stream)

    with monkeypatch.context() as patch:
        patch.setattr(deadlines, "asked_at", lambda now: now - 100.0)
        patch.setattr(Exchange, "receive", slowly)
        with pytest.raises(errors.ServiceUnavailable, match="give a larger timeout_s"):
            table.gather(keys)
    assert all(shard.is_live for shard in table._fleet.shards)
    assert table.gather(keys).present.all()


def test_a_connection_that_its_handle_cuts_makes_no_shard_dead(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    table, _ = served()
    connection, take, cuts = table._fleet.shards[0].core.connection, Pending.take, list[None]()

    def breaks(pending: Any, is_last: bool = True) -> Any:
        if pending._lines.connection is connection and pending._expects is not None and not cuts:
            cuts.append(None)
            connection._cut_at = time.monotonic()  # as Connection.cut does
            pending.line.stream.interrupt()
        return take(pending, is_last)

    monkeypatch.setattr(Pending, "take", breaks)
    counts = np.bincount(table.sample(300).item_keys >> 51, minlength=NUM_SHARDS)
    assert cuts and counts.min() > 50, "asked again, with all shards"
    assert all(shard.is_live for shard in table._fleet.shards)


@pytest.mark.parametrize("timeout_s", [20.0, float("inf")])
def test_silence_ends_a_question_without_a_deadline(timeout_s: float) -> None:
    class Silent:
        def cancel(self) -> None: ...

        def close(self) -> None: ...

    silent = Silent()
    watch = Watch(silent)
    watch.sleeps = False  # no thread: the look is made here
    stream = Exchange(silent, silent, watch, 1.0)
    stream.begin(time.monotonic() + timeout_s)
    watch._expire(time.monotonic() + 5.0)
    watch._expire(time.monotonic() + 5.1)
    assert stream.expired and stream.was_silent


def test_the_statistics_of_all_shards_are_confirmed_together(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    table, _ = served()
    for _ in range(3):
        table.sample(64)
    order: list[str] = []
    confirming, start, take = Lines.confirming, RemoteShard.ask, RemoteAnswer.take

    def confirms(lines: Any, ends: float) -> Any:
        found = confirming(lines, ends)
        order.extend("confirm" for _ in found)
        return found

    def asks(shard: Any, call: str, *values: Any) -> Any:
        order.append(call)
        return start(shard, call, *values)

    def takes(answer: Any) -> Any:
        order.append("answer")
        return take(answer)

    monkeypatch.setattr(RemoteAnswer, "take", takes)
    monkeypatch.setattr(Lines, "confirming", confirms)
    monkeypatch.setattr(RemoteShard, "ask", asks)
    assert table.stats().indexes["default"].sampled >= 192
    assert order == [what for what in ("confirm", "stats", "answer") for _ in range(NUM_SHARDS)]
