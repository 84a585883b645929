"""The row 'time axis' of the table of meanings: sequences and episodes whose batches come as [T, B, ...]."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import relive
from contract.sequences import write_episodes
from contract.tools import MakeTable, Suite, plain_spec, present, step

ONCE = ("core", "lane", "num_steps", "policy_version", "staleness")  # columns that come once an item
TIMED = ("observation", "next_observation", "action", "reward", "discount", "mask", "terminated", "truncated")
COLUMNS = (*TIMED, "first", "episode_step", *ONCE)

ITEMS: list[Any] = [
    relive.Sequences(4, burn_in=2, bootstrap=1, gamma=0.5, time_major=True),
    relive.Sequences(4, burn_in=1, bootstrap=2, pad="left", at_end="shift", period=3, time_major=True),
    relive.Sequences(3, stack={"observation": 3}, stack_pad="zeros", burn_in=2, time_major=True),
    relive.Sequences(5, stack={"observation": 2}, at_end="drop", time_major=True),
    relive.Episodes(16, bootstrap=1, time_major=True),
    relive.Episodes(6, too_long="tail", pad="left", time_major=True),
]


def spec() -> relive.StepSpec:
    return plain_spec(core=relive.ArraySpec((2,), "float32", kind="start"))


def write(writer: Any, lengths: Any = (10, 3, 8, 4)) -> np.ndarray:
    keys: list[Any] = []
    first = 0
    for length in lengths:
        last = first + length - 1
        steps = [step(t, t + 1, core=np.full(2, t), truncated=t == last) for t in range(first, last + 1)]
        keys += [writer.append(**one) for one in steps]
        first += length
    return np.asarray(keys)


def items_first(items: Any) -> Any:
    return dataclasses.replace(items, time_major=False)


def turned(name: str, array: Any) -> Any:
    """An array of a batch as it would be with items first."""
    return array if name in ONCE else np.swapaxes(array, 0, 1)


class TimeFirstSuite(Suite):
    @pytest.mark.parametrize("items", ITEMS, ids=str)
    def test_with_the_time_axis_first_a_batch_is_the_same_turned_round(self, make_table: MakeTable, items: Any) -> None:
        """Every column that has a time axis, the mask too, of items that are there and of items that are gone."""
        both = {"first": relive.Index(items), "other": relive.Index(items_first(items))}
        table = make_table(spec(), 1000, both)
        with table.writer() as writer:
            keys = write(writer)
            gone = keys[present(table, keys)][1]
            asked = keys[present(table, keys)][[2, 0, 1, 0]]
            table.delete(gone[None])
            got = table.gather(asked, COLUMNS, index="first")
            expected = table.gather(asked, COLUMNS, index="other")
        assert got.present.tolist() == expected.present.tolist() == [True, True, False, True]
        assert got["mask"].shape == expected["mask"].shape[::-1] and got["mask"].shape[1] == 4
        assert got.lengths.dtype == np.int64 and got.lengths.tolist() == expected.lengths.tolist()
        for name in COLUMNS:
            array = got[name]
            assert array.shape == turned(name, expected[name]).shape
            np.testing.assert_array_equal(turned(name, array), expected[name], name)

    @pytest.mark.parametrize("items", ITEMS, ids=str)
    def test_a_drawn_batch_is_what_its_keys_gather(self, make_table: MakeTable, items: Any) -> None:
        table = make_table(spec(), 1000, relive.Index(items))
        with table.writer() as writer:
            write(writer)
            batch = table.sample(7, COLUMNS, timeout_s=0.0)
            again = table.gather(batch.item_keys, COLUMNS)
        for name in COLUMNS:
            np.testing.assert_array_equal(batch[name], again[name], name)
        assert all(batch[name].flags.c_contiguous for name in COLUMNS)

    def test_shapes_with_time_first(self, make_table: MakeTable) -> None:
        items = relive.Sequences(4, burn_in=2, bootstrap=1, stack={"observation": 3}, time_major=True)
        table = make_table(spec(), 1000, relive.Index(items))
        with table.writer() as writer:
            write(writer)
            batch = table.sample(5, COLUMNS, timeout_s=0.0)
        assert batch["observation"].shape == (7, 5, 3, 2) and batch["reward"].shape == batch.mask.shape == (7, 5)
        assert batch["core"].shape == (5, 2) and batch["policy_version"].shape == (5, 2)
        assert batch["lane"].shape == batch.lengths.shape == batch.item_keys.shape == (5,) and batch.num_items == 5

    def test_episodes_with_time_first_end_with_the_longest(self, make_table: MakeTable) -> None:
        items = relive.Episodes(16, bootstrap=1, time_major=True)
        table = make_table(plain_spec(), 1000, relive.Index(items))
        with table.writer() as writer:
            keys = write_episodes(writer, (3, 5))
            batch = table.gather(keys[[3, 0]])
            assert batch["observation"].shape == (6, 2, 2) and batch.lengths.tolist() == [5, 3]
            assert batch["observation"][:, 1, 0].tolist() == [0, 1, 2, 3, 0, 0]
            assert batch["action"][:, 0].tolist() == [3, 4, 5, 6, 7, 0]
            alone = table.gather(keys[[0]], columns=["reward"])
        assert alone["reward"].tolist() == [[0], [1], [2], [0]]

    def test_rows_of_a_batch_with_time_first_are_items(self, make_table: MakeTable) -> None:
        table = make_table(spec(), 1000, relive.Index(relive.Episodes(16, time_major=True)))
        with table.writer() as writer:
            keys = write(writer, (3, 5, 2))
            batch = table.gather(keys[[0, 3, 8]])
        is_long = batch.lengths > 2
        for which in (slice(1, None), np.asarray([1, 2]), np.asarray([False, True, True])):
            part = batch.rows(which)
            assert part["reward"].shape == (5, 2) and part["core"].tolist() == [[3, 3], [8, 8]]
            assert part.lengths.tolist() == [5, 2] and part.item_keys.tolist() == keys[[3, 8]].tolist()
            assert part.rows(slice(0, 1))["reward"].tolist() == [[3], [4], [5], [6], [7]]
        assert batch.rows(is_long).lengths.tolist() == [3, 5]

    def test_memory_used_again_with_time_first(self, make_table: MakeTable) -> None:
        table = make_table(spec(), 1000, relive.Index(relive.Sequences(4, bootstrap=1, time_major=True)))
        with table.writer() as writer:
            write(writer)
            first = table.sample(3, timeout_s=0.0)
            memory = {name: np.full_like(array, 1) for name, array in first.flat().items()}
            batch = table.gather(first.item_keys, out=memory)
            for name, array in first.flat().items():
                np.testing.assert_array_equal(batch[name], array, name)
                assert np.shares_memory(batch[name], memory[name])
            turned_round = {name: np.ones(array.shape[::-1], array.dtype) for name, array in memory.items()}
            with pytest.raises(relive.errors.ShapeMismatch, match=r"5, 3"):
                table.gather(first.item_keys, out=turned_round)

    def test_batches_with_time_first(self, make_table: MakeTable) -> None:
        table = make_table(spec(), 1000, relive.Index(relive.Sequences(4, bootstrap=1, time_major=True)))
        with table.writer() as writer:
            write(writer)
            with table.batches(3, prefetch=2) as batches:
                taken = [next(batches) for _ in range(3)]
            for batch in taken:
                again = table.gather(batch.item_keys)
                assert batch["observation"].shape == (5, 3, 2)
                np.testing.assert_array_equal(batch["observation"], again["observation"])

    def test_an_empty_gather_with_time_first(self, make_table: MakeTable) -> None:
        for items in (relive.Sequences(4, time_major=True), relive.Episodes(4, time_major=True)):
            batch = make_table(spec(), 1000, relive.Index(items)).gather(np.zeros(0, np.int64))
            assert batch["observation"].shape == (4, 0, 2) and batch.mask.shape == (4, 0)
            assert batch.lengths.shape == (0,) and batch["core"].shape == (0, 2)

    def test_time_first_is_part_of_the_configuration(self, make_table: MakeTable) -> None:
        table = make_table(spec(), 1000, relive.Index(relive.Sequences(4, time_major=True)))
        (index,) = table.config.index.values()
        assert index.items.time_major and "time_major=True" in str(index)
        assert relive.Index.from_dict(index.to_dict()) == index
        assert index != relive.Index(relive.Sequences(4))
