"""Joins the parts of a batch: at the positions of one permutation, or at the positions of their keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from relive._core import CoreSelection, mix_batches, permutation

__all__ = ["Outputs", "Parts", "empty", "mixed", "scatter"]

Keys = npt.NDArray[np.int64]
Masses = npt.NDArray[np.float64]
Arrays = list[npt.NDArray[Any]]
Outputs = list[tuple[str, str, tuple[int, ...], int, str]]
Parts = list[tuple[Arrays, Keys, Masses, float]]

_MIXES = 2**64 - 4  # no draw has this call number, so mixing does not shift the random numbers of a draw


def mixed(
    selections: Sequence[Any] | None, outputs: Outputs, parts: Parts, numbers: tuple[int, int, int]
) -> tuple[Arrays, Keys, Masses]:
    """Joins the arrays, keys and probabilities of all parts, at permuted positions.

    The core joins them if one selection is the core's. Otherwise this function does: then all shards are on other
    hosts.

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
    if selections is None or shown is not None:
        return mix_batches(shown, parts, seed, stream, call)
    num_items = sum(len(keys) for _, keys, _, _ in parts)
    positions = permutation(seed, stream, call ^ _MIXES, num_items)
    arrays = [empty(output, num_items) for output in outputs]
    item_keys, probabilities = np.empty(num_items, np.int64), np.empty(num_items)
    first = 0
    for some, keys, masses, share in parts:
        mine = positions[first : first + len(keys)]
        item_keys[mine], probabilities[mine] = keys, masses * share
        scatter(outputs, arrays, mine, some)
        first += len(keys)
    return arrays, item_keys, probabilities


def empty(output: tuple[str, str, tuple[int, ...], int, str], num_items: int) -> npt.NDArray[Any]:
    """An uninitialised array for num_items items."""
    _, dtype, shape, axis, _ = output
    return np.empty((*shape[:axis], num_items, *shape[axis:]), dtype)


def scatter(outputs: Outputs, arrays: Arrays, positions: npt.NDArray[Any], some: Arrays) -> None:
    """Copies the items of a part to their positions."""
    for (_, _, _, axis, _), array, part in zip(outputs, arrays, some, strict=True):
        if axis == 0:
            array[positions] = part
        else:  # the item axis comes after the time axis
            array[:, positions] = part
