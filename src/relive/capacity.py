"""Capacity given as memory: how many steps fit."""

from __future__ import annotations

import math

from relive._checks import bytes_in_text
from relive.errors import InvalidConfig
from relive.spec import StepSpec

__all__ = ["bytes_per_step", "steps_in_bytes"]

_HEADER_BYTES = 16  # in front of each row
_LARGE_BYTES = 256  # larger columns have rows of their own


def bytes_per_step(spec: StepSpec, num_indexes: int = 1) -> int:
    """Memory that a table of many steps needs for each: its row, and its leaf and use count in every index."""
    sizes = [column.num_bytes for column in spec.columns.values()]
    row = _round_up(_HEADER_BYTES + sum(size for size in sizes if size <= _LARGE_BYTES), 16)
    row += sum(_round_up(size, 64) for size in sizes if size > _LARGE_BYTES)
    return row + 14 * num_indexes  # 1.25 slots a step, each 8 B x 8 / 7 of tree and 2 B of count


def steps_in_bytes(text: str, spec: StepSpec, num_indexes: int = 1) -> int:
    """How many steps fit the memory that a text such as '40GiB' or '500 MB' names. Raises InvalidConfig."""
    num_bytes = bytes_in_text(text)
    if not 0 < num_bytes < math.inf:
        raise InvalidConfig("capacity", "steps, or memory such as '40GiB' or '500MB'", text)
    return max(1, int(num_bytes / bytes_per_step(spec, num_indexes)))


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
