"""Chooses the shard of a new writer, and makes writers wait for limiters that act on totals."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
import numpy.typing as npt

from relive.core.table_core import WriterCore
from relive.fleet.draws.pace import Wait
from relive.fleet.errors import NoLiveShard
from relive.fleet.shards import Shard

__all__ = ["HasRoom", "Inserted", "PacedWriterCore", "emptiest"]

Lanes = npt.NDArray[np.int32]


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
    """Lanes of one shard. Each call waits until the totals leave room. One thread at a time."""

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
        num_lanes = self._count(lanes)
        inserted = Inserted(num_lanes, _num_ends(columns, num_lanes))
        return self._core.append(columns, lanes, priority, self._wait(inserted, timeout_s))

    def append_alike(self, columns: dict[str, Any], timeout_s: float) -> None:
        """Returns None, so that the writer calls append, which waits for room."""

    def extend(self, columns: dict[str, Any], lanes: Lanes | None, priority: Any, timeout_s: float) -> Any:
        """Appends a block of steps as soon as there is room for all of them. Returns the keys."""
        num_lanes = self._count(lanes)
        lengths = [np.shape(value)[:1] for name, value in columns.items() if name in self._step_columns]
        num_steps = max((length[0] for length in lengths if length), default=1) * num_lanes
        inserted = Inserted(num_steps, _num_ends(columns, num_lanes))
        return self._core.extend(columns, lanes, priority, self._wait(inserted, timeout_s))

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

    def _wait(self, inserted: Inserted, timeout_s: float) -> float:
        """Waits for room, and for the totals, until the deadline of the call. Returns the seconds that are left.

        Raises DeadlineExceeded.
        """
        wait = Wait(timeout_s)
        # A closed core raises its own error.
        while not self._core.closed and not self._has_room(inserted, wait.left_s):
            if wait.is_over:
                raise wait.exceeded("room in the limiter's window over all shards", "none")
            wait.pause()
        return wait.left_s


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
