"""The results of a device reader, as tensors on the device: DeviceDraw (keys, probabilities), DeviceBatch (columns)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, final

import torch

from relive.checks.names import names_arguments
from relive.checks.values import finite
from relive.errors import InvalidConfig, NoProbabilities
from relive.reading.batch import unknown_in_batch
from relive.reading.columns import Columns, ColumnViews

__all__ = ["DeviceBatch", "DeviceDraw", "Gathered"]


@final
class DeviceDraw:
    """Items that were drawn and not gathered.

    Args:
        item_keys: int64[B], on the device.
        probabilities: float64[B], on the device.
        num_live_items: N, the live items of the index at the draw.
        index: name of the index.
    """

    __slots__ = ("index", "item_keys", "num_live_items", "probabilities")

    def __init__(self, item_keys: torch.Tensor, probabilities: torch.Tensor, num_live_items: int, index: str) -> None:
        self.item_keys = item_keys
        self.probabilities = probabilities
        self.num_live_items = num_live_items
        self.index = index

    @property
    def num_items(self) -> int:
        """B, the number of drawn items."""
        return self.item_keys.shape[0]

    def __repr__(self) -> str:
        return f"DeviceDraw({self.num_items} of {self.num_live_items} live items of index {self.index!r})"


class Gathered(NamedTuple):
    """The results of the kernels for one batch."""

    arrays: list[torch.Tensor]
    item_keys: torch.Tensor
    present: torch.Tensor | None = None
    probabilities: torch.Tensor | None = None
    num_live_items: int = 0


@final
class DeviceBatch(ColumnViews):
    """B gathered items on the device: a mapping of column names to tensors [B, ...], nested as they were declared.

    Columns, shapes and values are those of relive.Batch. Columns of items with a time axis are [B, T, ...], [T, B, ...]
    or, for ragged items, [rows, ...]. The rows of an item that was not present are zeros; a ragged item has no rows.
    """

    __slots__ = ("_columns", "_gathered")

    def __init__(self, columns: Columns, gathered: Gathered) -> None:
        self._columns = columns
        arrays = columns.trimmed(gathered.arrays) if columns.is_trimmed else gathered.arrays
        self._gathered = gathered._replace(arrays=arrays)

    def __getitem__(self, name: str) -> Any:
        try:
            position = self._columns.positions.get(name)
        except TypeError:  # a slice or a tensor is not a name
            position = None
        arrays = self._gathered.arrays
        return self._columns.group(name, arrays) if position is None else arrays[position]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns.tops)

    def __len__(self) -> int:
        """B, the number of items; len(batch.keys()) is the number of columns."""
        return self.num_items

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        return name in self._columns.positions or any(n.startswith(name + "/") for n in self._columns.names)

    def flat(self) -> dict[str, torch.Tensor]:
        """Returns {flat name: tensor}. A nested column is named 'a/b'."""
        return dict(zip(self._columns.names, self._gathered.arrays, strict=True))

    @property
    def mask(self) -> torch.Tensor:
        """Whether each row is a step: bool, with the shape of relive.Batch.mask.

        Raises:
            UnknownColumn: the mask was not gathered.
        """
        mask: torch.Tensor = self["mask"]
        return mask

    @property
    def offsets(self) -> torch.Tensor:
        """int64[B + 1] for ragged items. Item i has the rows offsets[i] to offsets[i + 1].

        Raises:
            UnknownColumn: the items are not ragged.
        """
        offsets: torch.Tensor = self["offsets"]
        return offsets

    @property
    def lengths(self) -> torch.Tensor:
        """The number of steps of each item, int64[B], as relive.Batch.lengths.

        Raises:
            UnknownColumn: the lengths need the mask, which was not gathered.
        """
        lengths: torch.Tensor = self._columns.lengths(self)
        return lengths

    @property
    def num_items(self) -> int:
        """B, the number of items."""
        return self._gathered.item_keys.shape[0]

    @property
    def item_keys(self) -> torch.Tensor:
        """The keys of the items, int64[B]. Pass `item_keys.cpu().numpy()` to `table.update_priorities`."""
        return self._gathered.item_keys

    @property
    def present(self) -> torch.Tensor | None:
        """Whether each key was still there, bool[B], after a gather. None after a sample, whose items all were."""
        return self._gathered.present

    @property
    def num_live_items(self) -> int:
        """N, the live items of the index at the draw.

        Raises:
            NoProbabilities: the batch was gathered by keys.
        """
        self._drawn()
        return self._gathered.num_live_items

    @property
    def probabilities(self) -> torch.Tensor:
        """The probability of each item at the draw, float64[B]: mass / total.

        Raises:
            NoProbabilities: the batch was gathered by keys.
        """
        return self._drawn()

    @names_arguments
    def weights(self, beta: float, normalize: Literal["batch"] | None = "batch") -> torch.Tensor:
        """Computes importance weights on the device, as relive.Batch.weights does.

        weight = (N p)^-beta, divided by the largest in the batch if normalize is "batch"

        Args:
            beta: finite, >= 0.
            normalize: "batch" or None. Default: "batch".

        Returns:
            Weights float32[B].

        Raises:
            InvalidConfig: an argument is out of its range.
            NoProbabilities: the batch was gathered by keys.
        """
        if normalize not in ("batch", None):
            raise InvalidConfig("normalize", "'batch' or None", normalize)
        exponent = -finite("beta", beta, 0.0, math.inf)
        probabilities = self._drawn()
        scale = 1.0 / probabilities.min() if normalize is not None else float(self._gathered.num_live_items)
        return (probabilities * scale).to(torch.float32).pow(exponent)

    def _drawn(self) -> torch.Tensor:
        probabilities = self._gathered.probabilities
        if probabilities is None:
            raise NoProbabilities()
        return probabilities

    if not TYPE_CHECKING:  # called for names that do not exist; hidden from type checkers, which then refuse such names

        def __getattr__(self, name: str) -> Any:
            raise unknown_in_batch(self, name)

    __eq__ = object.__eq__  # that of a mapping would compare tensors, which have no truth value
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        columns = ", ".join(f"{name}: {array.dtype}{tuple(array.shape)}" for name, array in self.flat().items())
        return f"DeviceBatch({self.num_items} items, {columns})"
