"""A call with a deadline of its own asks no shard a question that may outlive it, however long the handle's timeout."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from contract.late import late_spec, write
from contract.tools import write_steps
from processes.shm import needs_shared_memory

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

import relive
from fleet.fake_nixl import Pair
from fleet.tools import config_of
from relive import errors
from relive.core.one_call import asked_at
from relive.core.request import DrawRequest
from relive.fleet import ShardOwner, attach
from relive.fleet.draws.pace import Wait
from relive.fleet.onesided.peer import PeerShard
from relive.fleet.remote.shard import RemoteShard
from relive.fleet.remote.streams import Lines
from relive.fleet.shards import Asked
from relive.fleet.writing import made_as_let_in
from relive.service.client.asking import Asking
from relive.service.client.connection import Connection
from relive.writing.new_items import NewItems

pytestmark = needs_shared_memory
HANDLE_S = 1e6  # the timeout of a handle
OVERDUE = relive.Index(limiter=relive.SamplesPerInsert(1.0, min_size=4, tolerance=4.0), max_wait_s=600.0)
MASSES = relive.Index(sampler=relive.Prioritized(1.0, initial="max"))


@pytest.fixture
def served(shm_name: Any) -> Iterator[Any]:
    """Opens a table over two served shards with this index, and the late columns of four steps in each."""
    with contextlib.ExitStack() as stack:

        def over(index: Any, spec: Any) -> Any:
            configs = [relive.TableConfig(spec, 1000, index, relive.SharedMemory(shm_name())) for _ in range(2)]
            owners = [stack.enter_context(ShardOwner(number, one)) for number, one in enumerate(configs)]
            addresses = [owner.serve("grpc://127.0.0.1:0") for owner in owners]
            return stack.enter_context(attach(addresses, path="service", timeout_s=HANDLE_S))

        yield over


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """The longest time, in seconds, that a question of each kind has had."""
    longest: dict[str, float] = {}
    ask, send, prepare = Lines.ask, Asking.__init__, Connection.prepare

    def note(op: str, ends: float) -> None:
        longest[op] = max(longest.get(op, 0.0), ends - time.monotonic())

    def asks(lines: Any, header: Any, ends: float, *body: Any, **more: Any) -> Any:
        note(header["op"], ends)
        return ask(lines, header, ends, *body, **more)

    def sends(asking: Any, connection: Any, op: str, message: bytes, ends: float, *more: Any) -> None:
        note(op, ends)
        send(asking, connection, op, message, ends, *more)

    def prepares(connection: Any, kind: str, ends: float) -> None:
        note("prepare", ends)
        prepare(connection, kind, ends)

    monkeypatch.setattr(Connection, "prepare", prepares)
    monkeypatch.setattr(Lines, "ask", asks)
    monkeypatch.setattr(Asking, "__init__", sends)
    return longest


def next_of(table: Any) -> Any:
    with table.batches(1, timeout_s=0.0) as batches:
        return next(batches)


def write_one(writer: Any) -> None:
    zeros = np.zeros(2, np.float32)
    writer.append(observation=zeros, action=0, next_observation=zeros, timeout_s=0.0)


WAITING: dict[str, Callable[[Any, Any, Any], Any]] = {
    "sample": lambda table, writer, keys: table.sample(1, timeout_s=0.0),
    "draw": lambda table, writer, keys: table.draw(1, timeout_s=0.0),
    "next": lambda table, writer, keys: next_of(table),
    "claim": lambda table, writer, keys: table.claim(relive.Draw.of(keys, np.ones(1)), timeout_s=0.0),
    "append": lambda table, writer, keys: write_one(writer),
}


@pytest.mark.parametrize("what", WAITING)
def test_a_call_that_waits_for_the_totals(served: Any, asked: dict[str, float], what: str) -> None:
    table = served(OVERDUE, late_spec())
    for shard in range(2):
        with table.writer(shard=shard) as writer:
            keys = write(writer, 0, 4)[-1:]
    with table.writer(shard=0) as writer:
        asked.clear()
        with pytest.raises(errors.DeadlineExceeded):
            WAITING[what](table, writer, keys)
        assert "free" in asked and "roots" in asked and max(asked.values()) < 100.0, asked


@pytest.fixture
def began(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, float]]:
    """The beginnings from which questions of each kind had their time; -1.0: they had it from then on."""
    noted: set[tuple[str, float]] = set()
    ask = Lines.ask

    def asks(lines: Any, header: Any, *more: Any, **named: Any) -> Any:
        noted.add((header["op"], asked_at(-1.0)))
        return ask(lines, header, *more, **named)

    monkeypatch.setattr(Lines, "ask", asks)
    return noted


def test_the_looks_for_room_in_several_indexes_have_one_deadline(served: Any, began: set[tuple[str, float]]) -> None:
    table = served({"one": OVERDUE, "two": OVERDUE}, late_spec())
    for shard in range(2):
        with table.writer(shard=shard) as writer:
            write(writer, 0, 4)
    with table.writer(shard=0) as writer:
        began.clear()
        with pytest.raises(errors.DeadlineExceeded):
            write_one(writer)
        assert {op for op, _ in began} == {"roots", "free"}
        assert len({at for _, at in began}) == 1 and -1.0 not in {at for _, at in began}


def test_a_change_of_all_shards_has_one_deadline(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    table, began = served(MASSES, late_spec()), list[float]()
    free, ask = RemoteShard.ask_free, RemoteShard.ask

    def asks_free(shard: Any, *more: Any) -> Any:
        began.append(asked_at(-1.0))
        return free(shard, *more)

    def asks(shard: Any, *more: Any) -> Any:
        began.append(asked_at(-1.0))
        return ask(shard, *more)

    monkeypatch.setattr(RemoteShard, "ask_free", asks_free)
    monkeypatch.setattr(RemoteShard, "ask", asks)
    table.set_priority_exponent(0.5)
    assert len(began) == 6 and len(set(began)) == 1 and began[0] > 0.0


def test_a_draw_that_finds_too_few_uses(served: Any, asked: dict[str, float]) -> None:
    """The error tells the items by the roots that the draw has read last."""
    table = served(relive.Index(max_times_sampled=2), relive.StepSpec({"x": relive.ArraySpec((), "int64")}))
    for shard in range(2):
        with table.writer(shard=shard) as writer:
            writer.extend(x=np.arange(3), truncated=True)
    table.draw(5)
    table.draw(5)
    asked.clear()
    with pytest.raises(errors.DeadlineExceeded, match="4 items of shards that answer, has [12]"):
        table.draw(4, timeout_s=0.0)
    assert asked and max(asked.values()) < 100.0, asked


def test_columns_that_no_call_has_named(served: Any, asked: dict[str, float]) -> None:
    table = served(MASSES, relive.StepSpec({"x": relive.ArraySpec((), "int64"), "y": relive.ArraySpec((), "int64")}))
    with table.writer(shard=1) as writer:
        writer.extend(x=np.arange(5), y=np.arange(5), truncated=True)
    asked.clear()
    batch = table.sample(4, columns=["y"], timeout_s=5.0)
    assert set(batch["y"].tolist()) <= set(range(5)) and set(asked) - {"prepare"} == {"roots", "draw"}
    assert max(asked.values()) < 100.0, asked


def test_the_looks_for_room_end_with_their_call() -> None:
    clock, given = [0.0], list[float]()

    def lets_in(count: int, left_s: float) -> bool:
        given.append(left_s)
        clock[0] += 1.0  # a look that takes its time
        return True

    items = NewItems(np.arange(100), [], None, [])
    made_as_let_in(items, lambda part, _: part.windows, lets_in, Wait(10.0, lambda: clock[0]))
    assert given == [10.0 - number for number in range(len(given))] and len(given) > 3
    assert not any(map(math.isinf, given))


@pytest.fixture
def peer(pair: Pair, shm_name: Any) -> Iterator[PeerShard]:
    """A shard of 50 steps that is read one-sidedly, by a fake."""
    with pair.served(config_of(shm_name()), must=True) as (owner, made):
        with owner.table.writer() as writer:
            write_steps(writer, 0, 50)
        made.core.timeout_s = HANDLE_S
        yield made


@pytest.mark.parametrize("num_gone", [0, 4])
def test_a_draw_whose_rows_the_owner_sends(
    peer: PeerShard, asked: dict[str, float], monkeypatch: pytest.MonkeyPatch, num_gone: int
) -> None:
    """One-sided reads do not work; or all rows went before they were read, and are drawn again."""
    rows = PeerShard.rows

    def gone(shard: Any, *arguments: Any, **more: Any) -> Any:
        arrays, present = rows(shard, *arguments, **more)
        present[:num_gone] = False
        return arrays, present

    monkeypatch.setattr(PeerShard, "_read", lambda *_, **more: None)
    monkeypatch.setattr(PeerShard, "rows", gone)
    request = DrawRequest(0, 4, peer.select(0, ["reward"]))
    part = peer.begin(Asked(request, 10.0, left_s=10.0, counts_nowhere=False, is_read=False, is_only=True))
    assert len(part.take()[1]) == 4
    part.commit()
    assert {"draw", "gather"} <= set(asked) and max(asked.values()) < 100.0, asked
