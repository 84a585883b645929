"""What the process does with memory that messages leave behind.

A large message passes through buffers of several megabytes that gRPC and Arrow allocate and free for each. By default
glibc gives such memory back to the system at once, and the next message pays for fresh pages: about a fifth of the time
of a large batch (docs/design/service.md).
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys

__all__ = ["keep_freed_memory"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of glibc's malloc.h
_LARGEST_FROM_HEAP = 32 << 20  # bytes; the most that glibc takes
_SAID_BY_THE_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
_KEPT = 128 << 20  # bytes of freed memory a heap may hold


@functools.cache
def keep_freed_memory() -> bool:
    """Lets this process hold up to 128 MiB of freed memory in each of malloc's heaps. False where there is no glibc.

    It speaks for the whole process, once. Where the environment already says what malloc keeps, that holds: False.
    """
    if not sys.platform.startswith("linux") or any(name in os.environ for name in _SAID_BY_THE_USER):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_FROM_HEAP)) and bool(mallopt(_TRIM_THRESHOLD, _KEPT))
