"""Small batches that are drawn ahead over served shards share messages, and each of them stays a draw of its own."""

from __future__ import annotations

import gc
import itertools
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from contract.tools import write_steps
from processes.shm import needs_shared_memory

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from processes.tools import eventually

import relive
from fleet.test_ahead import ahead
from fleet.test_remote import settled
from fleet.tools import config_of, fill
from relive import errors
from relive.core.request import DrawRequest
from relive.fleet import ShardOwner, attach
from relive.fleet.drawing import Drawing
from relive.fleet.remote.shard import RemoteShard
from relive.fleet.remote.streams import Lines, Pending, Reply
from relive.fleet.remote.turns import Turn, Turns, _sizes
from relive.service.server.shard_session import ShardSession
from relive.service.wire.packing import DRAWN, MOST_DRAWS, MOST_TOGETHER_ITEMS

pytestmark = needs_shared_memory


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The numbers of items of each message that asks for draws: a number, or a list."""
    seen: list[Any] = []
    as_it_is = Lines.ask

    def ask(lines: Any, header: Any, *more: Any, **named: Any) -> Any:
        if header["op"] in ("draw", "draws"):
            seen.append(header["n"])
        return as_it_is(lines, header, *more, **named)

    monkeypatch.setattr(Lines, "ask", ask)
    return seen


@pytest.fixture
def shards(shm_name: Any) -> Iterator[Any]:
    """Opens a table over served shards of this process, each with 50 steps."""
    opened: list[Any] = []

    def over(num_shards: int, index: Any = None, fills: Any = fill) -> Any:
        owners = [ShardOwner(number, config_of(shm_name(), index)) for number in range(num_shards)]
        opened.extend(owners)
        table = attach([owner.serve() for owner in owners], path="service", stream=7, timeout_s=20.0)
        opened.append(table)
        for number in range(num_shards):
            fills(table, number, 100 * number, 50)
        return table, owners

    yield over
    for one in reversed(opened):
        one.close()


def in_flight(owners: Any) -> int:
    return sum(owner.table.stats().indexes["default"].in_flight for owner in owners)


# ---- what goes together ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_shards", [1, 2])
def test_a_quarter_of_the_batches_ahead_share_a_message(shards: Any, asked: list[Any], num_shards: int) -> None:
    """The shards work on the rest, or it waits for the program."""
    table, owners = shards(num_shards)
    source = ahead(table, 8, prefetch=16)
    source.ask(8)
    source.take().hold.give_back()
    del asked[:]
    source.ask(8)
    assert [len(counts) for counts in asked] == [4] * 2 * num_shards
    assert np.array(asked).reshape(2, num_shards, 4).sum(axis=1).tolist() == [[8] * 4] * 2
    assert eventually(lambda: in_flight(owners) == 8 * 8)
    taken = [source.take() for _ in range(3)]
    del asked[:]
    source.ask(8)
    assert not asked  # room for three is less than a quarter
    taken.append(source.take())
    source.ask(8)
    assert [len(counts) for counts in asked] == [4] * num_shards
    for one in taken:
        one.hold.commit()
    source.close()
    assert eventually(lambda: in_flight(owners) == 0)
    assert table.stats().indexes["default"].sampled == 4 * 8


def test_draws_with_other_numbers_of_items_share_a_message(shards: Any, asked: list[Any]) -> None:
    """Shares that are no whole number of items give a shard now one item more and now one less."""
    table, _ = shards(2)
    fill(table, 1, 200, 13)
    with table.batches(32, prefetch=16) as batches:
        for batch in itertools.islice(batches, 100):
            assert np.array_equal(batch["reward"], table.gather(batch.item_keys)["reward"])
    assert any(isinstance(counts, list) and len(set(counts)) > 1 for counts in asked)


@pytest.mark.parametrize(
    ("index", "num_items"),
    [
        (relive.Index(relive.Sequences(10, at_end="pad")), MOST_TOGETHER_ITEMS),
        (relive.Index(relive.Episodes(12, layout="ragged")), 4),
    ],
    ids=["large", "ragged"],
)
def test_other_batches_come_alone(shards: Any, asked: list[Any], index: Any, num_items: int) -> None:
    def in_episodes(table: Any, shard: int, first: int, count: int) -> None:
        with table.writer(shard=shard) as writer:
            for begin in range(0, count, 10):
                write_steps(writer, first + begin, 10, truncated=True)

    table, _ = shards(1, index, in_episodes)
    with table.batches(num_items, prefetch=16) as batches:
        for batch in itertools.islice(batches, 8):
            assert len(batch) == num_items
    assert asked and not any(isinstance(counts, list) for counts in asked)


def test_an_owner_of_an_earlier_version_is_asked_for_one_draw_at_a_time(
    shards: Any, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    greeting = ShardSession.begin
    monkeypatch.setattr(
        ShardSession, "begin", lambda session: {k: v for k, v in greeting(session).items() if k != "draws"}
    )
    table, _ = shards(2)
    with table.batches(8, prefetch=16) as batches:
        for _ in range(20):
            next(batches)
    assert asked and not any(isinstance(counts, list) for counts in asked)


# ---- each stays a draw of its own -----------------------------------------------------------------------------------


@pytest.mark.parametrize("num_shards", [1, 2])
def test_what_is_drawn_does_not_depend_on_prefetch(shards: Any, num_shards: int) -> None:
    seen = []
    for prefetch in (1, 2, 4, 16):
        table, _ = shards(num_shards)
        with table.batches(8, prefetch=prefetch) as batches:
            seen.append(np.stack([batch["reward"] for batch in itertools.islice(batches, 40)]))
    assert all(np.array_equal(one, seen[0]) for one in seen[1:])


def test_draws_of_a_message_count_and_go_back_each_by_itself(shards: Any) -> None:
    table, owners = shards(2)
    drawing: Drawing = table._fleet.drawing
    turns: dict[int, Any] = {}
    begun = [drawing.begin(DrawRequest(0, 8), 0.0, 5.0, turns) for _ in range(6)]
    assert in_flight(owners) == 0
    drawing.send(turns)
    first, second, third = (drawing.finish(begun[number], 5.0) for number in range(3))
    drawing.commit(second)
    drawing.give_back(first)
    drawing.flush()
    assert eventually(lambda: in_flight(owners) == 4 * 8)
    for one in begun[:2:-1]:
        drawing.abandon(one)
    drawing.commit(third)
    drawing.flush()
    assert eventually(lambda: in_flight(owners) == 0)
    assert table.stats().indexes["default"].sampled == 2 * 8


def test_batches_of_one_answer_keep_their_rows(shards: Any) -> None:
    """Their arrays are views of one block, which goes to no later answer while one of them lives."""
    table, _ = shards(1)
    with table.batches(8, prefetch=16) as batches:
        kept = [batch for number, batch in enumerate(itertools.islice(batches, 60)) if number % 2]
        for batch in kept:
            same = table.gather(batch.item_keys)
            assert np.array_equal(batch["observation"], same["observation"])


@pytest.mark.parametrize("num_shards", [1, 2])
def test_draws_leave_nothing_to_the_collector(shards: Any, num_shards: int) -> None:
    """A program may have switched it off."""
    table, _ = shards(num_shards)

    def num_left() -> int:
        return sum(isinstance(one, Turn | Pending) for one in gc.get_objects())

    with table.batches(8, prefetch=16) as batches:
        next(batches)
        gc.collect()
        gc.disable()
        try:
            for _ in range(200):
                next(batches)
            assert num_left() <= 4 * 16 * num_shards
        finally:
            gc.enable()


@pytest.mark.parametrize("num_shards", [1, 2])
def test_a_draw_that_fails_takes_no_other_of_its_message_with_it(
    shards: Any, asked: list[Any], monkeypatch: pytest.MonkeyPatch, num_shards: int
) -> None:
    """Those before it come, and those after it are made next."""
    table, owners = shards(num_shards)
    drawing, turns = table._fleet.drawing, dict[int, Any]()
    _fail(monkeypatch, lambda number: number == 3)
    begun = [drawing.begin(DrawRequest(0, 8), 0.0, 5.0, turns) for _ in range(6)]
    del asked[:]
    drawing.send(turns)
    shared = [one for one in turns.values() for _ in one._unsent]
    assert not shared and len(asked) == num_shards
    failed = []
    for number, one in enumerate(begun):
        try:
            drawing.commit(drawing.finish(one, 5.0))
        except errors.DeadlineExceeded:
            failed.append(number)
    drawing.flush()
    assert failed == ([2] if num_shards == 1 else [])  # the other shard makes the draw
    assert eventually(lambda: in_flight(owners) == 0)
    assert table.stats().indexes["default"].sampled == 8 * (6 - len(failed))


@pytest.mark.parametrize("num_shards", [1, 2])
def test_batches_come_though_draws_fail_now_and_then(
    shards: Any, asked: list[Any], monkeypatch: pytest.MonkeyPatch, num_shards: int
) -> None:
    _fail(monkeypatch, lambda number: number % 7 == 0)
    table, owners = shards(num_shards)
    with table.batches(8, prefetch=16, timeout_s=20.0) as batches:
        for batch in itertools.islice(batches, 60):
            same = table.gather(batch.item_keys)
            assert len(batch) == 8 and np.array_equal(batch["reward"], same["reward"])
    assert any(isinstance(counts, list) for counts in asked)
    assert eventually(lambda: in_flight(owners) == 0)
    assert table.stats().indexes["default"].sampled == 60 * 8


def _fail(monkeypatch: pytest.MonkeyPatch, fails: Callable[[int], bool]) -> None:
    """Draws of all shards fail by their number, from 1 on, as if items lacked."""
    as_it_is, calls = ShardSession._lend, itertools.count(1)

    def lend(session: Any, *arguments: Any) -> Any:
        if fails(next(calls)):
            raise errors.DeadlineExceeded("8 items", 0, 0.0)
        return as_it_is(session, *arguments)

    monkeypatch.setattr(ShardSession, "_lend", lend)


def test_a_draw_that_is_made_again_asks_all_shards_before_it_waits(
    shards: Any, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    table, _ = shards(3)
    drawing, turns = table._fleet.drawing, dict[int, Any]()
    begun = drawing.begin(DrawRequest(0, 12), 5.0, 0.0, turns)
    _fail(monkeypatch, lambda number: number == 2)
    events: list[str] = []
    for name in ("ask", "take"):
        owner = Lines if name == "ask" else Pending
        monkeypatch.setattr(owner, name, _noting(events, name, getattr(owner, name)))
    drawing.send(turns)
    drawing.commit(drawing.finish(begun, 5.0))
    assert events == [*["ask"] * 3, *["take"] * 3] * 2


def _noting(events: list[str], name: str, call: Any) -> Any:
    def noted(*arguments: Any, **named: Any) -> Any:
        events.append(name)
        return call(*arguments, **named)

    return noted


@pytest.mark.parametrize("num_draws", [1, 4])
@pytest.mark.parametrize("left_s", [1e6, math.inf])
def test_the_draws_of_a_message_have_their_time_together(num_draws: int, left_s: float) -> None:
    """As long as one after another has on a slow link."""

    class Sent:
        is_over = False
        until = 0.0

        def ask(self, *_: Any, **named: Any) -> Any:
            return self

        def extend(self, ends: float) -> None:
            self.until = ends

    sent = Sent()
    turns = Turns(sent)  # type: ignore[arg-type]
    first, *_ = [turns.add({"op": "draw"}, 4, DRAWN, 0.0, may_share=True) for _ in range(num_draws)]
    turns.send()
    began = time.monotonic()
    first.extend(began + left_s)
    assert sent.until - began == pytest.approx(left_s * num_draws, rel=0.1)


def test_messages_before_the_one_that_is_waited_for_have_its_time() -> None:
    """Draws that were not made are asked for again behind messages under way."""
    ends: dict[str, float] = {}

    class Sent:
        is_over = False

        def __init__(self, name: str = "") -> None:
            self.name, self.line, self.ends = name, lines, 0.0

        def ask(self, header: Any, until: float, **named: Any) -> Any:
            sent = Sent(header["op"])
            sent.ends = until
            return sent

        def extend(self, until: float) -> None:
            self.ends = max(self.ends, until)

        def hurry(self, until: float) -> None:
            self.ends = min(self.ends, until)

        def take(self, is_last: bool) -> Any:
            ends[self.name] = self.ends
            return Reply({}, b"", b"", None)

    lines: Any = None
    lines = Sent()
    turns = Turns(lines)
    now = time.monotonic()
    turns.add({"op": "earlier"}, 4, DRAWN, now + 1.0)
    later = turns.add({"op": "later"}, 4, DRAWN, now + 1.0)
    turns.send()
    later.extend(now + 1000.0)
    later.take()
    assert ends == {"earlier": now + 1000.0, "later": now + 1000.0}


@pytest.mark.parametrize("is_sent", [True, False])
def test_an_error_of_a_message_is_that_of_its_draws(
    start: Any, shm_name: Any, monkeypatch: pytest.MonkeyPatch, is_sent: bool
) -> None:
    """The owner goes before the message is sent. Its stream may take the message nevertheless."""
    near, far = start(), start()
    addresses = [near.own(0, config_of(shm_name())), far.own(1, config_of(shm_name()))]
    with attach(addresses, path="service", timeout_s=10.0) as table:
        for shard in range(2):
            fill(table, shard, 100 * shard, 50)
        drawing, turns = table._fleet.drawing, dict[int, Any]()
        begun = [drawing.begin(DrawRequest(0, 8), 0.0, 5.0, turns) for _ in range(3)]
        far.kill()
        with monkeypatch.context() as patched:
            if not is_sent:
                problem = errors.ServiceUnavailable(addresses[1], 0.0, "it is gone")
                patched.setattr(table._fleet.shards[1]._lines, "ask", _raises(problem))
            drawing.send(turns)
        for one in begun:
            drawn = drawing.finish(one, 5.0)
            assert {int(key) >> 51 for key in drawn.item_keys} == {0}
            drawing.commit(drawn)
        drawing.flush()
        settled(near, addresses[0])


def _raises(problem: Exception) -> Any:
    def call(*_: Any, **named: Any) -> Any:
        raise problem

    return call


def test_draws_that_differ_share_no_message_and_an_ended_line_takes_no_more() -> None:
    """One waits for the steps of a writer, say. Draws that were due on a line that ended leave the next ones alone."""
    sent: list[Any] = []

    class Sent:
        def __init__(self) -> None:
            self.is_over = False
            self.line = self

        def ask(self, header: Any, ends: float, *, expects: Any, behind: Any) -> Any:
            sent.append((header, behind))
            return self

    lines = Sent()
    turns = Turns(lines)  # type: ignore[arg-type]
    for header in ({"op": "draw"}, {"op": "draw"}, {"op": "draw", "after": [[1, 2]]}, {"op": "draw"}):
        turns.add(header, 4, DRAWN, 0.0, may_share=True)
    turns.add({"op": "draw"}, 4, DRAWN, 0.0)  # a draw that is timed
    turns.add({"op": "draw"}, 4, DRAWN, 0.0, may_share=True)
    turns.send()
    assert [header["n"] for header, _ in sent] == [[4, 4], 4, 4, 4, 4] and sent[1][0]["after"] == [[1, 2]]
    assert [behind for _, behind in sent] == [None, *[lines] * 4]
    lines.is_over = True
    turns.add({"op": "draw"}, 4, DRAWN, 0.0)
    turns.send()
    assert sent[-1][1] is None


# ---- messages of others ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "counts",
    [4, [], [1] * (MOST_DRAWS + 1), [4, "4"], [4, 0], [4, None], [4, True], [MOST_TOGETHER_ITEMS, 1], [4, 2**40]],
    ids=str,
)
def test_a_message_that_is_none_draws_nothing(shards: Any, counts: Any) -> None:
    table, owners = shards(1)
    shard: RemoteShard = table._fleet.shards[0]
    with pytest.raises((errors.BadMessage, errors.InvalidConfig)):
        shard.request({"op": "draws", "index": 0, "n": counts, "timeout_s": 1.0, "is_read": True}, 5.0)
    assert in_flight(owners) == 0 and len(table.sample(8)) == 8


@pytest.mark.parametrize(
    "drawn", [None, 3, [4], [{}], [{"ticket": "1"}], [{"ticket": -1}], [{"ticket": 1}] * 3], ids=str
)
def test_an_answer_that_is_none_is_refused(drawn: Any) -> None:
    turns = Turns(None)  # type: ignore[arg-type]
    two = [turns.add({"op": "draw"}, 4, DRAWN, 0.0, may_share=True) for _ in range(2)]
    assert _sizes({"drawn": [{"ticket": 1}]}, two) == [DRAWN.num_bytes(4)] and _sizes({"drawn": []}, two) == []
    with pytest.raises(errors.BadMessage):
        _sizes({"drawn": drawn}, two)
