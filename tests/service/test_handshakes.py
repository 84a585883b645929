"""Deaths in the middle of a TLS handshake: the server serves on, and frees the connection and its descriptor."""

from __future__ import annotations

import os
import socket
import ssl
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from contract.tools import plain_spec, write_steps

import relive
from relive.service import ClientTLS, Server, ServerOptions, ServerTLS, connect, serve
from relive.service.client.handshakes import short_reason
from relive.service.wire.sockets import is_of_port, tcp_sockets
from service.certificates import Authority, needs_openssl
from service.doors import tokens_for

pytestmark = needs_openssl


def test_certificates_are_a_cause_before_the_first_answer_alone() -> None:
    broken = OSError("Stream removed (Secure read failed (Socket closed))")
    assert "client_ca" in short_reason(broken, "grpc+tls://host:1")
    assert "client_ca" not in short_reason(broken, "grpc+tls://host:1", is_greeted=True)


KILLED = """
import socket, ssl, sys, time
one = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
context = ssl.create_default_context(cafile=sys.argv[2])
into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
talk = context.wrap_bio(into, out, server_hostname="localhost")
try:
    talk.do_handshake()
except ssl.SSLWantReadError:
    one.sendall(out.read())
    into.write(one.recv(100))  # a part of what the server says
print("in the middle", flush=True)
time.sleep(60)
"""


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ours"))


class Door:
    """A server with TLS and tokens, and an honest client that stays connected."""

    def __init__(self, server: Server, ours: Authority, token: str) -> None:
        self.server, self._ours, self._token = server, ours, token
        self.port = int(server.address.rpartition(":")[2])
        self.honest = self.connect()

    def connect(self) -> Any:
        """Another client."""
        return connect(f"{self.server.address}/pong", tls=ClientTLS(self._ours.path), token=self._token, timeout_s=20.0)

    def serves(self) -> None:
        """Asserts that it serves the client that is connected, and one that comes."""
        with self.connect() as late:
            assert len(self.honest) == len(late) == 20

    def num_connections(self) -> int:
        """The connections that the server has accepted and not freed."""
        of_server, number = is_of_port(self.port), 0
        for one in tcp_sockets():
            try:
                number += of_server(one)
            except (OSError, IndexError):
                continue
        return number


@pytest.fixture
def door(ours: Authority, tmp_path: Path) -> Iterator[Door]:
    tokens = tokens_for(tmp_path / "tokens.toml", "pong")
    options, tls = ServerOptions(idle_s=1.0), ServerTLS(*ours.issue("server"))
    with relive.Table(plain_spec(), 200) as table:
        with table.writer() as writer:
            write_steps(writer, 0, 20)
        address = "grpc+tls://127.0.0.1:0"
        with serve({"pong": table}, address, options, tls=tls, tokens=tmp_path / "tokens.toml") as server:
            made = Door(server, ours, tokens["read"])
            yield made
            made.honest.close()


def _hello(ca: str) -> bytes:
    """The first bytes of a client: its ClientHello."""
    out = ssl.MemoryBIO()
    talk = ssl.create_default_context(cafile=ca).wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        talk.do_handshake()
    return out.read()


def _half(one: socket.socket, hello: bytes) -> None:
    one.sendall(hello[: len(hello) // 2])


def _whole_then_nothing(one: socket.socket, hello: bytes) -> None:
    one.sendall(hello)


def _whole_then_noise(one: socket.socket, hello: bytes) -> None:
    one.sendall(hello)
    one.recv(64)
    one.sendall(os.urandom(4096))


def _reset(one: socket.socket, hello: bytes) -> None:
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close() sends a reset
    one.sendall(hello)
    one.recv(64)
    one.close()


def _plain_text(one: socket.socket, hello: bytes) -> None:
    one.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))


def _request(one: socket.socket, hello: bytes) -> None:
    one.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")


THOROUGH = [pytest.param(one, marks=pytest.mark.thorough) for one in (_whole_then_nothing, _whole_then_noise, _reset)]


@pytest.mark.parametrize("act", [_half, _plain_text, *THOROUGH, pytest.param(_request, marks=pytest.mark.thorough)])
def test_a_handshake_that_does_not_end(
    door: Door, ours: Authority, act: Callable[[socket.socket, bytes], None]
) -> None:
    before, hello = door.num_connections(), _hello(str(ours.path))
    strangers = [socket.create_connection(("127.0.0.1", door.port), 5.0) for _ in range(3)]
    for one in strangers:
        act(one, hello)
    door.serves()
    ends = time.monotonic() + 10.0
    while door.num_connections() > before and time.monotonic() < ends:
        time.sleep(0.05)
    assert door.num_connections() == before, "the server has freed them, although the strangers keep their ends"
    for one in strangers:
        one.close()
    door.serves()


def test_a_client_that_is_killed_in_its_handshake(door: Door, ours: Authority) -> None:
    before = door.num_connections()
    words = [sys.executable, "-c", KILLED, str(door.port), str(ours.path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "in the middle\n"
        assert door.num_connections() > before
        process.kill()
    door.serves()
    ends = time.monotonic() + 10.0
    while door.num_connections() > before and time.monotonic() < ends:
        time.sleep(0.05)
    assert door.num_connections() == before
