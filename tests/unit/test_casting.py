"""The casting rules: what is lossless or same_kind passes, the rest is refused and names its column."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relive import ArraySpec, StepSpec
from relive.config.casting import Normaliser, as_array, as_buffers, as_keys, cast
from relive.errors import DtypeMismatch, ShapeMismatch, UnknownColumn

SPEC = StepSpec(
    {
        "frame": ArraySpec((2, 2), "uint8", kind="state"),
        "action": ArraySpec((), "int64"),
        "small": ArraySpec((), "int8"),
        "reward": ArraySpec((), "float32"),
        "wave": ArraySpec((), "complex64"),
        "flag": ArraySpec((), "bool"),
    },
    unstack={"frame": 3},
)
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


@pytest.mark.parametrize(
    "dtype, value, expected",
    [
        ("float32", np.float64(1.5), 1.5),
        ("float32", 3, 3.0),
        ("float32", True, 1.0),
        ("float16", np.float32(0.5), 0.5),
        ("complex64", 1.5, 1.5 + 0j),
        ("int64", np.int8(-3), -3),
        ("int8", 127, 127),
        ("uint8", np.int64(255), 255),
        ("int64", True, 1),
        ("bool", 1, True),
        ("bool", np.array([0, 1], np.uint8), [False, True]),
        ("float32", np.inf, np.inf),
        ("float32", [], []),
        ("int8", np.array([], np.int64), []),
    ],
)
def test_passes(dtype: str, value: Any, expected: Any) -> None:
    got = cast("x", np.asarray(value), np.dtype(dtype))
    assert got.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(got, np.asarray(expected, dtype))


@pytest.mark.parametrize(
    "dtype, value",
    [
        ("int64", 1.0),
        ("int64", np.float32(2.0)),
        ("int8", 128),
        ("int8", np.array([0, -129])),
        ("uint8", -1),
        ("uint64", np.int64(-1)),
        ("int64", np.uint64(2**63)),
        ("float32", 1j),
        ("float32", 1e300),
        ("float16", 70_000),
        ("bool", 2),
        ("bool", 0.0),
        ("int64", 1j),
    ],
)
def test_refuses(dtype: str, value: Any) -> None:
    with pytest.raises(DtypeMismatch) as caught:
        cast("x", np.asarray(value), np.dtype(dtype))
    assert caught.value.column == "x" and "x" in str(caught.value)


@given(source=st.sampled_from(INTEGERS), target=st.sampled_from(INTEGERS), data=st.data())
def test_integers_pass_exactly_where_every_value_fits(source: str, target: str, data: st.DataObject) -> None:
    bounds = np.iinfo(source)
    values = data.draw(st.lists(st.integers(int(bounds.min), int(bounds.max)), min_size=1, max_size=4))
    fits = all(np.iinfo(target).min <= value <= np.iinfo(target).max for value in values)
    array = np.array(values, source)
    if fits:
        assert cast("x", array, np.dtype(target)).tolist() == values
    else:
        with pytest.raises(DtypeMismatch):
            cast("x", array, np.dtype(target))


def test_normalise_gives_the_exact_shape_and_dtype() -> None:
    normalise = Normaliser(SPEC, single=False)
    got = normalise("frame", np.zeros((2, 5, 2), np.int64).swapaxes(0, 1)[:3, :, :], (3,))
    assert got.shape == (3, 2, 2) and got.dtype == np.uint8 and got.flags.c_contiguous
    got = normalise("action", [1, 2, 3], (3,))
    assert got.dtype == np.int64 and got.tolist() == [1, 2, 3]
    got = normalise("reward", 1.5, ())
    assert got.shape == () and got.dtype == np.float32
    for column, dtype in (("terminated", "bool"), ("discount", "float32"), ("priority", "float64"), ("flag", "bool")):
        assert normalise(column, [1, 0], (2,)).dtype == np.dtype(dtype)


def test_normalise_copies_only_what_it_must() -> None:
    normalise = Normaliser(SPEC, single=False)
    exact = np.zeros((3, 2, 2), np.uint8)
    assert normalise("frame", exact, (3,)) is exact
    assert normalise("frame", np.asfortranarray(np.zeros((3, 2, 2), np.uint8)), (3,)).flags.c_contiguous


def test_equal_dtypes_of_other_names_become_the_columns_own() -> None:
    spec = StepSpec({"big": ArraySpec((), "uint64"), "int": ArraySpec((2,), "int64")})
    normalise = Normaliser(spec, single=True)
    assert normalise("big", 2**63, ()).dtype.num == spec.columns["big"].dtype.num
    assert normalise("int", np.zeros(2, np.longlong), ()).dtype.num == spec.columns["int"].dtype.num


@pytest.mark.parametrize(
    "column, value, leading",
    [
        ("frame", np.zeros((3, 2), np.uint8), (3,)),
        ("frame", np.zeros((2, 2, 2), np.uint8), (3,)),
        ("action", np.zeros((3, 1), np.int64), (3,)),
        ("action", 1, (3,)),
        ("reward", np.zeros(1), ()),
        ("terminated", np.zeros(2, bool), (3,)),
        ("priority", np.ones(2), (3,)),
        ("frame", [[1, 2], [3]], ()),
    ],
)
def test_wrong_shapes_are_refused(column: str, value: Any, leading: tuple[int, ...]) -> None:
    with pytest.raises(ShapeMismatch) as caught:
        Normaliser(SPEC, single=False)(column, value, leading)
    assert caught.value.column == column


@pytest.mark.parametrize("value", [None, "text", object(), [None, 1], {"a": 1}, 2**70, b"x"])
def test_what_is_no_number_is_refused(value: Any) -> None:
    with pytest.raises(DtypeMismatch):
        Normaliser(SPEC, single=True)("action", value, ())


def test_stacks_give_their_newest_frame() -> None:
    stack = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
    single, several = Normaliser(SPEC, single=True), Normaliser(SPEC, single=False)
    assert single("frame", stack, ()).tolist() == stack[-1].tolist()
    assert single("next_frame", stack.astype(np.int64), ()).tolist() == stack[-1].tolist()
    assert several("frame", np.stack([stack, stack + 100]), (2,)).tolist() == [
        stack[2].tolist(),
        (stack[2] + 100).tolist(),
    ]
    assert single("frame", np.stack([stack] * 5), (5,)).shape == (5, 2, 2)
    assert several("frame", np.stack([[stack] * 4] * 5), (5, 4)).shape == (5, 4, 2, 2)
    assert single("frame", stack[-1], ()).tolist() == stack[-1].tolist(), "a frame that is no stack is taken too"
    with pytest.raises(ShapeMismatch):
        single("frame", np.zeros((4, 2, 2), np.uint8), ())


def test_a_scalar_end_speaks_of_every_lane_in_append_and_of_the_last_row_in_extend() -> None:
    single, several = Normaliser(SPEC, single=True), Normaliser(SPEC, single=False)
    assert several("terminated", True, (3,)).tolist() == [True] * 3
    assert single("truncated", True, (3,)).tolist() == [False, False, True]
    assert several("truncated", np.bool_(True), (2, 3)).tolist() == [[False] * 3, [True] * 3]
    assert single("terminated", True, (0,)).tolist() == []
    assert single("terminated", 1, ()).tolist() is True


def test_a_scalar_priority_speaks_of_every_item() -> None:
    assert Normaliser(SPEC, single=False)("priority", 2, (2, 3)).tolist() == [[2.0] * 3] * 2


def test_tensors_are_taken() -> None:
    class Tensor:
        """The part of torch's Tensor that casting uses: detach, cpu, and the array protocol."""

        def detach(self) -> Tensor:
            return self

        def cpu(self) -> Tensor:
            return self

        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
            return np.ones(3, np.float32)

    assert as_array("x", Tensor()).tolist() == [1.0] * 3


def test_keys() -> None:
    assert as_keys([1, 2]).dtype == np.int64
    assert as_keys([]).dtype == np.int64
    assert as_keys(np.arange(6)[::2]).flags.c_contiguous
    with pytest.raises(DtypeMismatch):
        as_keys([1.0])
    with pytest.raises(DtypeMismatch):
        as_keys("keys")
    with pytest.raises(ShapeMismatch):
        as_keys(7)
    with pytest.raises(ShapeMismatch):
        as_keys([[1, 2]])


def test_buffers_must_be_exact() -> None:
    outputs = [("reward", "<f4", (), 0, "item"), ("frame", "|u1", (2, 2), 0, "item")]
    good = {"frame": np.zeros((3, 2, 2), np.uint8), "reward": np.zeros(3, np.float32)}
    buffers = as_buffers(good, outputs, 3)
    assert len(buffers) == 2 and buffers[0] is good["reward"] and buffers[1] is good["frame"]
    with pytest.raises(UnknownColumn):
        as_buffers({"reward": good["reward"]}, outputs, 3)
    with pytest.raises(DtypeMismatch):
        as_buffers({**good, "reward": np.zeros(3)}, outputs, 3)
    with pytest.raises(DtypeMismatch):
        as_buffers({**good, "reward": [0.0] * 3}, outputs, 3)  # type: ignore[dict-item]
    for bad in (np.zeros(4, np.float32), np.zeros(6, np.float32)[::2]):
        with pytest.raises(ShapeMismatch):
            as_buffers({**good, "reward": bad}, outputs, 3)
    frozen = np.zeros(3, np.float32)
    frozen.flags.writeable = False
    with pytest.raises(ShapeMismatch):
        as_buffers({**good, "reward": frozen}, outputs, 3)
