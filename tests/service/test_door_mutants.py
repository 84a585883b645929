"""Mutants of the door: each takes one rule away, and the check of that rule must then fail."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from contract.tools import plain_spec, prioritized, write_steps

import relive
from relive import errors
from relive.service import ServerOptions, connect, serve
from relive.service.client import link
from relive.service.server import keeper
from relive.service.server.budget import Budget
from relive.service.server.guard import Permit
from relive.service.server.hosting import Counts
from relive.service.wire.sockets import tcp_sockets
from relive.service.wire.tokens import add_token
from service.doors import Stream


class Place(NamedTuple):
    """A table, and the path of a file of tokens."""

    table: relive.Table
    path: Path


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with relive.Table(plain_spec(), 200, prioritized()) as table:
        with table.writer() as writer:
            write_steps(writer, 0, 20)
        yield Place(table, tmp_path / "tokens.toml")


def _raises(kind: type[errors.ReliveError], call: Callable[[], Any]) -> None:
    try:
        call()
    except kind:
        return
    raise AssertionError(f"{kind.__name__} is due")


def asks_roles(place: Place) -> None:
    token = add_token(str(place.path), "a", ["append"], ["*"])
    with serve({"t": place.table}, "grpc://127.0.0.1:0", tokens=place.path) as server:
        with connect(f"{server.address}/t", token=token) as remote:
            _raises(errors.AccessDenied, lambda: remote.sample(4))


def compares_generations(place: Place) -> None:
    token = add_token(str(place.path), "a", ["read"], ["*"])
    with serve({"t": place.table}, "grpc://127.0.0.1:0", tokens=place.path) as server:
        stream = Stream(f"{server.address}/t", "call", token)
        stream.hears()
        before = server._guard.generation
        place.path.write_text(place.path.read_text().replace('"read"', '"append"'))
        ends = time.monotonic() + 20.0
        while server._guard.generation == before and time.monotonic() < ends:
            time.sleep(0.02)

        def ask() -> None:
            try:
                stream.say(op="num_steps", timeout_s=1.0)
                stream.hears()
            except errors.AccessDenied:
                raise
            except Exception:  # the stream is cut already
                raise errors.AccessDenied from None

        _raises(errors.AccessDenied, ask)


def takes_budgets(place: Place) -> None:
    options = ServerOptions(max_work_bytes=4 << 20)
    with serve({"t": place.table}, "grpc://127.0.0.1:0", options) as server:
        with connect(f"{server.address}/t") as remote:
            _raises(errors.InvalidConfig, lambda: remote.draw(1 << 16))


def sets_keepalive(place: Place) -> None:
    with serve({"t": place.table}, "grpc://127.0.0.1:0") as server, connect(f"{server.address}/t") as remote:
        port = int(server.address.rpartition(":")[2])
        server._keeper.look()
        assert len(remote) == 20
        found = []
        for one in tcp_sockets():
            try:
                if port in {name[1] for name in (one.getpeername(), one.getsockname()) if isinstance(name, tuple)}:
                    found.append(one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
            except OSError:
                continue
        assert found == [1, 1]


def drains(place: Place) -> None:
    with serve({"t": place.table}, "grpc://127.0.0.1:0") as server:
        server.drain()
        _raises(errors.Draining, lambda: connect(f"{server.address}/t", timeout_s=1.0).close())


def _nothing(*values: Any, **named: Any) -> None: ...


MUTANTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Callable[[Place], None]]] = {
    "role not asked": (lambda patch: patch.setattr(Permit, "check", _nothing), asks_roles),
    "generation not compared": (
        lambda patch: patch.setattr(Permit, "roles", lambda permit: permit._roles),
        compares_generations,
    ),
    "budget not taken": (
        lambda patch: (patch.setattr(Budget, "take", _nothing), patch.setattr(Budget, "give", _nothing)) and None,
        takes_budgets,
    ),
    "keepalive not set": (
        lambda patch: (
            (
                patch.setattr(keeper, "keep_alive", _nothing),
                patch.setattr(link, "keep_alive_to", _nothing),
            )
            and None
        ),
        sets_keepalive,
    ),
    "drain skipped": (
        lambda patch: patch.setattr(Counts, "drains", property(lambda counts: False, _nothing), raising=False),
        drains,
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_each_rule_holds_and_its_mutant_is_found(name: str, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate, finds = MUTANTS[name]
    finds(place)
    place.path.unlink(missing_ok=True)
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        finds(place)
