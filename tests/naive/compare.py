"""Compares what a table gives with what its naive twin says: every column of every item, exactly."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import relive
from naive.program import SPECS, Driver, Programme, make_index, make_spec
from naive.twin import Cells, NaiveItems, NaiveReplay

DERIVED = (
    "discount",
    "terminated",
    "truncated",
    "episode_step",
    "first",
    "num_steps",
    "policy_version",
    "staleness",
    "lane",
)
PAGE_BASE = 8  # page lengths are powers of it


def top_level_names(driver: Driver) -> list[str]:
    states = {name.split("/")[0] for name in driver.states}
    return sorted({name.split("/")[0] for name in driver.columns} | {f"next_{name}" for name in states})


def trimmed(expected: dict[str, Any], items: NaiveItems, columns: dict[str, Any]) -> dict[str, Any]:
    """An episode's columns as long as the longest of its batch."""
    window = items.window
    if window is None or not window.is_episode:
        return expected
    num = columns["mask"].shape[1]
    part = slice(0, num) if window.pad == "right" else slice(window.num_rows - num, None)
    timed = [name for name in expected if expected[name] is not None and np.ndim(columns[name]) > 1]
    timed = [n for n in timed if np.shape(expected[n])[:1] == (window.num_rows,) and columns[n].shape[1] == num]
    return {name: value[part] if name in timed else value for name, value in expected.items()}


def end_to_end(driver: Driver, expected: dict[str, Any], batch: Any, position: int) -> tuple[Cells, dict[str, Any]]:
    """One item of a batch whose items lie end to end, and the same item of the twin, without padding."""
    begin, end = batch.offsets[position : position + 2]
    assert end - begin == expected["num_rows"], "another number of rows"
    once = {"num_steps", "policy_version", "num_rows"} | driver.twin.start_columns
    columns = {**batch.flat(), "num_rows": np.diff(batch.offsets)}
    got = {name: columns[name][position] if name in once else columns[name][begin:end] for name in expected}
    return got, {name: value if name in once else value[: end - begin] for name, value in expected.items()}


def check_rows(driver: Driver, items: NaiveItems, keys: np.ndarray, batch: Any, positions: np.ndarray) -> None:
    """Rows `positions` of the batch are the items `keys` of the twin."""
    lanes: dict[int, int] = {}
    columns = batch.flat()
    for position in positions:
        key = int(keys[position])
        expected = driver.twin.item(key, items)
        assert expected is not None, f"key {key} is given out, the twin does not know it as published"
        episode, t = driver.twin.where[key]
        where = f"lane {episode.lane}, step {t} of {len(episode.steps)}, {items}"
        if items.window is not None and items.window.is_ragged:
            all_got, expected = end_to_end(driver, expected, batch, position)
        else:
            expected.pop("num_rows", None)
            expected = trimmed(expected, items, columns)
            all_got = {name: columns[name][position] for name in expected}
        for name, value in expected.items():
            got = all_got[name]
            assert got.shape == np.shape(value), f"{name}: {got.shape} instead of {np.shape(value)}; {where}"
            if not np.array_equal(got, value):
                raise AssertionError(f"{name} is {got} instead of {value}; {where}")
        assert batch["staleness"][position] == driver.version - np.min(expected["policy_version"]), where
        lane = int(batch["lane"][position])
        assert lanes.setdefault(episode.lane, lane) == lane, f"one lane has two names; {where}"


def check_dtypes(driver: Driver, batch: Any) -> None:
    for name, (_, dtype, kind) in driver.columns.items():
        assert batch[name].dtype == np.dtype(dtype), name
        if kind == "state":
            assert batch[f"next_{name}"].dtype == np.dtype(dtype), name
    assert batch["discount"].dtype == np.float32
    for name in ("terminated", "truncated", "first"):
        assert batch[name].dtype == np.bool_, name
    for name in ("episode_step", "num_steps", "policy_version", "staleness", "lane"):
        assert batch[name].dtype == np.int64, name


def check_index(driver: Driver, items: NaiveItems, index: str, exact: bool, capacity: int, num_items: int = 24) -> None:
    """Everything one index says: by key, by draw, and what it must not have forgotten."""
    twin, table = driver.twin, driver.table
    columns = top_level_names(driver) + list(DERIVED) + (["mask", "loss_mask"] if items.window else [])
    live = twin.live_keys(items)
    present_keys: set[int] = set()
    if twin.keys:
        keys = np.asarray(twin.keys, np.int64)
        batch = table.gather(keys, columns=columns, index=index)
        check_dtypes(driver, batch)
        present = np.asarray(batch.present)
        assert present.dtype == np.bool_ and present.shape == keys.shape
        check_rows(driver, items, keys, batch, np.flatnonzero(present))
        present_keys = {int(key) for key in keys[present]}
        assert present_keys <= live, "an item is live that the twin does not know as published"
    if exact:
        assert present_keys == live, f"missing: {sorted(live - present_keys)[:5]} of {len(live)}"
    else:
        missing = must_be_there(twin, items, max_before(driver), capacity) & live - present_keys
        assert not missing, f"forgotten far too early: {sorted(missing)[:5]}"
    if present_keys:
        batch = table.sample(num_items, columns=columns, timeout_s=0.0, index=index)
        check_dtypes(driver, batch)
        drawn = np.asarray(batch.item_keys)
        assert drawn.shape == (num_items,) and drawn.dtype == np.int64
        assert {int(key) for key in drawn} <= present_keys
        check_rows(driver, items, drawn, batch, np.arange(num_items))
    else:
        with pytest.raises(relive.errors.DeadlineExceeded):
            table.sample(num_items, timeout_s=0.0, index=index)


def max_before(driver: Driver) -> int:
    return max(items.before for items in driver.all_items)


def must_be_there(twin: NaiveReplay, items: NaiveItems, before: int, capacity: int) -> set[int]:
    """Keys so new that no first-in-first-out table of that capacity may have forgotten them.

    Room is left for what the table is allowed: one page a lane that was ever open, tail rows, and the stack (or the
    burn-in) of the oldest stored step of each lane.
    """
    longest = before + items.spanned
    page = PAGE_BASE
    while page < longest:
        page *= PAGE_BASE
    page = max(page, capacity // 8)
    room = capacity - page * (len(twin.lanes) + 1) - longest
    result = set()
    for lane in twin.lanes:
        steps = twin.steps_of_lane(lane)
        for position, step in enumerate(steps):
            oldest_needed = steps[max(0, position - before)]
            if twin.num_rows - oldest_needed.order < room:
                result.add(step.key)
    return result


def check_table(driver: Driver, programme: Programme, exact: bool) -> None:
    table, twin = driver.table, driver.twin
    table.check()
    # Each load closes the pages of open lanes. If loads follow each other soon, page ids run out before capacity does.
    exact = exact and not (driver.num_loads and table.stats().pool_pressure)
    if exact:
        # Where an episode was given up a page may be left without any item: it goes early, with steps of other episodes
        # that no item needs. The items themselves are all there, which is looked at below.
        stats = table.stats()
        gone = twin.num_steps() - len(table)
        assert gone == 0 or (stats.early_freed > 0 and 0 < gone <= stats.evicted)
    else:
        assert len(table) <= programme.capacity
    for number, items in enumerate(programme.indexes):
        check_index(driver, items, f"index{number}", exact, programme.capacity)


def run_programme(
    programme: Programme,
    storage: Any = None,
    check_every: int = 0,
    before_check: Callable[[relive.Table], object] = lambda table: None,
) -> Driver:
    """Does the whole programme and compares at its end (and in between, every so many operations)."""
    columns = SPECS[programme.columns]
    index = {f"index{number}": make_index(items) for number, items in enumerate(programme.indexes)}
    lanes = sum(size or 1 for size in programme.writers)
    table = relive.Table(
        make_spec(columns),
        programme.capacity,
        index,
        storage=storage or relive.LocalMemory(),
        max_lanes=lanes + 2,
        seed=7,
    )
    with contextlib.ExitStack() as open_tables:
        driver = Driver(columns, table, programme.writers, programme.indexes)
        open_tables.callback(lambda: driver.table.close())  # a programme may go on with a table that it loaded
        for number, op in enumerate(programme.ops):
            driver.apply(op)
            exact = driver.twin.num_rows + lanes <= programme.capacity
            if check_every and number % check_every == check_every - 1:
                before_check(driver.table)
                check_table(driver, programme, exact)
        check_table(driver, programme, driver.twin.num_rows + lanes <= programme.capacity)
        for writer in driver.writers:
            writer.close()
        for lanes_of_writer in driver.lanes:
            for lane in lanes_of_writer:
                driver.twin.close_lane(lane)
        before_check(driver.table)
        check_table(driver, programme, driver.twin.num_rows + lanes <= programme.capacity)
    return driver
