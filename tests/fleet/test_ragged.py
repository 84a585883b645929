"""Ragged batches of several shards beside their episodes: every row of every item, in the order of the items."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from contract.ragged import numbers, ragged, write_episodes
from contract.tools import plain_spec
from processes.shm import needs_shared_memory

import relive
from fleet.tools import PATHS, in_threads
from relive.fleet import GroupReader, ShardedTable
from relive.fleet.draws.mixing import end_to_end

pytestmark = needs_shared_memory
Over = Callable[..., ShardedTable]
LENGTHS = ((3, 7, 1, 5), (2, 8, 4))


def written(table: ShardedTable) -> dict[int, list[int]]:
    """The numbers in the rows of each episode, by its key."""
    rows: dict[int, list[int]] = {}
    for shard, lengths in enumerate(LENGTHS):
        with table.writer(shard=shard) as writer:
            keys = write_episodes(writer, lengths, first=100 * shard)
        ends = np.cumsum((100 * shard, *lengths))
        rows |= {int(key): [*range(a, b)] for key, a, b in zip(keys, ends[:-1], ends[1:], strict=True)}
    return rows


def check(batch: Any, rows: dict[int, list[int]]) -> None:
    """Every cell of a batch whose items are all there."""
    expected = [rows[key] for key in batch.item_keys.tolist()]
    assert numbers(batch) == numbers(batch, "observation") == expected
    assert batch.lengths.tolist() == [len(one) for one in expected]
    assert batch["reward"].tolist() == batch["action"].tolist()


@pytest.mark.parametrize("paths", PATHS)
def test_every_row_of_a_batch_belongs_to_its_item(over: Over, paths: tuple[str, ...]) -> None:
    table = over(plain_spec(), relive.Index(relive.Episodes(8, layout="ragged"), relive.Prioritized(1.0)), paths)
    rows = written(table)
    keys = np.array(list(rows))
    assert table.update_priorities(keys, np.arange(1.0, 8.0)) == 7
    for _ in range(10):
        batch = table.sample(32)
        check(batch, rows)
        law = dict(zip(keys.tolist(), np.arange(1.0, 8.0) / 28, strict=True))
        assert np.allclose(batch.probabilities, [law[key] for key in batch.item_keys.tolist()])
        assert len(set((batch.item_keys >> 51).tolist())) == 2
    check(table.gather(table.draw(32)), rows)
    with table.batches(16, prefetch=2) as batches:
        for _ in range(3):
            check(next(batches), rows)
    named = table.sample(16, columns=["lane", "action", "num_steps"])
    assert named["num_steps"].tolist() == named.lengths.tolist()
    assert numbers(named) == [rows[key] for key in named.item_keys.tolist()]


@pytest.mark.parametrize("paths", PATHS)
def test_items_that_are_gone_have_no_rows(over: Over, paths: tuple[str, ...]) -> None:
    table = over(plain_spec(), ragged(), paths)
    rows = written(table)
    keys = np.random.default_rng(0).permutation(np.array(list(rows) * 2))
    check(table.gather(keys), rows)
    gone = np.array([list(rows)[1], list(rows)[5]])
    assert table.delete(gone) == 2
    batch = table.gather(keys)
    is_gone = np.isin(keys, gone)
    assert batch.present.tolist() == (~is_gone).tolist()
    assert numbers(batch) == [[] if out else rows[key] for key, out in zip(keys.tolist(), is_gone, strict=True)]
    nothing = table.gather(gone)
    assert nothing.offsets.tolist() == [0, 0, 0] and nothing["observation"].shape == (0, 2)
    assert table.gather(np.empty(0, np.int64)).offsets.tolist() == [0]


def test_values_of_items_stand_where_their_rows_do(over: Over) -> None:
    """With columns of each kind: one value an item, a row after the last, and the state an episode starts with."""
    spec = plain_spec(core=relive.ArraySpec((2,), "float32", kind="start"))
    table = over(spec, ragged(bootstrap=1))
    for shard in (0, 1):
        with table.writer(shard=shard) as writer:
            for first in (100 * shard, 100 * shard + 10):
                for t in range(first, first + 4):
                    values = {"observation": np.full(2, t), "next_observation": np.full(2, t + 1), "reward": float(t)}
                    writer.append(**values, action=t, core=np.full(2, t), truncated=t == first + 3)
    batch = table.sample(16, columns=["core", "action", "num_steps", "observation"])
    first = batch["action"][batch.offsets[:-1]]
    assert batch["core"].tolist() == [[one, one] for one in first.tolist()]
    assert batch.offsets.tolist() == list(range(0, 85, 5)) and batch["num_steps"].tolist() == [4] * 16
    assert numbers(batch, "observation") == [[*range(one, one + 5)] for one in first.tolist()]
    assert set(first.tolist()) == {0, 10, 100, 110}


@pytest.mark.parametrize("carries", ["rows", "keys"])
def test_a_group_of_ranks_has_the_same_ragged_batch(over: Over, carries: Any) -> None:
    table = over(plain_spec(), ragged())
    rows = written(table)
    told = in_threads(lambda rank, exchange: GroupReader(table, exchange, carries=carries).sample(16), 2)
    for batch in told:
        check(batch, rows)
    assert told[0].item_keys.tolist() == told[1].item_keys.tolist()


def test_parts_of_every_size_beside_lists() -> None:
    """A part without items, items without rows, and columns of every kind, in any order of the items."""
    rng = np.random.default_rng(1)
    outputs = [
        ("a", "<i8", (), 0, "row"), ("offsets", "<i8", (), 0, "offset"), ("b", "<f4", (3,), 0, "row"),
        ("c", "<i4", (2,), 0, "item"),
    ]  # fmt: skip
    for _ in range(50):
        sizes = rng.integers(0, 6, rng.integers(1, 5))
        order, placed, first = rng.permutation(sizes.sum() + 2), [], 0  # two items belong to no part
        expected: list[Any] = [([], [], [0, 0])] * (sizes.sum() + 2)
        for size in sizes:
            lengths = rng.integers(0, rng.choice([4, 120]), size)
            offsets = np.concatenate(([0], np.cumsum(lengths)))
            a = rng.integers(0, 1000, offsets[-1])
            b, c = rng.random((offsets[-1], 3), np.float32), rng.integers(0, 9, (size, 2)).astype(np.int32)
            mine = order[first : first + size]
            first += size
            placed.append((mine, [a, offsets, b, c]))
            for at, begin, end, one in zip(mine, offsets[:-1], offsets[1:], c.tolist(), strict=True):
                expected[at] = a[begin:end].tolist(), b[begin:end].tolist(), one
        a, offsets, b, c = end_to_end(outputs, placed, len(order))
        for at, one in enumerate(expected):
            begin, end = offsets[at], offsets[at + 1]
            assert (a[begin:end].tolist(), b[begin:end].tolist(), c[at].tolist()) == one
        assert offsets[0] == 0 and offsets[-1] == len(a) == len(b)
