"""Priorities that come before their items do, of several indexes over the same steps, beside a dict a piece."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import relive

# Name -> (steps that an item spans, the priority of items that come without one; None: they wait for it).
SPANS = {"one": (3, 2.0), "two": (2, 0.5), "waits": (4, None), "plain": (3, 1.0), "best": (2, 0.25)}
WITHOUT_PRIORITIES = "plain"


def make_table() -> relive.Table:
    spec = relive.StepSpec({"number": relive.ArraySpec((), "int64"), "reward": relive.ArraySpec((), "float32")})
    samplers: dict[str, Any] = {
        "one": relive.Prioritized(1.0, initial=2.0),
        "two": relive.Prioritized(1.0, initial=0.5),
        "waits": relive.Prioritized(1.0, initial="given"),
        "plain": relive.Uniform(),
        "best": relive.MaxPriority(initial=0.25),
    }
    indexes = {
        name: relive.Index(relive.Sequences(span, period=1), samplers[name])
        if name == "waits"
        else relive.Index(relive.Transitions(n_step=span), samplers[name])
        for name, (span, _) in SPANS.items()
    }
    return relive.Table(spec, 4000, indexes, max_lanes=2, seed=3)


@dataclass
class NaiveIndex:
    """The items of one index, each with the priority that it came with or was given since."""

    span: int
    initial: float | None
    pending: dict[int, float | None] = field(default_factory=dict)  # in the order that they came
    live: dict[int, float] = field(default_factory=dict)
    awaiting: set[int] = field(default_factory=set)

    def append(self, key: int, priority: float | None, ends: bool) -> None:
        self.pending[key] = priority
        while self.pending and (ends or len(self.pending) >= self.span):
            first = next(iter(self.pending))
            own = self.pending.pop(first)
            if own is None and self.initial is None:
                self.awaiting.add(first)
            else:
                self.live[first] = self.initial if own is None else own  # type: ignore[assignment]

    def update(self, keys: list[int], priorities: list[float]) -> int:
        for key, priority in zip(keys, priorities, strict=True):
            self.awaiting.discard(key)
            (self.pending if key in self.pending else self.live)[key] = priority
        return len(keys)


def compare(table: relive.Table, twins: dict[str, NaiveIndex]) -> None:
    table.check()
    for name, twin in twins.items():
        assert table.num_items(name) == len(twin.live)
        masses = {key: 1.0 if name == WITHOUT_PRIORITIES else priority for key, priority in twin.live.items()}
        if not masses:
            continue
        total = sum(masses.values())
        drawn = table.draw(len(masses) if name == "best" else 100, index=name, timeout_s=0.0)
        keys = drawn.item_keys.tolist()
        if name == "best":
            assert set(keys) == set(masses)
            found = [masses[key] for key in keys]
            assert found == sorted(found, reverse=True)
        else:
            np.testing.assert_allclose(drawn.probabilities, [masses[key] / total for key in keys], rtol=3e-6)


PRIORITIES = st.sampled_from((0.125, 0.75, 1.0, 3.0, 16.0))


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, Any]:
    kind = draw(st.sampled_from(("append", "append", "update", "update", "close")))
    if kind == "append":
        return kind, (draw(st.one_of(st.none(), PRIORITIES)), draw(st.integers(0, 5)) == 0)
    if kind == "close":
        return kind, None
    chosen = draw(st.lists(st.integers(0, 9), min_size=1, max_size=4))  # of the latest ones
    name = draw(st.sampled_from([name for name in SPANS if name != WITHOUT_PRIORITIES]))
    return kind, (name, chosen, draw(st.lists(PRIORITIES, min_size=len(chosen), max_size=len(chosen))))


@given(st.lists(calls(), min_size=1, max_size=40))
def test_a_priority_belongs_to_its_item_in_its_index(programme: list[tuple[str, Any]]) -> None:
    twins = {name: NaiveIndex(*of) for name, of in SPANS.items()}
    keys: list[int] = []
    with make_table() as table, table.writer() as writer:
        for number, (kind, what) in enumerate(programme):
            if kind == "append":
                priority, ends = what
                given_with = {} if priority is None else {"priority": priority}
                keys.append(int(writer.append(number=number, reward=0.0, terminated=ends, **given_with)))
                for twin in twins.values():
                    twin.append(keys[-1], priority, ends)
            elif kind == "update" and keys:
                name, chosen, priorities = what
                of = [keys[-1 - position % len(keys)] for position in chosen]
                assert table.update_priorities(of, priorities, index=name) == twins[name].update(of, priorities)
            elif kind == "close":
                compare(table, twins)
        compare(table, twins)
