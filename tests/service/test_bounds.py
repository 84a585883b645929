"""Bounds of a server: memory of requests, answers that are not read, silent connections and peers that are gone."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from contract.tools import plain_spec, prioritized, write_steps

import relive
from relive import errors
from relive.service import ServerOptions, connect, serve
from relive.service.server.budget import FREE_BYTES, Budget
from relive.service.wire.sockets import heard_s, is_of_port, peer_in, peer_of, peers_of, tcp_sockets
from service.doors import Stream, tokens_for
from service.proxy import Proxy

LOOPBACK = "grpc://127.0.0.1:0"
MIB = 1 << 20


def never() -> bool:
    return False


@pytest.fixture
def table() -> Iterator[relive.Table]:
    with relive.Table(plain_spec(), 200, prioritized(), max_lanes=50) as one:
        with one.writer() as writer:
            write_steps(writer, 0, 20)
        yield one


def eventually(holds: Any, seconds: float = 20.0) -> bool:
    """Whether it holds before the time is over."""
    ends = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > ends:
            return False
        time.sleep(0.02)
    return True


# ---- a budget --------------------------------------------------------------------------------------------------------


@contextmanager
def taken(budget: Budget, client: str, num_bytes: int, timeout_s: float, gone: Any) -> Iterator[None]:
    budget.take(client, num_bytes, timeout_s, gone)
    try:
        yield
    finally:
        budget.give(client, num_bytes)


def test_small_requests_are_free_and_large_ones_are_refused() -> None:
    budget = Budget("b", 4 * MIB, 2 * MIB)
    with taken(budget, "a", FREE_BYTES - 1, 0.0, never):
        assert budget.used == 0
    with pytest.raises(errors.InvalidConfig, match="at most 2097152 bytes"), taken(budget, "a", 3 * MIB, 0.0, never):
        pass
    with taken(budget, "a", 2 * MIB, 0.0, never):
        assert (budget.used, budget.used_by("a"), budget.used_by("b")) == (2 * MIB, 2 * MIB, 0)
        with pytest.raises(errors.DeadlineExceeded), taken(budget, "a", 2 * MIB, 0.05, never):
            pass
        with pytest.raises(errors.ServiceUnavailable), taken(budget, "a", 2 * MIB, 9.0, lambda: True):
            pass
        with taken(budget, "b", 2 * MIB, 0.0, never):
            assert budget.used == 4 * MIB
    assert budget.used == 0 and budget.forget_peak() == 4 * MIB and budget.forget_peak() == 0


def test_requests_go_in_order_and_a_full_share_delays_its_own_client_alone() -> None:
    budget = Budget("b", 4 * MIB, 3 * MIB)
    order: list[str] = []
    threads = []

    def ask(client: str, size: int, name: str, until: threading.Event) -> None:
        with taken(budget, client, size, 20.0, never):
            order.append(name)
            until.wait(20.0)

    def start(client: str, size: int, name: str) -> threading.Event:
        until, before = threading.Event(), len(budget._queue) + len(order)
        thread = threading.Thread(target=ask, args=(client, size, name, until))
        threads.append(thread)
        thread.start()
        assert eventually(lambda: len(budget._queue) + len(order) > before)
        return until

    first = start("a", 3 * MIB, "a1")
    assert eventually(lambda: order == ["a1"])
    second = start("a", 3 * MIB, "a2")  # waits for its own share
    third = start("b", 1 * MIB, "b1")  # does not wait
    assert eventually(lambda: order == ["a1", "b1"])
    fourth = start("c", 2 * MIB, "c1")  # waits for the total
    fifth = start("d", 1 * MIB, "d1")  # waits behind c1, although b1's byte would be enough
    third.set()
    first.set()
    assert eventually(lambda: len(order) >= 3)
    for one in (second, fourth, fifth):
        one.set()
    for thread in threads:
        thread.join(20.0)
    assert sorted(order) == ["a1", "a2", "b1", "c1", "d1"] and budget.used == 0


# ---- a server --------------------------------------------------------------------------------------------------------


def test_a_draw_is_refused_before_it_allocates(table: relive.Table) -> None:
    options = ServerOptions(max_work_bytes=64 * MIB)
    with serve({"pong": table}, LOOPBACK, options) as server, connect(f"{server.address}/pong") as remote:
        with pytest.raises(errors.InvalidConfig, match="max_work_bytes"):
            remote.draw(1 << 22)
        assert remote.sample(16).num_items == 16


def test_many_large_draws_share_the_budget(table: relive.Table) -> None:
    options = ServerOptions(max_work_bytes=48 * MIB)
    with serve({"pong": table}, LOOPBACK, options) as server, connect(f"{server.address}/pong", timeout_s=60.0) as one:
        budget = next(iter(server._hosted.values())).memory.work
        drawn: list[int] = []
        threads = [threading.Thread(target=lambda: drawn.append(len(one.draw(1 << 17).item_keys))) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60.0)
        assert drawn == [1 << 17] * 6
        assert 0 < budget.peak <= 48 * MIB and budget.used == 0


def test_an_answer_that_is_not_read_ends_its_stream() -> None:
    spec = relive.StepSpec({"frame": relive.ArraySpec((1 << 20,), "uint8")})
    with relive.Table(spec, 64, max_lanes=1) as table, table.writer() as writer:
        writer.extend(frame=np.zeros((40, 1 << 20), np.uint8))
        with serve({"t": table}, LOOPBACK) as server, Proxy(int(server.address.rpartition(":")[2])) as proxy:
            stream = Stream(f"{proxy.address}/t", "call", None)
            stream.hears()
            proxy.stall(True)
            memory = server._hosted["t"].memory
            stream.say(op="sample", index=0, names=["frame"], n=200, timeout_s=1.0)
            proxy.stall(False)
            time.sleep(0.05)
            proxy.stall(True)
            assert eventually(lambda: memory.inflight.used > 200 << 20 or server.num_streams == 0)
            with connect(f"{server.address}/t") as honest:
                assert honest.sample(2).num_items == 2
            assert eventually(lambda: memory.inflight.used == 0, 30.0), "the stream is cut after its deadline"
            proxy.stall(False)


@pytest.mark.parametrize("kind", ["hold", "shard"])
def test_a_batch_drawn_ahead_may_stay_unread_longer_than_its_draw_waited(kind: str) -> None:
    """The timeout_s of its message is a slice of the wait for the limiter, and no deadline of the client."""
    spec = relive.StepSpec({"frame": relive.ArraySpec((1 << 20,), "uint8")})
    with relive.Table(spec, 64, max_lanes=1) as table, table.writer() as writer:
        writer.extend(frame=np.zeros((40, 1 << 20), np.uint8))
        with serve({"t": table}, LOOPBACK) as server:
            stream = Stream(f"{server.address}/t", kind, None)
            stream.hears()
            op = {"hold": "sample", "shard": "draw"}[kind]
            stream.say(op=op, index=0, names=["frame"], n=100, timeout_s=0.2, handed_out=0)
            assert eventually(lambda: bool(server._calls.stalled(2.0))), "the answer fills the link"
            assert server._keeper.num_cut == 0 and not server._calls.stalled(60.0)
            assert stream.hears()["live"] == 40
            stream.close()


def test_the_streams_of_one_client_are_counted(table: relive.Table, tmp_path: Any) -> None:
    tokens = tokens_for(tmp_path / "tokens.toml", "*")
    options = ServerOptions(max_streams_per_client=3, max_streams=5, reserved_streams=2)
    with serve({"pong": table}, LOOPBACK, options, tokens=tmp_path / "tokens.toml") as server:
        address = f"{server.address}/pong"
        streams = [Stream(address, "call", tokens["read"]) for _ in range(3)]
        for stream in streams:
            stream.hears()
        with pytest.raises(errors.InvalidConfig, match="streams of one client"):
            Stream(address, "call", tokens["read"]).hears()
        with pytest.raises(errors.InvalidConfig, match="the rest for admins"):
            Stream(address, "call", tokens["append"]).hears()
        admin = Stream(address, "call", tokens["admin"])
        admin.hears()
        for stream in (*streams, admin):
            stream.close()


@pytest.mark.parametrize("kind", ["call", "hold", "shard"])
def test_a_call_that_waits_for_steps_ends_with_its_client(table: relive.Table, kind: str) -> None:
    """The awaited message is never sent, and no deadline ends the wait."""
    with serve({"pong": table}, LOOPBACK) as server:
        address = f"{server.address}/pong"
        writer, waits = Stream(address, "write", None), Stream(address, kind, None)
        session, _ = writer.hears()["session"], waits.hears()
        op = {"call": "num_steps", "hold": "count", "shard": "layout"}[kind]
        waits.say(op=op, handed_out=0, after=[[session, 2**61]], timeout_s=None)
        assert eventually(lambda: server._counts.num_busy == 1)
        waits.close()
        assert eventually(lambda: server._counts.num_streams == 1), "the writer's"
        writer.close()


def test_batches_count_as_handed_out_although_the_next_draw_waits_in_vain_for_steps(table: relive.Table) -> None:
    with serve({"pong": table}, LOOPBACK) as server:
        address = f"{server.address}/pong"
        writer, hold = Stream(address, "write", None), Stream(address, "hold", None)
        session, _ = writer.hears()["session"], hold.hears()
        hold.say(op="draw", index=0, n=5, timeout_s=10.0, handed_out=0)
        assert hold.hears()["live"] == 20
        hold.say(op="draw", index=0, n=5, timeout_s=0.2, handed_out=1, after=[[session, 2**61]])
        with pytest.raises(errors.DeadlineExceeded, match="steps that this client sent before"):
            hold.hears()
        counts = next(iter(table.stats().indexes.values()))
        assert (counts.sampled, counts.in_flight) == (5, 0)
        hold.close()
        writer.close()


def test_a_server_that_closes_answers_a_call_that_waits_for_steps(table: relive.Table) -> None:
    server = serve({"pong": table}, LOOPBACK, ServerOptions(close_timeout_s=60.0))
    address = f"{server.address}/pong"
    writer, waits = Stream(address, "write", None), Stream(address, "call", None)
    session, _ = writer.hears()["session"], waits.hears()
    waits.say(op="num_steps", after=[[session, 2**61]], timeout_s=None)
    assert eventually(lambda: server._counts.num_busy == 1)
    thread = threading.Thread(target=server.close)
    thread.start()
    with pytest.raises(errors.ServiceUnavailable, match="the server closes"):
        waits.hears()
    waits.close()
    writer.close()
    thread.join(60.0)
    assert not thread.is_alive()


# ---- connections -----------------------------------------------------------------------------------------------------


def _is_cut(one: socket.socket) -> bool:
    try:
        while one.recv(4096):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


def test_a_connection_without_a_stream_is_cut(table: relive.Table) -> None:
    options = ServerOptions(idle_s=1.0)
    with serve({"pong": table}, LOOPBACK, options) as server, connect(f"{server.address}/pong") as honest:
        with socket.create_connection(("127.0.0.1", int(server.address.rpartition(":")[2])), 20.0) as silent:
            assert _is_cut(silent)
        time.sleep(1.5)
        with honest.writer() as writer:
            write_steps(writer, 20, 3)
        assert len(honest) == 23


def test_too_many_connections_lose_the_oldest_silent_ones(table: relive.Table) -> None:
    options = ServerOptions(idle_s=1000.0, max_connections=4)
    with serve({"pong": table}, LOOPBACK, options) as server, connect(f"{server.address}/pong") as honest:
        port = int(server.address.rpartition(":")[2])
        first = socket.create_connection(("127.0.0.1", port), 20.0)
        assert eventually(lambda: len(server._keeper._silent_since) == 2)
        others = [socket.create_connection(("127.0.0.1", port), 20.0) for _ in range(4)]
        assert _is_cut(first) and len(honest) == 20
        others[-1].settimeout(0.5)
        assert not _is_cut(others[-1])
        for one in (first, *others):
            one.close()


def test_connections_have_the_options_of_tcp_on_both_sides(table: relive.Table) -> None:
    with serve({"pong": table}, LOOPBACK) as server, connect(f"{server.address}/pong") as remote:
        port = int(server.address.rpartition(":")[2])

        def set_on() -> list[tuple[int, ...]]:
            found = []
            for one in tcp_sockets():
                try:
                    if port not in (one.getpeername()[1], one.getsockname()[1]):
                        continue
                except OSError:
                    continue
                names = "TCP_KEEPIDLE TCP_KEEPINTVL TCP_KEEPCNT TCP_USER_TIMEOUT".split()
                alive = one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                found.append((alive, *(one.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names)))
            return found

        assert len(remote) == 20
        mark = remote.core.connection.link.mark
        wanted = [(1, 5, 3, 3, 15_000), (1, 5, 3, 3, mark)]
        assert 15_000 < mark < 16_000 and eventually(lambda: sorted(set_on()) == wanted), set_on()


def test_two_servers_of_a_process_on_one_port_leave_each_other_their_connections(table: relive.Table) -> None:
    with serve({"pong": table}, LOOPBACK) as server, connect(f"{server.address}/pong") as remote:
        port = int(server.address.rpartition(":")[2])
        assert len(remote) == 20
        other = serve({"pong": table}, f"grpc://127.0.0.2:{port}")
        with connect(f"{other.address}/pong") as beside, remote.writer() as writer:
            assert len(beside) == 20
            for one in (server, other):
                one._keeper.look()
                assert len(one._keeper._silent_since) == 1, "its own client"
            other.close()
            write_steps(writer, 20, 3)  # a writer whose connection was cut would raise
        assert len(remote) == 23


@pytest.mark.parametrize(
    ("text", "peer"),
    [
        ("ipv4:127.0.0.1:4711", ("127.0.0.1", 4711)),
        ("ipv6:%5B::1%5D:4711", ("::1", 4711)),
        ("ipv6:[::1]:4711", ("::1", 4711)),
        ("ipv6:[::ffff:127.0.0.1]:4711", ("127.0.0.1", 4711)),
        ("ipv6:[fe80::1%25eth0]:4711", ("fe80::1", 4711)),
        ("unix:/a/b", None),
        ("", None),
    ],
)
def test_a_peer_as_grpc_writes_it(text: str, peer: Any) -> None:
    assert peer_in(text) == peer


def test_a_server_finds_the_sockets_of_its_peers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as one:
        assert peer_of(one) == ("127.0.0.1", listener.getsockname()[1])


@pytest.mark.parametrize(
    ("host", "finds"),
    [("127.0.0.1", True), ("127.0.0.2", False), ("[::1]", False), ("[::ffff:127.0.0.1]", True)]
    + [(one, True) for one in ("", "0.0.0.0", "[::]", "localhost")],
)
def test_a_connection_is_of_the_server_that_listens_at_its_host(host: str, finds: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            port = listener.getsockname()[1]
            assert is_of_port(port, host)(accepted) is finds and not is_of_port(port + 1, host)(accepted)


def test_a_client_of_localhost_knows_when_it_heard_its_server(table: relive.Table) -> None:
    """gRPC may take ::1, although the system resolves the name to 127.0.0.1 alone."""
    with serve({"pong": table}, "grpc://localhost:0") as server, connect(f"{server.address}/pong") as remote:
        assert len(remote) == 20
        quiet_s = heard_s(peers_of(server.address))
        assert quiet_s is not None and quiet_s < 60.0


SILENT = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
import relive
from relive.service import ServerOptions, serve
table = relive.Table(relive.StepSpec({"action": relive.ArraySpec((), "int64")}), 100)
server = serve({"t": table}, "grpc://127.0.0.1:0", ServerOptions(idle_s=1000.0))
print(server.address, flush=True)
sys.stdin.read()
server.close()
"""


def test_three_hundred_silent_connections_lock_out_no_client() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", SILENT], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        port = int(address.rpartition(":")[2])
        with connect(f"{address}/t", timeout_s=60.0) as honest:
            silent = [socket.create_connection(("127.0.0.1", port), 20.0) for _ in range(300)]
            with honest.writer() as writer:
                writer.append(action=1)
            with connect(f"{address}/t", timeout_s=60.0) as late:
                assert len(late) == 1
            for one in silent:
                one.close()
        process.communicate("", timeout=60)
        assert process.returncode == 0
