"""Shuffle against what it promises: there is a way to part all that was drawn into epochs that keep it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import relive
from naive.program import run_at_random, saved_and_loaded

SPEC = relive.StepSpec({"number": relive.ArraySpec((), "int64")})
ITEMS = {
    "rows": relive.Transitions(),
    "windows": relive.Sequences(3, period=2, at_end="cross"),
    "records": relive.Explicit({"": relive.Window(1)}, max_items=12),
}
REMOVERS = (relive.Fifo(), relive.Lifo(), relive.Reservoir())


class Epochs:
    """Where epochs may have begun, given what was drawn so far and what lived when.

    An epoch that began at some draw may be over before another one if all that has lived since came in it; it cannot go
    on if what is drawn came in it already. If no beginning is left that explains the draws, something came twice in an
    epoch, or not at all.
    """

    def __init__(self) -> None:
        self.num_draws = 0
        self.since: dict[int, int] = {}  # by key: how many draws there were before it came
        self.begun: dict[int, set[int]] = {0: set()}  # what came in an epoch, by the draw that it began at

    def look(self, keys: set[int]) -> None:
        """These live now."""
        self.since = {key: self.since.get(key, self.num_draws) for key in keys}

    def draw(self, key: int) -> None:
        def is_over(begin: int, came: set[int]) -> bool:
            return all(since > begin or one in came for one, since in self.since.items())

        if any(is_over(begin, came) for begin, came in self.begun.items()):
            self.begun[self.num_draws] = set()
        self.begun = {begin: came | {key} for begin, came in self.begun.items() if key not in came}
        assert self.begun, f"no epochs explain draw {self.num_draws}, of {key}"
        self.num_draws += 1


class ShuffleMachine(RuleBasedStateMachine):
    """A small table, so that what comes takes the places of what went, in the middle of epochs."""

    @initialize(
        items=st.sampled_from(sorted(ITEMS)),
        remover=st.sampled_from(REMOVERS),
        max_times=st.sampled_from((None, 1, 3)),
        seed=st.integers(0, 1000),
    )
    def begin(self, items: str, remover: Any, max_times: int | None, seed: int) -> None:
        self.max_times, self.are_records = max_times, items == "records"
        index = relive.Index(
            ITEMS[items],
            sampler=relive.Shuffle(),
            remover=remover,
            max_items=None if self.are_records else 12,
            max_times_sampled=max_times,
        )
        self.table = relive.Table(SPEC, 64, index, seed=seed, max_lanes=1)
        self.writer = self.table.writer()
        self.num_steps = 0
        self.uses: dict[int, int] = {}
        self.epochs = Epochs()

    def teardown(self) -> None:
        if hasattr(self, "table"):
            self.table.close()

    def live(self) -> list[int]:
        return [int(key) for page in self.table.keys() for key in page]

    @rule(count=st.integers(1, 9), end=st.booleans())
    def append(self, count: int, end: bool) -> None:
        for _ in range(count):
            key = self.writer.append(number=self.num_steps)
            self.num_steps += 1
            if self.are_records:
                self.table.create_items([key])
            self.epochs.look(set(self.live()))
        if end:
            self.writer.end_episode()
            self.epochs.look(set(self.live()))

    @rule()
    def reload(self) -> None:
        """The turns go on where they were."""
        self.table = saved_and_loaded(self.table)
        self.writer = self.table.writer()
        self.epochs.look(set(self.live()))

    @rule(choices=st.lists(st.integers(0, 100), min_size=1, max_size=4))
    def delete(self, choices: list[int]) -> None:
        live = self.live()
        if live:
            gone = {live[choice % len(live)] for choice in choices}
            self.table.delete(sorted(gone))
            self.epochs.look(set(self.live()))

    @rule(count=st.integers(1, 20), whole=st.booleans())
    def draw(self, count: int, whole: bool) -> None:
        live = self.live()
        left = count * len(live) if self.max_times is None else sum(self.max_times - self.uses.get(k, 0) for k in live)
        # In a batch what is used up meanwhile makes room for a later turn; singly it cannot be.
        sizes = [min(count, left)] if self.max_times is None else [1] * min(count, left)
        draw = self.table.sample if whole else self.table.draw
        drawn = [key for size in sizes if size for key in draw(size).item_keys.tolist()]
        for key in drawn:
            self.epochs.draw(key)
            self.uses[key] = self.uses.get(key, 0) + 1
            if self.uses[key] == self.max_times:
                del self.epochs.since[key]
        self.epochs.look(set(self.live()))

    @invariant()
    def lives_what_has_uses_left(self) -> None:
        if hasattr(self, "table"):
            self.table.check()
            assert all(self.uses.get(key, 0) < (self.max_times or 1 << 60) for key in self.live())


@pytest.mark.forms(9)
@pytest.mark.parametrize("max_times", [None, 1, 3])
@pytest.mark.parametrize("remover", REMOVERS)
@pytest.mark.parametrize("items", sorted(ITEMS))
def test_long_programmes_of_epochs(items: str, remover: Any, max_times: int | None) -> None:
    rng = random.Random(len(items))
    machine = ShuffleMachine()
    machine.begin(items, remover, max_times, seed=3)
    calls: list[Callable[[], None]] = [
        lambda: machine.append(rng.randint(1, 9), rng.random() < 0.3),
        lambda: machine.delete([rng.randrange(100) for _ in range(rng.randint(1, 4))]),
        *[lambda: machine.draw(rng.randint(1, 20), rng.random() < 0.5)] * 3,
        lambda: machine.reload() if rng.random() < 0.1 else None,
    ]
    run_at_random(rng, calls, 400, (5, machine.lives_what_has_uses_left), machine.teardown)
    assert machine.epochs.num_draws > 100


TestShuffle = pytest.mark.filterwarnings("error")(ShuffleMachine.TestCase)
