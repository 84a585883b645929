"""Shares anonymous memory between a process and the processes that it starts.

The memory has no name: it is neither under /dev/shm nor anywhere else, and the kernel frees it with the last process
that maps it, however that process ends. It travels to a child in the arguments of a multiprocessing.Process.
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
    """`num_bytes` of shared memory, zeros at first. `array` gives views of it; drop them before `close`."""

    def __init__(self, num_bytes: int) -> None:
        fd = _anonymous_file()
        os.ftruncate(fd, num_bytes)
        self._open(fd, num_bytes)

    def _open(self, fd: int, num_bytes: int) -> None:
        self._fd = fd
        self.num_bytes = num_bytes
        self._memory = mmap.mmap(fd, num_bytes)

    @classmethod
    def of_file(cls, fd: int, num_bytes: int) -> SharedBlock:
        """Maps the block of another process, and owns its descriptor, which came over a socket."""
        block = cls.__new__(cls)
        block._open(fd, num_bytes)
        return block

    def fileno(self) -> int:
        """Returns the descriptor of the memory."""
        return self._fd

    def array(self, dtype: DTypeLike, shape: tuple[int, ...], offset: int = 0) -> NDArray[Any]:
        """Returns a writable view that begins at byte `offset`."""
        # frombuffer counts as a user of the memory, so that close() cannot unmap it; np.ndarray alone does not.
        return np.ndarray(shape, dtype, np.frombuffer(self._memory, np.uint8), offset)

    def close(self) -> None:
        """Unmaps the memory in this process. Views that are still alive keep it mapped."""
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1
        try:
            self._memory.close()
        except BufferError:
            pass  # a view is alive: the memory is unmapped with it

    def __reduce__(self) -> tuple[Any, ...]:
        # It works only during the start of a Process, which alone passes descriptors to a child.
        return _restore, (reduction.DupFd(self._fd), self.num_bytes)


def _restore(descriptor: Any, num_bytes: int) -> SharedBlock:
    return SharedBlock.of_file(descriptor.detach(), num_bytes)


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("relive-train", os.MFD_CLOEXEC)
    fd, path = tempfile.mkstemp(prefix="relive-train-")
    os.unlink(path)
    return fd
