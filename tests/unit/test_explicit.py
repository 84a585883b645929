"""Explicit as a configuration: a value that is checked, compared, written down and read again."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relive
from relive import Explicit, Window, errors
from relive.writing.new_items import new_items, with_axis

SCORE = relive.ArraySpec((), "float32")
SPEC = relive.StepSpec({"observation": relive.ArraySpec((2,), "float32", kind="state"), "reward": SCORE})
SOME = (
    Explicit(5),
    Explicit(Window(5, ("observation",), 3), max_items=7),
    Explicit({"a": 1, "b": Window(4, stride=2)}, {"score": SCORE, "tag": relive.ArraySpec((3, 2), "int16")}),
)


@pytest.mark.parametrize("items", SOME)
def test_it_is_a_value(items: Explicit) -> None:
    config = relive.TableConfig(SPEC, 100, {"e": relive.Index(items)})
    again = relive.TableConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == config and hash(again) == hash(config) and again.index["e"].items == items
    copy = pickle.loads(pickle.dumps(items))
    assert copy == items and hash(copy) == hash(items) and repr(copy) == repr(items)
    names = {"Explicit": Explicit, "Window": Window, "ArraySpec": relive.ArraySpec}
    assert eval(repr(items), names) == items
    with pytest.raises(AttributeError):
        items.max_items = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        items.windows["x"] = Window(1)  # type: ignore[index]


def test_numbers_and_dicts_stand_for_windows() -> None:
    assert Explicit(5) == Explicit(Window(5)) == Explicit({"": 5}) == Explicit(np.int64(5))
    assert Explicit({"a": {"length": 3, "stride": 2}}) == Explicit({"a": Window(3, None, 2)})
    assert Explicit({"a": 3}, {"s": {"dtype": "float32"}}) == Explicit({"a": 3}, {"s": SCORE})
    assert Explicit({"a": 3}) != Explicit({"a": 4}) and Explicit({"a": 3}) != Explicit({"b": 3})
    assert Window(3, "reward") == Window(3, ["reward"]) == Window(3, ("reward",))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Explicit(0),
        lambda: Explicit(4097),
        lambda: Explicit({}),
        lambda: Explicit({f"w{i}": 1 for i in range(33)}),
        lambda: Explicit({"a/b": 1}),
        lambda: Explicit({"a": 1, "": 2}),
        lambda: Explicit({3: 1}),
        lambda: Explicit({"x" * 48: 1}),
        lambda: Explicit({"a": 1.5}),
        lambda: Explicit({"a": "3"}),
        lambda: Explicit({"a": True}),
        lambda: Explicit({"a": {"stride": 3}}),
        lambda: Explicit({"a": {"length": 3, "more": 3}}),
        lambda: Explicit(None),
        lambda: Explicit("obs"),
        lambda: Window(3, stride=0),
        lambda: Window(5, stride=1024),
        lambda: Window(3, columns=3),
        lambda: Window(3, columns=[3]),
        lambda: Explicit(3, max_items=0),
        lambda: Explicit(3, max_items=2**31 + 1),
        lambda: Explicit(3, {"a": 3}),
        lambda: Explicit(3, {"a": relive.ArraySpec((), "int8", kind="state")}),
        lambda: Explicit(3, {"a": relive.ArraySpec((1025,), "float32")}),
        lambda: Explicit(3, {"priority": SCORE}),
        lambda: Explicit(3, {"windows": SCORE}),
        lambda: Explicit(3, {"mask": SCORE}),
        lambda: Explicit(3, {"lane": SCORE}),
        lambda: Explicit(3, {"next_a": SCORE}),
        lambda: Explicit({"a": 3}, {"a": SCORE}),
        lambda: Explicit(3, {"a/b": SCORE}),
        lambda: Explicit(3, [SCORE]),
        lambda: relive.Index(Explicit(3, max_items=9), limiter=relive.MinSize(10)),
    ],
)
def test_what_cannot_be_is_refused(make: Any) -> None:
    with pytest.raises(errors.InvalidConfig) as caught:
        make()
    assert caught.value.expected and caught.value.what


def test_what_does_not_fit_the_columns_is_refused() -> None:
    for items, error in (
        (Explicit(Window(3, ("nothing",))), errors.UnknownColumn),
        (Explicit(3, {"reward": SCORE}), errors.SpecError),
    ):
        with pytest.raises(error):
            relive.TableConfig(SPEC, 100, relive.Index(items))
    masked = relive.StepSpec({"mask": SCORE})
    with pytest.raises(errors.SpecError):
        relive.TableConfig(masked, 100, relive.Index(Explicit(3)))
    relive.TableConfig(masked, 100, relive.Index(Explicit({"a": 3}, {"reward": SCORE})))


def test_min_size_of_explicit_items_may_be_above_the_capacity() -> None:
    """Many items may stand on one step."""
    with relive.Table(SPEC, 20, relive.Index(Explicit(1), limiter=relive.MinSize(50)), max_lanes=1) as table:
        with table.writer() as writer:
            key = writer.append(observation=[0, 0], reward=0.0)
            table.create_items([key] * 50)
        assert table.sample(3, timeout_s=0.0)["mask"].all()


def test_a_file_describes_explicit_items(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow.flight", reason="the service is not installed here")
    from relive.service.config import load_config

    path = tmp_path / "table.toml"
    path.write_text(
        """
[tables.one]
capacity = 100
storage = "local"
columns = { reward = { dtype = "float32" } }
[tables.one.index.items]
type = "Explicit"
max_items = 12
windows = { past = { length = 5, columns = ["reward"] }, now = { length = 1, stride = 2 } }
columns = { score = { dtype = "float32" } }
"""
    )
    expected = Explicit({"past": Window(5, ("reward",)), "now": Window(1, stride=2)}, {"score": SCORE}, 12)
    assert load_config(path).tables["one"].index["default"].items == expected


def test_arrays_of_a_call() -> None:
    made = new_items(SOME[0], (np.array([7, 8]), [2, -3]), [1.0, 2.0], {})
    assert made.windows.tolist() == [[[7, 2]], [[8, -3]]] and made.rows == [None]
    assert made.priorities is not None and made.priorities.dtype == np.float32
    several, values = with_axis({"a": 5, "b": [1, 2]}, {"score": 2.0})
    assert several["a"].shape == (1,) and several["b"].shape == (1, 2) and values["score"].shape == (1,)
