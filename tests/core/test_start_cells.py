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
    number = (who @ np.array([100_000.0, 1000.0, 1.0]) % 2**20).astype(np.float32)
    return number[..., None] + np.arange(core, dtype="f4")


def assert_starts_are_right(table: relive.Table, index: str) -> None:
    batch = table.sample(64, index=index)
    first = batch.mask.argmax(axis=1)
    np.testing.assert_array_equal(batch["core"], starts_of(batch["who"][np.arange(64), first], CORE))


def area_of_core(table: relive.Table) -> str:
    return next(column["area"] for column in table._core.layout if column["name"] == "core")


def allocated(name: str) -> int:
    return sum(path.stat().st_blocks * 512 for path in shared_files(name))


@needs_shared_memory
@pytest.mark.core_alone
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


MOVED = {
    "shift": relive.Sequences(length=7, burn_in=4, bootstrap=1, period=5, at_end="shift"),
    "alone": relive.Sequences(length=9, burn_in=0, period=3, at_end="shift"),  # no burn-in, nothing behind
    "each": relive.Sequences(length=3, burn_in=2, period=1, at_end="shift"),  # an end finds a cell wherever it looks
    "long": relive.Sequences(length=40, burn_in=30, period=35, at_end="shift"),  # over many pages
    "tail": relive.Episodes(11, too_long="tail"),
}


class Twins:
    """The same rows to a table with cells and to one that keeps the value of each row, as transitions ask for it."""

    def __init__(self, items: list[Any], has_state: bool, capacity: int, lanes: int, core: int) -> None:
        kind = "state" if has_state else "step"
        self.columns = {
            "who": relive.ArraySpec((3,), "int32", kind=kind),
            "pad": relive.ArraySpec((20_000,), "uint8"),  # pages of 8 rows: windows lie on many
            "core": relive.ArraySpec((core,), "float32", kind="start"),
        }
        self.has_state, self.lanes, self.core = has_state, lanes, core
        self.names = [f"i{k}" for k in range(len(items))]
        indexes = {name: relive.Index(each, relive.Uniform()) for name, each in zip(self.names, items, strict=True)}
        more = [{}, {"plain": relive.Index(relive.Transitions(), relive.Uniform())}]
        self.tables = [
            relive.Table(relive.StepSpec(self.columns), capacity, indexes | each, max_lanes=max(8, lanes))
            for each in more
        ]
        assert [area_of_core(table) for table in self.tables] == ["cell", "large"]
        self.keys: list[tuple[np.ndarray, np.ndarray]] = []
        self.who = np.zeros((lanes, 3), np.int32)
        self.who[:, 0] = np.arange(lanes)
        self.open = np.zeros(lanes, bool)  # an episode of that lane
        self.writers = [table.writer(num_lanes=lanes) for table in self.tables]

    def rows_of(self, count: int, lanes: list[int]) -> np.ndarray:
        return self.who[lanes] + np.arange(count + 1, dtype=np.int32)[:, None, None] * np.int32([0, 0, 1])

    def extend(self, count: int, lanes: list[int], ends: bool, gives_next: bool) -> None:
        who = self.rows_of(count, lanes)
        flags = np.zeros((count, len(lanes)), bool)
        flags[-1] = ends
        rows = {"pad": np.zeros((count, len(lanes), 20_000), np.uint8), "core": starts_of(who[:-1], self.core)}
        rows["who"] = who if self.has_state and (gives_next or ends) else who[:-1]
        self.keys.append(
            tuple(writer.extend(**rows, truncated=flags, lanes=lanes).reshape(-1) for writer in self.writers)
        )
        self.who[lanes] = who[-1]
        self.open[lanes] = not ends
        if ends:
            self.begin_anew(lanes)

    def extend_over_ends(self, ends: np.ndarray, lanes: list[int]) -> None:
        """One block with as many ends as there are in `ends` [T, M]."""
        who = np.zeros((*ends.shape, 3), np.int32)
        for t, here in enumerate(ends):
            who[t] = self.who[lanes]
            self.who[lanes] += np.int32([0, 0, 1])
            self.open[lanes] = ~here
            self.begin_anew([lane for lane, is_end in zip(lanes, here, strict=True) if is_end])
        more = {"next_who": who + np.int32([0, 0, 1])} if self.has_state else {}
        rows = {"who": who, "pad": np.zeros((*ends.shape, 20_000), np.uint8), "core": starts_of(who, self.core)}
        self.keys.append(
            tuple(each.extend(**rows, **more, truncated=ends, lanes=lanes).reshape(-1) for each in self.writers)
        )

    def begin_anew(self, lanes: list[int]) -> None:
        self.who[lanes] = self.who[lanes] * np.int32([1, 1, 0]) + np.int32([0, 1, 0])
        self.open[lanes] = False

    def end_episode(self, lanes: list[int], terminated: bool) -> None:
        lanes = [lane for lane in lanes if self.open[lane]]
        if not lanes:
            return
        more = {"next_who": self.who[lanes]} if self.has_state and not terminated else {}
        for writer in self.writers:
            writer.end_episode(lanes=lanes, terminated=terminated and self.has_state, **more)
        self.begin_anew(lanes)

    def close(self) -> None:
        for writer in self.writers:
            writer.close()
        self.writers = [table.writer(num_lanes=self.lanes) for table in self.tables]
        self.begin_anew(list(range(self.lanes)))

    def abandon(self, lanes: list[int]) -> None:
        for writer in self.writers:
            writer.abandon(lanes)
        self.begin_anew(lanes)

    def assert_equal(self, is_full: bool) -> int:
        sparse, dense = (np.concatenate([pair[t] for pair in self.keys]) for t in (0, 1))
        found = 0
        for name in self.names:
            columns = ["who", "core", "mask"]
            one, other = (
                t.gather(keys, columns, index=name) for t, keys in zip(self.tables, (sparse, dense), strict=True)
            )
            if not is_full:
                np.testing.assert_array_equal(one.present, other.present)
            both = one.present & other.present
            for column in columns:
                np.testing.assert_array_equal(one[column][both], other[column][both])
            here = np.flatnonzero(one.present)
            if not len(here):
                continue
            first = one["who"][here, one.mask[here].argmax(axis=1)]
            np.testing.assert_array_equal(one["core"][here], starts_of(first, self.core))
            found += len(here)
        for table in self.tables:
            table.check()
        return found


@pytest.mark.forms(14)
@pytest.mark.core_alone
@pytest.mark.parametrize("has_state", [True, False], ids=["states", "no states"])
@pytest.mark.parametrize(
    "names", [*[(name,) for name in MOVED], ("shift", "tail", "alone"), ("long", "each")], ids="-".join
)
@pytest.mark.parametrize("capacity", [3_000, 400], ids=["all", "evicting"])
def test_windows_are_those_of_a_table_that_keeps_all(names: tuple[str, ...], has_state: bool, capacity: int) -> None:
    """Rows one by one and by blocks, every way an episode can end, lanes that end within one, over pages of 8 rows."""
    rng = np.random.default_rng(len(names[0]) + 2 * has_state)
    twins = Twins([MOVED[name] for name in names], has_state, capacity, lanes=3, core=70)
    for turn in range(150):
        lanes = sorted(rng.choice(3, size=rng.integers(1, 4), replace=False).tolist())
        what = rng.integers(0, 12)
        if what < 8:
            count = int(rng.choice([1, 2, 8, 13, 45]))
            twins.extend(count, lanes, ends=bool(rng.random() < 0.4), gives_next=bool(rng.random() < 0.5))
        elif what < 10:
            twins.end_episode(lanes, terminated=False)
        elif what == 10:
            twins.close()
        elif rng.random() < 0.5:
            twins.abandon([lane for lane in lanes if twins.open[lane]])
        if turn % 15 == 14:
            assert twins.assert_equal(is_full=capacity == 400) > 0


@pytest.mark.forms(54)
@pytest.mark.core_alone
@pytest.mark.parametrize("how", ["append", "end_episode", "close"])
@pytest.mark.parametrize("has_state", [True, False], ids=["states", "no states"])
@pytest.mark.parametrize("steps", [*range(6, 30), 63, 64, 65])
def test_an_end_wherever_it_falls(how: str, has_state: bool, steps: int) -> None:
    """The last row of a page, the first of the next one, an episode just as long as a window or one step longer."""
    twins = Twins([MOVED["shift"], MOVED["tail"]], has_state, 1_000, lanes=1, core=70)
    for step in range(steps):
        is_last = step + 1 == steps and how == "append"
        twins.extend(1, [0], ends=is_last, gives_next=False)
    if how == "end_episode":
        twins.end_episode([0], terminated=False)
    if how == "close":
        twins.close()
    assert twins.assert_equal(is_full=False) > 0


@pytest.mark.core_alone
@pytest.mark.parametrize("has_state", [True, False], ids=["states", "no states"])
@pytest.mark.parametrize("names", [("shift",), ("tail",), ("long", "each"), tuple(MOVED)], ids="-".join)
def test_a_block_with_many_ends(names: tuple[str, ...], has_state: bool) -> None:
    rng = np.random.default_rng(11)
    twins = Twins([MOVED[name] for name in names], has_state, 5_000, lanes=3, core=70)
    for mean in (3, 12, 25, 90):
        for lanes in ([0, 1, 2], [1]):
            twins.extend_over_ends(rng.random((200, len(lanes))) < 1 / mean, lanes)
            assert twins.assert_equal(is_full=False) > 0
    twins.close()
    assert twins.assert_equal(is_full=False) > 0


@pytest.mark.parametrize("has_state", [True, False], ids=["states", "no states"])
@pytest.mark.parametrize("how", ["end_episode", "close"])
def test_more_lanes_end_than_one_hold_ends(how: str, has_state: bool) -> None:
    """Some of them with the last row of a page, where an end without a row has no page open."""
    twins = Twins([MOVED["shift"]], has_state, 4_000, lanes=70, core=70)
    for lane in range(70):
        twins.extend(8 + lane % 9, [lane], ends=False, gives_next=lane % 2 == 0)
    before = twins.assert_equal(is_full=False)
    twins.end_episode(list(range(70)), terminated=False) if how == "end_episode" else twins.close()
    assert twins.assert_equal(is_full=False) > before + 50
