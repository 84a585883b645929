"""Encodes the arguments of append, extend and end_episode as operations with exact arrays, or refuses the arguments.

A remote writer applies the same rules as a local writer, by the same code: the Normaliser converts or refuses each
value that does not have exactly the column's dtype and shape.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, final

import numpy as np
import numpy.typing as npt

from relive.config.spec import StepSpec
from relive.core.table_core import Normalise
from relive.errors import InvalidConfig, InvalidPriority
from relive.service.wire import framing
from relive.service.wire.rows import RowLayout

__all__ = ["Operation", "RowEncoder", "check_num_bytes", "check_num_keys", "check_priorities", "given"]

MAX_BODY_BYTES = 2**31 - 1 - 2 * framing.MAX_HEADER_BYTES  # Arrow and gRPC send no message of 2 GiB

_FLOAT32_MAX = float(np.finfo(np.float32).max)
_ENDS = ("terminated", "truncated", "discount")


@final
class Operation:
    """One operation of a message: its header, its arrays in order, and the shape of its future keys."""

    __slots__ = ("arrays", "header", "keys_shape")

    def __init__(self, header: dict[str, Any], arrays: list[npt.NDArray[Any]], keys_shape: tuple[int, ...]) -> None:
        self.header = header
        self.arrays = arrays
        self.keys_shape = keys_shape

    @property
    def num_keys(self) -> int:
        """Number of keys in the server's answer."""
        return math.prod(self.keys_shape)


@final
class RowEncoder:
    """Makes the operations of one writer. `single`: the writer has one lane, and its arrays have no lane axis.

    An operation that is too large for a message, or whose keys are too many for the answer, raises InvalidConfig.

    Attributes:
        max_keys: Most keys of an answer, as the server says when a stream is opened.
    """

    __slots__ = ("_normalise", "_plain", "_single", "layout", "max_keys")

    def __init__(self, spec: StepSpec, num_lanes: int, single: bool, normalise: Normalise) -> None:
        self.layout = RowLayout(spec, None if single else num_lanes)
        self._single = single
        self._normalise = normalise
        self.max_keys = 1 << 62
        self._plain = tuple(
            name for name in spec.columns if name in self.layout.cells and name not in self.layout.states
        )

    def append(self, columns: dict[str, Any], lanes: npt.NDArray[np.int32] | None, priority: Any) -> Operation:
        """Encodes one step of every lane, or of the named lanes."""
        columns = given(columns)
        num_named = None if lanes is None else len(lanes)
        leading = self.layout.leading(None, num_named)
        check_num_keys(math.prod(leading), self.max_keys)
        header = {"op": "append", "rows": 1, "lanes": num_named, "names": list(columns)}
        arrays = [self.exact(name, value, leading) for name, value in columns.items()]
        self._add_rest(header, arrays, lanes, priority, leading)
        return Operation(header, arrays, leading)

    def extend(self, columns: dict[str, Any], lanes: npt.NDArray[np.int32] | None, priority: Any) -> Operation:
        """Encodes a block of steps."""
        columns = given(columns)
        num_named = None if lanes is None else len(lanes)
        rows = self._count_rows(columns)
        states = self._count_states(columns, rows)
        leading = self.layout.leading(rows, num_named)
        check_num_keys(math.prod(leading), self.max_keys)
        header = {"op": "extend", "rows": rows, "states": states, "lanes": num_named, "names": list(columns)}
        arrays = []
        for name, value in columns.items():
            own = self.layout.leading(states, num_named) if name in self.layout.states else leading
            arrays.append(self.exact(name, value, own))
        self._add_rest(header, arrays, lanes, priority, leading)
        return Operation(header, arrays, leading)

    def end(self, columns: Mapping[str, Any], terminated: bool, lanes: npt.NDArray[np.int32] | None) -> Operation:
        """Encodes the end of an episode. One that is not terminated is truncated."""
        num_named = None if lanes is None else len(lanes)
        leading = self.layout.leading(None, num_named)
        header = {"op": "end", "lanes": num_named, "names": list(columns), "terminated": terminated}
        arrays = [self.exact(name, value, leading) for name, value in columns.items()]
        self._add_rest(header, arrays, lanes, None, leading)
        return Operation(header, arrays, (0,))

    def abandon(self, lanes: npt.NDArray[np.int32] | None) -> Operation:
        """Encodes an operation that drops the open episodes."""
        header: dict[str, Any] = {"op": "abandon", "lanes": None if lanes is None else len(lanes), "names": []}
        arrays: list[npt.NDArray[Any]] = []
        self._add_rest(header, arrays, lanes, None, ())
        return Operation(header, arrays, (0,))

    def exact(self, name: str, value: Any, leading: tuple[int, ...]) -> npt.NDArray[Any]:
        """Returns the value as a C-contiguous array of the column's dtype and of shape leading + shape.

        A value that is already such an array is returned itself, without a copy.
        """
        dtype, shape = self.layout.cells[name]
        if (
            type(value) is np.ndarray  # a subclass may hide values
            and value.dtype == dtype
            and value.shape == leading + shape
            and value.flags.c_contiguous
        ):
            return value
        return self._normalise(name, value, leading)

    def _add_rest(
        self,
        header: dict[str, Any],
        arrays: list[npt.NDArray[Any]],
        lanes: npt.NDArray[np.int32] | None,
        priority: Any,
        leading: tuple[int, ...],
    ) -> None:
        if priority is not None:
            values = self.exact("priority", priority, leading)
            check_priorities(values)
            header["names"].append("priority")
            arrays.append(values)
        if lanes is not None:
            arrays.insert(0, np.ascontiguousarray(lanes, np.int32))
        check_num_bytes(sum(array.nbytes for array in arrays))

    # ---- number of rows --------------------------------------------------------------------------------------------

    def _count_rows(self, columns: Mapping[str, Any]) -> int:
        """Counts the steps along time, from an input that has exactly one value a step."""
        for name in (*self._plain, *_ENDS):
            size = _length(columns[name]) if columns.get(name) is not None else None
            if size is not None:
                return size
        return max((_length(columns[name]) or 0 for name in self.layout.states), default=0)

    def _count_states(self, columns: Mapping[str, Any], rows: int) -> int:
        """Counts the rows of the state columns.

        All state columns have the same number of rows, so the first column decides.
        """
        for name in columns:
            if name in self.layout.states:
                return rows + 1 if _length(columns[name]) == rows + 1 else rows
        return rows


def given(columns: dict[str, Any]) -> dict[str, Any]:
    """Returns the columns without the ends that are None.

    An end that is None stands for its default, as if not named.
    """
    if all(columns.get(name, 0) is not None for name in _ENDS):
        return columns
    return {name: value for name, value in columns.items() if value is not None or name not in _ENDS}


def check_num_bytes(num_bytes: int) -> None:
    """Raises InvalidConfig if the rows of one call are too large for a message."""
    if num_bytes > MAX_BODY_BYTES:
        expected = f"at most {MAX_BODY_BYTES} bytes; write a larger block in several calls"
        raise InvalidConfig("rows of one call to a server", expected, num_bytes)


def check_num_keys(num_keys: int, most: int) -> None:
    """Raises InvalidConfig if the keys of one call are too many for the server's answer."""
    if num_keys > most:
        expected = (
            f"at most {most}, as the answer has their keys (max_reply_bytes); write a larger block in several calls"
        )
        raise InvalidConfig("number of rows of one call to a server", expected, num_keys)


def check_priorities(values: npt.NDArray[Any]) -> None:
    """Raises InvalidPriority if a value is NaN, infinite, negative or beyond float32."""
    flat = values.ravel()
    wrong = np.flatnonzero(~((flat >= 0.0) & (flat <= _FLOAT32_MAX)))
    if len(wrong):
        raise InvalidPriority(int(wrong[0]), float(flat[wrong[0]]))


def _length(value: Any) -> int | None:
    if isinstance(value, np.ndarray):
        return int(value.shape[0]) if value.ndim else None
    try:
        return len(value)
    except TypeError:
        return None
