"""Addresses as kernels see them."""

from __future__ import annotations

import mmap
import platform

import numpy as np
import pytest
import triton
import triton.language as tl

from gpu.tools import ON_CARD
from relive.gpu.kernels.pointers import pointer

_MAP_32BIT = 0x40  # Linux on x86-64: an address below 2^31


@triton.jit
def _doubles(address: tl.tensor) -> None:
    place = pointer(address, tl.int64) + tl.arange(0, 8)
    tl.store(place, 2 * tl.load(place))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86-64 gives memory below 2^31 on request")
@pytest.mark.skipif(ON_CARD, reason="the memory of a card has no address below 2^31")
def test_memory_below_two_gibibytes_has_an_address_too() -> None:
    """The heap of a Python whose program is not relocatable begins there."""
    memory = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_32BIT)
    values = np.frombuffer(memory, np.int64, 8)
    values[:] = np.arange(8)
    assert values.ctypes.data < 2**31
    _doubles[(1,)](values.ctypes.data)
    assert values.tolist() == [0, 2, 4, 6, 8, 10, 12, 14]
