"""Draws without replacement: no item twice in a batch, and each batch as likely as one item after another makes it."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors

SPEC = relive.StepSpec({"observation": relive.ArraySpec((3,), "float32"), "score": relive.ArraySpec((), "float32")})


def table_of(index: relive.Index, priorities: Any = None, num_items: int = 5, **options: Any) -> relive.Table:
    """A table of so many steps, whose score is their number."""
    table = relive.Table(SPEC, options.pop("capacity", 64), index, **options)
    with table.writer() as writer:
        keys = writer.extend(observation=np.zeros((num_items, 3)), score=np.arange(num_items))
    if priorities is not None:
        table.update_priorities(keys, priorities)
    return table


def likelihoods(masses: Any, num_items: int) -> dict[tuple[int, ...], float]:
    """The probability of each set of items as a batch: the sum over its orders of each item's share of the rest."""
    chances: dict[tuple[int, ...], float] = {}
    for order in itertools.permutations(range(len(masses)), num_items):
        chance = 1.0
        for k, item in enumerate(order):
            left = sum(mass for other, mass in enumerate(masses) if other not in order[:k])
            chance *= masses[item] / left if left > 0.0 else 0.0
        chances[tuple(sorted(order))] = chances.get(tuple(sorted(order)), 0.0) + chance
    return chances


def assert_as_likely(table: relive.Table, masses: Any, num_items: int, num_draws: int, **asked: Any) -> None:
    """Sets of items come as often as they should: a chi-square that a fair sampler exceeds once in 100,000 runs."""
    counts: dict[tuple[int, ...], int] = {}
    for _ in range(num_draws):
        found = tuple(sorted(int(score) for score in table.sample(num_items, **asked)["score"]))
        assert len(set(found)) == num_items
        counts[found] = counts.get(found, 0) + 1
    expected = {items: chance * num_draws for items, chance in likelihoods(masses, num_items).items() if chance > 0.0}
    assert set(counts) <= set(expected)
    square = sum((counts.get(items, 0) - wanted) ** 2 / wanted for items, wanted in expected.items())
    freedom = len(expected) - 1
    assert square < freedom + 4.3 * (2 * freedom) ** 0.5 + 13.0, (square, counts, expected)


def left_out(masses: Any, num_items: int) -> float:
    """How often the last item is the one that a batch of all but one lacks: by drawing so, without the library."""
    rng = np.random.default_rng(0)
    order = np.argsort(rng.exponential(size=(20_000, len(masses))) / np.asarray(masses), axis=1)
    return float(np.mean(order[:, num_items:] == len(masses) - 1))


MASSES = (1.0, 2.0, 4.0, 8.0, 1.0)


@pytest.mark.parametrize(
    ("sampler", "masses"),
    [
        (relive.Uniform(), (1.0,) * 5),
        (relive.Prioritized(1.0), MASSES),
        (relive.Prioritized(0.5), tuple(m**0.5 for m in MASSES)),
        (relive.RankBased(1.0), (1 / 4.5, 1 / 3, 1 / 2, 1.0, 1 / 4.5)),
        (relive.TopK(k=3), (0.0, 1.0, 1.0, 1.0, 0.0)),
        (relive.Fresh(last=4), (0.0, 1.0, 1.0, 1.0, 1.0)),
    ],
    ids=repr,
)
def test_batches_are_as_likely_as_one_item_after_another(sampler: Any, masses: Any) -> None:
    priorities = np.float32(MASSES) if hasattr(sampler, "priority_exponent") or hasattr(sampler, "k") else None
    if isinstance(sampler, relive.RankBased):  # of equal priorities the ranks' masses are shared
        masses = (0.5 * (1 / 4 + 1 / 5), 1 / 3, 1 / 2, 1.0, 0.5 * (1 / 4 + 1 / 5))
    table = table_of(relive.Index(sampler=sampler, replacement=False), priorities)
    assert_as_likely(table, masses, 3, 4_000)
    table.close()


def test_a_rest_of_almost_no_mass_is_found_all_the_same() -> None:
    """Points over the whole total never fall on it: it is a race over all leaves that brings it, as likely as any."""
    masses = (1e30, 1e-3, 3e-3, 6e-3)
    table = table_of(relive.Index(sampler=relive.Prioritized(1.0), replacement=False), np.float32(masses), 4)
    assert_as_likely(table, masses, 2, 1_500)
    table.close()


@pytest.mark.parametrize(
    ("sampler", "priorities"),
    [
        (relive.Prioritized(1.0), np.float32([3e38, 1e-3, 1e-20, 1e-45])),
        (relive.Prioritized(8.0), np.float32([3e38, 1e-3, 1e-20, 1e-45])),
        (relive.RankBased(10.0), 2.0 ** np.arange(64)),
        (relive.RankBased(10.0), 1.001 ** np.arange(3_000)),
    ],
    ids=["a float's range", "beyond a double's", "each a rank", "classes behind the sums"],
)
def test_what_is_next_to_nothing_of_the_total_comes_too(sampler: Any, priorities: Any) -> None:
    """Also where the whole draw has no time: what is there is looked for once, to the end."""
    index = relive.Index(sampler=sampler, replacement=False)
    table = table_of(index, priorities, len(priorities), capacity=len(priorities))
    for num_items in (1, 2, 3, len(priorities) - 1, len(priorities)):
        batch = table.sample(num_items, timeout_s=0.0)
        assert len(set(batch["score"].tolist())) == num_items
        assert ((batch.probabilities > 0.0) & (batch.probabilities <= 1.0)).all()
        assert np.isfinite(batch.weights(1.0)).all()
    table.close()


def test_a_deadline_that_is_over_changes_nothing_of_what_is_drawn() -> None:
    drawn = []
    for timeout_s in (0.0, 20.0):
        table = table_of(relive.Index(sampler=relive.Prioritized(1.0), replacement=False), (1e9, 1.0, 2.0, 3.0, 4.0))
        drawn.append([table.draw(4, timeout_s=timeout_s).item_keys.tolist() for _ in range(20)])
        table.close()
    assert drawn[0] == drawn[1]


def test_what_faded_long_ago_comes_too() -> None:
    table = relive.Table(SPEC, 2_000, relive.Index(sampler=relive.Fresh(decay=0.5), replacement=False))
    with table.writer() as writer:
        for version in range(1_200):
            table.set_policy_version(version)
            writer.append(observation=np.zeros(3), score=version)
    assert sorted(table.sample(1_200, timeout_s=0.0)["score"]) == list(range(1_200))
    table.close()


@pytest.mark.core_alone
def test_by_steep_ranks_the_last_ones_come_as_their_ranks_say() -> None:
    """When the best items are in the batch, ranks 50 and 51 are left: 1.2 to 1, and tiny compared with rank 1."""
    table = table_of(relive.Index(sampler=relive.RankBased(10.0), replacement=False), 2.0 ** -np.arange(51), 51)
    last = [int(set(range(51)).difference(table.sample(50)["score"].astype(int)).pop()) for _ in range(3_000)]
    share = np.mean([score == 50 for score in last])
    assert len(set(last)) > 3 and abs(share - left_out((np.arange(51) + 1.0) ** -10.0, 50)) < 0.05
    table.close()


def test_all_there_are_come_in_random_order() -> None:
    table = table_of(relive.Index(replacement=False), num_items=50)
    orders = [tuple(table.sample(50)["score"].astype(int)) for _ in range(20)]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len(set(orders)) == 20
    table.close()


@pytest.mark.core_alone
@pytest.mark.parametrize("masses", [MASSES, (1e9, 2.0, 4.0, 8.0, 1.0)], ids=["found by points", "by a race"])
def test_any_slice_of_a_batch_is_a_fair_one(masses: Any) -> None:
    """The heavy items are drawn first, but stand anywhere: each row is as likely to have an item as any other."""
    table = table_of(relive.Index(sampler=relive.Prioritized(1.0), replacement=False), np.float32(masses))
    seen = np.zeros((3, 5))
    for _ in range(3_000):
        seen[np.arange(3), table.sample(3)["score"].astype(int)] += 1
    expected = seen.sum(axis=0) / 3
    assert ((seen - expected) ** 2 / expected).sum() < 8 + 4.3 * 4 + 13.0, seen
    table.close()


@pytest.mark.parametrize("num_items", [9_000, 19_999, 20_000])
def test_large_parts_of_a_table(num_items: int) -> None:
    """Raced for at once: of items four times as heavy as the others as many come as one after another would bring."""
    masses = np.where(np.arange(20_000) < 10_000, 4.0, 1.0)
    table = table_of(relive.Index(sampler=relive.Prioritized(1.0), replacement=False), masses, 20_000, capacity=20_000)
    rng = np.random.default_rng(0)
    expected, found = [], []
    for _ in range(8):
        first = np.argpartition(rng.exponential(size=20_000) / masses, num_items - 1)[:num_items]
        expected.append(int((first < 10_000).sum()))
        scores = table.sample(num_items, timeout_s=0.0)["score"]
        assert len(np.unique(scores)) == num_items
        found.append(int((scores < 10_000).sum()))
    assert abs(np.mean(found) - np.mean(expected)) < 5.0 * 50.0 / np.sqrt(8)  # a batch's deviation is below 50
    table.close()


def test_probabilities_are_of_the_first_item_of_a_batch() -> None:
    table = table_of(relive.Index(sampler=relive.Prioritized(1.0), replacement=False), MASSES)
    batch = table.sample(5)
    assert np.allclose(batch.probabilities, np.asarray(MASSES)[batch["score"].astype(int)] / sum(MASSES))
    table.close()


def test_more_than_there_are_wait_and_more_than_can_be_are_refused() -> None:
    table = table_of(relive.Index(replacement=False), capacity=64)
    with pytest.raises(errors.DeadlineExceeded, match="6 live items, for none comes twice"):
        table.sample(6, timeout_s=0.05)
    with table.writer() as writer:
        writer.extend(observation=np.zeros((1, 3)), score=np.float32([5]))
        assert sorted(table.sample(6)["score"]) == [0, 1, 2, 3, 4, 5]
    with pytest.raises(errors.RequestTooLarge, match="64 are .the table's capacity"):
        table.sample(65)
    assert table.stats().indexes["default"].sampled == 6
    table.close()


def test_items_of_no_mass_are_none_of_those_there_are() -> None:
    table = table_of(relive.Index(sampler=relive.Prioritized(1.0), replacement=False), (1.0, 0.0, 2.0, 0.0, 1.0))
    assert sorted(table.sample(3)["score"]) == [0, 2, 4]
    with pytest.raises(errors.DeadlineExceeded, match="none comes twice"):
        table.sample(4, timeout_s=0.05)
    table.close()


def test_a_condition_beside_it() -> None:
    table = table_of(relive.Index(sampler=relive.Prioritized(1.0), replacement=False), MASSES)
    assert_as_likely(table, (0.0, *MASSES[1:]), 3, 4_000, where="score > 0")
    with pytest.raises(errors.RareItems) as caught:
        table.sample(3, where="score > 2")
    assert (caught.value.asked, caught.value.found) == (3, 2)
    assert table.stats().indexes["default"].sampled == 3 * 4_000
    table.close()


@pytest.mark.parametrize("sampler", [relive.Prioritized(1.0), relive.RankBased(8.0)])
def test_a_condition_beside_heavy_items_finds_the_light_ones_that_pass(sampler: Any) -> None:
    """Points fall on what the batch has: what passes besides is raced for, whatever the deadline."""
    table = table_of(relive.Index(sampler=sampler, replacement=False), (1e8, *[1.0] * 63), num_items=64)
    for timeout_s in (0.0, 10.0):
        batch = table.sample(40, where="score != 5", timeout_s=timeout_s)
        assert len(set(batch.item_keys.tolist())) == 40 and 5 not in batch["score"] and 0 in batch["score"]
        assert len(set(table.sample(63, where="score != 5", timeout_s=timeout_s)["score"].tolist())) == 63
        with pytest.raises(errors.RareItems) as caught:
            table.sample(64, where="score != 5", timeout_s=timeout_s)
        assert (caught.value.asked, caught.value.found) == (64, 63)
    table.close()


def test_large_batches_with_a_condition_are_raced_for_at_once() -> None:
    table = table_of(relive.Index(replacement=False), num_items=50_000, capacity=50_000)
    scores = table.sample(24_000, where="score < 25000")["score"]
    assert len(set(scores.tolist())) == 24_000 and scores.max() < 25_000
    table.close()


@pytest.mark.core_alone
@pytest.mark.parametrize(
    ("masses", "asked"),
    [
        (MASSES, {}),
        ((1e5, 2.0, 4.0, 8.0, 1.0), {}),
        (MASSES, {"where": "score < 5"}),
        ((1e5, 2.0, 4.0, 8.0, 1.0), {"where": "score < 5"}),
    ],
    ids=["found by points", "by a race", "with a condition", "by a race with one"],
)
def test_batches_are_as_likely_while_others_write_evict_and_revalue(masses: Any, asked: Any) -> None:
    """Items of next to no mass come and go around five that stay; these are revalued, to what they were."""
    index = relive.Index(sampler=relive.Prioritized(1.0), replacement=False, remover=relive.MinPriority(), max_items=16)
    table = table_of(index, masses, capacity=index.steps_to_hold)
    (keys,) = table.keys()
    stop = threading.Event()

    def churn(work: Any) -> None:
        while not stop.is_set():
            work()

    with table.writer() as writer:
        rows = {"observation": np.zeros((8, 3)), "score": np.full(8, 100.0), "priority": np.full(8, 1e-12)}
        others = [lambda: writer.extend(**rows), lambda: table.update_priorities(keys, np.float32(masses))]
        threads = [threading.Thread(target=churn, args=(work,)) for work in others]
        for thread in threads:
            thread.start()
        try:
            assert_as_likely(table, masses, 3, 1_500, **asked)
            while table.stats().evicted <= 100:  # the others had too little of a busy machine
                assert table.sample(3, **asked).num_items == 3
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    table.check()
    table.close()


def test_use_counts_are_taken_once_a_batch() -> None:
    table = table_of(relive.Index(replacement=False, max_times_sampled=2), num_items=32)
    for _ in range(2):
        assert sorted(table.sample(32)["score"]) == list(range(32))
    assert table.stats().indexes["default"].num_items == 0
    table.close()


def test_of_windows_and_of_episodes() -> None:
    sequences = relive.Index(relive.Sequences(4, period=1), replacement=False)
    table = table_of(sequences, num_items=20)
    assert len(set(table.sample(15).item_keys.tolist())) == 15
    table.close()


@pytest.mark.parametrize(
    "sampler",
    [relive.Fifo(), relive.Lifo(), relive.MaxPriority(), relive.MinPriority(), relive.Shuffle(), relive.Fresh()],
)
def test_samplers_that_bring_each_item_once_anyway_refuse_it(sampler: Any) -> None:
    with pytest.raises(errors.InvalidConfig, match=f"{type(sampler).__name__} brings each item once"):
        relive.Index(sampler=sampler, replacement=False)


@pytest.mark.parametrize("value", [None, 0, "no", np.bool_(False)])
def test_anything_but_a_truth_is_refused(value: Any) -> None:
    with pytest.raises(errors.InvalidConfig, match="True or False"):
        relive.Index(replacement=value)


def test_it_is_kept_with_the_table() -> None:
    index = relive.Index(sampler=relive.Prioritized(), replacement=False)
    assert relive.Index.from_dict(index.to_dict()) == index
    assert relive.Index.from_dict(relive.Index().to_dict()).replacement is True


def test_devices_refuse_it_with_the_reason() -> None:
    layout_args = pytest.importorskip("relive.gpu.layout_args", reason="devices are read with torch")
    with pytest.raises(errors.InvalidConfig, match=r"kernels draw each item by itself; gather keys"):
        layout_args.check_sampler({"apart": relive.Index(replacement=False)}, 0)


@pytest.mark.parametrize(
    ("more", "most", "bound"),
    [
        ({}, 64, "capacity"),
        ({"max_items": 7}, 7, "may have"),
        ({"max_items": 64}, 64, "may have"),
        ({"sampler": relive.Fresh(last=9)}, 9, "Fresh"),
        ({"sampler": relive.TopK(7)}, 7, "TopK"),
        ({"limiter": relive.Queue(5), "max_times_sampled": 1}, 5, "Queue"),
        ({"limiter": relive.SamplesPerInsert(4.0, 12, 1_000.0)}, 12, "min_size"),
        ({"limiter": relive.StalenessBudget(0.5, 9), "max_times_sampled": 2}, 13, "StalenessBudget"),
    ],
    ids=["capacity", "max_items", "as many as the capacity", "last", "best", "queue", "samples per insert", "budget"],
)
def test_a_draw_that_could_wait_for_ever_is_refused_with_what_bounds_it(more: Any, most: int, bound: str) -> None:
    table = relive.Table(SPEC, 64, relive.Index(replacement=False, **more))
    with pytest.raises(errors.RequestTooLarge) as caught:
        table.draw(most + 1, timeout_s=0.0)
    assert (caught.value.requested, caught.value.window) == (most + 1, most) and bound in caught.value.none_twice
    with table.writer() as writer:
        writer.extend(observation=np.zeros((most, 3)), score=np.arange(most))
    assert sorted(table.sample(most, timeout_s=0.0)["score"]) == list(range(most))
    table.close()


@pytest.mark.parametrize("limiter", [relive.Queue(40), relive.StalenessBudget(1.0, 20)])
def test_a_share_is_one_of_the_items_that_the_limiter_lets_in(limiter: Any) -> None:
    """A larger draw and the writers would wait for each other."""
    index = relive.Index(sampler=relive.TopK(0.5), replacement=False, limiter=limiter, max_times_sampled=1)
    with relive.Table(SPEC, 64, index) as table, table.writer() as writer:
        with pytest.raises(errors.RequestTooLarge, match="share k of TopK") as caught:
            table.draw(21, timeout_s=0.0)
        assert caught.value.window == 20
        scores = np.arange(40)
        keys = writer.extend(observation=np.zeros((40, 3)), score=scores, timeout_s=0.0)
        table.update_priorities(keys, scores)
        assert sorted(table.sample(20, timeout_s=0.0)["score"]) == scores[20:].tolist()


def test_a_limiter_under_which_a_draw_that_waits_would_wait_for_ever_is_refused() -> None:
    table = table_of(relive.Index(replacement=False, limiter=relive.MinSize(1)), num_items=5)
    done: list[Any] = []
    waits = threading.Thread(target=lambda: done.append(table.sample(20, timeout_s=20.0)["score"]))
    waits.start()
    while table.stats().indexes["default"].samplers_wait_for != "items":
        time.sleep(0.002)
    with pytest.raises(errors.RequestTooLarge):
        table.set_limiter(relive.SamplesPerInsert(4.0, 19, 1_000.0))
    table.set_limiter(relive.SamplesPerInsert(4.0, 20, 1_000.0))
    with table.writer() as writer:
        writer.extend(observation=np.zeros((15, 3)), score=np.arange(5, 20), timeout_s=20.0)
    waits.join()
    assert sorted(done[0]) == list(range(20))
    table.close()


def test_a_choice_of_ones_own_may_have_an_item_twice() -> None:
    table = table_of(relive.Index(replacement=False, max_items=3), num_items=3)
    (keys,) = table.keys()
    own = relive.Draw.of(np.repeat(keys, 5), np.full(15, 1 / 3))
    assert table.claim(own, timeout_s=0.0).num_items == 15
    table.close()
