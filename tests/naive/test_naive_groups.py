"""Groups of episodes against their twin: episodes come, end, are cut off, given up, completed, pushed out."""

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
from naive.items_twin import NaiveRow, NaiveTable, verdict
from naive.program import run_at_random, saved_and_loaded
from relive import _core, errors

ROWS = {
    "observation": relive.ArraySpec((2,), "float32", kind="state"),
    "action": relive.ArraySpec((), "int64"),
    "prompt": relive.ArraySpec((), "int64", kind="episode"),
    "gain": relive.ArraySpec((), "float64"),
}
LATE = {"verdict": relive.ArraySpec((), "int64", late=True), "score": relive.ArraySpec((), "float64", late=True)}
NUM_LANES, MAX_LENGTH, SIZE, MAX_GROUPS = 2, 6, 3, 4
LONGEST = 11  # where that is no reason to refuse
MAX_WAIT_S, LATER_S = 1000.0, 400.0  # of a clock that only go_on moves on
DRAWS = 150  # of at most MAX_GROUPS items of masses at most 8 times each other: one that none finds is not there
EXPONENT = 0.1  # of groups' own weights, which are up to 500 times each other
REMOVERS = (relive.Fifo(), relive.Lifo(), relive.MinPriority(), relive.MaxPriority())
CHOICES = st.lists(st.integers(0, 10_000), min_size=1, max_size=12)
PRIORITIES = st.sampled_from((1.0, 2.0, 4.0, 8.0))


def worth(number: int) -> float:
    """The reward of a step, by which groups are weighed: many sums are 0, and many members of a group are equal."""
    return float((number * number + number // 3) % 3 - 1)


@dataclass
class NaiveGroup:
    """Episodes of one value, each a list of rows, in the order of their ends."""

    value: int
    members: list[list[NaiveRow]]
    key: int | None = None  # once it was drawn
    priority: float | None = None  # None: the largest that there is when it becomes an item
    uses: int = 0
    over: bool = False
    since_s: float = 0.0  # it opened
    came: int = 0  # it could be drawn first, and had its last priority, in the order of all that did
    changed: int = 0
    used_up: int = 0

    @property
    def rows(self) -> list[NaiveRow]:
        return [row for member in self.members for row in member]

    @property
    def is_item(self) -> bool:
        return len(self.members) == SIZE and all(row.filled for row in self.rows)

    @property
    def numbers(self) -> list[list[int]]:
        return [[row.number for row in member] for member in self.members]

    def weight(self, by: str) -> float:
        """Its own priority, from what its members brought in."""
        sums = [sum(worth(row.number) for row in member) for member in self.members]
        return max(0.0, float(np.float32(np.var(sums) if by == "variance" else np.mean(sums))))


class GroupsMachine(RuleBasedStateMachine):
    """A table of few steps with up to four groups on them, and the twin."""

    @initialize(
        max_times=st.sampled_from((None, None, 2)),
        capacity=st.sampled_from((48, 200)),
        late=st.booleans(),
        too_long=st.sampled_from(("refuse", "head", "tail")),
        remover=st.sampled_from(REMOVERS),
        weigh=st.sampled_from((None, None, "variance", "mean")),
    )
    def begin(
        self, max_times: int | None, capacity: int, late: bool, too_long: Any, remover: Any, weigh: Any = None
    ) -> None:
        late = late and isinstance(remover, relive.Fifo)  # else in which order groups come to life would be seen
        groups = relive.Episodes(
            MAX_LENGTH, group_by="prompt", group_size=SIZE, max_groups=MAX_GROUPS, too_long=too_long
        )
        self.part = {"refuse": slice(None), "head": slice(MAX_LENGTH), "tail": slice(-MAX_LENGTH, None)}[too_long]
        self.longest = MAX_LENGTH if too_long == "refuse" else LONGEST
        indexes = {
            "steps": relive.Index(),
            "groups": relive.Index(
                groups,
                relive.PromptGroups(weigh, "score" if late else "gain", EXPONENT) if weigh else relive.Prioritized(1.0),
                remover=remover,
                max_times_sampled=max_times,
                max_wait_s=MAX_WAIT_S,
            ),
            "probe": relive.Index(relive.Explicit({"row": relive.Window(1)}, max_items=1)),
        }
        spec = relive.StepSpec(ROWS | LATE if late else ROWS)
        self.table = relive.Table(spec, capacity, indexes, max_lanes=4, seed=7)
        self.max_times, self.remover, self.ticket = max_times, remover, 0
        self.weigh, self.exponent = weigh, EXPONENT if weigh else 1.0
        self.twin = NaiveTable(1, None, late)  # of rows alone
        self.groups: list[NaiveGroup] = []  # in the order in which they opened
        self.dropped = self.timed_out = 0
        self.ahead_s = 0.0
        self.largest = 1.0
        self.present: set[int] = set()
        self.num_lanes = self.num_steps = 0
        self.open()

    def open(self) -> None:
        self.writer = self.table.writer(NUM_LANES)
        self.episodes: list[list[NaiveRow]] = [[] for _ in range(NUM_LANES)]  # those that go on
        self.prompts = [0] * NUM_LANES
        self.numbers = [self.num_lanes + lane for lane in range(NUM_LANES)]
        self.num_lanes += NUM_LANES

    def teardown(self) -> None:
        _core.set_clock_ahead(0.0)
        if hasattr(self, "table"):
            self.table.close()

    # ---- steps -----------------------------------------------------------------------------------------------------

    @rule(
        lane=st.integers(0, NUM_LANES - 1),
        count=st.integers(1, LONGEST),
        prompt=st.integers(-1, 1),
        end=st.sampled_from(("step", "step", "later", "none")),
    )
    def append(self, lane: int, count: int, prompt: int, end: str) -> None:
        """Each step with its next state: one that is there is an item of the index of steps."""
        episode = self.episodes[lane]
        count = min(count, self.longest - len(episode))
        if not episode:
            self.prompts[lane] = prompt
        for position in range(count):
            number, step = self.num_steps, len(episode)
            self.num_steps += 1
            key = self.writer.append(
                observation=np.full((1, 2), step),
                action=[number],
                prompt=[self.prompts[lane]],
                gain=[worth(number)],
                next_observation=np.full((1, 2), step + 1),
                terminated=end == "step" and position == count - 1,
                lanes=[lane],
            )[0]
            self.twin.append(int(key), self.numbers[lane], 0, step)
            episode.append(self.twin.rows[int(key)])
            episode[-1].terminated = end == "step" and position == count - 1
            episode[-1].number = number  # that of the twin counts those that are not given up
        self.look()
        if episode and (end != "none" or len(episode) == self.longest):
            if end != "step" or not count:
                self.writer.end_episode(lanes=[lane])
                episode[-1].truncated = True
            self.join(lane)

    def join(self, lane: int) -> None:
        """The episode ended: a member of the group of its value that waits, or of one that opens now."""
        episode, self.episodes[lane] = self.episodes[lane], []
        episode = episode[self.part]
        if not all(self.is_there(row) for row in episode):
            return
        value = self.prompts[lane]
        waiting = [group for group in self.groups if not group.over and len(group.members) < SIZE]
        group = next((one for one in waiting if one.value == value), None)
        if group is not None:
            group.members.append(episode)
        else:
            self.groups.append(NaiveGroup(value, [episode], since_s=self.ahead_s))
            if len(self.groups) > MAX_GROUPS and isinstance(self.remover, relive.Fifo):
                self.end(self.groups[-1 - MAX_GROUPS])
        self.publish()
        held = [group for group in self.groups if not group.over]
        if len(held) > MAX_GROUPS:
            self.end(self.chosen(held))

    def chosen(self, held: list[NaiveGroup]) -> NaiveGroup:
        """The group that leaves.

        Used-up groups leave first, and then a group that still waits after MAX_GROUPS others came. Otherwise the
        remover chooses among the items. If there are no items, the group that has waited longest leaves.
        """
        live = self.live()
        waiting = [group for group in held if not group.is_item]
        used_up = [group for group in held if group not in waiting and group not in live]
        if used_up:
            return min(used_up, key=lambda one: one.used_up)
        if not live or (waiting and self.groups.index(waiting[0]) + 1 + MAX_GROUPS <= len(self.groups)):
            return waiting[0]
        if isinstance(self.remover, relive.Lifo):
            return max(live, key=lambda one: one.came)
        sign = -1.0 if isinstance(self.remover, relive.MaxPriority) else 1.0
        return min(live, key=lambda one: (sign * (one.priority or 0.0), one.changed))

    def take_ticket(self) -> int:
        self.ticket += 1
        return self.ticket

    @rule(lane=st.integers(0, NUM_LANES - 1))
    def abandon(self, lane: int) -> None:
        self.writer.abandon(lanes=[lane])
        for row in self.episodes[lane]:
            self.twin.lanes[row.lane].remove(row)
            del self.twin.rows[row.key]
            row.number = -1
        self.episodes[lane] = []
        self.look()

    @rule()
    def reopen(self) -> None:
        """An open episode is cut off, so it is no member of a group."""
        self.writer.close()
        self.open()
        self.look()

    @rule()
    def reload(self) -> None:
        """Groups wait on for their members; open episodes are cut off."""
        self.table = saved_and_loaded(self.table)
        self.open()
        self.look()

    @rule(choices=CHOICES, together=st.booleans())
    @precondition(lambda self: self.twin.has_late and self.twin.rows)
    def complete(self, choices: list[int], together: bool) -> None:
        waiting = [row for row in self.twin.rows.values() if not row.filled][-40:]
        if not waiting:
            return
        first = choices[0] % len(waiting)
        places = range(first, min(len(waiting), first + len(choices))) if together else choices
        rows = list({id(row): row for row in (waiting[place % len(waiting)] for place in places)}.values())
        there = [self.is_there(row) for row in rows]
        numbers = [row.number for row in rows]
        late = {"verdict": list(map(verdict, numbers)), "score": list(map(worth, numbers))}
        applied = self.table.complete([row.key for row in rows], **late)
        assert applied == there.count(True)
        self.twin.complete(rows)
        self.publish()
        self.look()

    @rule(really=st.integers(0, 9))
    def clear(self, really: int) -> None:
        if really == 0:
            self.table.clear()
            self.look()

    @rule()
    def go_on(self) -> None:
        """Time passes, and a call takes the lock: groups may have waited too long for members or late columns."""
        self.ahead_s += LATER_S
        _core.set_clock_ahead(self.ahead_s)
        self.table.check()
        for group in self.groups:
            if not group.over and not group.is_item and self.ahead_s - group.since_s > MAX_WAIT_S:
                self.end(group)
                self.timed_out += 1

    def look(self) -> None:
        """Which steps are there is for the table to say; what ends with them is not."""
        keys = list(self.twin.rows)
        there = self.table.gather(keys, columns=["action"], index="steps").present if keys else []
        self.present = {key for key, is_there in zip(keys, there, strict=True) if is_there}
        for group in self.groups:
            if not group.over and not all(self.is_there(row) for row in group.rows):
                self.end(group)

    def is_there(self, row: NaiveRow) -> bool:
        """Whether the row is there. If its late column is missing and no neighbour tells, an item made on it tells."""
        told = self.twin.is_there(row, self.present)
        if told is not None:
            return told
        try:
            self.writer.create_item({"row": (row.key, 1)}, index="probe")
        except errors.RowGone:
            return False
        return True

    def end(self, group: NaiveGroup) -> None:
        self.dropped += not group.over and len(group.members) < SIZE
        group.over = True

    # ---- groups ----------------------------------------------------------------------------------------------------

    def publish(self) -> None:
        for group in self.groups:
            if group.priority is None and group.is_item and not group.over:
                group.priority = group.weight(self.weigh) if self.weigh else self.largest
                group.came = group.changed = self.take_ticket()

    def live(self) -> list[NaiveGroup]:
        return [
            group
            for group in self.groups
            if group.is_item and not group.over and (self.max_times is None or group.uses < self.max_times)
        ]

    def drawable(self) -> list[NaiveGroup]:
        return [group for group in self.live() if group.priority]

    @rule(count=st.integers(1, 4))
    def draw(self, count: int) -> None:
        live = self.drawable()
        left = sum(self.max_times - group.uses for group in live) if self.max_times else count * bool(live)
        if left < count:
            with pytest.raises((errors.DeadlineExceeded, errors.WaitsForItself)):
                self.table.sample(count, timeout_s=0.0, index="groups")
            return
        self.compare(self.table.sample(count, timeout_s=0.0, index="groups"))

    def compare(self, batch: Any) -> None:
        """Every cell of a batch, and whose key it is."""
        assert batch.num_live_items == len(self.live())
        ends = self.table.gather(batch.item_keys, columns=["terminated", "truncated", "mask"], index="groups")
        by_first = {group.numbers[0][0]: group for group in self.drawable()}
        for position, key in enumerate(batch.item_keys.tolist()):
            group = by_first[int(batch["action"][position, 0, 0])]
            group.uses += 1
            if group.uses == self.max_times:
                group.used_up = self.take_ticket()
            assert group.key in (None, key)
            group.key = key
            for place, member in enumerate(group.members):
                shown, numbers = batch.mask[position, place], [row.number for row in member]
                assert shown.tolist() == [True] * len(member) + [False] * (len(shown) - len(member))
                assert batch["action"][position, place][shown].tolist() == numbers
                assert batch["observation"][position, place][shown][:, 1].tolist() == [row.step for row in member]
                assert batch["prompt"][position, place] == group.value
                for name in ("terminated", "truncated"):
                    assert ends[name][position, place][shown].tolist() == [getattr(row, name) for row in member]
                if self.twin.has_late:
                    assert batch["verdict"][position, place][shown].tolist() == [verdict(number) for number in numbers]

    def known(self, choices: list[int]) -> list[NaiveGroup]:
        """Some of those that were drawn at some time, the last ones."""
        drawn = [group for group in self.groups if group.key is not None][-6:]
        return list({id(one): one for choice in choices if drawn for one in [drawn[choice % len(drawn)]]}.values())

    @rule(choices=CHOICES, priority=PRIORITIES)
    def update(self, choices: list[int], priority: float) -> None:
        groups = self.known(choices)
        live = [group for group in groups if group in self.live()]
        keys = np.array([group.key for group in groups], np.int64)
        assert self.table.update_priorities(keys, [priority] * len(groups), index="groups") == len(live)
        self.largest = max([self.largest, *([priority] if groups else [])])
        for group in live:
            group.priority, group.changed = priority, self.take_ticket()

    @rule(choices=CHOICES)
    def delete(self, choices: list[int]) -> None:
        groups = self.known(choices)
        keys = np.array([group.key for group in groups], np.int64)
        assert self.table.delete(keys) == sum(not group.over for group in groups)
        for group in groups:
            group.over = True

    # ---- always ----------------------------------------------------------------------------------------------------

    @invariant()
    def all_groups_are_the_twins(self) -> None:
        if not hasattr(self, "table"):
            return
        self.table.check()
        live = self.live()
        stats = self.table.stats()
        assert stats.dropped_groups == self.dropped
        assert stats.indexes["groups"].timed_out == self.timed_out
        assert self.table.num_items("groups") == len(live)
        drawable = self.drawable()
        if drawable and self.max_times is None:
            batch = self.table.sample(DRAWS, index="groups")
            self.compare(batch)
            masses = {group.key: (group.priority or 0.0) ** self.exponent for group in drawable}
            shares = [masses[key] / sum(masses.values()) for key in batch.item_keys.tolist()]
            np.testing.assert_allclose(batch.probabilities, shares, rtol=1e-6)
            assert len(np.unique(batch.item_keys)) == len(drawable)


CHOICES = [
    (False, REMOVERS[0], None),
    (True, REMOVERS[0], None),
    *((False, remover, None) for remover in REMOVERS[1:]),
    (True, REMOVERS[0], "variance"),
    (True, REMOVERS[0], "mean"),
    (False, REMOVERS[2], "variance"),
    (False, REMOVERS[3], "mean"),
]
SIZES = [
    (48, None, "refuse"),
    (48, 2, "refuse"),
    (200, None, "refuse"),
    (200, 2, "refuse"),
    (90, 2, "head"),
    (90, None, "tail"),
]


@pytest.mark.forms(5)
@pytest.mark.parametrize(
    "capacity, max_times, too_long, late, remover, weigh",
    [
        pytest.param(*size, *choice, marks=[pytest.mark.thorough] * ((one + other) % 4 > 0))
        for one, size in enumerate(SIZES)
        for other, choice in enumerate(CHOICES)
    ],
)
def test_long_programmes_of_groups(
    max_times: int | None, capacity: int, late: bool, too_long: str, remover: Any, weigh: str | None
) -> None:
    """Each choice with half of the sizes; `make test-all` plays each with all of them."""
    rng = random.Random(capacity)
    machine = GroupsMachine()
    machine.begin(max_times, capacity, late, too_long, remover, weigh)

    def choices() -> list[int]:
        return [rng.randrange(10_000) for _ in range(rng.randint(1, 12))]

    calls: list[Callable[[], None]] = [
        *[
            lambda: machine.append(
                rng.randrange(2),
                rng.randint(1, LONGEST),
                rng.randint(-1, 1),
                rng.choice(("step", "step", "later", "none")),
            )
        ]
        * 12,
        *[lambda: machine.complete(choices(), rng.random() < 0.8)] * (8 * late),
        lambda: machine.draw(rng.randint(1, 4)),
        lambda: machine.update(choices(), rng.choice((1.0, 2.0, 4.0, 8.0))),
        lambda: machine.delete(choices()) if rng.random() < 0.2 else None,
        lambda: machine.reload() if rng.random() < 0.1 else None,
        lambda: machine.abandon(rng.randrange(2)),
        lambda: machine.clear(rng.randint(0, 9)),
        lambda: machine.reopen() if rng.random() < 0.5 else None,
        lambda: machine.go_on() if rng.random() < 0.3 else None,
    ]
    num_calls = 500 if too_long == "refuse" else 800  # longer episodes make fewer groups
    run_at_random(rng, calls, num_calls, (5, machine.all_groups_are_the_twins), machine.teardown)
    items = [group for group in machine.groups if group.is_item]
    assert len(items) > 10 and machine.dropped > 3


TestGroups = pytest.mark.filterwarnings("error")(GroupsMachine.TestCase)
