"""A shard in this machine's memory: this process maps it, draws from it and gathers from it directly."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar, final

import numpy as np
import numpy.typing as npt

from relive._core import CoreTable, Hold
from relive.errors import DeadlineExceeded
from relive.fleet.draws.placement import Root
from relive.fleet.owner import OwnerWatch, shard_of
from relive.fleet.shards import STALL_S, Asked, Missed, Part, Shard, State
from relive.reading.sources import DrawNumber
from relive.table.table import Table

__all__ = ["MappedShard"]

Keys = npt.NDArray[np.int64]
Masses = npt.NDArray[np.float64]
Arrays = list[npt.NDArray[Any]]
Present = npt.NDArray[np.bool_]
Value = TypeVar("Value")


@final
class MappedShard(Shard):
    """A shard that this process maps.

    watch: asks whether the shard's owner lives. None: the shard needs no owner.
    """

    path = "mapped"

    def __init__(self, table: Table, watch: OwnerWatch | None) -> None:
        geometry = table.core.geometry
        super().__init__(
            table, table.core, shard_of(table), (geometry["uuid"], geometry["slot_bits"], geometry["num_slots"])
        )
        self.core: CoreTable = table.core
        self.watch = watch
        self._stalled_until = 0.0

    @property
    def state(self) -> State:
        """The state. The kernel tells whether the owner lives."""
        if self.watch is not None and not self.watch.is_owned():
            return "dead"
        return "stalled" if time.monotonic() < self._stalled_until else "live"

    @property
    def stream(self) -> int:
        """The random stream of the handle."""
        return self.core.stream

    def stalls(self) -> None:
        """Notes that the shard kept a call waiting: draws leave it out for STALL_S."""
        self._stalled_until = time.monotonic() + STALL_S

    def select(self, index: int, names: list[str]) -> Any:
        """Resolves columns in the core."""
        return self.core.select(index, names)

    def ask_root(self, index: int) -> Callable[[], Root]:
        """Returns a function that reads the root without a lock, in a few microseconds."""
        return partial(self._root, index)

    def _root(self, index: int) -> Root:
        mass, num_items, max_priority, inserted, sampled, pending, version = self.core.root(index)
        is_dead = not self.is_live
        return Root(self.number, mass, num_items, max_priority, inserted, sampled, version, is_dead, pending)

    def begin(self, asked: Asked) -> Part:
        """Begins a draw. The items are drawn in take(), while other shards answer."""
        if not self.is_live:  # the owner ended after the roots were read
            raise Missed(self)
        return _MappedPart(self, asked)

    def gather(self, selection: Any, keys: Keys, out: Sequence[npt.NDArray[Any]] | None) -> tuple[Arrays, Present]:
        """Gathers from the core."""
        return self.core.gather(selection, keys, out)

    def asked(self, call: Callable[[Any], Value], without: Value, is_only: bool) -> Value:
        """Calls the core. Returns `without` if the process that took the shard's lock does not go on."""
        try:
            return call(self.core)
        except DeadlineExceeded:
            if is_only:
                raise
            self.stalls()
            return without

    def stats(self) -> dict[str, Any]:
        """The statistics of the core."""
        return self.core.stats()

    def set_patience(self, timeout_s: float, num_shards: int) -> None:
        """Sets how long calls wait for the shard's lock.

        The wait is timeout_s for the only shard of a table, and at most STALL_S for one of several.
        """
        self.core.timeout_s = min(timeout_s, math.inf if num_shards == 1 else STALL_S)

    def set_policy_version(self, version: int) -> None:
        """Sets the policy version. The call works without a live owner, because the shard is mapped."""
        self.core.set_policy_version(version)

    def close(self) -> None:
        """Closes the handle and the watch."""
        if self.watch is not None:
            self.watch.close()
        self.table.close()


@final
class _MappedPart:
    """Items that the core of a mapped shard draws.

    `_hold` is None for a read-only handle, whose draws count nowhere.
    """

    def __init__(self, shard: MappedShard, asked: Asked) -> None:
        self._shard = shard
        self._asked = asked
        self._hold = None if asked.counts_nowhere else Hold()
        self._number: DrawNumber | None = None

    def take(self) -> tuple[Arrays, Keys, Masses]:
        """Draws the items, stratified over the shard's mass at this moment, at permuted positions."""
        core, asked = self._shard.core, self._asked
        number = DrawNumber(core)
        try:
            arrays, keys, masses, _ = core.draw(asked.request, asked.timeout_s, self._hold)
        except DeadlineExceeded as error:
            if asked.is_only:
                raise
            if error.holder_pid is not None:
                self._shard.stalls()
            raise Missed(self._shard) from None
        number.taken()
        self._number = number
        return arrays, keys, masses

    def commit(self) -> None:
        if self._hold is not None:
            self._hold.commit(self._asked.is_read)

    def give_back(self) -> None:
        if self._number is None:
            return
        if self._hold is not None:
            self._hold.give_back()
        self._number.give_back()
