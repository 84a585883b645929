"""Tables of any options at all, by chance: every call answers by its deadline or refuses by name, and nothing breaks.

The twins in the other files check the contents of items. This test combines options: samplers, removers, limiters, use
counts, bounds, conditions, times, versions, shapes of items, late columns. After each call the table checks itself.
"""

from __future__ import annotations

import collections
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import relive
from naive.program import run_at_random
from relive import errors

SEEDS = 320
A_TEST = 40
NUM_CALLS = 50
SAMPLERS = (
    relive.Uniform(),
    relive.Prioritized(0.6),
    relive.Prioritized(1.0, initial=0.5),
    relive.Prioritized(0.6, initial="given"),
    relive.RankBased(),
    relive.TopK(0.25),
    relive.TopK(3),
    relive.Fifo(),
    relive.Lifo(),
    relive.MaxPriority(),
    relive.MinPriority(),
    relive.Fresh(),
    relive.Fresh(last=7),
    relive.Fresh(decay=0.5),
    relive.Shuffle(),
    relive.PromptGroups("variance", of="reward"),
    relive.PromptGroups("mean", of="reward", priority_exponent=0.5),
    relive.PromptGroups("recency"),
    relive.Hindsight("goal", "place", max_length=12, strategy="episode"),
    relive.Hindsight("goal", "place", max_length=12, sampler=relive.Prioritized(0.6)),
)
REMOVERS = (
    relive.Fifo(),
    relive.Lifo(),
    relive.MinPriority(),
    relive.MaxPriority(),
    relive.Uniform(),
    relive.Prioritized(1.0),
    relive.Reservoir(),
)
ITEMS = (
    relive.Transitions(),
    relive.Transitions(n_step=3, gamma=0.5),
    relive.Transitions(stack={"place": 3}),
    relive.Sequences(6, period=3, burn_in=2),
    relive.Sequences(9),
    relive.Episodes(12),
    relive.Episodes(12, group_by="prompt", group_size=2, max_groups=4),
)
COLUMNS = ("number", "reward", "staleness")
CONDITIONS = (None, None, None, "number > 20", "episode_step < 4", "lane == 0")
# The errors that a call may raise instead of its result.
WAITS = (errors.DeadlineExceeded, errors.RequestTooLarge)
REFUSALS = (*WAITS, errors.RareItems, errors.NoPriorities, errors.NoProbabilities, errors.InvalidConfig)
CONFIGS_REFUSED = (errors.InvalidConfig, errors.CapacityTooSmall, errors.SpecError)


def _limiter(rng: random.Random) -> Any:
    kind = rng.randrange(6)
    if kind == 0:
        return relive.Queue(rng.randint(1, 6))
    if kind == 1:
        return relive.StalenessBudget(rng.choice((0, 1, 0.5)), rng.randint(1, 9))
    if kind == 2:
        return relive.SamplesPerInsert(rng.choice((0.5, 2.0, 4.0)), rng.randint(1, 6), tolerance=rng.uniform(1.0, 40.0))
    return relive.MinSize(rng.choice((1, 1, 3)))


def _index(rng: random.Random) -> relive.Index:
    sampler, items = rng.choice(SAMPLERS), rng.choice(ITEMS)
    if isinstance(sampler, (relive.PromptGroups, relive.Hindsight)):
        items = ITEMS[-1] if isinstance(sampler, relive.PromptGroups) else ITEMS[0]
    options = {
        "items": items,
        "sampler": sampler,
        "remover": rng.choice(REMOVERS) if rng.random() < 0.6 else relive.Fifo(),
        "limiter": _limiter(rng),
        "max_items": rng.choice((None, 3, 8, 30)),
        "max_times_sampled": rng.choice((None, 1, 3)),
        "max_staleness": rng.choice((None, None, 0, 2)),
        "max_wait_s": rng.choice((None, None, 1e-4, 10.0)),
        "where": rng.choice(CONDITIONS),
        "replacement": rng.random() < 0.7,
    }
    return relive.Index(**options)


def _spec(rng: random.Random) -> relive.StepSpec:
    kind = rng.choice(("step", "state"))
    return relive.StepSpec(
        {
            "number": relive.ArraySpec((), "int64"),
            "place": relive.ArraySpec((2,), "int32", kind=kind),
            "goal": relive.ArraySpec((2,), "int32", kind=kind),
            "prompt": relive.ArraySpec((), "int64", kind="episode"),
            "reward": relive.ArraySpec((), "float32", late=rng.random() < 0.3),
        }
    )


def _tables(rng: random.Random) -> Iterator[relive.Table | None]:
    """Ever more; None where options were refused together, by name."""
    while True:
        try:
            names = ("default", "other", "third")[: rng.choice((1, 1, 2, 3))]
            indexes = {name: _index(rng) for name in names}
            capacity = rng.choice((40, 100, 400))
            yield relive.Table(_spec(rng), capacity, indexes, max_lanes=4, seed=rng.randrange(1_000))
        except CONFIGS_REFUSED:
            yield None


class Run:
    """One table and what is known of it without a model: rows by number, draws of each item, its own version."""

    def __init__(self, table: relive.Table, rng: random.Random) -> None:
        self.table, self.rng = table, rng
        self.is_late = table.spec.columns["reward"].late
        self.has_state = table.spec.columns["place"].kind == "state"
        self.writers = [table.writer(), table.writer()]
        self.version = 0
        self.numbers = [0, 1_000]  # of the next row of each
        self.steps, self.prompts = [0, 0], [0, 1]  # of the present episode of each
        self.keys: list[int] = []
        self.incomplete: dict[int, int] = {}
        self.uses: dict[str, collections.Counter[int]] = {name: collections.Counter() for name in self.indexes}
        self.num_done = 0

    @property
    def indexes(self) -> dict[str, relive.Index]:
        return dict(self.table.config.index)

    def some_index(self) -> str:
        return self.rng.choice(list(self.indexes))

    def call(self, what: Any, *arguments: Any, refusals: tuple[type[Exception], ...] = REFUSALS, **options: Any) -> Any:
        """None: refused."""
        try:
            result = what(*arguments, **options)
        except refusals:
            return None
        self.num_done += 1
        return result

    def place(self, number: int) -> list[int]:
        return [number, -number]

    def append(self) -> None:
        lane = self.rng.randrange(2)
        ends = self.rng.random() < 0.2 or self.steps[lane] == 11  # as many as an Episodes(12) may have
        number = self.numbers[lane]
        row: dict[str, Any] = {"number": number, "place": self.place(number), "goal": [0, 0]}
        row |= {} if self.is_late else {"reward": float(number)}
        row["prompt"] = self.prompts[lane]
        if ends:
            row["terminated" if self.rng.random() < 0.5 else "truncated"] = True
        if self.has_state and (ends or self.rng.random() < 0.5):
            row |= {"next_place": self.place(number + 1), "next_goal": [0, 0]}
        if self.rng.random() < 0.3 and any(index.has_priorities for index in self.indexes.values()):
            row["priority"] = self.rng.choice((0.0, 0.5, 3.0))
        key = self.call(self.writers[lane].append, timeout_s=0.0, **row)
        if key is None:
            return
        self.keys.append(int(key))
        if self.is_late:
            self.incomplete[int(key)] = number
        self.numbers[lane] += 1
        self.steps[lane] += 1
        if ends:
            self.steps[lane], self.prompts[lane] = 0, self.rng.randrange(3)

    def complete(self) -> None:
        for key, number in list(self.incomplete.items())[: self.rng.randint(1, 8)]:
            del self.incomplete[key]
            if self.rng.random() < 0.9:
                self.table.complete([key], reward=np.float32([number]))

    def sample(self) -> None:
        name, size = self.some_index(), self.rng.choice((1, 2, 5))
        index = self.indexes[name]
        given = {"where": self.rng.choice(("number > 20", "reward >= 0"))} if self.rng.random() < 0.2 else {}
        asked: dict[str, Any] = given | {"columns": COLUMNS}
        if isinstance(index.sampler, relive.Hindsight):
            asked["columns"] = (*COLUMNS, "relabelled", "goal", "next_place")
            asked["reward"] = lambda _achieved, _goal, batch: np.asarray(batch["number"], np.float32)
        batch = self.call(self.table.sample, size, index=name, timeout_s=0.0, **asked)
        if batch is None:
            return
        assert index.replacement or len(set(batch.item_keys.tolist())) == size
        probabilities = batch.probabilities
        assert ((probabilities > 0.0) & (probabilities <= 1.0)).all()
        numbers = np.asarray(batch["number"])
        rewards = np.asarray(batch["reward"])
        if isinstance(index.items, relive.Transitions) and index.items.n_step == 1:
            assert (rewards == numbers).all()
            assert not given or (numbers > 20 if "number" in given["where"] else rewards >= 0).all()
            assert index.where != "number > 20" or (numbers > 20).all()
        self._check_uses(name, index, batch)
        self._check_versions(index, batch)

    def _check_uses(self, name: str, index: relive.Index, batch: Any) -> None:
        if index.max_times_sampled is None:
            return
        self.uses[name].update(batch.item_keys.tolist())
        assert max(self.uses[name].values()) <= index.max_times_sampled

    def _check_versions(self, index: relive.Index, batch: Any) -> None:
        if index.max_staleness is not None:
            assert (np.asarray(batch["staleness"]) <= index.max_staleness).all()

    def update(self) -> None:
        keys = self.rng.sample(self.keys[-30:], min(len(self.keys), 4))
        priorities = [self.rng.choice((0.0, 0.5, 2.0)) for _ in keys]
        refusals = (*REFUSALS, errors.ForeignKey)  # groups have keys of their own
        self.call(self.table.update_priorities, keys, priorities, index=self.some_index(), refusals=refusals)

    def delete(self) -> None:
        self.table.delete(self.rng.sample(self.keys, min(len(self.keys), 2)))

    def step_version(self) -> None:
        self.version += self.rng.choice((1, 1, 3, -1)) if self.version else 1
        self.table.set_policy_version(self.version)

    def change_limiter(self) -> None:
        self.call(lambda: self.table.set_limiter(_limiter(self.rng), index=self.some_index()))

    def change_exponent(self) -> None:
        self.call(self.table.set_priority_exponent, self.rng.choice((0.3, 1.0)), index=self.some_index())

    def list_keys(self) -> None:
        order = self.rng.choice(("age", "priority"))
        for keys in self.call(lambda: list(self.table.keys(index=self.some_index(), order=order, page_size=5))) or ():
            assert len(keys) <= 5

    def clear(self) -> None:
        if self.rng.random() < 0.1:
            self.table.clear()

    def check(self) -> None:
        self.table.check()
        for name, index in self.indexes.items():
            num_items = self.table.stats().indexes[name].num_items
            assert index.max_items is None or num_items <= index.max_items


def play(seed: int) -> bool:
    """Whether much of it came to something."""
    rng = random.Random(seed)
    table = next(table for table in _tables(rng) if table is not None)
    run = Run(table, rng)
    weighted = {run.append: 24, run.sample: 10, run.complete: 3, run.update: 3, run.delete: 1, run.step_version: 3}
    weighted |= {run.change_limiter: 1, run.change_exponent: 1, run.list_keys: 1, run.clear: 1}
    calls = [call for call, weight in weighted.items() for _ in range(weight)]
    run_at_random(rng, calls, NUM_CALLS, (1, run.check), table.close)
    return run.num_done > NUM_CALLS // 3


@pytest.mark.forms(4)
@pytest.mark.parametrize("first", range(0, SEEDS, A_TEST))
def test_options_that_meet(first: int) -> None:
    assert sum(play(seed) for seed in range(first, first + A_TEST)) > A_TEST // 2
