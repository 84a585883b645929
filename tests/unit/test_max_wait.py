"""max_wait_s: what waits too long for late columns, members of its group or its priority is dropped, and counted."""

from __future__ import annotations

import pickle
import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from clock import Clock
from processes.shm import needs_shared_memory

import relive
from relive import errors
from relive.errors import InvalidConfig

COLUMNS = {
    "state": relive.ArraySpec((), "float32", kind="state"),
    "number": relive.ArraySpec((), "int64"),
    "prompt": relive.ArraySpec((), "int64", kind="episode"),
}
PLAIN = relive.StepSpec(COLUMNS)
LATE = relive.StepSpec({**COLUMNS, "score": relive.ArraySpec((), "float32", late=True)})
GROUPS = relive.Episodes(4, group_by="prompt", group_size=2, max_groups=8)
WINDOW = relive.Explicit(relive.Window(3), max_items=8)


@pytest.fixture
def clock() -> Iterator[Clock]:
    yield Clock()
    Clock.stop()


def block(first: int, num_steps: int, prompt: int = 0, **more: Any) -> dict[str, Any]:
    states = np.arange(first, first + num_steps + 1, dtype=np.float32)
    said = {"number": np.arange(first, first + num_steps), "prompt": np.full(num_steps, prompt)}
    return {"state": states[:-1], "next_state": states[1:], **said, **more}


def counts(table: relive.Table, index: str = "default") -> tuple[int, int, int]:
    """Live, pending, timed out; what is due has gone."""
    table.check()
    stats = table.stats().indexes[index]
    return stats.num_items, stats.pending, stats.timed_out


# ---- groups --------------------------------------------------------------------------------------------------------


def test_a_group_goes_so_long_after_its_first_member(clock: Clock) -> None:
    with relive.Table(PLAIN, 100, relive.Index(GROUPS, max_wait_s=5.0)) as table, table.writer() as writer:
        writer.extend(**block(0, 2, 7, terminated=[False, True]))
        clock.advance(4.0)
        writer.extend(**block(10, 2, 8, terminated=[False, True]))
        assert counts(table) == (0, 0, 0)
        clock.advance(1.0)
        assert counts(table) == (0, 0, 1)
        writer.extend(**block(20, 2, 7, terminated=[False, True]))  # not the second of the one that went
        assert counts(table) == (0, 0, 1)
        writer.extend(**block(30, 3, 8, terminated=[False, False, True]))
        assert counts(table) == (1, 0, 1)
        clock.advance(5.0)
        assert counts(table) == (1, 0, 2), "an item waits no more, the first one of 7 was alone again"
        assert table.sample(4)["number"][:, :, 0].tolist() == [[10, 30]] * 4
        assert table.stats().dropped_groups == 0 and len(table) == 9


def test_a_full_group_waits_for_late_columns_since_its_first_member(clock: Clock) -> None:
    with relive.Table(LATE, 100, relive.Index(GROUPS, max_wait_s=5.0)) as table, table.writer() as writer:
        first = writer.extend(**block(0, 2, 7, terminated=[False, True]))
        clock.advance(3.0)
        second = writer.extend(**block(10, 2, 7, terminated=[False, True]))
        assert counts(table) == (0, 1, 0)
        clock.advance(2.0)
        assert counts(table) == (0, 0, 1)
        assert table.complete(np.concatenate([first, second]), score=np.zeros(4)) == 4
        assert counts(table) == (0, 0, 1) and table.stats().incomplete_items == 0


# ---- explicit items ------------------------------------------------------------------------------------------------


def test_an_explicit_item_waits_for_late_columns_so_long(clock: Clock) -> None:
    with relive.Table(LATE, 100, {"steps": relive.Index(), "mine": relive.Index(WINDOW, max_wait_s=2.0)}) as table:
        writer = table.writer()
        keys = writer.extend(**block(0, 6))
        table.create_items(keys[:1], index="mine")
        clock.advance(1.5)
        table.create_items(keys[1:2], index="mine")
        assert counts(table, "mine") == (0, 2, 0)
        clock.advance(0.5)
        assert counts(table, "mine") == (0, 1, 1)
        assert table.complete(keys, score=np.arange(6)) == 6
        clock.advance(9.0)
        assert counts(table, "mine") == (1, 0, 1) and table.num_items("steps") == 6
        assert table.sample(3, index="mine")["score"].tolist() == [[1.0, 2.0, 3.0]] * 3
        assert table.delete(table.sample(1, index="mine").item_keys) == 1
        assert counts(table, "mine") == (0, 0, 1)


def test_an_explicit_item_waits_for_its_priority_so_long(clock: Clock) -> None:
    index = relive.Index(WINDOW, relive.Prioritized(1.0, initial="given"), max_wait_s=2.0)
    with relive.Table(PLAIN, 100, index) as table, table.writer() as writer:
        keys = writer.extend(**block(0, 6))
        gone = table.create_items(keys[:1])
        clock.advance(1.0)
        kept = table.create_items(keys[:2])
        clock.advance(1.0)
        assert table.update_priorities(gone, [1.0]) == 0, "dropped before it was looked up"
        assert table.update_priorities(kept, [1.0, 2.0]) == 2
        assert counts(table) == (2, 0, 1)


# ---- items of rows -------------------------------------------------------------------------------------------------


def test_a_step_waits_for_its_late_columns_so_long_in_its_own_index(clock: Clock) -> None:
    indexes = {"short": relive.Index(max_wait_s=2.0), "long": relive.Index(max_wait_s=8.0), "ever": relive.Index()}
    with relive.Table(LATE, 200, indexes) as table, table.writer() as writer:
        keys = writer.extend(**block(0, 10))
        clock.advance(1.0)
        assert table.complete(keys[:2], score=[1.0, 2.0]) == 2
        clock.advance(1.0)
        assert counts(table, "short") == (2, 0, 8)
        assert counts(table, "long") == (2, 8, 0)
        assert table.complete(keys[2:4], score=[3.0, 4.0]) == 2, "it fills the row for the others"
        assert [counts(table, name) for name in indexes] == [(2, 0, 8), (4, 6, 0), (4, 6, 0)]
        clock.advance(6.0)
        assert [counts(table, name) for name in indexes] == [(2, 0, 8), (4, 0, 6), (4, 6, 0)]
        assert table.gather(keys, columns=["number"], index="short").present.tolist() == [True] * 2 + [False] * 8
        assert table.complete(keys[4:], score=np.ones(6)) == 6
        assert [table.num_items(name) for name in indexes] == [2, 4, 10]


def test_a_key_of_an_item_that_was_dropped_is_stale(clock: Clock) -> None:
    index = relive.Index(sampler=relive.Prioritized(1.0, initial="given"), max_wait_s=2.0)
    with relive.Table(PLAIN, 100, index) as table, table.writer() as writer:
        keys = writer.extend(**block(0, 4))
        assert table.update_priorities(keys[:2], [1.0, 2.0]) == 2
        clock.advance(2.0)
        assert table.update_priorities(keys, np.ones(4)) == 2 and table.stats().updates_stale == 2
        assert counts(table) == (2, 0, 2)
        assert table.delete(keys) == 4


def test_a_window_that_is_not_whole_does_not_wait_yet(clock: Clock) -> None:
    """Its steps have still to come; its time begins when the last of them is there."""
    index = relive.Index(relive.Transitions(n_step=3), max_wait_s=2.0)
    with relive.Table(LATE, 100, index) as table, table.writer() as writer:
        keys = writer.extend(**block(0, 3))
        clock.advance(1.9)
        writer.extend(**block(3, 1))
        clock.advance(0.1)
        assert counts(table) == (0, 1, 1)
        assert table.complete(keys, score=np.zeros(3)) == 3
        clock.advance(50.0)
        assert counts(table) == (0, 0, 2)


def test_pages_on_which_no_item_is_left_go(clock: Clock) -> None:
    with relive.Table(LATE, 4000, relive.Index(max_wait_s=1.0)) as table, table.writer() as writer:
        writer.extend(**block(0, 2000))
        clock.advance(1.0)
        for _ in range(8):
            table.check()
        assert counts(table) == (0, 0, 2000) and len(table) < 600


def test_all_limits_of_an_index_at_once(clock: Clock) -> None:
    """max_items, use counts, max_wait_s and deletions, beside a list of what waits."""
    rng = random.Random(5)
    index = relive.Index(max_items=6, max_times_sampled=2, max_wait_s=3.0)
    with relive.Table(LATE, 400, {"all": index, "ever": relive.Index()}) as table, table.writer() as writer:
        waits: dict[int, float] = {}
        out = number = 0
        for _ in range(600):
            match rng.randrange(4):
                case 0:
                    keys = writer.extend(**block(number, 3))
                    waits |= dict.fromkeys(keys.tolist(), clock.now_s)
                    number += 3
                case 1 if waits:
                    key = rng.choice(list(waits))
                    out += sum(since + 3.0 <= clock.now_s for since in waits.values())
                    waits = {key: since for key, since in waits.items() if since + 3.0 > clock.now_s}
                    assert table.complete([key], score=[1.0]) == 1
                    waits.pop(key, None)
                case 2 if waits and rng.random() < 0.3:
                    key = rng.choice(list(waits))
                    out += sum(since + 3.0 <= clock.now_s for since in waits.values())
                    waits = {key: since for key, since in waits.items() if since + 3.0 > clock.now_s}
                    table.delete([key])
                    waits.pop(key, None)
                case _:
                    clock.advance(rng.choice((0.25, 0.5, 1.0)))
            if table.num_items("all") and rng.random() < 0.2:
                table.sample(1, index="all", timeout_s=0.0)
            out += sum(since + 3.0 <= clock.now_s for since in waits.values())
            waits = {key: since for key, since in waits.items() if since + 3.0 > clock.now_s}
            assert counts(table, "all")[1:] == (len(waits), out)
        assert out > 100


# ---- limiters ------------------------------------------------------------------------------------------------------


def limited(**more: Any) -> relive.Index:
    return relive.Index(limiter=relive.SamplesPerInsert(1.0, min_size=1, tolerance=8.0), **more)


def test_what_waited_too_long_gives_the_limiters_room_back(clock: Clock) -> None:
    with relive.Table(LATE, 100, limited(max_wait_s=2.0)) as table, table.writer() as writer:
        number = 0
        with pytest.raises((errors.WaitsForItself, errors.DeadlineExceeded)):
            while True:
                writer.append(**{name: value[0] for name, value in block(number, 1).items()}, timeout_s=0.0)
                number += 1
        assert 5 < number < 30 and counts(table) == (0, number, 0)
        clock.advance(2.0)
        writer.append(**{name: value[0] for name, value in block(number, 1).items()}, timeout_s=0.0)
        assert counts(table) == (0, 1, number)


@pytest.mark.parametrize("is_shared", [False, pytest.param(True, marks=needs_shared_memory)])
def test_who_waits_for_room_gets_it_when_the_time_is_over(is_shared: bool) -> None:
    """Also the only thread of a process, which nobody else could help: time does."""
    name = f"max-wait-{random.getrandbits(40):x}"
    storage = relive.SharedMemory(name) if is_shared else relive.LocalMemory()
    with relive.Table(LATE, 100, limited(max_wait_s=0.3), storage=storage) as table, table.writer() as writer:
        begun = time.monotonic()
        for number in range(60):
            writer.append(**{name: value[0] for name, value in block(number, 1).items()}, timeout_s=10.0)
        assert 0.3 < time.monotonic() - begun < 8.0
        assert table.stats().indexes["default"].timed_out > 10
        table.check()


def test_nobody_waits_for_a_time_that_comes_behind_the_deadline(clock: Clock) -> None:
    with relive.Table(LATE, 100, limited(max_wait_s=50.0)) as table, table.writer() as writer:
        begun = time.monotonic()
        with pytest.raises((errors.WaitsForItself, errors.DeadlineExceeded)):
            for number in range(60):
                writer.append(**{name: value[0] for name, value in block(number, 1).items()}, timeout_s=0.5)
        assert time.monotonic() - begun < 5.0


def test_a_draw_of_what_timed_out_is_one_of_nothing(clock: Clock) -> None:
    with relive.Table(LATE, 100, relive.Index(max_wait_s=1.0)) as table, table.writer() as writer:
        writer.extend(**block(0, 5))
        clock.advance(1.0)
        with pytest.raises((errors.WaitsForItself, errors.DeadlineExceeded)):
            table.sample(1, timeout_s=0.0)
        assert table.stats().indexes["default"].timed_out == 5


# ---- the configuration ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), 2e9, "5", True, [1.0], np.datetime64("now")])
def test_what_is_no_time_is_refused(value: Any) -> None:
    with pytest.raises(InvalidConfig, match="max_wait_s"):
        relive.Index(max_wait_s=value)


def test_where_nothing_waits_it_is_refused() -> None:
    for items in (relive.Transitions(), relive.Sequences(length=2), relive.Episodes(4), WINDOW):
        with pytest.raises(InvalidConfig, match="no item of this index waits"):
            relive.Table(PLAIN, 100, relive.Index(items, max_wait_s=1.0))
        relive.Table(LATE, 100, relive.Index(items, max_wait_s=1.0)).close()
    relive.Table(PLAIN, 100, relive.Index(GROUPS, max_wait_s=1)).close()
    given = relive.Prioritized(1.0, initial="given")
    relive.Table(PLAIN, 100, relive.Index(sampler=given, max_wait_s=1.0)).close()


def test_it_is_written_down_and_read_again() -> None:
    index = relive.Index(GROUPS, max_wait_s=1.5)
    assert relive.Index.from_dict(index.to_dict()) == index == pickle.loads(pickle.dumps(index))
    assert "max_wait_s=1.5" in repr(index)
    assert relive.Index.from_dict(relive.Index().to_dict()) == relive.Index()
    config = relive.TableConfig(PLAIN, 100, index)
    assert relive.TableConfig.from_dict(config.to_dict()) == config
    with pytest.raises(TypeError, match="max_wait_s"):
        relive.Index(timeout_s=2.0)  # type: ignore[call-arg]


# ---- processes -----------------------------------------------------------------------------------------------------


@needs_shared_memory
def test_times_that_this_clock_has_not_come_to_begin_anew(clock: Clock) -> None:
    """As after the machine was started anew: its clock begins at 0 again, and nothing waits for ever."""
    name = f"max-wait-{random.getrandbits(40):x}"
    index = relive.Index(max_wait_s=5.0)
    with relive.Table(LATE, 100, index, storage=relive.SharedMemory(name)) as table, table.writer() as writer:
        writer.extend(**block(0, 5))
        clock.advance(-900.0)
        with relive.attach(name) as other:  # somebody else lives: nothing is mended
            clock.advance(5.0)
            assert counts(other) == (0, 5, 0)
