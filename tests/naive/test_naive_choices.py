"""Any sampler with any remover and any limiter against a twin: which items are drawn or leave, and which calls wait."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import relive
from naive.choices_twin import NaiveChoices
from naive.program import run_at_random, saved_and_loaded
from naive.test_naive_shuffle import Epochs
from relive import errors
from relive.config.samplers import REMOVERS as ALL_REMOVERS
from relive.config.samplers import SAMPLERS as ALL_SAMPLERS

SPEC = relive.StepSpec({"number": relive.ArraySpec((), "int64")})
BY_CHANCE = (
    relive.Uniform(),
    relive.Prioritized(1.0),
    relive.RankBased(1.0),
    relive.TopK(2),
    relive.TopK(0.5),
    relive.Fresh(last=3),
    relive.Fresh(decay=0.5),
)
SAMPLERS = (
    *((sampler, True) for sampler in BY_CHANCE),
    *((sampler, False) for sampler in BY_CHANCE),  # without replacement
    (relive.Fifo(), True),
    (relive.Lifo(), True),
    (relive.MaxPriority(), True),
    (relive.MinPriority(), True),
    (relive.Fresh(), True),
    (relive.Shuffle(), True),
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
LIMITERS = (
    relive.MinSize(),
    relive.MinSize(3),
    relive.SamplesPerInsert(2.0, 2, tolerance=4.0),
    relive.Queue(3),
    relive.StalenessBudget(0.5, 2),
)
REFUSED = (errors.DeadlineExceeded, errors.WaitsForItself, errors.RequestTooLarge, errors.RareItems)
PRIORITIES = (0.0, 0.5, 1.0, 3.0)


def test_nothing_is_left_out() -> None:
    """A new sampler, remover or limiter must be added to this test."""
    assert {type(sampler) for sampler, _ in SAMPLERS} == set(ALL_SAMPLERS)
    assert {type(remover) for remover in REMOVERS} == set(ALL_REMOVERS)
    assert {type(limiter) for limiter in LIMITERS} == set(relive.config.limiters.LIMITERS)


def fits(limiter: Any, max_times: int | None, max_items: int) -> bool:
    if isinstance(limiter, (relive.Queue, relive.StalenessBudget)):
        return max_times is not None
    if isinstance(limiter, relive.SamplesPerInsert) and max_times is not None:
        return limiter.samples_per_insert <= max_times
    return limiter.num_items <= max_items


class ChoicesMachine(RuleBasedStateMachine):
    """A table of one index, and the twin."""

    @initialize(
        sampler=st.sampled_from(SAMPLERS),
        remover=st.sampled_from(REMOVERS),
        max_items=st.sampled_from((3, 8)),
        max_times=st.sampled_from((None, 1, 3)),
        limiter=st.sampled_from(LIMITERS),
        max_staleness=st.sampled_from((None, None, 0, 2)),
    )
    def begin(
        self,
        sampler: tuple[Any, bool],
        remover: Any,
        max_items: int,
        max_times: int | None,
        limiter: Any,
        max_staleness: int | None,
    ) -> None:
        if not fits(limiter, max_times, max_items):
            max_times = 2
        index = relive.Index(
            sampler=sampler[0],
            limiter=limiter,
            remover=remover,
            max_items=max_items,
            max_times_sampled=max_times,
            max_staleness=max_staleness,
            replacement=sampler[1],
        )
        self.index, self.twin, self.epochs = index, NaiveChoices(index), Epochs()
        self.table = relive.Table(SPEC, 4_000, index, seed=7, max_lanes=1)
        self.writer = self.table.writer()
        self.keys: list[int] = []

    def teardown(self) -> None:
        if hasattr(self, "table"):
            self.table.close()

    @property
    def live(self) -> dict[int, Any]:
        return self.twin.live

    @rule(priority=st.sampled_from((None, *PRIORITIES)))
    def append(self, priority: float | None) -> None:
        given = {"priority": priority} if self.index.has_priorities and priority is not None else {}
        try:
            key = int(self.writer.append(number=len(self.keys), timeout_s=0.0, **given))
        except REFUSED:
            assert not self.twin.lets_in()
            return
        assert self.twin.lets_in()
        self.keys.append(key)
        self.twin.insert(key, given.get("priority"))
        if self.twin.is_too_many:
            del self.live[self.chosen()]
        self.epochs.look(set(self.live))

    def chosen(self) -> int:
        """The key that the remover says; where that is chance, the table."""
        gone = self.twin.removed()
        if gone is not None:
            return gone
        there = self.table.gather(list(self.live)).present
        (gone,) = [key for key, is_there in zip(self.live, there, strict=True) if not is_there]
        assert self.twin.could_remove(gone)
        return gone

    @rule(choices=st.lists(st.integers(0, 1_000), min_size=1, max_size=4), priority=st.sampled_from(PRIORITIES))
    @precondition(lambda self: self.index.has_priorities and self.keys)
    def update(self, choices: list[int], priority: float) -> None:
        keys = list(dict.fromkeys(self.keys[-1 - choice % min(len(self.keys), 12)] for choice in choices))
        assert self.table.update_priorities(keys, [priority] * len(keys)) == self.twin.update(keys, priority)

    @rule(choice=st.integers(0, 1_000))
    @precondition(lambda self: self.live)
    def delete(self, choice: int) -> None:
        key = sorted(self.live)[choice % len(self.live)]
        assert self.table.delete([key]) == 1
        del self.live[key]
        self.epochs.look(set(self.live))

    @rule()
    def step_version(self) -> None:
        self.twin.step_version()
        self.table.set_policy_version(self.twin.version)
        self.epochs.look(set(self.live))

    @rule()
    def reload(self) -> None:
        self.table = saved_and_loaded(self.table)
        self.writer = self.table.writer()

    @rule(limiter=st.sampled_from(LIMITERS))
    def change_limiter(self, limiter: Any) -> None:
        if not fits(limiter, self.index.max_times_sampled, self.index.max_items or 0):
            return
        self.table.set_limiter(limiter)
        self.twin.change_limiter(limiter)

    @rule(count=st.integers(1, 4), least=st.sampled_from((None, None, 0, 3, 7)))
    def draw(self, count: int, least: int | None) -> None:
        """least: drawn are items of the steps from this many before the last on; None: without a condition."""
        is_shuffled = isinstance(self.index.sampler, relive.Shuffle)
        if is_shuffled and self.index.max_times_sampled is not None:
            count = 1  # in a batch what is used up would make room for a later turn of what came already
        asked: dict[str, Any] = {}
        passing = None
        if least is not None and not is_shuffled:
            asked = {"where": f"number >= {len(self.keys) - least}"}
            passing = {key for key, item in self.live.items() if item.number >= len(self.keys) - least}
        expected = self.twin.may_draw(count, passing)
        try:
            draw = self.table.draw(count, timeout_s=0.0, **asked)
        except REFUSED as refusal:
            assert not expected, f"{refusal} of {self.live}"
            assert isinstance(refusal, errors.RequestTooLarge) == self.twin.is_too_large(count)
            if passing is None and not self.twin.is_too_large(count):
                self.twin.refuse(count)
            return
        assert expected in (True, None), f"{draw.item_keys} of {self.live}"
        self.look_at(draw, passing)
        drawn = draw.item_keys.tolist()
        self.twin.count(drawn)
        for key in drawn if is_shuffled else ():
            self.epochs.draw(key)
        self.epochs.look(set(self.live))

    def look_at(self, draw: relive.Draw, passing: set[int] | None) -> None:
        """Every drawn item was possible, and was drawn with its probability."""
        chances = self.twin.chances()
        drawn, is_counted = draw.item_keys.tolist(), self.index.max_times_sampled is not None
        assert draw.num_live_items == max(1, len(self.live))
        of_best = is_counted and isinstance(self.index.sampler, relive.TopK)  # a used-up item makes room for another
        assert set(drawn) <= set(self.live if of_best else chances)
        assert passing is None or set(drawn) <= passing
        assert self.index.replacement or len(set(drawn)) == len(drawn)
        if self.twin.is_ordered:
            found = [key for key in chances if passing is None or key in passing]
            order = sorted(found, key=lambda key: self.live[key].rank(self.index.sampler))
            first = order[: min(len(drawn), len(order))]
            again = [first[k % len(first)] for k in range(len(drawn))]
            assert set(first) <= set(drawn) if is_counted else drawn == again
        if not is_counted or len(drawn) == 1:  # else some are drawn when others are used up
            assert np.allclose(draw.probabilities, [chances[key] for key in drawn], rtol=1e-6)

    @invariant()
    def what_lives_is_the_twins(self) -> None:
        if not hasattr(self, "table"):
            return
        self.table.check()
        assert self.table.num_items() == len(self.live) <= (self.index.max_items or 0)
        if not self.keys:
            return
        recent = self.keys[-50:]
        there = self.table.gather(recent).present
        used_up = self.index.max_times_sampled is not None  # such an item's key still leads to it
        assert all(is_there or key not in self.live for key, is_there in zip(recent, there, strict=True))
        assert used_up or [key for key, is_there in zip(recent, there, strict=True) if is_there] == [
            key for key in recent if key in self.live
        ]


def play(sampler: tuple[Any, bool], remover: Any, limiter: Any, max_times: int | None) -> None:
    rng = random.Random(f"{sampler}{remover}{limiter}{max_times}")
    machine = ChoicesMachine()
    machine.begin(sampler, remover, rng.choice((3, 8)), max_times, limiter, rng.choice((None, None, None, 0, 2)))

    def update() -> None:
        if machine.index.has_priorities and machine.keys:
            machine.update([rng.randrange(1_000) for _ in range(3)], rng.choice(PRIORITIES))

    def delete() -> None:
        if machine.live and rng.random() < 0.5:
            machine.delete(rng.randrange(1_000))

    def change_limiter() -> None:
        if rng.random() < 0.2:
            machine.change_limiter(rng.choice(LIMITERS))

    calls: list[Callable[[], None]] = [
        *[lambda: machine.append(rng.choice((None, *PRIORITIES)))] * 5,
        *[lambda: machine.draw(rng.randint(1, 4), rng.choice((None, None, None, 0, 3, 7)))] * 4,
        update,
        delete,
        machine.step_version,
        change_limiter,
        lambda: machine.reload() if rng.random() < 0.25 else None,
    ]
    run_at_random(rng, calls, 40, (1, machine.what_lives_is_the_twins), machine.teardown)


@pytest.mark.forms(5)
@pytest.mark.parametrize("third", [0, *(pytest.param(one, marks=pytest.mark.thorough) for one in (1, 2))])
@pytest.mark.parametrize("max_times", [None, pytest.param(1, marks=pytest.mark.thorough), 3])
@pytest.mark.parametrize("limiter", LIMITERS, ids=str)
def test_every_sampler_with_every_remover(limiter: Any, max_times: int | None, third: int) -> None:
    """Each pair with a third of the limiters and use counts; `make test-all` plays all of them together."""
    shift = LIMITERS.index(limiter) + [None, 1, 3].index(max_times)
    for number, (sampler, remover) in enumerate(itertools.product(SAMPLERS, REMOVERS)):
        if (number + shift) % 3 == third:
            play(sampler, remover, limiter, max_times)


TestChoices = pytest.mark.filterwarnings("error")(ChoicesMachine.TestCase)
