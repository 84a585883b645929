"""Servers and clients that are killed or stopped: errors in time, nothing acknowledged lost, nothing left behind."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, final

import numpy as np
import pytest

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from contract.tools import contents, plain_spec, state, step, write_steps

import relive
from relive import errors
from relive.service import Streaming, connect, serve
from relive.service.client import batches as ahead
from relive.service.client.exchange import Exchange
from relive.service.server.hosting import Hosted
from service.hosts import Host
from service.proxy import Proxy

StartHost = Callable[[], Host]


@pytest.fixture
def table() -> Iterator[relive.Table]:
    with relive.Table(plain_spec(), 500) as one:
        with one.writer() as writer:
            write_steps(writer, 0, 100)
        yield one


def revive(start_host: StartHost, name: str, address: str) -> Host:
    """Another server of the same shared table at the same address."""
    host = start_host()
    assert host.attach(name, address.removesuffix("/table")) == address
    return host


@pytest.mark.forms(1)
@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGSTOP])
def test_a_server_that_dies_or_hangs_in_mid_call(start_host: StartHost, shm_name: Any, death: signal.Signals) -> None:
    """The error comes before the deadline; the same handle works again at the same address, nothing stored is lost."""
    host, name = start_host(), shm_name()
    address = host.serve(plain_spec(), 500, relive.Index(limiter=relive.MinSize(50)), storage=relive.SharedMemory(name))
    remote = connect(address, timeout_s=60.0)
    writer = remote.writer()
    keys = write_steps(writer, 0, 20)
    caught: list[tuple[float, errors.ReliveError]] = []

    def wait() -> None:
        start = time.monotonic()
        try:
            remote.sample(4, timeout_s=3.0)  # the limiter lets nobody pass yet
        except errors.ReliveError as problem:
            caught.append((time.monotonic() - start, problem))

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.3)
    os.kill(host.process.pid, death)
    waiting.join(10)
    assert len(caught) == 1 and caught[0][0] < 3.0
    assert isinstance(caught[0][1], errors.ServiceUnavailable) and caught[0][1].address == address
    with pytest.raises(errors.ServiceUnavailable):
        remote.draw(1, timeout_s=0.5)
    host.kill()

    host = revive(start_host, name, address)
    assert len(remote) == 20 and remote.gather(keys).present.all()
    assert contents(remote, keys)["action"] == list(range(20))
    with pytest.raises(errors.ServiceUnavailable):
        writer.append(**step(20, 21))  # its lanes went with the server: said once
    more = write_steps(writer, 20, 40)
    assert remote.sample(8).num_items == 8
    assert contents(remote, more)["action"] == list(range(20, 60))
    remote.check()
    remote.close()
    host.close()


def test_a_call_waits_for_a_server_that_comes_back(start_host: StartHost, shm_name: Any) -> None:
    host, name = start_host(), shm_name()
    address = host.serve(plain_spec(), 500, storage=relive.SharedMemory(name))
    remote = connect(address)
    assert len(remote) == 0
    host.kill()
    got: list[int] = []
    waiting = threading.Thread(target=lambda: got.append(len(remote)))
    waiting.start()
    host = revive(start_host, name, address)
    waiting.join(30)
    assert got == [0]
    remote.close()
    host.close()


def test_streamed_steps_of_a_server_that_is_killed(start_host: StartHost, shm_name: Any) -> None:
    """Acknowledged steps are there afterwards; all others are reported, and none comes twice."""
    host, name = start_host(), shm_name()
    address = host.serve(plain_spec(), 50_000, storage=relive.SharedMemory(name), max_lanes=8)
    remote = connect(address, timeout_s=20.0)
    writer = remote.writer(streaming=Streaming(max_rows=16))
    killer = threading.Timer(0.4, host.kill)
    killer.start()
    keys: list[Any] = []
    with pytest.raises(errors.Unacknowledged) as caught:
        for t in range(10_000_000):
            keys.append(writer.append(observation=state(0), action=t, reward=0.0, terminated=True))
    killer.join()
    assert isinstance(caught.value.__cause__, errors.ServiceUnavailable)
    lost = caught.value.num_steps
    acknowledged = [int(one) for one in keys[: len(keys) - lost]]
    for one in keys[len(keys) - lost :]:
        with pytest.raises(errors.Unacknowledged):
            int(one)

    host = revive(start_host, name, address)
    last = [writer.append(observation=state(1), action=-1, reward=0.0, terminated=True) for _ in range(3)]
    writer.flush()
    still = np.asarray(acknowledged[-30_000:], np.int64)
    first = len(acknowledged) - len(still)
    batch = remote.gather(still)
    assert batch.present.all() and batch["action"].tolist() == list(range(first, len(acknowledged)))
    assert remote.gather([int(one) for one in last])["action"].tolist() == [-1] * 3
    stored = remote.gather(np.unique(remote.sample(20_000).item_keys))["action"]
    assert len(set(stored[stored >= 0].tolist())) == (stored >= 0).sum(), "a step came twice"
    remote.check()
    remote.close()
    host.close()


@pytest.mark.forms(1)
@pytest.mark.parametrize("settled", [False, True], ids=["under way", "all answered"])
def test_batches_go_on_after_a_server_came_back(start_host: StartHost, shm_name: Any, settled: bool) -> None:
    host, name = start_host(), shm_name()
    address = host.serve(plain_spec(), 500, storage=relive.SharedMemory(name))
    remote = connect(address, timeout_s=20.0)
    with remote.writer() as writer:
        write_steps(writer, 0, 100)
    with remote.batches(8, prefetch=2) as batches:
        assert next(batches).num_items == 8
        if settled:  # nothing is asked for: only sending can find out that nobody is there
            time.sleep(0.5)
        host.kill()
        time.sleep(0.2 if settled else 0.0)
        with pytest.raises(errors.ServiceUnavailable):
            for _ in range(10):
                next(batches)
        host = revive(start_host, name, address)
        assert next(batches).num_items == 8
    assert remote.stats().indexes["default"].in_flight == 0
    remote.close()
    host.close()


def test_batches_that_a_broken_link_gave_back_are_not_handed_out() -> None:
    """The server gave back the batches in flight and their numbers, so it draws the same batches again."""
    with relive.Table(plain_spec(), 500) as table, serve({"t": table}, "grpc://127.0.0.1:0") as server:
        with table.writer() as writer:
            write_steps(writer, 0, 400)
        with Proxy(int(server.address.rpartition(":")[2])) as link, connect(link.address + "/t") as remote:
            with remote.batches(10, prefetch=4, timeout_s=60.0) as batches:

                def settle(holds: Callable[[], bool]) -> None:
                    ends = time.monotonic() + 60.0
                    while not holds() and time.monotonic() < ends:
                        time.sleep(0.005)
                    assert holds()

                seen = [next(batches).item_keys.tolist()]
                settle(lambda: len(batches._bringer.ready) == 4)
                link.cut()
                seen.append(next(batches).item_keys.tolist())  # the end of the link is not known yet
                settle(lambda: batches._bringer.error is not None)
                with pytest.raises(errors.ServiceUnavailable):
                    next(batches)
                seen += [next(batches).item_keys.tolist() for _ in range(6)]
            again = [number for number, keys in enumerate(seen) if keys in seen[:number]]
            assert again in ([], [2]), "only the batch that was handed out beside the cut may come twice"
            assert table.stats().indexes["default"].sampled == 70


@pytest.mark.parametrize("away", ["closed", "without a hello"])
def test_closing_batches_waits_for_no_server_that_is_away(
    away: str, table: relive.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that says no hello has as long as one that hangs in mid-stream."""
    monkeypatch.setattr(ahead, "_REPLY_S", 2.0)
    opens, greets, begun, goes_on = ahead.RemoteSource._open, Hosted.hello, threading.Event(), threading.Event()

    def open_noted(source: ahead.RemoteSource) -> Any:
        begun.set()
        return opens(source)

    def greet_late(hosted: Hosted) -> dict[str, Any]:
        goes_on.wait(180.0)
        return greets(hosted)

    with serve({"t": table}, "grpc://127.0.0.1:0") as server, Proxy(int(server.address.rpartition(":")[2])) as link:
        remote = connect(link.address + "/t")
        batches = remote.batches(8, prefetch=1, timeout_s=float("inf")).__enter__()
        assert next(batches).num_items == 8
        monkeypatch.setattr(ahead.RemoteSource, "_open", open_noted)
        monkeypatch.setattr(Hosted, "hello", greet_late)
        link.refuses = away == "closed"
        link.cut()
        with pytest.raises(errors.ServiceUnavailable):
            while True:
                next(batches)
        assert begun.wait(60.0)
        closing = threading.Thread(target=batches.close)
        closing.start()
        closing.join(60.0)
        is_hung = closing.is_alive()
        goes_on.set()
        remote.close()  # ends a wait that goes on
        closing.join(60.0)
        assert not is_hung and not closing.is_alive()


def _hold(address: str, ready: Any) -> None:
    remote = connect(address)
    writer = remote.writer(num_lanes=2)
    rows = {"observation": np.zeros((2, 2)), "action": [1, 1], "reward": [0.0, 0.0]}
    writer.append(**rows)
    writer.append(**rows)
    with remote.batches(2, prefetch=3, timeout_s=10.0) as batches:
        next(batches)
        time.sleep(0.3)
        ready.set()
        time.sleep(60)


def test_a_client_that_is_killed_gives_back_its_lanes_and_batches(host: Host, shm_name: Any) -> None:
    address = host.serve(plain_spec(), 500, storage=relive.SharedMemory(shm_name()), max_lanes=8)
    with connect(address) as remote:
        context = multiprocessing.get_context("spawn")
        ready = context.Event()
        client = context.Process(target=_hold, args=(address, ready), daemon=True)
        client.start()
        assert ready.wait(30)
        stats = remote.stats()
        assert stats.num_lanes == 2 and stats.indexes["default"].in_flight > 0
        client.kill()
        client.join()
        ends = time.monotonic() + 10
        while time.monotonic() < ends and (remote.stats().num_lanes or remote.stats().indexes["default"].in_flight):
            time.sleep(0.02)
        stats = remote.stats()
        assert stats.num_lanes == 0 and stats.indexes["default"].in_flight == 0
        remote.check()
    host.stop(address)


def test_nobody_there() -> None:
    start = time.monotonic()
    with pytest.raises(errors.ServiceUnavailable) as caught:
        connect("grpc://127.0.0.1:1/t", timeout_s=0.5)
    assert time.monotonic() - start < 5 and caught.value.reason


def test_patterns_go_on_with_new_episodes_after_a_restart(shm_name: Any) -> None:
    """The server that ended has cut the lanes: the next step begins an episode."""
    index = {"steps": relive.Index(), "items": relive.Index(relive.Explicit(3))}
    with relive.Table(plain_spec(), 500, index, storage=relive.SharedMemory(shm_name())) as table:
        first = serve({"table": table}, "grpc://127.0.0.1:0")
        with connect(f"{first.address}/table", timeout_s=30.0) as remote:
            writer = relive.PatternWriter(remote, remote.writer(), relive.Pattern(3, every=2))
            for number in range(4):
                writer.append(**step(number))
            assert table.num_items("items") == 1
            first.close()
            with serve({"table": table}, first.address):
                with pytest.raises(errors.ServiceUnavailable):
                    writer.append(**step(4))
                for number in range(10, 15):
                    writer.append(**step(number))
                assert (writer.num_waiting, writer.num_dropped, table.num_items("items")) == (0, 0, 3)
                writer.close()


@contextlib.contextmanager
def answers_lost(monkeypatch: pytest.MonkeyPatch, lost: BaseException) -> Iterator[None]:
    """`lost` is raised in place of the answers for this thread, which have come."""
    receive, mine = Exchange.receive, threading.current_thread()

    def receive_and_lose(stream: Exchange) -> Any:
        answer = receive(stream)
        if threading.current_thread() is mine:
            raise lost
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(Exchange, "receive", receive_and_lose)
        yield


@final
class LostAnswers:
    """A remote table. `lost` is raised once in place of the answer to create_items, which has come."""

    def __init__(self, table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self._table, self._monkeypatch = table, monkeypatch
        self.lost: BaseException | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    def create_items(self, *arguments: Any, **options: Any) -> Any:
        if self.lost is None:
            return self._table.create_items(*arguments, **options)
        lost, self.lost = self.lost, None
        with answers_lost(self._monkeypatch, lost):
            return self._table.create_items(*arguments, **options)


@pytest.mark.parametrize("lost", [ConnectionResetError, KeyboardInterrupt])
@pytest.mark.parametrize("streaming", [None, Streaming(linger_s=0.0)], ids=["plain", "streaming"])
def test_patterns_make_no_item_twice_if_an_answer_is_lost(
    monkeypatch: pytest.MonkeyPatch, lost: type[BaseException], streaming: Streaming | None
) -> None:
    index = {"steps": relive.Index(), "items": relive.Index(relive.Explicit(1))}
    with relive.Table(plain_spec(), 500, index) as table, serve({"table": table}, "grpc://127.0.0.1:0") as server:
        with connect(f"{server.address}/table", timeout_s=60.0) as remote:
            losing = LostAnswers(remote, monkeypatch)
            writer = relive.PatternWriter(losing, remote.writer(streaming=streaming), relive.Pattern(1, index="items"))
            writer.append(**step(0))
            losing.lost = lost("cut")
            with pytest.raises((errors.ServiceUnavailable, KeyboardInterrupt)) as caught:
                writer.append(**step(1))
            assert getattr(caught.value, "stored", 0) == 1
            writer.append(**step(2))
            writer.flush()
            made = np.concatenate(list(table.keys(index="items")))
            assert table.gather(made, index="items")["action"].ravel().tolist() == [0, 1, 2]
            assert (writer.num_waiting, writer.num_unanswered) == (0, 1)
            if isinstance(caught.value, errors.ServiceUnavailable):
                assert "may have made 1 of the 1 items" in str(caught.value)
            writer.close()


@pytest.mark.parametrize("lost", [ConnectionResetError, KeyboardInterrupt])
@pytest.mark.parametrize("call", ["append", "end_episode"])
def test_patterns_begin_an_episode_where_a_lost_answer_cut_the_lanes(
    monkeypatch: pytest.MonkeyPatch, call: str, lost: type[BaseException]
) -> None:
    index = {"steps": relive.Index(), "items": relive.Index(relive.Explicit(1))}
    with relive.Table(plain_spec(), 500, index) as table, serve({"table": table}, "grpc://127.0.0.1:0") as server:
        with connect(f"{server.address}/table", timeout_s=60.0) as remote:
            writer = relive.PatternWriter(remote, remote.writer(), relive.Pattern(1, index="items", every=2))
            for number in range(3):
                writer.append(**step(number))
            with answers_lost(monkeypatch, lost("cut")), pytest.raises((errors.ServiceUnavailable, KeyboardInterrupt)):
                writer.append(**step(3)) if call == "append" else writer.end_episode(next_observation=state(3))
            for number in range(10, 14):
                writer.append(**step(number))
            made = np.concatenate(list(table.keys(index="items")))
            assert table.gather(made, index="items")["action"].ravel().tolist() == [0, 2, 10, 12]
            writer.close()


def test_items_that_no_server_got_are_made_when_it_is_back() -> None:
    """A limiter holds the item back. Then no server is there: nothing is sent, and the item waits on."""
    items = relive.Index(relive.Explicit(1), limiter=relive.Queue(1), max_times_sampled=1)
    with relive.Table(plain_spec(), 500, {"steps": relive.Index(), "items": items}) as table:
        first = serve({"table": table}, "grpc://127.0.0.1:0")
        with connect(f"{first.address}/table", timeout_s=4.0) as remote:
            writer = relive.PatternWriter(remote, remote.writer(), relive.Pattern(1, index="items"))
            writer.append(**step(0))
            with pytest.raises(errors.DeadlineExceeded):
                writer.append(**step(1, 2), terminated=True, timeout_s=0.0)
            first.close()
            with pytest.raises(errors.ServiceUnavailable):
                remote.clear()  # no idle stream is left
            with pytest.raises(errors.ServiceUnavailable):
                writer.flush(0.0)
            assert (writer.num_waiting, writer.num_unanswered) == (1, 0)
            with serve({"table": table}, first.address):
                table.sample(1, index="items")
                writer.flush(60.0)
                assert (writer.num_waiting, writer.num_unanswered, table.num_items("items")) == (0, 0, 1)
                writer.close()
