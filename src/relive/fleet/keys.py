"""Which keys a shard may have given out: those of its rows, and those of the items of each index.

The lower bits of a key are a leaf number. Rows have the leaf numbers from 0 on. Items with keys of their own, such as
groups of episodes, have those of the upper half, one index after another (docs/format.md: first_leaf).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import numpy as np
import numpy.typing as npt

from relive.config.index import Index

__all__ = ["LEAF_BITS", "ShardKeys"]

LEAF_BITS = 51  # low bits of a key; the number of the shard is above them

Keys = npt.NDArray[np.int64]


@final
class ShardKeys:
    """The keys of one shard.

    Args:
        indexes: the indexes of the table, in order.
        slot_bits: bits of a leaf number in a key.
        num_slots: leaf numbers of rows.
    """

    def __init__(self, indexes: Mapping[str, Index], slot_bits: int, num_slots: int) -> None:
        self._slot_bits = slot_bits
        self._rows = 0, num_slots
        self._of_index: list[tuple[int, int]] = []
        first = 1 << (slot_bits - 1)
        for index in indexes.values():
            if index.items.keys_are_steps or index.items.most is None:
                self._of_index.append(self._rows)
                continue
            keeps_one_more = index.remover.steps_per_item(1) is not None  # every remover but Fifo
            end = first + index.items.most + keeps_one_more
            self._of_index.append((first, end))
            first = end

    def are_rows(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Which of the keys, all with this shard's number, may be those of rows."""
        return self._between(keys, *self._rows)

    def are_items(self, keys: Keys, index: int) -> npt.NDArray[np.bool_]:
        """Which of the keys may be those of items of this index."""
        return self._between(keys, *self._of_index[index])

    def are_own(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Which of the keys may be those of rows, or of items of any index."""
        found = self.are_rows(keys)
        for index, leaves in enumerate(self._of_index):
            if leaves != self._rows:
                found |= self.are_items(keys, index)
        return found

    def _between(self, keys: Keys, first: int, end: int) -> npt.NDArray[np.bool_]:
        in_shard = keys & ((1 << LEAF_BITS) - 1)
        leaves, generations = in_shard & ((1 << self._slot_bits) - 1), in_shard >> self._slot_bits
        return (leaves >= first) & (leaves < end) & (generations >= 1)
