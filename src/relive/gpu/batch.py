"""What a device reader returns: DeviceDraw (keys and probabilities) and DeviceBatch (columns), as tensors there."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, final

import torch

from relive.checks.names import names_arguments
from relive.checks.values import finite
from relive.errors import InvalidConfig, NoProbabilities
from relive.reading.batch import unknown_in_batch
from relive.reading.columns import Columns

__all__ = ["DeviceBatch", "DeviceDraw", "Gathered"]


@final
class DeviceDraw:
    """Items that were drawn, not yet gathered: item_keys int64[B], probabilities float64[B] (tensors on the device).

    num_live_items: N at the draw. index: the name of the index they were drawn from.
    """

    __slots__ = ("index", "item_keys", "num_live_items", "probabilities")

    def __init__(self, item_keys: torch.Tensor, probabilities: torch.Tensor, num_live_items: int, index: str) -> None:
        self.item_keys = item_keys
        self.probabilities = probabilities
        self.num_live_items = num_live_items
        self.index = index

    @property
    def num_items(self) -> int:
        """B, the number of items drawn."""
        return self.item_keys.shape[0]

    def __repr__(self) -> str:
        return f"DeviceDraw({self.num_items} of {self.num_live_items} live items of index {self.index!r})"


class Gathered(NamedTuple):
    """What the kernels left of one batch."""

    arrays: list[torch.Tensor]
    item_keys: torch.Tensor
    present: torch.Tensor | None = None
    probabilities: torch.Tensor | None = None
    num_live_items: int = 0


@final
class DeviceBatch(Mapping[str, Any]):
    """B gathered items on the device: a mapping of column name -> tensor [B, ...], nested as it was declared.

    The same columns, shapes and values as relive.Batch: [B, T, ...], [T, B, ...] or [rows, ...] where items have a time
    axis. item_keys: int64[B]. present: bool[B] after a gather, None for a sample, whose items all are; the rows of
    items that were not present are zeros, or none where rows lie end to end.
    """

    __slots__ = ("_columns", "_gathered")

    def __init__(self, columns: Columns, gathered: Gathered) -> None:
        self._columns = columns
        arrays = columns.trimmed(gathered.arrays) if columns.is_trimmed else gathered.arrays
        self._gathered = gathered._replace(arrays=arrays)

    def __getitem__(self, name: str) -> Any:
        try:
            position = self._columns.positions.get(name)
        except TypeError:  # a slice, a tensor: no name
            position = None
        arrays = self._gathered.arrays
        return self._columns.group(name, arrays) if position is None else arrays[position]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns.tops)

    def __len__(self) -> int:
        """The number of top-level columns, as of any mapping; num_items is the number of items."""
        return len(self._columns.tops)

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        return name in self._columns.positions or any(n.startswith(name + "/") for n in self._columns.names)

    def flat(self) -> dict[str, torch.Tensor]:
        """{flat name: tensor}, nested columns as 'a/b'."""
        return dict(zip(self._columns.names, self._gathered.arrays, strict=True))

    @property
    def mask(self) -> torch.Tensor:
        """bool, which rows are steps: shaped as relive.Batch.mask. Raises UnknownColumn where it was not gathered."""
        mask: torch.Tensor = self["mask"]
        return mask

    @property
    def offsets(self) -> torch.Tensor:
        """int64[B + 1] of ragged items: rows offsets[i] to offsets[i + 1] are item i's. Others raise UnknownColumn."""
        offsets: torch.Tensor = self["offsets"]
        return offsets

    @property
    def lengths(self) -> torch.Tensor:
        """int64[B], the steps of each item, as relive.Batch.lengths. Raises UnknownColumn where the mask is needed."""
        lengths: torch.Tensor = self._columns.lengths(self)
        return lengths

    @property
    def num_items(self) -> int:
        """B, the number of items."""
        return self._gathered.item_keys.shape[0]

    @property
    def item_keys(self) -> torch.Tensor:
        """int64[B]; `.cpu().numpy()` of them goes to table.update_priorities."""
        return self._gathered.item_keys

    @property
    def present(self) -> torch.Tensor | None:
        """bool[B]: which keys were still there, after a gather."""
        return self._gathered.present

    @property
    def num_live_items(self) -> int:
        """N, the live items at the draw. Raises NoProbabilities after a gather by keys."""
        self._drawn()
        return self._gathered.num_live_items

    @property
    def probabilities(self) -> torch.Tensor:
        """float64[B], mass / total of each item at the draw. Raises NoProbabilities after a gather by keys."""
        return self._drawn()

    @names_arguments
    def weights(self, beta: float, normalize: Literal["batch"] | None = "batch") -> torch.Tensor:
        """Importance weights float32[B] as relive.Batch.weights says, computed on the device."""
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

    if not TYPE_CHECKING:  # called for what is not there only; to a checker it is not there

        def __getattr__(self, name: str) -> Any:
            raise unknown_in_batch(self, name)

    __eq__ = object.__eq__  # of a mapping it would compare tensors, which have no truth value
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        columns = ", ".join(f"{name}: {array.dtype}{tuple(array.shape)}" for name, array in self.flat().items())
        return f"DeviceBatch({self.num_items} items, {columns})"
