"""Patterns: items written by themselves as steps come, compared with what a list of steps says."""

from __future__ import annotations

import pickle
import random
import signal
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import relive
from relive import Condition, Explicit, Pattern, PatternWriter, Window, errors
from relive.core import ending

SPEC = relive.StepSpec(
    {
        "observation": relive.ArraySpec((2,), "float32", kind="state"),
        "action": {"x": relive.ArraySpec((), "int64")},
        "reward": relive.ArraySpec((), "float32"),
    }
)
ITEMS = Explicit(
    {"past": Window(5, ("reward",)), "now": Window(1, ("action",)), "far": Window(3, ("reward",), stride=2)},
    {"score": relive.ArraySpec((), "float32")},
    max_items=100_000,
)


def make_table(**options: Any) -> relive.Table:
    index = {"steps": relive.Index(), "items": relive.Index(ITEMS, relive.Prioritized(1.0), **options)}
    return relive.Table(SPEC, 4000, index, max_lanes=8)


class Noted:
    """A table that remembers the keys of the items that were made on it."""

    def __init__(self, table: relive.Table) -> None:
        self._table = table
        self.made: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    def create_items(self, *arguments: Any, **options: Any) -> Any:
        keys = self._table.create_items(*arguments, **options)
        self.made += keys.tolist()
        return keys


def contents(table: Noted) -> list[tuple[Any, ...]]:
    """Every item's numbers, in order."""
    batch = table.gather(table.made, columns=["past", "now", "far", "score"], index="items")
    assert batch.present.all() and table.stats().indexes["items"].inserted == len(table.made)
    rows = []
    for position in range(len(table.made)):
        parts = []
        for name, column in (("past", "reward"), ("now", "action/x"), ("far", "reward")):
            values, mask = batch[f"{name}/{column}"][position], batch[f"{name}/mask"][position]
            parts.append(tuple(values[mask].tolist()))
        rows.append((*parts, float(batch["score"][position])))
    return rows


@pytest.fixture
def table() -> Iterator[Any]:
    with make_table() as made:
        yield Noted(made)


def step(number: int, **more: Any) -> dict[str, Any]:
    return {"observation": np.zeros(2), "action": {"x": number}, "reward": float(number % 7), **more}


PATTERNS = (
    Pattern({"past": 5, "now": 1}, columns={"score": "reward"}),
    Pattern({"past": slice(-3, -1)}, every=3, first=4, columns={"score": "action/x"}),
    Pattern({"far": 5}, at_end=True, columns={"score": "reward"}),
    Pattern({"now": 1}, at_end=False, where=Condition("reward", ">=", 5), columns={"score": "reward"}),
    Pattern({"far": slice(-6, None), "past": 2}, every=2, columns={"score": "reward"}, priority=2.0),
)
WHERE = {3: lambda number: number % 7 >= 5}


def expected(episode: list[int], ends: bool) -> list[tuple[Any, ...]]:
    """The items that the patterns make at the newest step of an episode. ends: whether that step ends the episode."""
    items = []
    t = len(episode) - 1
    for number, pattern in enumerate(PATTERNS):
        first = pattern.steps_back - 1 if pattern.first is None else pattern.first
        if t < max(first, pattern.steps_back - 1) or (t - first) % pattern.every:
            continue
        if pattern.at_end is not None and pattern.at_end != ends:
            continue
        if number in WHERE and not WHERE[number](episode[-1]):
            continue
        parts: dict[str, tuple[float, ...]] = {"past": (), "now": (), "far": ()}
        for name, part in pattern.slices.items():
            rows = episode[part][:: 2 if name == "far" else 1]
            parts[name] = tuple(float(one) if name == "now" else float(one % 7) for one in rows)
        source = pattern.columns["score"]
        score = episode[-1] if source == "action/x" else episode[-1] % 7
        items.append((parts["past"], parts["now"], parts["far"], float(score)))
    return items


def test_every_item_is_what_the_lists_say(table: Any) -> None:
    rng = random.Random(3)
    episodes: list[list[int]] = [[], [], []]
    due: list[tuple[Any, ...]] = []
    with PatternWriter(table, table.writer(3), PATTERNS) as writer:
        for number in range(400):
            lanes = [lane for lane in range(3) if rng.random() < 0.7]
            ends = [rng.random() < 0.08 for _ in lanes]
            numbers = [3 * number + lane for lane in lanes]
            full = rng.random() < 0.5  # arrays of all lanes, or of those named
            count = 3 if full else len(lanes)
            xs = np.zeros(count, int)
            truncated = np.zeros(count, bool)
            at = lanes if full else list(range(len(lanes)))
            xs[at], truncated[at] = numbers, ends
            keys = writer.append(
                observation=np.zeros((count, 2)),
                action={"x": xs},
                reward=(xs % 7).astype(float),
                truncated=truncated,
                next_observation=np.zeros((count, 2)),
                lanes=np.isin(np.arange(3), lanes) if rng.random() < 0.5 else lanes,
            )
            assert len(keys) == len(lanes)
            by_pattern: list[tuple[Any, ...]] = []
            for lane, one, over in zip(lanes, numbers, ends, strict=True):
                episodes[lane].append(one)
                by_pattern += expected(episodes[lane], over)
                if over:
                    episodes[lane] = []
            due += by_pattern
            assert writer.num_waiting == 0
    assert len(due) > 500 and sorted(contents(table)) == sorted(due)
    table.check()


def test_an_end_that_comes_later(table: Any) -> None:
    """end_episode makes what waited for it, and nothing twice."""
    pattern = Pattern({"past": 2}, at_end=True, columns={"score": "reward"})
    always = Pattern({"now": 1}, columns={"score": "reward"})
    with PatternWriter(table, table.writer(), (pattern, always)) as writer:
        for number in range(4):
            writer.append(**step(number))
        writer.end_episode(truncated=True, next_observation=np.zeros(2))
        assert sorted(contents(table))[-1] == ((2.0, 3.0), (), (), 3.0) and len(contents(table)) == 5
        writer.append(**step(4), terminated=True)
        assert len(contents(table)) == 6, "the episode has one step, fewer than the window"


def test_an_episode_that_is_given_up(table: Any) -> None:
    """The items that were made of the episode leave, and the next episode begins with no history."""
    pair = Pattern({"past": 2}, columns={"score": "reward"})
    with PatternWriter(table, table.writer(), pair) as writer:
        for number in range(3):
            writer.append(**step(number))
        assert len(table.made) == 2
        writer.abandon()
        assert not table.gather(table.made, index="items").present.any() and table.num_items("items") == 0
        writer.append(**step(4))
        assert len(table.made) == 2, "one step of the new episode, fewer than the window"
        writer.append(**step(5))
        batch = table.gather(table.made[2:], columns=["past"], index="items")
        assert batch["past/reward"][batch["past/mask"]].tolist() == [4.0, 5.0]
    table.check()


def test_what_a_limiter_holds_back_is_made_later() -> None:
    limiter = relive.SamplesPerInsert(1.0, min_size=2, tolerance=4.0)  # made - drawn stays in [-2, 6]
    with make_table(limiter=limiter) as table:
        writer = PatternWriter(table, table.writer(4), Pattern({"now": 1}, columns={"score": "reward"}))
        rows = {"observation": np.zeros((4, 2)), "action": {"x": np.arange(4)}, "reward": np.zeros(4)}
        writer.append(**rows)
        with pytest.raises(errors.DeadlineExceeded) as caught:
            writer.append(**rows, timeout_s=0.0)
        assert caught.value.stored == 4 and caught.value.keys is not None and len(table) == 8
        assert writer.num_waiting == 2 and table.num_items("items") == 6
        with pytest.raises(errors.DeadlineExceeded):
            writer.flush(timeout_s=0.0)
        table.draw(4, index="items")
        writer.flush(timeout_s=0.0)
        assert writer.num_waiting == 0 and table.num_items("items") == 8
        table.draw(4, index="items")
        with pytest.raises(errors.DeadlineExceeded):
            for _ in range(3):
                writer.append(**rows, timeout_s=0.0)
        table.clear()
        with pytest.raises(errors.DeadlineExceeded):
            table.draw(1, index="items", timeout_s=0.0)
        waiting = writer.num_waiting
        writer.flush(timeout_s=0.0)
        assert writer.num_dropped == waiting > 0, "their rows are gone"
        writer.close()


class Interrupted:
    """A writer, or a table, whose first call of a method stores a part only, and raises KeyboardInterrupt."""

    def __init__(self, inner: Any, method: str, part: Any) -> None:
        self._inner, self._method, self._part = inner, method, part

    def __getattr__(self, name: str) -> Any:
        if name != self._method or self._part is None:
            return getattr(self._inner, name)
        part, self._part = self._part, None

        def call(*arguments: Any, **options: Any) -> Any:
            keys = part(*arguments, **options)
            signal: Any = KeyboardInterrupt()
            signal.keys, signal.stored = keys, len(keys)
            raise signal

        return call


def test_ctrl_c_after_the_first_lanes_of_a_step(table: Any) -> None:
    """The lanes that stored their step have it, and their windows go on with it."""
    inner = table.writer(2)

    def first(observation: Any, action: Any, reward: Any, **_: Any) -> Any:
        return inner.append(lanes=[0], observation=observation[:1], action={"x": action["x"][:1]}, reward=reward[:1])

    writer: Any = Interrupted(inner, "append", first)
    with PatternWriter(table, writer, Pattern({"past": 2}, columns={"score": "reward"})) as patterns:
        for t in range(3):
            rows = {"observation": np.zeros((2, 2)), "action": {"x": np.full(2, t)}, "reward": np.full(2, float(t))}
            try:
                patterns.append(**rows)
            except KeyboardInterrupt:
                assert t == 0
                patterns.append(lanes=[1], observation=np.zeros((1, 2)), action={"x": [0]}, reward=[0.0])
        assert sorted(contents(table)) == sorted(2 * [((0.0, 1.0), (), (), 1.0), ((1.0, 2.0), (), (), 2.0)])


def test_ctrl_c_after_the_first_items_of_a_step(table: Any) -> None:
    """The items that were made are not made again, and the error tells of the steps."""
    inner = table.create_items

    def first(windows: Any, **options: Any) -> Any:
        some = {name: (keys[:1], num_rows) for name, (keys, num_rows) in windows.items()}
        return inner(some, **{name: options[name] for name in ("index", "priority")}, score=options["score"][:1])

    broken: Any = Interrupted(table, "create_items", first)
    with PatternWriter(broken, table.writer(2), Pattern({"now": 1}, columns={"score": "reward"})) as patterns:
        with pytest.raises(KeyboardInterrupt) as caught:
            patterns.append(observation=np.zeros((2, 2)), action={"x": [5, 6]}, reward=[5.0, 6.0])
        assert getattr(caught.value, "stored", 0) == 2 and patterns.num_waiting == 1
        patterns.flush()
        assert sorted(contents(table)) == [((), (5,), (), 5.0), ((), (6,), (), 6.0)]


def test_ctrl_c_while_a_limiter_holds_items_back_loses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call tells that it made two of the four, and then that it made none: the others are made later, once."""
    limiter = relive.SamplesPerInsert(1.0, min_size=2, tolerance=4.0)  # made - drawn stays in [-2, 6]
    with make_table(limiter=limiter) as table:
        writer = PatternWriter(table, table.writer(4), Pattern({"now": 1}, columns={"score": "reward"}))
        rows = {"observation": np.zeros((4, 2)), "action": {"x": np.arange(4)}, "reward": np.zeros(4)}
        writer.append(**rows)
        monkeypatch.setattr(ending, "num_threads", lambda: signal.raise_signal(signal.SIGINT))  # in a wait
        with pytest.raises(KeyboardInterrupt):
            writer.append(**rows, timeout_s=60.0)
        for _ in range(2):
            assert (writer.num_waiting, writer.num_unanswered, table.num_items("items")) == (2, 0, 6)
            with pytest.raises(KeyboardInterrupt):
                writer.flush(60.0)
        monkeypatch.undo()
        table.draw(4, index="items")
        writer.flush(0.0)
        assert (writer.num_waiting, writer.num_unanswered, table.num_items("items")) == (0, 0, 8)
        writer.close()


def test_items_of_a_call_that_does_not_tell_what_it_made_are_not_made_again(table: Any) -> None:
    """Ctrl-C right after the core has returned: the exception says nothing of the items, which are made."""
    real, signals = table.create_items, [KeyboardInterrupt()]

    def create(windows: Any, **options: Any) -> Any:
        made = real(windows, **options)
        if signals:
            raise signals.pop()
        return made

    table.create_items = create
    with PatternWriter(table, table.writer(2), Pattern({"now": 1}, columns={"score": "reward"})) as patterns:
        with pytest.raises(KeyboardInterrupt) as caught:
            patterns.append(observation=np.zeros((2, 2)), action={"x": [5, 6]}, reward=[5.0, 6.0])
        assert getattr(caught.value, "stored", 0) == 2, "the steps are stored"
        assert (patterns.num_waiting, patterns.num_unanswered) == (0, 2) and "2 items unanswered" in repr(patterns)
        patterns.append(observation=np.zeros((2, 2)), action={"x": [7, 8]}, reward=[0.0, 1.0])
        assert sorted(score for *_, score in contents(table)) == [0.0, 1.0, 5.0, 6.0]


def test_rows_of_two_episodes_make_no_item(table: Any) -> None:
    """The writer below the patterns ended the episode: the item is dropped, and the next ones are made."""
    inner = table.writer()
    with PatternWriter(table, inner, Pattern({"past": 2}, columns={"score": "reward"})) as writer:
        writer.append(**step(0))
        inner.end_episode(truncated=True, next_observation=np.zeros(2))
        for number in (1, 2):
            writer.append(**step(number))
        assert (writer.num_dropped, writer.num_waiting) == (1, 0)
        assert contents(table) == [((1.0, 2.0), (), (), 2.0)]


def test_a_refused_append_is_no_step(table: Any) -> None:
    with PatternWriter(table, table.writer(), Pattern({"past": 2}, columns={"score": "reward"})) as writer:
        writer.append(**step(0))
        for bad in ({"reward": "x"}, {"action": {"x": 1.5}}, {"observation": np.zeros(3)}):
            with pytest.raises(errors.ReliveError):
                writer.append(**step(1) | bad)
        writer.append(**step(1))
        assert contents(table) == [((0.0, 1.0), (), (), 1.0)]
        with pytest.raises(errors.InvalidConfig):
            writer.extend(reward=[1.0])


def test_patterns_are_values() -> None:
    for pattern in PATTERNS:
        assert pickle.loads(pickle.dumps(pattern)) == pattern
    assert Pattern({"a": 3}) == Pattern({"a": slice(-3, None)}) and hash(PATTERNS[0]) == hash(PATTERNS[0])
    assert Pattern(3).slices[""] == slice(-3, None)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Pattern({}),
        lambda: Pattern({"past": 0}),
        lambda: Pattern({"past": slice(3)}),
        lambda: Pattern({"past": slice(-3, 0)}),
        lambda: Pattern({"past": slice(-3, -3)}),
        lambda: Pattern({"past": slice(-3, None, 2)}),
        lambda: Pattern({"past": slice(-5000, None)}),
        lambda: Pattern({"past": "x"}),
        *[partial(Pattern, 3, **more) for more in ({"every": 0}, {"first": -1}, {"at_end": "yes"})],
        lambda: Pattern(3, where="reward"),
        lambda: Pattern(3, columns=["score"]),
        *[partial(Pattern, 3, priority=value) for value in (-1.0, float("nan"), float("inf"), "x", 1e60)],
        lambda: Condition("reward", "=", 1),
        lambda: Condition("reward", ">", "x"),
        lambda: Condition(3, ">", 1),
    ],
)
def test_what_cannot_be_a_pattern_is_refused(make: Any) -> None:
    with pytest.raises(errors.InvalidConfig):
        make()


@pytest.mark.parametrize(
    "pattern, error",
    [
        (Pattern({"past": 6}, columns={"score": "reward"}), errors.InvalidConfig),
        (Pattern({"nothing": 1}, columns={"score": "reward"}), errors.InvalidConfig),
        (Pattern({"past": 1}), errors.MissingColumn),
        (Pattern({"past": 1}, columns={"score": "nothing"}), errors.UnknownColumn),
        (Pattern({"past": 1}, columns={"score": "observation"}), errors.UnknownColumn),
        (Pattern({"past": 1}, columns={"score": "reward", "more": "reward"}), errors.UnknownColumn),
        (Pattern({"past": 1}, columns={"score": "reward"}, where=Condition("x", ">", 1)), errors.UnknownColumn),
        (Pattern({"past": 1}, columns={"score": "reward"}, index="steps"), errors.InvalidConfig),
    ],
)
def test_what_does_not_fit_the_table_is_refused(table: Any, pattern: Pattern, error: type[Exception]) -> None:
    with table.writer() as writer, pytest.raises(error):
        PatternWriter(table, writer, [pattern])


@pytest.mark.parametrize("part", ["columns", "where"])
def test_a_late_column_is_refused(part: str) -> None:
    """append does not take it, so a pattern has no value of it."""
    spec = relive.StepSpec(
        {"action": relive.ArraySpec((), "int64"), "late": relive.ArraySpec((), "float32", late=True)}
    )
    own = {"score": relive.ArraySpec((), "float32")}
    columns = {"score": "late" if part == "columns" else "action"}
    pattern = Pattern(2, columns=columns, where=Condition("late", ">", 0) if part == "where" else ())
    with relive.Table(spec, 100, relive.Index(Explicit(2, own))) as table, table.writer() as writer:
        with pytest.raises(errors.InvalidConfig, match=r"'late'.*complete"):
            PatternWriter(table, writer, pattern)


def test_items_over_steps_that_wait_for_late_columns_come_with_them() -> None:
    """A pattern's items are made as steps come, and can be drawn once complete() has come for all of their steps."""
    late = relive.ArraySpec((), "float32", late=True)
    spec = relive.StepSpec({"action": relive.ArraySpec((), "int64"), "reward": late})
    table = relive.Table(spec, 100, relive.Index(relive.Explicit({"pair": 2})))
    with table, relive.PatternWriter(table, table.writer(), [relive.Pattern({"pair": 2})]) as writer:
        keys = np.array([writer.append(action=step) for step in range(5)])
        assert (writer.num_dropped, writer.num_waiting, table.num_items()) == (0, 0, 0)
        table.complete(keys[:3], reward=np.zeros(3))
        assert table.num_items() == 2
        table.complete(keys[3:], reward=np.zeros(2))
        assert table.num_items() == 4
