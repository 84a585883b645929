"""The number of steps that fit a capacity, which may be given as memory."""

from __future__ import annotations

import math

from relive.checks.values import bytes_in_text, integer
from relive.config.spec import StepSpec
from relive.errors import InvalidConfig

__all__ = ["bytes_per_step", "num_steps", "steps_in_bytes"]

MAX_STEPS = 2**36  # as in the core
_HEADER_BYTES = 16  # for each row; its head of 4 and its mark of 16 are small beside the row itself
_LARGE_BYTES = 256  # larger columns have rows of their own


def bytes_per_step(spec: StepSpec, num_indexes: int = 1) -> int:
    """Bytes that a table of many steps needs for each step: its row, and its leaf and use count in every index."""
    sizes = [column.num_bytes for column in spec.columns.values()]
    row = _round_up(_HEADER_BYTES + sum(size for size in sizes if size <= _LARGE_BYTES), 16)
    row += sum(_round_up(size, 64) for size in sizes if size > _LARGE_BYTES)
    return row + 14 * num_indexes  # 1.25 slots a step, each with 8 B x 8 / 7 for the tree and 2 B for the use count


def num_steps(capacity: int | str, spec: StepSpec, num_indexes: int = 1) -> int:
    """The steps of a capacity that is given in steps or as memory. Raises InvalidConfig."""
    if isinstance(capacity, str):
        return steps_in_bytes(capacity, spec, num_indexes)
    return integer("capacity", capacity, 1, MAX_STEPS)


def steps_in_bytes(text: str, spec: StepSpec, num_indexes: int = 1) -> int:
    """The steps that fit the memory that a text such as '40GiB' or '500 MB' names. Raises InvalidConfig."""
    num_bytes = bytes_in_text(text)
    if not 0 < num_bytes < math.inf:
        raise InvalidConfig("capacity", "steps, or memory such as '40GiB' or '500MB'", text)
    return integer("capacity in steps", max(1, int(num_bytes / bytes_per_step(spec, num_indexes))), 1, MAX_STEPS)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
