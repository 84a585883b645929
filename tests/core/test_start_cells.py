"""Large start values are kept where a window may begin, and nowhere else (rule B4)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes.shm import needs_shared_memory, shared_files
from tiered.tools import needs_tiers

import relive

LANES = 4
CORE = 1024  # float32: 4 kB a state, as of R2D2
R2D2 = relive.Sequences(length=80, burn_in=40, bootstrap=1, period=40)
ITEMS = {
    "pad": R2D2,
    "drop": dataclasses.replace(R2D2, at_end="drop"),
    "cross": dataclasses.replace(R2D2, at_end="cross"),
    "short": relive.Sequences(length=5, burn_in=3, period=4),
    "head": relive.Episodes(60, too_long="head"),
    "shift": dataclasses.replace(R2D2, at_end="shift"),
    "short shift": relive.Sequences(length=5, burn_in=3, period=4, at_end="shift"),
    "tail": relive.Episodes(60, too_long="tail"),
}


def make_table(items: Any, capacity: int, storage: Any, core: int = CORE) -> relive.Table:
    columns = {"who": relive.ArraySpec((3,), "int32", kind="state"), "reward": relive.ArraySpec((), "float32")}
    if core:
        columns["core"] = relive.ArraySpec((core,), "float32", kind="start")
    indexes = {f"i{k}": relive.Index(each, relive.Uniform()) for k, each in enumerate(items)}
    return relive.Table(relive.StepSpec(columns), capacity, indexes, storage=storage, max_lanes=16)


class Acting:
    """Writes episodes of many lengths; the start value of a step says which lane, episode and step it is."""

    def __init__(self, table: relive.Table, core: int = CORE, episode: float = 400.0) -> None:
        self.table, self.core, self.mean = table, core, episode
        self.rng = np.random.default_rng(3)
        self.who = np.zeros((LANES, 3), np.int32)
        self.who[:, 0] = np.arange(LANES)
        self.writer = table.writer(num_lanes=LANES)

    def turn(self) -> None:
        """Another writer goes on in the pages of the lanes."""
        self.writer.close()
        self.writer = self.table.writer(num_lanes=LANES)
        self.who[:, 1:] = self.who[:, 1:] * [1, 0] + [1, 0]

    def step(self, count: int) -> None:
        for _ in range(count):
            ends = self.rng.random(LANES) < 1 / self.mean
            following = self.who + np.int32([0, 0, 1])
            core = {"core": starts_of(self.who, self.core)} if self.core else {}
            reward = np.zeros(LANES, np.float32)
            self.writer.append(who=self.who, reward=reward, next_who=following, terminated=ends, **core)
            self.who = np.where(ends[:, None], self.who * np.int32([1, 1, 0]) + np.int32([0, 1, 0]), following)


def starts_of(who: np.ndarray, core: int) -> np.ndarray:
    return (who @ np.array([100_000.0, 1000.0, 1.0]) % 2**20)[:, None].astype(np.float32) + np.arange(core, dtype="f4")


def assert_starts_are_right(table: relive.Table, index: str) -> None:
    batch = table.sample(64, index=index)
    first = batch.mask.argmax(axis=1)
    np.testing.assert_array_equal(batch["core"], starts_of(batch["who"][np.arange(64), first], CORE))


def area_of_core(table: relive.Table) -> str:
    return next(column["area"] for column in table._core.layout if column["name"] == "core")


def allocated(name: str) -> int:
    return sum(path.stat().st_blocks * 512 for path in shared_files(name))


@needs_shared_memory
@pytest.mark.parametrize("at_end", ["pad", "drop", "cross", "shift", "tail"])
def test_stored_states_take_a_thirtieth(at_end: str, shm_name: Callable[[], str]) -> None:
    """R2D2: windows of 121 steps, period 40, a state of 4 kB; after the table was filled more than twice."""
    capacity, taken = 8_000, []
    for core in (CORE, 0):
        name = shm_name()
        with make_table([ITEMS[at_end]], capacity, relive.SharedMemory(name), core) as table:
            acting = Acting(table, core)
            acting.step(20_000 // LANES)
            table.check()
            taken.append(allocated(name))
    assert 0 < taken[0] - taken[1] <= capacity * CORE * 4 / 30


@needs_shared_memory
def test_a_block_as_long_as_the_table_takes_no_more(shm_name: Callable[[], str]) -> None:
    """Cells come back as old rows go for those of the block: what a full table has is enough."""
    capacity, name, taken = 8_000, shm_name(), []
    with make_table([R2D2], capacity, relive.SharedMemory(name)) as table:
        writer = table.writer()
        steps = np.arange(capacity + 1, dtype=np.int32)
        who = np.stack([np.zeros_like(steps), np.zeros_like(steps), steps], 1)
        core = np.zeros((capacity, CORE), "f4")
        for _ in range(3):
            writer.extend(who=who, reward=np.zeros(capacity, "f4"), core=core, terminated=steps[1:] == capacity)
            taken.append(allocated(name))
        table.check()
    assert taken[2] - taken[0] <= capacity * CORE * 4 / 200


@pytest.mark.parametrize(
    "names",
    [
        *[(name,) for name in ITEMS],
        ("short", "cross", "head"),
        ("shift", "short shift", "tail"),
        ("cross", "short shift", "tail", "drop"),
    ],
)
def test_a_window_gets_the_value_of_its_first_row(names: tuple[str, ...]) -> None:
    """Through evictions, ends of episodes, given up ones, and writers that go on in another's pages."""
    with make_table([ITEMS[name] for name in names], 3_000, relive.LocalMemory()) as table:
        assert area_of_core(table) == "cell"
        acting = Acting(table, episode=50.0)
        for turn in range(12):
            acting.step(150)
            for k in range(len(names)):
                assert_starts_are_right(table, f"i{k}")
            table.check()
            if turn % 3 == 1:
                acting.writer.abandon([0, 2])
                acting.who[[0, 2], 1:] = acting.who[[0, 2], 1:] * [1, 0] + [1, 0]
            if turn % 4 == 2:
                acting.turn()
            table.check()


@pytest.mark.parametrize(
    "items",
    [
        [relive.Episodes(40, too_long="random")],
        [R2D2, relive.Transitions()],
    ],
    ids=["random", "transitions"],
)
def test_every_row_keeps_its_value_where_any_may_be_asked_for(items: list[Any]) -> None:
    with make_table(items, 3_000, relive.LocalMemory()) as table:
        assert area_of_core(table) == "large"
        acting = Acting(table, episode=30.0)
        acting.step(600)
        assert_starts_are_right(table, "i0")


def test_small_values_lie_in_the_row() -> None:
    with make_table([R2D2], 3_000, relive.LocalMemory(), core=64) as table:
        assert area_of_core(table) == "record"


@needs_tiers
def test_a_tiered_table_keeps_all(tmp_path: Path) -> None:
    with make_table([R2D2], 3_000, relive.Tiered(tmp_path, ram_bytes=32 << 20)) as table:
        assert area_of_core(table) != "cell"
        acting = Acting(table, episode=50.0)
        acting.step(500)
        assert_starts_are_right(table, "i0")


def test_a_block_of_a_whole_episode() -> None:
    """extend: many cells at once, more than a hold takes, over many pages and with ends inside."""
    with make_table([relive.Sequences(length=4, period=1)], 5_000, relive.LocalMemory()) as table:
        writer = table.writer()
        for episode in range(8):
            rows = 900
            steps = np.arange(rows + 1, dtype=np.int32)
            who = np.stack([np.zeros_like(steps), np.full_like(steps, episode), steps], 1)
            writer.extend(
                who=who, reward=np.zeros(rows, "f4"), core=starts_of(who[:-1], CORE), terminated=steps[1:] == rows
            )
            assert_starts_are_right(table, "i0")
            table.check()
