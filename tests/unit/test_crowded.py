"""Removers that choose at capacity: pages with items are passed over, and how much room that takes is known before."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import relive

SPEC = relive.StepSpec({"number": relive.ArraySpec((), "int64")})
STATES = relive.StepSpec(
    {"observation": relive.ArraySpec((2,), "float32", kind="state"), "number": relive.ArraySpec((), "int64")}
)
N = 400


def filled(index: dict[str, relive.Index], capacity: int, num_steps: int = 30 * N) -> relive.Table:
    """A table of one lane; priorities at random where they count."""
    table = relive.Table(SPEC, capacity, index, max_lanes=1, seed=3)
    rng = np.random.default_rng(0)
    with table.writer() as writer:
        for _ in range(num_steps // 200):
            given: dict[str, Any] = {"priority": rng.random(200)} if next(iter(index.values())).has_priorities else {}
            writer.extend(number=np.arange(200), **given)
    table.check()
    return table


@pytest.mark.parametrize("others", [False, True], ids=["alone", "with others"])
@pytest.mark.parametrize(
    ("remover", "least", "most"),
    [
        (relive.Lifo(), 1.0, 1.1),
        (relive.Uniform(), 2.4, 3.0),  # 1 + 1/2 + ... + 1/8 = 2.72 where pages have 8 rows
        (relive.Reservoir(), 6.5, 8.0),
        (relive.MinPriority(), 6.5, 8.0),
    ],
    ids=lambda one: type(one).__name__ if not isinstance(one, float) else "",
)
def test_how_many_steps_a_remover_holds(remover: Any, least: float, most: float, others: bool) -> None:
    """Alone a table holds no page without an item: what it holds is what items take. With others nothing changes."""
    first = relive.Index(remover=remover, max_items=N)
    assert first.steps_to_hold is not None and first.steps_to_hold >= least * N
    index = {"kept": first} | ({"all": relive.Index()} if others else {})
    table = filled(index, first.steps_to_hold)
    stats = table.stats()
    print(f"{type(remover).__name__}: {stats.num_steps / N:.2f} steps an item, foretold {first.steps_to_hold / N:.2f}")
    assert stats.page_len == 8
    assert stats.indexes["kept"].num_items == N and stats.indexes["kept"].crowded_out == 0
    assert others or least * N <= stats.num_steps <= most * N


@pytest.mark.parametrize("remover", [relive.Uniform(), relive.Reservoir(), relive.MinPriority()], ids=str)
def test_what_finds_no_room_is_counted(remover: Any) -> None:
    """Half as much room as it takes: pages with the fewest items go."""
    index = {"kept": relive.Index(remover=remover, max_items=N), "all": relive.Index()}
    stats = filled(index, 2 * N).stats()
    assert stats.num_steps == 2 * N and stats.indexes["kept"].crowded_out > 0
    assert stats.indexes["kept"].num_items > 0.9 * N and stats.indexes["all"].crowded_out == 0


def test_only_the_first_index_decides() -> None:
    index = {"all": relive.Index(), "kept": relive.Index(remover=relive.Lifo(), max_items=10)}
    stats = filled(index, 4 * N, 9 * N).stats()
    assert stats.page_len > 8 and stats.indexes["kept"].crowded_out == 0
    assert relive.Index(max_items=10).steps_to_hold is None
    items = relive.Explicit(relive.Window(3), max_items=20)
    assert relive.Index(items, remover=relive.Lifo()).steps_to_hold is None


def test_clearing_counts_nothing() -> None:
    with filled({"kept": relive.Index(remover=relive.Lifo(), max_items=10)}, N, 2 * N) as table:
        table.clear()
        table.check()
        stats = table.stats()
        assert (stats.num_steps, stats.indexes["kept"].crowded_out) == (0, 0)


@pytest.mark.parametrize("remover", [relive.Uniform(), relive.Reservoir()], ids=str)
def test_newcomers_come_where_there_is_no_room(remover: Any) -> None:
    """Windows that are not whole yet are no lighter than those that are: their pages do not go before all others."""
    items = relive.Sequences(80, period=40)
    index = relive.Index(items, remover=remover, max_items=50)
    with relive.Table(SPEC, 1_000, index, max_lanes=1) as table, table.writer() as writer:
        for call in range(60):
            before = table.stats().indexes["default"].inserted
            writer.extend(number=np.arange(200))
            assert call == 0 or table.stats().indexes["default"].inserted - before >= 4
            table.check()
        assert table.stats().indexes["default"].crowded_out > 0


ITEMS = {
    "plain": relive.Transitions(),
    "n_step": relive.Transitions(n_step=5),
    "stack": relive.Transitions(n_step=2, stack={"observation": 4}),
    "sequences": relive.Sequences(6, burn_in=3, period=2),
    "crossing": relive.Sequences(6, burn_in=3, period=2, at_end="cross"),
    "episodes": relive.Episodes(7),
}


@pytest.mark.core_alone
@pytest.mark.parametrize("uses", [None, 2])
@pytest.mark.parametrize("remover", [relive.Lifo(), relive.MinPriority(), relive.Uniform()], ids=str)
@pytest.mark.parametrize("name", sorted(ITEMS))
def test_all_calls_in_any_order(name: str, remover: Any, uses: int | None) -> None:
    """For items of any window: every rank is right after each call, and the items that stay are drawn whole."""
    rng = random.Random(f"{name}{uses}")
    first = relive.Index(ITEMS[name], remover=remover, max_items=12, max_times_sampled=uses)
    index = {"kept": first, "all": relive.Index(relive.Transitions())}
    table = relive.Table(STATES, rng.choice((60, 150)), index, max_lanes=4, seed=1)
    writer, keys, length = table.writer(2), [0], [0, 0]
    for call in range(500):
        kind = rng.random()
        if kind < 0.7:
            lane = rng.randrange(2)
            length[lane] += 1
            ends = rng.random() < 0.2 or length[lane] == 7
            length[lane] = 0 if ends else length[lane]
            given = {"priority": [rng.random()]} if first.has_priorities else {}
            key = writer.append(
                observation=np.zeros((1, 2)), number=[call], terminated=ends, lanes=[lane],
                next_observation=np.zeros((1, 2)), **given,
            )  # fmt: skip
            keys.append(int(key[0]))
        elif kind < 0.8:
            table.delete(rng.sample(keys[1:], min(3, len(keys) - 1)))
        elif kind < 0.9 and table.num_items("kept") > 0:
            try:
                batch = table.sample(3, timeout_s=0.0, index="kept")
            except relive.errors.DeadlineExceeded:
                continue
            assert (np.asarray(batch["number"]) >= 0).all()
        elif kind < 0.93:
            writer.close()
            writer, length = table.writer(2), [0, 0]
        elif kind < 0.95:
            table.clear()
        table.check()
    assert table.stats().indexes["kept"].num_items <= 12
    table.close()


@pytest.mark.parametrize("seed", [0, 5])
@pytest.mark.parametrize("n_step", [1, 4])
@pytest.mark.parametrize(("remover", "sign"), [(relive.MinPriority(), 1), (relive.MaxPriority(), -1)], ids=str)
def test_the_best_of_all_that_came_are_there(remover: Any, sign: int, n_step: int, seed: int) -> None:
    """With the room that is foretold, whatever the order of their coming, and beside an index of all steps."""
    first = relive.Index(relive.Transitions(n_step=n_step), remover=remover, max_items=30)
    capacity = first.steps_to_hold
    assert capacity is not None
    rng = np.random.default_rng(seed)
    for others in ({}, {"all": relive.Index()}):
        with relive.Table(STATES, capacity, {"best": first, **others}, max_lanes=1) as table:
            priorities = rng.permutation(4_000).astype(np.float64) + 1.0
            with table.writer() as writer:
                keys = writer.extend(
                    observation=np.zeros((4_000, 2)), number=np.arange(4_000), priority=priorities,
                    next_observation=np.zeros((4_000, 2)),
                )  # fmt: skip
                complete = np.arange(4_000) < 4_000 - n_step + 1
                best = np.argsort(-sign * np.where(complete, priorities, -sign * np.inf))[:30]
                there = table.gather(keys, index="best").present
                assert sorted(np.flatnonzero(there)) == sorted(best)
            table.check()


def test_a_group_is_sound_after_the_page_of_its_tail_has_gone() -> None:
    """The episode fills its page, and its last state stands on the next one, which no item needs."""
    kinds = {"prompt": relive.ArraySpec((), "int64", kind="episode"), "number": relive.ArraySpec((), "int64")}
    spec = relive.StepSpec({"observation": relive.ArraySpec((), "float32", kind="state"), **kinds})
    groups = relive.Episodes(8, group_by="prompt", group_size=1, max_groups=8)
    index = {"best": relive.Index(remover=relive.MinPriority(), max_items=2), "groups": relive.Index(groups)}
    with relive.Table(spec, 40, index) as table, table.writer() as writer:
        for episode in range(20):
            priority = np.where((np.arange(8) < 2) & (episode == 0), 9.0, 1.0)
            values = {"prompt": np.full(8, episode), "number": np.arange(8) + 10 * episode}
            writer.extend(observation=np.arange(9.0), **values, truncated=True, priority=priority)
            table.check()
        batch = table.gather(np.concatenate([*table.keys(index="groups")]), index="groups")
        assert (batch["number"][:, 0] == 10 * batch["prompt"] + np.arange(8)).all()
