"""Calls over slow links end at their deadline, by Ctrl-C and by close(), and leave other streams alone if they can."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

import relive
from relive import errors
from relive.service import RemoteTable, Server, Streaming, connect, serve
from relive.service.client import connection as connection_of
from relive.service.client import link as link_of
from relive.service.client.connection import Connection
from relive.service.client.exchange import Exchange, Watch
from relive.service.client.remote_writer import SyncWriterCore
from relive.service.wire.sockets import cut, is_stuck, new_mark, peer_of, tcp_sockets
from service.gates import until
from service.proxy import Proxy

LOOPBACK = "grpc://127.0.0.1:0"
BUFFER = 4096
BIG = np.zeros(2_500_000, np.int64)
ROW = 1000  # bytes of a wide row


@pytest.fixture
def table() -> Iterator[relive.Table]:
    with relive.Table(relive.StepSpec({"x": relive.ArraySpec((), "int64")}), 6_000_000, max_lanes=8) as one:
        yield one


@pytest.fixture
def server(table: relive.Table) -> Iterator[Server]:
    with serve({"t": table}, LOOPBACK) as one:
        yield one


@pytest.fixture
def link(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A link with small buffers. The system ends a connection that is full for 90 s, later than until() fails."""
    marks = itertools.count(90_000)
    monkeypatch.setattr(connection_of, "new_mark", lambda taken: next(marks))
    with Proxy(int(server.address.rpartition(":")[2]), BUFFER) as one:
        yield one


@pytest.fixture
def cuts(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """An entry for each time that a client looks for a connection to cut."""
    found: list[None] = []
    cut = Connection.cut

    def noted(one: Connection) -> None:
        found.append(None)
        cut(one)

    monkeypatch.setattr(Connection, "cut", noted)
    return found


def fill(link: Proxy) -> None:
    """Stalls the link, whose buffers have less room than a server gives a new connection: bytes wait in the client."""
    for one in tcp_sockets():
        with contextlib.suppress(OSError, ValueError):
            if peer_of(one) == ("127.0.0.1", link.port):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
    link.stall(True)


class Doing:
    """A call in a thread, and its error."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.error: BaseException | None = None
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._call()
        except errors.ReliveError as problem:
            self.error = problem

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()


# ---- a link that takes nothing more ----------------------------------------------------------------------------------


CALLS: dict[str, Callable[[RemoteTable, Any], Any]] = {
    "extend": lambda remote, writer: writer.extend(x=BIG, timeout_s=1.0),
    "gather": lambda remote, writer: remote.gather(BIG),
    "delete": lambda remote, writer: remote.delete(BIG),
}


@pytest.mark.parametrize("what", CALLS)
def test_a_call_in_the_middle_of_its_message_ends_at_its_deadline(link: Proxy, what: str) -> None:
    with connect(link.address + "/t", timeout_s=30.0) as remote, connect(link.address + "/t") as other:
        writer, kept = remote.writer(), other.writer()
        writer.append(x=1)
        kept.append(x=1)
        remote.core.timeout_s = 1.0
        fill(link)
        doing = Doing(lambda: CALLS[what](remote, writer))
        until(lambda: doing.is_over)  # while the link takes nothing: without a cut the call would wait for ever
        assert isinstance(doing.error, errors.ServiceUnavailable) and "no answer in time" in doing.error.reason
        link.stall(False)
        kept.append(x=2)  # the connection of another handle to this server is whole
        remote.core.timeout_s = 30.0
        assert len(remote) < len(BIG)  # and the handle goes on
        assert link.num_connections == 3
        kept.close()


def test_the_bytes_that_wait_in_a_connection_that_is_cut_are_dropped() -> None:
    """The server learns of the end at once, and the bytes take no time of a slow link."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sends = socket.create_connection(listener.getsockname())
        reads, _ = listener.accept()
        with reads:
            sends.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    sends.send(bytes(1 << 16))
            name = sends.getsockname()
            assert cut(lambda one: one.getsockname() == name, drops_unsent=True) == 1
            sends.close()  # as gRPC does

            def is_reset() -> bool:
                return reads.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNRESET

            until(is_reset)


def test_ctrl_c_ends_a_message_that_is_being_sent(link: Proxy, cuts: list[None]) -> None:
    with connect(link.address + "/t", timeout_s=1000.0) as remote:
        writer = remote.writer()
        writer.append(x=1)
        stream, one = writer._core._stream, remote.core.connection
        waits = is_stuck(one.link.addresses(), one.link.mark)
        fill(link)

        def interrupt() -> None:
            until(lambda: stream._is_writing and any(map(waits, tcp_sockets())))
            signal.raise_signal(signal.SIGINT)

        doing = Doing(interrupt)
        with pytest.raises(KeyboardInterrupt):
            writer.extend(x=BIG)
        assert cuts
        until(lambda: doing.is_over)
        link.stall(False)
        assert len(remote) < len(BIG)


def test_close_ends_a_message_that_another_thread_sends(link: Proxy) -> None:
    remote = connect(link.address + "/t", timeout_s=1000.0)
    writer = remote.writer()
    writer.append(x=1)
    stream, watch = writer._core._stream, remote.core.connection._watch
    fill(link)
    doing = Doing(lambda: writer.extend(x=BIG))
    until(lambda: stream._is_writing)
    remote.close()
    until(lambda: doing.is_over)
    assert doing.error is not None
    until(lambda: not watch._thread.is_alive())
    writer.close()
    link.stall(False)


def test_a_call_whose_connection_ends_with_a_writer_that_closes_says_that_the_table_is_closed(
    link: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = connect(link.address + "/t", timeout_s=1000.0)
    writer, one = remote.writer(), remote.core.connection
    doing = Doing(lambda: remote.sample(1))
    until(lambda: any(stream.is_in_use for stream in one.streams()))

    def takes_the_connection(core: Any, ends: float) -> None:
        link.cut()
        until(lambda: doing.is_over)

    monkeypatch.setattr(SyncWriterCore, "close_by", takes_the_connection)
    remote.close()
    assert isinstance(doing.error, errors.TableClosed)
    monkeypatch.undo()
    writer.close()


def test_the_addresses_of_a_server_are_those_of_the_last_time_it_was_reached(
    link: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, port = [frozenset[tuple[str, int]]()], link.port
    monkeypatch.setattr(link_of, "peers_of", lambda location: found[0])
    with connect(link.address + "/t", timeout_s=20.0) as remote:
        one = remote.core.connection
        assert not one.link.addresses(), "a name server that was gone"
        for host in ("127.0.0.1", "127.0.0.2"):
            found[0] = frozenset({(host, port)})
            link.cut()
            until(lambda: not any(stream.is_in_use for stream in one.streams()))
            with contextlib.suppress(errors.ServiceUnavailable):
                len(remote)
            assert len(remote) == 0 and one.link.addresses() == found[0]
        found[0] = frozenset()
        link.cut()
        with contextlib.suppress(errors.ServiceUnavailable):
            len(remote)
        assert len(remote) == 0 and one.link.addresses() == {("127.0.0.2", port)}


@pytest.mark.parametrize("ends_by", ["deadline", "close", "Ctrl-C"])
def test_a_call_ends_that_opens_its_stream_behind_a_message(link: Proxy, ends_by: str) -> None:
    with connect(link.address + "/t", timeout_s=1000.0) as remote:
        writer, one = remote.writer(), remote.core.connection
        writer.append(x=1)
        stream, waits = writer._core._stream, is_stuck(one.link.addresses(), one.link.mark)
        fill(link)
        sending = Doing(lambda: writer.extend(x=BIG))
        until(lambda: stream._is_writing and any(map(waits, tcp_sockets())))
        if ends_by == "deadline":
            remote.core.timeout_s = 1.0

        def is_opening() -> bool:
            return any(other._is_writing for other in tuple(one._watch._streams) if other is not stream)

        if ends_by == "Ctrl-C":

            def interrupt() -> None:
                until(is_opening)
                signal.raise_signal(signal.SIGINT)

            doing = Doing(interrupt)
            with pytest.raises(KeyboardInterrupt):
                remote.writer()
        else:
            doing = Doing(remote.writer)
            if ends_by == "close":
                until(is_opening)
                remote.close()
        until(lambda: doing.is_over)
        wanted = {"deadline": errors.ServiceUnavailable, "close": errors.TableClosed, "Ctrl-C": type(None)}
        assert isinstance(doing.error, wanted[ends_by])
        assert ends_by != "deadline" or "no answer in time" in str(doing.error)
        until(lambda: sending.is_over)
        assert len(one._watch._streams) == 0 and one.streams() == []
        link.stall(False)


def test_a_message_that_waits_for_a_server_that_hangs_ends_and_the_handle_goes_on(server: Server) -> None:
    with Proxy(int(server.address.rpartition(":")[2])) as link, connect(link.address + "/t") as remote:
        writer = remote.writer()
        link.stall(True)
        with pytest.raises(errors.ServiceUnavailable, match="no answer in time"):
            writer.extend(x=BIG, timeout_s=1.0)
        link.stall(False)
        writer.append(x=1)


def test_a_write_that_waits_for_the_room_of_a_server_costs_no_connection() -> None:
    """The system has sent all that gRPC gave it: only the write ends, at once."""
    spec = relive.StepSpec({"x": relive.ArraySpec((1_000_000,), "uint8")})
    index = relive.Index(limiter=relive.Queue(1), max_times_sampled=1)
    row = np.zeros(1_000_000, np.uint8)
    with relive.Table(spec, 4, index) as table, serve({"t": table}, LOOPBACK) as server:
        with (
            Proxy(int(server.address.rpartition(":")[2])) as link,
            connect(link.address + "/t", timeout_s=1000.0) as remote,
        ):
            writer, one = remote.writer(streaming=Streaming(max_in_flight=1000)), remote.core.connection
            writer.append(x=row)
            writer.flush()
            stream, waits = writer._core._stream, is_stuck(one.link.addresses(), one.link.mark)

            for _ in range(60):
                writer.append(x=row)
            seen = list[bool]()

            def is_held() -> bool:
                seen.append(stream._is_writing and not any(map(waits, tcp_sockets())))
                return len(seen) > 40 and all(seen[-40:])

            until(is_held)
            stream.begin(time.monotonic())  # its deadline
            until(lambda: not stream._is_writing)
            with pytest.raises(errors.Unacknowledged):
                writer.flush()
            assert len(remote) == 1
            assert link.num_connections == 1


def test_a_full_connection_is_known(link: Proxy) -> None:
    with connect(link.address + "/t", timeout_s=1000.0) as remote:
        writer, one = remote.writer(), remote.core.connection
        writer.append(x=1)
        assert not one.link.is_full()
        fill(link)
        doing = Doing(lambda: writer.extend(x=BIG))
        until(one.link.is_full)
        with pytest.raises(errors.ServiceUnavailable):
            one.check_time(time.monotonic())
        one.check_time(time.monotonic() + 60.0)
        link.stall(False)
        until(lambda: doing.is_over)
        until(lambda: not one.link.is_full())
        one.check_time(time.monotonic())


def test_open_handles_have_different_marks(server: Server) -> None:
    with connect(server.address + "/t") as kept:
        marks = set()
        for _ in range(1001):
            one = Connection(server.address + "/t", None)
            marks.add(one.link.mark)
            one.close()
        assert kept.core.connection.link.mark not in marks and len(marks) == 998


def test_a_mark_that_is_taken_goes_to_no_other_handle() -> None:
    every = range(15_001, 16_000)
    assert all(new_mark(set(every) - {one}) == one for one in (15_001, 15_444, 15_999))
    assert new_mark(every) in every


# ---- the second look -------------------------------------------------------------------------------------------------


class Full:
    """A stream whose transport takes nothing more, and does not end a write when it is cancelled."""

    def __init__(self) -> None:
        self.began, self.goes_on = threading.Event(), threading.Event()
        self.is_closed = False

    def write_metadata(self, message: bytes) -> None:
        self.began.set()
        assert self.goes_on.wait(60.0)

    def cancel(self) -> None: ...

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("ends", [False, True])
def test_a_connection_is_cut_if_a_write_goes_on_after_the_cancel(ends: bool) -> None:
    full, cuts, now = Full(), list[float](), time.monotonic()
    watch = Watch(full, cut=lambda: cuts.append(clock - now))
    stream = Exchange(full, full, watch)
    watch.sleeps, clock = False, now  # no thread: the looks are made here
    stream.begin(now + 1.0)
    doing = Doing(lambda: stream.send(b"-"))
    assert full.began.wait(60.0)
    clock += 2.0
    watch._expire(clock)
    assert stream.expired and watch._expire(clock + 0.25), "the thread must not sleep before its second look"
    if ends:
        full.goes_on.set()
        until(lambda: doing.is_over)
    for _ in range(8):
        clock += 0.1
        assert watch._expire(clock) is not ends
    assert cuts == ([] if ends else [pytest.approx(2.5, abs=0.11)])
    full.goes_on.set()
    until(lambda: doing.is_over)
    assert not watch._expire(clock + 1.0)


def test_an_interrupt_wakes_the_watch_for_its_second_look() -> None:
    full, cut = Full(), threading.Event()
    watch = Watch(full, cut=cut.set)
    stream = Exchange(full, full, watch)
    doing = Doing(lambda: stream.send(b"-"))
    assert full.began.wait(60.0) and watch.sleeps
    stream.interrupt()
    watch.stop()  # as close() does
    assert cut.wait(60.0)
    full.goes_on.set()
    until(lambda: doing.is_over)
    until(lambda: not watch._thread.is_alive())


def test_a_stream_that_one_thread_drops_stays_with_the_thread_that_sends_on_it() -> None:
    """gRPC aborts the process if the stream is closed beside a write."""
    full, cut = Full(), threading.Event()
    watch = Watch(full, cut=cut.set)
    stream = Exchange(full, full, watch)
    doing = Doing(lambda: stream.send(b"-"))
    assert full.began.wait(60.0)
    stream.cancel()
    assert stream in watch._streams and not full.is_closed
    assert cut.wait(60.0)
    full.goes_on.set()
    until(lambda: doing.is_over)
    assert stream not in watch._streams and full.is_closed
    other = Exchange(full, full, watch)
    other.cancel()
    assert other not in watch._streams


def test_a_streaming_writer_leaves_a_block_that_is_being_sent(link: Proxy) -> None:
    with connect(link.address + "/t", timeout_s=30.0) as remote:
        writer = remote.writer(streaming=Streaming())
        writer.append(x=1)
        writer.flush()
        lost = writer._core._stream
        fill(link)
        writer.extend(x=BIG, timeout_s=1.0)
        with pytest.raises(errors.Unacknowledged):
            writer.flush()
        until(lambda: writer._core._sends_on is not lost)  # while the link takes nothing
        until(lambda: lost not in remote.core.connection._watch._streams)
        link.stall(False)
        writer.append(x=2)
        writer.flush()


def test_the_version_that_begins_a_stream_has_a_deadline(link: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    deadlines, send = list[float](), Exchange.send

    def noted(stream: Exchange, message: bytes) -> None:
        deadlines.append(stream.deadline)
        send(stream, message)

    with connect(link.address + "/t") as remote, remote.writer(streaming=Streaming()) as writer:
        writer.set_policy_version(3)
        writer.append(x=1)
        writer.flush()
        link.cut()
        with pytest.raises(errors.Unacknowledged):
            while True:
                writer.append(x=2)
                writer.flush()
        monkeypatch.setattr(Exchange, "send", noted)
        writer.append(x=3)
        writer.flush()
        assert len(deadlines) == 2 and max(deadlines) < float("inf")
        assert writer._core._stream.deadline == float("inf")


def test_the_watch_goes_on_without_a_descriptor_to_look_with(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(path: str) -> list[str]:
        raise OSError(errno.EMFILE, "no descriptor is left")

    with Proxy(int(server.address.rpartition(":")[2])) as link, connect(link.address + "/t") as remote:
        assert len(remote) == 0
        watch = remote.core.connection._watch
        assert watch._heard_s() is not None
        link.stall(True)
        with monkeypatch.context() as patch:
            patch.setattr(os, "listdir", none_left)
            doing = Doing(lambda: remote.sample(1, timeout_s=0.0))
            until(lambda: doing.is_over or not watch._thread.is_alive())
            assert doing.is_over and isinstance(doing.error, errors.ServiceUnavailable)
            assert watch._heard_s() is None and watch._moved_s() is None and remote.core.connection.quiet_s(0.0) > 0.0
        assert watch._thread.is_alive()
        link.stall(False)


def test_a_connection_is_cut_later_if_no_descriptor_was_left(link: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    listdir, refused = os.listdir, list[str]()

    def first_none(path: Any = ".") -> Any:
        if path == "/dev/fd" and stream.is_leaving and len(refused) < 2:
            refused.append(path)
            raise OSError(errno.EMFILE, "no descriptor is left")
        return listdir(path)

    with connect(link.address + "/t", timeout_s=30.0) as remote:
        writer = remote.writer()
        writer.append(x=1)
        stream = writer._core._stream
        fill(link)
        monkeypatch.setattr(os, "listdir", first_none)
        doing = Doing(lambda: writer.extend(x=BIG, timeout_s=1.0))
        until(lambda: doing.is_over)
        assert isinstance(doing.error, errors.ServiceUnavailable) and len(refused) == 2
        link.stall(False)


# ---- an answer over a slow link --------------------------------------------------------------------------------------


def test_a_reader_that_gives_up_leaves_the_writers_of_its_handle_their_lanes() -> None:
    """It is there until its deadline, which is later than the limiter's: the server must not cut it before."""
    spec = relive.StepSpec({"x": relive.ArraySpec((ROW,), "uint8")})
    with relive.Table(spec, 20_000, max_lanes=4) as table, serve({"t": table}, LOOPBACK) as server:
        with table.writer() as writer:
            writer.extend(x=np.zeros((10_000, ROW), np.uint8), truncated=True)
        cut_lanes = table.stats().cut_lanes
        with Proxy(int(server.address.rpartition(":")[2]), 1 << 16) as link:
            with connect(link.address + "/t", timeout_s=60.0) as remote:
                writer = remote.writer(streaming=Streaming())
                writer.append(x=np.zeros(ROW, np.uint8))
                writer.flush()
                link.bytes_a_second = 100_000.0
                doing = Doing(lambda: remote.sample(20_000, timeout_s=4.0))
                while not doing.is_over:
                    server._keeper.look()
                assert isinstance(doing.error, errors.ServiceUnavailable)
                link.bytes_a_second = None
                writer.append(x=np.zeros(ROW, np.uint8))
                writer.flush()
                assert server._keeper.num_cut == 0 and link.num_connections == 1
                assert table.stats().cut_lanes == cut_lanes
                writer.close()
