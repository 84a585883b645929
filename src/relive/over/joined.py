"""Batches that are joined from parts of several sources: whether their columns are alike, and one batch of them all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from relive.errors import InvalidConfig
from relive.reading.columns import Columns, Selection

__all__ = ["check_alike", "join"]


def check_alike(first: str, one: Selection, name: str, other: Selection) -> None:
    """Raises InvalidConfig if the columns of two sources differ."""
    mine, theirs = list(one.core.outputs), list(other.core.outputs)
    what = f"columns of source {name!r}"
    for a, b in zip(mine, theirs, strict=False):
        if tuple(a) != tuple(b):
            raise InvalidConfig(what, f"those of {first!r}: {_in_words(a)}", _in_words(b))
    if len(mine) != len(theirs):
        raise InvalidConfig(what, f"those of {first!r}: {len(mine)} columns", f"{len(theirs)} columns")
    shown, others = one.columns, other.columns
    if (shown.names, shown.item_axes, shown.is_ragged, shown.is_trimmed, shown.num_behind) != (
        others.names,
        others.item_axes,
        others.is_ragged,
        others.is_trimmed,
        others.num_behind,
    ):
        raise InvalidConfig(what, f"items of the kind of {first!r}", "another time axis")


def _in_words(output: Sequence[Any]) -> str:
    name, dtype, shape, axis, per = output
    return f"{name} {dtype}{list(shape)} of each {per}" + (", time first" if axis else "")


def join(
    shown: Columns, parts: list[list[npt.NDArray[Any]]], places: list[npt.NDArray[np.intp]]
) -> list[npt.NDArray[Any]]:
    """One batch from several, with the items of each at the given positions."""
    if shown.is_ragged:
        return shown.rows(_end_to_end(shown, parts), np.argsort(np.concatenate(places)))
    num_items = sum(map(len, places))
    joined = []
    for column, axis in enumerate(shown.item_axes):
        first = parts[0][column]
        room = np.zeros((*first.shape[:axis], num_items, *first.shape[axis + 1 :]), first.dtype)
        for arrays, some in zip(parts, places, strict=True):
            room[(slice(None),) * axis + (some,)] = arrays[column]
        joined.append(room)
    return joined


def _end_to_end(shown: Columns, parts: list[list[npt.NDArray[Any]]]) -> list[npt.NDArray[Any]]:
    """Ragged arrays, with the items of one part after those of the other."""
    at = shown.positions["offsets"]
    joined = [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]
    lengths = np.concatenate([np.diff(arrays[at]) for arrays in parts])
    joined[at] = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    return joined
