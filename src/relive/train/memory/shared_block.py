"""Anonymous memory that a process shares with the processes it starts.

It has no name: nothing appears under /dev/shm or anywhere else, and the kernel frees it with the last process that
maps it, however that one dies. It travels to a child in the arguments of a multiprocessing.Process (spawn or fork).
"""

from __future__ import annotations

import mmap
import os
import tempfile
from multiprocessing import reduction
from typing import Any, final

import numpy as np
from numpy.typing import DTypeLike, NDArray


@final
class SharedBlock:
    """`num_bytes` of zeros, shared. Views are taken with `array` and must be dropped before `close`."""

    def __init__(self, num_bytes: int) -> None:
        fd = _anonymous_file()
        os.ftruncate(fd, num_bytes)
        self._open(fd, num_bytes)

    def _open(self, fd: int, num_bytes: int) -> None:
        self._fd = fd
        self.num_bytes = num_bytes
        self._memory = mmap.mmap(fd, num_bytes)

    def array(self, dtype: DTypeLike, shape: tuple[int, ...], offset: int = 0) -> NDArray[Any]:
        """A writable view from byte `offset`."""
        # By way of frombuffer, which keeps close() from unmapping it; np.ndarray by itself would not.
        return np.ndarray(shape, dtype, np.frombuffer(self._memory, np.uint8), offset)

    def close(self) -> None:
        """Unmaps it here. Views still alive keep the mapping until they go."""
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1
        try:
            self._memory.close()
        except BufferError:
            pass  # a view is alive: the mapping goes with it

    def __reduce__(self) -> tuple[Any, ...]:
        # Works only while a Process is being started, which is the one way a descriptor reaches a child.
        return _restore, (reduction.DupFd(self._fd), self.num_bytes)


def _restore(descriptor: Any, num_bytes: int) -> SharedBlock:
    block = SharedBlock.__new__(SharedBlock)
    block._open(descriptor.detach(), num_bytes)
    return block


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("relive-train", os.MFD_CLOEXEC)
    fd, path = tempfile.mkstemp(prefix="relive-train-")
    os.unlink(path)
    return fd
