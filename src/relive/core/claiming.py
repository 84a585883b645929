"""Claims the items that are there, after a limiter over the totals of several tables let the draw pass."""

from __future__ import annotations

import time
from typing import Protocol

import numpy as np
import numpy.typing as npt

from relive.core.locked import is_of_lock
from relive.errors import DeadlineExceeded

__all__ = ["claim_there"]

Keys = npt.NDArray[np.int64]
Present = npt.NDArray[np.bool_]

_REST_S = 0.5  # how long the lock is waited for if a part of the keys is claimed already


class _Claims(Protocol):
    def num_items(self, index: int) -> int: ...

    def claim(self, index: int, keys: Keys, timeout_s: float) -> tuple[Present, int]: ...


def claim_there(core: _Claims, index: int, keys: Keys, timeout_s: float) -> tuple[Present, int]:
    """Claims keys as TableCore.claim does, but waits for no items.

    The limiter in the table itself lets a claim pass that has at most as many keys as the table has live items. Keys
    may be used up, or come twice, so the keys are claimed in pieces of that length, in their order.

    Args:
        core: the table.
        index: number of the index.
        keys: int64[B].
        timeout_s: how long to wait for the table's lock, in seconds. Each attempt waits 0.1 s.

    Returns:
        Whether each item was there and not used up, bool[B]; live items. If the lock was free for the first pieces
        alone, the keys of the others are not claimed.

    Raises:
        DeadlineExceeded: the lock was not free, and nothing is claimed.
    """
    ends = time.monotonic() + timeout_s
    taken, at, most = np.zeros(len(keys), np.bool_), 0, len(keys)
    while (live := core.num_items(index)) and most and at < len(keys):
        piece = keys[at : at + min(live, most)]
        try:
            taken[at : at + len(piece)] = core.claim(index, piece, 0.0)[0]
        except DeadlineExceeded as error:
            if not is_of_lock(error):  # other calls took items meanwhile
                most = len(piece) // 2
            elif time.monotonic() >= ends:
                if at == 0:
                    raise
                break
            continue
        at, most, ends = at + len(piece), len(keys), max(ends, time.monotonic() + _REST_S)
    return taken, live
