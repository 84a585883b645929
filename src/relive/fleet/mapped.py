"""A shard in this machine's memory: mapped here, drawn from and gathered directly."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar, final

import numpy as np
import numpy.typing as npt

from relive._core import Claims, CoreTable
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
    """A shard in this machine's memory, mapped here. watch: whether its owner lives; None: nobody has to own it."""

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
        """Asked of the kernel."""
        if self.watch is not None and not self.watch.is_owned():
            return "dead"
        return "stalled" if time.monotonic() < self._stalled_until else "live"

    @property
    def stream(self) -> int:
        """Of its handle."""
        return self.core.stream

    def stalls(self) -> None:
        """It kept a call waiting: it is left alone for STALL_S."""
        self._stalled_until = time.monotonic() + STALL_S

    def select(self, index: int, names: list[str]) -> Any:
        """The core's."""
        return self.core.select(index, names)

    def ask_root(self, index: int) -> Callable[[], Root]:
        """Read when it is called, without a lock: a few microseconds."""
        return partial(self._root, index)

    def _root(self, index: int) -> Root:
        mass, num_items, max_priority, inserted, sampled, pending, version = self.core.root(index)
        is_dead = not self.is_live
        return Root(self.number, mass, num_items, max_priority, inserted, sampled, version, is_dead, pending)

    def begin(self, asked: Asked) -> Part:
        """Drawn when it is taken: others answer meanwhile."""
        if not self.is_live:  # since the roots were read
            raise Missed(self)
        return _MappedPart(self, asked)

    def gather(self, selection: Any, keys: Keys, out: Sequence[npt.NDArray[Any]] | None) -> tuple[Arrays, Present]:
        """The core's."""
        return self.core.gather(selection, keys, out)

    def asked(self, call: Callable[[Any], Value], without: Value, is_only: bool) -> Value:
        """`without` where its lock is held by somebody who does not go on."""
        try:
            return call(self.core)
        except DeadlineExceeded:
            if is_only:
                raise
            self.stalls()
            return without

    def stats(self) -> dict[str, Any]:
        """The core's."""
        return self.core.stats()

    def set_patience(self, timeout_s: float, num_shards: int) -> None:
        """For its lock: of the only shard as long as they like."""
        self.core.timeout_s = min(timeout_s, math.inf if num_shards == 1 else STALL_S)

    def set_policy_version(self, version: int) -> None:
        """Also of a dead one: it is mapped."""
        self.core.set_policy_version(version)

    def close(self) -> None:
        """Closes the handle and the watch."""
        if self.watch is not None:
            self.watch.close()
        self.table.close()


@final
class _MappedPart:
    """Drawn by the core of a mapped shard. claims None: a reader's, which counts nowhere."""

    def __init__(self, shard: MappedShard, asked: Asked) -> None:
        self._shard = shard
        self._asked = asked
        self._claims = None if asked.counts_nowhere else Claims()
        self._number: DrawNumber | None = None

    def take(self) -> tuple[Arrays, Keys, Masses]:
        """Stratified over its mass at this moment, at permuted positions."""
        core, asked = self._shard.core, self._asked
        number = DrawNumber(core)
        try:
            arrays, keys, masses, _ = core.draw(asked.request, asked.timeout_s, claims=self._claims)
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
        if self._claims is not None:
            request, is_read = self._asked.request, self._asked.is_read
            self._shard.core.commit_batch(request.index_number, request.num_items, self._claims, is_read)

    def give_back(self) -> None:
        if self._number is None:
            return
        core, request = self._shard.core, self._asked.request
        if self._claims is not None and not core.closed:
            core.give_back_batch(request.index_number, request.num_items, self._claims)
        self._number.give_back()
