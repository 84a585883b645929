"""Streaming writers: what is seen when, what a failure loses, and that it says so."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from contract.tools import contents, plain_spec, prioritized, state, step, write_steps
from processes.tools import stop_process

import relive
from relive import errors
from relive.service import RemoteTable, Server, StreamedKeys, Streaming, connect, serve
from relive.service.server.pipe import Pipe
from relive.service.wire import encoding
from service.gates import Gate, until
from service.hosts import Host
from service.proxy import Proxy

SLOW = Streaming(linger_s=30.0)  # nothing leaves unless it must


@pytest.fixture
def server() -> Iterator[Server]:
    table = relive.Table(plain_spec(), 1000, prioritized(), max_lanes=16)
    with table, serve({"t": table}, "grpc://127.0.0.1:0") as one:
        yield one


@pytest.fixture
def remote(server: Server) -> Iterator[RemoteTable]:
    with connect(server.address + "/t") as one:
        yield one


def test_a_client_sees_what_it_wrote_before(remote: RemoteTable) -> None:
    """Every call of the handle that could tell the difference; another handle may see it later."""
    with remote.writer(streaming=SLOW) as writer:
        for number, look in enumerate(
            (
                lambda: len(remote),
                lambda: remote.num_items(),
                lambda: remote.stats().num_steps,
                lambda: len(set(remote.draw(500).item_keys.tolist())),
                lambda: len(set(remote.sample(500)["action"].tolist())),
            ),
            start=1,
        ):
            writer.append(**step(number, number + 1))
            assert look() == number
        keys = writer.append(**step(6, 7))
        assert remote.gather(np.asarray([keys])).present.all()
        keys = writer.append(**step(7, 8))
        assert remote.update_priorities([int(keys)], [2.0]) == 1
        writer.append(**step(8, 9))
        remote.clear()
        assert len(remote) == 0
        with remote.batches(4, prefetch=1) as batches:
            writer.append(**step(9, 10))
            assert set(next(batches)["action"].tolist()) == {9}


def test_a_handle_with_more_writers_than_sixty_four_makes_every_call() -> None:
    """Each writer has steps that the server must apply before the call."""
    table = relive.Table(plain_spec(), 1000, prioritized(), max_lanes=80)
    with table, serve({"t": table}, "grpc://127.0.0.1:0") as one, connect(one.address + "/t", timeout_s=60.0) as remote:
        writers = [remote.writer(streaming=SLOW) for _ in range(80)]

        def written(number: int) -> bool:
            for writer in writers:
                writer.append(**step(number, number + 1))
            return True

        assert written(1) and len(remote) == 80
        assert written(2) and remote.sample(4).num_items == 4
        with remote.batches(4, prefetch=2) as batches:
            assert written(3) and next(batches).num_items == 4
        assert len(remote) == 240


def test_keys_come_when_they_are_read(remote: RemoteTable) -> None:
    with remote.writer(num_lanes=2, streaming=SLOW) as writer:
        rows = {"observation": np.zeros((2, 2)), "action": np.arange(2), "reward": np.zeros(2)}
        keys = [writer.append(**rows, terminated=True) for _ in range(5)]
        assert all(isinstance(one, StreamedKeys) for one in keys) and "not confirmed" in repr(keys[0])
        block = writer.extend(**{name: np.stack([value] * 3) for name, value in rows.items()}, terminated=True)
        assert block.shape == (3, 2) and block[1].shape == (2,)
        every = np.concatenate([*keys, np.asarray(block).ravel()])
        assert every.dtype == np.int64 and len(set(every.tolist())) == 16
        assert contents(remote, every)["action"] == [0, 1] * 8


def test_a_slow_writer_is_not_kept_waiting(server: Server, remote: RemoteTable) -> None:
    """A block that does not fill leaves after linger_s."""
    with remote.writer(streaming=Streaming(linger_s=0.01)) as writer, connect(server.address + "/t") as other:
        writer.append(**step(0, 1))
        ends = time.monotonic() + 10
        while not len(other) and time.monotonic() < ends:
            time.sleep(0.01)
        assert len(other) == 1


def test_a_slow_writer_is_not_kept_waiting_after_a_refused_row(server: Server, remote: RemoteTable) -> None:
    """The row that opens a block may be refused; the next one has to wake the sender all the same."""
    with remote.writer(streaming=Streaming(linger_s=0.01)) as writer, connect(server.address + "/t") as other:
        with pytest.raises(errors.ShapeMismatch):
            writer.append(**(step(0, 1) | {"observation": np.zeros(7, np.float32)}))
        writer.append(**step(0, 1))
        ends = time.monotonic() + 10
        while not len(other) and time.monotonic() < ends:
            time.sleep(0.01)
        assert len(other) == 1


def test_what_is_given_is_copied(remote: RemoteTable) -> None:
    with remote.writer(streaming=SLOW) as writer:
        row = state(0)
        keys = []
        for number in range(4):
            row[:] = number
            keys.append(writer.append(observation=row, action=number, reward=0.0, terminated=True))
        states = np.arange(6, dtype=np.float32).repeat(2).reshape(6, 2)
        more = writer.extend(observation=states, action=np.arange(5), reward=np.zeros(5), truncated=True)
        states[:] = 99
        row[:] = 99
        said = contents(remote, [*map(int, keys), *more.tolist()])
        assert said["observation"] == [[t, t] for t in (0, 1, 2, 3, 0, 1, 2, 3, 4)]


def test_bad_input_raises_at_the_call_and_leaves_the_block_as_it_was(remote: RemoteTable) -> None:
    with remote.writer(streaming=SLOW) as writer:
        keys = [writer.append(**step(0, 1))]
        for change, error in (
            ({"observation": np.zeros(3)}, errors.ShapeMismatch),
            ({"next_observation": np.zeros(3)}, errors.ShapeMismatch),
            ({"action": 1.5}, errors.DtypeMismatch),
            ({"action": 1 << 70}, errors.DtypeMismatch),
            ({"reward": 1e39}, errors.DtypeMismatch),
            ({"reward": "x"}, errors.DtypeMismatch),
            ({"colour": 1}, errors.UnknownColumn),
        ):
            with pytest.raises(error):
                writer.append(**step(1, 2) | {"action": 9} | change)  # nothing of it may stay
        keys.append(writer.append(**step(1, 2)))  # into the same block
        for priority in (-1.0, float("nan"), 1e39):
            with pytest.raises(errors.InvalidPriority):
                writer.append(**step(2, 3), priority=priority)
        keys.append(writer.append(**step(2, 3), priority=2.0))
        assert contents(remote, list(map(int, keys)))["action"] == [0, 1, 2]


def test_rows_like_the_one_before_and_others_keep_their_order(remote: RemoteTable) -> None:
    """Rows that only repeat the names of columns take a shorter way than the others."""
    with remote.writer(streaming=SLOW) as writer:
        keys = []
        for number in range(12):
            row: dict[str, Any] = step(number, number + 1)
            if number % 4 == 1:
                row["priority"] = 2.0
            if number % 4 == 2:
                row["timeout_s"] = 5.0
            if number % 6 == 5:
                row = {name: row[name] for name in reversed(row)}
            keys.append(writer.append(**row))
        keys.append(writer.append(**step(12, 13), priority=3.0))
        with pytest.raises(errors.InvalidPriority):
            writer.append(**step(13, 14), priority=-1.0)  # like the one before, and wrong
        with pytest.raises(errors.MissingColumn):
            writer.append(observation=state(12))
        keys.append(writer.append(**step(13, 14)))
        assert contents(remote, list(map(int, keys)))["action"] == list(range(14))
        writer.close()
        with pytest.raises(errors.WriterClosed):
            writer.append(**step(14, 15))
    assert len(remote) == 14
    with remote.writer(num_lanes=2, streaming=SLOW) as writer:
        rows = {"observation": np.zeros((2, 2)), "action": np.arange(2), "reward": np.zeros(2)}
        rows["terminated"] = np.ones(2, bool)
        half = {name: value[:1] for name, value in rows.items()}
        sizes = [
            len(writer.append(**half, lanes=[1])),
            len(writer.append(**rows)),
            len(writer.append(**half, lanes=[0])),
        ]
    assert sizes == [1, 2, 1] and len(remote) == 18


def test_a_late_refusal_stores_what_came_before_and_nothing_after(remote: RemoteTable) -> None:
    with remote.writer(streaming=SLOW) as writer:
        good = [writer.append(**step(t, t + 1)) for t in range(5)]
        bad = [writer.append(**step(77, 78)) for _ in range(3)]  # no continuation of 5
        later = writer.extend(observation=[state(78), state(79)], action=[0], reward=[0.0])
        assert len(remote) == 5
        with pytest.raises(errors.Unacknowledged) as caught:
            writer.flush()  # an append says so, too, once the answer is here
        assert isinstance(caught.value.__cause__, errors.SeamMismatch) and caught.value.num_steps == 4
        assert contents(remote, [int(one) for one in good])["action"] == [0, 1, 2, 3, 4]
        for lost in (*bad, later):
            with pytest.raises(errors.Unacknowledged):
                np.asarray(lost)
        more = [writer.append(**step(t, t + 1)) for t in range(5, 9)]  # told once; the lane is new
        assert contents(remote, [int(one) for one in more])["action"] == [5, 6, 7, 8]
        assert len(remote) == 9
    remote.check()


def test_what_was_sent_after_a_failure_never_overtakes_it(remote: RemoteTable) -> None:
    """Many small blocks are under way when the first is refused."""
    with remote.writer(streaming=Streaming(max_rows=1, max_in_flight=64, linger_s=0.0)) as writer:
        writer.append(**step(0, 1))
        lost = 0
        with pytest.raises(errors.Unacknowledged):
            for t in range(5, 2000):
                writer.append(**step(t, t + 1))
                lost += 1
        writer.flush()
        assert len(remote) == 1


def test_calls_go_on_while_steps_are_refused(server: Server) -> None:
    """A call that comes after steps waits for them, but not for those that were given up."""
    with connect(server.address + "/t", timeout_s=5.0) as remote:
        with remote.writer(streaming=Streaming(max_rows=1, max_in_flight=256, linger_s=0.0)) as writer:
            for round_ in range(30):
                stored = len(remote)
                try:
                    writer.append(**step(round_, round_ + 1))
                    for t in range(100, 110 + round_):
                        writer.append(**step(t, t + 1))
                except errors.Unacknowledged:
                    pass
                start = time.monotonic()
                assert len(remote) in (stored, stored + 1) and time.monotonic() - start < 3
                with pytest.raises(errors.Unacknowledged):
                    for _ in range(1000):  # unless the refusal was told above already
                        writer.flush()
                        writer.append(**step(99, truncated=True))  # without its next state: refused on any lane
                writer.flush()
                assert len(remote) <= stored + 1
        remote.check()


def test_a_failure_is_told_at_close(remote: RemoteTable) -> None:
    writer = remote.writer(streaming=SLOW)
    writer.append(**step(0, 1))
    writer.append(**step(7, 8))
    with pytest.raises(errors.Unacknowledged):
        writer.close()
    writer.close()
    with pytest.raises(errors.WriterClosed):
        writer.append(**step(0, 1))
    assert len(remote) == 1 and remote.stats().num_lanes == 0


def test_ends_and_versions_keep_their_place(remote: RemoteTable) -> None:
    with remote.writer(streaming=SLOW) as writer:
        writer.set_policy_version(3)
        first = writer.append(**step(0))
        writer.end_episode(truncated=True, next_observation=state(9))
        writer.set_policy_version(4)
        second = writer.append(**step(50, 51))
        batch = remote.gather([int(first), int(second)], columns=["policy_version", "next_observation", "truncated"])
    assert batch["policy_version"].tolist() == [3, 4] and batch["next_observation"][:, 0].tolist() == [9, 51]
    assert batch["truncated"].tolist() == [True, False]


def test_lanes_and_priorities_of_streamed_steps(remote: RemoteTable) -> None:
    with remote.writer(num_lanes=3, streaming=SLOW) as writer:
        rows = {"observation": np.zeros((3, 2)), "action": np.arange(3), "reward": np.zeros(3), "terminated": True}
        all_lanes = writer.append(**rows, priority=[0.0, 0.0, 0.0])
        some = writer.append(**rows, lanes=[2, 0], priority=np.array([4.0, 0.0, 4.0]))
        nobody = writer.append(**rows, lanes=np.zeros(3, bool))
        assert nobody.shape == (0,) and some.shape == (2,)
        assert set(remote.draw(50).item_keys.tolist()) == set(some.tolist())
        assert contents(remote, np.concatenate([all_lanes, some]))["action"] == [0, 1, 2, 2, 0]


def test_the_limiter_holds_a_streaming_writer_back() -> None:
    """append waits once max_in_flight blocks are unanswered; who samples meanwhile is not held up by the writer."""
    limiter = relive.SamplesPerInsert(1.0, min_size=10, tolerance=10.0)
    with relive.Table(plain_spec(), 1000, relive.Index(limiter=limiter), max_lanes=4) as table:
        with serve({"t": table}, "grpc://127.0.0.1:0") as server, connect(server.address + "/t") as remote:
            writer = remote.writer(streaming=Streaming(max_rows=8, max_in_flight=2, linger_s=30.0))
            write_streamed(writer, 32)  # 20 pass, the rest of two blocks waits
            with pytest.raises(errors.DeadlineExceeded):
                writer.append(**step(32, 33), timeout_s=0.0)
            assert len(remote) == 20, "who looks is not held up by a writer that waits"
            start = time.monotonic()
            stop = threading.Event()

            def draw() -> None:
                while not stop.is_set():
                    try:
                        remote.draw(4, timeout_s=0.2)
                    except errors.DeadlineExceeded:
                        continue

            drawing = threading.Thread(target=draw)
            drawing.start()
            writer.flush(30.0)
            stop.set()
            drawing.join(10)
            assert time.monotonic() - start < 20
            assert len(remote) == 32
            writer.close()


def test_a_block_may_take_the_timeout_for_each_of_its_steps() -> None:
    """A block that goes on is no server that hangs, even if the block takes longer than the timeout."""
    with Gate() as gate, connect(gate.address, timeout_s=4.0) as remote:
        writer = remote.writer(streaming=SLOW)
        write_streamed(writer, 8)
        began, pace = time.monotonic(), threading.Event()

        def let_steps_in() -> None:
            for number in range(1, 8):
                pace.wait(max(began + 0.7 * number - time.monotonic(), 0.0))  # the last step comes after 4.9 s
                gate.let_in()

        letting = threading.Thread(target=let_steps_in)
        letting.start()
        try:
            writer.flush(60.0)
        finally:
            letting.join(100)
        assert gate.table.stats().appended == 8 and gate.table.stats().cut_lanes == 0
        writer.close()


def test_rows_of_a_client_that_is_gone_are_stored_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if no step waits long enough for the end of a slice."""
    is_gone = threading.Event()
    monkeypatch.setattr(Pipe, "gone", lambda pipe: is_gone.is_set())
    with Gate() as gate, connect(gate.address, timeout_s=30.0) as remote:
        writer = remote.writer(streaming=SLOW)
        write_streamed(writer, 20)
        assert len(remote) == 1  # this call has the block sent
        until(lambda: bool(gate.table.stats().indexes["default"].waiting_writers))
        is_gone.set()
        stop = threading.Event()

        def let_steps_in() -> None:
            while not stop.is_set():
                with contextlib.suppress(errors.DeadlineExceeded):
                    gate.table.draw(1, timeout_s=0.05)

        letting = threading.Thread(target=let_steps_in)
        letting.start()
        try:
            with pytest.raises(errors.Unacknowledged) as caught:
                writer.flush(60.0)
        finally:
            stop.set()
            letting.join(60)
        assert isinstance(caught.value.__cause__, errors.ServiceUnavailable)
        assert gate.table.stats().appended <= 2


def test_flush_has_a_deadline() -> None:
    limiter = relive.SamplesPerInsert(1.0, min_size=10, tolerance=10.0)
    with relive.Table(plain_spec(), 1000, relive.Index(limiter=limiter), max_lanes=4) as table:
        with serve({"t": table}, "grpc://127.0.0.1:0") as server:
            with connect(server.address + "/t", timeout_s=3.0) as remote:
                writer = remote.writer(streaming=Streaming())
                write_streamed(writer, 25)
                with pytest.raises(errors.DeadlineExceeded) as caught:
                    writer.flush(0.2)
                assert caught.value.waited_s < 2 and len(remote) == 20
                with pytest.raises(errors.Unacknowledged) as lost:
                    writer.flush(30.0)  # until the server's own wait, for the steps' deadline, is over
                assert isinstance(lost.value.__cause__, errors.DeadlineExceeded) and lost.value.num_steps == 5
                writer.close()
                assert len(remote) == 20


@pytest.mark.parametrize("version", [4, None])
def test_a_version_that_was_set_before_a_failure_was_known_counts_for_the_rows_after_it(
    remote: RemoteTable, version: int | None
) -> None:
    """The message with the version is dropped, together with the steps that were sent after the refused one."""
    remote.set_policy_version(9)
    with remote.writer(streaming=SLOW) as writer:
        writer.set_policy_version(3)
        writer.append(**step(0, 1))
        writer.append(**step(7, 8))  # no continuation of 1
        writer.set_policy_version(version)  # sends the block, and returns before the refusal is known
        with pytest.raises(errors.Unacknowledged) as caught:
            writer.flush()
        assert (caught.value.num_calls, caught.value.num_steps) == (3, 1)
        key = int(writer.append(**step(1, 2)))
        assert remote.gather([key], columns=["policy_version"])["policy_version"].tolist() == [version or 9]


@pytest.mark.parametrize("first", [1, None])
def test_rows_that_wait_for_the_link_keep_the_version_of_their_append(server: Server, first: int | None) -> None:
    with Proxy(int(server.address.rpartition(":")[2])) as proxy, connect(proxy.address + "/t") as remote:
        writer = remote.writer(streaming=Streaming())
        core: Any = writer._core
        writer.set_policy_version(first)
        writer.append(**step(0, 1))
        writer.flush()
        proxy.refuses = True
        proxy.cut()
        until(lambda: core._stream is None)
        with contextlib.suppress(errors.Unacknowledged):
            writer.flush()
        keys = [writer.append(**step(0, 1))]
        writer.set_policy_version(2)
        keys.append(writer.append(**step(1, 2)))
        proxy.refuses = False
        batch = remote.gather(np.array([int(key) for key in keys]), columns=["policy_version"])
        assert batch["policy_version"].tolist() == [first or 0, 2]
        writer.close()


def test_a_second_failure_keeps_the_lost_steps_of_the_first(server: Server, remote: RemoteTable) -> None:
    writer = remote.writer(streaming=Streaming(max_rows=32, linger_s=30.0))
    core: Any = writer._core
    writer.append(**step(0, 1))
    for t in range(7, 38):  # the first of these is refused, and the block is full with the last
        writer.append(**step(t, t + 1))
    until(lambda: core._failure is not None)
    server.close()
    until(lambda: core._stream is None)
    with pytest.raises(errors.Unacknowledged) as caught:
        writer.append(**step(1, 2))
    assert (caught.value.num_calls, caught.value.num_steps) == (32, 31)
    assert isinstance(caught.value.__cause__, errors.SeamMismatch)
    writer.close()


def test_a_server_that_closes_is_told_once(server: Server, remote: RemoteTable) -> None:
    """It refuses every message until it ends the streams, also the one that stands for the steps that were given up."""
    with remote.writer(streaming=SLOW) as writer:
        core: Any = writer._core
        writer.append(**step(0, 1))
        server._hosted["t"].closing.set()
        with pytest.raises(errors.Unacknowledged) as caught:
            writer.flush()
        assert isinstance(caught.value.__cause__, errors.ServiceUnavailable) and caught.value.num_steps == 1
        until(lambda: core._epoch > 9 or not (core._outbox or core._sent))
        writer.flush()
        assert core._epoch <= 2
        server._hosted["t"].closing.clear()


def test_a_writer_whose_lanes_end_without_a_lost_step_says_so(server: Server, remote: RemoteTable) -> None:
    writer = remote.writer(streaming=SLOW)
    writer.append(**step(0, 1))
    writer.flush()
    server.close()
    core: Any = writer._core
    until(lambda: core._failure is not None)
    with pytest.raises(
        errors.Unacknowledged, match="^no step is lost, but the lanes of the writer are cut: "
    ) as caught:
        writer.close()
    assert (caught.value.num_calls, caught.value.num_steps) == (0, 0)


@pytest.mark.parametrize("streaming", [None, SLOW], ids=["answered", "streamed"])
def test_a_call_that_is_too_large_for_a_message_is_refused_and_keeps_its_lanes(
    remote: RemoteTable, streaming: Streaming | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow sends no message of 2 GiB: it would end the stream, and with it the open episodes."""
    with remote.writer(streaming=streaming) as writer:
        stream = writer._core._stream  # type: ignore[union-attr]
        keys = [writer.append(**step(0, 1))]
        monkeypatch.setattr(encoding, "MAX_BODY_BYTES", 400)
        block = {"observation": np.zeros((30, 2), np.float32), "action": np.arange(30), "reward": np.zeros(30)}
        with pytest.raises(errors.InvalidConfig, match="at most 400 bytes") as caught:
            writer.extend(**block)
        assert caught.value.got == 30 * 20
        keys += [
            writer.append(**step(1, 2)),
            *writer.extend(observation=[state(2), state(3)], action=[2], reward=[0.0]),
        ]
        assert contents(remote, [int(key) for key in keys])["action"] == [0, 1, 2]
        monkeypatch.setattr(encoding, "MAX_BODY_BYTES", 8)
        with pytest.raises(errors.InvalidConfig, match="at most 8 bytes"):
            writer.append(**step(3, 4))
        assert writer._core._stream is stream  # type: ignore[union-attr]
        monkeypatch.undo()
        writer.append(**step(3, 4))


def test_no_block_of_steps_is_too_large_for_a_message(remote: RemoteTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "MAX_BODY_BYTES", 400)
    with remote.writer(streaming=Streaming(max_block_bytes=1 << 40, linger_s=30.0)) as writer:
        keys = [writer.append(**step(t, t + 1)) for t in range(100)]
        assert contents(remote, [int(key) for key in keys])["action"] == [*range(100)]
        assert max(key._part.num_calls for key in keys) <= 400 // 20


def write_streamed(writer: Any, count: int) -> None:
    for t in range(count):
        writer.append(**step(t, t + 1))


def test_synchronous_and_streamed_steps_are_the_same_table() -> None:
    """The same program through both kinds of writer, told apart by nothing."""
    said = []
    for streaming in (None, Streaming(max_rows=7)):
        with relive.Table(plain_spec(), 1000, prioritized(n_step=3)) as table:
            with serve({"t": table}, "grpc://127.0.0.1:0") as server, connect(server.address + "/t") as remote:
                keys: list[Any] = []
                with remote.writer(streaming=streaming) as writer:
                    for episode in range(20):
                        keys.append(np.atleast_1d(write_steps(writer, 100 * episode, 1 + episode % 5, truncated=True)))
                said.append(contents(table, np.concatenate(keys)))
    assert said[0] == said[1]


def test_a_server_that_hangs_is_told_in_time_also_with_a_large_block(host: Host, shm_name: Any) -> None:
    """The block may take the timeout for each of its steps, but a server without a sign of life does not get that."""
    address = host.serve(plain_spec(), 500, storage=relive.SharedMemory(shm_name()), max_lanes=4)
    with connect(address, timeout_s=2.0) as remote:
        writer = remote.writer(streaming=Streaming(max_rows=200, linger_s=30.0))
        stop_process(host.process.pid)
        try:
            write_streamed(writer, 200)
            with pytest.raises(errors.Unacknowledged, match="no byte came for 2 s"):
                writer.flush(100.0)
        finally:
            os.kill(host.process.pid, signal.SIGCONT)
    host.stop(address)


def test_a_server_that_hangs_is_told_in_time(host: Host, shm_name: Any) -> None:
    """Stopped, not dead: no error would ever come from the network."""
    address = host.serve(plain_spec(), 500, storage=relive.SharedMemory(shm_name()), max_lanes=4)
    with connect(address, timeout_s=2.0) as remote:
        writer = remote.writer(streaming=Streaming())
        keys = [writer.append(**step(t, t + 1)) for t in range(3)]
        writer.flush()
        stop_process(host.process.pid)
        try:
            start = time.monotonic()
            lost = writer.append(**step(3, 4))
            with pytest.raises((errors.Unacknowledged, errors.DeadlineExceeded)) as first:
                writer.flush(1.0)
            with pytest.raises(errors.Unacknowledged):
                int(lost)
            assert time.monotonic() - start < 5
        finally:
            os.kill(host.process.pid, signal.SIGCONT)
        if first.type is errors.DeadlineExceeded:  # else that was the writer's own word of it, said once
            with pytest.raises(errors.Unacknowledged):
                writer.append(**step(4, 5))
        again = [writer.append(**step(t, t + 1)) for t in range(3)]
        writer.flush(10.0)
        assert contents(remote, [int(one) for one in (*keys, *again)])["action"] == [0, 1, 2] * 2
    host.stop(address)
