"""Trajectories in relive's words: rows of one lane, and explicit items of windows over them, named by the rows' keys.

Reverb's history is in its writer. relive's rows are in the table, and a caller with their keys can make an item of
them. Here the keys of a lane are in a list, which takes Python's indexes and slices as Reverb's history does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

import relive
from conformance.relive_patterns import STEP_INDEX
from conformance.system import TABLE
from conformance.words import Call, Part

__all__ = ["Trajectories"]

MOST_BACK = 20  # steps that a pattern of the cases reaches over
MAX_ROWS = 1000  # of the tables that the cases make


@final
class Trajectories:
    """The steps and items of a case. A table needs its windows at creation, so the calls of the case are read first."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self.keys: list[int] = []  # of the lane's rows
        self.items: dict[str, list[int]] = {}  # by table: keys of the items made
        self.columns: dict[str, tuple[str, tuple[int, ...]]] = {}
        parts = [set(call.options) - {"partial"} for call in calls if call.options.get("partial")]
        named = {name for call in calls if call.verb == "step" for name in call.options} - {"partial"}
        self.late = named - set().union(*parts) if parts else set()  # columns that come after the rest of their step
        self._windows: dict[str, dict[str, tuple[Part, int, int]]] = {}  # by table and name: rows at most, stride
        steps = 0
        for call in calls:
            if call.verb == "walk":
                steps += call.arguments[0]
                self.columns |= {"a": ("int64", ()), "b": ("int64", ())}
            elif call.verb == "step":
                steps += 1
                for name, value in call.options.items():
                    if name != "partial":
                        array = np.asarray(value)
                        self.columns.setdefault(name, (str(array.dtype), array.shape))
            elif call.verb == "item":
                self._declare(call.options.get("table", TABLE), call.arguments[0], list(range(steps)))
            elif call.verb == "item_of_last":
                self.columns["a"] = ("int64", ())
                self._declare(TABLE, {"a": Part("a", slice(-2, None))}, [0, 1, 2])
            elif call.verb == "patterns":
                for pattern in call.arguments[0]:
                    self._declare(pattern.table, pattern.parts, list(range(MOST_BACK)))
        if any(call.verb == "patterns" for call in calls):
            parts = [part for windows in self._windows.values() for part, _, _ in windows.values()]
            self.columns = {part.column: ("int64", ()) for part in parts} | self.columns | {STEP_INDEX: ("int64", ())}

    def _declare(self, table: str, parts: Mapping[str, Part], steps: list[int]) -> None:
        windows = self._windows.setdefault(table, {})
        for name, part in parts.items():
            try:
                rows = _taken(steps, part)
            except IndexError:
                rows = []  # the case shows that it is refused
            stride = rows[1] - rows[0] if len(rows) > 1 else 1
            _, length, stride_before = windows.get(name, (part, 1, 1))
            windows[name] = (part, max(length, len(rows)), max(stride, stride_before))

    def explicit(self, table: str, max_items: int, lengths: Mapping[str, Any] | None) -> relive.Explicit:
        """The items of a table; lengths: those of its signature."""
        declared = self._windows.get(table, {"x": (Part(next(iter(self.columns), "label"), -1), 1, 1)})
        windows = {
            name: relive.Window(lengths[name][1][0] if lengths else length, (part.column,), stride)
            for name, (part, length, stride) in declared.items()
        }
        return relive.Explicit(windows, max_items=max_items)

    def rows(self, parts: Mapping[str, Part]) -> dict[str, np.ndarray[Any, Any]]:
        """{window: keys int64[1, R]} of one item."""
        return {name: np.array([_taken(self.keys, part)], np.int64) for name, part in parts.items()}

    def shown(self, batch: relive.Batch, row: int, table: str) -> dict[str, Any]:
        """The parts of one item of a batch: {part: values}. A part of one step is a value without the window's axis."""
        found = {}
        for name, (part, _, _) in sorted(self._windows[table].items()):
            values = batch[f"{name}/{part.column}"][row][batch[f"{name}/mask"][row]].tolist()
            if values:  # otherwise another pattern of the table has this part, and the item does not
                found[name] = values[0] if isinstance(part.steps, int) else values
        return found


def _taken(rows: list[int], part: Part) -> list[int]:
    """Rows of a list by an index, a slice or a list of indexes. Raises IndexError."""
    if isinstance(part.steps, int):
        return [rows[part.steps]]
    if isinstance(part.steps, slice):
        return rows[part.steps]
    return [rows[index] for index in part.steps]
