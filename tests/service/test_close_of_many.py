"""close() of streaming writers on a server that hangs: one deadline for all their threads, whatever these wait for."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any, final

import pytest

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from contract.tools import plain_spec, step

import relive
from relive import errors
from relive.service import Streaming, connect, serve
from relive.service.client import streamed_core
from relive.service.server.hosting import Hosted
from service.gates import until
from service.proxy import Proxy

NUM_WRITERS = 12


@pytest.fixture
def link() -> Iterator[Proxy]:
    with relive.Table(plain_spec(), 500, max_lanes=64) as table, serve({"t": table}, "grpc://127.0.0.1:0") as server:
        with Proxy(int(server.address.rpartition(":")[2])) as one:
            yield one


@final
class Clock:
    """The clock of the writers, which waits for threads set forward."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead_s


@final
class Waits:
    """A thread of a writer that waits for the server and hears no interrupt, as in a try to connect."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def is_alive(self) -> bool:
        return True

    def join(self, timeout: float) -> None:
        self._clock.ahead_s += timeout


@pytest.mark.parametrize("threads", [("_sender",), ("_receiver",), ("_sender", "_receiver")])
def test_close_of_a_handle_waits_for_the_threads_of_all_writers_once(
    link: Proxy, monkeypatch: pytest.MonkeyPatch, threads: tuple[str, ...]
) -> None:
    clock = Clock()
    table = connect(link.address + "/t", timeout_s=1.0)
    writers: list[Any] = [table.writer(streaming=Streaming()) for _ in range(NUM_WRITERS)]
    link.stall(True)
    for writer in writers:
        writer.append(**step(0))
    monkeypatch.setattr(streamed_core, "time", clock)
    kept = [(writer._core, {name: getattr(writer._core, name) for name in threads}) for writer in writers]
    for core, _ in kept:
        for name in threads:
            setattr(core, name, Waits(clock))
    with pytest.raises(errors.Unacknowledged):
        table.close()
    assert clock.ahead_s <= streamed_core._END_S
    assert all(writer.closed for writer in writers)
    until(lambda: not any(thread.is_alive() for _, own in kept for thread in own.values()))


def test_a_writer_that_closes_late_ends_the_opening_of_its_new_lanes(
    link: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server takes the stream, and its hello does not come."""
    monkeypatch.setattr("relive.service.client.remote_writer.CLOSE_S", 1.0)
    asked, goes_on, hello = threading.Event(), threading.Event(), Hosted.hello

    def hangs(hosted: Hosted) -> Any:
        asked.set()
        goes_on.wait(600.0)
        return hello(hosted)

    with connect(link.address + "/t", timeout_s=600.0) as table:
        writer: Any = table.writer(streaming=Streaming())
        monkeypatch.setattr(Hosted, "hello", hangs)
        try:
            writer._core._stream.interrupt()
            until(lambda: writer._core._stream is None)
            with pytest.raises(errors.Unacknowledged):
                writer.flush()
            writer.append(**step(1))
            assert asked.wait(60.0)
            with pytest.raises(errors.Unacknowledged, match="not acknowledged"):
                writer.close()
            assert not table.closed
            until(lambda: not writer._core._sender.is_alive())
        finally:
            goes_on.set()


def test_a_writer_that_closes_late_ends_the_wait_for_the_cut_of_its_old_lanes(
    link: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server refused a step. Then it hangs before it has cut the lanes."""
    monkeypatch.setattr("relive.service.client.remote_writer.CLOSE_S", 1.0)
    half_close = streamed_core.StreamedWriterCore._half_close

    def hang(core: Any, stream: Any) -> None:
        link.stall(True)
        half_close(core, stream)

    monkeypatch.setattr(streamed_core.StreamedWriterCore, "_half_close", hang)
    monkeypatch.setattr(streamed_core, "CLOSE_S", 600.0)
    with connect(link.address + "/t", timeout_s=600.0) as table:
        writer: Any = table.writer(streaming=Streaming())
        writer._core._queue(streamed_core.Operation({"op": "none"}, [], (0,)), 600.0)
        with pytest.raises(errors.Unacknowledged):
            writer.flush()
        writer.append(**step(1))
        sender, receiver = writer._core._sender, writer._core._receiver
        until(lambda: bool(writer._core._sent))
        assert receiver.is_alive()
        with pytest.raises(errors.Unacknowledged, match="not acknowledged"):
            writer.close()
        assert not table.closed
        until(lambda: not sender.is_alive() and not receiver.is_alive())
        link.stall(False)
