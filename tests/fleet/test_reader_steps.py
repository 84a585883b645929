"""The steps of a GroupReader's call: a rank gives up in each of them, fails in each of them, or is in another call."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from contract.tools import plain_spec, write_steps

import relive
from fleet.tools import Together, in_threads
from relive import errors
from relive.fleet import GroupReader, RankFailed, RankLost, RanksDisagree, group_reader
from relive.fleet.draws.messages import Message
from relive.fleet.draws.pace import Wait


def made(index: Any = None) -> relive.Table:
    table = relive.Table(plain_spec(), 1000, index, timeout_s=20.0)
    with table.writer() as writer:
        write_steps(writer, 0, 50)
    return table


def used_once() -> relive.Index:
    return relive.Index(sampler=relive.Fifo(), max_times_sampled=1)


class Leaves:
    """The exchange of a leader. The other rank has made `num_calls` calls of a collective, and makes no more."""

    rank, world = 0, 2

    def __init__(self, num_calls: int) -> None:
        self.left = num_calls

    def all_gather(self, mine: bytes, timeout_s: float) -> list[bytes]:
        self._call(timeout_s)
        return [mine, mine]

    def broadcast(self, given: Any, num_bytes: int, source: int, timeout_s: float) -> Any:
        if self.left:  # without a receiver the source returns early
            self._call(timeout_s)
        return given

    def _call(self, timeout_s: float) -> None:
        if not self.left:
            raise errors.DeadlineExceeded("all 2 ranks of the group", "none of rank 1", timeout_s)
        self.left -= 1


@pytest.mark.parametrize("num_calls", [0, 1, 2])
@pytest.mark.parametrize("carries", ["rows", "keys"])
def test_a_batch_that_a_rank_did_not_receive_goes_back(num_calls: int, carries: Any) -> None:
    with made(used_once() if carries == "rows" else None) as table:
        reader = GroupReader(table, Leaves(num_calls), carries)
        with pytest.raises(errors.DeadlineExceeded, match="rank 1"):
            reader.sample(32, timeout_s=0.0)
        told = table.stats().indexes["default"]
        assert (told.sampled, told.in_flight) == (0, 0)
        assert table.sample(50, timeout_s=0.0).num_items == 50, "every item is there"
        with pytest.raises(RankLost):
            reader.sample(32)


def test_no_rank_has_a_batch_that_the_table_did_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the owner of a shard falls silent: the uses of the draw may be counted or not."""
    table = made(used_once())
    commit, fails = group_reader._Held.commit, [True]

    def fail(held: Any, wait: Any) -> None:
        if fails.pop() if fails else False:
            raise errors.ServiceUnavailable("grpc://somewhere", 1.0, "no answer")
        commit(held, wait)

    monkeypatch.setattr(group_reader._Held, "commit", fail)

    def work(rank: int, exchange: Any) -> Any:
        reader = GroupReader(table if rank == 0 else None, exchange)
        with pytest.raises(errors.ServiceUnavailable if rank == 0 else RankFailed, match="no answer"):
            reader.sample(4)
        return reader.sample(4).item_keys.tolist()

    told = in_threads(work, 3)
    assert told[0] == told[1] == told[2] and len(told[0]) == 4
    assert table.stats().indexes["default"].sampled == 4


def test_rows_that_a_rank_never_finds_are_looked_for_until_the_deadline(
    monkeypatch: pytest.MonkeyPatch, most_looks: int = 20_000
) -> None:
    table, num_looks = made(), 0
    gather, lock = table.gather_arrays, threading.Lock()

    def find_none(selection: Any, keys: Any, timeout_s: float | None = None) -> Any:
        nonlocal num_looks
        with lock:
            num_looks += 1
        if num_looks > most_looks:
            raise TimeoutError("ranks look without an end")
        arrays, present = gather(selection, keys)
        return arrays, np.zeros_like(present)

    monkeypatch.setattr(table, "gather_arrays", find_none)

    def work(rank: int, exchange: Any) -> Any:
        reader = GroupReader(table, exchange, "keys")
        with pytest.raises(errors.DeadlineExceeded, match="16 items"):
            reader.sample(16, timeout_s=0.1)
        monkeypatch.setattr(table, "gather_arrays", gather)
        return reader.sample(16).item_keys.tolist()

    told = in_threads(work, 2)
    assert told[0] == told[1] and len(told[0]) == 16
    assert table.stats().indexes["default"].sampled == 16


@pytest.mark.parametrize("fails_on", [0, 1])
@pytest.mark.parametrize(
    "error", [errors.ServiceUnavailable("grpc://somewhere", 1.0, "no answer"), MemoryError("full")]
)
def test_a_rank_that_cannot_gather_tells_the_others(
    error: Exception, fails_on: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = made()
    rows, fails = group_reader._Held.rows, [True]

    def fail(held: Any, keys: Any, wait: Any) -> Any:
        if threading.current_thread().name == str(fails_on) and fails:
            raise fails.pop() and error
        return rows(held, keys, wait)

    monkeypatch.setattr(group_reader._Held, "rows", fail)

    def work(rank: int, exchange: Any) -> Any:
        threading.current_thread().name = str(rank)
        reader = GroupReader(table, exchange, "keys")
        with pytest.raises(type(error) if rank == fails_on else RankFailed, match=re.escape(str(error))):
            reader.sample(4)
        return reader.sample(4).item_keys.tolist()

    told = in_threads(work, 3)
    assert told[0] == told[1] == told[2] and len(told[0]) == 4
    assert table.stats().indexes["default"].sampled == 4


@pytest.mark.parametrize("theirs", [b"", bytes(8), bytes(8) + b"\1" * 60, b"\xff" * 200])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_in_another_kind_of_call_is_named_on_every_reader(theirs: bytes, rank: int) -> None:
    table = made()

    def work(mine: int, exchange: Any) -> Any:
        if mine == 2:
            exchange.all_gather(theirs, 20.0)  # as a draw of a table that is attached with this exchange
        reader = GroupReader(table if mine == rank else None, exchange, leader=rank)
        if mine != 2:
            with pytest.raises(RanksDisagree, match=r"rank 2 .*GroupReader\.sample\(\).*draw") as raised:
                reader.sample(4)
            assert raised.value.rank == 2
        return reader.sample(4).num_items

    assert in_threads(work, 3) == [4, 4, 4], "the ranks are in step"
    assert table.stats().indexes["default"].sampled == 4


@pytest.mark.parametrize("carries", ["rows", "keys"])
def test_a_rank_that_began_another_call_in_the_middle_is_out_of_step(carries: Any) -> None:
    table = made()

    def work(rank: int, exchange: Any) -> Any:
        reader = GroupReader(table, exchange, carries)
        if rank == 1:
            reader._exchange = Skips(exchange)  # type: ignore[assignment]
        for _ in range(2):
            with pytest.raises(RankLost):
                reader.sample(4)
        return "lost"

    assert in_threads(work, 2) == ["lost", "lost"]
    assert table.stats().indexes["default"].sampled == 0


class Skips:
    """Sends the message of the first all_gather in the second one, too."""

    def __init__(self, exchange: Any) -> None:
        self.rank, self.world, self.broadcast = exchange.rank, exchange.world, exchange.broadcast
        self._gather, self._first = exchange.all_gather, b""

    def all_gather(self, mine: bytes, timeout_s: float) -> Any:
        self._first = self._first or mine
        return self._gather(self._first, timeout_s)


def test_ranks_with_tables_of_their_own_are_refused() -> None:
    tables = [made(), made(), made()]

    def work(rank: int, exchange: Any) -> Any:
        reader = GroupReader(tables[rank], exchange, "keys")
        if rank == 0:
            reader._regions = bytes(8)  # as of a handle of relive.connect()
        with pytest.raises(RanksDisagree, match="table") as raised:
            reader.sample(4)
        assert raised.value.rank == (1 if rank == 2 else 2)
        return GroupReader(tables[rank], exchange, "rows").sample(4).num_items  # only the leader's table is read

    assert in_threads(work, 3) == [4, 4, 4]
    assert [table.stats().indexes["default"].sampled for table in tables] == [4, 0, 0]


class Timed(Together):
    """Ranks that wait for each other as long as they say."""

    def __init__(self, world: int) -> None:
        super().__init__(world)
        self.gave_up = threading.Event()

    def ranks(self) -> Any:
        for one in super().ranks():
            one.all_gather = lambda mine, timeout_s, rank=one.rank: self.wait(rank, mine, timeout_s)
            yield one

    def wait(self, rank: int, mine: bytes, timeout_s: float) -> Any:
        self._told[rank] = mine
        try:
            self._barrier.wait(timeout_s)
            return list(self._told)
        except threading.BrokenBarrierError:
            self.gave_up.set()
            raise errors.DeadlineExceeded("all ranks", "not all", timeout_s) from None


def test_the_others_wait_until_the_leader_has_told_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader waits for shards and for other leaders at least a second, whatever its deadline."""
    table, exchanges = made(), Timed(2)
    leads, follows = exchanges.ranks()

    def fail(held: Any, *asked: Any) -> Any:
        exchanges.gave_up.wait(1.3)
        raise errors.DeadlineExceeded("another leader", "none", 1.0)

    monkeypatch.setattr(group_reader._Held, "draw", fail)
    told: list[Any] = []

    def work(reader: GroupReader) -> None:
        with pytest.raises(errors.DeadlineExceeded, match="another leader"):
            reader.sample(4, timeout_s=0.2)
        told.append(reader._is_in_step)

    threads = [threading.Thread(target=work, args=(GroupReader(table, one),)) for one in (leads, follows)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert told == [True, True] and not exchanges.gave_up.is_set()


# ---- mutants -------------------------------------------------------------------------------------------------------


def _counts_before_all_ranks_have_it(patch: pytest.MonkeyPatch) -> None:
    draw = group_reader._Held.draw

    def count(held: Any, *asked: Any) -> Any:
        drawn = draw(held, *asked)
        held.commit(asked[1])
        held._holds.clear()
        return drawn

    patch.setattr(group_reader._Held, "draw", count)


def _no_confirmation(patch: pytest.MonkeyPatch) -> None:
    exchanged = GroupReader._exchanged

    def confirm_alone(self: Any, call: Any, number: int = 0, *rest: Any, **told: Any) -> Any:
        return [] if call.step == 1 else exchanged(self, call, number, *rest, **told)

    patch.setattr(GroupReader, "_exchanged", confirm_alone)


def _counting_is_not_told(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(group_reader._Held, "count_may_fail", False)


def _ranks_wait_a_second(patch: pytest.MonkeyPatch) -> None:
    wait = threading.Barrier.wait
    patch.setattr(threading.Barrier, "wait", lambda self, timeout=None: wait(self, 1.0))


def _errors_are_not_told(patch: pytest.MonkeyPatch) -> None:
    _ranks_wait_a_second(patch)
    patch.setattr(GroupReader, "_telling", lambda self, call, kinds=Exception: contextlib.nullcontext())


def _looks_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Wait, "is_over", False)


def _any_step(patch: pytest.MonkeyPatch) -> None:
    check = GroupReader._of_this_step

    def take_all(self: Any, mine: Any, told: Any) -> Any:
        return check(self, mine, [Message.unpack(one)._replace(step=mine.step).pack() for one in told])  # type: ignore[union-attr]

    patch.setattr(GroupReader, "_of_this_step", take_all)
    patch.setattr(GroupReader, "_lose", lambda self: None)


def _any_kind_of_call(patch: pytest.MonkeyPatch) -> None:
    _ranks_wait_a_second(patch)
    patch.setattr(Message, "unpack", lambda told: Message(0, bytes(8), bytes(8), 0, False, body=told))


def _any_table(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(group_reader, "_regions", lambda table: bytes(8))


def _no_grace(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(group_reader, "_GRACE_S", 0.0)


Finds = Callable[[pytest.MonkeyPatch], None]
MUTANTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Finds]] = {
    "counts when all ranks have it": (
        _counts_before_all_ranks_have_it,
        lambda patch: test_a_batch_that_a_rank_did_not_receive_goes_back(2, "rows"),
    ),
    "confirm": (_no_confirmation, lambda patch: test_a_batch_that_a_rank_did_not_receive_goes_back(2, "rows")),
    "counting is told": (_counting_is_not_told, test_no_rank_has_a_batch_that_the_table_did_not_count),
    "errors are told": (
        _errors_are_not_told,
        lambda patch: test_a_rank_that_cannot_gather_tells_the_others(MemoryError("full"), 1, patch),
    ),
    "the deadline of replacements": (
        _looks_for_ever,
        lambda patch: test_rows_that_a_rank_never_finds_are_looked_for_until_the_deadline(patch, most_looks=500),
    ),
    "the number of the step": (
        _any_step,
        lambda patch: test_a_rank_that_began_another_call_in_the_middle_is_out_of_step("rows"),
    ),
    "the kind of the call": (
        _any_kind_of_call,
        lambda patch: test_a_rank_in_another_kind_of_call_is_named_on_every_reader(b"", 0),
    ),
    "the regions": (_any_table, lambda patch: test_ranks_with_tables_of_their_own_are_refused()),
    "grace": (_no_grace, test_the_others_wait_until_the_leader_has_told_its_error),
}


@pytest.mark.parametrize("name", MUTANTS)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_test_finds_each_rule_that_is_taken_away(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate, finds = MUTANTS[name]
    mutate(monkeypatch)
    with pytest.raises(
        (AssertionError, errors.ReliveError, TimeoutError, threading.BrokenBarrierError, pytest.fail.Exception)
    ):
        finds(monkeypatch)
