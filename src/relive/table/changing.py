"""The calls of a handle that change the table: priorities, late columns, items, deletion, limiters and exponents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from relive.checks.names import MISSING, names_arguments, refuse_unknown, refuses_unknown
from relive.checks.values import finite, integer, timeout
from relive.config.casting import as_array, as_keys, cast
from relive.config.explicit import Explicit
from relive.config.index import Index, check_min_sizes
from relive.config.limiters import Limiter
from relive.errors import InvalidConfig, ShapeMismatch
from relive.table.bound import Bound
from relive.writing.new_items import new_items

__all__ = ["Changing", "explicit_index"]

Keys = npt.NDArray[np.int64]

_INT64 = np.dtype(np.int64)
_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)


class Changing(Bound):
    """The part of a handle that changes the table."""

    @refuses_unknown
    def update_priorities(
        self, item_keys: npt.ArrayLike, priorities: Any, *, index: str | None = None, **unknown: NoReturn
    ) -> int:
        """Sets priorities [B] (finite, >= 0, taken as given) of items [B]; returns how many were still there.

        The last of duplicates wins. Torch tensors are taken too. All are checked before the first is applied: raises
        InvalidPriority, ForeignKey, ShapeMismatch, NoPriorities, ReadOnly, TableClosed.
        """
        if unknown or priorities is MISSING or item_keys is MISSING:
            refuse_unknown(self.update_priorities, unknown)
        if not isinstance(item_keys, np.ndarray) or item_keys.dtype is not _INT64:
            item_keys = as_keys(item_keys)
        if not isinstance(priorities, np.ndarray) or (
            priorities.dtype is not _FLOAT32 and priorities.dtype is not _FLOAT64
        ):
            priorities = _as_numbers(priorities)
        if priorities.shape != item_keys.shape or priorities.ndim != 1:
            raise ShapeMismatch("priorities", item_keys.shape, priorities.shape)
        number = 0 if index is None else self.index_number(index)
        return self._core.update_priorities(number, item_keys, priorities)

    def complete(self, item_keys: npt.ArrayLike, /, **columns: Any) -> int:
        """Gives steps their late columns, once; returns how many of the steps were still there.

        item_keys: what append and extend returned, in any order, from any process: of any shape, or one key. columns:
        every late column, [*keys' shape, *column's shape], nested ones as dicts and tuples. An item can be drawn once
        all of its steps have theirs. Of more than 256 steps, other calls may see some completed before the others.
        All are checked before the first is applied: raises AlreadyCompleted, ForeignKey, UnknownColumn, MissingColumn,
        LateColumn, ShapeMismatch, DtypeMismatch, ReadOnly, TableClosed. Never waits for a limiter.
        """
        return self._core.complete(*self._late.pack(item_keys, columns))

    def create_items(
        self,
        windows: Any,
        *,
        index: str | None = None,
        priority: Any = None,
        timeout_s: float | None = None,
        **columns: Any,
    ) -> Keys:
        """Makes N items of an index with Explicit items, in order; returns their keys int64[N].

        windows: {name: rows}, or the rows where the index has one window without a name. Rows are named by the keys
        that append and extend returned: first keys int64[N], for windows of their full length; (first keys, number of
        rows); (last keys, negative number): so many rows that end with it; int64[N, R]: each of them, a stride apart.
        Windows left out, or of 0 rows, are not of the item. All rows that a window spans are steps of one lane.
        Over rows that wait for late columns an item is made, too, and drawn once all of its rows have theirs.
        priority: of the items, finite, >= 0, one for all or [N]. columns: [N, *shape] of every column of the items.
        index None: the one index that has Explicit items. Several items may stand on one step.
        Blocks while the index's limiter refuses, at most timeout_s. All items are checked before the first is made: an
        error changes nothing, unless error.stored > 0: then the first ones are made, error.keys are theirs. Raises
        RowGone, RowsApart, ForeignKey, UnknownColumn, MissingColumn, ShapeMismatch, DtypeMismatch, InvalidConfig,
        InvalidPriority, NoPriorities, DeadlineExceeded, ReadOnly, TableClosed.
        Cost: one lock for some 256 items; an item O(windows x pages they touch).
        """
        number, items = explicit_index(self._config.index, index)
        new = new_items(items, windows, priority, columns)
        seconds = self._timeout_s if timeout_s is None else timeout(timeout_s)
        return self._core.create_items(number, new.windows, new.rows, new.priorities, new.columns, seconds)

    @names_arguments
    def delete(self, item_keys: npt.ArrayLike) -> int:
        """Removes these steps from every index at once; returns how many were there. Raises ForeignKey, ReadOnly.

        The key of an Explicit item removes that item alone; items that stand on a step that is removed stay.
        """
        return self._core.delete(as_keys(item_keys))

    def clear(self) -> None:
        """Removes all steps; lanes, priorities' maximum and counters go on. Raises ReadOnly, TableClosed."""
        self._core.clear()

    def set_policy_version(self, version: int) -> None:
        """The learner's version (0 to 2**32 - 1): rows are stamped with it, staleness is counted from it."""
        self._core.set_policy_version(integer("version", version, 0, 2**32 - 1))

    @names_arguments
    def set_limiter(self, limiter: Limiter, *, index: str | None = None) -> None:
        """The limiter of an index from now on, for every process; who waits is judged anew.

        Its corridor begins anew, too: as though the present items, min_size at most, had been inserted and none of them
        drawn. table.config stays what the table was made from; table.limiter() says the present one.
        Raises InvalidConfig where the index cannot have it, CapacityTooSmall, RequestTooLarge where a draw that waits
        now could never pass; then nothing changes. DeadlineExceeded, ReadOnly, TableClosed.
        """
        number = self.index_number(index)
        name = self._index_names[number]
        changed = replace(self._config.index[name], limiter=limiter)
        check_min_sizes(self._config.capacity, {name: changed})
        self._core.set_limiter(number, np.array(limiter.core_numbers(), np.float64))

    @names_arguments
    def set_priority_exponent(self, exponent: float, *, index: str | None = None) -> None:
        """The exponent of an index with a Prioritized sampler from now on, for every process: mass = priority ** it.

        Every mass is computed anew from the priority that it came of, as if the items had been given with the new
        exponent (docs/samplers.md says how exactly); draws that this meets are drawn anew. To 0 all masses are 1 and
        the priorities are forgotten: from 0 any other exponent is refused. table.config stays what the table was made
        from; priority_exponent() says the present one. The exponent of a remover stays.
        Raises InvalidConfig; then nothing changes. DeadlineExceeded, ReadOnly, TableClosed.
        Cost: one hold of the lock, some 60 ns a step that the table has room for: 60 ms for a million.
        """
        number = self._exponent_index(index)
        self._core.set_priority_exponent(number, finite("exponent", exponent, 0.0))


def explicit_index(indexes: Mapping[str, Index], name: str | None) -> tuple[int, Explicit]:
    """Number and items of the index of this name, or of the only one, with Explicit items. Raises InvalidConfig."""
    found = {one: number for number, one in enumerate(indexes) if isinstance(indexes[one].items, Explicit)}
    if name is None and len(found) == 1:
        name = next(iter(found))
    if not isinstance(name, str) or name not in found:
        raise InvalidConfig("index of create_items", " or ".join(map(repr, found)) or "one with Explicit items", name)
    items = indexes[name].items
    assert isinstance(items, Explicit)
    return found[name], items


def _as_numbers(priorities: Any) -> npt.NDArray[Any]:
    """Priorities of any other sort, as an array that the core takes; complex ones and texts are refused."""
    if not isinstance(priorities, np.ndarray) or priorities.dtype.kind not in "fiub":
        priorities = as_array("priorities", priorities)
    if priorities.dtype.itemsize > 8 or priorities.dtype.kind == "c":
        priorities = cast("priorities", priorities, _FLOAT64)
    array: npt.NDArray[Any] = priorities
    return array
