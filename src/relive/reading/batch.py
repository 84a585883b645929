"""What reading returns: Batch, columns by name; and which these are."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, NoReturn, final

import numpy as np
import numpy.typing as npt

from relive import _core
from relive.checks.names import (
    MISSING,
    names_arguments,
    refuse_names,
    refuse_unknown,
    refuses_attributes,
    refuses_unknown,
    unknown_attribute,
)
from relive.checks.values import finite
from relive.config.spec import DERIVED_NAMES, PER_ITEM_NAMES, StepSpec, nest
from relive.core.request import DrawRequest
from relive.core.table_core import SelectedColumns
from relive.errors import InvalidConfig, MissingPackage, NoProbabilities, UnknownAttribute, UnknownColumn
from relive.errors.base import plain
from relive.errors.slips import COLUMN_NAMES, for_column
from relive.reading.pytrees import Tree, register_loaded, seen, trees

__all__ = ["Batch", "Columns", "Selection", "TimeAxis", "unknown_in_batch"]

Keys = npt.NDArray[np.int64]
Probabilities = npt.NDArray[np.float64]

_USUAL: Literal["batch"] = "batch"  # of weights(normalize=...)


@final
@dataclasses.dataclass(frozen=True)
class TimeAxis:
    """How the arrays of a batch show the time of its items, where these have one.

    is_trimmed: it ends with the longest item of a batch (of Episodes); mask is among the names then. num_behind: rows
    behind the last step that items show. time_major: it stands before the axis of items. is_ragged: rows of items lie
    end to end; offsets is the last of the names then, unless it was named. crosses: a window may be of more episodes.
    is_grouped: an item is several episodes, whose axis stands between that of items and time.
    """

    is_trimmed: bool = False
    num_behind: int = 0
    time_major: bool = False
    is_ragged: bool = False
    crosses: bool = False
    is_grouped: bool = False


@final
class Columns:
    """The names of a batch's columns in order, with their nesting; one for all batches of a selection.

    is_trimmed, num_behind, is_ragged: see TimeAxis. timed: whether an array has a time axis, if items have one.
    item_axes: of each array the axis of items, 1 where a time axis stands before it.
    as_they_are: the same for batches made from a batch, whose time axis is not cut again.
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
        untimed = frozenset((*once, *PER_ITEM_NAMES, *(("offsets",) if axis.is_ragged else ())))
        self.timed = tuple(name not in untimed for name in names)
        self.item_axes = tuple(int(axis.time_major and timed) for timed in self.timed)
        self.names = names
        self.positions = {name: position for position, name in enumerate(names)}
        self.tops = tuple(dict.fromkeys(name.partition("/")[0] for name in names))
        self.spec = spec
        self.windows = windows  # names that stand before those of columns
        refuse_names(Batch, self.tops, unknown_in_batch)
        uncut = dataclasses.replace(axis, is_trimmed=False, num_behind=0)
        self.as_they_are: Columns = Columns(names, spec, uncut, windows) if axis.is_trimmed else self

    @property
    def time_axis(self) -> int:
        """Of mask and every column with a time axis. Raises UnknownColumn where there is no mask."""
        if self.is_grouped:
            return 2
        return 1 - self.item_axes[self.positions["mask"]] if "mask" in self.positions else 1

    def sizes(self, num_items: int, num_rows: int) -> list[int]:
        """How long each array is along its axis of items, or of their rows."""
        if not self.is_ragged:
            return [num_items] * len(self.names)
        sizes = [num_rows if timed else num_items for timed in self.timed]
        sizes[self.positions["offsets"]] = num_items + 1
        return sizes

    def num_rows(self, arrays: Iterable[Any]) -> int:
        """Of ragged arrays, the rows of all items. Leaves of a tree without a shape say nothing."""
        shapes = (getattr(array, "shape", ()) for array, timed in zip(arrays, self.timed, strict=True) if timed)
        return next((shape[0] for shape in shapes if shape), 0) if self.is_ragged else 0

    def rows(self, arrays: list[Any], which: Any) -> list[Any]:
        """The arrays of some of the items."""
        if self.is_ragged:
            return self._ragged_rows(arrays, which)
        return [a[:, which] if axis else a[which] for a, axis in zip(arrays, self.item_axes, strict=True)]

    def _ragged_rows(self, arrays: list[Any], which: Any) -> list[Any]:
        offsets = np.asarray(_on_host(arrays[self.positions["offsets"]]))
        if isinstance(which, slice) and which.step in (None, 1):
            first, end, _ = which.indices(len(offsets) - 1)
            end = max(first, end)
            rows: Any = slice(int(offsets[first]), int(offsets[end]))
            moved = offsets[first : end + 1] - offsets[first]
        else:
            chosen = np.arange(len(offsets) - 1)[_on_host(which)]
            lengths = np.diff(offsets)[chosen]
            moved = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
            rows = np.repeat(offsets[chosen] - moved[:-1], lengths) + np.arange(moved[-1])
        some = [array[_beside(rows if timed else which, array)] for array, timed in self._all_but_offsets(arrays)]
        position = self.positions["offsets"]
        some.insert(position, _beside(moved, arrays[position]))
        return some

    def _all_but_offsets(self, arrays: list[Any]) -> list[tuple[Any, bool]]:
        pairs = list(zip(arrays, self.timed, strict=True))
        del pairs[self.positions["offsets"]]
        return pairs

    def trimmed(self, arrays: list[Any]) -> list[Any]:
        """The arrays, or tensors, without the time steps in which no item has a row, as views."""
        mask = arrays[self.positions["mask"]]
        if 0 in mask.shape:
            return arrays
        axis = self.time_axis
        is_shown = mask.any(axis=tuple(other for other in range(mask.ndim) if other != axis))
        steps = np.flatnonzero(np.asarray(_on_host(is_shown)))
        first, end = (int(steps[0]), int(steps[-1]) + 1) if steps.size else (0, 0)
        times = mask.shape[axis]
        end = min(times, end + self.num_behind)  # the row behind an episode's last step has its last state
        if first == 0 and end == times:
            return arrays
        cut = (*(slice(None),) * axis, slice(first, end))
        return [a[cut] if timed else a for a, timed in zip(arrays, self.timed, strict=True)]

    def lengths(self, batch: Mapping[str, Any]) -> Any:
        """How many steps each item of a batch with these columns has."""
        if not self.is_ragged:
            return batch["mask"].sum(self.time_axis)
        offsets = batch["offsets"]
        if self.num_behind == 0:
            return offsets[1:] - offsets[:-1]
        behind = batch["mask"].cumsum(0)  # steps up to each row, that one included
        steps = offsets * 0
        steps[offsets > 0] = behind[offsets[offsets > 0] - 1]
        return steps[1:] - steps[:-1]

    def group(self, name: Any, arrays: list[Any]) -> Any:
        """The nested columns below a name as dicts and tuples; UnknownColumn if there are none."""
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
        # A tuple of which only some members were gathered stays a dict by position: a shorter tuple would mislead.
        window, _, rest = path.partition("/")
        column = rest if window in self.windows else path
        if not self.spec.is_tuple(column):
            return False
        gathered = sum(name.startswith(path + "/") for name in self.names)
        return gathered == len(self.spec.expand(column.removeprefix("next_")))


class Selection(NamedTuple):
    """Columns of an index, resolved once: as the core knows them, and as a batch shows them."""

    core: SelectedColumns
    columns: Columns
    number: int  # of the index
    goals: Any  # of Hindsight: how its batches are rewarded (relive.config.hindsight)
    plain: dict[int, DrawRequest]  # draws of so many items without a condition, remembered


def unknown_in_batch(batch: Any, name: str) -> AttributeError:
    """What asking a batch for this attribute raises: a column is named by batch[...], whatever others call it."""
    if name.startswith("_"):
        return AttributeError(name)
    slip = for_column(name, batch._columns.names)
    if slip is not None and slip.instead in batch:
        return UnknownAttribute("Batch", name, f"batch[{slip.instead!r}]", slip.why)
    if slip is not None and slip.why:
        return UnknownAttribute("Batch", name, *slip)
    return unknown_attribute("Batch", name, dir(type(batch)))


@refuses_attributes("Batch", unknown_in_batch)
@final
class Batch(Mapping[str, Any]):
    """B gathered items: a mapping of column name -> array [B, ...] (stacked columns [B, k, ...], newest last).

    Of Sequences and Episodes [B, T, ...] ([B, T, k, ...]), with mask and lengths; of time_major ones what has a time
    axis is [T, B, ...]. Of ragged Episodes [rows, ...], the rows of one item behind those of the other, with offsets.
    Of groups of Episodes [B, G, T, ...].

    Nested columns come back as they were declared, in dicts and tuples; batch["a/b"] is one of them.
    item_keys: int64[B]. present: bool[B], which keys were still there (after gather; other rows mean nothing); None for
    a sample, whose items all are. Arrays are the caller's own; pooled memory returns when the last of them is gone. Of
    Episodes they are views of arrays with all max_length + bootstrap rows, whose memory they keep.
    A pytree of torch and of jax, whose leaves are the columns: tree_map over a batch gives a batch, with the item_keys
    and probabilities of the one it was made from as long as each leaf still has its axis of B items; after that, and
    coming out of a function traced by jax, it has none, and asking for them is an error.
    """

    __slots__ = (
        "_arrays",
        "_columns",
        "_device",
        "_item_keys",
        "_num_live_items",
        "_present",
        "_probabilities",
        "_source",
        "_source_names",
    )

    def __init__(
        self,
        columns: Columns,
        arrays: list[Any],
        item_keys: Keys,
        probabilities: Probabilities | None,
        num_live_items: int,
        present: npt.NDArray[np.bool_] | None = None,
        device: Any = None,
    ) -> None:
        self._columns = columns
        self._arrays = columns.trimmed(arrays) if columns.is_trimmed else arrays
        self._item_keys: Keys | None = item_keys  # None: it is not known any more which items the rows are
        self._probabilities = probabilities
        self._num_live_items = num_live_items
        self._present = present
        self._device = device
        self._source: Keys | None = None
        self._source_names: tuple[str, ...] = ()
        if seen[0] != len(sys.modules):
            register_loaded()

    # ---- a mapping of columns --------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        try:
            return self._arrays[self._columns.positions[name]]
        except (KeyError, TypeError):  # a group of columns; a slice, an array: no name
            pass
        return self._columns.group(name, self._arrays)

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns.tops)

    def __len__(self) -> int:
        """The number of top-level columns, as of any mapping; num_items is the number of items."""
        return len(self._columns.tops)

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        return name in self._columns.positions or any(n.startswith(name + "/") for n in self._columns.names)

    def flat(self) -> dict[str, Any]:
        """{flat name: array}, nested columns as 'a/b'."""
        return dict(zip(self._columns.names, self._arrays, strict=True))

    # ---- the time axis, where items have one -----------------------------------------------------------------------

    @property
    def mask(self) -> Any:
        """bool[B, T], [T, B] of time_major items, [rows] of ragged ones, [B, G, T] of groups: which rows are steps.

        Raises UnknownColumn where it was not gathered.
        """
        return self["mask"]

    @property
    def offsets(self) -> Any:
        """int64[B + 1] of ragged items: rows offsets[i] to offsets[i + 1] are item i's. Others raise UnknownColumn."""
        return self["offsets"]

    @property
    def lengths(self) -> Any:
        """int64[B]: steps of each item; [B, G] of groups. Raises UnknownColumn where the mask was not gathered.

        Of ragged items without bootstrap all rows are steps, and no mask is needed.
        """
        return self._columns.lengths(self)

    def of_sources(self, source: Keys, names: tuple[str, ...]) -> Batch:
        """The same batch, of a mixture of sources of these names."""
        self._source, self._source_names = source, names
        return self

    # ---- the draw --------------------------------------------------------------------------------------------------

    @property
    def item_keys(self) -> Keys:
        """int64[B]: the keys of the items."""
        keys = self._item_keys
        return keys if keys is not None else self._without_items("item_keys")

    @property
    def present(self) -> npt.NDArray[np.bool_] | None:
        """bool[B]: which keys were still there, after a gather; None for a sample, whose items all are."""
        return self._present if self._item_keys is not None else self._without_items("present")

    @property
    def source(self) -> Keys | None:
        """int64[B] of a mixture's batch: which source each item is of, by position in source_names; None of others'."""
        return self._source if self._item_keys is not None else self._without_items("source")

    @property
    def source_names(self) -> tuple[str, ...]:
        """The names of a mixture's sources, in order; none of other batches."""
        return self._source_names

    @property
    def num_items(self) -> int:
        """B, the number of items."""
        keys = self._item_keys
        return len(keys) if keys is not None else self._without_items("num_items")

    @property
    def num_live_items(self) -> int:
        """N, the live items at the draw. Raises NoProbabilities after a gather by keys."""
        if self._probabilities is None:
            raise NoProbabilities() if self._item_keys is not None else self._without_items("num_live_items")
        return self._num_live_items

    @property
    def probabilities(self) -> Probabilities:
        """float64[B], mass / total of each item at the draw. Raises NoProbabilities after a gather by keys."""
        if self._probabilities is None:
            raise NoProbabilities() if self._item_keys is not None else self._without_items("probabilities")
        return self._probabilities

    def _without_items(self, name: str) -> NoReturn:
        raise unknown_attribute("Batch", name)

    @refuses_unknown
    def weights(self, beta: float, normalize: Literal["batch"] | None = _USUAL, **unknown: NoReturn) -> Any:
        """Importance weights float32[B]: (N p) ** -beta, divided by their maximum in this batch.

        beta >= 0. normalize=None does not divide (for use across ranks). A numpy array, or a tensor beside the columns
        of a batch from to_torch. Raises NoProbabilities after a gather by keys, InvalidConfig.
        """
        if unknown:
            refuse_unknown(self.weights, unknown)
        if normalize is not _USUAL and normalize is not None and (type(normalize) is not str or normalize != _USUAL):
            raise InvalidConfig("normalize", "'batch' or None", normalize)
        if type(beta) is not float or not 0.0 <= beta < math.inf:
            if beta is MISSING:
                refuse_unknown(self.weights, unknown)
            beta = finite("beta", beta, 0.0)
        probabilities = self._probabilities
        if probabilities is None:
            probabilities = self.probabilities  # says why there are none
        weights = _core.importance_weights(probabilities, self._num_live_items, beta, normalize is not None)
        if self._device is None:
            return weights
        return _to_tensor(weights, self._device)

    # ---- other batches from this one -------------------------------------------------------------------------------

    def rows(self, which: slice | npt.NDArray[Any]) -> Batch:
        """A batch of some of its items: a slice (views) or an index array (copies).

        Rows are at random positions, so any slice is a fair sample. weights() of it divides by its own maximum. A time
        axis stays as long as it is.
        """
        keys, present = self.item_keys, self._present
        some = Batch(
            self._columns.as_they_are,
            self._columns.rows(self._arrays, which),
            keys[which],
            None if self._probabilities is None else self._probabilities[which],
            self._num_live_items,
            None if present is None else present[which],
            self._device,
        )
        return some if self._source is None else some.of_sources(self._source[which], self._source_names)

    @names_arguments
    def to_torch(self, device: Any = None) -> Batch:
        """The same batch with torch tensors as columns; item_keys and probabilities stay numpy.

        device None or 'cpu': tensors over the same memory, nothing is copied. A CUDA device: copied through pinned
        memory without waiting, ordered before later work on the current stream. Needs torch.
        """
        torch = _torch()
        try:
            target = torch.device("cpu" if device is None else device)
        except (RuntimeError, TypeError, ValueError) as error:
            raise InvalidConfig("device", "one that torch knows, such as 'cpu' or 'cuda:0'", device) from error
        return self._with([_to_tensor(array, target) for array in self._arrays], target)

    def _with(self, arrays: list[Any], device: Any) -> Batch:
        """The same items with other arrays."""
        batch = copy.copy(self)
        batch._arrays = arrays
        batch._device = device
        return batch

    __eq__ = object.__eq__  # of a mapping it would compare arrays, which have no truth value
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        columns = ", ".join(
            f"{name}: {getattr(array, 'dtype', '?')}{tuple(getattr(array, 'shape', ()))}"
            for name, array in zip(self._columns.names, self._arrays, strict=True)
        )
        return f"Batch({'no' if self._item_keys is None else len(self._item_keys)} items, {columns})"


# ---- as a tree -----------------------------------------------------------------------------------------------------


@final
class _Rest:
    """What of a batch is no leaf. Batches of the same columns have equal ones: no function is compiled twice for them.

    It holds no array of the batch's columns, whose memory is free when they are gone.
    """

    __slots__ = ("batch", "num_rows")

    def __init__(self, batch: Batch, num_rows: int) -> None:
        self.batch = batch
        self.num_rows = num_rows  # of ragged items, before leaves were anything

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Rest):
            return NotImplemented
        mine, theirs = self.batch._columns, other.batch._columns
        names = mine.names == theirs.names and mine.item_axes == theirs.item_axes
        return mine is theirs or (names and mine.spec == theirs.spec)

    def __hash__(self) -> int:
        return hash(self.batch._columns.names)

    def __repr__(self) -> str:
        return f"columns {', '.join(self.batch._columns.names)}"


def _rest(batch: Batch) -> _Rest:
    return _Rest(batch._with([], None), batch._columns.num_rows(batch._arrays))


def _rebuilt(rest: _Rest, leaves: Iterable[Any], is_traced: bool) -> Batch:
    """The batch with these leaves, which may be anything. Its rows are the items only where no leaf says otherwise.

    In a function that is traced once for many batches, item_keys would be those of the first of them, for ever.
    """
    arrays = list(leaves)
    torch = sys.modules.get("torch")
    device = arrays[0].device if arrays and torch is not None and isinstance(arrays[0], torch.Tensor) else None
    batch = rest.batch._with(arrays, device)
    if batch._item_keys is not None:
        columns = batch._columns
        sizes = columns.sizes(len(batch._item_keys), rest.num_rows)
        shapes = [getattr(array, "shape", None) for array in arrays]
        is_other = any(
            shape is not None and tuple(shape[axis : axis + 1]) != (size,)
            for shape, axis, size in zip(shapes, columns.item_axes, sizes, strict=True)
        )
        if is_traced or is_other:
            batch._item_keys = batch._present = batch._probabilities = None
    return batch


refuse_names(Batch, (*COLUMN_NAMES, *DERIVED_NAMES), unknown_in_batch)
trees[Batch] = Tree(lambda batch: batch._columns.names, lambda batch: batch._arrays, _rest, _rebuilt)


def _on_host(array: Any) -> Any:
    return array.cpu() if hasattr(array, "cpu") else array


def _beside(rows: Any, array: Any) -> Any:
    """Row numbers, or new offsets, as what the array is: a tensor of its device beside a tensor."""
    if not isinstance(rows, np.ndarray) or isinstance(array, np.ndarray):
        return rows
    return _to_tensor(rows, array.device)


def _to_tensor(array: Any, device: Any) -> Any:
    torch = _torch()
    tensor = array if isinstance(array, torch.Tensor) else torch.from_numpy(array)
    if tensor.device == device or (device.type == tensor.device.type and device.index is None):
        return tensor
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def _torch() -> Any:
    try:
        return importlib.import_module("torch")  # here and not above: the library itself needs numpy only
    except ModuleNotFoundError as problem:
        raise MissingPackage("to_torch", problem.name or "torch", "pip install torch") from None
