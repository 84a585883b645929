"""The steps that the suite writes, and functions that look at a table from outside."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import relive

MakeTable = Callable[..., relive.Table]
Opening = Callable[[contextlib.ExitStack, Callable[[], str]], MakeTable]
ALL = ("episode_step", "first", "lane", "policy_version", "staleness", "num_steps")


def plain_spec(**more: relive.ArraySpec) -> relive.StepSpec:
    return relive.StepSpec(
        {
            "observation": relive.ArraySpec((2,), "float32", kind="state"),
            "action": relive.ArraySpec((), "int64"),
            "reward": relive.ArraySpec((), "float32"),
            **more,
        }
    )


def transitions(n_step: int = 1, gamma: float = 1.0, **more: Any) -> relive.Index:
    return relive.Index(relive.Transitions(n_step=n_step, gamma=gamma, **more))


def prioritized(exponent: float = 1.0, initial: Any = "max", n_step: int = 1, **more: Any) -> relive.Index:
    sampler = relive.Prioritized(priority_exponent=exponent, initial=initial)
    return relive.Index(relive.Transitions(n_step=n_step, gamma=1.0), sampler, **more)


def state(value: float) -> np.ndarray:
    return np.full(2, value, np.float32)


def step(value: int, next_value: int | None = None, **more: Any) -> dict[str, Any]:
    """One step whose observation, action and reward are all that number."""
    result: dict[str, Any] = {"observation": state(value), "action": value, "reward": float(value), **more}
    if next_value is not None:
        result["next_observation"] = state(next_value)
    return result


def write_steps(writer: Any, first: int, count: int, **last: Any) -> np.ndarray:
    """Steps first, first + 1, ... each with its next state: every one an item at once where n_step is 1."""
    keys = []
    for t in range(first, first + count):
        keys.append(writer.append(**step(t, t + 1, **(last if t == first + count - 1 else {}))))
    return np.asarray(keys, np.int64)


def present(table: Any, keys: Any, index: str | None = None) -> list[bool]:
    return table.gather(np.atleast_1d(np.asarray(keys, np.int64)), index=index).present.tolist()


def contents(table: Any, keys: Any, index: str | None = None) -> dict[str, list[Any]]:
    """Everything a table says about these keys."""
    names = ("observation", "action", "reward", "next_observation", "discount", "terminated", "truncated")
    batch = table.gather(np.atleast_1d(np.asarray(keys, np.int64)), columns=names, index=index)
    mask = np.asarray(batch.present)
    return {"present": mask.tolist(), **{name: np.asarray(batch[name])[mask].tolist() for name in names}}


def is_empty(table: Any, index: str | None = None) -> bool:
    """Whether a draw has nothing to draw from now."""
    try:
        table.draw(1, timeout_s=0.0, index=index)
    except relive.errors.DeadlineExceeded:
        return True
    return False


class Unchanged:
    """Within this, whatever is refused must leave the table as it was: length, contents and statistics."""

    def __init__(self, table: Any, keys: Any, error: type[BaseException], **fields: Any) -> None:
        self.table, self.keys, self.error, self.fields = table, keys, error, fields

    def __enter__(self) -> Unchanged:
        self.before = (len(self.table), contents(self.table, self.keys), counters(self.table.stats()))
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> bool:
        assert kind is not None, f"{self.error.__name__} expected, nothing was raised"
        if not issubclass(kind, self.error):
            return False
        assert isinstance(value, relive.errors.ReliveError)
        for name, expected in self.fields.items():
            assert getattr(value, name) == expected, f"{name} is {getattr(value, name)!r}"
        assert len(str(value)) > 20, "the sentence names what, expected, got and a way out"
        after = (len(self.table), contents(self.table, self.keys), counters(self.table.stats()))
        assert after == self.before
        self.table.check()
        return True


def counters(stats: Any) -> Any:
    """Statistics without what a clock, a wait, a race or the reading itself moves."""
    moved = ("wait", "redraws", "slow_draws", "tiers")
    plain = stats if isinstance(stats, dict) else stats.as_dict()
    return {
        name: counters(value) if isinstance(value, dict) else value
        for name, value in plain.items()
        if not any(word in name for word in moved)
    }


class Suite:
    """Tests of a table. A test class that derives from a suite overrides `opening`, which makes its kind of table."""

    @pytest.fixture(scope="class")
    @classmethod
    def opening(cls) -> Opening:
        """opening(stack, fresh) -> a maker of tables, which the stack closes; fresh() gives a name in shared memory."""
        raise NotImplementedError

    @pytest.fixture
    def make_table(self, opening: Opening, shm_name: Any) -> Iterator[MakeTable]:
        """make_table(spec, capacity, index=None, **options) -> an open table, closed at the test's end."""
        with contextlib.ExitStack() as stack:
            yield opening(stack, shm_name)

    @pytest.fixture(scope="class")
    @classmethod
    def make_table_of_class(cls, opening: Opening, shm_name_of_class: Any) -> Iterator[MakeTable]:
        """The same; the table is closed after the last test of the class."""
        with contextlib.ExitStack() as stack:
            yield opening(stack, shm_name_of_class)

    @pytest.fixture
    def table(self, make_table: MakeTable) -> relive.Table:
        return make_table(plain_spec(), 1000)
