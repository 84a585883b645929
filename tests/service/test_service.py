"""Servers and handles: who may connect to what, what is shared, and how it ends."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

import pyarrow.flight as flight
from contract.tools import plain_spec, prioritized, step, write_steps

import relive
from relive import errors
from relive.service import Server, ServerOptions, Streaming, connect, serve
from relive.service.server.pipe import Pipe
from relive.service.server.sessions import Session
from relive.service.wire.access import OPEN
from service.cutting import cut_as_answered
from service.hosts import Host

LOOPBACK = "grpc://127.0.0.1:0"


def test_several_tables_and_clients_of_one_server() -> None:
    """Each name is a table of its own; clients of one name see one table."""
    with relive.Table(plain_spec(), 100) as first, relive.Table(plain_spec(), 50) as second:
        with serve({"first": first, "second": second}, LOOPBACK) as server:
            with connect(server.address + "/first") as one, connect(server.address + "/first") as other:
                with one.writer() as writer:
                    keys = write_steps(writer, 0, 5)
                assert len(other) == 5 and other.gather(keys).present.all()
                with connect(server.address + "/second") as another:
                    assert len(another) == 0 and another.capacity == 50
        assert len(first) == 5, "the table outlives its server"


def test_relive_connect_is_the_same_thing() -> None:
    with relive.Table(plain_spec(), 100) as table, serve({"t": table}, LOOPBACK) as server:
        with relive.connect(server.address + "/t", timeout_s=5.0, spec=plain_spec()) as remote:
            assert remote.spec == plain_spec() and remote.timeout_s == 5.0
            assert isinstance(remote, relive.ReplayTable)


def test_who_is_refused() -> None:
    other = relive.StepSpec({"reward": relive.ArraySpec((), "float32")})
    with relive.Table(plain_spec(), 100) as table, serve({"t": table}, LOOPBACK) as server:
        with pytest.raises(errors.NoSuchTable):
            connect(server.address + "/nobody")
        with pytest.raises(errors.InvalidConfig) as caught:
            connect(server.address + "/t", spec=other)
        assert "spec" in caught.value.what
        addresses = ("127.0.0.1:7070/t", "http://127.0.0.1:1/t", server.address, "grpc://127.0.0.1:x/t", 1, np.ones(2))
        no_host_or_name = ("grpc://no such:1/t", "grpc://127.0.0.1\xa0:1/t", "grpc://127.0.0.1:1/\ud800")
        for address in (*addresses, *no_host_or_name):
            with pytest.raises(errors.InvalidConfig):
                connect(address)
    with pytest.raises(errors.InvalidConfig):
        serve({"a/b": table}, LOOPBACK)


@pytest.mark.parametrize("change", [{"relive": 99}, {"byte_order": "middle"}, {"layout_hash": "1"}, {"uuid": "00"}])
def test_another_layout_or_version_is_refused_by_the_server(change: dict[str, Any]) -> None:
    with relive.Table(plain_spec(), 100) as table, serve({"t": table}, LOOPBACK) as server:
        request = {"relive": 1, "byte_order": "little", "table": "t", "kind": "call", "spec": None}
        request |= {"uuid": None, "layout_hash": None} | change
        client = OPEN.client(server.address, [])
        writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(json.dumps(request).encode()))
        assert b"FormatMismatch" in reader.read_chunk().app_metadata.to_pybytes()
        writer.close()


@pytest.mark.parametrize("name", ["", "a/b", "a?b", "a?", "a#b", "50%25", "a\tb", "a\nb", "a\r", 7])
def test_a_name_that_no_address_has_is_refused(name: Any) -> None:
    with relive.Table(plain_spec(), 10) as table:
        with pytest.raises(errors.InvalidConfig, match="name of a served table.*without '/'"):
            serve({name: table}, "grpc://127.0.0.1:0")


@pytest.mark.parametrize("name", ["a b", "50%", "\u00fc", "\u65e5\u672c", "a;b", "a&b=c", "..", " a "])
def test_a_name_that_is_served_is_reached_as_it_is_written(name: str) -> None:
    with relive.Table(plain_spec(), 10) as table, serve({name: table}, "grpc://127.0.0.1:0") as server:
        with connect(f"{server.address}/{name}") as remote:
            assert len(remote) == 0


def test_another_table_behind_the_address_is_refused_by_the_client(host: Host, shm_name: Any) -> None:
    """After a restart the table must be the same one: keys of the old one mean nothing in a new one."""
    address = host.serve(plain_spec(), 100, storage=relive.SharedMemory(shm_name()))
    with connect(address) as remote:
        assert len(remote) == 0
        host.stop(address)
        again = host.serve(
            plain_spec(), 100, address=address.removesuffix("/table"), storage=relive.SharedMemory(shm_name())
        )
        assert again == address
        with pytest.raises((errors.FormatMismatch, errors.ServiceUnavailable)):
            len(remote)
        with pytest.raises(errors.FormatMismatch):
            len(remote)
    host.stop(address)


def test_errors_keep_their_class_and_fields() -> None:
    with relive.Table(plain_spec(), 100, max_lanes=4) as table, serve({"t": table}, LOOPBACK) as server:
        with connect(server.address + "/t") as remote:
            with pytest.raises(errors.TooManyLanes) as caught:
                remote.writer(num_lanes=5)
            assert (caught.value.asked, caught.value.free) == (5, 4)
            with remote.writer() as writer:
                writer.append(**step(0, 1))
                with pytest.raises(errors.SeamMismatch) as seam:
                    writer.append(**step(7, 8))
                assert (seam.value.lane, seam.value.column) == (0, "observation")
                assert str(seam.value) == str(errors.SeamMismatch(0, "observation"))


def test_replies_are_bounded_before_they_are_made() -> None:
    with relive.Table(plain_spec(), 100) as table:
        with serve({"t": table}, LOOPBACK, ServerOptions(max_reply_bytes=10_000)) as server:
            with connect(server.address + "/t") as remote, remote.writer() as writer:
                write_steps(writer, 0, 10)
                assert remote.sample(100).num_items == 100
                with pytest.raises(errors.InvalidConfig) as caught:
                    remote.sample(2_000_000_000)
                assert caught.value.what == "num_items"


def test_a_blocked_extend_blocks_nobody_else() -> None:
    limiter = relive.SamplesPerInsert(1.0, min_size=10, tolerance=10.0)
    with relive.Table(plain_spec(), 100, relive.Index(limiter=limiter), max_lanes=4) as table:
        with serve({"t": table}, LOOPBACK) as server, connect(server.address + "/t") as remote:
            with remote.writer() as writer:
                write_steps(writer, 0, 20)
                got: list[Any] = []
                waiting = threading.Thread(target=lambda: got.append(writer.append(**step(20, 21), timeout_s=30.0)))
                waiting.start()
                time.sleep(0.05)
                start = time.monotonic()
                with connect(server.address + "/t") as other:
                    assert len(other) == 20 and len(remote) == 20
                assert time.monotonic() - start < 5 and not got
                remote.draw(2)
                waiting.join(20)
                assert len(got) == 1


def test_a_block_goes_in_by_parts_over_there() -> None:
    """Window 20, 3 lanes, draws of 15: the server's slices of waiting never store a row twice, nor leave one out."""
    limiter = relive.SamplesPerInsert(1.0, min_size=10, tolerance=10.0)
    spec = relive.StepSpec({"number": relive.ArraySpec((), "int64")})
    with relive.Table(spec, 1000, relive.Index(limiter=limiter), max_lanes=3) as table:
        with serve({"t": table}, LOOPBACK) as server, connect(server.address + "/t") as remote:
            drawing = threading.Thread(target=lambda: [remote.draw(15, timeout_s=30.0) for _ in range(6)])
            drawing.start()
            keys = []
            with remote.writer(3) as writer:
                for first in range(0, 90, 18):
                    keys.append(writer.extend(number=np.arange(first, first + 18).reshape(6, 3), timeout_s=30.0))
                drawing.join(30)
            assert np.concatenate(keys).shape == (30, 3)
            numbers = remote.gather(np.concatenate(keys).ravel())["number"]
            assert numbers.tolist() == list(range(90)) and len(remote) == 90


@pytest.mark.parametrize("shape, lanes, fit", [((18,), None, 10), ((6, 3), 3, 9), ((1, 12), 12, 10)])
def test_what_is_stored_of_a_block_comes_with_the_error(shape: tuple[int, ...], lanes: int | None, fit: int) -> None:
    """Window 20, room for 10 rows, a draw of 15 waits: whole steps of 3 lanes fit beside it, none of 12 lanes."""
    limiter = relive.SamplesPerInsert(1.0, min_size=10, tolerance=10.0)
    spec = relive.StepSpec({"number": relive.ArraySpec((), "int64")})
    rows = np.arange(np.prod(shape)).reshape(shape)
    with relive.Table(spec, 1000, relive.Index(limiter=limiter), max_lanes=13) as table:
        with serve({"t": table}, LOOPBACK) as server, connect(server.address + "/t") as remote:
            with remote.writer(lanes) as writer, remote.writer() as other:
                other.extend(number=np.zeros(20, int))
                remote.draw(15)
                with pytest.raises(errors.DeadlineExceeded):
                    remote.draw(15, timeout_s=0.0)
                other.extend(number=np.zeros(5, int))
                with pytest.raises(errors.DeadlineExceeded) as caught:
                    writer.extend(number=rows, timeout_s=0.2)
                keys = caught.value.keys
                assert caught.value.stored == fit == len(remote) - 25 and keys is not None and keys.shape == (fit,)
                assert f"first {fit} of {rows.size} rows are stored" in str(caught.value)
                assert remote.gather(keys)["number"].tolist() == list(range(fit))


def test_streamed_steps_of_a_block_that_went_in_by_parts_are_counted() -> None:
    """Five lanes of one step each fit beside no draw of 18: what is stored of the failed step is acknowledged."""
    limiter = relive.SamplesPerInsert(1.0, min_size=10, tolerance=10.0)
    spec = relive.StepSpec({"number": relive.ArraySpec((), "int64")})
    with relive.Table(spec, 1000, relive.Index(limiter=limiter), max_lanes=6) as table:
        with serve({"t": table}, LOOPBACK) as server, connect(server.address + "/t") as remote:
            with remote.writer() as other:
                other.extend(number=np.zeros(20, int))
                remote.draw(18)
                with pytest.raises(errors.DeadlineExceeded):
                    remote.draw(18, timeout_s=0.0)
                other.extend(number=np.zeros(6, int))
                writer = remote.writer(5, streaming=Streaming(linger_s=0.0))
                for first in range(0, 20, 5):
                    writer.append(number=np.arange(first, first + 5), timeout_s=0.2)
                with pytest.raises(errors.Unacknowledged) as caught:
                    writer.flush(30.0)
                assert caught.value.num_steps == 20 - 12 and len(remote) == 26 + 12
                writer.close()


def test_threads_share_a_handle() -> None:
    with relive.Table(plain_spec(), 500, prioritized()) as table, serve({"t": table}, LOOPBACK) as server:
        with connect(server.address + "/t") as remote, remote.writer() as writer:
            write_steps(writer, 0, 300)
            wrong: list[BaseException] = []

            def read() -> None:
                try:
                    for _ in range(50):
                        batch = remote.sample(16)
                        assert (batch["observation"][:, 0] == batch["action"]).all()
                        remote.update_priorities(batch.item_keys, np.ones(16))
                except BaseException as problem:
                    wrong.append(problem)

            threads = [threading.Thread(target=read) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            assert not wrong
        table.check()


def test_large_rows_arrive_whole() -> None:
    """Bodies of many chunks."""
    spec = relive.StepSpec({"frame": relive.ArraySpec((1 << 20,), "uint8"), "number": relive.ArraySpec((), "int64")})
    with relive.Table(spec, 20) as table, serve({"t": table}, LOOPBACK) as server:
        with connect(server.address + "/t") as remote, remote.writer() as writer:
            frames = np.random.default_rng(0).integers(0, 256, (8, 1 << 20), np.uint8)
            keys = writer.extend(frame=frames, number=np.arange(8))
            batch = remote.gather(keys)
            assert (batch["frame"] == frames).all() and batch["number"].tolist() == list(range(8))
            drawn = remote.sample(5)
            assert (drawn["frame"] == frames[drawn["number"]]).all()


def test_closing_a_server_ends_calls_and_frees_the_address(host: Host) -> None:
    with relive.Table(plain_spec(), 100) as table:
        server = serve({"t": table}, LOOPBACK)
        remote = connect(server.address + "/t")
        caught: list[BaseException] = []

        def wait() -> None:
            try:
                remote.sample(4, timeout_s=60.0)
            except errors.ReliveError as problem:
                caught.append(problem)

        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(0.1)
        writer = remote.writer()
        writer.append(**step(0))
        start = time.monotonic()
        server.close()
        server.close()
        waiting.join(20)
        assert time.monotonic() - start < 8 and isinstance(caught[0], errors.ServiceUnavailable)
        assert table.stats().num_lanes == 0, "lanes of clients end with the server"
        with serve({"t": table}, server.address) as again:
            assert again.address == server.address
            assert len(remote) == 0, "the same handle works again"
            with pytest.raises(errors.ServiceUnavailable):
                writer.append(**step(1, 2))  # its lanes are gone: that must not pass unnoticed
            writer.append(**step(5, 6))
            assert len(remote) == 1
        writer.close()
        remote.close()


ENDS_WITH_A_WRITER_OPEN = """
import numpy as np
import relive
from relive.service import Streaming, serve
spec = relive.StepSpec({"a": relive.ArraySpec((), "float32")})
table = relive.Table(spec, 100)
server = serve({"t": table}, "grpc://127.0.0.1:0")
remote = relive.connect(server.address + "/t")
writer = remote.writer(streaming=STREAMING)
writer.append(a=1.0)
"""


@pytest.mark.parametrize("streaming", ["None", "Streaming()"])
def test_a_process_that_writes_to_its_own_server_ends(streaming: str) -> None:
    """Arrow ends a server by waiting for its streams, here those of the very process that ends: ours comes before."""
    programme = ENDS_WITH_A_WRITER_OPEN.replace("STREAMING", streaming)
    assert subprocess.run([sys.executable, "-c", programme], timeout=60).returncode == 0


def test_closing_a_handle_gives_lanes_and_streams_back() -> None:
    with relive.Table(plain_spec(), 100) as table, serve({"t": table}, LOOPBACK) as server:
        remote = connect(server.address + "/t")
        writer = remote.writer(num_lanes=3)
        assert table.stats().num_lanes == 3 and not writer.closed
        remote.close()
        assert table.stats().num_lanes == 0
        wait_for_streams(server, 0)
        with pytest.raises(errors.TableClosed):
            remote.sample(1)


def test_streams_are_bounded() -> None:
    with relive.Table(plain_spec(), 100) as table:
        with serve({"t": table}, LOOPBACK, ServerOptions(max_streams=2)) as server:
            with connect(server.address + "/t") as remote, remote.writer():
                with pytest.raises(errors.InvalidConfig):
                    remote.writer()
            wait_for_streams(server, 0)
            with connect(server.address + "/t") as remote, remote.writer() as writer:
                writer.append(**step(0, 1))


def test_use_after_fork_is_refused() -> None:
    with relive.Table(plain_spec(), 100) as table, serve({"t": table}, LOOPBACK) as server:
        with connect(server.address + "/t") as remote, remote.writer() as writer:
            streaming = remote.writer(streaming=Streaming())
            waiting = remote.writer(streaming=Streaming(linger_s=30.0))
            waiting.append(**step(0, 1))  # a block that the child finds open
            pid = os.fork()
            if pid == 0:
                signal.alarm(60)  # a call that is not refused may wait for a lock of the parent's for ever
                refused = 0
                for call in (
                    lambda: waiting.append(**step(1, 2)),
                    lambda: len(remote),
                    lambda: writer.append(**step(0)),
                    lambda: streaming.append(**step(0)),
                ):
                    try:
                        call()
                    except errors.ForkedHandle:
                        refused += 1
                    except BaseException:
                        os._exit(1)
                remote.close()
                os._exit(7 if refused == 4 else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
            assert len(remote) == 1


def test_a_closed_server_leaves_nothing_to_the_collector() -> None:
    """Arrow's server joins its threads when it is freed: a forked child that collected one as garbage would crash. And
    it has let go of a stream's ends when that is over, which whoever collects garbage would free at any later time.
    """
    gc.collect()
    gc.disable()
    try:
        with relive.Table(plain_spec(), 100) as table, serve({"one": table}, LOOPBACK) as server:
            with connect(server.address + "/one") as remote, remote.writer() as writer:
                write_steps(writer, 0, 20)
                remote.sample(2)
                with remote.batches(8, prefetch=2) as batches:
                    assert len(next(batches).item_keys) == 8
                remote.parameters.publish({"weight": np.zeros(3, np.float32)}, 1)
                assert server.num_streams >= 3
        # Not gc.collect() first: what only that would free is what is asked for.
        assert not [one for one in gc.get_objects() if isinstance(one, (flight.FlightServerBase, Pipe, Session))]
    finally:
        gc.enable()


def wait_for_streams(server: Server, count: int) -> None:
    ends = time.monotonic() + 10
    while server.num_streams != count and time.monotonic() < ends:
        time.sleep(0.01)
    assert server.num_streams == count


def test_a_stream_cut_as_its_answer_came_serves_no_other_call(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    with connect(host.serve(plain_spec(), 100)) as remote:
        with remote.writer() as writer:
            write_steps(writer, 0, 20)
        cut = cut_as_answered(monkeypatch)
        assert remote.sample(4).num_items == 4 and cut
        assert remote.sample(4).num_items == 4 and remote.num_items() == 20
