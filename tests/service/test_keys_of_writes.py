"""The keys of rows that a client writes: their bytes are counted by the server, and too many are refused before."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

import relive
from relive import errors
from relive.service import ServerOptions, Streaming, connect, serve
from relive.service.server.budget import FREE_BYTES
from relive.service.server.hosting import Memory
from relive.service.server.pipe import SMALL_BYTES, Pipe
from relive.service.server.room import Room
from relive.service.server.write_session import WriteSession
from service.doors import Stream
from service.gates import until

LOOPBACK = "grpc://127.0.0.1:0"
MIB = 1 << 20
SPEC = relive.StepSpec({"value": relive.ArraySpec((), "uint8")})
LARGE = 200_000  # rows whose keys are counted, although their bytes are not
STREAMING = Streaming(max_rows=1 << 16, max_block_bytes=1 << 30, linger_s=30.0)


def values(num_rows: int) -> Any:
    return np.arange(num_rows, dtype=np.int64).astype(np.uint8)


@contextmanager
def served(index: relive.Index | None = None, **options: int) -> Iterator[tuple[Any, Any]]:
    more = {} if index is None else {"index": index}
    with relive.Table(SPEC, 1_000_000, **more, max_lanes=4) as table:
        with serve({"t": table}, LOOPBACK, ServerOptions(**options)) as server:
            with connect(f"{server.address}/t", timeout_s=60.0) as remote:
                yield remote, server


def test_keys_are_counted_until_they_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[tuple[int, int]] = []
    send, extend = Pipe.send_buffers, WriteSession._extend

    def noted(*arguments: Any) -> None:
        used.append((memory.inflight.used, memory.work.peak))
        send(*arguments)

    def noted_before(*arguments: Any) -> None:
        extend(*arguments)
        used.append((memory.inflight.used, memory.work.used))

    with served() as (remote, server), remote.writer() as writer:
        memory = server._memory
        monkeypatch.setattr(Pipe, "send_buffers", noted)
        monkeypatch.setattr(WriteSession, "_extend", noted_before)
        keys = writer.extend(value=values(LARGE))
        assert LARGE < FREE_BYTES and used == [(8 * LARGE, 0), (8 * LARGE, 9 * LARGE)]
        until(lambda: memory.inflight.used == 0)
        assert remote.gather(keys[-5:])["value"].tolist() == values(LARGE)[-5:].tolist()


@pytest.mark.parametrize("streaming", [None, STREAMING], ids=["answered", "streamed"])
def test_large_answers_bring_every_key(streaming: Streaming | None) -> None:
    """The calls write blocks, and steps of one block that were appended one by one."""
    num_appended = SMALL_BYTES // 8 + 1000 if streaming is not None else 3
    with served() as (remote, _), remote.writer(**({} if streaming is None else {"streaming": streaming})) as writer:
        parts = [writer.append(value=number % 256) for number in range(num_appended)]
        parts += [writer.extend(value=values(num)) for num in (LARGE, 0, 5, SMALL_BYTES // 8, SMALL_BYTES // 8 + 1)]
        keys = np.concatenate([np.asarray(part).ravel() for part in parts])
        rows = [values(num) for num in (num_appended, LARGE, 0, 5, SMALL_BYTES // 8, SMALL_BYTES // 8 + 1)]
        assert len(np.unique(keys)) == len(keys)
        assert np.array_equal(remote.gather(keys)["value"], np.concatenate(rows))


@pytest.mark.parametrize("streaming", [None, STREAMING], ids=["answered", "streamed"])
def test_more_keys_than_an_answer_has_are_refused_before_anything_is_sent(streaming: Streaming | None) -> None:
    with served(max_reply_bytes=8_000) as (remote, _):
        with remote.writer(**({} if streaming is None else {"streaming": streaming})) as writer:
            with pytest.raises(errors.InvalidConfig, match=r"at most 1000, .*\(max_reply_bytes\); .* several calls"):
                writer.extend(value=values(1001))
            keys = writer.extend(value=values(1000))
            for _ in range(1500):  # the blocks of a streaming writer have as many rows as an answer has keys
                writer.append(value=7)
            assert len(np.asarray(keys)) == 1000 and len(remote) == 2500


def test_more_lanes_than_an_answer_has_keys_are_refused() -> None:
    with served(max_reply_bytes=8) as (remote, _), remote.writer(2, streaming=Streaming()) as writer:
        with pytest.raises(errors.InvalidConfig, match="at most 1,"):
            writer.append(value=[1, 2])
        assert len(np.asarray(writer.append(value=[1], lanes=[1]))) == 1


def test_a_client_that_does_not_look_is_refused_before_a_row_is_stored() -> None:
    """Also several operations that have too many keys together."""
    with served(max_reply_bytes=8_000) as (remote, server):
        stream = Stream(f"{server.address}/t", "write", None)
        assert stream.hears()["max_keys"] == 1000
        op = {"op": "extend", "rows": 600, "states": 600, "lanes": None, "names": ["value"]}
        stream.say(seq=1, epoch=1, timeout_s=9.0, ops=[op | {"names": []}, op | {"names": []}])
        with pytest.raises(errors.InvalidConfig, match="at most 1000"):
            stream.hears()
        assert len(remote) == 0
        stream.close()


@pytest.mark.parametrize("option", ["max_work_bytes", "max_inflight_bytes", "max_inflight_bytes_per_client"])
def test_keys_without_room_are_refused_before_a_row_is_stored(option: str) -> None:
    with served(**{option: MIB}) as (remote, _), remote.writer() as writer:
        with pytest.raises(errors.InvalidConfig, match="max_"):
            writer.extend(value=values(LARGE))
        assert len(remote) == 0
        assert len(writer.extend(value=values(100_000))) == 100_000


def test_a_write_that_has_stored_nothing_keeps_no_draw_from_making_room_for_it() -> None:
    """The draw and the keys do not fit into the budget together."""
    index = relive.Index(limiter=relive.Queue(LARGE), max_times_sampled=1)
    with served(index, max_inflight_bytes=3 * MIB) as (remote, server), remote.writer() as writer:
        memory, stored = server._memory, []
        writer.extend(value=values(LARGE // 2))
        thread = threading.Thread(target=lambda: stored.append(writer.extend(value=values(LARGE), timeout_s=60.0)))
        thread.start()
        until(lambda: bool(remote.stats().indexes["default"].waiting_writers))
        assert len(remote.sample(LARGE // 2, timeout_s=30.0).item_keys) == LARGE // 2
        thread.join(60.0)
        assert len(stored[0]) == LARGE
        until(lambda: memory.inflight.used == memory.work.used == 0)


@pytest.mark.parametrize("has_stored", [False, True])
def test_a_write_takes_the_room_of_its_keys_once(has_stored: bool) -> None:
    """Rows that were stored before a refusal have keys."""
    memory, pipe = Memory(ServerOptions()), SimpleNamespace(gone=lambda: False, gives_up=0.0)

    def refused() -> None:
        raise errors.DeadlineExceeded("the limiter", "", 0.5)

    with Room(memory, "a", pipe, (2 * MIB, 3 * MIB), 9.0, has_stored=lambda: has_stored) as within:  # type: ignore[arg-type]
        for _ in range(3):
            with pytest.raises(errors.DeadlineExceeded):
                within(refused)
            assert (memory.inflight.used, memory.work.used) == (2 * MIB * has_stored, 0)
            within(lambda: None)
            assert (memory.inflight.used, memory.work.used) == (2 * MIB, 0)
    assert memory.inflight.used == 0


def test_a_write_that_gets_no_memory_says_so_at_its_deadline() -> None:
    with served() as (remote, server), remote.writer() as writer:
        memory = server._memory
        memory.work.take("another", memory.work.largest, 1.0, lambda: False)
        with pytest.raises(errors.DeadlineExceeded, match="max_work_bytes") as problem:
            writer.extend(value=values(LARGE), timeout_s=0.5)
        assert problem.value.waited_s < 5.0 and len(remote) == 0
        memory.work.give("another", memory.work.largest)
        assert len(writer.extend(value=values(LARGE))) == LARGE


def test_rows_that_are_written_one_by_one_leave_one_array_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """An array of one key costs more than ten times the key."""
    kept: list[int] = []
    send = Pipe.send

    def noted(pipe: Pipe, header: Any, *parts: Any) -> None:
        if parts:
            kept.append(len(parts))
        send(pipe, header, *parts)

    index = relive.Index(limiter=relive.Queue(1000), max_times_sampled=1)
    monkeypatch.setattr(Pipe, "send", noted)
    with served(index) as (remote, _), remote.writer(streaming=STREAMING) as writer:
        np.asarray(writer.extend(value=values(900)))
        keys = [writer.append(value=number % 256) for number in range(300)]
        thread = threading.Thread(target=lambda: writer.flush(60.0))
        thread.start()
        until(lambda: bool(remote.stats().indexes["default"].waiting_writers))
        remote.sample(500)
        thread.join(60.0)
        assert kept[-1] == 2, "of 256 steps, and of 44"
        assert len({int(one) for one in keys}) == 300
