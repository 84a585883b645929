"""The door of a server with tokens: each call needs its role, and a token that is revoked ends its streams."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import socket
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

import pyarrow.flight as flight
from contract.tools import plain_spec, prioritized, write_steps

import relive
from relive import errors
from relive.core.roles import ROLES, needs, role_of
from relive.core.table_core import SimpleCalls
from relive.service import Server, connect, serve
from relive.service.server.streams import KINDS
from relive.service.wire.access import OPEN
from relive.service.wire.tokens import add_token, remove_token
from service.doors import Stream, tokens_for

LOOPBACK = "grpc://127.0.0.1:0"
of_the_superuser = pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser changes files of other users")


@pytest.fixture
def table() -> Iterator[relive.Table]:
    with relive.Table(plain_spec(), 200, prioritized(), max_lanes=100) as one:
        with one.writer() as writer:
            write_steps(writer, 0, 20)
        yield one


@pytest.fixture
def served(table: relive.Table, tmp_path: Path) -> Iterator[tuple[Server, dict[str, str], str]]:
    """A server of one table at two names, tokens of each role for the first one, and the path of their file."""
    path = tmp_path / "tokens.toml"
    tokens = tokens_for(path, "po?g*")
    with serve({"pong": table, "other": table}, LOOPBACK, tokens=path) as server:
        yield server, tokens, str(path)


# ---- the matrix ------------------------------------------------------------------------------------------------------

OPS = [(kind, op, role) for kind, session in KINDS.items() for op, role in session.ROLES.items()]
EXPECTED = {
    "read": {
        ("call", one)
        for one in "sample draw claim list gather num_steps num_items policy_version limiter stats".split()
    }
    | {("call", "priority_exponent"), ("parameters", "pull")}
    | {("hold", one) for one in "sample draw count back".split()}
    | {("shard", one) for one in "roots draw draws settle confirm layout offer filled free".split()},
    "append": {("call", "create"), ("call", "complete")}
    | {("write", one) for one in "append extend end abandon version".split()},
    "update": {("call", "update_priorities"), ("call", "set_policy_version")}
    | {("parameters", one) for one in "begin part commit".split()},
    "admin": {
        ("call", one)
        for one in "clear delete set_limiter set_priority_exponent check save saving cancel forget drop drain".split()
    },
}


def test_each_call_has_its_role() -> None:
    assert {role: {(kind, op) for kind, op, mine in OPS if mine == role} for role in ROLES} == EXPECTED
    assert [(kind, op) for kind, op, mine in OPS if mine not in ROLES] == [("call", "select")], "the form of columns"


def test_a_simple_call_without_a_role_cannot_be_declared() -> None:
    def call() -> None: ...

    with pytest.raises(TypeError, match="needs a role"):
        role_of(call)
    assert role_of(needs("append")(call)) == "append"
    assert all(one.__name__ or one for one in vars(SimpleCalls).values() if callable(one))


def test_the_matrix_of_roles_and_calls(served: tuple[Server, dict[str, str], str]) -> None:
    server, tokens, _ = served
    for role, token in tokens.items():
        for kind, session in KINDS.items():
            stream = Stream(f"{server.address}/pong", kind, token)
            if role not in session.roles():
                with pytest.raises(errors.AccessDenied) as caught:
                    stream.hears()
                assert caught.value.table == "pong" and caught.value.role
                continue
            stream.hears()
            for op, needed in session.ROLES.items():
                if kind == "write" or op in ("settle", "part", "drop", "drain"):
                    continue  # checked at the opening; without an answer; they end the service
                assert stream.is_denied(op=op) == (needed not in (role, "any")), (role, kind, op)
            stream.close()


@pytest.mark.parametrize("kind", KINDS)
def test_strangers_hear_the_same_at_every_table(served: tuple[Server, dict[str, str], str], kind: str) -> None:
    server, tokens, path = served
    told = set()
    asked = [(name, one) for name in ("pong", "other", "no such") for one in (None, "x" * 43, tokens["read"][:-1])]
    asked += [("other", tokens["admin"]), ("no such", tokens["admin"])]  # a token of another table is a stranger's
    for stream in [Stream(f"{server.address}/{name}", kind, token) for name, token in asked]:
        with pytest.raises(errors.AccessDenied) as caught:
            stream.hears()
        told.add((str(caught.value), caught.value.table, caught.value.role))
    assert told == {(str(errors.AccessDenied()), "", "")}


def test_a_part_of_parameters_without_the_role_is_told_at_the_commit(
    served: tuple[Server, dict[str, str], str],
) -> None:
    server, tokens, _ = served
    with connect(f"{server.address}/pong", token=tokens["read"]) as remote:
        with pytest.raises(errors.AccessDenied):
            remote.parameters.publish({"w": np.zeros(3, np.float32)}, 1)
        assert remote.parameters.pull(timeout_s=0.0) is None


def test_a_note_of_a_pull_needs_the_role_append_too(served: tuple[Server, dict[str, str], str]) -> None:
    """The serving process may count what a note says, as a run does, so readers send none."""
    server, tokens, path = served
    heard: list[Any] = []
    server.parameters("pong").listen(lambda stream, note: heard.append(note))
    with connect(f"{server.address}/pong", token=tokens["read"]) as reader:
        for note in ({"num_steps": 10**12}, {}):
            with pytest.raises(errors.AccessDenied) as caught:
                reader.parameters.pull(note=note)
            assert (caught.value.table, caught.value.role) == ("pong", "append")
        assert reader.parameters.pull() is None and reader.parameters.version == 0
    assert heard == [], "nor is the end of its stream heard"
    both = add_token(path, "actor", ["read", "append"], ["pong"])
    _settle(server)
    with connect(f"{server.address}/pong", token=both) as actor:
        assert actor.parameters.pull(note={"num_steps": 3}) is None
    assert heard[0] == {"num_steps": 3}


# ---- a handle --------------------------------------------------------------------------------------------------------


def test_a_handle_does_what_its_token_allows(served: tuple[Server, dict[str, str], str]) -> None:
    server, tokens, path = served
    address = f"{server.address}/pong"
    with connect(address, token=tokens["read"]) as reader:
        with reader.batches(4, prefetch=1) as batches:
            assert reader.sample(4).num_items == 4 and len(next(batches).item_keys) == 4
        with pytest.raises(errors.AccessDenied) as caught:
            reader.clear()
        assert (caught.value.table, caught.value.role) == ("pong", "admin")
        with pytest.raises(errors.AccessDenied):
            reader.writer()
        assert len(reader) == 20
    both = add_token(path, "actor", ["read", "append"], ["pong"])
    _settle(server)
    with connect(address, token=both) as actor, actor.writer() as writer:
        write_steps(writer, 50, 1)
        assert len(actor) == 21


def test_a_token_is_found_in_the_environment(
    served: tuple[Server, dict[str, str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, tokens, _ = served
    address, file = f"{server.address}/pong", tmp_path / "token"
    file.write_text(tokens["read"] + "\n")
    file.chmod(0o600)
    monkeypatch.setenv("RELIVE_TOKEN_FILE", str(file))
    with connect(address) as remote, pickle.loads(pickle.dumps(remote)) as again:
        assert len(again) == 20
    monkeypatch.setenv("RELIVE_TOKEN", tokens["admin"])
    with connect(address) as remote:
        remote.check()
    monkeypatch.delenv("RELIVE_TOKEN")
    monkeypatch.delenv("RELIVE_TOKEN_FILE")
    with pytest.raises(errors.AccessDenied):
        connect(address)
    with connect(address, token=file) as remote, pickle.loads(pickle.dumps(remote)) as again:
        assert len(again) == 20, "the path travels"
    file.chmod(0o644)
    with pytest.raises(errors.InvalidConfig, match="0644"):
        connect(address, token=file)
    with pytest.raises(errors.InvalidConfig, match="a file of this user"):
        connect(address, token=tmp_path / "none")


def test_a_client_without_a_token_resolves_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that does not answer hears no Ctrl-C and knows no deadline."""
    asked: list[str] = []

    def looks_up(host: str, *arguments: object, **options: object) -> list[Any]:
        asked.append(host)
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", looks_up)
    monkeypatch.delenv("RELIVE_TOKEN", raising=False)
    monkeypatch.delenv("RELIVE_TOKEN_FILE", raising=False)
    assert OPEN.call_options("grpc://replay.lab:4500") == () and not asked
    monkeypatch.setenv("RELIVE_TOKEN", "a-token-of-the-environment-that-stays-here")
    assert OPEN.call_options("grpc://replay.lab:4500") == () and asked == ["replay.lab"]


# ---- changes ---------------------------------------------------------------------------------------------------------


def _settle(server: Server) -> None:
    """Waits until the server has looked at the file again."""
    time.sleep(0.5)


def test_a_revoked_token_ends_its_streams_and_gives_back(table: relive.Table, tmp_path: Path) -> None:
    path = str(tmp_path / "tokens.toml")
    gone = add_token(path, "gone", ["read", "append"], ["*"])
    stays = add_token(path, "stays", ["read"], ["*"])
    with serve({"pong": table}, LOOPBACK, tokens=path) as server:
        address = f"{server.address}/pong"
        with contextlib.ExitStack() as stack:
            honest = stack.enter_context(connect(address, token=stays))
            remote = connect(address, token=gone, timeout_s=2.0)
            stack.callback(_closed, remote)
            writer = remote.writer()
            write_steps(writer, 50, 1)
            next(stack.enter_context(remote.batches(4, prefetch=2)))
            held = Stream(address, "call", gone)
            held.hears()
            remove_token(path, "gone")
            began = time.monotonic()
            assert held.ends()
            assert time.monotonic() - began < 5.0, "one second is the promise; a busy machine takes longer"
            assert len(honest) == 21
            with pytest.raises(errors.ReliveError):
                write_steps(writer, 50, 1)
            with pytest.raises(errors.AccessDenied):
                remote.sample(4)
        deadline = time.monotonic() + 10.0
        while server.num_streams and time.monotonic() < deadline:
            time.sleep(0.02)
        assert server.num_streams == 0
        table.writer(num_lanes=100).close()  # all lanes are free


def test_a_token_is_revoked_although_no_descriptor_was_left(
    table: relive.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "tokens.toml")
    token = add_token(path, "gone", ["read"], ["*"])
    with serve({"pong": table}, LOOPBACK, tokens=path) as server:
        cut, tries = server._guard._cut, list[Any]()

        def without_descriptors(peers: Any) -> None:
            tries.append(peers)
            if len(tries) < 3:
                raise OSError(24, "Too many open files")
            cut(peers)

        monkeypatch.setattr(server._guard, "_cut", without_descriptors)
        stream = Stream(f"{server.address}/pong", "call", token)
        stream.hears()
        remove_token(path, "gone")
        assert stream.ends() and len(tries) >= 3


def _closed(remote: Any) -> None:
    with contextlib.suppress(errors.ReliveError):
        remote.close()


def test_a_lowered_token_loses_the_role_at_once(table: relive.Table, tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    token = add_token(str(path), "actor", ["read", "admin"], ["*"])
    with serve({"pong": table}, LOOPBACK, tokens=path) as server, connect(f"{server.address}/pong", token=token) as one:
        one.check()
        path.write_text(path.read_text().replace('["read", "admin"]', '["read"]'))
        _settle(server)
        for _ in range(2):  # the stream that used the role is cut; the next one is refused
            with pytest.raises((errors.AccessDenied, errors.ServiceUnavailable)):
                one.check()
        assert len(one) == 20


def test_a_lowered_token_loses_the_lanes_of_an_idle_writer(table: relive.Table, tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    token = add_token(str(path), "actor", ["read", "append"], ["*"])
    with serve({"pong": table}, LOOPBACK, tokens=path) as server:
        stream = Stream(f"{server.address}/pong", "write", token, num_lanes=4)
        stream.hears()
        assert table.stats().num_lanes == 4
        path.write_text(path.read_text().replace('["read", "append"]', '["read"]'))
        deadline = time.monotonic() + 20.0  # earlier than the deadline of the stream itself
        while table.stats().num_lanes and time.monotonic() < deadline:
            time.sleep(0.02)
        assert table.stats().num_lanes == 0
        stream.close()


def test_an_expired_token_ends(table: relive.Table, tmp_path: Path) -> None:
    import datetime

    path = str(tmp_path / "tokens.toml")
    soon = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=2.5)
    token = add_token(path, "short", ["read"], ["*"], soon)
    with serve({"pong": table}, LOOPBACK, tokens=path) as server:
        stream = Stream(f"{server.address}/pong", "call", token)
        stream.hears()
        assert stream.ends()
        assert datetime.datetime.now(datetime.timezone.utc) >= soon
        with pytest.raises(errors.AccessDenied):
            Stream(f"{server.address}/pong", "call", token).hears()


def test_a_clock_that_is_set_back_revives_no_token(
    table: relive.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datetime

    path = str(tmp_path / "tokens.toml")
    token = add_token(path, "short", ["read"], ["*"], datetime.datetime.fromtimestamp(1.0, datetime.timezone.utc))
    with serve({"pong": table}, LOOPBACK, tokens=path) as server:
        monkeypatch.setattr(time, "time", lambda: 0.0)
        with pytest.raises(errors.AccessDenied):
            Stream(f"{server.address}/pong", "call", token).hears()


@pytest.mark.parametrize(
    "content", ["", "[tokens", "[tokens.a]\nsha256 = 3\n", "x = 1", "\xff\xfe", "x = " + "[" * 9_000]
)
def test_a_file_that_does_not_parse_changes_nothing(
    served: tuple[Server, dict[str, str], str], content: str, caplog: pytest.LogCaptureFixture
) -> None:
    server, tokens, path = served
    with caplog.at_level(logging.WARNING, "relive.service"):
        Path(path).write_text(content, encoding="latin-1")
        _settle(server)
    assert "the tokens stay as they were" in caplog.text
    with connect(f"{server.address}/pong", token=tokens["read"]) as remote:
        assert len(remote) == 20
    assert not any(token in caplog.text for token in tokens.values())


def test_a_server_refuses_a_file_that_it_cannot_use(table: relive.Table, tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    for make, expected in (
        (lambda: None, "a file that can be read"),
        (lambda: path.write_text(""), r"\[tokens.NAME\] each"),
        (lambda: path.write_text("[tok"), "TOML"),
        (lambda: path.chmod(0o640), "0640"),
    ):
        make()
        if path.exists() and expected != "0640":
            path.chmod(0o600)
        with pytest.raises(errors.InvalidConfig, match=expected):
            serve({"pong": table}, LOOPBACK, tokens=path)


def test_wrong_tokens_are_delayed_and_counted(served: tuple[Server, dict[str, str], str]) -> None:
    server, tokens, _ = served
    with connect(f"{server.address}/pong", token=tokens["read"]) as honest:
        streams = [Stream(f"{server.address}/pong", "call", f"{number:043}") for number in range(100)]
        assert honest.sample(4).num_items == 4
        for stream in streams:
            with pytest.raises(errors.AccessDenied):
                stream.hears()
        assert server._guard.num_refusals == 100
        assert honest.sample(4).num_items == 4


def test_a_header_of_a_megabyte_is_refused_by_the_transport(served: tuple[Server, dict[str, str], str]) -> None:
    server, tokens, _ = served
    with pytest.raises(Exception, match="metadata"):
        Stream(f"{server.address}/pong", "call", "x" * 1_000_000).hears()
    with connect(f"{server.address}/pong", token=tokens["read"]) as honest:
        assert honest.sample(4).num_items == 4


# ---- secrets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["", "short", "ü" * 43, "x" * 1_000_000, "a b" * 20, b"x" * 43, 3])
def test_a_token_of_another_form_is_refused_without_its_text(wrong: Any) -> None:
    with pytest.raises(errors.InvalidConfig) as caught:
        relive.connect("grpc://127.0.0.1:1/pong", token=wrong)
    assert len(str(caught.value)) < 300 and (not isinstance(wrong, str) or len(wrong) < 10 or wrong not in str(caught))


def test_no_error_and_no_frame_of_the_library_shows_the_token(served: tuple[Server, dict[str, str], str]) -> None:
    server, tokens, _ = served
    secret = tokens["append"]
    said = []
    for call in (
        lambda: relive.connect(f"{server.address}/other", token=secret),
        lambda: connect(f"{server.address}/pong", token=secret).sample(4),
        lambda: connect("grpc://127.0.0.1:1/pong", timeout_s=0.1, token=secret),
        lambda: connect("grpc+tls://127.0.0.1:1/pong", timeout_s=0.1, token=secret),
        lambda: connect("grpc://192.0.2.1:1/pong", timeout_s=0.1, token=secret),
    ):
        try:
            call()
        except errors.ReliveError as problem:
            shown = traceback.TracebackException.from_exception(problem, capture_locals=True)
            for frame in shown.stack:
                if "relive" in frame.filename and "tests" not in frame.filename:
                    said += [f"{frame.name}: {frame.locals}"]
            said += [str(problem), repr(vars(problem)), repr(pickle.dumps(problem))]
        else:
            pytest.fail("the call must raise")
    with connect(f"{server.address}/pong", token=secret) as remote:
        said += [repr(remote), repr(remote._remote.connection.access), repr(pickle.dumps(remote.reopens()))]
        said += [repr(vars(remote)), repr(vars(remote._remote.connection)), repr(pickle.dumps(remote.__reduce__()))]
    assert len(said) > 20
    for one in said:
        assert secret not in one, one.split(":")[0]
    assert secret not in repr(vars(server)) + repr(server._guard._entries)
    assert all(secret not in Path(f"/proc/{os.getpid()}/{name}").read_text() for name in ("cmdline", "environ"))


class Failing:
    """A client of gRPC whose streams do not open."""

    def do_exchange(self, *arguments: Any) -> Any:
        raise ZeroDivisionError()


def test_the_frames_of_an_open_that_failed_keep_no_token(served: tuple[Server, dict[str, str], str]) -> None:
    server, tokens, _ = served
    with connect(f"{server.address}/pong", token=tokens["append"]) as remote:
        one = remote.core.connection
        before = one.streams()
        one.link._client = Failing()
        with pytest.raises(ZeroDivisionError) as caught:
            one.open("call", {}, time.monotonic() + 5.0)
        kept = [
            value
            for frame, _ in traceback.walk_tb(caught.value.__traceback__)
            if "relive/service" in frame.f_code.co_filename
            for local in frame.f_locals.values()
            for value in (local, *(local if isinstance(local, tuple | list) else ()))
        ]
        assert len(kept) > 10 and not [one for one in kept if isinstance(one, flight.FlightCallOptions | Failing)]
        assert one.streams() == before
        one.link.forget()


def test_a_token_that_is_refused_leaves_no_stream(served: tuple[Server, dict[str, str], str], tmp_path: Path) -> None:
    server, tokens, _ = served
    (path := tmp_path / "token").write_text(tokens["read"])
    path.chmod(0o600)
    with connect(f"{server.address}/pong", token=path) as remote:
        one = remote.core.connection
        before, watched = one.streams(), set(one._watch._streams)
        path.write_text("")
        for _ in range(3):
            with pytest.raises(errors.InvalidConfig):
                one.open("call", {}, time.monotonic() + 5.0)
        assert one.streams() == before and one._watch._streams == watched
