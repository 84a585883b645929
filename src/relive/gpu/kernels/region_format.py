"""The numbers of the region format and of SplitMix64, as kernels read them: from the core's tables, at import.

FORMAT is one constant that contains all of them, by the names of `_core.region_format()` and `_core.random_format()`.
Triton compares every global constant of a kernel at every launch, so one costs less than thirty. Its value is part of
the name under which Triton keeps compiled code: another format is compiled again.
"""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import triton.language as tl

from relive import _core

__all__ = ["FORMAT"]


def _numbers() -> dict[str, int]:
    numbers = {**_core.region_format(), **_core.random_format()}
    # A head is loaded as int32, where the highest bit is the sign.
    for name in ("terminated_bit", "truncated_bit", "discount_bit", "late_bit"):
        numbers[name] -= (numbers[name] >> 31) << 32
    numbers["leaf_mask"] = (1 << numbers["leaf_bits"]) - 1
    # A word of tails has a power of two of rows: shifts are cheaper than signed divisions.
    numbers["tail_row_shift"] = numbers["tail_word_rows"].bit_length() - 1
    numbers["tail_row_mask"] = numbers["tail_word_rows"] - 1
    return numbers


def _made(numbers: dict[str, int]) -> Any:
    return namedtuple("RegionFormat", list(numbers))(**numbers)


FORMAT = tl.constexpr(_made(_numbers()))
