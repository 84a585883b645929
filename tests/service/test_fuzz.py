"""Malformed messages never hurt a server: afterwards the table is whole, nothing is held, and a client works."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
from contract.tools import plain_spec, prioritized, step, write_steps

import relive
from relive import errors
from relive.core.roles import ROLES
from relive.service import Server, ServerOptions, connect, serve
from relive.service.parameters.sets import publication_of
from relive.service.wire import framing
from relive.service.wire.access import OPEN
from relive.service.wire.tokens import add_token
from service.doors import tokens_for

NUM_MESSAGES = 1000
NUM_WITH_TOKENS = 160  # and of clients that may change nothing
A_STREAM = 20
KINDS = ("call", "write", "hold", "shard", "parameters")
STRANGE: tuple[Any, ...] = (
    None, True, -1, 0, 1, 3, 255, 2**31, 2**62, 2**63, 10**30, 0.5, -0.5, 1e308, float("nan"), float("inf"), "", "x",
    "sample", "\0", "a" * 5000, [], [[]], [1, 2], [[1, 2], [3]], ["observation"], ["observation"] * 300, {},
    {"op": "end"},
)  # fmt: skip


class Tokens(NamedTuple):
    """A server with tokens: one for each role, and one with all roles."""

    server: Server
    of_role: dict[str, str]
    everything: str

    def strange(self) -> list[str | None]:
        """No token, and tokens that are none."""
        return [None, "", "relive_", self.of_role["read"][:-1], "\xff" * 40, "x" * 4000]


@contextlib.contextmanager
def served(folder: Path, tokens: Path | None = None) -> Iterator[Server]:
    """A server whose table is whole at the end, as is each of its saves, with nothing else in the folder."""
    options = ServerOptions(max_reply_bytes=1 << 20, saves=folder / "saves")
    with relive.Table(plain_spec(), 500, prioritized(), max_lanes=64, timeout_s=0.2) as table:
        with serve({"t": table}, "grpc://127.0.0.1:0", options, tokens=tokens) as one:
            yield one
        table.check()
    for path in (folder / "saves" / "t").glob("*"):
        with contextlib.suppress(errors.NoSuchSave):
            assert path.is_dir() and relive.saved(path).config == table.config
    if folder.joinpath("saves").exists():
        assert len(list((folder / "saves").iterdir())) == 1
    assert {path.name for path in folder.iterdir()} <= {"saves"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with served(tmp_path) as one:
        yield one


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Tokens]:
    path, folder = tmp_path / "tokens.toml", tmp_path / "server"
    folder.mkdir()
    of_role, everything = tokens_for(path, "t"), add_token(str(path), "everything", ROLES, ["t"])
    with served(folder, path) as one:
        yield Tokens(one, of_role, everything)


def right_messages(kind: str, keys: list[int]) -> list[tuple[dict[str, Any], bytes]]:
    """Messages that would pass, to be bent."""
    body = b"".join(key.to_bytes(8, "little") for key in keys[:4])
    names = ["observation", "action", "reward"]
    if kind == "hold":
        ask = {"op": "sample", "index": 0, "names": names, "n": 4, "timeout_s": 0.0, "handed_out": 0}
        claimed = ask | {"claims": True}
        return [
            (ask, b""),
            (ask | {"op": "count"}, b""),
            (claimed, b""),
            *((ask | {"op": op}, b"") for op in ("draw", "back")),
        ]
    if kind == "shard":
        drawn = {"op": "draw", "index": 0, "n": 4, "timeout_s": 0.0, "is_read": True, "done": [0], "back": [1, 2]}
        return [
            (drawn, b""),
            (drawn | {"names": names}, b""),
            ({"op": "roots", "index": 0, "done": [1]}, b""),
            ({"op": "layout"}, b""),
            ({"op": "offer", "what": "memory"}, b""),
        ]
    if kind == "write":
        row = {"op": "append", "rows": 1, "lanes": None, "names": names}
        block = {"op": "extend", "rows": 2, "states": 3, "lanes": None, "names": names}
        end = {"op": "end", "lanes": None, "names": ["next_observation"], "terminated": False}
        frame = {"seq": 1, "epoch": 0, "timeout_s": 0.0}
        version = {"op": "version", "version": 3}
        return [
            (frame | {"ops": [row]}, bytes(20)),
            (frame | {"ops": [block]}, bytes(48)),
            (frame | {"ops": [row, end, version]}, bytes(28)),
        ]
    if kind == "parameters":
        version = int.from_bytes(body[:2], "little") % 1000 + 1
        publication = publication_of({"w": np.zeros(9, np.float32), "b": np.ones(2)}, version, {"x": [1]}, 1 << 20)
        return [
            ({"op": "begin", **publication.header(), "timeout_s": 0.1}, b""),
            ({"op": "part"}, publication.block.tobytes()),
            ({"op": "commit"}, b""),
            ({"op": "pull", "newer_than": 0, "timeout_s": 0.0, "note": {"steps": 3}}, b""),
        ]
    read = {"index": 0, "names": names, "n": 4, "timeout_s": 0.0, "after": [[1, 1]]}
    return [
        ({"op": "sample", **read}, b""),
        ({"op": "draw", **read}, b""),
        ({"op": "gather", **read}, body),
        ({"op": "select", **read}, b""),
        ({"op": "update_priorities", **read, "arrays": [["<i8", 4], ["<f4", 4]]}, body + bytes(16)),
        ({"op": "delete", "arrays": [["<i8", 4]]}, body),
        ({"op": "set_policy_version", "version": 4}, b""),
        ({"op": "set_priority_exponent", "index": 0, "exponent": 0.5}, b""),
        ({"op": "priority_exponent", "index": 0}, b""),
        ({"op": "num_items", "index": 0}, b""),
        ({"op": "policy_version"}, b""),
        ({"op": "stats"}, b""),
        ({"op": "check"}, b""),
        ({"op": "save", "token": "t", "name": "n", "beside": [["a", 3], ["b", 0]], "keep": 2}, b"abc"),
        ({"op": "save", "token": "u", "name": "n", "beside": [], "keep": [1, 2]}, b""),
        ({"op": "saving", "token": "t", "until": "end", "timeout_s": 0.01}, b""),
        ({"op": "cancel", "token": "u"}, b""),
        ({"op": "forget", "name": "n", "staying": [1, 3]}, b""),
    ]


def bend(value: Any, rng: random.Random) -> Any:
    """One thing somewhere inside is changed, taken away or added."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        name = rng.choice(sorted(value))
        changed = dict(value)
        if rng.random() < 0.15:
            del changed[name]
        else:
            changed[name] = bend(value[name], rng)
        return changed
    if isinstance(value, list) and value and rng.random() < 0.7:
        where = rng.randrange(len(value))
        return [*value[:where], bend(value[where], rng), *value[where + 1 :]]
    return rng.choice(STRANGE)


def malformed(kind: str, keys: list[int], rng: random.Random) -> bytes:
    header, body = rng.choice(right_messages(kind, keys))
    way = rng.randrange(7)
    if way == 0:
        return rng.randbytes(rng.choice((0, 1, 3, 4, 5, 64, 4096)))
    if way == 1:  # lengths that lie
        return rng.choice((0, 5, 2**16, 2**31, 2**32 - 1)).to_bytes(4, "little") + rng.randbytes(rng.randrange(64))
    if way == 2:
        return framing.encode(header, body)[: rng.randrange(len(body) + 40)]
    if way == 3:
        return framing.encode(header, body, rng.randbytes(rng.randrange(1, 64)))
    if way == 4:
        return framing.encode(header, rng.randbytes(len(body)))
    text = json.dumps(bend(header, rng)).encode()
    if way == 5:
        text = b"[" * 100_000 if rng.random() < 0.05 else text
        return len(text).to_bytes(4, "little") + text + rng.randbytes(len(body))
    return framing.encode(bend(header, rng), body)


def open_stream(client: Any, rng: random.Random, kind: str, bent: bool, token: str | None = None) -> Any:
    request = {"relive": framing.VERSION, "byte_order": "little", "table": "t", "kind": kind, "spec": None}
    request |= {"uuid": None, "layout_hash": None, "num_lanes": None}
    command = json.dumps(bend(request, rng) if bent else request).encode()
    if bent and rng.random() < 0.3:
        command = rng.randbytes(rng.randrange(200))
    headers = [] if token is None else [(b"authorization", b"Bearer " + token.encode("latin-1"))]
    options = flight.FlightCallOptions(timeout=30.0, headers=headers)
    if bent and rng.random() < 0.1:
        return client.do_exchange(flight.FlightDescriptor.for_path("t", "x"), options)
    return client.do_exchange(flight.FlightDescriptor.for_command(command), options)


def play(client: Any, rng: random.Random, kind: str, keys: list[int], token: str | None = None) -> tuple[int, int]:
    """Bent messages on one stream, each answered by the server before the next; (messages, refusals)."""
    sent, refused = 1, 0
    try:
        writer, reader = open_stream(client, rng, kind, rng.random() < 0.3, token)
    except (flight.FlightError, pa.ArrowException, OSError):  # gRPC's own refusal, as of the bytes of a token
        return sent, 1
    try:
        if b"error" in reader.read_chunk().app_metadata.to_pybytes():
            return sent, 1
        for _ in range(A_STREAM):
            sent += 1
            if rng.random() < 0.03:  # a record batch, which no message is
                writer.begin(pa.schema([("x", pa.int64())]))
                writer.write_batch(pa.record_batch([pa.array([1, 2, 3])], names=["x"]))
            else:
                writer.write_metadata(malformed(kind, keys, rng))
            if rng.random() < 0.8 and kind != "parameters":  # where a part has no answer
                answer = reader.read_chunk().app_metadata
                refused += answer is not None and b'"error"' in answer.to_pybytes()
    except (flight.FlightError, pa.ArrowException, OSError, StopIteration):
        refused += 1
    finally:
        reader.cancel()
        try:
            writer.close()
        except (flight.FlightError, pa.ArrowException, OSError):
            pass
    return sent, refused


def test_malformed_messages_never_hurt(server: Server, profile_scale: int) -> None:
    rng = random.Random(20)
    with connect(server.address + "/t") as remote, remote.writer() as writer:
        keys = write_steps(writer, 0, 100)
        client = OPEN.client(server.address, [])
        sent = refused = 0
        while sent < NUM_MESSAGES * profile_scale:
            done = play(client, rng, rng.choice(KINDS), keys.tolist())
            sent, refused = sent + done[0], refused + done[1]
        assert refused > 0.3 * sent, "most of these messages are wrong"

        assert writer.append(**step(100, 101)) >= 0
        with remote.writer() as another:  # whose page is the youngest, should strangers have filled the table
            more = write_steps(another, 0, 20)
        assert remote.gather(more).present.all()
        assert remote.sample(16, timeout_s=5.0).num_items == 16
        newest = remote.parameters.version
        remote.parameters.publish({"w": np.arange(3)}, newest + 1, timeout_s=10.0)
        found = remote.parameters.pull(newest, 10.0)
        assert found is not None and found.arrays["w"].tolist() == [0, 1, 2]
        remote.check()
        ends = time.monotonic() + 10
        while time.monotonic() < ends and (server.num_streams > 2 or remote.stats().num_lanes > 1):
            time.sleep(0.02)
        stats = remote.stats()
        assert stats.num_lanes == 1 and stats.indexes["default"].in_flight == 0


def played(client: Any, rng: random.Random, tokens: list[str | None], keys: list[int], number: int) -> float:
    """Plays bent messages with these tokens. Returns the share of refusals."""
    sent = refused = 0
    while sent < number:
        done = play(client, rng, rng.choice(KINDS), keys, rng.choice(tokens))
        sent, refused = sent + done[0], refused + done[1]
    return refused / sent


def test_malformed_messages_with_tokens_never_hurt(guarded: Tokens, profile_scale: int) -> None:
    rng, server = random.Random(21), guarded.server
    with connect(server.address + "/t", token=guarded.everything) as remote, remote.writer() as writer:
        keys = write_steps(writer, 0, 100).tolist()
        tokens = [*guarded.strange(), *guarded.of_role.values(), *[guarded.everything] * 5]
        client = OPEN.client(server.address, [])
        assert played(client, rng, tokens, keys, NUM_WITH_TOKENS * profile_scale) > 0.3
        assert writer.append(**step(100, 101)) >= 0
        with remote.writer() as another:
            more = write_steps(another, 0, 20)
        assert remote.gather(more).present.all() and remote.sample(16, timeout_s=5.0).num_items == 16
        remote.check()


def test_malformed_messages_without_the_role_change_nothing(guarded: Tokens, profile_scale: int) -> None:
    rng, server = random.Random(22), guarded.server

    def state(remote: Any) -> Any:
        """All that a client which may only read cannot change."""
        stats, index = remote.stats(), remote.stats().indexes["default"]
        kept = (stats.num_steps, stats.appended, stats.deleted, stats.policy_version, stats.updates_applied)
        return *kept, index.num_items, index.inserted, index.total_mass, index.limiter, remote.parameters.version

    with connect(server.address + "/t", token=guarded.everything) as remote, remote.writer() as writer:
        keys = write_steps(writer, 0, 100).tolist()
        before = state(remote)
        tokens = [*guarded.strange()[1:], *[guarded.of_role["read"]] * 24]
        played(OPEN.client(server.address, []), rng, tokens, keys, NUM_WITH_TOKENS * profile_scale)
        assert state(remote) == before
        assert remote.stats().num_lanes == 1


def test_a_count_costs_no_memory() -> None:
    """What a header asks for is held against what came, before anything is made."""
    huge = {"seq": 1, "epoch": 0, "timeout_s": 0.0}
    row = {"op": "append", "rows": 2**31 - 1, "lanes": None, "names": ["observation"]}
    with relive.Table(plain_spec(), 100) as table, serve({"t": table}, "grpc://127.0.0.1:0") as server:
        client = OPEN.client(server.address, [])
        for kind, header in (
            ("write", huge | {"ops": [row] * 4000}),
            ("call", {"op": "gather", "index": 0, "names": ["reward"], "n": 2**31 - 1, "timeout_s": 0.0}),
            ("call", {"op": "draw", "index": 0, "n": 2**31 - 1, "timeout_s": 0.0}),
            ("call", {"op": "update_priorities", "index": 0, "arrays": [["<i8", 2**31 - 1], ["<f8", 2**31 - 1]]}),
        ):
            writer, reader = open_stream(client, random.Random(0), kind, bent=False)
            reader.read_chunk()
            writer.write_metadata(framing.encode(header))
            answer, _ = framing.decode(reader.read_chunk().app_metadata)
            assert answer["error"]["type"] in ("BadMessage", "InvalidConfig")
            reader.cancel()
            try:
                writer.close()
            except (flight.FlightError, OSError):
                pass
        table.check()
