"""Asks whether a process that does not go on owns a table's lock, without a change of the table."""

from __future__ import annotations

import numpy as np

from relive import _core
from relive.errors import DeadlineExceeded, ReliveError

__all__ = ["check_lock", "is_of_lock"]

_LEAF_BITS = _core.region_format()["leaf_bits"]


def is_of_lock(error: DeadlineExceeded) -> bool:
    """Whether a call ended at its deadline because it waited for the table's lock."""
    return error.holder_pid is not None or error.needs == "the table lock"


def check_lock(core: _core.CoreTable, timeout_s: float) -> None:
    """Takes the table's lock and releases it.

    The question is a claim of an item that never was. A table without items is not asked, and passes.

    Args:
        core: the table.
        timeout_s: how long to wait for the lock, in seconds; 0 tries once.

    Raises:
        DeadlineExceeded: the lock did not become free. holder_pid is the process that owns the lock.
    """
    slot_bits, shard = int(core.geometry["slot_bits"]), int(core.geometry["shard"])
    never = shard << _LEAF_BITS | ((1 << _LEAF_BITS - slot_bits) - 1) << slot_bits
    try:
        core.claim(0, np.array([never], np.int64), timeout_s)
    except DeadlineExceeded as problem:
        if is_of_lock(problem):
            raise
    except ReliveError:
        return  # a table that is closed, or that this handle only reads
