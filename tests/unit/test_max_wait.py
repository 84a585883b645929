"""max_wait_s of an index: what waits too long for late columns, a priority or members is dropped, and counted."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes.shm import needs_shared_memory

import relive
from relive import _core, errors
from relive.core.locked import check_lock
from relive.errors import InvalidConfig

COLUMNS = {
    "state": relive.ArraySpec((), "float32", kind="state"),
    "number": relive.ArraySpec((), "int64"),
    "prompt": relive.ArraySpec((), "int64", kind="episode"),
}
PLAIN = relive.StepSpec(COLUMNS)
LATE = relive.StepSpec({**COLUMNS, "score": relive.ArraySpec((), "float32", late=True)})
GROUPS = relive.Episodes(8, group_by="prompt", group_size=2, max_groups=10)
ITEMS = relive.Explicit(relive.Window(3), max_items=20)


def block(first: int, num_steps: int, prompt: int = 0, **more: Any) -> dict[str, Any]:
    states = np.arange(first, first + num_steps + 1, dtype=np.float32)
    said = {"number": np.arange(first, first + num_steps), "prompt": np.full(num_steps, prompt)}
    return {"state": states[:-1], "next_state": states[1:], **said, **more}


@pytest.fixture
def go_on() -> Iterator[Callable[[float], None]]:
    """Lets the clock that waits are told by run ahead, by so many seconds more."""
    ahead = 0.0

    def go(seconds: float) -> None:
        nonlocal ahead
        ahead += seconds
        _core.set_clock_ahead(ahead)

    yield go
    _core.set_clock_ahead(0.0)


def told(table: relive.Table, index: str = "default") -> tuple[int, int, int]:
    """Three numbers of stats(): items, items that wait, items that waited too long."""
    stats = table.stats().indexes[index]
    return stats.num_items, stats.pending, stats.timed_out


def test_steps_that_wait_for_late_columns(go_on: Callable[[float], None]) -> None:
    indexes = {"timed": relive.Index(relive.Transitions(n_step=2), max_wait_s=10.0), "patient": relive.Index()}
    with relive.Table(LATE, 300, indexes) as table, table.writer() as writer:
        keys = writer.extend(**block(0, 6))
        go_on(6.0)
        keys = np.concatenate([keys, writer.extend(**block(6, 4))])
        assert told(table, "timed") == (0, 9, 0) and told(table, "patient") == (0, 10, 0)
        assert table.complete(keys[:3], score=np.ones(3)) == 3
        assert told(table, "timed") == (2, 7, 0)
        go_on(5.0)
        assert table.complete(keys[3:8], score=np.ones(5)) == 5
        table.check()
        # The items of steps 2 to 4 have waited 11 s. They are dropped before this call could complete them.
        assert told(table, "timed") == (4, 2, 3)
        go_on(10.0)
        writer.append(state=10.0, number=10, prompt=0)
        assert told(table, "timed") == (4, 0, 5)
        assert told(table, "patient") == (8, 2, 0)
        assert table.complete(keys[8:], score=np.ones(2)) == 2
        present = table.gather(keys, columns=["number"], index="timed").present
        assert present.tolist() == [True] * 2 + [False] * 3 + [True] * 2 + [False] * 3
        assert table.num_items("patient") == 10
        table.check()


def test_a_priority_that_never_comes(go_on: Callable[[float], None]) -> None:
    index = relive.Index(sampler=relive.Prioritized(1.0, initial="given"), max_wait_s=3.0)
    with relive.Table(PLAIN, 300, index) as table, table.writer() as writer:
        keys = writer.extend(**block(0, 5))
        table.update_priorities(keys[:2], np.ones(2, np.float32))
        go_on(4.0)
        assert table.update_priorities(keys[1:3], np.ones(2, np.float32)) == 1
        assert told(table) == (2, 0, 3)
        assert table.update_priorities(keys, np.ones(5, np.float32)) == 2
        table.check()


@pytest.mark.parametrize("late", [False, True])
def test_groups(late: bool, go_on: Callable[[float], None]) -> None:
    index = relive.Index(GROUPS, max_wait_s=10.0)
    with relive.Table(LATE if late else PLAIN, 300, index) as table, table.writer() as writer:
        keys = [writer.extend(**block(10 * k, 3, prompt=k % 3, truncated=True)) for k in range(3)]
        go_on(6.0)
        keys += [writer.extend(**block(10 * k, 3, prompt=k % 3, truncated=True)) for k in range(3, 5)]
        assert told(table) == ((0, 2, 0) if late else (2, 0, 0))
        if late:
            for part in (keys[0], keys[3]):
                table.complete(part, score=np.ones(3))
        go_on(5.0)
        writer.extend(**block(90, 3, prompt=2, truncated=True))  # its group is overdue: it opens another one
        table.check()
        assert told(table) == ((1, 0, 2) if late else (2, 0, 1))
        assert table.stats().dropped_groups == 1
        go_on(20.0)
        writer.extend(**block(100, 3, prompt=7, truncated=True))
        go_on(20.0)
        writer.extend(**block(110, 3, prompt=8, truncated=True))
        assert table.stats().dropped_groups == 3
        writer.extend(**block(120, 3, prompt=7, truncated=True))  # opens another group
        assert table.num_items() == (1 if late else 2)
        table.check()


def test_no_call_completes_an_item_that_is_overdue(go_on: Callable[[float], None]) -> None:
    """Not even if more items are overdue than one critical section drops."""
    indexes = {"timed": relive.Index(max_wait_s=10.0), "patient": relive.Index()}
    with relive.Table(LATE, 3_000, indexes) as table, table.writer() as writer:
        keys = writer.extend(**block(0, 1_000))
        go_on(11.0)
        assert table.complete(keys[500:], score=np.ones(500)) == 500
        assert told(table, "timed") == (0, 0, 1_000) and told(table, "patient") == (500, 500, 0)
        table.check()


def test_explicit_items(go_on: Callable[[float], None]) -> None:
    indexes = {"steps": relive.Index(), "items": relive.Index(ITEMS, max_wait_s=1.0)}
    with relive.Table(LATE, 300, indexes) as table, table.writer() as writer:
        rows = writer.extend(**block(0, 9))
        items = [writer.create_item({"": (rows[at], 3)}, index="items") for at in (0, 3, 6)]
        table.complete(rows[:3], score=np.ones(3))
        go_on(1.5)
        table.complete(rows[3:4], score=np.ones(1))
        assert told(table, "items") == (1, 0, 2)
        assert table.complete(rows[4:], score=np.ones(5)) == 5
        assert table.gather(items, index="items").present.tolist() == [True, False, False]
        assert table.num_items("steps") == 9
        table.check()


def test_room_of_the_limiter_comes_back(go_on: Callable[[float], None]) -> None:
    """Waiting items take room of the limiter. A thread that waits for that room does not raise WaitsForItself."""
    limiter = relive.SamplesPerInsert(1.0, 10, 10.0)
    index = relive.Index(limiter=limiter, max_wait_s=0.3)
    with relive.Table(LATE, 300, index) as table, table.writer() as writer:
        rows = writer.extend(**block(0, 20))
        table.complete(rows[:15], score=np.ones(15))
        with pytest.raises(errors.DeadlineExceeded):
            writer.extend(**block(20, 5), timeout_s=0.0)
        writer.extend(**block(20, 5), timeout_s=20.0)
        assert told(table)[2] == 5
        table.check()


def test_room_of_what_is_overdue_is_there_at_once(go_on: Callable[[float], None]) -> None:
    """A call with timeout_s=0 gets this room, too: overdue items leave before the call gives up."""
    limiter = relive.SamplesPerInsert(1.0, 10, 10.0)
    with relive.Table(LATE, 1_000, relive.Index(limiter=limiter, max_wait_s=5.0)) as table, table.writer() as writer:
        writer.extend(**block(0, 20))
        with pytest.raises(errors.WaitsForItself):  # its time comes behind the deadline
            writer.extend(**block(20, 20), timeout_s=1.0)
        go_on(6.0)
        writer.extend(**block(20, 20), timeout_s=0.0)
        assert told(table) == (0, 20, 20)
        table.check()


def test_a_look_at_the_lock_drops_all_overdue_items(go_on: Callable[[float], None]) -> None:
    """More than one critical section drops."""
    with relive.Table(LATE, 1_000, relive.Index(max_wait_s=5.0)) as table, table.writer() as writer:
        writer.extend(**block(0, 600))
        check_lock(table.core, 0.0)
        assert told(table) == (0, 600, 0)
        go_on(6.0)
        check_lock(table.core, 1.0)
        assert told(table) == (0, 0, 600)
        table.check()


def test_a_draw_does_not_wait_for_what_will_be_dropped() -> None:
    """Only this thread could bring an item, and time brings none."""
    with relive.Table(LATE, 300, relive.Index(max_wait_s=50.0)) as table, table.writer() as writer:
        writer.extend(**block(0, 5))
        with pytest.raises(errors.WaitsForItself):
            table.sample(1, timeout_s=5.0)


@needs_shared_memory
def test_another_process_s_items(shm_name: Callable[[], str]) -> None:
    """The next process that changes the table drops overdue items, whichever process wrote them."""
    index = relive.Index(max_wait_s=0.05)
    assert relive.Index.from_dict(index.to_dict()) == index and "max_wait_s=0.05" in repr(index)
    name = shm_name()
    with relive.Table(LATE, 100, index, storage=relive.SharedMemory(name)) as table, table.writer() as writer:
        writer.extend(**block(0, 5))
        with relive.attach(name) as other, other.writer() as second:
            time.sleep(0.1)
            second.extend(**block(5, 1))
            assert told(other) == told(table) == (0, 1, 5)


def test_more_than_one_hold_drops(go_on: Callable[[float], None]) -> None:
    with relive.Table(LATE, 5_000, relive.Index(max_wait_s=1.0)) as table, table.writer() as writer:
        for first in range(0, 4_000, 100):
            writer.extend(**block(first, 100))
        assert told(table) == (0, 4_000, 0)
        go_on(2.0)
        for first in range(20):
            writer.append(state=4_000.0 + first, number=first, prompt=0)
        assert told(table)[0] == 0 and told(table)[2] == 4_000
        table.check()


def test_completers_beside_a_clock(go_on: Callable[[float], None]) -> None:
    """Each item is one thing at the end: published or timed out."""
    with relive.Table(LATE, 20_000, relive.Index(max_wait_s=100.0), max_lanes=4) as table:
        written: list[np.ndarray] = []
        is_over = threading.Event()

        def write() -> None:
            try:
                with table.writer() as writer:
                    for first in range(0, 6_000, 20):
                        keys = writer.extend(**block(first, 19))
                        if first % 1_000 == 0:
                            go_on(60.0)
                        if first % 200 == 0 and first < 3_200:
                            # No completer hears of these before their time is over, however fast the completers are.
                            go_on(200.0)
                        written.append(np.concatenate((keys, writer.extend(**block(first + 19, 1)))))
            finally:
                is_over.set()

        def complete(part: int) -> None:
            at = 0
            while not is_over.is_set() or at < len(written):
                if at < len(written):
                    table.complete(written[at][part::3], score=np.ones(len(written[at][part::3])))
                    at += 1

        threads = [threading.Thread(target=write), *(threading.Thread(target=complete, args=(k,)) for k in (0, 1))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        go_on(200.0)
        for _ in range(40):
            with table.writer() as writer:
                writer.append(state=0.0, number=0, prompt=0, next_state=1.0)
        table.check()
        stats = table.stats().indexes["default"]
        assert stats.inserted + stats.timed_out + stats.pending == 6_000 + 40
        assert stats.inserted > 0 and stats.timed_out >= 2_000


def test_it_is_written_down_and_read_again(tmp_path: Path) -> None:
    index = relive.Index(GROUPS, max_wait_s=2)
    assert pickle.loads(pickle.dumps(index)) == index == relive.Index.from_dict(index.to_dict())
    config = relive.TableConfig(PLAIN, 100, index)
    assert relive.TableConfig.from_dict(config.to_dict()) == config
    pytest.importorskip("pyarrow.flight", reason="the service is not installed here")
    from relive.service.config import load_config

    path = tmp_path / "table.toml"
    path.write_text(
        """
[tables.one]
capacity = 100
storage = "local"
columns = { action = { dtype = "int64" }, reward = { dtype = "float32", late = true } }
index = { max_wait_s = 2.5 }
"""
    )
    assert load_config(path).tables["one"].index["default"] == relive.Index(max_wait_s=2.5)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("inf"), float("nan"), "1", True])
def test_what_is_no_time(bad: Any) -> None:
    with pytest.raises(InvalidConfig, match="max_wait_s"):
        relive.Index(max_wait_s=bad)


def test_nothing_waits() -> None:
    with pytest.raises(InvalidConfig, match="no late columns"):
        relive.Table(PLAIN, 100, relive.Index(max_wait_s=1.0))
