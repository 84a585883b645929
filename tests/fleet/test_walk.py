"""One random program on six tables: a plain one, one of a server, and tables over 1 and 3 shards, mapped and served.

Each step is made on the plain table first. The others must give the same answer, or the same error and fields.
Between the steps, links become slow or stall, and owners are stopped. Then the items of such a shard count as gone, and
every step that changes the table waits until all shards are back.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any, final

import numpy as np
import pytest
from processes.shm import needs_shared_memory

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from processes.tools import stop_process
from service.proxy import Proxy

import relive
from relive.errors import ReliveError
from relive.fleet import ShardOwner, attach, calls
from relive.fleet.calls import Calls
from relive.fleet.drawing import Drawing
from relive.service.client.exchange import Exchange

pytestmark = needs_shared_memory

SPEC = relive.StepSpec({"a": relive.ArraySpec((), "int64"), "s": relive.ArraySpec((), "float32", late=True)})
INDEX = relive.Index(sampler=relive.Prioritized(1.0, initial=1.0))
STEPS_OF_MUTANTS = 60
SOAK = bool(os.environ.get("RELIVE_SOAK"))
STEPS = 1500 if SOAK else 60
SEEDS = [1, 2, *(random.randrange(3, 2**31) for _ in range(8 if SOAK else 0))]
SLOW = 40_000.0  # bytes a second
ROW_BYTES = 12
Ids = list[int]


def config(name: str) -> relive.TableConfig:
    return relive.TableConfig(SPEC, 20_000, INDEX, relive.SharedMemory(name), timeout_s=60.0)


@final
class Subject:
    """A table under test: its shards, the keys of its rows by number, and the links and processes that can fail."""

    def __init__(self, name: str, table: Any, num_shards: int, links: list[Proxy], pids: list[int]) -> None:
        self.name = name
        self.table = table
        self.num_shards = num_shards
        self.links = links
        self.pids = pids
        self.keys: dict[int, int] = {}
        self.numbers: dict[int, int] = {}
        self.away: int | None = None  # the shard that gives no answer now
        self.brings_back: Callable[[], None] = lambda: None
        self.num_sampled = 0

    def write(self, ids: Ids) -> None:
        """A step for each number, in the shard of the number."""
        for shard in range(self.num_shards):
            mine = [one for one in ids if one % self.num_shards == shard]
            if mine:
                more = {"shard": shard} if self.num_shards > 1 else {}
                with self.table.writer(**more) as writer:
                    keys = writer.extend(a=np.array(mine), truncated=True).tolist()
                self.keys.update(zip(mine, keys, strict=True))
                self.numbers.update(zip(keys, mine, strict=True))

    def of(self, ids: Ids) -> np.ndarray:
        """The keys of these numbers; a number below 0 is a key of no table."""
        return np.array([self.keys[one] if one >= 0 else one for one in ids], np.int64)

    def is_here(self, number: int) -> bool:
        """Whether the row's shard answers."""
        return number % self.num_shards != self.away

    def told(self, call: Callable[[], Any]) -> Any:
        """The answer, or the error by its fields, with numbers in the place of keys."""
        try:
            return call()
        except ReliveError as error:
            fields = {name: value for name, value in vars(error).items() if name not in ("waited_s", "keys")}
            if "key" in fields:
                fields["key"] = self.numbers.get(fields["key"], fields["key"])
            return type(error).__name__, {name: repr(value) for name, value in fields.items()}  # nan equals nan

    # ---- faults ----------------------------------------------------------------------------------------------------

    def becomes_slow(self) -> None:
        for link in self.links:
            link.bytes_a_second = SLOW

    def loses(self, shard: int, stops: bool) -> None:
        """A shard gives no answer any more: its owner is stopped, or its link stalls."""
        self.away = shard
        if stops:
            stop_process(self.pids[shard])
            self.brings_back = lambda: os.kill(self.pids[shard], signal.SIGCONT)
        else:
            self.links[shard].stall(True)
            self.brings_back = lambda: self.links[shard].stall(False)

    def comes_back(self) -> None:
        """All links are fast, and all owners go on; returns when the table uses every shard."""
        self.brings_back()
        self.brings_back, self.away = lambda: None, None
        for link in self.links:
            link.bytes_a_second = None
        if self.num_shards > 1 or self.name.startswith("attach"):
            while any(shard.state != "live" for shard in self.table._fleet.shards):
                time.sleep(0.01)


@pytest.fixture
def subjects(start: Any, shm_name: Any) -> Iterator[list[Subject]]:
    with contextlib.ExitStack() as stack:
        made = [Subject("plain", stack.enter_context(relive.Table(SPEC, 20_000, INDEX)), 1, [], [])]

        def served(count: int) -> tuple[list[Proxy], list[str], list[int]]:
            links, places, pids = [], [], []
            for number in range(count):
                owners, name = start(), shm_name()
                address = owners.own(number, config(name))
                links.append(stack.enter_context(Proxy(int(address.rsplit(":", 1)[1].split("/")[0]))))
                places.append(f"{links[-1].address}/{name}")
                pids.append(owners.process.pid)
            return links, places, pids

        links, places, pids = served(1)
        made.append(Subject("connect", stack.enter_context(relive.connect(places[0], 60.0)), 1, links, pids))
        for count in (1, 3):
            names = [shm_name() for _ in range(count)]
            for number, name in enumerate(names):
                stack.enter_context(ShardOwner(number, config(name)))
            made.append(Subject(f"attach {count} mapped", stack.enter_context(attach(names)), count, [], []))
            links, places, pids = served(count)
            table = stack.enter_context(attach(places, path="service", timeout_s=60.0))
            made.append(Subject(f"attach {count} served", table, count, links, pids))
        try:
            yield made
        finally:
            for one in made:
                one.brings_back()


@final
class Walk:
    """The random program, and what the plain table says of each step."""

    def __init__(self, subjects: list[Subject], seed: int) -> None:
        self.plain, *self.others = subjects
        self.rng = random.Random(seed)
        self.num_rows = 0
        self.priorities: dict[int, float] = {}  # of the items that can be drawn
        self.given: dict[int, float] = {}

    def some(self, most: int) -> Ids:
        """Numbers of rows, without repeats."""
        return self.rng.sample(range(self.num_rows), min(self.num_rows, self.rng.randint(1, most)))

    def same(self, what: str, call: Callable[[Subject], Any]) -> Any:
        """Makes a step everywhere; returns the plain table's answer."""
        expected = self.plain.told(lambda: call(self.plain))
        for one in self.others:
            got = one.told(lambda one=one: call(one))
            assert got == expected, f"{what}: {one.name} gives {got}, the plain table {expected}"
        return expected

    # ---- steps that change -----------------------------------------------------------------------------------------

    def write(self) -> None:
        ids = list(range(self.num_rows, self.num_rows + self.rng.randint(3, 30)))
        self.num_rows += len(ids)
        for one in (self.plain, *self.others):
            one.write(ids)

    def complete(self) -> None:
        """Of rows of which some may be complete, deleted or named twice, or belong to no table."""
        ids = self.some(20)
        if self.rng.random() < 0.2:
            ids.insert(self.rng.randrange(len(ids) + 1), self.rng.choice(ids))
        if self.rng.random() < 0.1:
            ids.insert(self.rng.randrange(len(ids) + 1), -1)
        if self.rng.random() < 0.5:
            ids = [one for one in ids if one not in self.priorities]
        before = self.listed(self.plain)
        self.same(f"complete {ids}", lambda one: one.table.complete(one.of(ids), s=np.array(ids, "f4")))
        for number in self.listed(self.plain) - before:
            self.priorities[number] = self.given.get(number, 1.0)

    def update(self) -> None:
        ids = self.some(20)
        given = np.array([self.rng.uniform(0.1, 5.0) for _ in ids])
        fault = self.rng.random()
        if fault < 0.1:
            given[self.rng.randrange(len(ids))] = self.rng.choice([math.nan, -1.0, math.inf])
        elif fault < 0.2:
            ids[self.rng.randrange(len(ids))] = -1
        elif fault < 0.3:
            given = given[:-1]
        told = self.same(f"update {ids}", lambda one: one.table.update_priorities(one.of(ids), given))
        if isinstance(told, int):
            for number, priority in zip(ids, given.astype(np.float32).tolist(), strict=True):
                self.given[number] = priority  # of a row that is not complete yet: for later
                if number in self.priorities:
                    self.priorities[number] = priority

    def delete(self) -> None:
        ids = self.some(4)
        self.same(f"delete {ids}", lambda one: one.table.delete(one.of(ids)))
        for number in ids:
            self.priorities.pop(number, None)

    def clear(self) -> None:
        self.same("clear", lambda one: one.table.clear())
        self.priorities.clear()

    def version(self) -> None:
        version = self.rng.randrange(1000)
        self.same("set_policy_version", lambda one: one.table.set_policy_version(version))
        self.same("policy_version", lambda one: one.table.stats().policy_version)

    # ---- steps that look -------------------------------------------------------------------------------------------

    def listed(self, one: Subject) -> set[int]:
        return {one.numbers[key] for page in one.table.keys() for key in page.tolist()}

    def gather(self) -> None:
        self.same_rows(self.some(200))

    def gather_many(self) -> None:
        """Rows that take longer over a slow link than a call waits in silence."""
        self.same_rows(self.rng.choices(range(self.num_rows), k=int(1.6 * SLOW / ROW_BYTES)))

    def same_rows(self, ids: Ids) -> None:
        told = self.plain.table.gather(self.plain.of(ids))
        for one in self.others:
            got, here = one.table.gather(one.of(ids)), np.array([one.is_here(number) for number in ids])
            expected = told.present & here
            assert (got.present == expected).all(), f"gather {ids[:200]}: {one.name} without {one.away}"
            for column in ("a", "s"):
                assert (got[column] == np.where(expected, told[column], 0)).all(), f"{column} of {one.name}"

    def items(self) -> None:
        listed = self.listed(self.plain)
        assert listed == set(self.priorities)
        for one in self.others:
            assert self.listed(one) == {number for number in listed if one.is_here(number)}, one.name
            assert one.table.num_items() == len([number for number in listed if one.is_here(number)]), one.name

    def sample(self) -> None:
        for one in self.others:
            known = {number: mass for number, mass in self.priorities.items() if one.is_here(number)}
            if not known:
                continue
            count = self.rng.randint(1, 64)
            batch = one.table.sample(count)
            one.num_sampled += count
            numbers = [one.numbers[key] for key in batch.item_keys.tolist()]
            assert batch["a"].tolist() == numbers and set(numbers) <= set(known), one.name
            expected = [known[number] / sum(known.values()) for number in numbers]
            assert np.allclose(batch.probabilities, expected, rtol=1e-5), one.name
            assert batch.num_live_items == len(known)

    def claim(self) -> None:
        ids = self.some(30)
        for one in self.others:
            own = relive.Draw.of(one.of(ids), np.full(len(ids), 0.1))
            if not any(one.is_here(number) for number in self.priorities):
                continue
            taken = [one.numbers[key] for key in one.table.claim(own).item_keys.tolist()]
            one.num_sampled += len(taken)
            assert taken == [n for n in ids if n in self.priorities and one.is_here(n)], one.name

    # ---- the program -----------------------------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        changes = [self.write, self.complete, self.complete, self.update, self.delete, self.version]
        looks = [self.gather, self.items, self.sample, self.sample, self.claim]
        self.write()
        for _ in range(steps):
            if self.rng.random() < 0.1:
                self.fault(looks)
            if self.rng.random() < 0.02:
                self.clear()
            step = self.rng.choice(changes + looks)
            step()
        for one in (self.plain, *self.others):
            one.table.check()
            told = one.table.stats().indexes["default"]
            assert (told.in_flight, told.sampled) == (0, one.num_sampled), one.name

    def fault(self, looks: list[Callable[[], None]]) -> None:
        served = [one for one in self.others if one.links]
        if self.rng.random() < 0.5:
            for one in served:
                one.becomes_slow()
            looks = [*looks, self.gather_many]
        else:
            one = next(one for one in served if one.num_shards == 3)
            one.loses(self.rng.randrange(3), self.rng.random() < 0.5)
        for _ in range(3):
            self.rng.choice(looks)()
        for one in served:
            one.comes_back()


@pytest.mark.forms(1)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_program_on_every_kind_of_table(subjects: list[Subject], seed: int) -> None:
    Walk(subjects, seed).run(STEPS)


# ---- mutants -------------------------------------------------------------------------------------------------------


def _completions_in_part(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Calls, "_check_unfilled", lambda self, keys: None)


def _positions_of_parts(patch: pytest.MonkeyPatch) -> None:
    _completions_in_part(patch)
    patch.setattr(calls, "_placed", lambda error, mine: error)


def _a_limit_of_the_whole_answer(patch: pytest.MonkeyPatch) -> None:
    """Silence counts from the question, whatever arrives."""
    silent_from = Exchange.silent_from
    patch.setattr(Exchange, "silent_from", lambda self, heard_at: silent_from(self, 0.0))


def _draws_that_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Drawing, "commit", lambda self, drawn: None)


MUTANTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "completions in part": _completions_in_part,
    "positions of a shard's part": _positions_of_parts,
    "a limit of the whole answer": _a_limit_of_the_whole_answer,
    "draws that are not counted": _draws_that_are_not_counted,
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", MUTANTS)
def test_the_walk_finds_each_rule_that_is_taken_away(
    subjects: list[Subject], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    MUTANTS[name](monkeypatch)
    with pytest.raises((AssertionError, ReliveError)):
        Walk(subjects, 2).run(STEPS_OF_MUTANTS)
