"""No limiter lets writers and learner wait for each other: a walk over limiters, kinds of items and ends of episodes.

One thread plays several writers and the learner. All its calls have timeout_s=0. After each part of the walk the actors
try to go on: every writer with its next row, then the learner with a draw. If no actor can, both sides would wait for
ever. The walk fails unless stats() says so (`stuck`).
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import relive
from relive.errors import DeadlineExceeded, ReliveError, RequestTooLarge

STATE = relive.ArraySpec((1,), "float32", kind="state")
GROUPED = relive.Episodes(6, group_by="prompt", group_size=3, max_groups=64)

ITEMS: dict[str, relive.Items] = {
    "transitions": relive.Transitions(),
    "n_step": relive.Transitions(n_step=3),
    "pad": relive.Sequences(3),
    "pad every step": relive.Sequences(3, period=1),
    "shift": relive.Sequences(3, at_end="shift"),
    "shift every step": relive.Sequences(3, period=1, at_end="shift"),
    "shift apart": relive.Sequences(2, period=5, at_end="shift"),
    "drop": relive.Sequences(2, period=1, at_end="drop"),
    "cross": relive.Sequences(3, period=2, at_end="cross"),
    "bootstrap": relive.Sequences(3, bootstrap=1),
    "episodes": relive.Episodes(6),
    "head": relive.Episodes(4, too_long="head"),
    "groups": GROUPED,
}
LIMITERS: dict[str, relive.Limiter] = {
    "ratio": relive.SamplesPerInsert(1.0, 4, 16.0),
    "half": relive.SamplesPerInsert(0.5, 2, 12.0),
    "queue": relive.Queue(8),
    "short queue": relive.Queue(4),
    "budget": relive.StalenessBudget(1.0, 4),
    "on policy": relive.StalenessBudget(0.0, 4),
}
SAMPLERS: dict[str, Any] = {
    "uniform": relive.Uniform(),
    "fifo": relive.Fifo(),
    "prioritized": relive.Prioritized(0.6),
    "given": relive.Prioritized(1.0, initial="given"),
    "fresh": relive.Fresh(last=6),
    "hindsight": relive.Hindsight("wanted", "seen", max_length=6, sampler=relive.Prioritized(0.5)),
    "variance": relive.PromptGroups("variance", priority_exponent=0.0),
}
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"replacement": False},
    {"where": "reward > 0"},
    {"max_staleness": 1},
    {"max_items": 12},
    {"max_items": 12, "remover": relive.Uniform()},
)


@dataclass
class Actor:
    """One writer of a table with a lane of its own, and the episode that it is in."""

    table: relive.Table
    prompts: Iterator[int]
    random: random.Random
    writer: Any = None
    step: int = 0
    length: int = 1
    prompt: int = 0
    keys: list[int] = field(default_factory=list)

    def begin(self) -> None:
        self.step, self.length, self.prompt = 0, self.random.randint(1, 6), next(self.prompts)

    def go_on(self) -> bool:
        """Appends one row; False if the limiter does not let it in."""
        if self.writer is None:
            self.writer = self.table.writer()
            self.begin()
        ends = self.step + 1 == self.length
        row: dict[str, Any] = {"prompt": self.prompt, "reward": float(self.random.randint(0, 1))}
        if "seen" in self.table.spec.columns:
            row |= {"seen": [float(self.step)], "wanted": [9.0]}
        if ends:
            row[self.random.choice(("terminated", "truncated"))] = True
            row |= {"next_seen": [float(self.step + 1)], "next_wanted": [9.0]} if "seen" in row else {}
        try:
            self.keys.append(int(self.writer.append(**row, timeout_s=0)))
        except DeadlineExceeded:
            return False
        self.step += 1
        if ends:
            self.begin()
        return True

    def end_somehow(self) -> None:
        """Gives the episode up, or ends the lane in the middle of it."""
        if self.writer is None:
            return
        if self.random.random() < 0.5:
            self.writer.abandon(timeout_s=5.0)
            self.begin()
        else:
            self.writer.close()
            self.writer = None


@dataclass
class Walk:
    """Writers and a learner of one table."""

    table: relive.Table
    actors: list[Actor]
    random: random.Random
    draw: int
    is_budget: bool
    drawn: int = 0

    def learn(self) -> bool:
        """Draws once; False if there is too little."""
        try:
            batch = self.table.sample(self.draw, columns=["prompt"], timeout_s=0)
        except DeadlineExceeded:
            return False
        self.drawn += self.draw
        if self.is_budget and self.drawn >= 4:
            self.drawn -= 4
            self.table.set_policy_version(self.table.policy_version + 1)
        if self.table.indexes["default"].has_priorities and self.random.random() < 0.5:
            some = [self.random.choice((0.0, 0.0, 1.0, 2.0)) for _ in batch.item_keys]
            self.table.update_priorities(batch.item_keys, some)
        return True

    def answer(self) -> None:
        """Completes the late columns of all rows, and gives their first priorities."""
        keys = np.array(sorted({key for actor in self.actors for key in actor.keys}), np.int64)
        for actor in self.actors:
            actor.keys.clear()
        if len(keys) and any(column.late for column in self.table.spec.columns.values()):
            self.table.complete(keys, verdict=np.array([float(self.random.randint(0, 1)) for _ in keys]))
        index = self.table.indexes["default"]
        if index.sampler == SAMPLERS["given"] and len(keys):
            some = [self.random.choice((0.0, 1.0)) for _ in keys]
            self.table.update_priorities(keys, some)

    def part(self) -> None:
        """Some calls of all actors."""
        for _ in range(self.random.randint(1, 40)):
            actor = self.random.choice(self.actors)
            chance = self.random.random()
            if chance < 0.05:
                actor.end_somehow()
            elif chance < 0.1:
                self.delete_some()
            elif chance < 0.25:
                self.learn()
            else:
                actor.go_on()

    def delete_some(self) -> None:
        keys = [page for page in self.table.keys()]
        if keys:
            self.table.delete(keys[0][: self.random.randint(1, 4)])

    def is_locked(self) -> bool:
        """Whether no actor can go on, even after the late columns and priorities of all rows are given."""
        for _ in range(2):  # a draw that lacks items may let a writer in
            if any([actor.go_on() for actor in self.actors]) or self.learn():
                return False
            self.answer()
        return not (any([actor.go_on() for actor in self.actors]) or self.learn())


def walk_of(items: str, limiter: str, sampler: str, seed: int, late: bool, state: bool) -> Walk | None:
    """A walk over this combination; None if the table refuses it, in words."""
    columns: dict[str, Any] = {
        "prompt": relive.ArraySpec((), "int64", kind="episode"),
        "reward": relive.ArraySpec((), "float32"),
    }
    if late:
        columns["verdict"] = relive.ArraySpec((), "float32", late=True)
    if state:
        columns |= {"seen": STATE, "wanted": STATE}
    chooser = random.Random(seed)
    try:
        times = chooser.choice((1, 1, 3))
        options = chooser.choice(OPTIONS)
        index = relive.Index(ITEMS[items], SAMPLERS[sampler], LIMITERS[limiter], max_times_sampled=times, **options)
        table = relive.Table(relive.StepSpec(columns), 400, index, timeout_s=0, max_lanes=8, seed=seed)
    except ReliveError:
        return None
    draw = chooser.choice((1, 2, 4))  # a version of the budget is 4 items: other draws would leave a rest of it
    prompts = (prompt // 3 for prompt in iter(lambda: next(counter), None))
    counter = iter(range(10**9))
    actors = [Actor(table, prompts, chooser) for _ in range(chooser.randint(1, 4))]
    return Walk(table, actors, chooser, draw, limiter in ("budget", "on policy"))


@pytest.mark.forms(26)
@pytest.mark.core_alone
@pytest.mark.parametrize("limiter", LIMITERS)
@pytest.mark.parametrize("items", ITEMS)
def test_writers_and_learner_never_wait_for_each_other(items: str, limiter: str) -> None:
    seeds = random.Random(f"{items} {limiter} {os.environ.get('WALK', 0)}")
    for sampler in SAMPLERS:
        for late in (False, True):
            walk = walk_of(items, limiter, sampler, seeds.randrange(2**32), late, bool(seeds.getrandbits(1)))
            if walk is None:
                continue
            for part in range(12):
                try:
                    walk.part()
                    locked = walk.is_locked()
                except RequestTooLarge as error:  # refused at once, in words
                    assert "items" in str(error)
                    break
                told = walk.table.stats().indexes["default"]
                assert not locked, f"{sampler}, late={late}, part {part}, draws of {walk.draw}: {told}"
                assert walk.table.check() is None
            walk.table.close()
