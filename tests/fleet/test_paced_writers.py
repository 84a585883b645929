"""Writers that wait for a limiter over the totals of all shards: how long one call of a writer waits."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from contract.tools import plain_spec
from processes.shm import needs_shared_memory

import relive
from fleet.tools import config_of
from relive import errors
from relive.fleet import ShardedTable, ShardOwner, attach, writing
from relive.fleet.agreement import Agreement
from relive.fleet.calls import Calls
from relive.fleet.draws.pace import Wait
from relive.fleet.owner import make_shard
from relive.fleet.writing import PacedWriterCore

pytestmark = needs_shared_memory
LIMITER = relive.SamplesPerInsert(1.0, min_size=10, tolerance=20.0)
ONE = {"observation": np.zeros(2), "next_observation": np.zeros(2), "action": 1, "reward": 0.0}
CALLS: dict[str, Callable[..., Any]] = {
    "append": lambda writer, timeout_s: writer.append(**ONE, timeout_s=timeout_s),
    "extend": lambda writer, timeout_s: writer.extend(
        **{name: np.stack([value]) for name, value in ONE.items()}, timeout_s=timeout_s
    ),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("is_named", [False, True])
def test_a_call_waits_for_the_totals_until_its_own_deadline(
    shm_name: Any, monkeypatch: pytest.MonkeyPatch, call: str, is_named: bool
) -> None:
    """The totals of a slow shard are on their way for as long as the caller lets them be: not until the handle's."""
    asked: list[float] = []
    read = Agreement.read

    def slow(agreement: Agreement, index: int, left_s: float) -> Any:
        asked.append(left_s)
        time.sleep(min(left_s, 3.0))
        return read(agreement, index, left_s)

    name = shm_name()
    with ShardOwner(0, config_of(name, relive.Index(limiter=LIMITER))), attach([name], timeout_s=60.0) as table:
        with table.writer(**({"shard": 0} if is_named else {})) as writer:
            monkeypatch.setattr(Agreement, "read", slow)
            started = time.monotonic()
            try:
                CALLS[call](writer, 0.4)
            except errors.DeadlineExceeded:
                pass
            assert time.monotonic() - started < 2.0 and max(asked) <= 0.4


class Lanes:
    """Lanes of a served shard: the answer to the third part is lost."""

    closed, num_lanes = False, 1
    end_episode = abandon = set_policy_version = close = None

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.stored: list[int] = []

    def extend(self, columns: dict[str, Any], lanes: Any, priority: Any, timeout_s: float) -> Any:
        self.stored += columns["a"].tolist()
        if len(self.stored) > 4:
            if isinstance(self.error, errors.ServiceUnavailable):
                rows = len(columns["a"])
                self.error.tell_rows(np.zeros(0, np.int64), rows, rows)
            raise self.error
        return np.array(columns["a"], np.int64)


@pytest.mark.parametrize("is_waited_for", [False, True])
@pytest.mark.parametrize("kind", [errors.ServiceUnavailable, KeyboardInterrupt])
def test_rows_whose_answer_is_lost_are_told_apart_from_stored_ones(kind: Any, is_waited_for: bool) -> None:
    error = kind("there", 1.0)
    core: Any = Lanes(error)
    if is_waited_for:
        error.unanswered = 2  # as the core of a remote table notes at Ctrl-C
    columns = {"a": relive.ArraySpec((), "int64")}
    paced = PacedWriterCore(core, lambda rows, _: rows.num_steps <= 2, columns, is_single=True, has_own_limit=False)
    with pytest.raises(type(error)) as caught:
        paced.extend({"a": np.arange(8)}, None, None, 10.0)
    stored, keys = getattr(caught.value, "stored", None), getattr(caught.value, "keys", None)
    assert stored == 4 and keys is not None and keys.tolist() == [0, 1, 2, 3]
    if isinstance(error, errors.ServiceUnavailable):
        assert error.unanswered == 2 and "may have stored 2 of the rows after them" in str(error)
    else:
        assert getattr(error, "unanswered", 0) == (2 if is_waited_for else 0)


def test_episodes_that_end_episode_ends_are_paced_as_those_of_one_table(shm_name: Any) -> None:
    """It waits for no limiter: the next step of its lane waits for the room of an item."""
    limiter = relive.SamplesPerInsert(1.0, min_size=2, tolerance=2.0)
    index = relive.Index(relive.Episodes(4), limiter=limiter)
    names = [shm_name(), shm_name()]
    with contextlib.ExitStack() as stack:
        for number, name in enumerate(names):
            stack.enter_context(ShardOwner(number, config_of(name, index)))
        for table in (relive.Table(plain_spec(), 4096, index), attach(names)):
            stack.enter_context(table)
            writer = stack.enter_context(table.writer())
            for num_items in (4, 6):  # inserted - sampled is at most 4
                with pytest.raises(errors.DeadlineExceeded):
                    for _ in range(num_items + 4):
                        writer.append(**ONE, timeout_s=0.0)
                        writer.end_episode(truncated=True, timeout_s=0.0)
                assert table.num_items() == num_items
                table.sample(2)


def test_lanes_that_owe_more_items_than_the_window_has_go_on(shm_name: Any) -> None:
    """Three steps of four lanes end no episode: they are not refused because end_episode has ended four before."""
    index = relive.Index(relive.Episodes(10), limiter=relive.SamplesPerInsert(8.0, min_size=2, tolerance=10.0))
    names = [shm_name(), shm_name()]
    four = {name: np.stack([np.asarray(value)] * 4) for name, value in ONE.items()}
    with contextlib.ExitStack() as stack:
        for number, name in enumerate(names):
            stack.enter_context(ShardOwner(number, config_of(name, index)))
        table = stack.enter_context(attach(names, local=0))
        writer = stack.enter_context(table.writer(num_lanes=4))
        for episodes in range(4):
            for _ in range(3):
                writer.append(**four, timeout_s=20.0)
            writer.end_episode(truncated=True)
            assert table.num_items() == 4 * episodes + 4
            with pytest.raises(errors.DeadlineExceeded):
                while True:
                    table.sample(1, timeout_s=0.0)
        block = {name: np.stack([value] * 3) for name, value in four.items()}
        with pytest.raises(errors.RequestTooLarge):
            writer.extend(**block, truncated=np.ones((3, 4), np.bool_), timeout_s=0.0)


class Counting:
    """Three lanes that store all rows."""

    closed, num_lanes = False, 3
    abandon = set_policy_version = close = None

    def append(self, columns: dict[str, Any], lanes: Any, priority: Any, timeout_s: float) -> Any:
        return np.zeros(len(columns["a"]), np.int64)

    def extend(self, columns: dict[str, Any], lanes: Any, priority: Any, timeout_s: float) -> Any:
        return np.zeros(np.shape(columns["a"]), np.int64)

    def end_episode(self, columns: dict[str, Any], terminated: bool, lanes: Any, timeout_s: float) -> None:
        if timeout_s == 0.0:
            raise errors.DeadlineExceeded("the lock", "none", 0.0)


def test_a_step_asks_for_an_item_of_each_lane_whose_episode_end_episode_ended() -> None:
    asked: list[int] = []

    def has_room(rows: Any, left_s: float) -> bool:
        asked.append(max(rows.num_ends, rows.num_owed))
        return True

    core: Any = Counting()
    columns = {"a": relive.ArraySpec((), "int64")}
    paced = PacedWriterCore(core, has_room, columns, is_single=False, has_own_limit=False)

    def num_asked(call: Callable[..., Any], num_steps: int, lanes: list[int] | None = None, **ends: Any) -> int:
        shape = (num_steps, len(lanes or range(3)))[call == paced.append :]
        named = None if lanes is None else np.array(lanes, np.int32)
        call({"a": np.zeros(shape, np.int64), **ends}, named, None, 10.0)
        return asked.pop()

    def end(lanes: list[int] | None, timeout_s: float = 10.0) -> None:
        paced.end_episode({}, False, None if lanes is None else np.array(lanes, np.int32), timeout_s)

    assert num_asked(paced.append, 1) == 0
    end([2, 0])
    assert num_asked(paced.append, 1, [1]) == 0 and num_asked(paced.append, 1, [1, 2]) == 1
    assert num_asked(paced.append, 1) == 1 and num_asked(paced.append, 1) == 0
    end(None)
    assert num_asked(paced.extend, 4, [0, 1]) == 2 and num_asked(paced.extend, 4) == 1
    end(None)
    ends = np.zeros((2, 3), np.bool_)
    ends[0] = ends[1, :2] = True
    assert num_asked(paced.extend, 2, truncated=ends) == 5  # an item that is asked for at its end needs no more
    with pytest.raises(errors.DeadlineExceeded):
        end(None, 0.0)
    assert num_asked(paced.append, 1) == 0


def test_a_block_without_rows_is_answered_by_the_core() -> None:
    core: Any = Lanes(errors.ServiceUnavailable("there", 1.0))
    columns = {"a": relive.ArraySpec((), "int64")}
    paced = PacedWriterCore(core, lambda rows, _: True, columns, is_single=True, has_own_limit=False)
    assert paced.extend({"a": np.arange(0)}, None, None, 10.0).tolist() == []


STATES = relive.StepSpec({"s": relive.ArraySpec((), "int64", kind="state")})


@pytest.mark.parametrize("path", ["mapped", "service"])
@pytest.mark.parametrize(
    ("limiter", "num_there", "length"),
    [
        (relive.Queue(4), 3, 2),
        (relive.Queue(8), 3, 3),
        (relive.StalenessBudget(0, 4), 2, 2),
        (relive.StalenessBudget(0, 4), 3, 2),
    ],
)
def test_a_block_of_states_alone_goes_in_whole_or_by_parts(
    shm_name: Any, path: Any, limiter: Any, num_there: int, length: int
) -> None:
    """No column of kind 'step' tells how many steps the block has: its states do."""
    if path == "service":
        pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")
    name = shm_name()
    index = relive.Index(sampler=relive.Fifo(), limiter=limiter, max_times_sampled=1)
    with contextlib.ExitStack() as stack:
        owner = stack.enter_context(ShardOwner(0, relive.TableConfig(STATES, 1000, index, relive.SharedMemory(name))))
        place = name if path == "mapped" else owner.serve("grpc://127.0.0.1:0")
        table = stack.enter_context(attach([place], path=path, timeout_s=60.0))
        one, two = (stack.enter_context(table.writer(lanes, shard=0)) for lanes in (None, 2))
        before = np.arange(num_there)
        one.extend(s=before, next_s=before + 1, truncated=True)
        states = np.arange(length)[:, None] + np.array([[100, 200]])
        keys: list[Any] = []
        writing = threading.Thread(
            target=lambda: keys.append(two.extend(s=states, next_s=states + 1, truncated=True, timeout_s=60.0))
        )
        writing.start()
        time.sleep(0.2)
        if isinstance(limiter, relive.StalenessBudget):
            until = time.monotonic() + 60.0
            while len(table) == num_there and time.monotonic() < until:  # a part goes in without a new version
                time.sleep(0.01)
            time.sleep(0.7)  # the block is no longer waiting to be let in whole
            table.set_policy_version(1)
        drawn = [table.sample(4, timeout_s=60.0)]
        while sum(batch.num_items for batch in drawn) < num_there + 2 * length:
            if isinstance(limiter, relive.StalenessBudget):
                table.set_policy_version(2)
            drawn.append(table.sample(1, timeout_s=60.0))
        writing.join()
    assert [np.shape(one) for one in keys] == [(length, 2)]
    found = {
        key: value for batch in drawn for key, value in zip(batch.item_keys.tolist(), batch["s"].tolist(), strict=True)
    }
    assert len(found) == num_there + 2 * length and sorted(found.values())[:num_there] == before.tolist()
    assert [found[key] for key in keys[0].ravel().tolist()] == states.ravel().tolist()


# ---- the first fill --------------------------------------------------------------------------------------------------

NUMBERS = relive.StepSpec({"a": relive.ArraySpec((), "int64")})
PLAIN = relive.Index(limiter=relive.SamplesPerInsert(8.0, min_size=1000))  # the window is worth 256 items


def beside(num_shards: int, index: Any) -> ShardedTable:
    """A table over shards in this process's own memory."""
    config = relive.TableConfig(NUMBERS, 4096, index, relive.LocalMemory())
    return ShardedTable.over([make_shard(number, config) for number in range(num_shards)])


def numbers(count: int, num_lanes: int | None = None) -> dict[str, Any]:
    """Episodes of one step each."""
    shape = count if num_lanes is None else (count, num_lanes)
    return {"a": np.zeros(shape, np.int64), "truncated": np.ones(shape, np.bool_)}


@pytest.mark.parametrize("num_shards", [1, 2])
def test_the_first_fill_lets_in_blocks_that_are_worth_more_than_the_window(num_shards: int) -> None:
    with beside(num_shards, PLAIN) as table, table.writer() as writer:
        for count in (300, 600, 100):
            writer.extend(**numbers(count), timeout_s=0.0)
        assert len(table) == table.num_items() == 1000


@pytest.mark.parametrize("num_there", [0, 900, 1000])
def test_a_block_that_fits_neither_the_first_fill_nor_the_window_is_refused_before_a_wait(
    monkeypatch: pytest.MonkeyPatch, num_there: int
) -> None:
    with beside(2, PLAIN) as table, table.writer() as writer:
        writer.extend(**numbers(num_there))
        for waits in ((Wait, "pause"), (Calls, "drop_overdue")):
            monkeypatch.setattr(*waits, lambda *_: pytest.fail("the call waits"))
        with pytest.raises(errors.RequestTooLarge) as refused:
            writer.extend(**numbers(2001 if num_there == 0 else 300), timeout_s=60.0)
        assert refused.value.requested == (2001 if num_there == 0 else 300) and len(table) == num_there


def test_the_rest_of_a_block_by_parts_is_not_refused_because_the_first_fill_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One limiter lets in two rows at a time. The other has let in the whole block, until its first fill has ended."""

    class Stores(Lanes):
        def extend(self, columns: dict[str, Any], lanes: Any, priority: Any, timeout_s: float) -> Any:
            self.stored += columns["a"].tolist()
            return np.array(columns["a"], np.int64)

    core: Any = Stores(KeyboardInterrupt())

    def has_room(rows: Any, left_s: float) -> bool:
        if core.stored and rows.num_steps > 4:
            raise errors.RequestTooLarge(rows.num_steps, 4.0)
        return bool(rows.num_steps <= 2)

    monkeypatch.setattr(writing, "_WHOLE_FOR_S", 0.0)
    columns = {"a": relive.ArraySpec((), "int64")}
    paced = PacedWriterCore(core, has_room, columns, is_single=True, has_own_limit=False)
    assert paced.extend({"a": np.arange(9)}, None, None, 60.0).tolist() == core.stored == list(range(9))


# ---- a naive twin ----------------------------------------------------------------------------------------------------


def a_limiter(rng: random.Random, num_shards: int) -> Any:
    """Any limiter. A queue over two shards bounds each shard, and the totals by one item: no twin of one table."""
    kind = rng.choice(["paced", "paced", "paced", "paced", "free", "queue"])
    if kind == "free" or (kind == "queue" and num_shards > 1):
        return relive.MinSize(rng.choice([1, 10]))
    if kind == "queue":
        return relive.Queue(rng.choice([1, 4, 20]))
    ratio, min_size = rng.choice([0.5, 1.0, 2.5, 8.0]), rng.choice([1, 4, 30, 100])
    tolerance = rng.choice([(ratio + 1.0) / 2.0, 5.0 * ratio, 20.0 + ratio, 0.3 * ratio * min_size + ratio + 1.0])
    return relive.SamplesPerInsert(ratio, min_size, tolerance)


def an_index(rng: random.Random, num_shards: int) -> Any:
    items = rng.choice([relive.Transitions(), relive.Transitions(), relive.Episodes(1)])
    limiters = [a_limiter(rng, num_shards) for _ in range(rng.choice([1, 1, 2]))]
    return {
        f"{number}": relive.Index(
            items, relive.Fifo(), one, max_times_sampled=1 if isinstance(one, relive.Queue) else None
        )
        for number, one in enumerate(limiters)
    }


def outcome(call: Callable[[Any, Any], Any], table: Any, writer: Any) -> str:
    """Whether the call is done, or how it is refused. The table of one process alone says that it waits for itself."""
    try:
        call(table, writer)
    except errors.RequestTooLarge:
        return "too large"
    except (errors.DeadlineExceeded, errors.WaitsForItself) as error:
        return "stored in part" if error.stored else "late"
    return "done"


def a_call(rng: random.Random, num_lanes: int | None, index: Any) -> Callable[[Any, Any], Any]:
    """A call of a table and its writer that waits for nothing: a block, a step, or a draw."""
    count = rng.choice([1, 1, 2, 5, 12, 30, 75, 100])
    name = rng.choice([*index])
    if rng.random() < 0.3:
        return lambda table, writer: table.sample(min(count, 30), index=name, timeout_s=0.0)
    if rng.random() < 0.3:
        step = {"a": 0 if num_lanes is None else np.zeros(num_lanes, np.int64), "truncated": True}
        return lambda table, writer: writer.append(**step, timeout_s=0.0)
    return lambda table, writer: writer.extend(**numbers(count, num_lanes), timeout_s=0.0)


@pytest.mark.parametrize("num_shards", [1, 2])
@pytest.mark.parametrize("seed", range(40))
def test_shards_refuse_the_blocks_that_one_table_refuses(num_shards: int, seed: int) -> None:
    """Until a block is stored in part: one table knows at once which draw waits, and a shard after half a second."""
    rng = random.Random(seed)
    index, num_lanes = an_index(rng, num_shards), rng.choice([None, None, 3])
    with contextlib.ExitStack() as stack:
        one = stack.enter_context(relive.Table(NUMBERS, 4096, index))
        table = stack.enter_context(beside(num_shards, index))
        alone = stack.enter_context(one.writer(num_lanes))
        writers = [stack.enter_context(table.writer(num_lanes, shard=number)) for number in range(num_shards)]
        for _ in range(12):
            call, writer = a_call(rng, num_lanes, index), rng.choice(writers)
            expected = {outcome(call, one, alone)}
            if "stored in part" in expected:
                return
            if any(isinstance(each.limiter, relive.Queue) for each in index.values()):
                expected |= {"late"} if "too large" in expected else set()  # the shard of a full queue is not asked
            assert outcome(call, table, writer) in expected
            assert len(table) == len(one)
