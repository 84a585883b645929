"""Capacity given as memory: how many steps fit."""

from __future__ import annotations

import math

from relive.checks.values import bytes_in_text, integer
from relive.config.spec import StepSpec
from relive.errors import InvalidConfig

__all__ = ["bytes_per_step", "num_steps", "steps_in_bytes"]

MAX_STEPS = 2**36  # the core's own limit
_HEADER_BYTES = 16  # of each row, for its head of 4 and its mark of 16, which large rows outweigh
_LARGE_BYTES = 256  # larger columns have rows of their own


def bytes_per_step(spec: StepSpec, num_indexes: int = 1) -> int:
    """Memory that a table of many steps needs for each: its row, and its leaf and use count in every index."""
    sizes = [column.num_bytes for column in spec.columns.values()]
    row = _round_up(_HEADER_BYTES + sum(size for size in sizes if size <= _LARGE_BYTES), 16)
    row += sum(_round_up(size, 64) for size in sizes if size > _LARGE_BYTES)
    return row + 14 * num_indexes  # 1.25 slots a step, each 8 B x 8 / 7 of tree and 2 B of count


def num_steps(capacity: int | str, spec: StepSpec, num_indexes: int = 1) -> int:
    """The steps of a capacity, given as such or as memory. Raises InvalidConfig."""
    if isinstance(capacity, str):
        return steps_in_bytes(capacity, spec, num_indexes)
    return integer("capacity", capacity, 1, MAX_STEPS)


def steps_in_bytes(text: str, spec: StepSpec, num_indexes: int = 1) -> int:
    """How many steps fit the memory that a text such as '40GiB' or '500 MB' names. Raises InvalidConfig."""
    num_bytes = bytes_in_text(text)
    if not 0 < num_bytes < math.inf:
        raise InvalidConfig("capacity", "steps, or memory such as '40GiB' or '500MB'", text)
    return integer("capacity in steps", max(1, int(num_bytes / bytes_per_step(spec, num_indexes))), 1, MAX_STEPS)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
