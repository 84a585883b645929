"""How the columns of a batch lie in the body of a reply: one block, every array at a multiple of 64 bytes.

The core lays out its pooled batch buffers in the same way, so a server sends one as it is, and a client receives it
into a block of the same pool.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from relive.service.wire import Bytes

__all__ = ["DRAWN", "PRESENT", "Output", "Packing", "address_of", "gathered", "room_for", "sampled"]

ALIGNMENT = 64


class Output(NamedTuple):
    """One array of a batch, without its axis of items."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def item_bytes(self) -> int:
        """Bytes of one item."""
        return self.dtype.itemsize * math.prod(self.shape)


def room_for(num_bytes: int) -> int:
    """num_bytes, rounded up to where the next array may begin."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def address_of(array: npt.NDArray[Any]) -> int:
    """Where the first byte of an array lies."""
    address: int = array.__array_interface__["data"][0]
    return address


@final
class Packing:
    """The arrays of a reply, in order, for any number of items."""

    __slots__ = ("item_bytes", "outputs")

    def __init__(self, outputs: list[Output]) -> None:
        self.outputs = outputs
        self.item_bytes = sum(output.item_bytes for output in outputs)

    def num_bytes(self, num_items: int) -> int:
        """Bytes of the whole block."""
        return sum(room_for(output.item_bytes * num_items) for output in self.outputs)

    def arrays(self, block: Bytes, num_items: int) -> list[npt.NDArray[Any]]:
        """The arrays [num_items, ...] over a block; they keep it alive."""
        made, at = [], 0
        for output in self.outputs:
            made.append(np.ndarray((num_items, *output.shape), output.dtype, block, at))
            at += room_for(output.item_bytes * num_items)
        return made

    def lies_in_one_block(self, arrays: Sequence[npt.NDArray[Any]], num_items: int) -> bool:
        """Whether these arrays already lie as arrays() would lay them."""
        at = address_of(arrays[0])
        for output, array in zip(self.outputs, arrays, strict=True):
            if address_of(array) != at:
                return False
            at += room_for(output.item_bytes * num_items)
        return True


KEYS = Output("item_keys", np.dtype(np.int64), ())
PROBABILITIES = Output("probabilities", np.dtype(np.float64), ())
DRAWN = Packing([KEYS, PROBABILITIES])
PRESENT = Packing([Output("present", np.dtype(np.bool_), ())])


def sampled(outputs: list[Output]) -> Packing:
    """A sample: its columns, then keys and probabilities."""
    return Packing([*outputs, KEYS, PROBABILITIES])


def gathered(outputs: list[Output]) -> Packing:
    """What gather returns: the columns, then which keys were present."""
    return Packing([*outputs, *PRESENT.outputs])
