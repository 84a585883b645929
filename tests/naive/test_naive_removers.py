"""Removers of explicit items against a twin: items come, wait, are used up, revalued, deleted, and lose their rows.

The table says which items a random remover chose. The test checks that the remover could see each of these items, and
that it removed no more items than it had to.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import relive
from naive.program import run_at_random, saved_and_loaded
from relive import errors

MAX_ITEMS = 6
REMOVERS = {
    "lifo": relive.Lifo(),
    "min_priority": relive.MinPriority(),
    "max_priority": relive.MaxPriority(),
    "uniform": relive.Uniform(),
    "prioritized": relive.Prioritized(1.0),
    "reservoir": relive.Reservoir(),
}
BY_CHANCE = ("uniform", "prioritized", "reservoir")
PRIORITIES = (0.0, 0.5, 1.0, 4.0)
CHOICES = st.lists(st.integers(0, 10_000), min_size=1, max_size=4)


@dataclass
class NaiveItem:
    """number: of its arrival. came, changed: when it could be drawn first, and when it had its last priority."""

    key: int
    rows: list[int]
    number: int
    priority: float | None
    came: int = 0
    changed: int = 0
    uses: int = 0
    used_up: int = 0
    filled: bool = False
    over: bool = False

    @property
    def is_waiting(self) -> bool:
        return not self.filled or self.priority is None


class RemoversMachine(RuleBasedStateMachine):
    """A table of few steps with up to six items on them, and the twin."""

    @initialize(
        name=st.sampled_from(sorted(REMOVERS)),
        max_times=st.sampled_from((None, 1, 2)),
        late=st.booleans(),
        given=st.booleans(),
        capacity=st.sampled_from((24, 500)),
    )
    def begin(self, name: str, max_times: int | None, late: bool, given: bool, capacity: int) -> None:
        columns = {"number": relive.ArraySpec((), "int64")}
        if late:
            columns["verdict"] = relive.ArraySpec((), "int64", late=True)
        self.name, self.max_times, self.late, self.given = name, max_times, late, given
        sampler = relive.Prioritized(1.0, initial="given" if given else "max")
        indexes = {
            "items": relive.Index(
                relive.Explicit({"rows": relive.Window(3)}, max_items=MAX_ITEMS),
                sampler,
                remover=REMOVERS[name],
                max_times_sampled=max_times,
            ),
            "probe": relive.Index(relive.Explicit({"row": relive.Window(1)}, max_items=1)),
        }
        self.table = relive.Table(relive.StepSpec(columns), capacity, indexes, max_lanes=2, seed=11)
        self.writer = self.table.writer()
        self.keys: list[int] = []
        self.filled: set[int] = set()
        self.items: list[NaiveItem] = []
        self.largest, self.ticket = 1.0, 0

    def teardown(self) -> None:
        if hasattr(self, "table"):
            self.table.close()

    # ---- rows ------------------------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 9))
    def append(self, count: int) -> None:
        for _ in range(count):
            self.keys.append(int(self.writer.append(number=len(self.keys))))
            if not self.late:
                self.filled.add(self.keys[-1])
        self.look()

    @rule()
    def reload(self) -> None:
        self.table = saved_and_loaded(self.table)
        self.writer = self.table.writer()

    def is_there(self, row: int) -> bool:
        try:
            self.writer.create_item({"row": (row, 1)}, index="probe")
        except errors.RowGone:
            return False
        return True

    def look(self) -> None:
        for item in self.held():
            item.over = not self.is_there(item.rows[0])  # rows go in their order

    @rule(choices=CHOICES)
    @precondition(lambda self: self.late and self.keys)
    def complete(self, choices: list[int]) -> None:
        """Some rows, one by one; none that would bring two items to life at once, in an order of the table's own."""
        for choice in choices:
            waiting = [key for key in self.keys[-30:] if key not in self.filled]
            if not waiting or not self.is_there(waiting[choice % len(waiting)]):
                continue
            row = waiting[choice % len(waiting)]
            whole = [item for item in self.held() if not item.filled and self.filled.union([row]).issuperset(item.rows)]
            if len(whole) > 1:
                continue
            assert self.table.complete([row], verdict=[row]) == 1
            self.filled.add(row)
            for item in whole:
                item.filled = True
                self.begin_life(item)

    # ---- items -----------------------------------------------------------------------------------------------------

    def begin_life(self, item: NaiveItem) -> None:
        if item.filled and item.priority is None and not self.given:
            item.priority = self.largest
        if not item.is_waiting:
            self.ticket += 1
            item.came = item.changed = self.ticket

    def held(self) -> list[NaiveItem]:
        return [item for item in self.items if not item.over]

    def live(self) -> list[NaiveItem]:
        return [item for item in self.held() if not item.is_waiting and item.uses != self.max_times]

    def rank(self, item: NaiveItem) -> tuple[float, ...]:
        """The lowest goes."""
        priority = item.priority or 0.0
        return {
            "lifo": (-item.came,),
            "min_priority": (priority, item.changed),
            "max_priority": (-priority, item.changed),
        }[self.name]

    @rule(first=st.integers(0, 30), count=st.integers(1, 3), priority=st.sampled_from((None, None, *PRIORITIES)))
    @precondition(lambda self: self.keys)
    def create(self, first: int, count: int, priority: float | None) -> None:
        at = max(0, len(self.keys) - 1 - first)
        rows = self.keys[at : at + count]
        more = {} if priority is None else {"priority": priority}
        self.largest = max(self.largest, priority or 0.0) if self.is_there(rows[0]) else self.largest
        try:
            key = self.writer.create_item({"rows": (rows[0], len(rows))}, index="items", **more)
        except errors.RowGone:
            return
        item = NaiveItem(int(key), rows, len(self.items), priority, filled=self.filled.issuperset(rows))
        self.items.append(item)
        self.begin_life(item)
        if len(self.held()) > MAX_ITEMS:
            self.choose().over = True

    def choose(self) -> NaiveItem:
        """Used up, or waiting for as long as it may; what the remover chooses; what waited longest."""
        used_up = [item for item in self.held() if item.uses == self.max_times]
        waiting = [item for item in self.held() if item.is_waiting]
        due = [item for item in waiting if item.number + 1 + MAX_ITEMS <= len(self.items)]
        if used_up:
            return min(used_up, key=lambda one: one.used_up)
        if due or not self.live():
            return min(waiting, key=lambda one: one.number)
        if self.name not in BY_CHANCE:
            return min(self.live(), key=self.rank)
        batch = self.table.gather([item.key for item in self.live()], index="items")
        gone = [item for item, there in zip(self.live(), batch.present, strict=True) if not there]
        assert len(gone) == 1
        positive = any(item.priority for item in self.live())
        assert self.name != "prioritized" or gone[0].priority or not positive
        return gone[0]

    @rule(choices=CHOICES, priority=st.sampled_from(PRIORITIES))
    @precondition(lambda self: self.items)
    def update(self, choices: list[int], priority: float) -> None:
        recent = self.items[-12:]
        items = list({id(one): one for choice in choices for one in [recent[choice % len(recent)]]}.values())
        applied = self.table.update_priorities([item.key for item in items], [priority] * len(items), index="items")
        there = [item for item in items if not item.over and item.uses != self.max_times]
        assert applied == len(there)
        self.largest = max(self.largest, priority)
        for item in there:
            if item.is_waiting:
                item.priority = priority
                self.begin_life(item)
            else:
                self.ticket += 1
                item.priority, item.changed = priority, self.ticket

    @rule(choices=CHOICES)
    @precondition(lambda self: self.items)
    def delete(self, choices: list[int]) -> None:
        items = [self.items[-1 - choice % min(len(self.items), 9)] for choice in choices]
        keys = {item.key: item for item in items}
        assert self.table.delete(list(keys)) == sum(not item.over for item in keys.values())
        for item in keys.values():
            item.over = True

    @rule(count=st.integers(1, 4))
    def draw(self, count: int) -> None:
        drawable = {item.key: item for item in self.live() if item.priority}
        try:
            drawn = self.table.draw(count, timeout_s=0.0, index="items")
        except (errors.DeadlineExceeded, errors.WaitsForItself):
            left = sum(self.max_times - item.uses for item in drawable.values()) if self.max_times else 0
            assert not drawable or left < count
            return
        for key in drawn.item_keys.tolist():
            item = drawable[key]
            item.uses += 1
            if item.uses == self.max_times:
                self.ticket += 1
                item.used_up = self.ticket

    # ---- always ----------------------------------------------------------------------------------------------------

    @invariant()
    def all_items_are_the_twins(self) -> None:
        if not hasattr(self, "table"):
            return
        self.table.check()
        assert self.table.num_items("items") == len(self.live())
        assert len(self.held()) <= MAX_ITEMS
        waiting = [item for item in self.held() if item.is_waiting]
        assert self.table.stats().indexes["items"].pending == len(waiting)
        recent = self.items[-60:]
        if not recent:
            return
        batch = self.table.gather([item.key for item in recent], index="items")
        for position, item in enumerate(recent):
            assert batch.present[position] == (not item.over and not item.is_waiting), f"{item}"
            if batch.present[position]:
                numbers = np.asarray(batch["rows/number"])[position][: len(item.rows)]
                assert numbers.tolist() == [self.keys.index(row) for row in item.rows]


@pytest.mark.forms(16)
@pytest.mark.parametrize(("late", "given"), [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("max_times", [None, 2])
@pytest.mark.parametrize("name", sorted(REMOVERS))
def test_long_programmes_of_removers(name: str, max_times: int | None, late: bool, given: bool) -> None:
    rng = random.Random(name)
    machine = RemoversMachine()
    machine.begin(name, max_times, late, given, rng.choice((24, 500)))

    def choices() -> list[int]:
        return [rng.randrange(10_000) for _ in range(rng.randint(1, 4))]

    calls: list[Callable[[], Any]] = [
        *[lambda: machine.append(rng.randint(1, 9))] * 3,
        *[lambda: machine.create(rng.randint(0, 30), rng.randint(1, 3), rng.choice((None, *PRIORITIES)))] * 10,
        *[lambda: machine.update(choices(), rng.choice(PRIORITIES))] * 2,
        lambda: machine.delete(choices()[:1]),
        *[lambda: machine.draw(rng.randint(1, 4))] * 2,
        *[lambda: machine.complete(choices()) if machine.keys else None] * (4 * late),
        lambda: machine.reload() if rng.random() < 0.1 else None,
    ]
    machine.append(9)
    guarded = [lambda call=call: call() if machine.items or call in calls[:13] else None for call in calls]
    run_at_random(rng, guarded, 300, (3, machine.all_items_are_the_twins), machine.teardown)
    assert sum(item.over for item in machine.items) > 40


TestRemovers = pytest.mark.filterwarnings("error")(RemoversMachine.TestCase)
