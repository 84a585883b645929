"""The rows of one call of a writer, and parts of them."""

from __future__ import annotations

from collections.abc import Set
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Block", "Inserted", "count_steps"]

Lanes = npt.NDArray[np.int32]

_ENDS = ("terminated", "truncated")
_A_STEP = (*_ENDS, "discount")  # may be one value for the block


class Inserted(NamedTuple):
    """The steps that a call inserts, and the episodes that end with these steps."""

    num_steps: int
    num_ends: int
    num_owed: int = 0  # lanes of these steps whose last episode ended without a question to the limiter


class Block(NamedTuple):
    """The columns of a call: arrays [T, M, ...], or [T, ...] without a lane axis, or scalars.

    The rows are numbered step by step, and in each step lane by lane.
    """

    columns: dict[str, Any]
    priority: Any
    num_steps: int
    num_lanes: int

    @property
    def num_rows(self) -> int:
        """Steps of all lanes."""
        return self.num_steps * self.num_lanes

    @property
    def num_bytes(self) -> int:
        """Size of the columns."""
        return sum(np.asarray(value).nbytes for value in self.columns.values())

    @property
    def is_divisible(self) -> bool:
        """Whether the block has several rows, and arrays of as many. The core refuses other arrays."""
        shapes = [np.shape(value) for value in (*self.columns.values(), self.priority) if np.ndim(value)]
        fit = all(shape[0] in (self.num_steps, self.num_steps + 1) for shape in shapes)
        if self.num_lanes > 1:
            fit = fit and all(shape[1:2] == (self.num_lanes,) for shape in shapes)
        return fit and self.num_rows > 1

    def end_of(self, first: int, upto: int) -> int:
        """The end of a part from `first` on: whole steps, or lanes of the one step that the part begins in."""
        step_end = (first // self.num_lanes + 1) * self.num_lanes
        if first % self.num_lanes or upto < step_end:
            return min(upto, step_end)
        return upto // self.num_lanes * self.num_lanes

    def inserted(self, first: int, upto: int) -> Inserted:
        """These rows, and the most episodes that end with them."""
        if upto - first == self.num_rows:
            return Inserted(self.num_rows, _num_ends(self.columns, self.num_lanes))
        num_ends = 0
        for begin, end in self._pieces(first, upto):
            piece = self.part(begin, end)
            num_ends += _num_ends(piece.columns, piece.num_lanes)
        return Inserted(upto - first, num_ends)

    def _pieces(self, first: int, upto: int) -> list[tuple[int, int]]:
        pieces = []
        while first < upto:
            pieces.append((first, self.end_of(first, upto)))
            first = pieces[-1][1]
        return pieces

    def part(self, first: int, upto: int) -> Block:
        """Rows of whole steps, or lanes of one step (see end_of).

        The last step has the flag of one value, and the state after it.
        """
        begin, end = first // self.num_lanes, -(-upto // self.num_lanes)
        is_last = end == self.num_steps
        at = first % self.num_lanes
        lanes = slice(at, at + upto - first) if upto - first < self.num_lanes else slice(None)
        steps = slice(begin, None if is_last else end)

        def cut(value: Any, steps: slice) -> Any:
            return value[steps] if self.num_lanes == 1 else value[steps, lanes]

        columns = {}
        for name, value in self.columns.items():
            if np.ndim(value):
                columns[name] = cut(value, steps)
            elif is_last or name not in _ENDS:
                columns[name] = value
        priority = self.priority
        if np.ndim(priority):
            priority = cut(np.asarray(priority), slice(begin, end))
        return Block(columns, priority, end - begin, min(self.num_lanes, upto - first))

    def lanes_of(self, lanes: Lanes | None, first: int, upto: int) -> Lanes | None:
        """The lanes of a part; `lanes` are those of the block."""
        if upto - first >= self.num_lanes:
            return lanes
        named = np.arange(self.num_lanes, dtype=np.int32) if lanes is None else lanes
        at = first % self.num_lanes
        return named[at : at + upto - first]


def count_steps(columns: dict[str, Any], step_columns: Set[str], state_columns: Set[str]) -> int:
    """The steps of a block, counted as the core counts them. A state may have a row more than there are steps.

    Args:
        columns: of the call, [T, M, ...] or [T, ...]; a value for the whole block has no length and does not count.
        step_columns: names of the columns that have a value for each step. They decide, then flags and discount.
        state_columns: names of the states, which decide if nothing else has a length.
    """
    for names in (step_columns, _A_STEP):
        lengths = [_length(columns[name]) for name in names if name in columns]
        known = [length for length in lengths if length is not None]
        if known:
            return max(known)
    states = [_length(columns[name]) for name in state_columns if name in columns]
    return max((length for length in states if length is not None), default=1)


def _length(value: Any) -> int | None:
    try:
        return len(value)
    except TypeError:  # a scalar
        return None


def _num_ends(columns: dict[str, Any], num_lanes: int) -> int:
    """The most episodes that end with these steps. A flag of one value speaks of the last step of every lane."""
    count = 0
    for name in _ENDS:
        try:
            flags = np.asarray(columns.get(name, False))
            count += int(np.count_nonzero(flags)) if flags.ndim else num_lanes * bool(flags)
        except (TypeError, ValueError):
            continue  # the core refuses such a value
    return count
