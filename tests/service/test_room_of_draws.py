"""Draws in flight on a server: their memory is counted from the draw until they are counted, go back, or end."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

import relive
from relive import errors
from relive.fleet import attach
from relive.service import ServerOptions, connect, serve
from relive.service.server import room
from relive.service.server.budget import FREE_BYTES, Budget
from relive.service.wire import framing
from service.doors import Stream
from service.gates import until

LOOPBACK = "grpc://127.0.0.1:0"
MIB = 1 << 20
LIMIT = 8 * MIB
MANY = 2 * MIB // 48  # draws of so many uses keep two MiB each
ASKED = {"hold": {"handed_out": 0, "claims": True}, "shard": {}}


def never() -> bool:
    return False


def options(**more: int) -> ServerOptions:
    return ServerOptions(**{"max_inflight_bytes": 4 * LIMIT, "max_inflight_bytes_per_client": LIMIT, **more})


@pytest.fixture
def table() -> Iterator[relive.Table]:
    """Its uses are counted."""
    spec = relive.StepSpec({"value": relive.ArraySpec((), "float32")})
    with relive.Table(spec, 100_000, relive.Index(max_times_sampled=1000)) as one:
        with one.writer() as writer:
            writer.extend(value=np.zeros(50_000, np.float32), truncated=True)
        yield one


@pytest.fixture
def server(table: relive.Table) -> Iterator[Any]:
    with serve({"t": table}, LOOPBACK, options()) as one:
        yield one


class Client:
    """A client of the plain protocol that keeps draws in flight."""

    def __init__(self, server: Any, kind: str) -> None:
        self.stream = Stream(f"{server.address}/t", kind, None)
        self.number = self.stream.hears().get("session")
        self.kind = kind

    def draw(self, num_items: int = MANY, timeout_s: float | None = 0.2) -> dict[str, Any]:
        self.stream.say(op="draw", index=0, n=num_items, timeout_s=timeout_s, **ASKED[self.kind])
        chunk = self.stream._reader.read_chunk()
        told, _ = framing.decode(chunk.app_metadata)
        if "error" in told:
            raise framing.error_from(told["error"])
        left = told.get("body_bytes", 0)
        while left:
            left -= chunk.data.num_rows
            chunk = self.stream._reader.read_chunk() if left else None
        return told

    def fill(self) -> list[dict[str, Any]]:
        """Draws until the server refuses, which says why."""
        drawn: list[dict[str, Any]] = []
        with pytest.raises(errors.DeadlineExceeded, match="max_inflight_bytes, .*draws in flight") as refused:
            while len(drawn) < 100:
                drawn.append(self.draw())
        assert refused.value.holder_pid is None
        return drawn

    def settle(self, how: str, ticket: int) -> None:
        """Counts the oldest draw or gives the newest one back; a draw with a ticket may be any."""
        if self.kind == "shard":
            self.stream.say(op="settle", **{how: [ticket]})
        else:
            self.stream.say(**{"done": {"op": "count", "handed_out": 1}, "back": {"op": "back", "handed_out": 0}}[how])
            self.stream.hears()


# ---- the memory of a stream ------------------------------------------------------------------------------------------


def test_small_draws_are_counted_together() -> None:
    budget = Budget("b", 4 * MIB, 4 * MIB, "draws in flight")
    kept = room.Kept(budget, "a")
    part = FREE_BYTES // 4
    for number in range(1, 17):
        with kept.room(part, 0.0, never):
            pass
        assert budget.used_by("a") == number // 4 * FREE_BYTES
    with pytest.raises(errors.DeadlineExceeded, match="draws in flight"), kept.room(4 * part, 0.0, never):
        raise AssertionError
    kept.give(part)
    assert budget.used == 3 * FREE_BYTES
    with kept.room(part, 0.0, never):
        assert budget.used == 4 * FREE_BYTES
    for _ in range(16):
        kept.give(part)
    assert budget.used == 0


def test_a_draw_that_fails_keeps_nothing() -> None:
    budget = Budget("b", 4 * MIB, 4 * MIB, "draws in flight")
    kept = room.Kept(budget, "a")
    with pytest.raises(ZeroDivisionError), kept.room(2 * MIB, 0.0, never):
        assert budget.used == 2 * MIB
        raise ZeroDivisionError
    assert budget.used == 0


def test_a_share_that_is_full_says_what_its_client_has_left() -> None:
    budget = Budget("b", 64 * MIB, 4 * MIB, "draws in flight")
    budget.take("a", 3 * MIB, 0.0, never)
    with pytest.raises(errors.DeadlineExceeded) as refused:
        budget.take("a", 2 * MIB, 0.0, never)
    assert refused.value.has == MIB


# ---- a server --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ASKED)
def test_draws_in_flight_are_bounded_until_they_are_settled(server: Any, kind: str) -> None:
    client = Client(server, kind)
    drawn = client.fill()
    assert 2 <= len(drawn) <= LIMIT // (MANY * 48)
    budget = server._memory.draws
    assert 0 < budget.used <= LIMIT
    for how, which in (("done", 0), ("back", -1)):
        client.settle(how, drawn.pop(which).get("ticket", 0))
        until(lambda: budget.used <= LIMIT - 2 * MIB)
        drawn.append(client.draw(timeout_s=30.0))
    client.stream.close()
    until(lambda: budget.used == 0)


def test_a_draw_that_another_stream_confirms_gives_its_room_back(server: Any) -> None:
    client, other = Client(server, "shard"), Client(server, "shard")
    drawn = client.fill()
    other.stream.say(op="confirm", session=client.number, ticket=drawn[0]["ticket"])
    assert other.stream.hears()["there"] is True
    until(lambda: server._memory.draws.used <= LIMIT - 2 * MIB)
    client.draw(timeout_s=30.0)
    for one in (client, other):
        one.stream.close()
    until(lambda: server._memory.draws.used == 0)


@pytest.mark.parametrize("kind", ASKED)
def test_a_draw_without_a_deadline_does_not_wait_for_its_own_client_for_ever(
    server: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "_KEPT_S", 0.2)
    client = Client(server, kind)
    client.fill()
    with pytest.raises(errors.DeadlineExceeded, match="draws in flight"):
        client.draw(timeout_s=None)
    client.stream.close()


@pytest.mark.parametrize("kind", ASKED)
def test_a_draw_that_waits_for_room_goes_on_when_a_draw_of_another_stream_is_settled(server: Any, kind: str) -> None:
    client, other = Client(server, kind), Client(server, kind)
    drawn = client.fill()
    budget, come = server._memory.draws, []
    thread = threading.Thread(target=lambda: come.append(other.draw(timeout_s=60.0)))
    thread.start()
    until(lambda: len(budget._queue) == 1)
    client.settle("done", drawn[0].get("ticket", 0))
    thread.join(60.0)
    assert len(come) == 1
    for one in (client, other):
        one.stream.close()


@pytest.mark.parametrize("kind", ASKED)
def test_the_room_of_a_table_that_was_closed_is_free_when_its_streams_end(
    table: relive.Table, server: Any, kind: str
) -> None:
    """Closing the table gave back its draws."""
    client = Client(server, kind)
    client.draw()
    assert server._memory.draws.used == 2 * MIB
    table.close()
    client.stream.close()
    until(lambda: server._memory.draws.used == 0)


@pytest.mark.parametrize("kind", ASKED)
def test_draws_without_uses_are_counted_by_their_number(kind: str) -> None:
    spec = relive.StepSpec({"value": relive.ArraySpec((), "float32")})
    with relive.Table(spec, 100) as table, serve({"t": table}, LOOPBACK, options()) as server:
        with table.writer() as writer:
            writer.extend(value=np.zeros(50, np.float32), truncated=True)
        client, budget = Client(server, kind), server._memory.draws
        for _ in range(1500):
            client.draw(1)
        assert budget.used == MIB
        client.draw(1 << 17)
        assert budget.used == MIB, "without uses the server keeps nothing for an item"
        client.stream.close()
        until(lambda: budget.used == 0)


# ---- ordinary use ----------------------------------------------------------------------------------------------------


def test_large_batches_ahead_need_no_room_although_uses_are_counted(table: relive.Table, server: Any) -> None:
    """The uses of batches() stay counted: the server keeps none of them."""
    with connect(f"{server.address}/t", timeout_s=60.0) as remote:
        with remote.batches(1 << 16, prefetch=8, timeout_s=60.0) as batches:
            for _ in range(12):
                assert next(batches).num_items == 1 << 16
            assert server._memory.draws.peak == 0


def test_draws_ahead_over_shards_wait_for_room_and_go_on(table: relive.Table, server: Any) -> None:
    """Four batches fit, and eight are wanted."""
    with attach([f"{server.address}/t"], timeout_s=60.0) as fleet:
        with fleet.batches(MANY, prefetch=8, timeout_s=60.0) as batches:
            for _ in range(10):
                assert next(batches).num_items == MANY
        assert 0 < server._memory.draws.peak <= LIMIT
    until(lambda: server._memory.draws.used == 0)


def test_several_clients_draw_together(table: relive.Table, server: Any) -> None:
    """Each holds a draw of a mixture in flight while it is made."""
    counts: list[int] = []

    def draw() -> None:
        with connect(f"{server.address}/t", timeout_s=60.0) as remote:
            with relive.Mixture({"a": 1.0}, {"a": remote}) as mixed:
                counts.extend(mixed.sample(MANY).num_items for _ in range(4))

    threads = [threading.Thread(target=draw) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120.0)
    assert counts == [MANY] * 24
    until(lambda: server._memory.draws.used == 0)


def test_a_draw_takes_all_its_bytes_although_others_of_its_stream_are_settled_while_it_waits() -> None:
    """Whole MiB are counted, so what a draw lacks may grow while bytes come back."""
    budget = Budget("max_inflight_bytes", 4 * MIB, 4 * MIB)
    other, mine = room.Kept(budget, "a"), room.Kept(budget, "a")
    for kept, num_bytes in ((other, 3 * MIB), (mine, 8 * MIB // 10), (mine, 4 * MIB // 10)):
        with kept.room(num_bytes, 0.0, never):
            pass
    assert budget.used == 4 * MIB

    def draw() -> None:
        with mine.room(3 * MIB // 2, 60.0, never):
            pass

    thread = threading.Thread(target=draw, daemon=True)
    thread.start()
    until(lambda: bool(budget._queue))
    mine.give(4 * MIB // 10)
    other.close()
    thread.join(60.0)
    assert budget.used == 2 * MIB
    mine.give(8 * MIB // 10)
    assert budget.used == MIB
    mine.close()
    assert budget.used == budget.used_by("a") == 0


@pytest.mark.parametrize("share", [3 * MIB, 5 * MIB // 2, MIB // 2])
def test_a_draw_that_alone_would_fit_waits_for_the_others_of_its_stream(share: int) -> None:
    """Whole MiB are counted, so a part of a MiB in flight may be one too many."""
    budget = Budget("max_inflight_bytes", 64 * MIB, share, "draws in flight")
    kept, part, large = room.Kept(budget, "a"), 3 * MIB // 4, share // MIB * MIB + 3 * MIB // 4
    with kept.room(part, 0.0, never):
        pass
    with pytest.raises(errors.DeadlineExceeded, match="max_inflight_bytes, .*draws in flight") as late:
        with kept.room(large, 0.0, never):
            raise AssertionError
    assert late.value.has <= share
    with pytest.raises(errors.ServiceUnavailable), kept.room(large, 60.0, lambda: True):
        raise AssertionError
    asked, is_in = threading.Event(), threading.Event()

    def waits() -> bool:
        asked.set()
        return False

    def draw() -> None:
        with kept.room(large, 60.0, waits):
            is_in.set()

    thread = threading.Thread(target=draw, daemon=True)
    thread.start()
    assert asked.wait(60.0) and not is_in.is_set()
    kept.give(part)
    thread.join(60.0)
    assert is_in.is_set() and budget.used == share // MIB * MIB
    kept.give(large)
    assert budget.used == 0


def test_a_draw_that_could_never_fit_is_refused_at_once() -> None:
    kept = room.Kept(Budget("max_inflight_bytes", 64 * MIB, 3 * MIB, "draws in flight"), "a")
    with kept.room(MIB // 2, 0.0, never):
        pass
    with pytest.raises(errors.InvalidConfig, match="max_inflight_bytes"), kept.room(4 * MIB, 60.0, never):
        raise AssertionError


@pytest.mark.parametrize("is_one_of_many", [False, True])
def test_a_draw_whose_answer_cannot_be_made_goes_back(
    table: relive.Table, server: Any, monkeypatch: pytest.MonkeyPatch, is_one_of_many: bool
) -> None:
    """No client hears its ticket."""
    client = Client(server, "shard")
    session = server._hosted["t"].lending[client.number]

    class Stuck:
        def __getattr__(self, name: str) -> Any:
            return getattr(table.core, name)

        def root(self, index: int) -> Any:
            raise errors.DeadlineExceeded("the lock", "", 1.0)

    monkeypatch.setattr(type(session), "_core", Stuck())
    asked: dict[str, Any] = {"op": "draws", "n": [64]} if is_one_of_many else {"op": "draw", "n": MANY}
    client.stream.say(index=0, timeout_s=20.0, claims=True, root=True, **asked)
    if is_one_of_many:
        assert client.stream.hears()["stopped"]["type"] == "DeadlineExceeded"
    else:
        with pytest.raises(errors.DeadlineExceeded, match="the lock"):
            client.stream.hears()
    assert not session._lent and server._memory.draws.used == 0
    assert table.stats().indexes["default"].in_flight == 0
    assert table.stats().indexes["default"].sampled == 0
    client.stream.close()


@pytest.mark.parametrize("kind", ["hold", "shard"])
def test_metrics_show_the_bytes_of_draws_in_flight(server: Any, kind: str) -> None:
    pytest.importorskip("prometheus_client", reason="prometheus-client is not installed here (extra `service`)")
    port = server.serve_metrics()

    def shown() -> list[float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
            lines = answer.read().decode().splitlines()
        return [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("relive_inflight_bytes{")]

    client = Client(server, kind)
    told = client.draw()
    until(lambda: shown() == [2 * MIB])  # of the draw alone, once its answer is read
    client.settle("done", told.get("ticket", 0))
    until(lambda: shown() == [0])
    client.stream.close()
