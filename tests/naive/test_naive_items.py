"""Explicit items against their twin: steps and items come, are drawn, revalued, deleted, pushed out, in any order."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import relive
from naive.items_twin import WINDOWS, NaiveItem, NaiveRow, NaiveTable, cells, verdict
from naive.program import run_at_random, saved_and_loaded
from relive import _core, errors

ROWS = {"observation": relive.ArraySpec((3,), "float32", kind="state"), "action": relive.ArraySpec((), "int64")}
LATE = {"verdict": relive.ArraySpec((), "int64", late=True)}
NUM_LANES, MAX_ITEMS = 2, 9
MAX_WAIT_S, STEPS_S = 1000.0, (300.0, 700.0)  # of a clock that only let_time_pass moves on
NAMES = sorted(WINDOWS)
HOW = ("terminated", "truncated", "later")  # an episode ends: by a step, or after it
PER_ROW = ("observation", "action", "mask", "episode_step", "num_steps", "terminated", "truncated")
COLUMNS = ["score"] + [f"{name}/{column}" for name in WINDOWS for column in PER_ROW]
CHOICES = st.lists(st.integers(0, 10_000), min_size=1, max_size=4)
PRIORITIES = st.one_of(st.just(0.0), st.floats(0.125, 64.0, width=32))


class ItemsMachine(RuleBasedStateMachine):
    """A table of few steps with up to 9 items on them, and the twin."""

    @initialize(
        max_times=st.sampled_from((None, None, 1, 3)),
        capacity=st.sampled_from((40, 60, 150)),
        late=st.booleans(),
        waits=st.booleans(),
    )
    def begin(self, max_times: int | None, capacity: int, late: bool, waits: bool) -> None:
        windows = {name: relive.Window(length, stride=stride) for name, (length, stride) in WINDOWS.items()}
        items = relive.Explicit(windows, {"score": relive.ArraySpec((), "float32")}, MAX_ITEMS)
        sampler = relive.Prioritized(1.0)
        self.max_wait_s = MAX_WAIT_S if waits and late else None
        index = {
            "steps": relive.Index(),
            "items": relive.Index(items, sampler, max_times_sampled=max_times, max_wait_s=self.max_wait_s),
        }
        self.table = relive.Table(relive.StepSpec(ROWS | LATE if late else ROWS), capacity, index, max_lanes=4, seed=5)
        self.twin = NaiveTable(MAX_ITEMS, max_times, late)
        self.ahead_s, self.timed_out = 0.0, 0
        self.columns = COLUMNS + [f"{name}/verdict" for name in WINDOWS] * late
        self.present: set[int] = set()
        self.num_lanes = 0
        self.open()

    def open(self) -> None:
        self.writer = self.table.writer(NUM_LANES)
        self.places = [(self.num_lanes + lane, 0, 0) for lane in range(NUM_LANES)]  # of the rows to come
        self.num_lanes += NUM_LANES

    def teardown(self) -> None:
        _core.set_clock_ahead(0.0)
        if hasattr(self, "table"):
            self.table.close()

    # ---- time ------------------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from(STEPS_S))
    def let_time_pass(self, seconds: float) -> None:
        """Items that have waited too long for late columns end when a call next takes the lock."""
        self.ahead_s += seconds
        _core.set_clock_ahead(self.ahead_s)
        self.table.check()
        for item in self.twin.items:
            is_due = self.max_wait_s is not None and self.ahead_s - item.since_s >= self.max_wait_s
            if is_due and item.is_waiting and not item.over:
                item.over = True
                self.timed_out += 1

    # ---- steps -----------------------------------------------------------------------------------------------------

    @rule(
        count=st.integers(1, 12),
        which=st.integers(0, 2),
        ends=st.integers(0, 5),
        how=st.sampled_from(HOW),
    )
    def append(self, count: int, which: int, ends: int, how: str) -> None:
        """Each with its next state: a row that is there is a step of the other index."""
        lanes = [0, 1] if which == 2 else [which]
        for position in range(count):
            is_last = ends == 0 and position == count - 1
            places = [self.places[lane] for lane in lanes]
            keys = self.writer.append(
                observation=np.stack([cells(*place) for place in places]),
                action=np.arange(len(lanes)) + len(self.twin.rows),
                next_observation=np.stack([cells(lane, episode, t + 1) for lane, episode, t in places]),
                terminated=is_last and how == "terminated",
                truncated=is_last and how == "truncated",
                lanes=lanes,
            )
            if is_last and how == "later":
                self.writer.end_episode(lanes=lanes)
            for lane, key, (name, episode, t) in zip(lanes, keys, places, strict=True):
                self.twin.append(int(key), name, episode, t)
                self.twin.rows[int(key)].terminated = is_last and how == "terminated"
                self.twin.rows[int(key)].truncated = is_last and how != "terminated"
                self.places[lane] = (name, episode + 1, 0) if is_last else (name, episode, t + 1)
        self.look()

    @rule()
    def reopen(self) -> None:
        self.writer.close()
        for lane, _, step in self.places:
            if step > 0:
                self.twin.lanes[lane][-1].truncated = True
        self.open()

    @rule()
    def reload(self) -> None:
        """The open lanes end, as in reopen()."""
        self.table = saved_and_loaded(self.table)
        for lane, _, step in self.places:
            if step > 0:
                self.twin.lanes[lane][-1].truncated = True
        self.open()

    @rule(choices=CHOICES)
    @precondition(lambda self: self.twin.rows)
    def delete_steps(self, choices: list[int]) -> None:
        """Their items stay."""
        rows = list(self.twin.rows.values())
        chosen = {rows[-1 - choice % min(len(rows), 40)].key for choice in choices}
        chosen = {key for key in chosen if self.twin.rows[key].filled}  # of others nothing tells whether they are there
        assert self.table.delete(list(chosen)) == len(chosen & self.present)
        for key in chosen & self.present:
            self.twin.rows[key].deleted = True
        self.look()

    @rule(choices=st.lists(st.integers(0, 10_000), min_size=1, max_size=12), together=st.booleans())
    @precondition(lambda self: self.twin.has_late and self.twin.rows)
    def complete(self, choices: list[int], together: bool) -> None:
        """Late columns of some steps: neighbours, or any."""
        waiting = [row for row in self.twin.rows.values() if not row.filled][-40:]
        if not waiting:
            return
        first = choices[0] % len(waiting)
        places = range(first, min(len(waiting), first + len(choices))) if together else choices
        rows = list({id(row): row for row in (waiting[place % len(waiting)] for place in places)}.values())
        there = [self.twin.is_there(row, self.present) for row in rows]
        applied = self.table.complete([row.key for row in rows], verdict=[verdict(row.number) for row in rows])
        assert there.count(True) <= applied <= len(rows) - there.count(False)
        self.twin.complete(rows)
        self.look()

    @rule(really=st.integers(0, 9))
    def clear(self, really: int) -> None:
        if really == 0:
            self.table.clear()
            for item in self.twin.items:
                item.over = True
            self.look()

    def look(self) -> None:
        """Which steps are there is for the table to say; what ends with them is not."""
        keys = list(self.twin.rows)
        there = self.table.gather(keys, columns=["action"], index="steps").present if keys else []
        self.present = {key for key, is_there in zip(keys, there, strict=True) if is_there}
        for item in self.twin.items:
            item.over |= any(self.twin.is_there(row, self.present) is False for row in item.spanned)

    # ---- items -----------------------------------------------------------------------------------------------------

    @rule(
        wanted=st.dictionaries(
            st.sampled_from(NAMES), st.tuples(st.integers(0, 10_000), st.integers(1, 4)), min_size=1
        ),
        words=st.sampled_from(("forward", "backward", "named")),
        priority=st.one_of(st.none(), PRIORITIES),
        score=st.floats(-8, 8, width=16),
    )
    @precondition(lambda self: self.twin.rows)
    def create(self, wanted: Any, words: str, priority: float | None, score: float) -> None:
        rows: dict[str, list[NaiveRow]] = {}
        windows: dict[str, Any] = {}
        expected: set[type[Exception]] = set()
        for name, (choice, count) in wanted.items():
            recent = list(self.twin.rows.values())[-70 if choice % 6 == 0 else -25 :]
            first, num_rows = recent[-1 - choice % len(recent)], min(count, WINDOWS[name][0])
            spanned = self.twin.spanned(first, name, num_rows)
            while spanned is None and num_rows > 1 and choice % 5:  # most of them fit
                num_rows -= 1
                spanned = self.twin.spanned(first, name, num_rows)
            windows[name] = (first.key, num_rows)
            if spanned is None:
                expected |= {errors.RowGone, errors.RowsApart}
                continue
            there = [self.twin.is_there(row, self.present) for row in spanned]
            if not all(there):
                expected |= {errors.RowGone} if False in there else {errors.RowGone, type(None)}
            rows[name] = spanned
            if words == "backward":
                windows[name] = (spanned[-1].key, -num_rows)
            elif words == "named":
                windows[name] = [row.key for row in spanned[:: WINDOWS[name][1]]]
        more = {} if priority is None else {"priority": priority}
        try:
            key = self.writer.create_item(windows, score=score, **more)
        except (errors.RowGone, errors.RowsApart) as problem:
            assert type(problem) in expected, str(problem)
            return
        assert not expected or (type(None) in expected and len(rows) == len(wanted))
        self.twin.create(key, rows, score, priority)
        self.twin.items[-1].since_s = self.ahead_s

    def chosen(self, choices: list[int]) -> list[NaiveItem]:
        items = self.twin.items
        return list({id(one): one for choice in choices for one in [items[-1 - choice % min(len(items), 14)]]}.values())

    @rule(choices=CHOICES, priority=PRIORITIES)
    @precondition(lambda self: self.twin.items)
    def update(self, choices: list[int], priority: float) -> None:
        items = self.chosen(choices)
        self.settle()
        least, most = self.number_there(items)
        applied = self.table.update_priorities([item.key for item in items], [priority] * len(items), index="items")
        self.twin.largest = max(self.twin.largest, priority)
        for item in items:
            item.priority = priority
        assert least <= applied <= most

    def number_there(self, items: list[NaiveItem], with_used_up: bool = False) -> tuple[int, int]:
        """How many of them are there, waiting ones too: at least and at most, where nothing tells."""
        waiting = [item for item in items if item.is_waiting and not item.over]
        there = [[self.twin.is_there(row, self.present) for row in item.spanned] for item in waiting]
        least = sum(all(rows) for rows in there)
        most = sum(False not in rows for rows in there)
        others = [item for item in items if not item.is_waiting]
        live = sum(not item.over if with_used_up else self.twin.is_live(item) for item in others)
        return live + least, live + most

    @rule(choices=CHOICES)
    @precondition(lambda self: self.twin.items)
    def delete(self, choices: list[int]) -> None:
        self.settle()
        items = self.chosen(choices)
        least, most = self.number_there(items, with_used_up=True)
        deleted = self.table.delete([item.key for item in items])
        assert least <= deleted <= most
        for item in items:
            item.over = True

    @rule(count=st.integers(1, 6), gathers=st.booleans())
    def draw(self, count: int, gathers: bool) -> None:
        self.settle()
        masses = {item.key: item.priority for item in self.twin.live() if item.priority}
        call: Any = self.table.sample if gathers else self.table.draw
        try:
            drawn = call(count, timeout_s=0.0, index="items")
        except errors.DeadlineExceeded:
            times = self.twin.max_times
            left = sum(times - item.uses for item in self.twin.live() if item.key in masses) if times else 0
            assert not masses or left < count
            return
        assert drawn.num_live_items == len(self.twin.live())
        assert set(drawn.item_keys.tolist()) <= set(masses)
        by_key = {item.key: item for item in self.twin.items}
        if self.twin.max_times is None:
            total = sum(masses.values())
            shares = [masses[key] / total for key in drawn.item_keys.tolist()]
            np.testing.assert_allclose(drawn.probabilities, shares, rtol=1e-6)
        for position, key in enumerate(drawn.item_keys.tolist()):
            by_key[key].uses += 1
            if gathers:
                self.compare(drawn, position, by_key[key])
        if self.twin.max_times is not None:
            assert max(item.uses for item in self.twin.items) <= self.twin.max_times

    def settle(self) -> None:
        """If the twin cannot know whether the rows of an item are there, the table decides whether the item is over."""
        for item in self.twin.items:
            if not (item.over or item.is_waiting) and any(
                self.twin.is_there(row, self.present) is None for row in item.spanned
            ):
                item.over = not self.table.gather([item.key], columns=["score"], index="items").present[0]

    def compare(self, batch: Any, position: int, item: NaiveItem) -> None:
        for name, value in self.twin.expected(item).items():
            if name in batch.flat():
                np.testing.assert_array_equal(batch[name][position], value, f"{name} of {item}")

    # ---- always ----------------------------------------------------------------------------------------------------

    @invariant()
    def all_items_are_the_twins(self) -> None:
        if not hasattr(self, "table"):
            return
        self.table.check()
        self.settle()
        assert self.table.num_items("items") == len(self.twin.live())
        # Some items had gone with a row before, and the twin could not know.
        assert self.table.stats().indexes["items"].timed_out <= self.timed_out
        if not self.twin.items:
            return
        batch = self.table.gather([item.key for item in self.twin.items], columns=self.columns, index="items")
        for position, item in enumerate(self.twin.items):
            assert batch.present[position] == (not item.over and not item.is_waiting), f"{item}"
            if batch.present[position]:
                self.compare(batch, position, item)


@pytest.mark.forms(5)
@pytest.mark.parametrize(("late", "waits"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("max_times", [None, 3])
@pytest.mark.parametrize("capacity", [40, 150])
def test_long_programmes_of_items(max_times: int | None, capacity: int, late: bool, waits: bool) -> None:
    rng = random.Random(capacity)
    machine = ItemsMachine()
    machine.begin(max_times, capacity, late, waits)

    def choices() -> list[int]:
        return [rng.randrange(10_000) for _ in range(rng.randint(1, 4))]

    def create() -> None:
        names = rng.sample(NAMES, rng.randint(1, len(NAMES)))
        wanted = {name: (rng.randrange(10_000), rng.randint(1, 4)) for name in names}
        machine.create(wanted, rng.choice(("forward", "backward", "named")), rng.choice((None, 0.0, 2.5)), 0.5)

    calls: list[Callable[[], None]] = [
        *[lambda: machine.append(rng.randint(1, 12), rng.randint(0, 2), rng.randint(0, 5), rng.choice(HOW))] * 4,
        *[create] * 9,
        lambda: machine.draw(rng.randint(1, 6), rng.random() < 0.5),
        lambda: machine.update(choices(), rng.choice((0.0, 0.5, 8.0))),
        lambda: machine.delete(choices()),
        lambda: machine.delete_steps(choices()),
        lambda: machine.clear(rng.randint(0, 9)),
        machine.reopen,
        lambda: machine.reload() if rng.random() < 0.2 else None,
        *[lambda: machine.let_time_pass(rng.choice(STEPS_S))] * (4 * waits),
        *[lambda: machine.complete(choices() * 3, rng.random() < 0.6)] * (6 * late),
    ]
    machine.append(12, 2, 1, "later")
    create()
    run_at_random(rng, calls, 400 + 100 * waits, (10, machine.all_items_are_the_twins), machine.teardown)
    ended = [item for item in machine.twin.items if item.over]
    assert len(machine.twin.items) > 100 and len(ended) > 50
    assert machine.timed_out > 3 or not waits


TestItems = pytest.mark.filterwarnings("error")(ItemsMachine.TestCase)
