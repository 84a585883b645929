"""Saves of tables whose large columns are on the disk, loaded into memory and on to the disk."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiered.tools import pattern, smallest_storage

import relive
from relive import errors
from saving.test_joints import INDEXES, ROWS, add_episodes, with_reward

ROW_BYTES = 3000
SPEC = relive.StepSpec({"number": relive.ArraySpec((), "int64"), "bytes": relive.ArraySpec((ROW_BYTES,), "uint8")})
PRIORITIES = relive.Index(sampler=relive.Prioritized(1.0))


def on_disk(folder: Path, spec: Any, capacity: int, index: Any, **options: Any) -> relive.Tiered:
    return smallest_storage(folder, spec, capacity, index, options["max_lanes"], **options)


def tiered(folder: Path, capacity: int = 2000, max_lanes: int = 4) -> relive.Table:
    storage = on_disk(folder, SPEC, capacity, PRIORITIES, max_lanes=max_lanes)
    return relive.Table(SPEC, capacity, PRIORITIES, storage=storage, max_lanes=max_lanes)


def append(writer: relive.Writer, first: int, count: int) -> np.ndarray:
    numbers = np.arange(first, first + count)
    return np.asarray(writer.extend(number=numbers, bytes=pattern(numbers, ROW_BYTES)))


def assert_rows(table: relive.Table, keys: np.ndarray, numbers: Any) -> None:
    got = table.gather(keys)
    assert got.present.all()
    assert np.array_equal(got["number"], numbers)
    assert np.array_equal(got["bytes"], pattern(numbers, ROW_BYTES))


@pytest.mark.parametrize("way", [("disk", "disk"), ("disk", "memory"), ("memory", "disk")], ids="-".join)
@pytest.mark.parametrize("name", INDEXES)
def test_the_next_draws_are_those_of_the_saved_table(tmp_path: Path, name: str, way: tuple[str, str]) -> None:
    disk = on_disk(tmp_path, ROWS, 400, INDEXES[name], seed=5, max_lanes=4)
    storages: list[Any] = [disk if place == "disk" else relive.LocalMemory() for place in way]
    reward = with_reward if name == "hindsight" else None
    index = INDEXES[name]
    if name == "hindsight":  # goals lie in memory
        disk = relive.Tiered(tmp_path, 1 << 20, min_column_bytes=16)
        storages = [disk if place == "disk" else relive.LocalMemory() for place in way]
    with relive.Table(ROWS, 400, index, seed=5, max_lanes=4, storage=storages[0]) as table:
        keys = add_episodes(table, 24)
        for name_of_index, one in table.config.index.items():
            if one.has_priorities:
                table.update_priorities(keys[::3], np.arange(1.0, 1.0 + len(keys[::3])), index=name_of_index)
        table.sample(6, reward=reward)
        table.save(tmp_path / "save")
        with relive.load(tmp_path / "save", storage=storages[1]) as copy:
            copy.check()
            assert (copy.stats().tiers is not None) == (way[1] == "disk")
            assert copy.stats().indexes == table.stats().indexes
            for name_of_index in table.indexes:
                for _ in range(3):
                    one, other = (each.sample(6, index=name_of_index, reward=reward) for each in (table, copy))
                    assert np.array_equal(one.item_keys, other.item_keys)
                    for column in one:
                        assert np.array_equal(np.asarray(one[column]), np.asarray(other[column])), column


def test_a_second_save_writes_the_new_pages(tmp_path: Path) -> None:
    with tiered(tmp_path) as table, table.writer() as writer:
        keys = append(writer, 0, 1500)
        first = table.save(tmp_path / "save")
        more = append(writer, 1500, 100)
        second = table.save(tmp_path / "save")
        assert table.stats().tiers.pages_on_disk > 100
        assert second.num_pages_written <= 100 * first.num_pages_written // 1500 + 3
        storage = on_disk(tmp_path, SPEC, 2000, PRIORITIES, max_lanes=4)
        for place in (storage, relive.LocalMemory()):
            with relive.load(tmp_path / "save", storage=place) as copy:
                assert_rows(copy, np.concatenate([keys, more]), np.arange(1600))
                assert copy.save(tmp_path / "save").num_pages_written <= 1, "only the page that was open"


def test_rows_are_whole_while_pages_go_to_the_disk_and_away(tmp_path: Path) -> None:
    """Two writers overwrite a full table during the saves: pages move, are freed, and come again."""
    stopped = threading.Event()
    with tiered(tmp_path, capacity=600) as table:

        def write(first: int) -> None:
            with table.writer() as writer:
                for at in range(first, 1 << 15, 16):
                    if stopped.is_set():
                        return
                    append(writer, at, 16)

        threads = [threading.Thread(target=write, args=(first,)) for first in (0, 1 << 14)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(6):
                done = table.stats().appended
                while table.stats().appended < done + 300:
                    stopped.wait(0.005)
                facts = table.save(tmp_path / "save")
                with relive.load(tmp_path / "save", storage=relive.LocalMemory()) as copy:
                    keys = np.concatenate(list(copy.keys()))
                    assert len(keys) == facts.num_steps == len(copy) > 500
                    assert_rows(copy, keys, copy.gather(keys)["number"])
        finally:
            stopped.set()
            for thread in threads:
                thread.join()


def test_a_disk_that_cannot_be_read_leaves_the_save_before_it(tmp_path: Path) -> None:
    with tiered(tmp_path) as table, table.writer() as writer:
        append(writer, 0, 300)
        table.save(tmp_path / "save")
        append(writer, 300, 900)
        table._core.spill_all_pages()
        table._core.fail_disk(5, 0)
        with pytest.raises(errors.SystemFailure, match="page file"):
            table.save(tmp_path / "save")
        table._core.fail_disk(0, 0)
        assert relive.saved(tmp_path / "save").num_steps == 300
        table.check()
        table.save(tmp_path / "save")
        assert relive.saved(tmp_path / "save").num_steps == 1200


def test_memory_for_the_pages_that_were_open(tmp_path: Path) -> None:
    index = relive.Index(relive.Transitions(n_step=2))
    storage = on_disk(tmp_path, SPEC, 2000, index, max_lanes=40)
    with relive.Table(SPEC, 2000, index, storage=storage, max_lanes=40) as table, table.writer(40) as writers:
        numbers = np.arange(40)
        keys = [writers.append(number=numbers + k, bytes=pattern(numbers + k, ROW_BYTES)) for k in (0, 40)]
        table.save(tmp_path / "save")
        few = smallest_storage(tmp_path, SPEC, 2000, index, 1, max_lanes=40)
        with pytest.raises(errors.InvalidConfig, match="every page that was open"):
            relive.load(tmp_path / "save", storage=few)
        assert [one.name for one in tmp_path.iterdir()] == ["save"], "the page file has no name"
        with relive.load(tmp_path / "save", storage=storage) as copy:
            assert len(copy) == 80
            assert_rows(copy, keys[0], numbers)


def test_a_table_in_memory_may_have_pages_that_are_too_large_for_the_tier(tmp_path: Path) -> None:
    with relive.Table(SPEC, 20_000, PRIORITIES, max_lanes=1) as table, table.writer() as writer:
        append(writer, 0, 100)
        table.save(tmp_path / "save")
    with pytest.raises(errors.InvalidConfig, match="ram_bytes of Tiered"):
        relive.load(tmp_path / "save", storage=relive.Tiered(tmp_path, 1 << 16))
