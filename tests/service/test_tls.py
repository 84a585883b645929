"""Servers with TLS: who connects, and what a connection that fails says."""

from __future__ import annotations

import contextlib
import gc
import pickle
import socket
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from contract.tools import plain_spec, write_steps

import relive
from relive import errors
from relive.service import ClientTLS, Door, ServerTLS, connect, serve
from relive.service.wire import transport
from relive.service.wire.tokens import add_token
from service.certificates import Authority, needs_openssl
from service.gates import until

pytestmark = needs_openssl
TLS, PLAIN = "grpc+tls://127.0.0.1:0", "grpc://127.0.0.1:0"


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("others"), "others")


@pytest.fixture
def table() -> Iterator[relive.Table]:
    with relive.Table(plain_spec(), 200) as one:
        with one.writer() as writer:
            write_steps(writer, 0, 20)
        yield one


def test_a_table_over_tls(table: relive.Table, ours: Authority) -> None:
    with serve({"pong": table}, TLS, tls=ServerTLS(*ours.issue("server"))) as server:
        assert server.address.startswith("grpc+tls://127.0.0.1:")
        with connect(f"{server.address}/pong", tls=ClientTLS(ours.path)) as remote:
            assert remote.sample(4).num_items == 4
            with pickle.loads(pickle.dumps(remote)) as again:
                assert len(again) == 20
            with remote.writer() as writer:
                write_steps(writer, 20, 3)
            assert len(remote) == 23


@pytest.mark.parametrize(
    ("days", "host", "trusts", "reason", "way_out"),
    [
        (-1, "IP:127.0.0.1", True, "expired", "renew"),
        (30, "DNS:elsewhere", True, "not in peer certificate", "a name that"),
        (30, "IP:127.0.0.1", False, "issuer", r"ClientTLS\(ca=\)"),
    ],
)
def test_a_certificate_that_does_not_fit(
    table: relive.Table,
    ours: Authority,
    others: Authority,
    days: int,
    host: str,
    trusts: bool,
    reason: str,
    way_out: str,
) -> None:
    with serve({"pong": table}, TLS, tls=ServerTLS(*ours.issue("server", days=days, host=host))) as server:
        with pytest.raises(errors.HandshakeFailed, match=way_out) as caught:
            connect(f"{server.address}/pong", timeout_s=20.0, tls=ClientTLS((ours if trusts else others).path))
        assert reason in caught.value.reason


def test_a_certificate_that_signed_itself(table: relive.Table, ours: Authority) -> None:
    key = next(ours.folder.glob("ca.key"))
    with serve({"pong": table}, TLS, tls=ServerTLS(ours.path, key)) as server:
        with pytest.raises(errors.HandshakeFailed, match=r"ClientTLS\(ca=\)"):
            connect(f"{server.address}/pong", timeout_s=20.0)


def test_plain_text_to_tls_and_the_other_way_round(table: relive.Table, ours: Authority) -> None:
    with serve({"pong": table}, TLS, tls=ServerTLS(*ours.issue("server"))) as server:
        with pytest.raises(errors.ServiceUnavailable, match=r"grpc\+tls://"):
            connect(f"{server.address.replace('+tls', '')}/pong", timeout_s=1.0)
    with serve({"pong": table}, PLAIN) as server:
        with pytest.raises(errors.HandshakeFailed, match="begins with grpc://"):
            connect(f"{server.address.replace('grpc', 'grpc+tls')}/pong", timeout_s=20.0, tls=ClientTLS(ours.path))
        with pytest.raises(errors.InvalidConfig, match=r"grpc\+tls"):
            connect(f"{server.address}/pong", tls=ClientTLS(ours.path))


@pytest.mark.parametrize(
    ("scheme", "error"), [("grpc+tls", errors.HandshakeFailed), ("grpc", errors.ServiceUnavailable)]
)
def test_an_error_of_connect_that_is_kept_keeps_no_connection(scheme: str, error: type[errors.ReliveError]) -> None:
    """gRPC would go on connecting, and write a line on stderr for each try. A notebook keeps the last error."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        answers = threading.Thread(target=_answers_plainly, args=(listener,))
        answers.start()
        before = transport.all_of(transport._objects)
        gc.disable()
        try:
            with pytest.raises(error) as kept:
                connect(f"{scheme}://127.0.0.1:{listener.getsockname()[1]}/pong", timeout_s=2.0)
            until(lambda: {id(one) for one in transport.all_of(transport._objects)} <= {id(one) for one in before})
            left = weakref.ref(kept.value)
            assert kept.value.__traceback__ is not None
            del kept
            until(lambda: left() is None)  # without a collection
        finally:
            gc.enable()
            listener.shutdown(socket.SHUT_RDWR)
            answers.join()


def _answers_plainly(listener: socket.socket) -> None:
    """As a server of another protocol."""
    with contextlib.suppress(OSError):
        while True:
            with listener.accept()[0] as one:
                one.recv(2000)
                one.sendall(b"HTTP/1.1 400 Bad\r\n\r\n")


def test_a_server_that_asks_for_certificates(table: relive.Table, ours: Authority, others: Authority) -> None:
    with serve({"pong": table}, TLS, tls=ServerTLS(*ours.issue("server"), ours.path)) as server:
        address = f"{server.address}/pong"
        with connect(address, tls=ClientTLS(ours.path, *ours.issue("actor", host=""))) as remote:
            assert remote.sample(4).num_items == 4
            remote.clear()
        with pytest.raises(errors.ServiceUnavailable, match=r"ClientTLS\(certificate=, key=\)"):
            connect(address, timeout_s=1.0, tls=ClientTLS(ours.path))
        for wrong in (others.issue("actor", host=""), ours.issue("actor", host="", days=-1)):
            with pytest.raises(errors.ServiceUnavailable):
                connect(address, timeout_s=1.0, tls=ClientTLS(ours.path, *wrong))


def test_a_certificate_has_the_roles_of_its_name(table: relive.Table, ours: Authority, tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    token = add_token(str(path), "admin", ["admin"], ["*"])
    path.write_text(
        path.read_text() + '\n[tokens.c]\ncertificate = "actor"\ngrants = [{ roles = ["read"], tables = ["*"] }]\n'
    )
    with serve({"pong": table}, TLS, tls=ServerTLS(*ours.issue("server"), ours.path), tokens=path) as server:
        address = f"{server.address}/pong"
        actor = ClientTLS(ours.path, *ours.issue("actor", host=""))
        with connect(address, tls=actor) as remote:
            assert len(remote) == 20
            with pytest.raises(errors.AccessDenied):
                remote.clear()
        with pytest.raises(errors.AccessDenied):
            connect(address, tls=ClientTLS(ours.path, *ours.issue("a\tb", host="")))
        with pytest.raises(errors.AccessDenied), connect(address, tls=actor, token=token) as remote:
            len(remote)


def test_the_identity_of_a_certificate_is_its_first_alternative_name(
    table: relive.Table, ours: Authority, tmp_path: Path
) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text('[tokens.c]\ncertificate = "first"\ngrants = [{ roles = ["read"], tables = ["*"] }]\n')
    path.chmod(0o600)
    with serve({"pong": table}, TLS, tls=ServerTLS(*ours.issue("server"), ours.path), tokens=path) as server:
        for names, is_let_in in (("DNS:first,DNS:second", True), ("DNS:second,DNS:first", False)):
            access = ClientTLS(ours.path, *ours.issue("first", host=names))
            with contextlib.nullcontext() if is_let_in else pytest.raises(errors.AccessDenied):
                with connect(f"{server.address}/pong", tls=access) as remote:
                    assert len(remote) == 20


def test_an_identity_with_control_characters_has_no_role(table: relive.Table, ours: Authority) -> None:
    with serve({"pong": table}, TLS, tls=ServerTLS(*ours.issue("server"), ours.path)) as server:
        with pytest.raises(errors.AccessDenied):
            connect(f"{server.address}/pong", tls=ClientTLS(ours.path, *ours.issue("a\x07b", host="")))


def test_files_that_are_none(ours: Authority, others: Authority, tmp_path: Path) -> None:
    certificate, key = ours.issue("server")
    other = others.issue("server")[1]
    for make, match in (
        (lambda: ServerTLS(certificate, other).arguments(), "unencrypted key"),
        (lambda: ServerTLS(key, certificate).arguments(), "PEM"),
        (lambda: ServerTLS(tmp_path / "none", key).arguments(), "can be read"),
        (lambda: ClientTLS(tmp_path / "none").arguments(), "can be read"),
        (lambda: ClientTLS(ours.path, certificate), "both or none"),
        (lambda: ServerTLS(3, key), "path of a PEM file"),
    ):
        with pytest.raises(errors.InvalidConfig, match=match):
            make()


# ---- open only where it is said --------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["grpc://0.0.0.0:0", "grpc://[::]:0", "grpc://192.0.2.1:0", "grpc://no.such:0"])
def test_a_server_that_knows_no_client_stays_on_loopback(address: str, ours: Authority, tmp_path: Path) -> None:
    tls = ServerTLS(*ours.issue("server"))
    with pytest.raises(errors.InvalidConfig, match="insecure=True"):
        Door().check(address)
    with pytest.raises(errors.InvalidConfig, match="insecure=True"):
        Door(tls).check(address.replace("grpc", "grpc+tls"))
    with pytest.raises(errors.InvalidConfig, match="read on the way"):
        Door(tokens=tmp_path / "t", insecure=True).check(address)
    Door(insecure=True).check(address)
    Door(tls, tokens=tmp_path / "t").check(address.replace("grpc", "grpc+tls"))
    Door(ServerTLS(*ours.issue("server"), ours.path)).check(address.replace("grpc", "grpc+tls"))


@pytest.mark.parametrize(
    "address", ["grpc://127.0.0.1:0", "grpc://[::1]:0", "grpc://localhost:0", "grpc://127.1.2.3:1"]
)
def test_loopback_stays_open(address: str) -> None:
    Door().check(address)
    with pytest.raises(errors.InvalidConfig, match="without"):
        Door().check(address.replace("grpc", "grpc+tls"))


def test_serve_asks_the_door_before_it_listens(table: relive.Table) -> None:
    with pytest.raises(errors.InvalidConfig, match="insecure=True"):
        serve({"pong": table}, "grpc://0.0.0.0:0")
