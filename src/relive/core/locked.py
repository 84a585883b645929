"""Asks whether a process that does not go on owns a table's lock."""

from __future__ import annotations

from relive import _core
from relive.errors import DeadlineExceeded, ReliveError

__all__ = ["check_lock", "is_of_lock"]


def is_of_lock(error: DeadlineExceeded) -> bool:
    """Whether a call ended at its deadline because it waited for the table's lock."""
    return error.holder_pid is not None or error.needs == "the table lock"


def check_lock(core: _core.CoreTable, timeout_s: float) -> None:
    """Takes the table's lock and releases it, which drops the items that have waited longer than max_wait_s.

    Args:
        core: the table. A table that is closed, or that this handle only reads, is not asked, and passes.
        timeout_s: how long to wait for the lock, in seconds; 0 tries once.

    Raises:
        DeadlineExceeded: the lock did not become free. holder_pid is the process that owns the lock.
    """
    try:
        core.take_lock(timeout_s)
    except DeadlineExceeded:
        raise
    except ReliveError:
        return
