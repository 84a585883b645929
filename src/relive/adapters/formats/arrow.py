"""Columns as arrays of Arrow, for the formats that are Parquet files.

An array [N, 3, 2] is a list of N fixed-size lists of 3 fixed-size lists of 2 numbers. Complex numbers are pairs of
floats.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from relive.adapters.errors import DatasetUnreadable
from relive.config.spec import ArraySpec
from relive.errors import MissingPackage
from relive.errors.extras import install_command

try:
    import pyarrow as pa
except ImportError as _problem:
    raise MissingPackage("Parquet", "pyarrow", install_command("parquet")) from _problem

__all__ = ["from_arrow", "lists", "to_arrow", "type_of"]


def to_arrow(rows: npt.NDArray[Any]) -> Any:
    """An array [N, ...] as a pyarrow.Array of N values."""
    values = np.ascontiguousarray(rows)
    if values.dtype.kind == "c":
        values = values.view(values.real.dtype).reshape(*values.shape, 2)
    array = pa.array(values.reshape(-1))
    for size in reversed(values.shape[1:]):
        array = pa.FixedSizeListArray.from_arrays(array, size)
    return array


def type_of(column: ArraySpec) -> Any:
    """The type of one value of a column."""
    return to_arrow(np.zeros((1, *column.shape), column.dtype)).type


def from_arrow(array: Any, column: ArraySpec, path: object) -> npt.NDArray[Any]:
    """The values of a pyarrow array, [N, *shape]. Raises DatasetUnreadable if they do not fit the column."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    count = len(array)
    try:
        while pa.types.is_nested(array.type):
            array = array.flatten()
        values = np.asarray(array.to_numpy(zero_copy_only=False))
        if column.dtype.kind == "c":
            values = np.ascontiguousarray(values).view(column.dtype)
        if values.size != count * math.prod(column.shape) or not np.can_cast(values.dtype, column.dtype, "same_kind"):
            raise ValueError(f"{values.size} values of {values.dtype}")
        return values.astype(column.dtype, copy=False).reshape((count, *column.shape))
    except (ValueError, TypeError, pa.ArrowException) as problem:
        raise DatasetUnreadable(path, f"{count} values {column!r}", str(problem)) from None


def lists(rows: npt.NDArray[Any], lengths: npt.NDArray[np.int64]) -> Any:
    """Rows that lie end to end as lists of these lengths."""
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    return pa.LargeListArray.from_arrays(pa.array(offsets), to_arrow(rows))
