"""Pulses of a server: often enough for the patience of each client, no more often, and whatever other clients do."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from contract.tools import plain_spec

import relive
from relive.service import serve
from relive.service.server import pipe as pipes
from relive.service.server import pulses as rounds
from relive.service.server.pulses import Pulses
from service.doors import Stream
from service.gates import until
from service.raw_http2 import RawClient


class Written:
    def __init__(self) -> None:
        self.messages: list[Any] = []

    def write_metadata(self, message: Any) -> None:
        self.messages.append(message)


@pytest.mark.parametrize("patience_s", [1.0, 60.0])
def test_a_pulse_is_due_five_times_within_the_patience_of_the_client(
    patience_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, written = [100.0], Written()
    monkeypatch.setattr(pipes.time, "monotonic", lambda: now[0])
    pipe: Any = pipes.Pipe(None, None, written, lambda count: None)
    pipe.patience_s = patience_s
    assert not pipe.is_due(), "the session has no message"
    pipe._is_busy, pipe._busy_since = True, now[0]
    for _ in range(1_000):
        now[0] += patience_s / 100
        if pipe.is_due():
            pipe.pulse()
    assert 45 <= len(written.messages) <= 50, "10 times the patience"
    pipe.rest()
    now[0] += 10 * patience_s
    assert not pipe.is_due()


# ---- clients that do not read their pulses ---------------------------------------------------------------------------


class Blocked:
    """A writer of a stream whose window is full, until `goes_on` is set."""

    def __init__(self, goes_on: threading.Event) -> None:
        self.num_pulses, self.goes_on = 0, goes_on

    def write_metadata(self, message: Any) -> None:
        self.num_pulses += 1
        assert self.goes_on.wait(60.0)


@pytest.fixture
def goes_on() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def busy(writer: Any, patience_s: float = 1.0) -> pipes.Pipe:
    pipe: Any = pipes.Pipe(None, None, writer, lambda count: None)
    pipe.patience_s, pipe._is_busy = patience_s, True
    return pipe


def test_pulses_that_are_not_read_hold_up_no_other_client_however_many_they_are(
    monkeypatch: pytest.MonkeyPatch, goes_on: threading.Event
) -> None:
    """Each of the fifty would delay the others by the whole of this time, if their times added up."""
    monkeypatch.setattr(rounds, "_TOGETHER_S", 2.0)
    pulses, written = Pulses(), Written()
    hostile, honest = [busy(Blocked(goes_on)) for _ in range(50)], busy(written)
    for pipe in (*hostile, honest):
        pulses.add(pipe, None)
    until(lambda: len(written.messages) >= 3)
    assert [pipe._writer.num_pulses for pipe in hostile] == [1] * len(hostile)
    assert sum(one.name == "relive-server-pulse" for one in threading.enumerate()) <= len(hostile) + 2
    for pipe in (*hostile, honest):
        pulses.remove(pipe)


def test_a_client_reads_its_pulses_although_another_one_reads_none() -> None:
    with relive.Table(plain_spec(), 20) as table, serve({"t": table}, "grpc://127.0.0.1:0") as server:
        with RawClient(server.address) as client:
            streams = [client.open() for _ in range(4)]
            for stream in streams:
                client.describe(stream, "parameters", "t", pulses=True)
            until(lambda: all(client.num_bytes[one] for one in streams))
            client.set_window(0)
            until(lambda: client.num_settings == 2)
            for stream in streams:
                client.say(stream, op="pull", newer_than=0, timeout_s=1e5)
            until(lambda: sum(_has_unread_pulse(one) for one in server._calls.open()) == len(streams))
            honest = Stream(f"{server.address}/t", "parameters", None, pulses=True)
            honest.hears()
            honest.say(op="pull", newer_than=0, timeout_s=1e5)
            assert [honest.hears() for _ in range(5)] == [{"pulse": True}] * 5
            honest.close()
            had = Counter(client.num_bytes)
            for stream in streams:
                client.grant(stream)
            until(lambda: all(client.num_bytes[one] > had[one] for one in streams)), "no stream was cut"
            assert not client.is_cut


def _has_unread_pulse(call: Any) -> bool:
    return call.pipe is not None and call.pipe._sending.locked()
