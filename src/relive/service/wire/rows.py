"""Describes how the rows of one operation lie in a message body: lane ids, then each named column as a whole.

An operation: {"op": "append" | "extend" | "end", "rows": T, "lanes": M or null, "names": [...], "states": T or T + 1}.
A column is [T, M, *shape] in the dtype of the spec. A writer of one lane has no axis M, and "end" has no axis T.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, final

import numpy as np

from relive.config.spec import StepSpec
from relive.errors import BadMessage
from relive.service.wire import framing
from relive.service.wire.framing import Bytes

__all__ = ["RowLayout"]

_GIVEN = {"terminated": np.bool_, "truncated": np.bool_, "discount": np.float32, "priority": np.float64}


@final
class RowLayout:
    """The cells of every column that a writer of this spec takes. If num_lanes is None, there is no lane axis."""

    __slots__ = ("cells", "num_lanes", "states", "width")

    def __init__(self, spec: StepSpec, num_lanes: int | None) -> None:
        self.num_lanes = num_lanes
        self.width = 1 if num_lanes is None else num_lanes
        self.states = frozenset(spec.state_columns)
        cells: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {
            name: (np.dtype(kind), ()) for name, kind in _GIVEN.items()
        }
        for name, column in spec.columns.items():
            if column.late:
                continue
            cells[name] = (column.dtype, column.shape)
            if column.kind == "state":
                cells[f"next_{name}"] = cells[name]
        self.cells = cells

    def leading(self, rows: int | None, num_named: int | None) -> tuple[int, ...]:
        """Returns the axes before a column's own axes: (T, M). An end has no T, and a writer of one lane has no M."""
        axes = () if rows is None else (rows,)
        return axes if self.num_lanes is None else (*axes, self.width if num_named is None else num_named)

    def num_bytes(self, op: Mapping[str, Any]) -> int:
        """Returns the size of an operation's part of the body, from its header alone. Raises BadMessage."""
        return sum(math.prod(shape) * dtype.itemsize for _, dtype, shape in self._parts(op))

    def num_keys(self, op: Mapping[str, Any]) -> int:
        """Returns the number of keys that an operation is answered with. num_bytes() has checked its header."""
        if op["op"] not in ("append", "extend"):
            return 0
        return math.prod(self.leading(op["rows"], op.get("lanes")))

    def columns(self, op: Mapping[str, Any], body: Bytes) -> dict[str, Any]:
        """Returns a writer's arguments as views of the body, which must have num_bytes bytes. Raises BadMessage."""
        parts = self._parts(op)
        arrays = framing.arrays_of(body, *((dtype, shape) for _, dtype, shape in parts))
        return {name: array for (name, _, _), array in zip(parts, arrays, strict=True)}

    def _parts(self, op: Mapping[str, Any]) -> list[tuple[str, np.dtype[Any], tuple[int, ...]]]:
        what = framing.field(op, "op", str)
        if what == "version":
            return []
        if what not in ("append", "extend", "end", "abandon"):
            raise BadMessage("op", "append, extend, end, abandon or version", what[:40])
        names = framing.field(op, "names", list)
        if what == "abandon" and names:
            raise BadMessage("names of columns", "none of an episode that is abandoned", str(names[0])[:40])
        num_named = framing.field(op, "lanes", (int, type(None)))
        if num_named is not None and (self.num_lanes is None or not 0 < num_named <= self.width):
            raise BadMessage("header field 'lanes'", f"1 to {self.width} lanes, of several", str(num_named)[:40])
        rows = None if what in ("end", "abandon") else framing.whole(op, "rows", 0, 2**31 - 1)
        states = rows if rows is None or "states" not in op else framing.whole(op, "states", rows, rows + 1)
        parts: list[tuple[str, np.dtype[Any], tuple[int, ...]]] = []
        if num_named is not None:
            parts.append(("lanes", np.dtype(np.int32), (num_named,)))
        for name in names:
            cell = self.cells.get(name) if isinstance(name, str) else None
            if cell is None or any(name == known for known, _, _ in parts):
                raise BadMessage("names of columns", "columns of this table, each once", str(name)[:40])
            own = states if name in self.states else rows
            parts.append((name, cell[0], (*self.leading(own, num_named), *cell[1])))
        return parts
