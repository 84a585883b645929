"""One rank draws for a group: the same batch everywhere, counted once, and what goes wrong heard by all."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from contract.tools import plain_spec, write_steps

import relive
from fleet.tools import Together, in_threads
from relive import errors
from relive.fleet import GroupReader, RankFailed, RankLost, RanksDisagree


def made(index: Any = None, steps: int = 50, **options: Any) -> relive.Table:
    table = relive.Table(plain_spec(), 1000, index, timeout_s=20.0, **options)
    if steps:
        with table.writer() as writer:
            write_steps(writer, 0, steps)
    return table


def bits(batch: relive.Batch) -> bytes:
    arrays = {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in batch.flat().items()}
    drawn = batch.item_keys.tobytes(), batch.probabilities.tobytes(), batch.num_live_items
    return pickle.dumps((arrays, drawn, batch.weights(0.4).tobytes()))


INDEXES = {
    "transitions": relive.Index(relive.Transitions(n_step=3), relive.Prioritized(0.6)),
    "sequences": relive.Index(relive.Sequences(4, period=2)),
    "episodes": relive.Index(relive.Episodes(64)),
    "ragged": relive.Index(relive.Episodes(64, layout="ragged")),
    "shuffled": relive.Index(sampler=relive.Shuffle()),
}


@pytest.mark.parametrize("kind", INDEXES)
@pytest.mark.parametrize("carries", ["rows", "keys"])
def test_all_ranks_have_the_leaders_batch_and_it_counts_once(kind: str, carries: Any) -> None:
    with relive.Table(plain_spec(), 1000, INDEXES[kind]) as table:
        with table.writer() as writer:
            for first in range(0, 60, 10):
                write_steps(writer, first, 10, truncated=True)
        before = table.stats().indexes["default"].sampled

        def work(rank: int, exchange: Any) -> Any:
            reader = GroupReader(table if rank == 1 or carries == "keys" else None, exchange, carries, leader=1)
            assert reader.is_leader == (rank == 1)
            return [bits(reader.sample(size, timeout_s=20.0)) for size in (5, 1, 7)]

        told = in_threads(work, 3)
        assert told[0] == told[1] == told[2] and len(set(told[0])) == 3
        assert table.stats().indexes["default"].sampled - before == 13


def test_the_leader_draws_what_the_table_would() -> None:
    alone = made(INDEXES["transitions"])
    expected = [bits(alone.sample(8, columns=["action", "reward"])) for _ in range(3)]
    for carries in ("rows", "keys"):
        table = made(INDEXES["transitions"])

        def work(rank: int, exchange: Any, table: Any = table, carries: Any = carries) -> Any:
            reader = GroupReader(table, exchange, carries)
            return [bits(reader.sample(8, ["action", "reward"])) for _ in range(3)]

        assert in_threads(work, 2) == [expected, expected]


def test_what_a_rank_does_not_find_is_drawn_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Items go between the draw and the rank's look: all ranks leave them out, and nothing is counted twice."""
    table = made()
    plain = table.gather_arrays
    deleted: list[int] = []
    lock = threading.Lock()

    def gather(selection: Any, keys: np.ndarray, timeout_s: float | None = None) -> Any:
        with lock:
            if len(deleted) < 12:
                mine = keys[: 4 + len(deleted) % 3]
                deleted.extend(mine.tolist())
                table.delete(mine)
        return plain(selection, keys)

    monkeypatch.setattr(table, "gather_arrays", gather)

    def work(rank: int, exchange: Any) -> Any:
        batch = GroupReader(table, exchange, "keys").sample(16)
        return bits(batch), batch.item_keys.tolist(), batch["action"].tolist()

    told = in_threads(work, 3)
    assert told[0] == told[1] == told[2] and len(told[0][1]) == 16
    assert deleted and not set(told[0][1]) & set(deleted)
    assert [key - min(told[0][1]) for key in told[0][1]] == [number - min(told[0][2]) for number in told[0][2]]


def test_no_rank_gathers_longer_than_the_leader_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that calls later than the leader has more time left. Its message would come too late for the leader."""
    table = made()
    plain, lock = table.gather_arrays, threading.Lock()
    given: list[float] = []

    def gather(selection: Any, keys: np.ndarray, timeout_s: float) -> Any:
        with lock:
            if not given:
                table.delete(keys[:2])
            given.append(timeout_s)
        return plain(selection, keys)

    monkeypatch.setattr(table, "gather_arrays", gather)

    def work(rank: int, exchange: Any) -> Any:
        return bits(GroupReader(table, exchange, "keys").sample(16, timeout_s=500.0 if rank else 100.0))

    told = in_threads(work, 3)
    assert told[0] == told[1] == told[2]
    assert len(given) >= 6 and max(given) <= 100.0


def test_what_goes_wrong_is_heard_by_all_and_the_group_goes_on() -> None:
    table = made(steps=0)

    def work(rank: int, exchange: Any) -> Any:
        reader = GroupReader(table if rank == 0 else None, exchange)
        told = []
        for arguments in ({"timeout_s": 0.1}, {"columns": ["other"]}, {"num_items": 4 + rank}):
            try:
                reader.sample(**{"num_items": 4, "timeout_s": 10.0, **arguments})
            except errors.ReliveError as error:
                told.append(error)
            if arguments == {"columns": ["other"]} and rank == 0:
                with table.writer() as writer:
                    write_steps(writer, 0, 5)
        return told, bits(reader.sample(4))

    told = in_threads(work, 3)
    assert told[0][1] == told[1][1] == told[2][1]
    for rank, (late, wrong, other) in enumerate(one for one, _ in told):
        assert isinstance(late, errors.DeadlineExceeded) and isinstance(other, errors.InvalidConfig)
        assert isinstance(wrong, errors.UnknownColumn if rank == 0 else RankFailed)
        assert rank == 0 or ("other" in str(wrong) and wrong.rank == 0)
    assert table.stats().indexes["default"].sampled == 4


@pytest.mark.parametrize("carries", ["rows", "keys"])
def test_names_of_equal_value_are_the_same_arguments(carries: Any) -> None:
    table = made(INDEXES["transitions"])

    def work(rank: int, exchange: Any) -> Any:
        text = np.str_ if rank else str
        columns = [text("action"), text("reward")]
        return bits(
            GroupReader(table, exchange, carries).sample(8, columns, index=text("default"), where=text("action > 2"))
        )

    told = in_threads(work, 2)
    assert isinstance(told[0], bytes) and told[0] == told[1]


def test_a_rank_whose_table_is_closed_is_named() -> None:
    table, closed = made(), made()
    closed.close()

    def work(rank: int, exchange: Any) -> Any:
        GroupReader(closed if rank == 1 else table, exchange, "keys").sample(4)

    told = in_threads(work, 2)
    assert isinstance(told[0], RankFailed) and told[0].rank == 1 and isinstance(told[1], errors.TableClosed)
    assert table.stats().indexes["default"].sampled == 0


@pytest.mark.parametrize("options", [({"carries": "keys"}, {}), ({}, {"carries": "keys"}), ({}, {"leader": 1})])
def test_readers_that_differ_are_refused_on_every_rank(options: Any) -> None:
    table = made()

    def work(rank: int, exchange: Any) -> Any:
        GroupReader(table, exchange, **options[rank]).sample(4, timeout_s=20.0)

    told = in_threads(work, 2)
    what = next(name for one in options for name in one)
    assert [type(error) for error in told] == [RanksDisagree, RanksDisagree]
    assert [error.rank for error in told] == [1, 0] and all(what in error.what for error in told)
    assert told[0].expected == told[1].got != told[0].got
    assert table.stats().indexes["default"].sampled == 0


def test_after_a_call_that_was_given_up_there_is_none() -> None:
    class GoneExchange:
        rank, world = 1, 2

        def all_gather(self, mine: bytes, timeout_s: float) -> list[bytes]:
            raise errors.DeadlineExceeded("all 2 ranks", "none of rank 0", timeout_s)

        def broadcast(self, given: Any, num_bytes: int, source: int, timeout_s: float) -> Any:
            raise AssertionError

    reader = GroupReader(None, GoneExchange())
    with pytest.raises(errors.DeadlineExceeded, match="rank 0"):
        reader.sample(4, timeout_s=0.0)
    with pytest.raises(RankLost):
        reader.sample(4)


def test_bad_arguments_are_refused() -> None:
    table = made()
    leads, follows = Together(2).ranks()
    wrong: list[tuple[Any, ...]] = [
        (None, leads),
        (7, leads),
        ("table", follows),
        (None, follows, "keys"),
        (table, leads, "all"),
        (table, leads, "rows", 2),
    ]
    for arguments in wrong:
        with pytest.raises(errors.InvalidConfig):
            GroupReader(*arguments)
    reader = GroupReader(None, follows)
    for size in (0, 1.5, None):
        with pytest.raises(errors.InvalidConfig):
            reader.sample(size)  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidConfig):
        reader.sample(4, timeout_s=-1.0)


@pytest.mark.parametrize(
    ("index", "columns"), [(relive.Index(max_times_sampled=2), None), (relive.Index(), ["staleness"])]
)
def test_what_keys_cannot_carry_is_refused_on_all(index: Any, columns: Any) -> None:
    table = made(index)
    for carries, kind in (("keys", errors.InvalidConfig), ("rows", bytes)):

        def work(rank: int, exchange: Any, carries: Any = carries) -> Any:
            return bits(GroupReader(table, exchange, carries).sample(4, columns))

        assert all(isinstance(one, (kind, RankFailed)) for one in in_threads(work, 2))


# ---- a leader whose table is served ----------------------------------------------------------------------------------


class Patient:
    """An exchange of ranks that are threads, each of which waits until its deadline alone."""

    def __init__(self, rank: int, world: int, barrier: threading.Barrier, told: list[bytes]) -> None:
        self.rank, self.world = rank, world
        self._barrier, self._told = barrier, told

    def all_gather(self, mine: bytes, timeout_s: float) -> list[bytes]:
        self._told[self.rank] = mine
        try:
            self._barrier.wait(timeout_s)
            told = list(self._told)
            self._barrier.wait(timeout_s)
        except threading.BrokenBarrierError:
            raise errors.DeadlineExceeded("all ranks", "fewer", timeout_s) from None
        return told

    def broadcast(self, given: Any, num_bytes: int, source: int, timeout_s: float) -> np.ndarray:
        told = self.all_gather(b"" if given is None else given.tobytes(), timeout_s)
        return np.frombuffer(bytearray(told[source]), np.uint8)


@contextmanager
def served(index: Any = None) -> Iterator[tuple[Any, Any]]:
    """A remote table, whose handle waits longer than a group, and the link to its server."""
    pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")
    from service.proxy import Proxy

    from relive.service import connect, serve

    with made(index) as table, serve({"t": table}, "grpc://127.0.0.1:0") as server:
        with Proxy(int(server.address.rpartition(":")[2])) as link:
            with connect(link.address + "/t", timeout_s=30.0) as remote:
                yield remote, link
                link.stall(False)


def patient(world: int) -> list[Patient]:
    barrier, told = threading.Barrier(world), [b""] * world
    return [Patient(rank, world, barrier, told) for rank in range(world)]


def test_a_server_that_hangs_at_a_draw_costs_the_group_one_call() -> None:
    with served() as (remote, link):
        ranks = patient(2)

        def work(rank: int, exchange: Any) -> Any:
            reader = GroupReader(remote if rank == 0 else None, ranks[rank])
            reader.sample(4, timeout_s=20.0)
            if rank == 0:
                link.stall(True)
            with pytest.raises((errors.ServiceUnavailable, RankFailed)):
                reader.sample(4, timeout_s=2.0)
            if rank == 0:
                link.stall(False)
            return bits(reader.sample(4, timeout_s=20.0))

        told = in_threads(work, 2)
        assert isinstance(told[0], bytes) and told[0] == told[1]


@pytest.mark.parametrize(("carries", "uses"), [("rows", None), ("rows", 2), ("keys", None)])
def test_a_server_that_hangs_at_the_count_costs_the_group_one_call(
    carries: Any, uses: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ranks raise an error, as after a draw that fails."""
    with served(relive.Index(max_times_sampled=uses)) as (remote, link):
        from relive.service.client.held_draws import RemoteDraws

        ranks, tell = patient(2), RemoteDraws.tell

        def stalled(*arguments: Any) -> None:
            monkeypatch.setattr(RemoteDraws, "tell", tell)
            link.stall(True)
            tell(*arguments)

        def work(rank: int, exchange: Any) -> Any:
            reader = GroupReader(remote if rank == 0 or carries == "keys" else None, ranks[rank], carries)
            reader.sample(4, timeout_s=20.0)
            if rank == 0:
                monkeypatch.setattr(RemoteDraws, "tell", stalled)
            with pytest.raises((errors.ServiceUnavailable, RankFailed)):
                reader.sample(4, timeout_s=2.0)
            if rank == 0:
                link.stall(False)
            return bits(reader.sample(4, timeout_s=20.0))

        told = in_threads(work, 2)
        assert isinstance(told[0], bytes) and told[0] == told[1]


def test_a_server_that_hangs_after_the_count_keeps_no_rank_from_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    with served() as (remote, link):
        from relive.service.client.held_draws import RemoteDraws

        ranks, tell = patient(2), RemoteDraws.tell

        def stalled(*arguments: Any) -> None:
            monkeypatch.setattr(RemoteDraws, "tell", tell)
            tell(*arguments)
            link.stall(True)

        monkeypatch.setattr(RemoteDraws, "tell", stalled)

        def work(rank: int, exchange: Any) -> Any:
            reader = GroupReader(remote if rank == 0 else None, ranks[rank])
            began = time.monotonic()
            reader.sample(4, timeout_s=20.0)
            assert time.monotonic() - began < 8.0, "a second for the end of the stream, and not ten"
            if rank == 0:
                link.stall(False)
            return bits(reader.sample(4, timeout_s=20.0))

        told = in_threads(work, 2)
        assert isinstance(told[0], bytes) and told[0] == told[1]


def test_a_server_that_hangs_at_a_gather_holds_no_rank_up_longer_than_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The handle of each rank would wait longer than the group."""
    with served() as (remote, link):
        from relive.service.client.remote_core import RemoteCore

        ranks, gather = patient(2), RemoteCore.start_gather

        def stalled(*arguments: Any) -> Any:
            link.stall(True)
            return gather(*arguments)

        def work(rank: int, exchange: Any) -> Any:
            reader = GroupReader(remote, ranks[rank], "keys")
            reader.sample(4, timeout_s=20.0)
            ranks[rank].all_gather(b"", 60.0)
            monkeypatch.setattr(RemoteCore, "start_gather", stalled)
            began = time.monotonic()
            with pytest.raises((errors.ServiceUnavailable, RankFailed)):
                reader.sample(4, timeout_s=2.0)
            assert time.monotonic() - began < 15.0, "not the 30 s of the handle"
            ranks[rank].all_gather(b"", 60.0)
            if rank == 0:
                monkeypatch.setattr(RemoteCore, "start_gather", gather)
                link.stall(False)
            ranks[rank].all_gather(b"", 60.0)
            return bits(reader.sample(4, timeout_s=20.0))

        told = in_threads(work, 2)
        assert isinstance(told[0], bytes) and told[0] == told[1]
