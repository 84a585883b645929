"""The columns of a batch, with their nesting and their time axis: one value for all batches of a selection."""

from __future__ import annotations

import dataclasses
from collections.abc import ItemsView, Iterable, KeysView, Mapping, ValuesView
from typing import Any, NamedTuple, final

import numpy as np

from relive.config.casting import refuse_hidden
from relive.config.spec import PER_ITEM_NAMES, StepSpec, nest
from relive.core.request import DrawRequest
from relive.core.table_core import SelectedColumns
from relive.errors import InvalidConfig, UnknownColumn
from relive.errors.base import plain
from relive.reading.tensors import beside, on_host

__all__ = ["ColumnViews", "Columns", "Selection", "TimeAxis", "chosen"]


def chosen(which: Any, num_items: int) -> Any:
    """The slice of items, or their numbers as int64[K] or bool[B] of numpy, checked.

    A slice that goes backwards becomes an array: torch has no such slice. torch takes uint8 for bools.

    Raises InvalidConfig.
    """
    if isinstance(which, slice):
        try:
            step = which.indices(num_items)[2]
        except (TypeError, ValueError):
            raise _refused(which, num_items) from None
        return which if step > 0 else np.arange(num_items)[which].copy()
    refuse_hidden("rows", which)
    try:
        numbers = np.asarray(on_host(which))
    except (TypeError, ValueError, RuntimeError):  # RuntimeError: a tensor without data, or with a gradient
        raise _refused(which, num_items) from None
    if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iub"):
        raise _refused(which, num_items)
    if numbers.dtype.kind == "b":
        if len(numbers) != num_items:
            raise _refused(which, num_items)
    elif numbers.size and not (-num_items <= int(numbers.min()) and int(numbers.max()) < num_items):
        raise _refused(which, num_items)
    return np.array(numbers, np.bool_ if numbers.dtype.kind == "b" else np.int64)  # torch needs one that it may write


def _refused(which: Any, num_items: int) -> InvalidConfig:
    return InvalidConfig("rows", f"a slice, or an array of integers or bools, of {num_items} items", which)


class ColumnViews(Mapping[str, Any]):
    """A mapping of column names whose len() is not the number of its columns.

    The views of a mapping count its entries by len(), so these are the views of a dict.
    """

    __slots__ = ()

    def keys(self) -> KeysView[str]:
        """The names of the top-level columns, in order."""
        return dict.fromkeys(self).keys()

    def values(self) -> ValuesView[Any]:
        """The top-level columns, in order."""
        return {name: self[name] for name in self}.values()

    def items(self) -> ItemsView[str, Any]:
        """(name, column) of the top-level columns, in order."""
        return {name: self[name] for name in self}.items()


@final
@dataclasses.dataclass(frozen=True)
class TimeAxis:
    """How the arrays of a batch show the time of its items, if the items have a time axis.

    Attributes:
        is_trimmed: the axis ends with the longest item of a batch (Episodes); then mask is among the names.
        num_behind: rows after the last step that items show.
        time_major: the time axis stands before the batch axis.
        is_ragged: the rows of items lie end to end; then offsets is among the names, last unless it was named.
        crosses: a window may cross the ends of episodes.
        is_grouped: an item is several episodes, whose axis stands between the batch axis and time.
    """

    is_trimmed: bool = False
    num_behind: int = 0
    time_major: bool = False
    is_ragged: bool = False
    crosses: bool = False
    is_grouped: bool = False


@final
class Columns:
    """The names of a batch's columns in order, with their nesting; one object for all batches of a selection.

    Attributes:
        is_trimmed, num_behind, is_ragged, is_grouped: as in TimeAxis.
        timed: for each array, whether it has a time axis, if items have one.
        item_axes: for each array, the position of its batch axis: 1 if a time axis stands before it.
        as_they_are: the same for batches made from a batch, whose time axis is not trimmed again.
    """

    __slots__ = (
        "as_they_are",
        "is_grouped",
        "is_ragged",
        "is_trimmed",
        "item_axes",
        "names",
        "num_behind",
        "positions",
        "spec",
        "timed",
        "tops",
        "windows",
    )

    def __init__(
        self,
        names: tuple[str, ...],
        spec: StepSpec,
        axis: TimeAxis | None = None,
        windows: tuple[str, ...] = (),
    ) -> None:
        axis = axis or TimeAxis()
        self.is_trimmed = axis.is_trimmed
        self.is_ragged = axis.is_ragged
        self.is_grouped = axis.is_grouped
        self.num_behind = axis.num_behind
        kinds = ("start",) if axis.crosses else ("start", "episode")
        once = (name for name, column in spec.columns.items() if column.kind in kinds)
        untimed = frozenset((*once, *PER_ITEM_NAMES, "priority", "/age", *(("offsets",) if axis.is_ragged else ())))
        self.timed = tuple(name not in untimed for name in names)
        self.item_axes = tuple(int(axis.time_major and timed) for timed in self.timed)
        self.names = names
        self.positions = {name: position for position, name in enumerate(names)}
        self.tops = tuple(dict.fromkeys(name.partition("/")[0] for name in names))
        self.spec = spec
        self.windows = windows  # names that stand before the names of columns
        uncut = dataclasses.replace(axis, is_trimmed=False, num_behind=0)
        self.as_they_are: Columns = Columns(names, spec, uncut, windows) if axis.is_trimmed else self

    @property
    def time_axis(self) -> int:
        """The time axis of the mask and of every column that has one. Raises UnknownColumn without a mask."""
        if self.is_grouped:
            return 2
        return 1 - self.item_axes[self.positions["mask"]] if "mask" in self.positions else 1

    def sizes(self, num_items: int, num_rows: int) -> list[int]:
        """The length of each array along its axis of items, or of their rows."""
        if not self.is_ragged:
            return [num_items] * len(self.names)
        sizes = [num_rows if timed else num_items for timed in self.timed]
        sizes[self.positions["offsets"]] = num_items + 1
        return sizes

    def num_rows(self, arrays: Iterable[Any]) -> int:
        """The rows of all items of ragged arrays. Leaves of a tree may have no shape; they are skipped."""
        shapes = (getattr(array, "shape", ()) for array, timed in zip(arrays, self.timed, strict=True) if timed)
        return next((shape[0] for shape in shapes if shape), 0) if self.is_ragged else 0

    def num_items(self, arrays: list[Any]) -> int:
        """The items of these arrays, by their shapes; 0 if no array has one."""
        for array, axis, timed in zip(arrays, self.item_axes, self.timed, strict=True):
            shape = getattr(array, "shape", ())
            if len(shape) > axis and not (self.is_ragged and timed):
                return int(shape[axis]) - (self.is_ragged and array is arrays[self.positions["offsets"]])
        return 0

    def rows(self, arrays: list[Any], which: Any) -> list[Any]:
        """The arrays of some of the items."""
        if self.is_ragged:
            return self._ragged_rows(arrays, which)
        pairs = [(array, beside(which, array), axis) for array, axis in zip(arrays, self.item_axes, strict=True)]
        return [array[:, rows] if axis else array[rows] for array, rows, axis in pairs]

    def _ragged_rows(self, arrays: list[Any], which: Any) -> list[Any]:
        offsets = np.asarray(on_host(arrays[self.positions["offsets"]]))
        if isinstance(which, slice) and which.step in (None, 1):
            first, end, _ = which.indices(len(offsets) - 1)
            end = max(first, end)
            rows: Any = slice(int(offsets[first]), int(offsets[end]))
            moved = offsets[first : end + 1] - offsets[first]
        else:
            chosen = np.arange(len(offsets) - 1)[which]
            lengths = np.diff(offsets)[chosen]
            moved = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
            rows = np.repeat(offsets[chosen] - moved[:-1], lengths) + np.arange(moved[-1])
        some = [array[beside(rows if timed else which, array)] for array, timed in self._all_but_offsets(arrays)]
        position = self.positions["offsets"]
        some.insert(position, beside(moved, arrays[position]))
        return some

    def _all_but_offsets(self, arrays: list[Any]) -> list[tuple[Any, bool]]:
        pairs = list(zip(arrays, self.timed, strict=True))
        del pairs[self.positions["offsets"]]
        return pairs

    def trimmed(self, arrays: list[Any]) -> list[Any]:
        """The arrays or tensors, as views, without the time steps in which no item has a row."""
        mask = arrays[self.positions["mask"]]
        if 0 in mask.shape:
            return arrays
        axis = self.time_axis
        is_shown = mask.any(axis=tuple(other for other in range(mask.ndim) if other != axis))
        steps = np.flatnonzero(np.asarray(on_host(is_shown)))
        first, end = (int(steps[0]), int(steps[-1]) + 1) if steps.size else (0, 0)
        times = mask.shape[axis]
        end = min(times, end + self.num_behind)  # the row after an episode's last step has the last state
        if first == 0 and end == times:
            return arrays
        cut = (*(slice(None),) * axis, slice(first, end))
        return [a[cut] if timed else a for a, timed in zip(arrays, self.timed, strict=True)]

    def lengths(self, batch: Mapping[str, Any]) -> Any:
        """The number of steps of each item of a batch with these columns."""
        if not self.is_ragged:
            return batch["mask"].sum(self.time_axis)
        offsets = batch["offsets"]
        if self.num_behind == 0:
            return offsets[1:] - offsets[:-1]
        behind = batch["mask"].cumsum(0)  # steps up to each row, including that row
        steps = offsets * 0
        steps[offsets > 0] = behind[offsets[offsets > 0] - 1]
        return steps[1:] - steps[:-1]

    def group(self, name: Any, arrays: list[Any]) -> Any:
        """The nested columns below a name as dicts and tuples. Raises UnknownColumn if there are none."""
        if not isinstance(name, str):
            is_rows = isinstance(name, (int, np.integer, slice, np.ndarray))
            instead = "batch[column][rows], or batch.rows(rows) for all columns" if is_rows else ""
            raise UnknownColumn(str(plain(name)), self.names, instead)
        below = {path: arrays[position] for path, position in self.positions.items() if path.startswith(name + "/")}
        if not below:
            raise UnknownColumn(name, self.names)
        group: Any = nest(below, self._is_whole_tuple)
        for key in name.split("/"):
            group = group[int(key) if isinstance(group, tuple) else key]
        return group

    def _is_whole_tuple(self, path: str) -> bool:
        # If only some members of a tuple were gathered, they stay a dict by position: a shorter tuple would mislead.
        window, _, rest = path.partition("/")
        column = rest if window in self.windows else path
        if not self.spec.is_tuple(column):
            return False
        gathered = sum(name.startswith(path + "/") for name in self.names)
        return gathered == len(self.spec.expand(column.removeprefix("next_")))


class Selection(NamedTuple):
    """Columns of an index, resolved once: for the core, and for the batch that shows them."""

    core: SelectedColumns
    columns: Columns
    number: int  # of the index
    goals: Any  # with Hindsight: how batches get their rewards (relive.reading.rewards.Goals)
    plain: dict[int, DrawRequest]  # remembered draws without a condition, by number of items
