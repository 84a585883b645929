"""Turns the values that a caller gives into arrays of exactly a column's shape and dtype, or refuses them.

The casting rules:

- Python scalars pass, and so do numpy's same_kind casts (float64 to float32, integers to floats).
- Integers pass to another integer dtype if every value fits.
- Float to integer, complex to real, values out of range, and masked arrays that hide a value are refused.

The core calls this code for every value that is not already exact.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from relive.config.spec import StepSpec
from relive.errors import DtypeMismatch, InvalidConfig, ShapeMismatch, UnknownColumn

__all__ = ["Normaliser", "as_array", "as_buffers", "as_keys", "cast", "refuse_hidden", "unmasked", "with_items"]

_ENDS = ("terminated", "truncated")
_MOST_AXES = 64  # of a numpy array: deeper lists are no array, and a list may contain itself


class _Cell(NamedTuple):
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    unstack: int  # 1: the environment gives single values


@final
class Normaliser:
    """normalise(column, value, leading) for one writer: a C-contiguous array of shape leading + column shape.

    leading is () or (M,) in append, and (T,) or (T, M) in extend; T + 1 rows where a state column has them. The columns
    are the declared ones, next_<state>, terminated, truncated, discount and priority.

    repeated: columns whose stacks repeat the first value of an episode. The first stack that the writer is given shows
    how the environment pads: a UserWarning says if it pads such a column with zeros.
    """

    __slots__ = ("_cells", "_num_append_axes", "_unseen")

    def __init__(self, spec: StepSpec, single: bool, repeated: frozenset[str] = frozenset()) -> None:
        self._num_append_axes = 0 if single else 1
        self._unseen = set(repeated & set(spec.unstack))
        cells = {
            "terminated": _Cell(np.dtype(np.bool_), (), 1),
            "truncated": _Cell(np.dtype(np.bool_), (), 1),
            "discount": _Cell(np.dtype(np.float32), (), 1),
            "priority": _Cell(np.dtype(np.float64), (), 1),
        }
        for name, column in spec.columns.items():
            cell = _Cell(column.dtype, column.shape, spec.unstack.get(name, 1))
            cells[name] = cell
            if column.kind == "state":
                cells[f"next_{name}"] = cell
        self._cells = cells

    def __call__(self, column: str, value: object, leading: tuple[int, ...]) -> npt.NDArray[Any]:
        cell = self._cells[column]
        array = as_array(column, value)
        if array.shape != leading + cell.shape:
            array = self._fit(column, cell, array, leading)
        if array.dtype != cell.dtype:
            array = cast(column, array, cell.dtype)
        elif array.dtype.num != cell.dtype.num:
            array = array.view(cell.dtype)  # numpy takes long and long long for equal, the core does not
        return array if array.flags.c_contiguous else array.copy(order="C")

    def _fit(self, column: str, cell: _Cell, array: npt.NDArray[Any], leading: tuple[int, ...]) -> npt.NDArray[Any]:
        if cell.unstack > 1 and array.shape == (*leading, cell.unstack, *cell.shape):
            if column in self._unseen:
                self._look_at_padding(column, array, len(leading))
            newest: npt.NDArray[Any] = array[(slice(None),) * len(leading) + (-1,)]
            return newest
        if array.ndim == 0 and column == "priority":
            return np.full(leading, array)
        if array.ndim == 0 and column in _ENDS:
            if len(leading) == self._num_append_axes:
                return np.full(leading, array)
            ends = np.zeros(leading, array.dtype)
            ends[-1:] = array  # in extend, a scalar stands for the last row
            return ends
        expected = leading + cell.shape
        raise ShapeMismatch(column, expected, array.shape)

    def _look_at_padding(self, column: str, stacks: npt.NDArray[Any], num_leading: int) -> None:
        self._unseen.discard(column)
        if num_leading > self._num_append_axes:
            stacks = stacks[:1]  # of an extend: its first row
        frames = np.moveaxis(stacks, num_leading, 0)
        if frames[-1].any() and not frames[:-1].any():
            message = (
                f"the environment fills the first stack of {column!r} with zeros, where the table repeats the first"
                " value; give stack_pad='zeros' to the items that stack it"
            )
            warnings.warn(message, UserWarning, stacklevel=3)


def as_array(column: str, value: object) -> npt.NDArray[Any]:
    """The value as a numpy array; torch tensors are detached and copied to the CPU.

    Raises DtypeMismatch, ShapeMismatch.
    """
    refuse_hidden(column, value)
    try:
        if hasattr(value, "detach") and hasattr(value, "cpu"):
            value = value.detach().cpu()  # a meta tensor has no data: NotImplementedError, which is a RuntimeError
        array = np.asarray(value)
    except ValueError:
        if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], dict):
            got = "a pair with a dict, as env.reset() returns it: observation, info = env.reset()"
            raise ShapeMismatch(column, "of one array", got) from None
        raise ShapeMismatch(column, "equally long rows", "nested values of different lengths") from None
    except (TypeError, OverflowError, RuntimeError) as error:
        raise DtypeMismatch(column, "numbers", f"{type(value).__name__} ({error})") from None
    if array.dtype.kind not in "biufc":
        raise DtypeMismatch(column, "numbers", f"{type(value).__name__} of dtype {array.dtype}")
    return array


def unmasked(column: str, value: object, dtype: npt.DTypeLike | None = None) -> npt.NDArray[Any]:
    """np.asarray(value, dtype), which alone would drop a mask. Raises DtypeMismatch if the value hides values."""
    refuse_hidden(column, value)
    return np.asarray(value, dtype)


def refuse_hidden(column: str, value: object, depth: int = _MOST_AXES) -> None:
    """Raises DtypeMismatch if the value is a masked array that hides a value, or if a part of a tree is one.

    numpy loads np.ma at its first use. The function therefore looks at subclasses of ndarray only.
    """
    if isinstance(value, (list, tuple)):
        for part in value:
            if depth and isinstance(part, (list, tuple, dict, np.ndarray)):
                refuse_hidden(column, part, depth - 1)
    elif isinstance(value, dict):
        for name, part in value.items():
            if depth:
                refuse_hidden(f"{column}/{name}", part, depth - 1)
    elif isinstance(value, np.ndarray) and type(value) is not np.ndarray and np.ma.is_masked(value):
        hidden = f"a masked array that hides {int(np.ma.getmaskarray(value).sum())} of {value.size} values"
        raise DtypeMismatch(column, "numbers without a mask, as array.filled(value) gives them", hidden)


def cast(column: str, array: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The array in another dtype by the rules above. Raises DtypeMismatch."""
    source = array.dtype
    if dtype.kind in "biu":
        if source.kind not in "biu":
            raise DtypeMismatch(column, dtype.name, source.name)
        if not np.can_cast(source, dtype, "safe") and array.size:
            low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
            least, most = int(array.min()), int(array.max())
            if least < low or most > high:
                outlier = least if least < low else most
                raise DtypeMismatch(column, f"{dtype.name} ({low} to {high})", f"{source.name} with value {outlier}")
        return array.astype(dtype)
    if not np.can_cast(source, dtype, "same_kind"):
        raise DtypeMismatch(column, dtype.name, source.name)
    try:
        with np.errstate(over="raise"):
            return array.astype(dtype)
    except FloatingPointError:
        raise DtypeMismatch(column, dtype.name, f"{source.name} with values beyond its range") from None


def as_keys(items: Any) -> npt.NDArray[np.int64]:
    """Keys int64[B], C-contiguous. Raises ShapeMismatch, DtypeMismatch."""
    if hasattr(items, "item_keys"):
        raise InvalidConfig("item_keys", "keys int64[B]: the .item_keys of this one", items)
    keys = as_array("item_keys", items)
    if keys.ndim != 1:
        raise ShapeMismatch("item_keys", "(num_items,)", keys.shape)
    keys = keys if keys.dtype == np.int64 or not keys.size else cast("item_keys", keys, np.dtype(np.int64))
    return np.ascontiguousarray(keys, dtype=np.int64)


def as_buffers(
    out: Mapping[str, npt.NDArray[Any]], outputs: list[tuple[str, str, tuple[int, ...], int, str]], num_items: int
) -> list[npt.NDArray[Any]]:
    """The arrays of `out` in the order of a selection's outputs, each exactly as gather fills it.

    Raises InvalidConfig, UnknownColumn, DtypeMismatch, ShapeMismatch.
    """
    if not isinstance(out, Mapping):
        raise InvalidConfig("out", "a batch, or a dict {flat name: array}", out)
    buffers = []
    for name, dtype, shape, item_axis, _ in outputs:
        if name not in out:
            raise UnknownColumn(name, [known for known in out if isinstance(known, str)])
        array = out[name]
        if not isinstance(array, np.ndarray) or array.dtype != np.dtype(dtype):
            raise DtypeMismatch(f"out[{name!r}]", f"a numpy array of {np.dtype(dtype)}", getattr(array, "dtype", array))
        expected = with_items(shape, item_axis, num_items)
        if array.shape != expected or not array.flags.c_contiguous or not array.flags.writeable:
            raise ShapeMismatch(f"out[{name!r}]", f"{expected}, C-contiguous and writable", array.shape)
        buffers.append(array)
    return buffers


def with_items(shape: tuple[int, ...], item_axis: int, num_items: int) -> tuple[int, ...]:
    """The shape of an array of num_items items, each of this shape."""
    return (*shape[:item_axis], num_items, *shape[item_axis:])
