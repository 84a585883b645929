"""Large answers in chunks, repeated requests, and what a process says to gRPC."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

import pyarrow as pa
import pyarrow.flight as flight
from contract.tools import plain_spec, prioritized, write_steps

import relive
from relive import errors
from relive.service import connect, serve
from relive.service.client import batches as ahead
from relive.service.client.exchange import Exchange, Watch
from relive.service.server.pipe import BODY, CHUNK_BYTES, SMALL_BYTES
from relive.service.wire import framing
from relive.service.wire.access import OPEN
from service.doors import Stream
from service.proxy import Proxy

LOOPBACK = "grpc://127.0.0.1:0"


# ---- chunks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "num_bytes", [SMALL_BYTES - 64, SMALL_BYTES, CHUNK_BYTES - 8, CHUNK_BYTES, 2 * CHUNK_BYTES + 1]
)
def test_bodies_about_the_size_of_a_chunk_arrive_whole(num_bytes: int) -> None:
    spec = relive.StepSpec({"frame": relive.ArraySpec((num_bytes,), "uint8"), "number": relive.ArraySpec((), "int64")})
    with relive.Table(spec, 8) as table, serve({"t": table}, LOOPBACK) as server:
        with connect(server.address + "/t") as remote, remote.writer() as writer:
            frames = np.random.default_rng(num_bytes).integers(0, 256, (3, num_bytes), np.uint8)
            keys = writer.extend(frame=frames, number=np.arange(3), terminated=True)
            for count in (1, 2, 5):
                batch = remote.sample(count)
                assert (batch["frame"] == frames[batch["number"]]).all()
                assert batch.item_keys.tolist() == keys[batch["number"]].tolist()
                assert batch.probabilities.tolist() == [1 / 3] * count
            assert (remote.gather(keys)["frame"] == frames).all()
            with remote.batches(4, prefetch=3) as batches:
                for _ in range(6):
                    batch = next(batches)
                    assert (batch["frame"] == frames[batch["number"]]).all()


@contextmanager
def linked() -> Iterator[tuple[Proxy, relive.service.RemoteTable]]:
    """A link to a table of 100 frames of 4 kB, and a handle over it."""
    spec = relive.StepSpec({"frame": relive.ArraySpec((4096,), "uint8")})
    with relive.Table(spec, 200) as table, serve({"t": table}, LOOPBACK) as server:
        with table.writer() as writer:
            writer.extend(frame=np.zeros((100, 4096), np.uint8), terminated=True)
        with Proxy(int(server.address.rpartition(":")[2])) as link, connect(link.address + "/t") as remote:
            yield link, remote


def test_a_batch_on_a_slow_link_comes_before_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows on their way are waited for; a link that is silent is not."""
    monkeypatch.setattr(ahead, "_REPLY_S", 2.0)
    with linked() as (link, remote):
        link.bytes_a_second = 128 * 4096 / 4.0
        with remote.batches(128, prefetch=1, timeout_s=600.0) as batches:
            assert next(batches).num_items == 128
            link.stall(True)
            with pytest.raises(errors.ServiceUnavailable, match="no byte came for 2 s"):
                next(batches), next(batches)
            link.stall(False)
            link.bytes_a_second = None
            assert next(batches).num_items == 128


def test_the_end_of_batches_does_not_wait_for_a_slow_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "_REPLY_S", 1.0)
    with linked() as (link, remote):
        link.bytes_a_second = 128 * 4096 / 200.0
        with remote.batches(128, prefetch=1, timeout_s=600.0) as batches:
            source: Any = batches._bringer._source
            ends = time.monotonic() + 60.0
            while not (source._num_sent and source._stream.deadline < float("inf")) and time.monotonic() < ends:
                time.sleep(0.005)
            began = time.monotonic()
        assert time.monotonic() - began < 100.0
        link.bytes_a_second = None


def test_a_client_that_goes_in_mid_answer_leaves_nothing() -> None:
    """It reads one chunk of 64 MB and is gone: its stream ends, its batch is given back, others go on."""
    spec = relive.StepSpec({"frame": relive.ArraySpec((1 << 20,), "uint8")})
    with relive.Table(spec, 8) as table, serve({"t": table}, LOOPBACK) as server:
        with table.writer() as writer:
            writer.extend(frame=np.zeros((8, 1 << 20), np.uint8), terminated=True)
        for kind in ("call", "hold"):
            client = OPEN.client(server.address, [])
            request = {"relive": framing.VERSION, "byte_order": sys.byteorder, "table": "t", "kind": kind}
            command = json.dumps({**request, "spec": None, "uuid": None, "layout_hash": None}).encode()
            sending, receiving = client.do_exchange(flight.FlightDescriptor.for_command(command))
            receiving.read_chunk()
            header = {"op": "sample", "index": 0, "names": ["frame"], "n": 64, "timeout_s": 5.0, "handed_out": 0}
            sending.write_metadata(framing.encode(header))
            chunk = receiving.read_chunk()
            told, _ = framing.decode(chunk.app_metadata)
            assert told["body_bytes"] == (64 << 20) + 2 * 512 and chunk.data.num_rows == CHUNK_BYTES
            receiving.cancel()
            with pytest.raises((flight.FlightError, pa.ArrowException)):
                sending.close()
            client.close()
            ends = time.monotonic() + 10
            while server.num_streams and time.monotonic() < ends:
                time.sleep(0.01)
            assert server.num_streams == 0
        with connect(server.address + "/t") as remote:
            assert remote.sample(2).num_items == 2
        assert table.stats().indexes["default"].sampled == 64 + 2  # the call's, counted as sent; not the held ones
        table.check()


class _Chunk(NamedTuple):
    data: Any
    app_metadata: Any


class _Reader:
    """What a server might send."""

    def __init__(self, *chunks: _Chunk) -> None:
        self._chunks = iter(chunks)

    def read_chunk(self) -> _Chunk:
        return next(self._chunks)


class _Cancelled(_Reader):
    def cancel(self) -> None: ...


def _bytes(count: int, message: bytes | None = None) -> _Chunk:
    column = pa.array(np.arange(count, dtype=np.uint8))
    return _Chunk(pa.RecordBatch.from_arrays([column], schema=BODY), message)


def _received(*chunks: _Chunk, num_bytes: int = 10) -> npt.NDArray[np.uint8]:
    reader = _Reader(*chunks)
    stream = Exchange(None, reader, Watch(owner=reader))
    return stream.receive_block(*stream.receive(), num_bytes)


@pytest.mark.parametrize(
    ("last_byte_s", "ends_s"),
    [(3.0, 0.01), (1.5, 0.21), (0.5, 0.51), (None, 0.21)],  # ago, when the wait begins; None: the system does not tell
)
def test_only_an_answer_that_may_be_there_gets_time_to_be_read(last_byte_s: float | None, ends_s: float) -> None:
    """Two servers were asked two seconds ago, and the wait for the second begins now. A second of silence is the end.

    Without a byte since the question there is no answer to read: many silent servers cost one wait.
    """

    reader, now = _Cancelled(), time.monotonic()
    watch = Watch(reader, lambda: None if last_byte_s is None else last_byte_s + clock - now)
    stream = Exchange(None, reader, watch, silence_s=1.0)
    watch.sleeps, clock = False, now  # no thread: the looks are made here
    stream.begin(now + 10.0, now - 2.0)
    while not stream.expired:
        clock += 0.01
        watch._expire(clock)
    assert stream.was_silent and clock - now == pytest.approx(ends_s, abs=0.02)


@pytest.mark.parametrize("told", [True, False])
def test_a_reader_that_stood_still_gives_its_server_a_second_again(told: bool) -> None:
    """It was stopped for three seconds, or had no processor: what came meanwhile is not read yet."""
    reader, now = _Cancelled(), time.monotonic()
    watch = Watch(reader, lambda: clock - now if told else None)  # the last byte came as it was asked
    stream = Exchange(None, reader, watch, silence_s=1.0)
    watch.sleeps, clock = False, now  # no thread: the looks are made here
    stream.begin(now + 10.0, now)
    watch._expire(clock)
    clock += 3.0
    while not stream.expired:
        watch._expire(clock)
        clock += 0.01
    assert stream.was_silent and clock - now == pytest.approx(4.0, abs=0.03)


def test_a_body_is_what_its_header_says() -> None:
    first = framing.encode({"body_bytes": 10})
    whole = _received(_bytes(4, first), _bytes(6))
    assert whole.tolist() == [*range(4), *range(6)]
    assert _received(_Chunk(None, framing.encode({}, bytes(10)))).tolist() == [0] * 10
    for chunks in (
        (_bytes(4, first), _bytes(7)),  # more than it said
        (_bytes(11, first),),
        (_bytes(4, framing.encode({"body_bytes": 11})),),  # more than was asked for
        (_bytes(4, first), _bytes(3, first)),  # another message in the middle
        (_bytes(4, framing.encode({})),),  # bytes that were not announced
        (_Chunk(None, framing.encode({}, bytes(9))),),
    ):
        with pytest.raises(errors.BadMessage):
            _received(*chunks)
    with pytest.raises(StopIteration):  # a stream that ends in mid-answer
        _received(_bytes(4, first), _bytes(3))


# ---- requests in the same words ------------------------------------------------------------------------------------


@pytest.fixture
def remote() -> Iterator[relive.service.RemoteTable]:
    with relive.Table(plain_spec(), 100, prioritized()) as table, serve({"t": table}, LOOPBACK) as server:
        with connect(server.address + "/t") as one:
            yield one


def test_a_header_that_repeats_means_its_own_body(remote: relive.service.RemoteTable) -> None:
    with remote.writer() as writer:
        keys = write_steps(writer, 0, 8)
    for chosen in ([0, 1], [2, 3], [2, 7], [0, 1]):  # one header, other bodies
        assert remote.gather(keys[chosen])["action"].tolist() == chosen
    for chosen in range(8):
        assert remote.update_priorities(keys[[chosen]], [0.0 if chosen != 5 else 4.0]) == 1
    assert set(remote.sample(16)["action"].tolist()) == {5}


def test_requests_that_differ_in_one_thing_are_not_confused(remote: relive.service.RemoteTable) -> None:
    kinds = {"action": "int64", "reward": "float32"}
    with remote.writer() as writer:
        write_steps(writer, 0, 8)
        for _ in range(2):
            for count, names in ((4, ["action"]), (4, ["reward"]), (5, ["action"]), (4, ["action", "reward"])):
                batch = remote.sample(count, columns=names)
                assert list(batch) == names and batch.num_items == count
                assert [str(batch[name].dtype) for name in names] == [kinds[name] for name in names]
    remote.clear()
    for timeout_s in (0.0, 0.3, 0.0):
        start = time.monotonic()
        with pytest.raises(errors.DeadlineExceeded):
            remote.sample(4, timeout_s=timeout_s)
        assert time.monotonic() - start >= 0.8 * timeout_s


def test_a_call_that_names_a_writer_of_the_server_before_waits_for_no_other_writer() -> None:
    """A call that only reads is sent again to the next server, with the same message."""
    with relive.Table(plain_spec(), 10) as table, serve({"t": table}, LOOPBACK) as server:
        writer = Stream(f"{server.address}/t", "write", None)
        before = writer.hears()["session"]
        writer.close()
    with relive.Table(plain_spec(), 10) as table, serve({"t": table}, LOOPBACK) as server:
        address = f"{server.address}/t"
        writer, asks = Stream(address, "write", None), Stream(address, "call", None)
        assert writer.hears()["session"] != before and asks.hears()
        asks.say(op="num_steps", after=[[before, 2**61]], timeout_s=2.0)
        assert asks.hears()["value"] == 0
        asks.close()
        writer.close()


# ---- what gRPC is told ---------------------------------------------------------------------------------------------

SAY = """
import os
from relive.service.wire.transport import with_few_wakeups as make
seen = [make(lambda: os.environ.get("GRPC_EXPERIMENTS")) for _ in range(2)]
print(*seen, os.environ.get("GRPC_EXPERIMENTS"))
"""


@pytest.mark.parametrize("said", [None, "some_experiment"])
def test_grpc_is_told_once_and_the_environment_is_left_alone(said: str | None) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_EXPERIMENTS"}
    if said is not None:
        environment["GRPC_EXPERIMENTS"] = said
    done = subprocess.run([sys.executable, "-c", SAY], capture_output=True, text=True, env=environment, check=True)
    first = "-event_engine_client,-event_engine_listener" if said is None else said
    assert done.stdout.split() == [first, str(said), str(said)]


def test_a_maker_that_fails_is_not_the_first() -> None:
    fail = SAY.replace("seen =", "try: make(lambda: 1 / 0)\nexcept ZeroDivisionError: pass\nseen =")
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_EXPERIMENTS"}
    done = subprocess.run([sys.executable, "-c", fail], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.split()[0] == "-event_engine_client,-event_engine_listener"


# ---- other calls of Flight -------------------------------------------------------------------------------------------


def test_other_calls_of_flight_are_refused_in_a_sentence() -> None:
    """A traceback would show any client the files of the server."""
    anything = flight.FlightDescriptor.for_command(b"x")

    def put(client: Any) -> None:
        writer, _ = client.do_put(anything, pa.schema([]))
        writer.close()

    with relive.Table(plain_spec(), 10) as table, serve({"t": table}, LOOPBACK) as server:
        client = OPEN.client(server.address, [("grpc.use_local_subchannel_pool", 1)])
        calls = {
            "get_flight_info": lambda: client.get_flight_info(anything),
            "get_schema": lambda: client.get_schema(anything),
            "list_flights": lambda: list(client.list_flights()),
            "do_get": lambda: client.do_get(flight.Ticket(b"x")).read_all(),
            "do_put": lambda: put(client),
            "list_actions": lambda: list(client.list_actions()),
            "do_action": lambda: list(client.do_action("other")),
        }
        expected = flight.FlightServerError, OSError  # OSError: of get_schema
        for call in calls.values():
            with pytest.raises(expected, match="answers do_exchange and the action") as caught:
                call()
            assert "Traceback" not in str(caught.value) and ".py" not in str(caught.value)
