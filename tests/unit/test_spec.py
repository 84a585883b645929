"""StepSpec: nesting, names, kinds, spaces; a value that prints, compares, pickles and goes to JSON and back."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import numpy as np
import pytest

import relive
from relive import ArraySpec, StepSpec
from relive.config.spec import RESERVED_NAMES, groups_of, nest, spread
from relive.errors import SpecError, UnknownColumn

FLAT = StepSpec(
    {
        "observation": ArraySpec((4,), "float32", kind="state"),
        "action": ArraySpec((), "int64"),
        "reward": ArraySpec((), "float32"),
    }
)
NESTED = StepSpec(
    {
        "observation": {
            "camera": ArraySpec((84, 84), "uint8", kind="state"),
            "arms": (ArraySpec((3,), "float32", kind="state"), ArraySpec((2,), "float32", kind="state")),
        },
        "action": ArraySpec((), "int64"),
        "core": ArraySpec((2, 8), "float32", kind="start"),
        "task": ArraySpec((), "int64", kind="episode"),
    },
    unstack={"observation/camera": 4},
)


def test_array_spec_is_a_plain_value() -> None:
    spec = ArraySpec([84, np.int64(84)], np.uint8, kind="state")
    assert spec == ArraySpec((84, 84), "uint8", "state") and hash(spec) == hash(ArraySpec((84, 84), "u1", "state"))
    assert repr(spec) == "ArraySpec((84, 84), 'uint8', kind='state')"
    assert eval(repr(spec)) == spec
    assert spec.num_bytes == 84 * 84
    assert ArraySpec(3, ">f4").shape == (3,) and ArraySpec(3, ">f4").dtype == np.dtype(np.float32)
    assert pickle.loads(pickle.dumps(spec)) == spec


@pytest.mark.parametrize("dtype", [np.longlong, np.ulonglong, np.dtype(np.longlong).newbyteorder(">")])
def test_a_dtype_that_has_two_numbers_in_numpy(dtype: Any) -> None:
    """C's long long equals int64, and is another type to C."""
    spec = StepSpec({"a": ArraySpec((2,), dtype)})
    assert spec.columns["a"].dtype.char in "lL"
    with relive.Table(spec, 10) as table, table.writer() as writer:
        key = writer.append(a=np.array([1, 2], dtype))
        assert table.sample(1)["a"].tolist() == table.gather(np.array([key], np.longlong))["a"].tolist() == [[1, 2]]


def test_a_dtype_that_numpy_does_not_have() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed here")
    for dtype in ("bfloat16", torch.bfloat16):
        with pytest.raises(SpecError, match="has no bfloat16"):
            ArraySpec((), dtype)


@pytest.mark.parametrize(
    "arguments",
    [
        ((-1,), "float32"),
        ((0,), "float32"),
        ((2.5,), "float32"),
        ((True,), "float32"),
        ("ab", "float32"),
        (None, "float32"),
        ((1,) * 9, "float32"),
        ((), "O"),
        ((), "U8"),
        ((), "M8[s]"),
        ((), None),
        ((), "no such"),
        ((), [("x", "f4")]),
        ((), np.longdouble),
        ((), "float32", "lane"),
    ],
)
def test_array_spec_refuses(arguments: Any) -> None:
    with pytest.raises(SpecError):
        ArraySpec(*arguments)


def test_columns_are_flat_names_in_declared_order() -> None:
    assert list(NESTED.columns) == [
        "observation/camera", "observation/arms/0", "observation/arms/1", "action", "core", "task",
    ]  # fmt: skip
    assert NESTED.state_columns == ("observation/camera", "observation/arms/0", "observation/arms/1")
    assert NESTED.is_tuple("observation/arms") and NESTED.is_tuple("next_observation/arms")
    assert not NESTED.is_tuple("observation")
    assert NESTED.unstack == {"observation/camera": 4}
    assert FLAT.is_flat and not NESTED.is_flat
    assert FLAT.num_bytes == 16 + 8 + 4


def test_columns_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        FLAT.columns["extra"] = ArraySpec((), "int64")  # type: ignore[index]


@pytest.mark.parametrize("spec", [FLAT, NESTED], ids=["flat", "nested"])
def test_spec_is_a_value(spec: StepSpec) -> None:
    for again in (StepSpec.from_json(spec.to_json()), pickle.loads(pickle.dumps(spec)), eval(repr(spec))):
        assert again == spec and hash(again) == hash(spec)
        assert list(again.columns) == list(spec.columns)
    assert spec != "something else"
    assert FLAT != NESTED
    assert FLAT != StepSpec({**dict(FLAT.columns), "action": ArraySpec((), "int32")})


def test_order_of_columns_counts() -> None:
    assert StepSpec(dict(reversed(list(FLAT.columns.items())))) != FLAT


@pytest.mark.parametrize("name", sorted(RESERVED_NAMES) + ["next_observation", "next_", "a/b", "", 7])
def test_reserved_and_impossible_names_are_refused(name: Any) -> None:
    with pytest.raises(SpecError):
        StepSpec({name: ArraySpec((), "float32")})


def test_reserved_names_may_be_used_below_the_top() -> None:
    spec = StepSpec({"log": {"priority": ArraySpec((), "float32"), "next_move": ArraySpec((), "int64")}})
    assert list(spec.columns) == ["log/priority", "log/next_move"]


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {"observation": {}},
        {"observation": ()},
        {"observation": {"a/b": ArraySpec((), "f4")}},
        {"observation": {"": ArraySpec((), "f4")}},
        {"observation": {1: ArraySpec((), "f4")}},
        {"observation": "float32"},
        {"observation": None},
        {"x" * 200: ArraySpec((), "f4")},
        {f"x{i}": ArraySpec((), "f4") for i in range(129)},
        [("observation", ArraySpec((), "f4"))],
    ],
)
def test_impossible_columns_are_refused(columns: Any) -> None:
    with pytest.raises(SpecError):
        StepSpec(columns)


def test_unstack_speaks_of_state_columns_and_of_groups() -> None:
    frame = ArraySpec((8, 8), "uint8", kind="state")
    spec = StepSpec({"observation": {"a": frame, "b": frame}}, unstack={"observation": 3})
    assert spec.unstack == {"observation/a": 3, "observation/b": 3}
    with pytest.raises(SpecError):
        StepSpec({"action": ArraySpec((), "int64")}, unstack={"action": 4})
    with pytest.raises(UnknownColumn):
        StepSpec({"observation": frame}, unstack={"observations": 4})
    for bad in (0, -1, True, 2.0):
        with pytest.raises(SpecError):
            StepSpec({"observation": frame}, unstack={"observation": bad})  # type: ignore[dict-item]


def test_from_json_refuses_other_text() -> None:
    for text in ("", "{}", "[]", '{"columns": [["a", "f4", [], "step"]], "tuples": [], "unstack": {"b": 2}}'):
        with pytest.raises((SpecError, UnknownColumn)):
            StepSpec.from_json(text)


def test_nest_and_spread_are_inverse() -> None:
    flat = {"observation/camera": 1, "observation/arms/0": 2, "observation/arms/1": 3, "action": 4}
    nested = nest(flat, {"observation/arms"}.__contains__)
    assert nested == {"observation": {"camera": 1, "arms": (2, 3)}, "action": 4}
    groups = groups_of(flat)
    assert list(groups) == ["observation"]
    again: dict[str, Any] = {}
    spread("observation", nested["observation"], groups["observation"], again)
    assert {**again, "action": 4} == flat


def test_spread_leaves_what_nobody_declared_to_be_refused() -> None:
    groups = groups_of(["observation/camera", "observation/arms/0"])
    for value, expected in (
        ({"camera": 1, "lidar": 2}, {"observation/camera": 1, "observation/lidar": 2}),
        ({"camera": {"left": 1}}, {"observation/camera": {"left": 1}}),
        ({"arms": [1, 2]}, {"observation/arms/0": 1, "observation/arms/1": 2}),
        (7, {"observation": 7}),
        ([1], {"observation": [1]}),
    ):
        into: dict[str, Any] = {}
        spread("observation", value, groups["observation"], into)
        assert into == expected


# ---- spaces --------------------------------------------------------------------------------------------------------


class _Space:
    """Stands in for gymnasium's classes, whose names and attributes are all that is read."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class Box(_Space):
    pass


class Discrete(_Space):
    pass


class MultiBinary(_Space):
    pass


class Dict(_Space):
    pass


class Tuple(_Space):
    pass


class Text(_Space):
    pass


def test_from_spaces_without_gymnasium() -> None:
    before = "gymnasium" in sys.modules
    spec = StepSpec.from_spaces(
        Dict(
            spaces={
                "camera": Box(shape=(4, 84, 84), dtype=np.dtype(np.uint8)),
                "pose": Tuple(
                    spaces=(Box(shape=(3,), dtype=np.dtype(np.float64)), MultiBinary(shape=(2,), dtype="i1"))
                ),
            }
        ),
        Discrete(n=5, dtype=np.dtype(np.int64)),
        extras={"log_prob": ArraySpec((), "float32")},
        unstack={"observation/camera": 4},
        float64_as="float32",
    )
    assert spec == StepSpec(
        {
            "observation": {
                "camera": ArraySpec((84, 84), "uint8", kind="state"),
                "pose": (ArraySpec((3,), "float32", kind="state"), ArraySpec((2,), "int8", kind="state")),
            },
            "action": ArraySpec((), "int64"),
            "reward": ArraySpec((), "float32"),
            "log_prob": ArraySpec((), "float32"),
        },
        unstack={"observation/camera": 4},
    )
    assert ("gymnasium" in sys.modules) == before


def test_from_spaces_keeps_float64_unless_asked() -> None:
    box = Box(shape=(2,), dtype=np.dtype(np.float64))
    assert StepSpec.from_spaces(box, box).columns["observation"].dtype == np.float64
    assert StepSpec.from_spaces(box, box, float64_as="float32").columns["action"].dtype == np.float32


def test_from_spaces_refuses() -> None:
    box, discrete = Box(shape=(4, 2), dtype=np.dtype(np.float32)), Discrete(n=2, dtype=np.dtype(np.int64))
    with pytest.raises(SpecError):
        StepSpec.from_spaces(Text(max_length=3), discrete)
    with pytest.raises(SpecError):
        StepSpec.from_spaces(Dict(spaces={"a/b": box}), discrete)
    with pytest.raises(SpecError):
        StepSpec.from_spaces(box, discrete, extras={"reward": ArraySpec((), "float64")})
    with pytest.raises(SpecError):
        StepSpec.from_spaces(box, discrete, unstack={"observation": 3})
    with pytest.raises(UnknownColumn):
        StepSpec.from_spaces(box, discrete, unstack={"observatio": 4})
    with pytest.raises(SpecError):
        StepSpec.from_spaces(object(), discrete)


def test_from_spaces_of_gymnasium_itself() -> None:
    spaces = pytest.importorskip("gymnasium.spaces", reason="gymnasium is not installed")
    spec = StepSpec.from_spaces(
        spaces.Dict({"pos": spaces.Box(-1, 1, (3,), np.float32), "bits": spaces.MultiBinary([2, 2])}),
        spaces.Tuple((spaces.Discrete(3), spaces.MultiDiscrete([2, 5]))),
    )
    assert dict(spec.columns) == {
        "observation/bits": ArraySpec((2, 2), "int8", kind="state"),
        "observation/pos": ArraySpec((3,), "float32", kind="state"),
        "action/0": ArraySpec((), "int64"),
        "action/1": ArraySpec((2,), "int64"),
        "reward": ArraySpec((), "float32"),
    }
    assert spec.is_tuple("action")
    with pytest.raises(SpecError):
        StepSpec.from_spaces(spaces.Sequence(spaces.Discrete(3)), spaces.Discrete(2))


LATE = StepSpec(
    {
        "action": ArraySpec((), "int64"),
        "reward": ArraySpec((), "float32", late=True),
        "judge": {"verdict": ArraySpec((3,), "int16", late=True), "name": ArraySpec((), "uint8")},
    }
)


def test_late_columns_are_said_and_remembered() -> None:
    assert LATE.late_columns == ("reward", "judge/verdict") and FLAT.late_columns == ()
    assert repr(ArraySpec((), "float32", late=True)) == "ArraySpec((), 'float32', late=True)"
    assert eval(repr(LATE)) == LATE == StepSpec.from_json(LATE.to_json()) == pickle.loads(pickle.dumps(LATE))
    assert ArraySpec((), "float32", late=True) != ArraySpec((), "float32")
    assert LATE.to_dict()["columns"]["reward"] == {"shape": [], "dtype": "float32", "kind": "step", "late": True}
    assert "late" not in FLAT.to_dict()["columns"]["reward"]
    assert [kind for *_, kind in LATE.core_config()["columns"]] == ["step", "late", "late", "step"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: ArraySpec((), "float32", kind="state", late=True),
        lambda: ArraySpec((), "float32", kind="start", late=True),
        lambda: ArraySpec((), "float32", late="yes"),  # type: ignore[arg-type]
        lambda: ArraySpec((), "float32", late=1),  # type: ignore[arg-type]
        lambda: ArraySpec((65,), "float32", late=True),
        lambda: StepSpec(
            {"a": ArraySpec((64,), "f4", late=True), "b": ArraySpec((), "u1", late=True), "c": ArraySpec((), "u1")}
        ),
        lambda: StepSpec({"a": ArraySpec((), "float32", late=True)}),
    ],
)
def test_impossible_late_columns_are_refused(make: Any) -> None:
    with pytest.raises(SpecError):
        make()
