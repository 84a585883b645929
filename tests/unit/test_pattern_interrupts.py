"""Ctrl-C at any moment of a PatternWriter's call leaves no item with windows of one step and columns of another."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from processes.interrupts import AtOpcode

import relive
from relive import Explicit, Pattern, PatternWriter, Window, errors
from relive.over import patterns

OWN = {"newest": relive.ArraySpec((), "int64")}
ITEMS = {
    "all": Explicit({"past": 3, "lag": 2}, OWN, max_items=200_000),
    "ends": Explicit({"past": Window(3), "lag": 2}, OWN, max_items=200_000),
}
WINDOWS = {"past": 3, "lag": slice(-3, -1)}
PATTERNS = (
    Pattern(WINDOWS, columns={"newest": "a"}, index="all"),
    Pattern(WINDOWS, at_end=True, columns={"newest": "a"}, index="ends"),
)
OTHER = 1_000_000  # the steps of the second lane


def at_opcode(number: int) -> AtOpcode:
    return AtOpcode(number, lambda name: name == patterns.__name__)


def make_table(max_steps: int = 1000) -> relive.Table:
    spec = relive.StepSpec({"a": relive.ArraySpec((), "int64")})
    index = {"steps": relive.Index()} | {name: relive.Index(items) for name, items in ITEMS.items()}
    return relive.Table(spec, max_steps, index, max_lanes=2)


def row(number: int, **more: Any) -> dict[str, Any]:
    return {"a": np.array([number, OTHER + number]), **more}


def made(table: relive.Table, index: str) -> set[int]:
    """Checks the items of an index, and returns their newest steps."""
    keys = [np.concatenate([np.zeros(0, np.int64), *table.keys(index=name)]) for name in ("steps", index)]
    stored = np.sort(table.gather(keys[0], columns=["a"], index="steps")["a"])
    batch = table.gather(keys[1], index=index)
    past, lag, newest = batch["past/a"], batch["lag/a"], batch["newest"]
    assert (past[:, -1] == newest).all(), "a window ends at another step than that of the item's own columns"
    assert (lag == past[:, :2]).all(), "two windows of an item are of different steps"
    assert (np.diff(np.searchsorted(stored, past)) == 1).all(), "a window has a hole"
    assert len(set(newest.tolist())) == len(newest), "an item was made twice"
    return set(newest.tolist())


class Part:
    """A writer. Its append with no time stores the step of the first lane alone."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def append(self, timeout_s: float | None = None, **columns: Any) -> Any:
        if timeout_s != 0.0:
            return self._inner.append(timeout_s=timeout_s, **columns)
        problem = errors.DeadlineExceeded("room for two steps", "one")
        problem.stored, problem.keys = 1, self._inner.append(lanes=[0], a=columns["a"][:1])
        raise problem


def append_in_part(writer: PatternWriter, now: int) -> None:
    with contextlib.suppress(errors.DeadlineExceeded):
        writer.append(**row(now), timeout_s=0.0)


CALLS: dict[str, Callable[[PatternWriter, int], Any]] = {
    "append": lambda writer, now: writer.append(**row(now)),
    "append to a lane": lambda writer, now: writer.append(lanes=[1], a=[OTHER + now]),
    "append an end": lambda writer, now: writer.append(**row(now, truncated=[True, False])),
    "append in part": append_in_part,
    "end_episode": lambda writer, now: writer.end_episode(truncated=True),
    "end_episode of a lane": lambda writer, now: writer.end_episode(lanes=[0], truncated=True),
    "abandon": lambda writer, now: writer.abandon(),
    "set_policy_version": lambda writer, now: writer.set_policy_version(now),
}


@pytest.mark.parametrize("call", CALLS)
def test_items_are_of_one_step_wherever_ctrl_c_ends_a_call(call: str) -> None:
    """Every item is right and is made once. The third step after the call has items again."""
    number, at = 0, at_opcode(0)
    while number == 0 or at.where:
        with make_table() as table, PatternWriter(table, Part(table.writer(2)), PATTERNS) as writer:
            for now in range(4):
                writer.append(**row(now))
            with at_opcode(number) as at:
                CALLS[call](writer, 4)
            for now in range(5, 9):
                writer.append(**row(now))
            writer.end_episode(truncated=True)
            assert {7, 8, OTHER + 7, OTHER + 8} <= made(table, "all"), f"after Ctrl-C at step {number}"
            assert {8, OTHER + 8} <= made(table, "ends"), f"after Ctrl-C at step {number}"
        number += 3  # each third moment: all of them take 20 s
    assert number > 20


def test_an_item_whose_making_ctrl_c_ended_is_not_made_again() -> None:
    """The count of unanswered items tells of it, whatever the moment."""
    number, at = 0, at_opcode(0)
    limited = relive.Index(Explicit(1, OWN), limiter=relive.Queue(4), max_times_sampled=1)
    while number == 0 or at.where:
        with relive.Table(make_table(10).spec, 100, {"steps": relive.Index(), "items": limited}, max_lanes=2) as queue:
            with PatternWriter(queue, queue.writer(2), Pattern(1, columns={"newest": "a"}, index="items")) as writer:
                for now in range(3):
                    with pytest.raises(errors.DeadlineExceeded) if now == 2 else contextlib.nullcontext():
                        writer.append(**row(now), timeout_s=0.0)
                drawn = queue.sample(4, index="items")["newest"].ravel().tolist()
                with at_opcode(number) as at:
                    writer.flush(1.0)
                writer.flush(1.0)
                left = queue.num_items("items")
                if left:
                    drawn += queue.sample(left, index="items")["newest"].ravel().tolist()
                assert len(set(drawn)) == len(drawn) and {0, 1, OTHER, OTHER + 1} <= set(drawn)
                assert 6 - len(drawn) <= writer.num_unanswered <= 2 and writer.num_waiting == 0
        number += 3  # each third moment: all of them take 20 s
    assert number > 20


def test_an_error_of_a_call_that_stores_nothing_leaves_the_windows() -> None:
    with make_table() as table, PatternWriter(table, table.writer(2), PATTERNS) as writer:
        for now in range(5):
            with pytest.raises(errors.ReliveError):
                writer.append(a=["x", "y"])
            with pytest.raises(errors.ReliveError):
                writer.end_episode(lanes=[5])
            writer.append(**row(now))
        assert made(table, "all") == {lane + now for lane in (0, OTHER) for now in (2, 3, 4)}
