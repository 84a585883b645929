"""The arguments of create_items, as the arrays that a core takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from relive.config.casting import as_array, cast
from relive.config.explicit import Explicit
from relive.config.spec import ArraySpec
from relive.errors import (
    DtypeMismatch,
    InvalidConfig,
    InvalidPriority,
    MissingColumn,
    ShapeMismatch,
    UnknownColumn,
)

__all__ = ["NewItems", "new_items", "with_axis"]

Keys = npt.NDArray[np.int64]

_INT64 = np.dtype(np.int64)


class NewItems(NamedTuple):
    """N items of an index with W windows.

    Attributes:
        windows: int64[N, W, 2]: the key of each window's first row, and its number of rows. A negative number: the key
            is that of the last row. 0: the item leaves the window out.
        rows: for each window int64[N, R], the keys of all its rows; None: the rows are not named.
        priorities: float32[N] or None.
        columns: [N, *shape] of each own column of the items, exact and C-contiguous.
    """

    windows: Keys
    rows: list[Keys | None]
    priorities: npt.NDArray[np.float32] | None
    columns: list[npt.NDArray[Any]]


def new_items(items: Explicit, windows: Any, priority: Any, columns: Mapping[str, Any]) -> NewItems:
    """Checks names, shapes and dtypes of the arguments. Only the core can check which rows exist.

    Raises UnknownColumn, MissingColumn, ShapeMismatch, DtypeMismatch, InvalidConfig, InvalidPriority.
    """
    given = windows if isinstance(windows, Mapping) else {"": windows}
    for name in given:
        if not isinstance(name, str) or name not in items.windows:
            known = " or ".join(map(repr, items.windows)) if items.is_named else "none: the rows of the only window"
            raise InvalidConfig("name of a window", known, name)
    if not given:
        raise InvalidConfig("windows", "rows of at least one window", windows)
    parts = {name: _window(_title(name), items.windows[name].length, value) for name, value in given.items()}
    count, first = next((len(part[0]), name) for name, part in parts.items())
    for name, (keys, _, _) in parts.items():
        if len(keys) != count:
            raise ShapeMismatch(_title(name), f"as many items as {_title(first)} has, {count}", keys.shape)
    pairs = np.zeros((count, len(items.windows), 2), np.int64)
    rows: list[Keys | None] = [None] * len(items.windows)
    for number, name in enumerate(items.windows):
        if name in parts:
            pairs[:, number, 0], pairs[:, number, 1], rows[number] = parts[name]
    return NewItems(pairs, rows, _priorities(priority, count), _values(items.columns, columns, count))


def with_axis(windows: Any, columns: Mapping[str, Any]) -> tuple[dict[Any, Any], dict[str, Any]]:
    """The windows and columns of one item, as those of a call for several. Raises ShapeMismatch, DtypeMismatch."""

    def several(value: Any) -> Any:
        if isinstance(value, tuple) and len(value) == 2:
            return as_array("windows", value[0])[np.newaxis], value[1]
        return as_array("windows", value)[np.newaxis]

    given = windows if isinstance(windows, Mapping) else {"": windows}
    values = {name: as_array(name, value)[np.newaxis] for name, value in columns.items()}
    return {name: several(value) for name, value in given.items()}, values


def _title(name: str) -> str:
    return f"window {name!r}" if name else "windows"


def _integers(what: str, value: Any) -> Keys:
    array = as_array(what, value)
    if array.dtype == np.bool_:
        raise DtypeMismatch(what, "keys of rows, int64", "bool")
    if not array.size and array.dtype.kind == "f":  # an empty list becomes such an array
        array = array.astype(np.int64)
    return array if array.dtype == _INT64 else cast(what, array, _INT64)


def _window(what: str, length: int, value: Any) -> tuple[Keys, Any, Keys | None]:
    """Keys [N], numbers of rows (one, or [N]), and named rows [N, R] or None, from the argument for one window."""
    if isinstance(value, tuple) and len(value) == 2:
        keys, num_rows = _integers(what, value[0]), _integers(f"rows of {what}", value[1])
        if keys.ndim != 1 or num_rows.shape not in ((), keys.shape):
            expected = "(keys of shape (num_items,), one number of rows or one for each)"
            raise ShapeMismatch(what, expected, (keys.shape, num_rows.shape))
        return keys, num_rows, None
    keys = _integers(what, value)
    if keys.ndim == 1:
        return keys, length, None
    if keys.ndim != 2 or not 1 <= keys.shape[1] <= length:
        raise ShapeMismatch(what, f"keys (num_items,) or (num_items, rows), at most {length} rows", keys.shape)
    return keys[:, 0], keys.shape[1], np.ascontiguousarray(keys)


def _priorities(priority: Any, count: int) -> npt.NDArray[np.float32] | None:
    if priority is None:
        return None
    wide = cast("priority", as_array("priority", priority), np.dtype(np.float64))
    if wide.shape not in ((), (count,)):
        raise ShapeMismatch("priority", f"() or ({count},)", wide.shape)
    with np.errstate(over="ignore"):
        narrow = np.broadcast_to(wide, (count,)).astype(np.float32)
    wrong = np.flatnonzero(~(np.isfinite(narrow) & (narrow >= 0)))
    if len(wrong):
        raise InvalidPriority(int(wrong[0]), float(np.broadcast_to(wide, (count,))[wrong[0]]))
    return narrow


def _values(specs: Mapping[str, ArraySpec], columns: Mapping[str, Any], count: int) -> list[npt.NDArray[Any]]:
    for name in columns:
        if name not in specs:
            raise UnknownColumn(str(name), specs)
    values = []
    for name, spec in specs.items():
        if name not in columns:
            raise MissingColumn(name, columns)
        array = as_array(name, columns[name])
        if array.shape != (count, *spec.shape):
            raise ShapeMismatch(name, (count, *spec.shape), array.shape)
        array = array if array.dtype == spec.dtype else cast(name, array, spec.dtype)
        values.append(np.ascontiguousarray(array, spec.dtype))
    return values
