"""The block in which streamed rows wait: what it takes as it is, what it sends through normalise, what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from relive._core import RowBlock
from relive.config.casting import Normaliser
from relive.config.spec import ArraySpec, StepSpec
from relive.errors import DtypeMismatch, ShapeMismatch

KINDS = ("bool", "int8", "uint8", "int16", "int32", "int64", "uint64", "float16", "float32", "float64")
SPEC = StepSpec({"image": ArraySpec((2, 3), "uint8"), **{kind: ArraySpec((), kind) for kind in KINDS}})


class Counted:
    """A normaliser that remembers whom it was asked about."""

    def __init__(self) -> None:
        self.normalise = Normaliser(SPEC, True)
        self.asked: list[str] = []

    def __call__(self, name: str, value: object, leading: tuple[int, ...]) -> npt.NDArray[Any]:
        self.asked.append(name)
        return self.normalise(name, value, leading)


def block(normalise: Any, *names: str, capacity: int = 8) -> RowBlock:
    cells = [(name, SPEC.columns[name].dtype.str, SPEC.columns[name].shape) for name in names]
    return RowBlock(cells, capacity, normalise, ())


@pytest.mark.parametrize("kind", KINDS)
def test_every_dtype_as_array_numpy_scalar_and_python_scalar(kind: str) -> None:
    rows = block(Counted(), kind)
    dtype = np.dtype(kind)
    values = [np.array(1, dtype), dtype.type(1), dtype.type(0), True if kind == "bool" else 1]
    for number, value in enumerate(values):
        assert rows.put({kind: value}) == number
    (array,) = rows.arrays()
    assert array.dtype == dtype and array.tolist() == [1, 1, 0, 1]


def test_exact_values_are_taken_without_python() -> None:
    normalise = Counted()
    rows = block(normalise, "image", "float32", "float64", "int64", "bool")
    image = np.arange(6, dtype=np.uint8).reshape(2, 3)
    for real in (np.float32(0.5), 0.5, float("nan"), float("inf")):
        rows.put({"image": image, "float32": real, "float64": 0.5, "int64": -(1 << 63), "bool": np.True_})
        image += 1  # what was given is copied
    assert normalise.asked == []
    images, singles, doubles, whole, flags = rows.arrays()
    assert images[:, 0, 0].tolist() == [0, 1, 2, 3] and images[3, 1].tolist() == [6, 7, 8]
    assert singles[:2].tolist() == [0.5, 0.5] and np.isnan(singles[2]) and np.isinf(singles[3])
    assert doubles.tolist() == [0.5] * 4 and whole.tolist() == [-(1 << 63)] * 4 and flags.all()


def test_what_is_not_exact_is_made_so() -> None:
    normalise = Counted()
    rows = block(normalise, "image", "float32")
    image = np.arange(6, dtype=np.int64).reshape(3, 2).T  # neither the dtype nor the order
    rows.put({"image": image, "float32": 3})
    rows.put({"image": image.tolist(), "float32": np.float64(0.5)})
    assert rows.arrays()[0].tolist() == [image.tolist()] * 2 and rows.arrays()[1].tolist() == [3.0, 0.5]
    assert normalise.asked.count("image") == 2


def test_a_refused_row_leaves_the_block_as_it_was() -> None:
    rows = block(Counted(), "int64", "image", "float32")
    good = {"int64": 1, "image": np.zeros((2, 3), np.uint8), "float32": 0.5}
    rows.put(good)
    for change, error in (
        ({"image": np.zeros((3, 2), np.uint8)}, ShapeMismatch),
        ({"image": np.full((2, 3), 256)}, DtypeMismatch),
        ({"float32": 1e39}, DtypeMismatch),
        ({"int64": 1 << 70}, DtypeMismatch),
    ):
        with pytest.raises(error):
            rows.put(good | {"int64": 7} | change)
    with pytest.raises(KeyError):
        rows.put({"int64": 7, "image": good["image"]})
    assert rows.num_rows == 1 and rows.put(good | {"int64": 2}) == 1
    assert rows.arrays()[0].tolist() == [1, 2]


def test_a_full_block_and_a_normaliser_that_lies() -> None:
    rows = block(lambda *_: np.zeros(5), "float32", capacity=2)
    with pytest.raises(TypeError):
        rows.put({"float32": "x"})
    for number in range(2):
        assert rows.put({"float32": float(number)}) == number
    with pytest.raises(IndexError):
        rows.put({"float32": 2.0})
    assert rows.capacity == 2
    arrays = rows.arrays()
    del rows
    assert arrays[0].tolist() == [0.0, 1.0]  # they keep the memory
    assert block(Counted(), "float32").arrays()[0].shape == (0,)
