"""Describes how the columns of a batch lie in a reply body: in one block, every array at a multiple of 64 bytes.

The core lays out its pooled batch buffers in the same way. A server therefore sends such a buffer without a copy, and a
client receives the reply into a block of the same pool.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from relive.config.casting import with_items
from relive.service.wire.framing import Bytes, whole

__all__ = [
    "CREATED",
    "DRAWN",
    "LISTED",
    "MOST_DRAWS",
    "MOST_TOGETHER_BYTES",
    "MOST_TOGETHER_ITEMS",
    "PRESENT",
    "PackedArray",
    "Packing",
    "address_of",
    "gathered",
    "room_for",
    "sampled",
]

ALIGNMENT = 64
# Draws in one message. Their answer is one small message (pipe.py), and their work needs less than budget.py counts.
MOST_DRAWS = 16
MOST_TOGETHER_BYTES = 256 << 10
MOST_TOGETHER_ITEMS = 2048


class PackedArray(NamedTuple):
    """One array of a batch.

    `shape`: shape of one value, without the batch axis. `item_axis`: position of the batch axis. `per`: the array has
    one value for each 'item', each 'row' or each 'offset'. 'row' is for items that lie end to end, and counts the rows
    of all items. The number of offsets is the number of items plus one.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    item_axis: int = 0
    per: str = "item"

    def num_values(self, num_items: int, num_rows: int) -> int:
        """Returns the number of values."""
        return {"item": num_items, "row": num_rows, "offset": num_items + 1}[self.per]

    @property
    def value_bytes(self) -> int:
        """Bytes of one value."""
        return self.dtype.itemsize * math.prod(self.shape)


def room_for(num_bytes: int) -> int:
    """Returns num_bytes, rounded up to the place where the next array may begin."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def address_of(array: npt.NDArray[Any]) -> int:
    """Returns the address of an array's first byte."""
    address: int = array.__array_interface__["data"][0]
    return address


@final
class Packing:
    """The arrays of a reply, in order, for any number of items. Remembers the places of the arrays for the last number.

    `num_rows` is the number of rows of all items if the items lie end to end. In other cases num_rows has no meaning.
    """

    __slots__ = ("_placed", "is_ragged", "outputs")

    def __init__(self, outputs: list[PackedArray]) -> None:
        self.outputs = outputs
        self.is_ragged = any(output.per == "row" for output in outputs)
        self._placed: _Placed = _place(outputs, 0, 0)

    def item_bytes(self, most_rows: int) -> int:
        """Returns the bytes of one item that has at most `most_rows` rows."""
        return sum(output.value_bytes * output.num_values(1, most_rows) for output in self.outputs)

    def num_rows(self, told: Mapping[str, Any]) -> int:
        """Reads the number of rows of an answer's items from the answer's header. Raises BadMessage."""
        return whole(told, "rows", 0, 1 << 48) if self.is_ragged else 0

    def num_bytes(self, num_items: int, num_rows: int = 0) -> int:
        """Returns the bytes of the whole block."""
        return self._place(num_items, num_rows).num_bytes

    def arrays(self, block: Bytes, num_items: int, num_rows: int = 0) -> list[npt.NDArray[Any]]:
        """Returns the arrays of num_items items as views of a block. The arrays keep the block alive."""
        return [np.ndarray(shape, dtype, block, at) for shape, dtype, at in self._place(num_items, num_rows).arrays]

    def lies_in_one_block(self, arrays: Sequence[npt.NDArray[Any]], num_items: int, num_rows: int = 0) -> bool:
        """Returns whether these arrays already lie as arrays() would place them.

        Arrays in order over one buffer of the core do, unless an array or a gap has another size. The last array then
        has another address than arrays() would give it, so the method compares that address.
        """
        first, last = arrays[0], arrays[-1]
        if first.base is None or any(array.base is not first.base for array in arrays):
            return False
        return address_of(last) == address_of(first) + self._place(num_items, num_rows).arrays[-1][2]

    def _place(self, num_items: int, num_rows: int) -> _Placed:
        placed = self._placed
        if placed.num_items != num_items or placed.num_rows != num_rows:
            self._placed = placed = _place(self.outputs, num_items, num_rows)
        return placed


class _Placed(NamedTuple):
    """Shape, dtype and first byte of each array, for one number of items and one number of their rows."""

    num_items: int
    num_rows: int
    num_bytes: int
    arrays: list[tuple[tuple[int, ...], np.dtype[Any], int]]


def _place(outputs: list[PackedArray], num_items: int, num_rows: int) -> _Placed:
    arrays, at = [], 0
    for output in outputs:
        count = output.num_values(num_items, num_rows)
        arrays.append((with_items(output.shape, output.item_axis, count), output.dtype, at))
        at += room_for(output.value_bytes * count)
    return _Placed(num_items, num_rows, at, arrays)


KEYS = PackedArray("item_keys", np.dtype(np.int64), ())
PROBABILITIES = PackedArray("probabilities", np.dtype(np.float64), ())
DRAWN = Packing([KEYS, PROBABILITIES])
CREATED = Packing([KEYS])
# Items of some leaves: their number is unknown until they are found, so the items count as rows do.
LISTED = Packing(
    [
        KEYS._replace(per="row"),
        PackedArray("ages", np.dtype(np.uint64), (), 0, "row"),
        PackedArray("ranks", np.dtype(np.float64), (), 0, "row"),
    ]
)
PRESENT = Packing([PackedArray("present", np.dtype(np.bool_), ())])


def sampled(outputs: list[PackedArray]) -> Packing:
    """Returns the packing of a sample: its columns, then keys and probabilities."""
    return Packing([*outputs, KEYS, PROBABILITIES])


def gathered(outputs: list[PackedArray]) -> Packing:
    """Returns the packing of a gather: its columns, then a bool for each key that says whether the item was present."""
    return Packing([*outputs, *PRESENT.outputs])
