"""Any sampler with any remover and any limiter against a twin: what is drawn, what goes, and who waits."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import relive
from naive.program import run_at_random
from relive import errors

SPEC = relive.StepSpec({"number": relive.ArraySpec((), "int64")})
SAMPLERS = (
    relive.Uniform(),
    relive.Prioritized(1.0),
    relive.Fifo(),
    relive.Lifo(),
    relive.MaxPriority(),
    relive.MinPriority(),
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
LIMITERS = (relive.MinSize(), relive.MinSize(3), relive.SamplesPerInsert(2.0, 2, tolerance=4.0), relive.Queue(3))
BY_CHANCE = (relive.Uniform, relive.Prioritized, relive.Reservoir)
REFUSED = (errors.DeadlineExceeded, errors.WaitsForItself, errors.RequestTooLarge)
PRIORITIES = (0.0, 0.5, 1.0, 3.0)


@dataclass
class NaiveItem:
    """came, changed: when it could be drawn first, and when it had its last priority."""

    key: int
    priority: float
    came: int
    changed: int
    uses: int = 0

    def rank(self, kind: Any) -> tuple[float, ...]:
        """The lowest comes first, or goes first."""
        sign = -1.0 if isinstance(kind, (relive.Lifo, relive.MaxPriority)) else 1.0
        if isinstance(kind, (relive.Fifo, relive.Lifo)):
            return (sign * self.came,)
        return (sign * self.priority, self.changed)


class ChoicesMachine(RuleBasedStateMachine):
    """A table of one index, and the list of its items."""

    @initialize(
        sampler=st.sampled_from(SAMPLERS),
        remover=st.sampled_from(REMOVERS),
        max_items=st.sampled_from((3, 8)),
        max_times=st.sampled_from((None, 1, 3)),
        limiter=st.sampled_from(LIMITERS),
    )
    def begin(self, sampler: Any, remover: Any, max_items: int, max_times: int | None, limiter: Any) -> None:
        if isinstance(limiter, relive.Queue):
            max_times = max_times or 1
        if isinstance(limiter, relive.SamplesPerInsert) and max_times == 1:
            max_times = 2  # with one use fewer than samples an insert it is refused
        self.sampler, self.remover, self.limiter = sampler, remover, limiter
        self.max_items, self.max_times = max_items, max_times
        index = relive.Index(
            sampler=sampler, limiter=limiter, remover=remover, max_items=max_items, max_times_sampled=max_times
        )
        self.looks = index.has_priorities
        self.table = relive.Table(SPEC, 4_000, index, seed=7, max_lanes=1)
        self.writer = self.table.writer()
        self.live: dict[int, NaiveItem] = {}
        self.keys: list[int] = []
        self.ticket, self.largest, self.sampled = 0, 1.0, 0

    def teardown(self) -> None:
        if hasattr(self, "table"):
            self.table.close()

    def take_ticket(self) -> int:
        self.ticket += 1
        return self.ticket

    @rule(priority=st.sampled_from((None, *PRIORITIES)))
    def append(self, priority: float | None) -> None:
        given = {"priority": priority} if self.looks and priority is not None else {}
        try:
            key = int(self.writer.append(number=len(self.keys), timeout_s=0.0, **given))
        except REFUSED:
            assert not self.lets_in()
            return
        assert self.lets_in()
        self.keys.append(key)
        self.largest = max(self.largest, given.get("priority", 0.0))
        ticket = self.take_ticket()
        self.live[key] = NaiveItem(key, given.get("priority", self.largest), ticket, ticket)
        if len(self.live) > self.max_items:
            del self.live[self.chosen()]

    def lets_in(self) -> bool:
        if isinstance(self.limiter, relive.MinSize):
            return True
        if isinstance(self.limiter, relive.Queue):
            return len(self.live) < self.limiter.max_size
        if len(self.live) < self.limiter.min_size:
            return True
        ratio = self.limiter.samples_per_insert
        return (len(self.keys) + 1) * ratio - self.sampled <= ratio * self.limiter.min_size + 4.0

    def chosen(self) -> int:
        """The key that the remover says; where that is chance, the table."""
        if not isinstance(self.remover, BY_CHANCE):
            return min(self.live, key=lambda key: self.live[key].rank(self.remover))
        there = self.table.gather(list(self.live)).present
        (gone,) = [key for key, is_there in zip(self.live, there, strict=True) if not is_there]
        is_heavy = self.live[gone].priority > 0 or not any(item.priority for item in self.live.values())
        assert is_heavy or not isinstance(self.remover, relive.Prioritized)
        return gone

    @rule(choices=st.lists(st.integers(0, 1_000), min_size=1, max_size=4), priority=st.sampled_from(PRIORITIES))
    @precondition(lambda self: self.looks and self.keys)
    def update(self, choices: list[int], priority: float) -> None:
        keys = list(dict.fromkeys(self.keys[-1 - choice % min(len(self.keys), 12)] for choice in choices))
        applied = self.table.update_priorities(keys, [priority] * len(keys))
        there = [self.live[key] for key in keys if key in self.live]
        assert applied == len(there)
        self.largest = max(self.largest, priority)
        for item in there:
            item.priority, item.changed = priority, self.take_ticket()

    @rule(choice=st.integers(0, 1_000))
    @precondition(lambda self: self.live)
    def delete(self, choice: int) -> None:
        key = sorted(self.live)[choice % len(self.live)]
        assert self.table.delete([key]) == 1
        del self.live[key]

    @rule(count=st.integers(1, 4))
    def draw(self, count: int) -> None:
        before = {key: item for key, item in self.live.items() if self.has_mass(item)}
        try:
            drawn = self.table.draw(count, timeout_s=0.0).item_keys.tolist()
        except REFUSED:
            return
        assert len(self.live) >= getattr(self.limiter, "min_size", 1)
        if isinstance(self.limiter, relive.SamplesPerInsert):
            ratio = self.limiter.samples_per_insert
            assert len(self.keys) * ratio - self.sampled - count >= ratio * self.limiter.min_size - 4.0
        self.sampled += count
        if not isinstance(self.sampler, BY_CHANCE):
            order = sorted(before, key=lambda key: before[key].rank(self.sampler))
            first = order[: min(count, len(order))]
            assert drawn[: len(first)] == first if self.max_times is None else set(first) <= set(drawn)
        for key in drawn:
            before[key].uses += 1
        for key in set(drawn):
            assert self.max_times is None or before[key].uses <= self.max_times
            if before[key].uses == self.max_times:
                del self.live[key]

    def has_mass(self, item: NaiveItem) -> bool:
        return not isinstance(self.sampler, relive.Prioritized) or item.priority > 0.0

    @invariant()
    def what_lives_is_the_twins(self) -> None:
        if not hasattr(self, "table"):
            return
        self.table.check()
        assert self.table.num_items() == len(self.live) <= self.max_items
        if self.keys:
            recent = self.keys[-50:]
            there = self.table.gather(recent).present
            used_up = self.max_times is not None  # such an item's key still leads to it
            assert all(is_there or key not in self.live for key, is_there in zip(recent, there, strict=True))
            assert used_up or [key for key, is_there in zip(recent, there, strict=True) if is_there] == [
                key for key in recent if key in self.live
            ]


def play(sampler: Any, remover: Any, limiter: Any, max_times: int | None) -> None:
    rng = random.Random(f"{sampler}{remover}{limiter}{max_times}")
    machine = ChoicesMachine()
    machine.begin(sampler, remover, rng.choice((3, 8)), max_times, limiter)

    def update() -> None:
        if machine.looks and machine.keys:
            machine.update([rng.randrange(1_000) for _ in range(3)], rng.choice(PRIORITIES))

    def delete() -> None:
        if machine.live and rng.random() < 0.5:
            machine.delete(rng.randrange(1_000))

    calls: list[Callable[[], None]] = [
        *[lambda: machine.append(rng.choice((None, *PRIORITIES)))] * 5,
        *[lambda: machine.draw(rng.randint(1, 4))] * 3,
        update,
        delete,
    ]
    run_at_random(rng, calls, 60, (1, machine.what_lives_is_the_twins), machine.teardown)


@pytest.mark.parametrize("max_times", [None, 1, 3])
@pytest.mark.parametrize("limiter", LIMITERS, ids=str)
def test_every_sampler_with_every_remover(limiter: Any, max_times: int | None) -> None:
    for sampler, remover in itertools.product(SAMPLERS, REMOVERS):
        play(sampler, remover, limiter, max_times)


TestChoices = pytest.mark.filterwarnings("error")(ChoicesMachine.TestCase)
