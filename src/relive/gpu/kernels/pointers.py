"""The cast of an address to a pointer, which all kernels share."""

from __future__ import annotations

import triton
import triton.language as tl

__all__: list[str] = []


@triton.jit
def pointer(address: tl.tensor, kind: tl.constexpr) -> tl.tensor:
    """The pointer to values of a kind at an address.

    Triton types an address below 2^31 as int32, and an int32 is no pointer. The heap of some Pythons lies that low.
    """
    return address.to(tl.int64).to(tl.pointer_type(kind))
