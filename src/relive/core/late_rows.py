"""Looks at the late columns of rows without a change: which row of a call of complete() is filled already.

The bytes are those of docs/format.md. The answer may be out of date at once: complete() asks again under the lock.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from relive import _core
from relive.errors import AlreadyCompleted, ForeignKey

__all__ = ["check_twice", "first_filled"]

Keys = npt.NDArray[np.int64]

_FORMAT = _core.region_format()
_LEAF_BITS, _STATE_BITS = _FORMAT["leaf_bits"], np.uint64(_FORMAT["state_bits"])
_STATE_MASK, _GENERATION_SHIFT = np.uint64(_FORMAT["state_mask"]), np.uint64(_FORMAT["generation_shift"])
_IN_USE = (_FORMAT["page_open"], _FORMAT["page_closed"])
_PAGE_CELLS, _RANGE_CELL = _FORMAT["page_bytes"] // 8, _FORMAT["page_range_at"] // 8
_END_SHIFT, _TAIL_ROWS = np.uint64(_FORMAT["range_end_shift"]), _FORMAT["tail_word_rows"]
_LATE_BIT, _REMOVED = np.uint32(_FORMAT["late_bit"]), np.uint16(_FORMAT["state_removed"])


def check_twice(keys: Keys, column: str) -> None:
    """Raises AlreadyCompleted if a key comes twice."""
    order = np.argsort(keys, kind="stable")
    twice = np.flatnonzero(keys[order[1:]] == keys[order[:-1]])
    if len(twice):
        position = int(order[twice[0] + 1])
        raise AlreadyCompleted(position, int(keys[position]), column)


def first_filled(core: _core.CoreTable, keys: Keys) -> int:
    """Returns the position of the first key whose row is there and has its late columns; -1 if no row has them.

    Args:
        core: a table of indexes over rows.
        keys: int64[B].

    Raises:
        ForeignKey: a key has no row in a table of this size.
        TableClosed: the table is closed.

    Cost: O(B), without the lock.
    """
    facts = core.geometry
    slots = keys & ((1 << facts["slot_bits"]) - 1)
    wrong = np.flatnonzero((keys < 0) | (slots >= facts["num_slots"]))
    if len(wrong):
        raise ForeignKey(int(wrong[0]), int(keys[wrong[0]]))
    generations = (keys & ((1 << _LEAF_BITS) - 1)) >> facts["slot_bits"]
    pages, rows = np.divmod(slots, facts["page_len"])
    with _core.PinnedRegion(core) as region:  # close() waits
        memory = np.frombuffer((ctypes.c_ubyte * facts["region_bytes"]).from_address(region.address), np.uint8)

        def cells(offset: int, dtype: Any, at: Keys) -> npt.NDArray[Any]:
            return memory[offset:].view(dtype)[at] if len(at) else np.empty(0, dtype)

        words = cells(facts["words_offset"], np.uint64, pages)
        is_used = np.isin(words & _STATE_MASK, _IN_USE) & (words >> _GENERATION_SHIFT == generations.astype(np.uint64))
        places = np.flatnonzero(is_used)
        pages, rows, slots, words = pages[places], rows[places], slots[places], words[places]
        ranges = cells(facts["pages_offset"], np.uint64, pages * _PAGE_CELLS + _RANGE_CELL)
        begin, end = ranges & ((np.uint64(1) << _END_SHIFT) - np.uint64(1)), ranges >> _END_SHIFT
        is_filled = (rows >= begin.astype(np.int64)) & (rows < end.astype(np.int64))
        tails = cells(facts["tails_offset"], np.uint64, pages * facts["tail_words"] + rows // _TAIL_ROWS)
        is_filled &= tails >> (rows % _TAIL_ROWS).astype(np.uint64) & np.uint64(1) == 0
        for offset in facts["states_offset"]:
            is_filled &= cells(offset, np.uint16, slots) != _REMOVED
        slabs, places_in_slab = np.divmod(
            cells(facts["frames_offset"], np.uint32, pages).astype(np.int64), facts["frames_per_slab"]
        )
        heads = facts["slabs_offset"] + slabs * facts["slab_bytes"] + places_in_slab * facts["frame_bytes"]
        heads = (heads + rows * facts["record_stride"])[is_filled]
        is_filled[is_filled] = cells(0, np.uint32, heads // 4) & _LATE_BIT == 0
        now = cells(facts["words_offset"], np.uint64, pages)  # of a page that moved or went meanwhile, nothing is known
        is_filled &= now >> _STATE_BITS == words >> _STATE_BITS
    found = places[is_filled]
    return int(found[0]) if len(found) else -1
