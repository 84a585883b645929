"""Parts of a batch put together: at the positions of one permutation, or where their keys stand."""

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

_MIXES = 2**64 - 4  # a call that no draw has: mixing shifts nobody's numbers


def mixed(
    selections: Sequence[Any] | None, outputs: Outputs, parts: Parts, numbers: tuple[int, int, int]
) -> tuple[Arrays, Keys, Masses]:
    """Arrays, keys and probabilities of all parts, at permuted positions; numbers: seed, stream and call of the draw.

    selections: of each shard what the columns are, None: there are no columns. By the core where one of them is the
    core's, else here: the items of shards that are all elsewhere.
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
    """An array for so many items."""
    _, dtype, shape, axis, _ = output
    return np.empty((*shape[:axis], num_items, *shape[axis:]), dtype)


def scatter(outputs: Outputs, arrays: Arrays, positions: npt.NDArray[Any], some: Arrays) -> None:
    """Items of a part to their positions."""
    for (_, _, _, axis, _), array, part in zip(outputs, arrays, some, strict=True):
        if axis == 0:
            array[positions] = part
        else:  # behind the axis of time
            array[:, positions] = part
