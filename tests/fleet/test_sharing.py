"""Orders and ranks over shards: each shard's own, and how a draw is shared out among them."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from naive.rank_law import expected
from processes.shm import needs_shared_memory

import relive
from fleet.tools import config_of, fill
from relive import errors
from relive.fleet import NotOverShards, ShardedTable, ShardOwner, attach
from relive.fleet.draws.placement import Root, within
from relive.fleet.draws.sharing import sharing_of

pytestmark = needs_shared_memory
SIZES = (5, 17, 2)


@pytest.fixture
def over(shm_name: Any) -> Iterator[Callable[..., tuple[ShardedTable, list[Any]]]]:
    """Makes a table over three shards of 5, 17 and 2 items, and tells the keys of each."""
    with contextlib.ExitStack() as stack:

        def make(index: relive.Index) -> tuple[ShardedTable, list[Any]]:
            names = [shm_name() for _ in SIZES]
            for number, name in enumerate(names):
                stack.enter_context(ShardOwner(number, config_of(name, index)))
            table = stack.enter_context(attach(names, stream=1))
            firsts = np.cumsum((0, *SIZES))
            return table, [fill(table, shard, int(firsts[shard]), size) for shard, size in enumerate(SIZES)]

        yield make


def in_shards(table: ShardedTable, keys: list[Any], law: Callable[[Any], Any]) -> dict[int, float]:
    """Priorities to all, and each key's part by the law of its shard, not yet shared out."""
    rng = np.random.default_rng(0)
    parts: dict[int, float] = {}
    for mine in keys:
        priorities = rng.permutation(np.arange(len(mine)) + 1.0) * 3.0  # of classes apart, but for a few
        table.update_priorities(mine, priorities)
        parts |= dict(zip(mine.tolist(), law(priorities).tolist(), strict=True))
    return parts


@pytest.mark.forms(2)
@pytest.mark.parametrize(
    ("sampler", "shares"),
    [
        (relive.RankBased(1.0), (5, 17, 2)),
        (relive.TopK(3), (3, 3, 2)),
        (relive.TopK(0.4), (2, 7, 1)),
        (relive.TopK(1000), (5, 17, 2)),
    ],
    ids=repr,
)
def test_ranks_are_each_shards_own_and_probabilities_exact(over: Any, sampler: Any, shares: tuple[int, ...]) -> None:
    """What is drawn, over many batches, is what the probabilities say; and these are share x the law in the shard."""
    table, keys = over(relive.Index(sampler=sampler))
    parts = in_shards(table, keys, lambda priorities: expected(sampler, priorities))
    share = {key: shares[shard] / sum(shares) for shard, mine in enumerate(keys) for key in mine.tolist()}
    law = {key: share[key] * part for key, part in parts.items()}
    assert sum(law.values()) == pytest.approx(1.0)
    seen = dict.fromkeys(law, 0)
    for _ in range(600):
        batch = table.sample(64)
        for key, probability in zip(batch.item_keys.tolist(), batch.probabilities.tolist(), strict=True):
            seen[key] += 1
            assert probability == pytest.approx(law[key], rel=1e-6)
    assert batch.num_live_items == sum(SIZES)
    draws = 600 * 64
    chi = sum((seen[key] - p * draws) ** 2 / (p * draws) for key, p in law.items() if p)
    assert chi < 60.0 and all(seen[key] == 0 for key, p in law.items() if not p)  # at most 23 degrees of freedom


def test_the_newest_of_each_shard_come_alike(over: Any) -> None:
    table, keys = over(relive.Index(sampler=relive.Fresh(last=3)))
    newest = {key for mine in keys for key in mine[-3:].tolist()}
    drawn = [table.sample(40) for _ in range(50)]
    assert {key for batch in drawn for key in batch.item_keys.tolist()} == newest and len(newest) == 8
    np.testing.assert_allclose(drawn[-1].probabilities, 1 / 8)


@pytest.mark.parametrize(
    ("sampler", "is_first"),
    [
        (relive.Fifo(), lambda mine, n: mine[:n]),
        (relive.Lifo(), lambda mine, n: mine[::-1][:n]),
        (relive.Fresh(), lambda mine, n: mine[::-1][:n]),
        (relive.MaxPriority(), lambda mine, n: mine[::-1][:n]),
        (relive.MinPriority(), lambda mine, n: mine[:n]),
    ],
    ids=lambda value: repr(value) if not callable(value) else "",
)
def test_each_shard_gives_its_first_by_its_share_of_what_lives(over: Any, sampler: Any, is_first: Any) -> None:
    table, keys = over(relive.Index(sampler=sampler))
    if isinstance(sampler, (relive.MaxPriority, relive.MinPriority)):
        for mine in keys:
            table.update_priorities(mine, np.arange(len(mine)) + 1.0)
    taken = np.zeros(3)
    for _ in range(300):
        batch = table.sample(8)
        shards = batch.item_keys >> 51
        counts = np.bincount(shards, minlength=3)
        for shard, mine in enumerate(keys):
            assert sorted(batch.item_keys[shards == shard]) == sorted(is_first(mine, counts[shard]))
        assert batch.probabilities.tolist() == [1.0] * 8 and batch.weights(0.5).tolist() == [1.0] * 8
        taken += counts
    assert np.abs(taken / (300 * 8) - np.array(SIZES) / sum(SIZES)).max() < 0.02


@pytest.mark.parametrize("what", ["sample", "draw"])
def test_a_queue_over_shards_hands_each_item_out_once(over: Any, what: str) -> None:
    """Three threads until nothing is left; who asks for more than is left gets nothing, and changes nothing."""
    table, keys = over(relive.Index(sampler=relive.Fifo(), max_times_sampled=1))
    taken: list[int] = []

    def take() -> None:
        with contextlib.suppress(errors.DeadlineExceeded):
            while True:
                taken.extend(getattr(table, what)(2, timeout_s=1.0).item_keys.tolist())

    threads = [threading.Thread(target=take) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == sorted(np.concatenate(keys).tolist())
    assert table.num_items() == 0
    table.check()


def test_counts_are_cut_to_the_room_there_is() -> None:
    assert within([6, 10, 0], [3, 100, 0]) == [3, 13, 0]
    assert within([1, 2, 3], [1, 2, 3]) == [1, 2, 3] and within([1, 2, 3], [9, 9, 9]) == [1, 2, 3]
    assert within([6, 0], [3, 2]) is None and within([0, 5], [5, 0]) == [5, 0]
    assert within([8, 0, 0, 0], [2, 6, 0, 3]) == [2, 4, 0, 2]  # in proportion to the room, not to the first


def test_cut_counts_fill_the_room_and_never_pass_it() -> None:
    random = np.random.default_rng(0)
    for _ in range(500):
        room = random.integers(0, 9, 5).tolist()
        counts = random.integers(0, 9, 5).tolist()
        cut = within(counts, room)
        assert (cut is None) == (sum(counts) > sum(room))
        if cut is not None:
            assert sum(cut) == sum(counts)
            assert all(min(count, most) <= some <= most for count, most, some in zip(counts, room, cut, strict=True))


@pytest.mark.parametrize(
    "sampler",
    [relive.Fifo(), relive.Lifo(), relive.Fresh(), relive.MaxPriority(), relive.MinPriority(), relive.RankBased()],
    ids=lambda sampler: type(sampler).__name__,
)
def test_the_value_of_the_best_item_is_that_of_the_shard_that_has_it(over: Any, sampler: Any) -> None:
    """A shard without items changes nothing. A table without items has the value of one table without."""
    table, keys = over(relive.Index(sampler=sampler))
    best = min if isinstance(sampler, (relive.Fifo, relive.MinPriority)) else max
    for deleted in (keys[0][:0], *keys):
        table.delete(deleted)
        values = [shard.table.stats().indexes["default"].total_mass for shard in table._fleet.shards]
        assert table.stats().indexes["default"].total_mass == best(values)
        assert any(map(np.isfinite, values)) == (deleted is not keys[-1])


def test_the_fewest_uses_where_writers_wait_are_those_of_any_draws_before() -> None:
    """Counted step by step: writers insert while they may, and draws of one make room."""
    for ratio, times, min_size, tolerance in itertools.product((0.5, 1.0, 1.5, 3.0), (1, 2, 3, 5), (1, 7), (2.0, 9.5)):
        if times < ratio:
            continue
        limiter, inserted, found = relive.SamplesPerInsert(ratio, min_size, tolerance), 0, list[int]()
        for sampled in range(100):
            while (inserted + 1) * ratio - sampled <= ratio * min_size + tolerance:
                inserted += 1
            found.append(inserted * times - sampled)
        assert limiter.uses_left(times) == min(found) >= 1, limiter
    assert relive.SamplesPerInsert(1.0, 1, 1e308).uses_left(1) > 1e300


def test_what_would_have_to_know_of_other_shards_is_refused(over: Any) -> None:
    for sampler in (relive.Shuffle(), relive.Fresh(decay=0.9)):
        with pytest.raises(NotOverShards, match=type(sampler).__name__):
            over(relive.Index(sampler=sampler))


def test_a_part_is_of_what_the_sampler_may_bring() -> None:
    root = Root(3, mass=40.5, num_items=7)
    for sampler, part in (
        (relive.Uniform(), 40.5),
        (relive.Prioritized(), 40.5),
        (relive.Fresh(last=2), 40.5),
        (relive.RankBased(), 7.0),
        (relive.TopK(3), 3.0),
        (relive.TopK(30), 7.0),
        (relive.TopK(0.5), 4.0),
        (relive.TopK(0.01), 1.0),
        (relive.Fifo(), 7.0),
    ):
        assert sharing_of("default", sampler).of(root) == Root(3, mass=part, num_items=7), sampler
    assert sharing_of("default", relive.TopK(3)).of(Root(3, 0.0, 0, is_dead=True)).mass == 0.0
    assert sharing_of("default", relive.TopK(0.5)).of(Root(3, 0.0, 0)).mass == 0.0


COUNTED = (relive.Fifo(), relive.Lifo(), relive.MinPriority(), relive.RankBased(), relive.TopK(3), relive.Uniform())


@pytest.mark.parametrize("sampler", COUNTED, ids=repr)
def test_a_draw_that_is_refused_takes_no_uses_and_no_number(over: Any, sampler: Any) -> None:
    """Also of keys alone, whose uses are handed out with them."""
    table, keys = over(relive.Index(sampler=sampler, max_times_sampled=1))
    number = table.next_draw
    for call in (table.draw, table.sample):
        for _ in range(3):
            with pytest.raises(errors.DeadlineExceeded):
                call(25, timeout_s=0.0)
    assert table.num_items() == 24 and table.next_draw == number
    taken = np.concatenate([table.draw(12, timeout_s=0.0).item_keys for _ in range(2)])
    assert sorted(taken.tolist()) == sorted(np.concatenate(keys).tolist())


@pytest.mark.parametrize("sampler", COUNTED, ids=repr)
def test_what_is_drawn_for_the_last_time_is_still_gathered(over: Any, sampler: Any) -> None:
    table, keys = over(relive.Index(sampler=sampler, max_times_sampled=1))
    for _ in range(3):
        rows = table.gather(table.draw(8, timeout_s=0.0))
        assert rows.present is None or rows.present.all()
        assert len(set(rows["reward"].tolist())) == 8
    assert table.num_items() == 0


def test_a_shard_that_has_less_than_its_part_gives_what_it_has(over: Any) -> None:
    """Nobody waits for more, and probabilities are of the counts that were drawn."""
    table, keys = over(relive.Index(sampler=relive.TopK(4), max_times_sampled=1))  # parts of 4, 4 and 2
    batch = table.sample(20, timeout_s=0.0)
    counts = np.bincount(batch.item_keys >> 51, minlength=3)
    assert counts[0] == 5 and counts[2] == 2 and counts[1] == 13
    table, keys = over(relive.Index(sampler=relive.TopK(1), max_times_sampled=1))
    assert len(set(table.sample(24, timeout_s=0.0).item_keys.tolist())) == 24


def test_nobody_is_asked_for_items_that_cannot_be_drawn(over: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Items of no mass, and those that are not among the newest, live, and would be waited for."""
    asked: list[tuple[int, int]] = []

    def watched(table: ShardedTable) -> ShardedTable:
        asked.clear()
        for shard in table._fleet.shards:

            def begin(one: Any, begin: Any = shard.begin, number: int = shard.number) -> Any:
                asked.append((number, one.request.num_items))
                return begin(one)

            monkeypatch.setattr(shard, "begin", begin)
        return table

    table, keys = over(relive.Index(sampler=relive.Prioritized(1.0), max_times_sampled=1))
    table.update_priorities(keys[0], np.zeros(5))
    table.update_priorities(keys[1], np.full(17, 0.001))
    assert sorted(watched(table).sample(19, timeout_s=0.0).item_keys >> 51) == [1] * 17 + [2] * 2
    assert asked == [(1, 17), (2, 2)]
    table, keys = over(relive.Index(sampler=relive.Fresh(last=3), max_times_sampled=1))
    newest = sorted(key for mine in keys for key in mine[-3:].tolist())
    with pytest.raises(errors.DeadlineExceeded):
        watched(table).sample(9, timeout_s=0.0)
    assert asked == []
    assert sorted(table.sample(8, timeout_s=0.0).item_keys.tolist()) == newest


def test_roots_that_no_longer_hold_are_read_anew(over: Any, shm_name: Any) -> None:
    names = [shm_name(), shm_name()]
    index = relive.Index(sampler=relive.Fifo(), max_times_sampled=1)
    with contextlib.ExitStack() as stack:
        for number, name in enumerate(names):
            stack.enter_context(ShardOwner(number, config_of(name, index)))
        table = stack.enter_context(attach(names, root_age=16))
        fill(table, 0, 0, 10)
        table.sample(10, timeout_s=0.0)  # by roots of shard 0 alone, which has no more
        fill(table, 1, 10, 60)
        for _ in range(6):
            assert set((table.sample(10, timeout_s=0.0).item_keys >> 51).tolist()) == {1}
