"""Answers that a client does not read: each ends its stream, however small it is, and gives its memory back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

import pyarrow as pa

import relive
from relive.service import serve
from relive.service.server import pipe as pipes
from relive.service.server import server as servers
from relive.service.server.pipe import SMALL_BYTES, Pipe
from service.gates import until
from service.raw_http2 import RawClient

LOOPBACK = "grpc://127.0.0.1:0"
NUM_ITEMS, ROW = 8, 1400


def ragged() -> relive.Table:
    """A table whose answers are counted with more bytes than they have: 8 items are counted with megabytes."""
    spec = relive.StepSpec({"x": relive.ArraySpec((ROW,), "float32")})
    items = relive.Episodes(max_length=4096, layout="ragged")
    table = relive.Table(spec, 5000, relive.Index(items=items))
    with table.writer() as writer:
        for _ in range(20):
            writer.append(x=np.zeros(ROW, np.float32), terminated=True)
    return table


def greeted(client: RawClient, kind: str, **more: Any) -> int:
    """A stream that has its hello. It receives no byte more."""
    stream = client.open()
    client.describe(stream, kind, "t", **more)
    until(lambda: client.num_bytes[stream] > 0)
    client.set_window(0)
    until(lambda: client.num_settings == 2)
    return stream


def test_a_small_answer_that_is_not_read_ends_its_stream_and_gives_its_budget_back() -> None:
    with ragged() as table, serve({"t": table}, LOOPBACK) as server, RawClient(server.address) as client:
        inflight = server._hosted["t"].memory.inflight
        stream = greeted(client, "call")
        client.say(stream, op="sample", index=0, names=["x", "offsets"], n=NUM_ITEMS, timeout_s=0.5)
        until(lambda: inflight.used > 0)
        until(lambda: client.is_cut)
        until(lambda: server.num_streams == 0)
        assert inflight.used == 0


# ---- each write ------------------------------------------------------------------------------------------------------

BUFFERS = [pa.py_buffer(b"x" * 8)]
CHUNKS = [pa.py_buffer(b"x" * (SMALL_BYTES + 1))]
WRITES: dict[str, Callable[[Pipe], None]] = {
    "message": lambda pipe: pipe.send({"seq": 1}),
    "keys": lambda pipe: pipe.send({"seq": 1}, np.zeros(4, np.int64)),
    "small body": lambda pipe: pipe.send_buffers({}, BUFFERS),
    "large body": lambda pipe: pipe.send_buffers({}, CHUNKS),
}


class Full:
    """A writer of a stream whose client reads nothing."""

    def __init__(self) -> None:
        self.began, self.goes_on = threading.Event(), threading.Event()

    def begin(self, schema: Any) -> None:
        """Says the schema of the stream."""

    def write_metadata(self, message: Any) -> None:
        """Returns when the client reads."""
        self.began.set()
        assert self.goes_on.wait(60.0)

    def write_with_metadata(self, batch: Any, message: Any) -> None:
        """Returns when the client reads."""
        self.write_metadata(message)


class Clock:
    """The time of the pipe."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = time.monotonic()
        monkeypatch.setattr(pipes.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def full() -> Iterator[Full]:
    writer = Full()
    yield writer
    writer.goes_on.set()


class Context:
    """The context of a call, which its client has cancelled or not."""

    is_over = False

    def is_cancelled(self) -> bool:
        """Returns whether the client has given up the stream."""
        return self.is_over


def busy(writer: Full) -> Pipe:
    pipe: Any = Pipe(Context(), None, writer, lambda count: None)
    pipe._is_busy = True
    return pipe


@pytest.mark.parametrize("what", WRITES)
def test_a_write_that_does_not_end_is_seen(what: str, clock: Clock, full: Full) -> None:
    pipe = busy(full)
    thread = threading.Thread(target=WRITES[what], args=(pipe,))
    thread.start()
    assert full.began.wait(60.0) and not pipe.is_stalled(60.0)
    clock.now += 61.0
    assert pipe.is_stalled(60.0)
    full.goes_on.set()
    thread.join(60.0)
    assert not pipe.is_stalled(60.0)


@pytest.mark.parametrize("what", WRITES)
def test_a_write_that_fails_is_over(what: str, clock: Clock) -> None:
    class Broken(Full):
        def write_metadata(self, message: Any) -> None:
            raise pa.ArrowException("the client is gone")

    pipe = busy(Broken())
    with pytest.raises(pa.ArrowException):
        WRITES[what](pipe)
    clock.now += 61.0
    assert not pipe.is_stalled(60.0)


@pytest.mark.parametrize(("what", "is_bound"), [("small body", True), ("large body", True), ("message", False)])
def test_the_deadline_of_a_call_ends_its_batch_and_no_other_message(
    what: str, is_bound: bool, clock: Clock, full: Full
) -> None:
    """An error may come after the deadline, and wait for batches that were drawn ahead."""
    pipe = busy(full)
    pipe.gives_up = clock.now + 2.0
    thread = threading.Thread(target=WRITES[what], args=(pipe,))
    thread.start()
    assert full.began.wait(60.0)
    clock.now += 1.5
    assert not pipe.is_stalled(60.0)
    clock.now += 1.0
    assert pipe.is_stalled(60.0) is is_bound
    full.goes_on.set()
    thread.join(60.0)


def test_a_client_that_has_cancelled_its_stream_reads(clock: Clock, full: Full) -> None:
    """The write ends when the bytes before it are sent, over a slow link later than the deadline."""
    pipe: Any = busy(full)
    pipe.gives_up = clock.now + 2.0
    thread = threading.Thread(target=WRITES["large body"], args=(pipe,))
    thread.start()
    assert full.began.wait(60.0)
    clock.now += 3.0
    assert pipe.is_stalled(60.0)
    pipe._context.is_over = True
    assert not pipe.is_stalled(60.0)
    clock.now += 60.0
    assert pipe.is_stalled(60.0), "it does not read at all"
    full.goes_on.set()
    thread.join(60.0)


@pytest.mark.parametrize("what", [*WRITES, "end"])
def test_an_answer_that_waits_for_a_pulse_is_not_read_either(what: str, clock: Clock, full: Full) -> None:
    pipe = busy(full)
    pulse = threading.Thread(target=pipe.pulse)
    pulse.start()
    assert full.began.wait(60.0)
    clock.now += 61.0
    assert not pipe.is_stalled(60.0), "a client that is stopped may leave pulses unread"
    thread = threading.Thread(target=WRITES.get(what, Pipe.end), args=(pipe,))
    thread.start()
    until(lambda: pipe._sent_at == clock.now)
    clock.now += 61.0
    assert pipe.is_stalled(60.0)
    full.goes_on.set()
    for one in (pulse, thread):
        one.join(60.0)
    assert not pipe.is_stalled(60.0)


# ---- streams that never began, and pulses ----------------------------------------------------------------------------


def test_a_refusal_that_is_not_read_ends_its_connection_although_another_stream_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(servers, "_STALLED_S", 0.5)
    with ragged() as table, serve({"t": table}, LOOPBACK) as server, RawClient(server.address) as client:
        greeted(client, "call")
        client.describe(client.open(), "no such kind", "t")
        until(lambda: client.is_cut)
        until(lambda: server.num_streams == 0)


def test_an_answer_after_a_pulse_that_is_not_read_ends_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "_STALLED_S", 0.5)
    with ragged() as table, serve({"t": table}, LOOPBACK) as server, RawClient(server.address) as client:
        greeted(client, "call")
        client.set_window(65_535)
        until(lambda: client.num_settings == 3)
        stream = client.open()
        client.describe(stream, "parameters", "t", pulses=True)
        until(lambda: client.num_bytes[stream] > 0)
        client.set_window(0)
        client.say(stream, op="pull", newer_than=0, timeout_s=1e5)
        until(lambda: any(one.pipe is not None and one.pipe._sending.locked() for one in server._calls.open()))
        server.parameters("t").finish()
        until(lambda: client.is_cut)
        until(lambda: server.num_streams == 0)
