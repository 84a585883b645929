"""A call of a PatternWriter has one deadline for its step and for all items that wait."""

from __future__ import annotations

import math
from typing import Any

import pytest

import relive
from relive import Explicit, Pattern, PatternWriter, errors
from relive.over import patterns

SPEC = relive.StepSpec({"observation": relive.ArraySpec((), "int64", kind="state")})
NOW = Pattern(1, at_end=False)
END = Pattern(1, at_end=True)


def make_table(**options: Any) -> relive.Table:
    return relive.Table(SPEC, 1000, {"items": relive.Index(Explicit(1), **options)}, max_lanes=2)


class Clock:
    """In place of the module time."""

    def __init__(self) -> None:
        self.now = 100.0
        self.asked: list[float | None] = []

    def monotonic(self) -> float:
        return self.now

    def told(self) -> list[float | None]:
        """The timeout_s of each call that came after the last told()."""
        asked, self.asked = self.asked, []
        return asked


class Slow:
    """Calls of a table, or of a writer, that note their timeout_s and take some seconds of a clock."""

    def __init__(self, inner: Any, clock: Clock, **takes_s: float) -> None:
        self._inner, self._clock, self._takes_s = inner, clock, takes_s

    def __getattr__(self, name: str) -> Any:
        if name not in self._takes_s:
            return getattr(self._inner, name)

        def call(*arguments: Any, timeout_s: float | None = None, **options: Any) -> Any:
            self._clock.asked.append(timeout_s)
            self._clock.now += self._takes_s[name]
            return getattr(self._inner, name)(*arguments, timeout_s=timeout_s, **options)

        return call


@pytest.mark.parametrize(
    "timeout_s, left",
    [
        (10.0, [6.0, 2.5, 0.0]),
        (None, [56.0, 52.5, 49.0]),  # of the table's default
        (math.inf, 3 * [math.inf]),
        (0.0, 3 * [0.0]),
    ],
)
def test_the_step_and_all_of_its_items_have_one_deadline(
    monkeypatch: pytest.MonkeyPatch, timeout_s: float | None, left: list[float]
) -> None:
    """Each call gets the seconds that are left. With 0 seconds it tries once."""
    monkeypatch.setattr(patterns, "time", clock := Clock())
    with make_table() as table:
        inner: Any = Slow(table.writer(), clock, append=4.0, end_episode=4.0)
        made: Any = Slow(table, clock, create_items=3.5)
        with PatternWriter(made, inner, 3 * [NOW] + 3 * [END]) as writer:
            writer.append(observation=0, timeout_s=timeout_s)
            assert clock.told() == [timeout_s, *left] and table.num_items() == 3
            writer.end_episode(truncated=True, next_observation=1, timeout_s=timeout_s)
            assert clock.told() == [timeout_s, *left] and table.num_items() == 6


def test_a_flush_has_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    limiter = relive.SamplesPerInsert(1.0, min_size=1, tolerance=1.0)  # made - drawn stays in [0, 2]
    monkeypatch.setattr(patterns, "time", clock := Clock())
    with make_table(limiter=limiter) as table:
        made: Any = Slow(table, clock, create_items=3.0)
        with PatternWriter(made, table.writer(), 5 * [NOW]) as writer:
            with pytest.raises(errors.DeadlineExceeded):
                writer.append(observation=0, timeout_s=0.0)
            assert clock.told() == [0.0, 0.0, 0.0] and writer.num_waiting == 3
            table.draw(2)
            with pytest.raises(errors.DeadlineExceeded):
                writer.flush(5.0)
            assert clock.told() == [5.0, 2.0, 0.0] and writer.num_waiting == 1


def test_a_timeout_that_is_none_is_refused_before_the_step() -> None:
    with make_table() as table, PatternWriter(table, table.writer(), NOW) as writer:
        for call in (writer.flush, lambda timeout_s: writer.append(observation=0, timeout_s=timeout_s)):
            with pytest.raises(errors.InvalidConfig):
                call(-1.0)
        assert len(table) == 0
