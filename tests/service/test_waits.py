"""Waits of calls: the deadline of a call is one for all its waits, and the call waits for the next server, too."""

from __future__ import annotations

import gc
import itertools
import math
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from contract.tools import plain_spec, step, write_steps

import relive
from relive import errors
from relive.service import connect, serve
from relive.service.client import asking, deadlines, remote_parameters, remote_writer
from relive.service.client import connection as calls
from relive.service.client.exchange import Exchange
from relive.service.parameters.sets import publication_of
from relive.service.wire import framing
from service.gates import until

TIMEOUT_S, AWAY_S = 600.0, 500.0


class Clock:
    """The clock of the client's calls, which a test sets forward."""

    def __init__(self) -> None:
        self.ahead_s = 0.0
        self.sleep: Callable[[float], None] = time.sleep

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in (calls, asking, deadlines, remote_parameters, remote_writer):
        monkeypatch.setattr(module, "time", made)
    return made


@pytest.fixture
def remote() -> Iterator[Any]:
    with relive.Table(plain_spec(), 200) as table:
        with table.writer() as writer:
            write_steps(writer, 0, 20)
        with serve({"t": table}, "grpc://127.0.0.1:0") as server:
            with connect(server.address + "/t", timeout_s=TIMEOUT_S) as one:
                yield one


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """By op: the seconds that the last message allowed the server to wait."""
    told: dict[str, float] = {}
    send = Exchange.send

    def seen(stream: Exchange, message: bytes) -> None:
        header, _ = framing.decode(message)
        for one in header.get("ops", [header]):
            told[one["op"]] = header["timeout_s"]
        send(stream, message)

    monkeypatch.setattr(Exchange, "send", seen)
    return told


def comes_late(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next streams open after AWAY_S."""
    open_stream = calls.Connection.open

    def late(*arguments: Any) -> Any:
        opened = open_stream(*arguments)
        clock.ahead_s += AWAY_S
        return opened

    monkeypatch.setattr(calls.Connection, "open", late)


def test_a_call_that_waited_for_its_server_has_the_rest_of_its_time_for_the_limiter(
    remote: Any, clock: Clock, waits: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    remote.sample(4)
    assert TIMEOUT_S - AWAY_S - 1.0 < waits["sample"] <= TIMEOUT_S - 1.0
    comes_late(clock, monkeypatch)
    remote.core.connection._drop_idle()
    remote.sample(4)
    assert 0.0 < waits["sample"] <= TIMEOUT_S - AWAY_S - 1.0


def test_a_call_that_is_sent_again_tells_the_rest_of_its_time(
    remote: Any, clock: Clock, waits: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    receive, lost = Exchange.receive, []

    def broken(stream: Exchange) -> Any:
        if not lost:
            lost.append(stream)
            clock.ahead_s += AWAY_S
            stream.interrupt()
        return receive(stream)

    keys = remote.draw(4).item_keys
    remote.gather(keys)
    assert TIMEOUT_S - AWAY_S - 1.0 < waits["gather"] <= TIMEOUT_S - 1.0
    monkeypatch.setattr(Exchange, "receive", broken)
    remote.gather(keys)
    assert lost and 0.0 < waits["gather"] <= TIMEOUT_S - AWAY_S - 1.0


def test_a_writer_that_waited_for_its_server_has_the_rest_of_its_time_for_the_limiter(
    remote: Any, clock: Clock, waits: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    with remote.writer() as writer:
        writer.append(**step(0))
        for stream in remote.core.connection.streams():
            stream.interrupt()
        with pytest.raises(errors.ServiceUnavailable):
            writer.append(**step(1))  # the lanes were cut: said once
        comes_late(clock, monkeypatch)
        writer.append(**step(1))
        assert 0.0 < waits["append"] <= TIMEOUT_S - AWAY_S - 1.0


def test_a_writer_that_waited_for_another_thread_has_the_rest_of_its_time_for_the_server(
    remote: Any, clock: Clock, waits: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = remote_writer.held

    @contextmanager
    def held_late(*arguments: Any) -> Iterator[None]:
        with held(*arguments):
            clock.ahead_s += AWAY_S
            yield

    begun: list[float] = []
    begin = Exchange.begin

    def begin_seen(stream: Exchange, deadline: float, *more: Any) -> None:
        begun.append(deadline - clock.monotonic())
        begin(stream, deadline, *more)

    monkeypatch.setattr(Exchange, "begin", begin_seen)
    with remote.writer() as writer:
        writer.append(**step(0, 1))
        monkeypatch.setattr(remote_writer, "held", held_late)
        for call, op in (
            (lambda: writer.append(**step(1, 2)), "append"),
            (lambda: writer.end_episode(), "end"),
            (lambda: writer.abandon(), "abandon"),
        ):
            call()
            assert 0.0 < waits[op] <= TIMEOUT_S - AWAY_S - 1.0, op
            assert begun[-1] <= TIMEOUT_S - AWAY_S, op


def test_parameters_wait_for_the_server_after_one_that_closes() -> None:
    """Both wait at the server: the pull for a version, the publication for one that stays half sent."""
    with relive.Table(plain_spec(), 100) as table, ThreadPoolExecutor(2) as threads:
        first = serve({"table": table}, "grpc://127.0.0.1:0")
        sent = publication_of({"weight": np.ones(3)}, 1, None, 1 << 20)
        with connect(f"{first.address}/table", timeout_s=60.0) as remote:
            seat = first.parameters("table").begin(sent, math.inf)
            pulls = threads.submit(remote.parameters.pull, timeout_s=60.0)
            publishes = threads.submit(remote.parameters.publish, {"weight": np.ones(3)}, 2)
            until(lambda: first._counts.num_busy == 2)
            assert seat is not None
            first.close()
            with serve({"table": table}, first.address):
                assert publishes.result(60) is None
                pulled = pulls.result(60)
                assert pulled is not None and pulled.version == 2


def test_an_error_of_a_listener_is_no_server_that_closes() -> None:
    """Another server that the listener uses is away, say."""
    heard: list[Any] = []

    def listen(_: Any, note: Any) -> None:
        if note is not None:
            heard.append(note)
            raise errors.ServiceUnavailable("grpc://other:1/table", 1.0, "it is away")

    with relive.Table(plain_spec(), 100) as table, serve({"table": table}, "grpc://127.0.0.1:0") as server:
        server.parameters("table").listen(listen)
        with connect(f"{server.address}/table", timeout_s=60.0) as remote:
            with pytest.raises(errors.ServiceUnavailable, match="it is away"):
                remote.parameters.pull(timeout_s=60.0, note={"steps": 1})
    assert heard == [{"steps": 1}]


def test_a_server_that_says_it_closes_is_asked_again_after_a_pause_until_the_deadline(clock: Clock) -> None:
    asked: list[float] = []

    def refuse(_: Any) -> Any:
        asked.append(clock.ahead_s)
        raise remote_parameters._Refused(errors.ServiceUnavailable("table", 0.0, "the server closes"))

    clock.sleep = lambda seconds: setattr(clock, "ahead_s", clock.ahead_s + seconds)
    with relive.Table(plain_spec(), 100) as table, serve({"table": table}, "grpc://127.0.0.1:0") as server:
        with connect(f"{server.address}/table", timeout_s=60.0) as remote:
            with pytest.raises(errors.ServiceUnavailable, match="the server closes"):
                remote.parameters._call(clock.monotonic() + 10.0, refuse)
    assert 2 <= len(asked) <= 101 and all(later > earlier for earlier, later in itertools.pairwise(asked))


def test_a_kept_error_of_connect_that_the_server_sent_keeps_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    streams: list[weakref.ref[Exchange]] = []

    def noted(*arguments: Any) -> Exchange:
        made = Exchange(*arguments)
        streams.append(weakref.ref(made))
        return made

    monkeypatch.setattr(calls, "Exchange", noted)
    with relive.Table(plain_spec(), 100) as table, serve({"table": table}, "grpc://127.0.0.1:0") as server:
        gc.disable()
        try:
            with pytest.raises(errors.NoSuchTable) as kept:
                connect(f"{server.address}/none", timeout_s=60.0)
            until(lambda: all(stream() is None for stream in streams))
        finally:
            gc.enable()
    assert streams and kept.value.__traceback__ is not None


def test_a_server_that_drains_is_told_also_if_the_pause_before_the_next_try_takes_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Mock(monotonic=lambda: time.monotonic() + ahead[0], sleep=lambda seconds: ahead.__setitem__(0, 60.0))
    ahead = [0.0]
    with relive.Table(plain_spec(), 100) as table, serve({"table": table}, "grpc://127.0.0.1:0") as server:
        with connect(server.address + "/table", timeout_s=20.0) as remote:
            server.drain()
            monkeypatch.setattr(calls, "time", clock)
            with pytest.raises(errors.Draining):
                remote.core.connection.open("call", {}, clock.monotonic() + 20.0)
            assert ahead == [60.0]
