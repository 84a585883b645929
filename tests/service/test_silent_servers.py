"""Servers that are silent, and servers that are not: bytes that move, pulses, and what next() of batches() says."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from contract.tools import plain_spec, step, write_steps

import relive
from relive import errors
from relive.service import Streaming, connect, serve
from relive.service.client import batches as ahead
from relive.service.client import exchange
from relive.service.client import link as link_of
from relive.service.client.exchange import Exchange, Watch
from relive.service.server.sessions import HoldSession
from relive.service.wire.sockets import heard_s, moved_s
from service.gates import until
from service.proxy import Proxy

LOOPBACK = "grpc://127.0.0.1:0"


@pytest.fixture
def table() -> Iterator[relive.Table]:
    with relive.Table(plain_spec(), 500) as one:
        with one.writer() as writer:
            write_steps(writer, 0, 50)
        yield one


# ---- bytes that move -------------------------------------------------------------------------------------------------


def test_the_room_that_a_peer_gives_for_waiting_bytes_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peers = frozenset([("127.0.0.1", int(listener.getsockname()[1]))])
        with socket.create_connection(listener.getsockname()) as sends:
            reads, _ = listener.accept()
            with reads:
                reads.sendall(b"-")  # a connection over which no byte came says nothing
                assert sends.recv(1) == b"-"
                assert moved_s(peers) is None, "no bytes wait"
                sends.setblocking(False)

                def is_full() -> bool:
                    try:
                        while True:
                            sends.send(bytes(1 << 16))
                    except BlockingIOError:
                        return moved_s(peers) is not None

                until(is_full)

                def told() -> float:
                    return moved_s(peers) or 0.0

                until(lambda: told() > 0.5)
                assert (heard_s(peers) or 0.0) > 0.5
                before_s, began = told(), time.monotonic()
                time.sleep(1.0)  # meanwhile the peer answers questions for room, which is no sign of life
                passed_s = time.monotonic() - began
                assert told() - before_s >= passed_s - 0.1
                until(lambda: bool(reads.recv(1 << 16)) and told() < 0.2)
                until(lambda: bool(reads.recv(1 << 16)) and moved_s(peers) is None)


class _Reader:
    def cancel(self) -> None: ...


def test_a_server_that_takes_waiting_bytes_is_not_silent() -> None:
    """It takes some every half second for five seconds. A second after the last ones it is silent."""
    reader, now = _Reader(), time.monotonic()
    watch = Watch(reader, lambda: clock - now + 60.0, lambda: (clock - now) % 0.5 if clock < now + 5.0 else None)
    stream = Exchange(None, reader, watch, silence_s=1.0)
    watch.sleeps, clock = False, now  # no thread: the looks are made here
    stream.begin(now + 100.0, now)
    while not stream.expired:
        clock += 0.01
        watch._expire(clock)
    assert stream.was_silent and not stream.was_heard
    assert clock - now == pytest.approx(5.5, abs=0.6)


def test_bytes_that_a_server_takes_are_no_answer_on_its_way() -> None:
    reader, now = _Reader(), time.monotonic()
    watch = Watch(reader, lambda: clock - now + 60.0, lambda: 0.0)
    stream = Exchange(None, reader, watch, silence_s=1.0)
    watch.sleeps, clock = False, now
    stream.begin(now + 3.0, now)
    while not stream.expired:
        clock += 0.01
        watch._expire(clock)
    assert not stream.was_silent and not stream.was_heard


def test_a_streaming_writer_waits_while_its_bytes_move(table: relive.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float | None] = []
    moves: list[float | None] = [0.0]

    def moved(_: Any) -> float | None:
        asked.append(moves[0])
        return moves[0]

    monkeypatch.setattr(link_of, "moved_s", moved)
    with serve({"t": table}, LOOPBACK) as server, Proxy(int(server.address.rpartition(":")[2])) as link:
        with connect(link.address + "/t", timeout_s=1.0) as remote:
            writer = remote.writer(streaming=Streaming())
            link.stall(True)
            for number in range(100):  # together they may take a hundred seconds
                writer.append(**step(number))
            until(lambda: len(asked) >= 3)  # the sockets are asked when the server is silent otherwise
            assert writer._core._failure is None
            moves[0] = None
            until(lambda: writer._core._failure is not None)
            with pytest.raises(errors.Unacknowledged, match="no byte came for 1 s"):
                writer.flush()
            link.stall(False)
            writer.close()


# ---- next() of batches() ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout_s", [1.0, 2.0])
def test_next_says_that_its_server_is_silent(table: relive.Table, timeout_s: float) -> None:
    """Its deadline is far earlier than the end of the stream, which goes on when the server does."""
    with serve({"t": table}, LOOPBACK) as server, Proxy(int(server.address.rpartition(":")[2])) as link:
        with connect(link.address + "/t", timeout_s=60.0) as remote:
            with remote.batches(8, prefetch=2, timeout_s=timeout_s) as batches:
                next(batches)
                until(lambda: len(batches._bringer.ready) == 2)
                link.stall(True)
                with pytest.raises(errors.ServiceUnavailable, match="no byte came for") as silent:
                    for _ in range(10):
                        next(batches)
                assert silent.value.address == link.address + "/t"
                link.stall(False)
                assert [one for one in (_next(batches) for _ in range(5)) if one is not None]
        until(lambda: table.stats().indexes["default"].in_flight == 0)


def _next(batches: Any) -> Any:
    """A batch; None if the server was silent, or too slow."""
    try:
        return next(batches)
    except (errors.ServiceUnavailable, errors.DeadlineExceeded):
        return None


@pytest.mark.parametrize(
    ("waited_s", "quiet_s", "is_silent"), [(None, 9.0, False), (0.5, 9.0, False), (5.0, 0.3, False), (5.0, 2.0, True)]
)
def test_a_silence_of_a_second_of_the_wait_is_told(
    table: relive.Table, monkeypatch: pytest.MonkeyPatch, waited_s: float | None, quiet_s: float, is_silent: bool
) -> None:
    """None: nothing is due."""
    with serve({"t": table}, LOOPBACK) as server, connect(server.address + "/t", timeout_s=60.0) as remote:
        with remote.batches(8, prefetch=1, timeout_s=60.0) as batches:
            until(lambda: len(batches._bringer.ready) == 1)
            source: Any = batches._bringer._source
            monkeypatch.setattr(remote.core.connection, "quiet_s", lambda since: quiet_s)
            until(lambda: source._waits_since == math.inf)
            if waited_s is not None:
                source._waits_since = time.monotonic() - waited_s
            found = batches._bringer.silence()
            assert (found is not None) == is_silent
            assert isinstance(batches._late(waited_s or 0.0), errors.ServiceUnavailable) == is_silent


def test_a_limiter_that_refuses_is_no_silence() -> None:
    """The server answers each request within a slice."""
    with relive.Table(plain_spec(), 500, relive.Index(limiter=relive.MinSize(100))) as table:
        with serve({"t": table}, LOOPBACK) as server, connect(server.address + "/t", timeout_s=60.0) as remote:
            with remote.batches(8, prefetch=1, timeout_s=0.5) as batches:
                until(lambda: batches._bringer.starved is not None)
                for _ in range(4):
                    with pytest.raises(errors.DeadlineExceeded, match="100"):
                        next(batches)


def test_a_server_that_works_on_a_batch_sends_pulses(table: relive.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    pulses: list[bool] = []
    goes_on = threading.Event()
    draw, is_pulse = HoldSession._draw, exchange.framing.is_pulse

    def slow(*arguments: Any) -> None:
        goes_on.wait(60.0)
        draw(*arguments)

    def noted(message: Any) -> bool:
        if is_pulse(message):
            pulses.append(True)
            return True
        return False

    monkeypatch.setattr(HoldSession, "_draw", slow)
    monkeypatch.setattr(exchange.framing, "is_pulse", noted)
    monkeypatch.setattr(ahead, "_REPLY_S", 60.0)
    with serve({"t": table}, LOOPBACK) as server, connect(server.address + "/t", timeout_s=60.0) as remote:
        with remote.batches(8, prefetch=1, timeout_s=60.0) as batches:
            until(lambda: len(pulses) >= 3)
            goes_on.set()
            assert np.shape(next(batches).item_keys) == (8,)
