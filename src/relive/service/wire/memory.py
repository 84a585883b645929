"""Makes the process keep memory that large messages have freed, for the next message.

gRPC and Arrow allocate and free buffers of several megabytes for each large message. By default glibc returns such
memory to the system at once, and the next message pays for fresh pages. That cost is about a fifth of the time of a
large batch (docs/design/service.md).
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys

__all__ = ["keep_freed_memory"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of glibc's malloc.h
_LARGEST_FROM_HEAP = 32 << 20  # bytes; the largest value that glibc accepts
_SET_BY_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
_KEPT = 128 << 20  # bytes of freed memory that a heap may keep


@functools.cache
def keep_freed_memory() -> bool:
    """Lets this process keep up to 128 MiB of freed memory in each of malloc's heaps.

    The setting applies to the whole process, and is made once. If the environment already sets malloc's thresholds,
    those values stay.

    Returns:
        True if the setting was made. False if there is no glibc, or if the environment decides.
    """
    if not sys.platform.startswith("linux") or any(name in os.environ for name in _SET_BY_USER):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_FROM_HEAP)) and bool(mallopt(_TRIM_THRESHOLD, _KEPT))
