"""Joins the parts of a batch: at the positions of one permutation, or at the positions of their keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt

from relive._core import CoreSelection, mix_batches, permutation

__all__ = ["Outputs", "Parts", "are_ragged", "empty", "end_to_end", "mixed", "scatter"]

Keys = npt.NDArray[np.int64]
Masses = npt.NDArray[np.float64]
Arrays = list[npt.NDArray[Any]]
Outputs = list[tuple[str, str, tuple[int, ...], int, str]]
Parts = list[tuple[Arrays, Keys, Masses, float]]
Places = npt.NDArray[np.integer[Any]]

_MIXES = 2**64 - 4  # no draw has this call number, so mixing does not shift the random numbers of a draw


def mixed(
    selections: Sequence[Any] | None, outputs: Outputs, parts: Parts, numbers: tuple[int, int, int]
) -> tuple[Arrays, Keys, Masses]:
    """Joins the arrays, keys and probabilities of all parts, at permuted positions.

    The core joins them, unless the rows of items lie end to end.

    Args:
        selections: the selection of each shard. None: there are no columns.
        outputs: the outputs of the selections.
        parts: (arrays, keys, masses, share) of each part.
        numbers: seed, stream and call of the draw.

    Returns:
        (arrays, keys, probabilities).
    """
    seed, stream, call = numbers
    shown = next((one for one in selections or () if isinstance(one, CoreSelection)), None)
    if not are_ragged(outputs):
        if selections is None or shown is not None:
            return mix_batches(shown, parts, seed, stream, call)
        num_items = sum(len(keys) for _, keys, _, _ in parts)
        arrays = [empty(output, num_items) for output in outputs]
        into = [(array, axis) for array, (_, _, _, axis, _) in zip(arrays, outputs, strict=True)]
        _, item_keys, probabilities = mix_batches(None, parts, seed, stream, call, into)
        return arrays, item_keys, probabilities
    num_items = sum(len(keys) for _, keys, _, _ in parts)
    positions = permutation(seed, stream, call ^ _MIXES, num_items)
    item_keys, probabilities = np.empty(num_items, np.int64), np.empty(num_items)
    placed: list[tuple[Places, Arrays]] = []
    first = 0
    for some, keys, masses, share in parts:
        mine: Places = positions[first : first + len(keys)]
        item_keys[mine], probabilities[mine] = keys, masses * share
        placed.append((mine, some))
        first += len(keys)
    return end_to_end(outputs, placed, num_items), item_keys, probabilities


def are_ragged(outputs: Outputs) -> bool:
    """Whether the rows of the items lie end to end, so that the arrays of a batch have one row for each of them."""
    return any(per != "item" for *_, per in outputs)


def empty(output: tuple[str, str, tuple[int, ...], int, str], num_items: int) -> npt.NDArray[Any]:
    """An uninitialised array for num_items items, which have equally many rows."""
    _, dtype, shape, axis, _ = output
    return np.empty((*shape[:axis], num_items, *shape[axis:]), dtype)


def scatter(outputs: Outputs, arrays: Arrays, positions: Places, some: Arrays) -> None:
    """Copies the items of a part to their positions."""
    for (_, _, _, axis, _), array, part in zip(outputs, arrays, some, strict=True):
        if axis == 0:
            array[positions] = part
        else:  # the item axis comes after the time axis
            array[:, positions] = part


def end_to_end(outputs: Outputs, placed: Sequence[tuple[Places, Arrays]], num_items: int) -> Arrays:
    """Joins the parts of a ragged batch: the rows of all items lie end to end, in the order of the items.

    Args:
        outputs: the outputs of the columns. One of them has the offsets.
        placed: the positions of the items of each part, and the arrays of that part.
        num_items: number of items. An item of no part has no rows, and reads as 0.

    Returns:
        The arrays of the whole batch.

    Cost: one copy of the rows.
    """
    at = next(number for number, (*_, per) in enumerate(outputs) if per == "offset")
    lengths = np.zeros(num_items, np.int64)
    for mine, some in placed:
        lengths[mine] = np.diff(some[at])
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    sizes = {"item": num_items, "row": int(offsets[-1]), "offset": num_items + 1}
    arrays = [np.zeros((sizes[per], *shape), dtype) for _, dtype, shape, _, per in outputs]
    arrays[at][:] = offsets
    for mine, some in placed:
        rows = _Rows(offsets[mine], some[at])
        for (*_, per), array, part in zip(outputs, arrays, some, strict=True):
            if per == "row":
                rows.copy(part, array)
            elif per == "item":
                array[mine] = part
    return arrays


_LONG = 32  # rows of an item from which on a copy of its own takes less time than a part of a scatter


@final
class _Rows:
    """The rows of the items of a part: where each item begins in the batch, and the offsets in the part."""

    def __init__(self, begins: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64]) -> None:
        num_rows = int(offsets[-1])
        self._spans: list[tuple[int, int, int]] | None = None
        if num_rows >= _LONG * len(begins):
            self._spans = list(zip(begins.tolist(), offsets[:-1].tolist(), offsets[1:].tolist(), strict=True))
        else:
            self._places = np.repeat(begins - offsets[:-1], np.diff(offsets)) + np.arange(num_rows)

    def copy(self, part: npt.NDArray[Any], array: npt.NDArray[Any]) -> None:
        """Copies the rows of one column to their places in the batch."""
        if self._spans is None:
            array[self._places] = part
            return
        for begin, first, end in self._spans:
            array[begin : begin + end - first] = part[first:end]
