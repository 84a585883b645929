"""Priorities, removals and use counts against a dict: every draw's probabilities are what the dict says."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relive


@dataclass
class NaivePriorities:
    """Key -> priority of every live item; what is pending waits beside it."""

    initial: Any
    exponent: float = 1.0
    live: dict[int, float] = field(default_factory=dict)
    waiting: set[int] = field(default_factory=set)  # published but for their priority
    largest: float = 1.0

    def publish(self, key: int, priority: float | None) -> None:
        if priority is None and self.initial == "given":
            self.waiting.add(key)
            return
        if priority is not None:
            self.largest = max(self.largest, priority)
        default = self.largest if self.initial == "max" else self.initial
        self.live[key] = default if priority is None else priority

    def update(self, keys: list[int], priorities: list[float]) -> set[int]:
        """Returns the keys that were there, each once. A priority that came too late still counts as given."""
        there = set()
        self.largest = max(self.largest, *priorities)
        for key, priority in zip(keys, priorities, strict=True):
            if key in self.waiting:
                self.waiting.remove(key)
                self.live[key] = priority
            if key not in self.live:
                continue
            self.live[key] = priority
            there.add(key)
        return there

    def delete(self, keys: list[int]) -> int:
        there = {key for key in keys if key in self.live or key in self.waiting}
        for key in there:
            self.live.pop(key, None)
            self.waiting.discard(key)
        return len(there)

    def probabilities(self) -> dict[int, float]:
        masses = {k: (p**self.exponent if p > 0 or self.exponent == 0 else 0.0) for k, p in self.live.items()}
        total = sum(masses.values())
        return {key: mass / total for key, mass in masses.items() if mass > 0}


def make_table(sampler: Any, capacity: int = 4000) -> relive.Table:
    spec = relive.StepSpec({"observation": relive.ArraySpec((), "int64", kind="state")})
    return relive.Table(spec, capacity, relive.Index(sampler=sampler), max_lanes=2, seed=3)


def compare(table: relive.Table, twin: NaivePriorities, keys: list[int]) -> None:
    table.check()
    if keys:
        present = table.gather(np.asarray(keys, np.int64)).present
        assert {key for key, there in zip(keys, present, strict=True) if there} == set(twin.live)
    assert table.num_items() == len(twin.live)
    expected = twin.probabilities()
    if not expected:
        with pytest.raises(relive.errors.DeadlineExceeded):
            table.draw(8, timeout_s=0.0)
        return
    draw = table.draw(200, timeout_s=0.0)
    assert draw.num_live_items == len(twin.live)
    drawn = draw.item_keys.tolist()
    assert set(drawn) <= set(expected)
    np.testing.assert_allclose(draw.probabilities, [expected[key] for key in drawn], rtol=3e-6)
    for key, probability in expected.items():
        if probability > 2 / 200:
            assert key in drawn, "strata are narrower than this item: some draw must fall on it"


PRIORITIES = st.one_of(st.just(0.0), st.floats(2.0**-20, 2.0**20, width=32))


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, Any]:
    kind = draw(st.sampled_from(("append", "append", "append", "update", "update", "delete", "raise")))
    if kind == "append":
        return kind, draw(st.one_of(st.none(), PRIORITIES))
    if kind == "raise":
        return kind, draw(st.sampled_from((0.0, 0.1, 0.3, 0.6, 1.0, 1.5)))
    chosen = st.lists(st.integers(0, 10_000), min_size=1, max_size=12)
    if kind == "delete":
        return kind, draw(chosen)
    positions = draw(chosen)
    return kind, (positions, draw(st.lists(PRIORITIES, min_size=len(positions), max_size=len(positions))))


def run(twin: NaivePriorities, sampler: Any, programme: list[tuple[str, Any]], check_every: int) -> None:
    keys: list[int] = []
    with make_table(sampler) as table, table.writer() as writer:
        for number, (kind, what) in enumerate(programme):
            if kind == "append":
                t = len(keys)
                more = {} if what is None else {"priority": what}
                keys.append(int(writer.append(observation=t, next_observation=t + 1, **more)))
                twin.publish(keys[-1], None if what is None else float(np.float32(what)))
            elif kind == "raise":
                is_raised = isinstance(sampler, relive.Prioritized) and (twin.exponent > 0.0 or what == 0.0)
                if is_raised:
                    table.set_priority_exponent(what)
                    twin.exponent = what
                else:  # ranks have none that changes; from 0 nothing is kept to raise
                    with pytest.raises(relive.errors.InvalidConfig):
                        table.set_priority_exponent(what)
            elif keys and kind == "update":
                chosen = [keys[position % len(keys)] for position in what[0]]
                there = twin.update(chosen, [float(np.float32(p)) for p in what[1]])
                applied = table.update_priorities(chosen, what[1])
                assert len(there) <= applied <= sum(key in there for key in chosen)
            elif keys:
                chosen = [keys[position % len(keys)] for position in what]
                assert table.delete(chosen) == twin.delete(chosen)
            if number % check_every == check_every - 1:
                compare(table, twin, keys)
        compare(table, twin, keys)


@given(
    exponent=st.sampled_from((1.0, 0.5, 0.6, 0.0)),
    initial=st.sampled_from(("max", "given", 2.0, 0.0)),
    programme=st.lists(calls(), min_size=1, max_size=40),
)
def test_probabilities_are_the_twins(exponent: float, initial: Any, programme: list[tuple[str, Any]]) -> None:
    run(NaivePriorities(initial, exponent), relive.Prioritized(exponent, initial), programme, check_every=10)


def long_programme() -> list[tuple[str, Any]]:
    rng = random.Random(4)

    def priority() -> float:
        return rng.choice((0.0, 10.0 ** rng.uniform(-6, 6), 10.0 ** rng.uniform(-6, 6)))

    programme: list[tuple[str, Any]] = []
    for _ in range(3000):
        kind = rng.choice(("append", "append", "append", "update", "delete"))
        positions = [rng.randrange(10_000) for _ in range(rng.randint(1, 40 if kind == "update" else 2))]
        what = {
            "append": rng.choice((None, priority())),
            "update": (positions, [priority() for _ in positions]),
            "delete": positions,
        }
        programme.append((kind, what[kind]))
    return programme


@pytest.mark.parametrize("initial", ["max", "given", 0.5])
def test_long_programmes(initial: Any) -> None:
    run(NaivePriorities(initial, 0.6), relive.Prioritized(0.6, initial), long_programme(), check_every=300)


@given(st.integers(1, 4), st.lists(st.integers(1, 9), min_size=1, max_size=25), st.booleans())
def test_use_counts_are_exact(most: int, batch_sizes: list[int], gathers: bool) -> None:
    """Every item max_times_sampled times at most; what a draw cannot complete it gives back."""
    spec = relive.StepSpec({"observation": relive.ArraySpec((), "int64", kind="state")})
    with relive.Table(spec, 100, relive.Index(max_times_sampled=most), max_lanes=2) as table:
        with table.writer() as writer:
            keys = writer.extend(observation=np.arange(12), next_observation=np.arange(1, 13))
        left = {int(key): most for key in keys}
        for size in batch_sizes:
            try:
                call = table.sample if gathers else table.draw
                drawn = call(size, timeout_s=0.0).item_keys.tolist()
            except relive.errors.DeadlineExceeded:
                assert sum(left.values()) < size
                continue
            assert len(drawn) == size
            for key in drawn:
                left[key] -= 1
            assert min(left.values()) >= 0
            present = table.gather(keys).present.tolist()
            assert all(there for key, there in zip(keys, present, strict=True) if left[int(key)] > 0)
            assert table.num_items() == sum(value > 0 for value in left.values())
        table.check()
