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
        """Sets the priorities of the items that are still in the index, and returns how many these are.

        All arguments are checked before the first priority is set.

        Args:
            item_keys: int64[B]. If a key comes twice, its last priority counts.
            priorities: [B], finite, >= 0. The table stores them as given: it takes no absolute value and adds no
                epsilon. Torch tensors are accepted.
            index: the name of an index; None: the first.

        Returns:
            The number of items that were still there. stats().updates_stale counts the updates of items that are gone:
                they are no error.

        Raises:
            InvalidPriority: a priority is negative, NaN, or not finite as float32.
            ForeignKey: a key does not come from this table.
            ShapeMismatch: keys and priorities have different shapes.
            NoPriorities: neither the sampler nor the remover of the index looks at priorities.
            ReadOnly: the handle is read-only.
            TableClosed: the handle is closed.
        """
        if unknown or priorities is MISSING or item_keys is MISSING:
            refuse_unknown(self.update_priorities, unknown)
        if type(item_keys) is not np.ndarray or item_keys.dtype is not _INT64 or item_keys.ndim != 1:
            item_keys = as_keys(item_keys)
        if type(priorities) is not np.ndarray or (
            priorities.dtype is not _FLOAT32 and priorities.dtype is not _FLOAT64
        ):
            priorities = _as_numbers(priorities)
        if priorities.shape != item_keys.shape:
            raise ShapeMismatch("priorities", item_keys.shape, priorities.shape)
        number = 0 if index is None else self.index_number(index)
        return self._core.update_priorities(number, item_keys, priorities)

    def complete(self, item_keys: npt.ArrayLike, /, **columns: Any) -> int:
        """Fills the late columns of steps, once; returns how many of the steps were still there.

        An item can be drawn when the late columns of all of its steps are filled. With more than 256 steps, other calls
        may see some of them filled before the others. All arguments are checked before the first step is filled. Never
        waits for a limiter.

        Args:
            item_keys: keys that append and extend returned, of any shape, or one key; in any order, from any process.
            **columns: every late column, [*keys' shape, *column's shape]; nested ones as dicts and tuples.

        Raises:
            AlreadyCompleted: a step is filled already.
            ForeignKey: a key belongs to no step of this table.
            UnknownColumn, MissingColumn, LateColumn: a column is unknown, missing, or not late.
            ShapeMismatch, DtypeMismatch: an array has another shape or dtype.
            ServiceUnavailable: a server did not answer in time, and may have filled the steps. Over shards: the
                check of a live shard is late, and no step was filled.
            ReadOnly, TableClosed: the handle changes nothing, or is closed.
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

        All rows that a window spans are steps of one lane. Several items may stand on one step. An item over rows that
        wait for late columns is made, and can be drawn when all of its rows are filled. All items are checked before
        the first is made: an error changes nothing, unless error.stored > 0. Then the first items are made, and
        error.keys are their keys. Over a shard whose limiter lets items in by parts, each part is checked before it is
        made.

        Args:
            windows: {name: rows}; or the rows alone if the index has one window without a name. Rows are named by keys
                that append and extend returned, in one of the forms below. A window that is left out, or has 0 rows, is
                not part of the item.
            index: the name of an index; None: the only index with Explicit items.
            priority: finite, >= 0; one for all, or [N]; None: the index's initial priority.
            timeout_s: how long to wait for the index's limiter, as for sample.
            **columns: [N, *shape] of every own column of the items.

        | rows | meaning |
        |---|---|
        | int64[N] | keys of first rows; windows have their full length |
        | (int64[N], numbers) | keys of first rows, and the number of rows: one, or [N] |
        | (int64[N], negative numbers) | keys of last rows, and the number of rows that end with them |
        | int64[N, R] | each row by its key, a stride apart |

        Raises:
            RowGone, RowsApart: a row is gone, or the rows are not of one lane or not a stride apart.
            ForeignKey: a key belongs to no row of this table.
            UnknownColumn, MissingColumn, ShapeMismatch, DtypeMismatch: a column is wrong.
            InvalidConfig, InvalidPriority, NoPriorities: an argument has another type or value.
            DeadlineExceeded: the limiter did not let the items in in time.
            ReadOnly, TableClosed: the handle changes nothing, or is closed.

        Cost: one lock for each 256 items; O(windows x pages that they touch) an item.
        """
        number, items = explicit_index(self._config.index, index)
        new = new_items(items, windows, priority, columns)
        seconds = self._timeout_s if timeout_s is None else timeout(timeout_s)
        return self._core.create_items(number, new.windows, new.rows, new.priorities, new.columns, seconds)

    @names_arguments
    def delete(self, item_keys: npt.ArrayLike) -> int:
        """Removes the steps of these keys, and the items that begin there, from every index at once.

        A step at which no index begins an item stays: a step within a sequence or an episode, or a step of a table
        with Explicit items only. The key of an Explicit item removes that item alone. Explicit items that stand on a
        removed step stay.

        Returns:
            How many steps and Explicit items were removed. A step that left len(table) with an abandoned episode counts
            when its items are removed.

        Raises:
            ForeignKey: a key belongs to no step or item of this table.
            ReadOnly, TableClosed: the handle changes nothing, or is closed.
        """
        return self._core.delete(as_keys(item_keys))

    def clear(self) -> None:
        """Removes all steps. Lanes, the largest priority and the counters go on.

        A lane that goes on has lost the steps before. Its next steps are no items as long as an item could reach back
        over the clear: `stack` - 1 steps, or `burn_in` steps of sequences, also if a new episode begins. To keep these
        items, close the writer and open a new one after the clear.

        Raises:
            ReadOnly, TableClosed: the handle changes nothing, or is closed.
        """
        self._core.clear()

    def set_policy_version(self, version: int) -> None:
        """Sets the learner's version, 0 to 2**32 - 1: rows are stamped with it, and staleness is counted from it."""
        self._core.set_policy_version(integer("version", version, 0, 2**32 - 1))

    @names_arguments
    def set_limiter(self, limiter: Limiter, *, index: str | None = None) -> None:
        """Replaces the limiter of an index, for every process. Waiting calls are judged by the new one.

        Its corridor begins again: as though the present items, min_size at most, had been inserted and none of them
        drawn. table.config stays the configuration that the table was made from; table.limiter() returns the present
        limiter.

        Args:
            limiter: the new limiter.
            index: the name of an index; None: the first.

        Raises:
            InvalidConfig: the index cannot have this limiter. Nothing changes.
            CapacityTooSmall: its min_size could never be reached. Nothing changes.
            RequestTooLarge: a waiting draw could never pass. Nothing changes.
            DeadlineExceeded, ReadOnly, TableClosed: the lock was not free in time, or the handle changes nothing or is
                closed.
        """
        number = self.index_number(index)
        name = self._index_names[number]
        changed = replace(self._config.index[name], limiter=limiter)
        check_min_sizes(self._config.capacity, {name: changed})
        self._core.set_limiter(number, np.array(limiter.core_numbers(), np.float64))

    @names_arguments
    def set_priority_exponent(self, exponent: float, *, index: str | None = None) -> None:
        """Changes the exponent of an index with a Prioritized sampler, for every process: mass = priority ** exponent.

        Every mass is computed again from its priority, as if the items had come with the new exponent (docs/samplers.md
        says how exactly). Draws that this meets are made again. With exponent 0 all masses are 1 and the priorities are
        forgotten: from 0, any other exponent is refused. table.config stays the configuration that the table was made
        from; priority_exponent() returns the present exponent. The exponent of a remover stays.

        Args:
            exponent: a finite number >= 0.
            index: the name of an index; None: the first.

        Raises:
            InvalidConfig: the index or the exponent does not allow it. Nothing changes.
            DeadlineExceeded, ReadOnly, TableClosed: the lock was not free in time, or the handle changes nothing or is
                closed.

        Cost: one critical section, some 60 ns for each step that the table has room for: 60 ms for a million.
        """
        number = self._exponent_index(index)
        self._core.set_priority_exponent(number, finite("exponent", exponent, 0.0))


def explicit_index(indexes: Mapping[str, Index], name: str | None) -> tuple[int, Explicit]:
    """The number and the items of an index with Explicit items; name None: the only such index.

    Raises InvalidConfig.
    """
    found = {one: number for number, one in enumerate(indexes) if isinstance(indexes[one].items, Explicit)}
    if name is None and len(found) == 1:
        name = next(iter(found))
    if not isinstance(name, str) or name not in found:
        raise InvalidConfig("index of create_items", " or ".join(map(repr, found)) or "one with Explicit items", name)
    items = indexes[name].items
    assert isinstance(items, Explicit)
    return found[name], items


def _as_numbers(priorities: Any) -> npt.NDArray[Any]:
    """Priorities of any other type as an array that the core takes. Complex numbers and texts are refused."""
    if type(priorities) is not np.ndarray or priorities.dtype.kind not in "fiub":
        priorities = as_array("priorities", priorities)
    if priorities.dtype.itemsize > 8 or priorities.dtype.kind == "c":
        priorities = cast("priorities", priorities, _FLOAT64)
    array: npt.NDArray[Any] = priorities
    return array
