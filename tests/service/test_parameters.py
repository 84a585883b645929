"""Parameters beside a served table: whole or not at all, never back, in time, whoever dies in the middle."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from contract.tools import plain_spec

import relive
from relive import errors
from relive.service import Parameters, ParameterStore, RemoteTable, Server, ServerOptions, connect, serve
from relive.service.parameters.sets import publication_of
from relive.service.parameters.store import MOST_SENT
from relive.service.wire import framing
from service.hosts import Host
from service.proxy import Proxy
from service.publishing import Raw, begin, numbered, version_in

StartHost = Callable[[], Host]
BOTH = pytest.mark.parametrize("publishes, pulls", [("there", "here"), ("here", "there"), ("there", "there")])


@pytest.fixture
def server() -> Iterator[Server]:
    options = ServerOptions(max_parameter_bytes=64 << 20)
    with relive.Table(plain_spec(), 100) as table, serve({"t": table}, "grpc://127.0.0.1:0", options) as one:
        yield one


@pytest.fixture
def remote(server: Server) -> Iterator[RemoteTable]:
    with connect(server.address + "/t", timeout_s=20.0) as one:
        yield one


def faces(server: Server, remote: RemoteTable) -> dict[str, Parameters]:
    return {"here": server.parameters("t"), "there": remote.parameters}


# ---- what comes is what was given ----------------------------------------------------------------------------------


@BOTH
def test_arrays_come_as_they_were_given(server: Server, remote: RemoteTable, publishes: str, pulls: str) -> None:
    source, target = faces(server, remote)[publishes], faces(server, remote)[pulls]
    assert (target.version, target.pull(), target.finished) == (0, None, False)
    rng = np.random.default_rng(0)
    given = {
        "large": rng.normal(size=(700, 1000)).astype(np.float32),
        "half": rng.normal(size=3).astype(np.float16),
        "transposed": np.arange(6, dtype=np.int64).reshape(2, 3).T,
        "big endian": np.arange(4, dtype=">f8"),
        "scalar": np.uint8(7),
        "none": np.empty((0, 4), np.float64),
        "flags": np.array([True, False]),
        "complex": np.array([1 + 2j], np.complex64),
        "a list": [1.5, 2.5],
        "ünïcode/π": np.ones(1, np.int8),
    }
    about = {"agent": "dqn", "lr": 1e-4, "hidden": [64, 64], "ü": None}
    source.publish(given, 7, about)
    found = target.pull()
    assert found is not None and found.version == 7 == target.version and found.about == about
    assert list(found.arrays) == list(given)
    for name, value in given.items():
        array, wanted = found.arrays[name], np.asarray(value)
        assert array.shape == wanted.shape and array.dtype == wanted.dtype.newbyteorder("=")
        assert np.array_equal(array, wanted) and not array.flags.writeable
    assert target.pull(newer_than=7) is None and target.pull(newer_than=6) is not None
    given["large"][:] = 0.0
    assert target.pull().arrays["large"].any(), "a copy was published"  # type: ignore[union-attr]


BAD: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    (([1.0], 1), {}), (({}, 1), {}), ((None, 1), {}), (({1: [1.0]}, 1), {}), (({"": [1.0]}, 1), {}),
    (({"a": "text"}, 1), {}), (({"a": object()}, 1), {}), (({"a": [[1], [1, 2]]}, 1), {}),
    (({"a": np.ma.array([1.0, 2.0], mask=[0, 1])}, 1), {}), (({"a": [np.ma.masked, 2.0]}, 1), {}),
    (({"a": np.zeros(1, "M8[s]")}, 1), {}), (({"a": [1.0]}, 0), {}), (({"a": [1.0]}, -1), {}),
    (({"a": [1.0]}, True), {}), (({"a": [1.0]}, 1.5), {}), (({"a": [1.0]}, 2**63), {}),
    (({"a": [1.0]}, 1), {"about": 3}),
    (({"a": [1.0]}, 1), {"about": {"x": float("nan")}}), (({"a": [1.0]}, 1), {"about": {"x": object()}}),
    (({"a": [1.0]}, 1), {"about": {"x": "y" * 300_000}}), (({"a": [1.0]}, 1), {"timeout_s": -1.0}),
    (({"a": np.zeros(65 << 20, np.uint8)}, 1), {}), (({f"{n}": [1.0] for n in range(5000)}, 1), {}),
]  # fmt: skip


@pytest.mark.parametrize("where", ["here", "there"])
def test_what_is_refused_changes_nothing(server: Server, remote: RemoteTable, where: str) -> None:
    face = faces(server, remote)[where]
    for values, named in BAD:
        with pytest.raises(errors.InvalidConfig):
            face.publish(*values, **named)
    for wrong in (-1, 1.5, True, None, "1", 2**70):
        with pytest.raises(errors.InvalidConfig):
            face.pull(newer_than=wrong)  # type: ignore[arg-type]
    for seconds in (-1.0, float("nan"), None):
        with pytest.raises(errors.InvalidConfig):
            face.pull(timeout_s=seconds)  # type: ignore[arg-type]
    assert server.parameters("t").version == 0 == remote.parameters.version
    face.publish({"a": [1.0]}, 1)
    assert server.parameters("t").version == 1


@pytest.mark.parametrize("where", ["here", "there"])
def test_versions_never_go_back(server: Server, remote: RemoteTable, where: str) -> None:
    face = faces(server, remote)[where]
    face.publish(numbered(5), 5)
    for version in (1, 4):
        with pytest.raises(errors.StaleVersion) as caught:
            face.publish(numbered(version), version)
        assert (caught.value.version, caught.value.newest) == (version, 5)
    with pytest.raises(errors.StaleVersion):
        face.publish(numbered(6), 5)  # the same number for something else
    face.publish(numbered(5), 5)  # whose answer was lost
    assert version_in(face.pull()) == 5
    face.publish(numbered(9), 9)
    assert version_in(face.pull(newer_than=5)) == 9


def test_a_naive_store_does_the_same(server: Server, remote: RemoteTable) -> None:
    """Seeded programs of calls on both faces, beside a twin that is one variable."""
    both, rng = faces(server, remote), random.Random(4)
    newest = 0
    for _ in range(300):
        face, version = both[rng.choice(("here", "there"))], rng.randrange(max(newest - 2, 1), newest + 4)
        if rng.random() < 0.5:
            is_other = version == newest and rng.random() < 0.5
            if version > newest or (version == newest and not is_other):
                face.publish(numbered(version, 100), version)
                newest = version
            else:
                with pytest.raises(errors.StaleVersion):
                    face.publish(numbered(version + is_other, 100), version)
        else:
            found = face.pull(newer_than=version)
            assert (None if found is None else version_in(found)) == (newest if newest > version else None)
        assert face.version == newest
    assert newest > 50


# ---- waiting -------------------------------------------------------------------------------------------------------


@BOTH
def test_a_pull_waits_for_a_newer_one(server: Server, remote: RemoteTable, publishes: str, pulls: str) -> None:
    source, target = faces(server, remote)[publishes], faces(server, remote)[pulls]
    source.publish(numbered(1), 1)
    got: list[Any] = []
    waiting = threading.Thread(target=lambda: got.append(target.pull(newer_than=1, timeout_s=60.0)))
    waiting.start()
    time.sleep(0.7)
    assert not got, "it waits, over a slice too"
    source.publish(numbered(2), 2)
    waiting.join(30)
    assert version_in(got[0]) == 2


@pytest.mark.parametrize("where", ["here", "there"])
def test_a_pull_ends_at_its_deadline_or_when_none_will_come(server: Server, remote: RemoteTable, where: str) -> None:
    face, store = faces(server, remote)[where], server.parameters("t")
    store.publish(numbered(1), 1)
    start = time.monotonic()
    assert face.pull(newer_than=1, timeout_s=1.5) is None and not face.finished
    assert 0.7 < time.monotonic() - start < 10.0
    got: list[Any] = []
    waiting = threading.Thread(target=lambda: got.append(face.pull(newer_than=1, timeout_s=float("inf"))))
    waiting.start()
    time.sleep(0.2)
    store.finish()
    waiting.join(30)
    assert got == [None] and face.finished
    assert version_in(face.pull()) == 1 and face.finished, "the last one is still there"
    with pytest.raises(errors.InvalidConfig):
        face.publish(numbered(2), 2)


def test_an_interrupted_publication_gives_the_seat_back(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    store = server.parameters("t")

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(store, "replace", interrupted)
        store.publish(numbered(1), 1, timeout_s=60.0)
    store.publish(numbered(2), 2, timeout_s=0.0)
    assert store.version == 2


def test_a_server_that_closes_waits_for_nobody() -> None:
    with relive.Table(plain_spec(), 100) as table:
        server = serve({"t": table}, "grpc://127.0.0.1:0")
        caught: list[BaseException] = []

        def pull(face: Parameters) -> None:
            try:
                face.pull(timeout_s=60.0)
            except errors.ReliveError as problem:
                caught.append(problem)

        with connect(server.address + "/t") as remote:
            waiting = [threading.Thread(target=pull, args=(face,)) for face in faces(server, remote).values()]
            for one in waiting:
                one.start()
            time.sleep(0.3)
            store, start = server.parameters("t"), time.monotonic()
            server.close()
            assert time.monotonic() - start < 5.0
            remote.close()
            for one in waiting:
                one.join(30)
        kinds = {type(one) for one in caught}
        assert len(caught) == 2 and kinds <= {errors.ServiceUnavailable, errors.TableClosed}
        with pytest.raises(errors.ServiceUnavailable):
            store.publish(numbered(1), 1)


# ---- many at once --------------------------------------------------------------------------------------------------


def test_readers_and_publishers_at_once(server: Server, remote: RemoteTable) -> None:
    """Four publishers share one count, four readers see whole versions that only grow; the last one reaches all."""
    both, last, lock = list(faces(server, remote).values()), 120, threading.Lock()
    count = iter(range(1, last + 1))
    problems: list[BaseException] = []
    ordered = [0]

    def publish(face: Parameters) -> None:
        while True:
            with lock:
                version = next(count, 0)
            if not version:
                return
            try:
                face.publish(numbered(version), version, {"version": version}, timeout_s=60.0)
                ordered[0] += 1
            except errors.StaleVersion:
                pass  # another one was quicker with a later version
            except BaseException as problem:
                problems.append(problem)
                return

    def read(face: Parameters) -> None:
        seen = 0
        try:
            while seen < last:
                found = face.pull(newer_than=seen, timeout_s=60.0)
                assert found is not None and found.version > seen
                assert version_in(found) == found.version == found.about["version"]
                seen = found.version
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=publish, args=(both[n % 2],)) for n in range(4)]
    threads += [threading.Thread(target=read, args=(both[n % 2],)) for n in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(100)
    assert not problems and not any(one.is_alive() for one in threads)
    assert server.parameters("t").version == last and ordered[0] > 1


def test_memory_is_bounded() -> None:
    """S4: what is on its way stays, no more than MOST_SENT versions are; a further reader waits, a publisher never."""
    store = ParameterStore("t", 1 << 20)
    blocks: dict[int, Any] = {}

    def publish(version: int) -> None:
        publication = publication_of(numbered(version, 10), version, None, 1 << 20)
        blocks[version] = weakref.ref(publication.block)
        incoming = store.begin(publication, time.monotonic() + 5)
        assert incoming is not None
        incoming.commit()
        incoming.close()

    def alive() -> set[int]:
        gc.collect()
        return {version for version, block in blocks.items() if block() is not None}

    readers = []
    for version in range(1, MOST_SENT + 1):
        publish(version)
        readers.append(store.sending(0, 0.0))
        assert readers[-1].__enter__().version == version  # type: ignore[union-attr]
        with store.sending(0, 0.0) as shared:
            assert shared is not None and shared.version == version, "what is on its way is for others, too"
            del shared
    for version in range(MOST_SENT + 1, 10):
        publish(version)
    assert alive() == {*range(1, MOST_SENT + 1), 9}
    with store.sending(0, 0.1) as none:
        assert none is None
    found = store.pull()
    assert found is not None and found.version == 9, "nothing is on its way to who is here"
    readers[0].__exit__(None, None, None)
    with store.sending(0, 5.0) as ninth:
        assert ninth is not None and ninth.version == 9
        del ninth
    readers[1].__exit__(None, None, None)
    del readers, found
    assert alive() == {9}


def test_readers_that_hang_hold_up_nobody_for_ever(server: Server, remote: RemoteTable) -> None:
    """Two that ask and never read what comes have both places; after their own deadline others get newer versions."""
    store, hanging = server.parameters("t"), []
    for version in (1, 2):
        store.publish(numbered(version, 15_000_000), version)
        hanging.append(Raw(server))
        hanging[-1].send({"op": "pull", "newer_than": 0, "timeout_s": 0.0, "lease_s": 2.0})
        ends = time.monotonic() + 20
        while len(store._sent) < version and time.monotonic() < ends:
            time.sleep(0.01)
    store.publish(numbered(3, 100), 3)
    assert len(store._sent) == 2 and remote.parameters.pull(timeout_s=0.0) is None
    found = remote.parameters.pull(timeout_s=30.0)
    assert version_in(found) == 3 and {version for version, _ in store._sent} >= {1, 2}
    for one in hanging:
        one.end()
    ends = time.monotonic() + 20
    while store._sent and time.monotonic() < ends:
        time.sleep(0.01)
    assert not store._sent, "their streams are over"


# ---- half-sent -----------------------------------------------------------------------------------------------------


def test_a_publisher_without_the_seat_keeps_no_bytes(server: Server) -> None:
    store = server.parameters("t")
    given = publication_of(numbered(1, 100), 1, None, 1 << 20)
    announced = given._replace(block=np.empty(0, np.uint8))
    hanging = store.begin(announced, time.monotonic())
    assert hanging is not None
    hanging.put(given.block[:100])
    store.publish(numbered(2, 100), 2)  # takes the seat: the deadline of `hanging` is over
    with pytest.raises(errors.DeadlineExceeded):
        hanging.put(given.block[100:200])
    assert version_in(store.pull()) == 2


def test_a_publication_that_stays_half_sent(server: Server, remote: RemoteTable) -> None:
    store = server.parameters("t")
    store.publish(numbered(1, 100), 1)
    header, block = begin(2, timeout_s=1.5)
    hanging = Raw(server)
    assert hanging.ask(header) == {"there": False}
    hanging.send({"op": "part"}, block[:100])
    with pytest.raises(errors.DeadlineExceeded):
        store.publish(numbered(3, 100), 3, timeout_s=0.1)
    assert version_in(remote.parameters.pull()) == 1
    remote.parameters.publish(numbered(3, 100), 3)  # waits until the deadline of who hangs
    assert version_in(store.pull()) == 3
    hanging.send({"op": "part"}, block[100:200])
    hanging.send({"op": "part"}, block[200:])  # without the seat, the server keeps no bytes of it
    assert hanging.ask({"op": "commit"}) == "DeadlineExceeded"
    assert version_in(store.pull()) == 3

    dying = Raw(server)
    header, block = begin(4, timeout_s=60.0)
    assert dying.ask(header) == {"there": False}
    dying.send({"op": "part"}, block[:100])
    dying.end()
    remote.parameters.publish(numbered(5, 100), 5)  # the seat came back with the stream
    assert version_in(store.pull()) == 5
    hanging.end()


def test_bytes_that_are_not_those_announced(server: Server, remote: RemoteTable) -> None:
    store, raw = server.parameters("t"), Raw(server)
    store.publish(numbered(1, 100), 1)
    header, block = begin(2)

    def send(*parts: Any) -> Any:
        assert raw.ask(header) == {"there": False}
        for part in parts:
            raw.send({"op": "part"}, part)
        return raw.ask({"op": "commit"})

    spoilt = block.copy()
    spoilt[7] ^= 1
    assert send(spoilt) == "BadMessage" and send(block[:-1]) == "BadMessage" and send() == "BadMessage"
    assert send(block, bytes(1)) == "BadMessage" and raw.ask({"op": "commit"}) == "BadMessage"
    assert raw.ask({**header, "arrays": [["w", "|O", [1]]]}) == "BadMessage"
    assert raw.ask({**header, "arrays": [["w", "<f4", [2**39]]]}) == "InvalidConfig"
    assert raw.ask({**header, "arrays": [["w", "<f4", [2**39, 2**39]]]}) == "BadMessage"
    assert raw.ask({**header, "version": 1}) == "StaleVersion"
    assert raw.ask({"op": "pull", "newer_than": 0, "timeout_s": 0.0, "note": {"x": "y" * 70_000}}) == "InvalidConfig"
    assert store.version == 1 and send(block[:50], block[50:]) == {"version": 2}
    assert version_in(remote.parameters.pull()) == 2
    raw.end()


def test_another_version_of_the_service_is_refused(server: Server) -> None:
    for version in (framing.VERSION - 1, framing.VERSION + 1, None):
        raw = Raw(server, relive=version)
        assert raw.hello["error"]["type"] == "FormatMismatch"
        raw.end()


def _publish_for_ever(address: str, started: Any) -> None:
    with connect(address) as remote:
        started.set()
        for version in range(1, 1_000_000):
            remote.parameters.publish(numbered(version, 4_000_000), version, timeout_s=60.0)


def test_a_publisher_that_is_killed(server: Server, remote: RemoteTable) -> None:
    """At whatever byte: readers see whole versions, and the next publisher need not wait for a deadline."""
    context = multiprocessing.get_context("spawn")
    seen = 0
    for wait_s in (0.11, 0.17):
        started = context.Event()
        process = context.Process(target=_publish_for_ever, args=(server.address + "/t", started), daemon=True)
        process.start()
        assert started.wait(60)
        found = remote.parameters.pull(newer_than=seen, timeout_s=30.0) if not seen else None
        time.sleep(wait_s)
        process.kill()
        process.join()
        found = remote.parameters.pull(timeout_s=10.0)
        assert found is not None and version_in(found) == found.version
        seen = found.version + 10
        remote.parameters.publish(numbered(seen, 100), seen, timeout_s=20.0)
        assert version_in(server.parameters("t").pull()) == seen


# ---- servers and links that fail -----------------------------------------------------------------------------------


@pytest.mark.forms(1)
@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGSTOP])
def test_a_server_that_dies_or_hangs(start_host: StartHost, shm_name: Any, death: signal.Signals) -> None:
    host, name = start_host(), shm_name()
    address = host.serve(plain_spec(), 100, storage=relive.SharedMemory(name))
    host.publish(address, numbered(3), 3)
    with connect(address) as remote:
        assert version_in(remote.parameters.pull()) == 3
        caught: list[tuple[float, BaseException]] = []

        def wait() -> None:
            start = time.monotonic()
            try:
                remote.parameters.pull(newer_than=3, timeout_s=3.0)
            except errors.ReliveError as problem:
                caught.append((time.monotonic() - start, problem))

        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(0.3)
        assert host.process.pid is not None
        os.kill(host.process.pid, death)
        waiting.join(30)
        assert len(caught) == 1 and caught[0][0] < 8.0 and isinstance(caught[0][1], errors.ServiceUnavailable)
        with pytest.raises(errors.ServiceUnavailable):
            remote.parameters.publish(numbered(4), 4, timeout_s=1.0)
        host.kill()

        host = start_host()
        assert host.attach(name, address.removesuffix("/table")) == address
        assert remote.parameters.version == 0, "they lived in the process"
        remote.parameters.publish(numbered(4), 4)
        assert version_in(remote.parameters.pull(newer_than=3)) == 4
    host.close()


def test_a_link_that_breaks_in_mid_transfer(server: Server) -> None:
    """Nobody sees a half: the rest is asked for anew, in the same call, as long as there is time."""
    store = server.parameters("t")
    store.publish(numbered(1, 2_000_000), 1)
    with Proxy(int(server.address.rpartition(":")[2])) as proxy, connect(proxy.address + "/t") as remote:
        for cuts_after in (200, 100_000, 3_000_000, 7_999_999):
            before = proxy.num_connections
            proxy.cuts_after = cuts_after
            found = remote.parameters.pull(timeout_s=30.0)
            assert version_in(found) == 1 and proxy.num_connections > before
        proxy.cuts_after = 1000
        remote.parameters.publish(numbered(2, 2_000_000), 2, timeout_s=30.0)
        assert version_in(store.pull()) == 2

        proxy.stall(True)
        start = time.monotonic()
        with pytest.raises(errors.ServiceUnavailable):
            remote.parameters.pull(timeout_s=2.0)
        with pytest.raises(errors.ServiceUnavailable):
            remote.parameters.publish(numbered(3, 2_000_000), 3, timeout_s=2.0)
        assert time.monotonic() - start < 15.0 and store.version == 2
        proxy.stall(False)
        assert version_in(remote.parameters.pull(timeout_s=30.0)) == 2


# ---- the rest ------------------------------------------------------------------------------------------------------


def test_notes_are_heard_with_their_stream_and_its_end(server: Server) -> None:
    heard: list[tuple[int, Any]] = []
    server.parameters("t").listen(lambda stream, note: heard.append((stream, note)))
    server.parameters("t").publish(numbered(1, 10), 1)
    with connect(server.address + "/t") as one, connect(server.address + "/t") as other:
        assert version_in(one.parameters.pull(note={"steps": 4})) == 1
        one.parameters.pull(note={"steps": 5})
        other.parameters.pull(note={"steps": 6})
        one.parameters.pull()
        for wrong in ([1], {"x": object()}, {"x": float("nan")}, {"x": "y" * 70_000}):
            with pytest.raises(errors.InvalidConfig):
                one.parameters.pull(note=wrong)  # type: ignore[arg-type]
    ends = time.monotonic() + 20
    while len(heard) < 5 and time.monotonic() < ends:
        time.sleep(0.02)
    (first, _), _, (second, _), *_ = heard
    assert heard[:3] == [(first, {"steps": 4}), (first, {"steps": 5}), (second, {"steps": 6})] and first != second
    assert sorted(heard[3:], key=str) == sorted([(first, None), (second, None)], key=str)


def test_unknown_names_and_closed_handles(server: Server, remote: RemoteTable) -> None:
    with pytest.raises(errors.NoSuchTable):
        server.parameters("other")
    parameters = remote.parameters
    remote.close()
    with pytest.raises(errors.TableClosed):
        parameters.pull()


def test_a_forked_child_is_told_to_connect_anew(server: Server, remote: RemoteTable) -> None:
    """The streams are the parent's, who goes on."""
    remote.parameters.publish(numbered(1, 10), 1)
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            remote.parameters.pull()
        except errors.ForkedHandle:
            os.write(writes, b"refused")
        finally:
            os._exit(0)
    os.close(writes)
    os.waitpid(child, 0)
    assert os.read(reads, 20) == b"refused"
    os.close(reads)
    assert version_in(remote.parameters.pull()) == 1
