"""Chooses the shard of a new writer, and makes writers wait for limiters that act on totals."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
import numpy.typing as npt

from relive.core.table_core import WriterCore
from relive.errors import ReliveError, stored_before
from relive.fleet.draws.pace import Wait
from relive.fleet.errors import NoLiveShard
from relive.fleet.shards import Shard

__all__ = ["HasRoom", "Inserted", "PacedWriterCore", "emptiest"]

Lanes = npt.NDArray[np.int32]

_WHOLE_FOR_S = 0.5  # how long a block waits to be let in whole


def emptiest(told: Sequence[tuple[Shard, dict[str, Any]]]) -> Shard:
    """The live shard with the smallest part of its capacity in use. Ties go to the fewest open lanes.

    Args:
        told: every shard with its statistics.

    Raises:
        NoLiveShard: no shard is live.
    """
    live = [(shard, raw) for shard, raw in told if shard.is_live]
    if not live:
        raise NoLiveShard(len(told))
    return min(live, key=lambda one: (one[1]["num_steps"] / one[1]["capacity"], one[1]["num_lanes"]))[0]


class Inserted(NamedTuple):
    """The steps that a call inserts, and the episodes that end with these steps."""

    num_steps: int
    num_ends: int


HasRoom: TypeAlias = Callable[[Inserted, float], bool]  # asks the shards for at most so many seconds


@final
class PacedWriterCore:
    """Lanes of one shard. Each call waits until the totals leave room. One thread at a time.

    A block waits half a second to be let in whole. From then on its steps go in as there is room for them. A draw of
    another process may wait for items of this block, and the limiter's window may be too small for both: neither of the
    two knows of the other.
    """

    def __init__(self, core: WriterCore, has_room: HasRoom, step_columns: Set[str]) -> None:
        self._core = core
        self._has_room = has_room
        self._step_columns = step_columns
        self.end_episode = core.end_episode
        self.abandon = core.abandon
        self.set_policy_version = core.set_policy_version
        self.close = core.close

    def append(self, columns: dict[str, Any], lanes: Lanes | None, priority: Any, timeout_s: float) -> Any:
        """Appends one step to each lane as soon as there is room. Returns the keys."""
        block = _Block(columns, priority, 1, self._count(lanes))
        wait = Wait(timeout_s)
        self._admitted(block, 0, wait)
        return self._core.append(columns, lanes, priority, wait.left_s)

    def append_alike(self, columns: dict[str, Any], timeout_s: float) -> None:
        """Returns None, so that the writer calls append, which waits for room."""

    def extend(self, columns: dict[str, Any], lanes: Lanes | None, priority: Any, timeout_s: float) -> Any:
        """Appends a block of steps as soon as there is room for all of them, or by parts. Returns the keys.

        If an error ends it in a later part, error.stored and error.keys tell which rows are stored.
        """
        lengths = [np.shape(value)[:1] for name, value in columns.items() if name in self._step_columns]
        num_steps = max((length[0] for length in lengths if length), default=1)
        block = _Block(columns, priority, num_steps, self._count(lanes))
        wait = Wait(timeout_s)
        stored: list[npt.NDArray[np.int64]] = []
        first = 0
        try:
            while True:
                upto = self._admitted(block, first, wait)
                part = block if upto - first == num_steps else block.part(first, upto)
                stored.append(self._core.extend(part.columns, lanes, part.priority, wait.left_s))
                first = upto
                if first == num_steps:
                    return stored[0] if len(stored) == 1 else np.concatenate(stored)
        except BaseException as error:
            if stored:
                _note_stored(error, stored, num_steps * block.num_lanes)
            raise

    @property
    def closed(self) -> bool:
        """Whether this core or the table was closed."""
        return self._core.closed

    @property
    def num_lanes(self) -> int:
        """Number of lanes, with or without a lane axis in the arrays."""
        return self._core.num_lanes

    def _count(self, lanes: Lanes | None) -> int:
        return self._core.num_lanes if lanes is None else len(lanes)

    def _admitted(self, block: _Block, first: int, wait: Wait) -> int:
        """Waits for room, and for the totals, until the deadline of the call.

        Returns the step up to which the block may be stored now, more than `first`. Raises DeadlineExceeded.
        """
        started = wait.waited_s
        # A closed core raises its own error.
        while not self._core.closed:
            if self._has_room(block.inserted(first, block.num_steps), wait.left_s):
                break
            if block.is_divisible and (first or wait.waited_s - started >= _WHOLE_FOR_S):
                fits = self._num_fitting(block, first, wait)
                if fits:
                    return first + fits
            if wait.is_over:
                raise wait.exceeded("room in the limiter's window over all shards", "none")
            wait.pause()
        return block.num_steps

    def _num_fitting(self, block: _Block, first: int, wait: Wait) -> int:
        """How many steps from `first` on there is room for: more steps never need less room."""
        fits, beyond = 0, block.num_steps - first
        while fits + 1 < beyond:
            middle = 1 if fits == 0 else fits + (beyond - fits) // 2
            if self._has_room(block.inserted(first, first + middle), wait.left_s):
                fits = middle
            elif middle == 1:
                return 0
            else:
                beyond = middle
        return fits


class _Block(NamedTuple):
    """The columns of a call: arrays with an axis of num_steps steps in front, or scalars."""

    columns: dict[str, Any]
    priority: Any
    num_steps: int
    num_lanes: int

    @property
    def is_divisible(self) -> bool:
        """Whether the block has several steps, and arrays of as many. The core refuses other arrays."""
        lengths = {len(value) for value in self.columns.values() if np.ndim(value)}
        return self.num_steps > 1 and lengths <= {self.num_steps, self.num_steps + 1}

    def inserted(self, first: int, upto: int) -> Inserted:
        """The steps from `first` up to `upto`, and the most episodes that end with them."""
        part = self.columns if upto - first == self.num_steps else self.part(first, upto).columns
        return Inserted((upto - first) * self.num_lanes, _num_ends(part, self.num_lanes))

    def part(self, first: int, upto: int) -> _Block:
        """These steps alone. The last ones have the flag of one value, and the state after the last step."""
        is_last = upto == self.num_steps
        columns = {}
        for name, value in self.columns.items():
            if not np.ndim(value):
                if is_last or name not in ("terminated", "truncated"):
                    columns[name] = value
            else:
                columns[name] = value[first : None if is_last else upto]
        priority = self.priority
        if np.ndim(priority):
            priority = np.asarray(priority)[first:upto]
        return _Block(columns, priority, upto - first, self.num_lanes)


def _note_stored(error: BaseException, parts: list[npt.NDArray[np.int64]], num_rows: int) -> None:
    """Adds to an error which rows the parts before it have stored."""
    keys = np.concatenate([*(part.reshape(-1) for part in parts), stored_before(error)])
    if isinstance(error, ReliveError) and error.args and not error.stored:
        error.args = (
            f"{error}; the first {len(keys)} of {num_rows} rows are stored, step by step, under the error's keys: go on"
            " with the rows after them, not with the whole block again",
            *error.args[1:],
        )
    error.stored, error.keys = len(keys), keys  # type: ignore[attr-defined]


def _num_ends(columns: dict[str, Any], num_lanes: int) -> int:
    """The most episodes that end with these steps. A flag of one value speaks of the last step of every lane."""
    count = 0
    for name in ("terminated", "truncated"):
        try:
            flags = np.asarray(columns.get(name, False))
            count += int(np.count_nonzero(flags)) if flags.ndim else num_lanes * bool(flags)
        except (TypeError, ValueError):
            continue  # the core refuses such a value
    return count
