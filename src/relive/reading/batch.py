"""Batch: the items that reading returns, as a mapping of column names to arrays."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn, final

import numpy as np
import numpy.typing as npt

from relive.checks.html import html_table
from relive.checks.names import (
    MISSING,
    names_arguments,
    refuse_names,
    refuse_unknown,
    refuses_attributes,
    refuses_unknown,
    unknown_attribute,
)
from relive.config.spec import DERIVED_NAMES
from relive.errors import InvalidConfig, NoProbabilities, UnknownAttribute
from relive.errors.slips import COLUMN_NAMES, for_column
from relive.reading.columns import Columns, ColumnViews, chosen
from relive.reading.pytrees import Tree, register_loaded, seen, trees
from relive.reading.tensors import to_tensor, torch_itself
from relive.reading.weights import USUAL, Normalize, importance_weights

__all__ = ["Batch", "refuse_columns", "unknown_in_batch"]

Keys = npt.NDArray[np.int64]
Probabilities = npt.NDArray[np.float64]


def unknown_in_batch(batch: Any, name: str) -> AttributeError:
    """The error for an attribute that a batch does not have: a column is named by batch[...]."""
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
class Batch(ColumnViews):
    """B gathered items: a mapping of column name -> array.

    | items | shape of a column |
    |---|---|
    | Transitions | [B, ...]; stacked [B, k, ...], the newest last |
    | Sequences, Episodes | [B, T, ...]; stacked [B, T, k, ...]; with mask and lengths |
    | the same, time_major | [T, B, ...] for a column with a time axis |
    | ragged Episodes | [rows, ...], item after item, with offsets |
    | groups of Episodes | [B, G, T, ...] |

    Nested columns are dicts and tuples, as they were declared; batch["a/b"] is one of them. The arrays belong to the
    caller. Pooled memory returns to the pool when the last array of it is gone. Arrays of Episodes are views of arrays
    with all max_length + bootstrap rows, and keep their memory.

    A batch is a pytree of torch and of jax, with the columns as leaves: tree_map over a batch returns a batch. That
    batch has the item_keys and probabilities of the first one as long as each leaf has its axis of B items. Otherwise,
    and in a batch that leaves a function traced by jax, they are gone, and reading them raises UnknownAttribute.
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
        self._item_keys: Keys | None = item_keys  # None: the rows no longer belong to known items
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
        except (KeyError, TypeError):  # a group of columns; or a slice or an array, which is no name
            pass
        return self._columns.group(name, self._arrays)

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns.tops)

    def __len__(self) -> int:
        """The number of items, B; len(batch.keys()) is the number of columns.

        In a function that a framework traces, where items are not known: the length of the first column.
        """
        return self._columns.num_items(self._arrays) if self._item_keys is None else len(self._item_keys)

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        return name in self._columns.positions or any(n.startswith(name + "/") for n in self._columns.names)

    def flat(self) -> dict[str, Any]:
        """{flat name: array}, with nested columns as 'a/b'."""
        return dict(zip(self._columns.names, self._arrays, strict=True))

    # ---- the time axis, where items have one -----------------------------------------------------------------------

    @property
    def mask(self) -> Any:
        """Which rows are steps: bool[B, T]; time_major [T, B]; ragged [rows]; groups [B, G, T].

        Raises UnknownColumn if the mask was not gathered.
        """
        return self["mask"]

    @property
    def offsets(self) -> Any:
        """int64[B + 1] of ragged items: rows offsets[i] to offsets[i + 1] belong to item i.

        Raises UnknownColumn for other items.
        """
        return self["offsets"]

    @property
    def lengths(self) -> Any:
        """Steps of each item: int64[B]; [B, G] for groups.

        Raises UnknownColumn if the mask was not gathered. Ragged items without bootstrap need no mask, because all of
        their rows are steps.
        """
        return self._columns.lengths(self)

    def of_sources(self, source: Keys, names: tuple[str, ...]) -> Batch:
        """Marks this batch as one of a mixture, and returns it."""
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
        """bool[B] after a gather: which keys were still there; other rows mean nothing.

        None after a sample: all are.
        """
        return self._present if self._item_keys is not None else self._without_items("present")

    @property
    def source(self) -> Keys | None:
        """int64[B]: the source of each item, by position in source_names; None for a batch that is not of a mixture."""
        return self._source if self._item_keys is not None else self._without_items("source")

    @property
    def source_names(self) -> tuple[str, ...]:
        """The names of a mixture's sources, in order; () for other batches."""
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
        """float64[B]: mass / total of each item at the draw. Raises NoProbabilities after a gather by keys."""
        if self._probabilities is None:
            raise NoProbabilities() if self._item_keys is not None else self._without_items("probabilities")
        return self._probabilities

    def _without_items(self, name: str) -> NoReturn:
        raise unknown_attribute("Batch", name)

    @refuses_unknown
    def weights(self, beta: float, normalize: Normalize = USUAL, **unknown: NoReturn) -> Any:
        """Importance weights float32[B]: how much each item counts, so that a draw by priority stays unbiased.

            weight = (N p) ** -beta, divided by the largest weight of this batch

        Args:
            beta: exponent, >= 0.
            normalize: 'batch' divides by the maximum; None does not, for use across ranks.

        Returns:
            A numpy array; a tensor on the same device for a batch from to_torch.

        Raises:
            NoProbabilities: the batch was gathered by keys.
            InvalidConfig: beta or normalize has another type or value.

        Source: Schaul et al. 2016, section 3.4.
        """
        if unknown or beta is MISSING:
            refuse_unknown(self.weights, unknown)
        probabilities = self._probabilities
        if probabilities is None:
            probabilities = self.probabilities  # raises the error that explains it
        weights = importance_weights(probabilities, self._num_live_items, beta, normalize)
        if self._device is None:
            return weights
        return to_tensor(weights, self._device)

    # ---- other batches from this one -------------------------------------------------------------------------------

    def rows(self, which: slice | npt.NDArray[Any]) -> Batch:
        """A batch of some of its items.

        Items are at random positions, so any slice is a fair sample. weights() of the new batch divides by its own
        maximum. A time axis keeps its length.

        Args:
            which: a slice, which gives views if its step is positive; or an index array, which copies.

        Raises:
            InvalidConfig: `which` is no slice of integers, and no array [K] of integers in range or [B] of bools.
        """
        which = chosen(which, len(self.item_keys))
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

    def in_order(self, shown: Columns, num_hidden: int, places: Callable[[list[Any]], npt.NDArray[np.intp]]) -> Batch:
        """The batch without its last num_hidden columns, its items as `places` puts them by these columns."""
        if not num_hidden:
            return self
        batch = self._with(self._arrays[:-num_hidden], self._device)
        batch._columns = shown
        return batch.rows(places(self._arrays[-num_hidden:]))

    @names_arguments
    def to_torch(self, device: Any = None) -> Batch:
        """The same batch with torch tensors as columns; item_keys and probabilities stay numpy arrays.

        Args:
            device: None or 'cpu': tensors over the same memory, without a copy. A CUDA device: copied through pinned
                memory without waiting, ordered before later work on the current stream.

        Raises:
            MissingPackage: torch is not installed.
            InvalidConfig: torch knows no such device.
        """
        torch = torch_itself()
        try:
            target = torch.device("cpu" if device is None else device)
        except (RuntimeError, TypeError, ValueError) as error:
            raise InvalidConfig("device", "one that torch knows, such as 'cpu' or 'cuda:0'", device) from error
        return self._with([to_tensor(array, target) for array in self._arrays], target)

    def _with(self, arrays: list[Any], device: Any) -> Batch:
        """The same items with other arrays."""
        batch = copy.copy(self)
        batch._arrays = arrays
        batch._device = device
        return batch

    __eq__ = object.__eq__  # a mapping would compare arrays, which have no truth value
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        columns = ", ".join(
            f"{name}: {getattr(array, 'dtype', '?')}{tuple(getattr(array, 'shape', ()))}"
            for name, array in zip(self._columns.names, self._arrays, strict=True)
        )
        return f"Batch({'no' if self._item_keys is None else len(self._item_keys)} items, {columns})"

    def _repr_html_(self) -> str:
        rows = [
            (name, getattr(array, "dtype", "?"), "[" + ", ".join(map(str, getattr(array, "shape", ()))) + "]")
            for name, array in zip(self._columns.names, self._arrays, strict=True)
        ]
        return html_table(f"Batch of {len(self)} items", ("column", "dtype", "shape"), rows)


# ---- as a tree -----------------------------------------------------------------------------------------------------


@final
class _Rest:
    """The part of a batch that is no leaf. It is equal for batches with equal columns, so that functions compile once.

    It keeps no array of the batch's columns, so that their memory is free when the columns are gone.
    """

    __slots__ = ("batch", "num_rows")

    def __init__(self, batch: Batch, num_rows: int) -> None:
        self.batch = batch
        self.num_rows = num_rows  # of ragged items, before leaves were replaced

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
    """The batch with these leaves, which may be anything. It keeps its items only if every leaf has their axis.

    A function that is traced once for many batches would else see the item_keys of the first batch for ever.
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


def refuse_columns(names: Iterable[str]) -> None:
    """Makes batch.<name> of these columns raise an error that says how a column is named."""
    refuse_names(Batch, names, unknown_in_batch)


refuse_columns((*COLUMN_NAMES, *DERIVED_NAMES))
trees[Batch] = Tree(lambda batch: batch._columns.names, lambda batch: batch._arrays, _rest, _rebuilt)
