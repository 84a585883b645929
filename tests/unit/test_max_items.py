"""max_items of an index of rows: the oldest published item goes, whatever its step is to others."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from processes.shm import needs_shared_memory

import relive
from relive import errors
from relive.errors import InvalidConfig

COLUMNS = {
    "state": relive.ArraySpec((), "float32", kind="state"),
    "number": relive.ArraySpec((), "int64"),
}
PLAIN = relive.StepSpec(COLUMNS)
LATE = relive.StepSpec({**COLUMNS, "score": relive.ArraySpec((), "float32", late=True)})


def block(first: int, num_steps: int, **more: Any) -> dict[str, Any]:
    states = np.arange(first, first + num_steps + 1, dtype=np.float32)
    return {"state": states[:-1], "number": np.arange(first, first + num_steps), "next_state": states[1:], **more}


def numbers_of(table: relive.Table, keys: np.ndarray, index: str = "default") -> list[int]:
    batch = table.gather(keys, columns=["number"], index=index)
    return [int(number) for number in batch["number"].reshape(len(keys), -1)[batch.present, 0]]


@pytest.mark.parametrize("sampler", [relive.Uniform(), relive.Prioritized(0.6)])
def test_the_last_of_them_are_items(sampler: Any) -> None:
    with relive.Table(PLAIN, 1000, relive.Index(sampler=sampler, max_items=50)) as table, table.writer() as writer:
        keys = writer.extend(**block(0, 600))
        assert table.num_items() == 50 and len(table) < 600  # pages without items went
        assert numbers_of(table, keys) == list(range(550, 600))
        assert set(table.sample(500)["number"].tolist()) <= set(range(550, 600))
        keys = np.concatenate([keys, [writer.append(state=600.0, number=600, next_state=601.0)]])
        assert numbers_of(table, keys) == list(range(551, 601))
        assert table.stats().indexes["default"].inserted == 601
        table.check()


def test_what_goes_is_one_index_s_business() -> None:
    """Two bounded indexes, of them one with windows, and one without bound over the same steps."""
    indexes = {
        "all": relive.Index(relive.Transitions(n_step=3)),
        "last": relive.Index(relive.Transitions(n_step=3), relive.Prioritized(1.0), max_items=20),
        "windows": relive.Index(relive.Sequences(length=4, period=4), max_items=3),
    }
    with relive.Table(PLAIN, 400, indexes) as table, table.writer() as writer:
        keys = writer.extend(**block(0, 200, terminated=np.arange(200) % 50 == 49))
        assert [table.num_items(name) for name in indexes] == [200, 20, 3]
        assert numbers_of(table, keys, "all") == list(range(200))
        assert numbers_of(table, keys, "last") == list(range(180, 200))
        assert numbers_of(table, keys, "windows") == [190, 194, 198]
        assert table.update_priorities(keys, np.ones(200, np.float32), index="last") == 20
        assert table.delete(keys[190:200]) == 10
        assert table.num_items("last") == 10
        table.check()
        writer.extend(**block(200, 30))
        assert numbers_of(table, keys, "last") == []
        table.check()


def test_published_first_goes_first_and_not_written_first() -> None:
    """Late columns come in any order: what was complete first is the oldest item."""
    with relive.Table(LATE, 300, relive.Index(max_items=4)) as table, table.writer() as writer:
        keys = writer.extend(**block(0, 10))
        for at in (7, 2, 9, 0, 5, 4):
            table.complete(keys[[at]], score=[1.0])
        assert sorted(numbers_of(table, keys)) == [0, 4, 5, 9]
        with pytest.raises(errors.ReliveError):
            table.complete(keys[[7]], score=[2.0])
        table.check()


def test_what_was_deleted_or_used_up_makes_room() -> None:
    index = relive.Index(max_items=5, max_times_sampled=1)
    with relive.Table(PLAIN, 300, index) as table, table.writer() as writer:
        keys = writer.extend(**block(0, 5))
        table.delete(keys[:2])
        more = writer.extend(**block(5, 2))
        assert numbers_of(table, np.concatenate([keys, more])) == [2, 3, 4, 5, 6]
        used = table.sample(4)["number"].tolist()
        assert len(set(used)) == 4 and table.num_items() == 1
        writer.extend(**block(7, 4))
        assert table.num_items() == 5
        table.check()


def test_pages_without_items_go_early() -> None:
    """Steps that no index has an item of any more do not take the place of others."""
    with relive.Table(PLAIN, 5000, relive.Index(max_items=10)) as table, table.writer() as writer:
        for first in range(0, 4000, 100):
            writer.extend(**block(first, 100, terminated=np.arange(100) == 99))
        assert table.num_items() == 10 and len(table) < 2000
        assert table.stats().early_freed > 0
        table.check()


@needs_shared_memory
def test_the_bound_is_kept_in_texts_and_by_who_attaches(shm_name: Callable[[], str]) -> None:
    index = relive.Index(max_items=7, limiter=relive.MinSize(7))
    assert relive.Index.from_dict(index.to_dict()) == index and "max_items=7" in repr(index)
    name = shm_name()
    with relive.Table(PLAIN, 100, index, storage=relive.SharedMemory(name)) as table, table.writer() as writer:
        writer.extend(**block(0, 30))
        with relive.attach(name) as other, other.writer() as second:
            second.extend(**block(30, 3))
            assert sorted(set(table.sample(200)["number"].tolist())) == list(range(26, 33))
            other.check()


@pytest.mark.parametrize("bad", [0, -1, 2**31 + 1, 1.5, "7", True])
def test_what_is_no_bound_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidConfig, match="max_items"):
        relive.Index(max_items=bad)


def test_other_bounds_that_do_not_go_with_it() -> None:
    with pytest.raises(InvalidConfig, match="min_size"):
        relive.Index(limiter=relive.MinSize(11), max_items=10)
    with pytest.raises(InvalidConfig, match=r"Explicit\(max_items=\)"):
        relive.Index(relive.Explicit(relive.Window(3)), max_items=10)
    with pytest.raises(InvalidConfig, match=r"Episodes\(max_groups=\)"):
        relive.Index(relive.Episodes(5, group_by="prompt", group_size=2, max_groups=9), max_items=10)
    with pytest.raises(TypeError, match=r"Index\(max_items="):
        relive.Table(PLAIN, 100, max_items=10)  # type: ignore[call-arg]


@pytest.mark.parametrize("max_items", [1, 3, 17])
def test_long_programmes_against_a_list(max_items: int) -> None:
    """The live items are a list in the order in which items became complete, cut at its front."""
    rng = random.Random(max_items)
    keys: list[int] = []
    waiting: list[int] = []
    live: list[int] = []
    indexes = {"rows": relive.Index(), "few": relive.Index(sampler=relive.Prioritized(1.0), max_items=max_items)}
    with relive.Table(LATE, 120, indexes) as table, table.writer() as writer:

        def write() -> None:
            count = rng.randint(1, 9)
            ending = np.arange(count) == count - 1 if rng.random() < 0.3 else np.zeros(count, bool)
            waiting.extend(range(len(keys), len(keys) + count))
            keys.extend(writer.extend(**block(len(keys), count, terminated=ending)).tolist())

        def complete() -> None:
            for number in rng.sample(waiting, min(len(waiting), rng.randint(1, 12))):
                waiting.remove(number)
                if table.complete([keys[number]], score=[0.5]) == 1:
                    live.append(number)
                    del live[: max(0, len(live) - max_items)]

        def delete() -> None:
            if live and rng.random() < 0.5:
                table.delete([keys[live.pop(rng.randrange(len(live)))]])

        def update() -> None:
            applied = table.update_priorities(np.array(keys), np.full(len(keys), rng.random(), np.float32), index="few")
            assert applied >= len(live)

        calls: list[Callable[[], None]] = [write, complete, complete, delete, update]
        for _ in range(400):
            rng.choice(calls)()
            table.check()
            if not keys:
                continue
            rows = set(numbers_of(table, np.array(keys), "rows"))
            live[:] = [number for number in live if number in rows]
            assert numbers_of(table, np.array(keys), "few") == sorted(live)
            assert table.num_items("few") == len(live)
    assert len(keys) > 200
