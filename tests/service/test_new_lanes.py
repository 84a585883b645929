"""New lanes after a refused step: when a streaming writer opens them, and how long other calls wait for them."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from contract.tools import plain_spec, step

import relive
from relive import errors
from relive.service import Streaming, connect, serve
from relive.service.client import deadlines, remote_core, remote_writer, streamed_core
from relive.service.client.streamed_core import StreamedWriterCore
from relive.service.server.write_session import WriteSession
from service.gates import until
from service.refused import LOOPBACK, NOT_HELD, fails, served
from service.refused import patient as patient


def test_calls_wait_once_for_new_lanes_and_never_past_their_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that drains opens no stream: the writer waits for the next server, and the other calls go on."""
    monkeypatch.setattr(streamed_core, "LANES_S", 1.0)
    monkeypatch.setattr(remote_core, "_NO_WAIT_S", 0.4)  # a busy machine pauses a call that does not wait
    waits: list[float] = []
    cutoffs: list[float] = []
    table = relive.Table(plain_spec(), 1000, relive.Index(), max_lanes=1)
    with table, serve({"t": table}, LOOPBACK) as server, connect(server.address + "/t", timeout_s=600.0) as remote:
        writer = remote.writer(streaming=Streaming(linger_s=0.0))
        core: Any = writer._core
        wait, cutoff = core._wait, remote_core.cutoff
        writer.append(**step(0, 1))
        writer.flush()
        assert len(remote) == 1  # opens the stream of the calls
        server.drain()
        writer.append(**step(7, 8))
        fails(writer.flush, errors.SeamMismatch)
        writer.append(**step(9, 10))
        monkeypatch.setattr(core, "_wait", lambda done, seconds: [waits.append(seconds), wait(done, seconds)])
        monkeypatch.setattr(remote_core, "cutoff", lambda seconds: [cutoffs.append(seconds), cutoff(seconds)][1])
        for _ in range(2):
            remote.sample(1, timeout_s=0.0)
        assert not any(waits) and cutoffs == [0.0, 0.0]
        for _ in range(3):
            assert len(remote) == 1
        assert sum(seconds > 0.0 for seconds in waits) == 1 and max(waits) <= 1.0
        assert cutoffs[2] <= 599.5 and cutoffs[3:] == [600.0, 600.0]  # the wait is a part of the call's time
        monkeypatch.setattr(remote_writer, "CLOSE_S", 0.0)
        monkeypatch.setattr(deadlines, "MIN_REPLY_S", 0.1)
        fails(writer.close, errors.DeadlineExceeded)


def test_a_handle_waits_for_the_new_lanes_of_each_lost_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that waited in vain for lanes says nothing of the lanes after them."""
    with served() as remote, remote.writer(streaming=Streaming(linger_s=30.0)) as writer:
        core: Any = writer._core
        monkeypatch.setattr(streamed_core, "LANES_S", 0.0)
        for stored in range(0, 8, 2):
            writer.append(**step(0, 1))
            writer.append(**step(7, 8))
            fails(writer.flush, errors.SeamMismatch)
            writer.append(**step(3, 4))
            len(remote)
            writer.flush()
            assert core._lanes_by is None and len(remote) == stored + 2
            writer.append(**step(9, 8))
            fails(writer.flush, errors.SeamMismatch)


def test_a_call_before_the_next_step_takes_nothing_from_the_wait_for_its_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    """While no step waits for new lanes, no lanes are being opened."""
    with served() as remote, remote.writer(streaming=Streaming(linger_s=30.0)) as writer:
        writer.append(**step(0, 1))
        writer.append(**step(7, 8))
        fails(writer.flush, errors.SeamMismatch)
        monkeypatch.setattr(streamed_core, "LANES_S", 0.0)
        assert len(remote) == 1
        monkeypatch.setattr(streamed_core, "LANES_S", 600.0)
        writer.append(**step(3, 4))
        assert len(remote) == 2


def test_new_lanes_are_opened_until_the_deadline_of_the_handle(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long the server may wait for the limiter is no deadline for the cut of the old lanes and a handshake."""
    table, left = relive.Table(plain_spec(), 1000, relive.Index(), max_lanes=1), []
    with table, serve({"t": table}, LOOPBACK) as server, connect(server.address + "/t", timeout_s=600.0) as remote:
        with remote.writer(streaming=NOT_HELD) as writer:
            core: Any = writer._core
            opens = core._open

            def open_(ends: float, *some: Any, **more: Any) -> Any:
                left.append(ends - time.monotonic())
                return opens(ends, *some, **more)

            monkeypatch.setattr(core, "_open", open_)
            for _ in range(2):
                writer.append(**step(0, 1))
                writer.append(**step(7, 8))
                fails(writer.flush, errors.SeamMismatch)
            assert len(left) == 1 and left[0] > 300.0


def test_a_step_that_was_given_up_before_it_was_sent_opens_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its policy version may be older than one that was given up with it."""
    next_message, apply = StreamedWriterCore._next_message, WriteSession._apply
    number, is_taken, may_refuse = [0], threading.Event(), threading.Event()

    def taken(core: Any) -> Any:
        told = next_message(core)
        if core._sent and core._sent[-1].sequence == number[0]:
            number[0] = 0
            is_taken.set()
            until(lambda: core._stream is None)
        return told

    def slow(session: WriteSession, header: Any, body: Any) -> Any:
        assert may_refuse.wait(60.0)
        return apply(session, header, body)

    with served() as remote, remote.writer(streaming=Streaming(max_rows=1, linger_s=30.0)) as writer:
        writer.set_policy_version(3)
        writer.append(**step(0, 1))
        writer.flush()
        number[0] = writer._core._sequence + 2
        monkeypatch.setattr(StreamedWriterCore, "_next_message", taken)
        monkeypatch.setattr(WriteSession, "_apply", slow)
        writer.append(**step(7, 8))  # will be refused
        writer.append(**step(8, 9))
        assert is_taken.wait(60.0)
        writer.set_policy_version(4)  # stays in the outbox
        may_refuse.set()
        fails(writer.flush, errors.SeamMismatch)
        key = int(writer.append(**step(9, 10)))
        assert remote.gather([key], columns=["policy_version"])["policy_version"].tolist() == [4]
