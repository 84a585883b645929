"""The mistakes of a first programme, and their errors: shapes, dtypes, spaces, values in the wrong place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors

STATE = relive.ArraySpec((4,), "float32", kind="state")
SPEC = relive.StepSpec(
    {"observation": STATE, "action": relive.ArraySpec((), "int64"), "reward": relive.ArraySpec((), "float32")}
)
STEP: dict[str, Any] = {"observation": np.zeros(4, np.float32), "action": 1, "reward": 0.0}


# ---- shapes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "expected, got, told",
    [
        ((), (1,), ".squeeze(-1)"),
        ((84, 84), (84, 84, 1), ".squeeze(-1)"),
        ((84, 84), (1, 84, 84), ".reshape((84, 84)), or open table.writer(num_lanes=1)"),
        ((), (1, 1), ".reshape(())"),
        ((8, 1), (8,), ".reshape((8, 1))"),
        ((84, 84), (4, 84, 84), "an axis of 4 too many"),
        ((84, 84), (4, 84, 84), "unstack="),
        ((4,), (8, 4), "table.writer(num_lanes=...)"),
        ((8, 84, 84), (84, 84), "the first axis, of lanes or time, is missing"),
        ((4, 4, 2), (4, 2), "single_observation_space"),  # the space of a vector, declared as that of one environment
        ((3, 96, 84), (96, 84, 3), "np.moveaxis"),
        ((8, 3), (7, 3), "axes are (lanes, ...) in append"),
        ("(num_items,)", (8, 1), "expected shape (num_items,), got (8, 1)"),
    ],
)
def test_shapes_of_columns(expected: Any, got: Any, told: str) -> None:
    error = errors.ShapeMismatch("observation", expected, got)
    assert told in str(error) and str(error).startswith("column 'observation': expected shape ")
    assert (error.expected, error.got) == (expected, got)


@pytest.mark.parametrize(
    "got, told",
    [
        ((8, 1), ".squeeze(-1)"),
        ((7,), "one for each item"),
        ((8, 8), "[B, 1] and [B] together make [B, B]"),
        ((), "one for"),
    ],
)
def test_shapes_of_priorities(got: tuple[int, ...], told: str) -> None:
    """They have no lanes, and a network with one output gives [B, 1]."""
    with relive.Table(SPEC, 100, relive.Index(sampler=relive.Prioritized())) as table, table.writer() as writer:
        for _ in range(9):
            writer.append(**STEP)
        keys = table.sample(8).item_keys
        with pytest.raises(errors.ShapeMismatch) as caught:
            table.update_priorities(keys, np.ones(got))
        assert (caught.value.column, caught.value.expected, caught.value.got) == ("priorities", (8,), got)
        assert told in str(caught.value) and "lanes" not in str(caught.value) and "column" not in str(caught.value)
        assert table.update_priorities(keys, np.ones((8, 1)).squeeze(-1)) == 8


def test_a_batch_in_the_place_of_its_keys() -> None:
    with relive.Table(SPEC, 100, relive.Index(sampler=relive.Prioritized())) as table, table.writer() as writer:
        writer.append(**STEP, terminated=True)
        batch = table.sample(2)
        calls: list[Callable[[], Any]] = [
            lambda: table.update_priorities(batch, np.ones(2)),  # type: ignore[arg-type]
            lambda: table.gather(batch),  # type: ignore[arg-type]
            lambda: table.delete(batch),  # type: ignore[arg-type]
        ]
        for call in calls:
            with pytest.raises(errors.InvalidConfig, match=r"the \.item_keys of this one"):
                call()


# ---- values --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong, told",
    [
        ({"observation": (np.zeros(4), {})}, "observation, info = env.reset()"),
        ({"observation": np.zeros((4, 4))}, "an axis of 4 too many"),
        ({"reward": [0.5]}, ".squeeze(-1)"),
        ({"action": 1.0}, "expected int64, got float64"),
    ],
)
def test_what_an_append_is_given(wrong: dict[str, Any], told: str) -> None:
    with relive.Table(SPEC, 100) as table, table.writer() as writer:
        with pytest.raises(errors.ReliveError) as caught:
            writer.append(**STEP | wrong)
        assert told in str(caught.value)
        assert len(table) == 0


def test_images_that_were_scaled_before_they_are_stored() -> None:
    error = errors.DtypeMismatch("observation", "uint8", "float32")
    assert "scale them after sampling" in str(error)
    assert "scale" not in str(errors.DtypeMismatch("action", "int64", "float32"))


def test_an_array_in_a_message_is_told_by_its_shape() -> None:
    nested = relive.StepSpec({"observation": {"camera": relive.ArraySpec((8, 8), "uint8", kind="state")}})
    with relive.Table(nested, 10) as table, table.writer() as writer:
        with pytest.raises(errors.SpecError) as caught:
            writer.append(observation=np.zeros((8, 8), np.uint8))
    assert "<uint8 array of shape (8, 8)>" in str(caught.value) and "\n" not in str(caught.value)


def test_a_part_of_an_observation_without_the_observation() -> None:
    nested = relive.StepSpec({"observation": {"camera": STATE, "speed": STATE}})
    with relive.Table(nested, 10) as table, table.writer() as writer:
        with pytest.raises(errors.UnknownColumn) as caught:
            writer.append(camera=np.zeros(4), speed=np.zeros(4))
        assert caught.value.instead == "observation/camera"
        with pytest.raises(errors.MissingColumn) as missing:
            writer.append(observation={"camera": np.zeros(4)})
        assert missing.value.column == "observation/speed" and "did you mean" not in str(missing.value)


def test_one_step_is_no_item_yet() -> None:
    with relive.Table(SPEC, 10) as table, table.writer() as writer:
        writer.append(**STEP)
        with pytest.raises(errors.WaitsForItself, match="once next_<state> was given, or the step after it appended"):
            table.sample(1)


def test_numbers_written_as_floats() -> None:
    with pytest.raises(errors.InvalidConfig, match="written as one: 1_000_000, got 1000000.0"):
        relive.Table(SPEC, 1e6)  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidConfig) as caught:
        relive.Table(SPEC, 1.5)  # type: ignore[arg-type]
    assert "written" not in str(caught.value)


# ---- declarations --------------------------------------------------------------------------------------------------


class Space:
    """Stands for an environment that is given where one of its spaces is wanted."""

    observation_space = action_space = None


@pytest.mark.parametrize(
    "declare, told",
    [
        (lambda: relive.StepSpec({"observation": (4,)}), "ArraySpec(shape, dtype)"),
        (lambda: relive.StepSpec(observation=STATE), "StepSpec({'observation': "),
        (lambda: relive.StepSpec({"observation/camera": STATE}), "nested columns are declared as dicts"),
        (lambda: relive.StepSpec({"next_obs": STATE}), "'obs' with kind='state' yields it"),
        (lambda: relive.StepSpec({"terminated": STATE}), "every append takes it"),
        (
            lambda: relive.StepSpec({"done": relive.ArraySpec((), "bool")}),
            "as terminated= or, by a time limit, truncated=",
        ),
        (lambda: relive.StepSpec.from_spaces(Space(), Space()), "whose spaces are wanted"),
        (lambda: relive.Table(Space(), 100), "StepSpec.from_spaces"),
        (lambda: relive.Index(relive.Prioritized()), "this one is given as sampler="),
        (lambda: relive.Table(SPEC, 100, relive.Prioritized()), "expected an Index(sampler=...)"),
        (lambda: relive.Index(relive.Uniform(), relive.MinSize(3)), "this one is given as sampler="),
        (lambda: relive.Index(limiter=relive.Prioritized()), "this one is given as sampler="),
    ],
)
def test_declarations(declare: Callable[[], Any], told: str) -> None:
    with pytest.raises(errors.ReliveError) as caught:
        declare()
    assert told in str(caught.value)


def test_a_dtype_of_torch() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed here")
    with pytest.raises(errors.SpecError, match="such as 'float32'"):
        relive.ArraySpec((), torch.float32)
