"""Calls of a server from their first byte: how many there may be, and that each of them is forgotten at its end."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from contract.tools import plain_spec, write_steps

import relive
from relive import errors
from relive.service import ServerOptions, connect, health, serve
from relive.service.server import server as servers
from relive.service.server.calls import MORE, MOST_STRANGERS
from relive.service.wire.tokens import add_token
from service.doors import tokens_for
from service.gates import until
from service.raw_http2 import RawClient

LOOPBACK = "grpc://127.0.0.1:0"
MANY = 200


@pytest.fixture
def table() -> Iterator[relive.Table]:
    with relive.Table(plain_spec(), 200, max_lanes=50) as one:
        with one.writer() as writer:
            write_steps(writer, 0, 20)
        yield one


def opened(client: RawClient, token: str | None = None) -> int:
    """A stream with its hello."""
    stream = client.open(token)
    client.describe(stream, "call", "t")
    until(lambda: client.num_bytes[stream] > 0)
    return stream


def flood(client: RawClient, most: int, token: str | None = None) -> None:
    """Begins many calls and sends nothing in them. All but `most` are refused; these wait for their client."""
    calls = {client.open(token) for _ in range(MANY)}
    until(lambda: len(client.ended & calls) >= MANY - most)
    last = client.open(token)
    until(lambda: last in client.ended)
    assert len(client.ended & calls) == MANY - most


# ---- limits ----------------------------------------------------------------------------------------------------------


def test_calls_without_a_descriptor_count_as_streams_do(table: relive.Table) -> None:
    options = ServerOptions(max_streams=8, idle_s=0.5)
    with serve({"t": table}, LOOPBACK, options) as server:
        with RawClient(server.address) as client:
            stream = opened(client)
            flood(client, 8 + MORE - 1)
            assert len(server._calls.open()) == 8 + MORE and server._guard.num_refusals > 0
            client.reset(stream)  # the connection has no stream any more
            until(lambda: client.is_cut)
        until(lambda: not server._calls.open())
        with connect(f"{server.address}/t") as honest:
            assert len(honest) == 20


def test_a_token_takes_no_place_of_another_token(table: relive.Table, tmp_path: Path) -> None:
    tokens = tokens_for(tmp_path / "tokens.toml", "*")
    options = ServerOptions(max_streams=40, max_streams_per_client=6)
    with serve({"t": table}, LOOPBACK, options, tokens=tmp_path / "tokens.toml") as server:
        with RawClient(server.address) as client:
            opened(client, tokens["read"])
            flood(client, 6 + MORE - 1, tokens["read"])
            flood(client, MOST_STRANGERS)
            opened(client, tokens["append"])
            opened(client, tokens["update"])


def test_calls_of_all_clients_leave_the_reserve_of_admins(table: relive.Table, tmp_path: Path) -> None:
    tokens = tokens_for(tmp_path / "tokens.toml", "*")
    options = ServerOptions(max_streams=10, reserved_streams=4, max_streams_per_client=10)
    with serve({"t": table}, LOOPBACK, options, tokens=tmp_path / "tokens.toml") as server:
        with RawClient(server.address) as client:
            opened(client, tokens["read"])
            flood(client, 6 + MORE - 1, tokens["read"])
            flood(client, 0, tokens["update"])
            opened(client, tokens["admin"])


def test_strangers_have_few_threads_and_take_no_place_of_a_client(table: relive.Table, tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    tokens = tokens_for(path, "*")
    with serve({"t": table}, LOOPBACK, ServerOptions(max_streams=10, idle_s=1.0), tokens=path) as server:
        with RawClient(server.address) as client:
            opened(client, tokens["read"])  # the connection stays
            flood(client, MOST_STRANGERS, "x" * 43)
            assert health(server.address).is_well
            with connect(f"{server.address}/t", token=tokens["append"]) as honest, honest.writer() as writer:
                write_steps(writer, 20, 3)
        until(lambda: not server._calls.open())
        with pytest.raises(errors.AccessDenied):
            connect(f"{server.address}/t", token="x" * 43)


def test_a_token_that_has_expired_is_one_of_a_stranger(table: relive.Table, tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    tokens_for(path, "*")
    past = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(days=1)
    old = add_token(str(path), "old", ["admin"], ["*"], past)
    with serve({"t": table}, LOOPBACK, tokens=path) as server, RawClient(server.address) as client:
        flood(client, MOST_STRANGERS, old)
        with pytest.raises(errors.ServiceUnavailable, match="as many calls as it takes"):
            connect(f"{server.address}/t", token=old, timeout_s=1.0)


def test_questions_for_the_health_of_a_server_are_bounded_and_cut(
    table: relive.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "_STALLED_S", 2.0)
    with serve({"t": table}, LOOPBACK) as server, RawClient(server.address) as client:
        opened(client)  # a connection without a stream would be cut anyway
        client.set_window(0)
        until(lambda: client.num_settings == 2)
        for _ in range(MANY):
            client.send(client.open(method="DoAction"), b"\x0a\x0drelive.health", is_last=True)
        until(lambda: len(client.ended) == MANY - MOST_STRANGERS)
        until(lambda: client.is_cut)
        until(lambda: not server._calls.open())
        assert health(server.address).is_well


# ---- the end of a call -----------------------------------------------------------------------------------------------


def send_no_descriptor(client: RawClient, stream: int) -> None:
    client.say(stream, op="num_steps")


def send_no_message(client: RawClient, stream: int) -> None:
    client.send(stream, b"\xff\xff\xff\xff")


def ask_for_no_kind(client: RawClient, stream: int) -> None:
    client.describe(stream, "no kind", "t")


def end_a_stream(client: RawClient, stream: int) -> None:
    client.describe(stream, "call", "t")
    client.half_close(stream)


def reset_a_stream(client: RawClient, stream: int) -> None:
    client.describe(stream, "call", "t")
    until(lambda: client.num_bytes[stream] > 0)
    client.reset(stream)


def cut(client: RawClient, stream: int) -> None:
    client.close()


ENDS = [RawClient.reset, RawClient.half_close, send_no_descriptor, send_no_message, ask_for_no_kind, end_a_stream]


@pytest.mark.parametrize("end", [*ENDS, reset_a_stream, cut], ids=lambda end: end.__name__)
def test_a_call_is_forgotten_however_it_ends(table: relive.Table, end: Callable[[RawClient, int], None]) -> None:
    with serve({"t": table}, LOOPBACK) as server, RawClient(server.address) as client:
        stream = client.open()
        until(lambda: len(server._calls.open()) == 1)
        end(client, stream)
        until(lambda: not server._calls.open())
        assert not server._calls._counts


def test_a_server_closes_although_calls_have_no_descriptor(table: relive.Table) -> None:
    with serve({"t": table}, LOOPBACK) as server, RawClient(server.address) as client:
        opened(client)
        for _ in range(20):
            client.open()
        until(lambda: len(server._calls.open()) == 21)
        server.close()
        until(lambda: client.is_cut)
        until(lambda: not server._calls.open())


def test_other_calls_of_flight_are_refused_and_not_counted(table: relive.Table) -> None:
    with serve({"t": table}, LOOPBACK) as server, RawClient(server.address) as client:
        calls: list[int] = [client.open(method=method) for method in ("DoPut", "Handshake")]
        until(lambda: client.ended.issuperset(calls))
        assert not server._calls.open()
