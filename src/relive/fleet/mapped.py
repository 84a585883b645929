"""A shard in this machine's memory: this process maps it, draws from it and gathers from it directly."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, final

import numpy as np
import numpy.typing as npt

from relive._core import CoreTable, Hold
from relive.core.claiming import claim_there
from relive.core.forks import renewed_in_children
from relive.core.late_rows import first_filled
from relive.core.limiter_words import NO_WORDS, limiter_words
from relive.core.locked import check_lock, is_of_lock
from relive.core.turns import take
from relive.errors import DeadlineExceeded
from relive.fleet.draws.placement import Root
from relive.fleet.owner import OwnerWatch, shard_of
from relive.fleet.shards import (
    STALL_S,
    Answer,
    Asked,
    AskedSave,
    Later,
    Missed,
    Part,
    SavingPart,
    Shard,
    Short,
    State,
)
from relive.reading.sources import DrawNumber
from relive.saving.apart import SavedCore, SavingApart
from relive.saving.copying import SaveFacts
from relive.saving.folder import SaveFolder
from relive.table.table import Table

__all__ = ["MappedShard"]

_LOCKING = frozenset(
    {"check", "update_priorities", "complete", "delete", "clear", "set_policy_version", "set_limiter",
     "set_priority_exponent"}
)  # fmt: skip
Keys = npt.NDArray[np.int64]
Masses = npt.NDArray[np.float64]
Arrays = list[npt.NDArray[Any]]
Present = npt.NDArray[np.bool_]


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
        self.table: Table = table
        self.core: CoreTable = table.core
        self.watch = watch
        self._stalled_until = 0.0
        self._is_only = False
        # Protects the order of versions. A signal's handler may set one.
        self._versions = renewed_in_children(self, "_versions", threading.RLock)
        # The policy version that a stuck lock kept from the shard, and the shard's version at that time.
        self._missed_version: tuple[int, int] | None = None

    @property
    def state(self) -> State:
        """The state. The kernel tells whether the owner lives."""
        if self.watch is not None and not self.watch.is_owned():
            return "dead"
        return "stalled" if time.monotonic() < self._stalled_until else "live"

    @property
    def takes_changes(self) -> bool:
        """Whether the shard's lock is free, as far as is known. As for rows of a writer, no owner is needed.

        The lock of a shard that stalled is tried once.
        """
        if time.monotonic() >= self._stalled_until:
            return True
        try:
            check_lock(self.core, 0.0)
        except DeadlineExceeded:
            return False
        return True

    @property
    def stream(self) -> int:
        """The random stream of the handle."""
        return self.core.stream

    def stalls(self) -> None:
        """Draws leave the shard out for STALL_S. The only shard stays in use: its calls wait until their deadline."""
        if not self._is_only:
            self._stalled_until = time.monotonic() + STALL_S

    def select(self, index: int, names: list[str], alike: list[Any] | None = None) -> Any:
        """Resolves columns in the core."""
        return self.core.select(index, names)

    def ask_root(self, index: int, left_s: float) -> Callable[[], Root]:
        """Returns a function that reads the root without a lock, in a few microseconds."""
        return partial(self._root, index)

    def _root(self, index: int) -> Root:
        self._catch_up()
        mass, num_items, max_priority, inserted, sampled, pending, version = self.core.root(index)
        words = limiter_words(self.core, index) if self.bounds_items[index] else NO_WORDS
        is_dead = not self.is_live
        return Root(self.number, mass, num_items, max_priority, inserted, sampled, version, is_dead, pending, words)

    def begin(self, asked: Asked) -> Part:
        """Begins a draw. The items are drawn in take(), while other shards answer."""
        if not self.is_live:  # the owner ended after the roots were read
            raise Missed(self)
        return _MappedPart(self, asked)

    def gather(self, selection: Any, keys: Keys, out: Sequence[npt.NDArray[Any]] | None) -> tuple[Arrays, Present]:
        """Gathers from the core."""
        return self.core.gather(selection, keys, out)

    def ask_gather(self, selection: Any, keys: Keys) -> Answer:
        """Returns an answer that gathers when it is taken, while other shards answer."""
        return self._later(partial(self.core.gather, selection, keys, None))

    def ask(self, call: str, *values: Any) -> Answer:
        """Returns an answer that calls the core when it is taken.

        A policy version that a stuck lock keeps from the shard is sent again by later calls.
        """
        if call == "set_policy_version":
            return self._telling(*values)
        self._catch_up()
        if call == "policy_version":
            return Later(lambda: self.core.policy_version)
        return self._later(partial(getattr(self.core, call), *values), takes_lock=call in _LOCKING)

    def _telling(self, version: int) -> Answer:
        answer = self._later(partial(self.core.set_policy_version, version), takes_lock=True)

        def take() -> None:
            with self._versions:
                self._missed_version = None
                try:
                    answer.take()
                except Missed:
                    if not self._is_only:  # else the caller gets the error
                        self._missed_version = version, self.core.policy_version
                    raise

        return Later(take)

    def _catch_up(self) -> None:
        """Sends the policy version that the shard missed, if the lock is free now."""
        versions = self._versions  # a child that a signal's handler forks here has another lock
        if self._missed_version is None or not self.is_live:
            return
        mine: list[bool] = []
        try:
            if take(versions, 0.0, mine) and self._missed_version is not None:
                version, before = self._missed_version
                if self.core.policy_version == before:  # else another handle has set one since
                    check_lock(self.core, 0.0)
                    self._later(partial(self.core.set_policy_version, version)).take()
                self._missed_version = None
        except (DeadlineExceeded, Missed):
            return  # a later call tries again
        finally:
            if True in mine:
                versions.release()

    def ask_list(self, index: int, first: int, count: int, condition: Any) -> Answer:
        """Returns an answer that lists when it is taken."""
        return self._later(partial(self.core.list_items, index, first, count, condition))

    def ask_claim(self, index: int, keys: Keys, left_s: float) -> Answer:
        """Returns an answer that claims when it is taken."""
        waits_s = left_s if self._is_only else min(left_s, STALL_S)
        ends = time.monotonic() + waits_s

        def claim() -> Present:
            return claim_there(self.core, index, keys, max(0.0, ends - time.monotonic()))[0]

        return self._later(claim, waits_s)

    def ask_filled(self, keys: Keys) -> Answer:
        """Returns an answer that looks at the rows when it is taken."""
        return self._later(partial(first_filled, self.core, keys))

    def ask_stats(self) -> Answer:
        """Returns an answer that reads the statistics when it is taken."""
        return self.ask("stats")

    def ask_free(self, left_s: float | None = None) -> Answer:
        """Returns an answer that takes the lock and releases it. A shard whose owner died can be changed, too."""
        if left_s is None and self._is_only:
            return Later(lambda: None)  # the change itself waits for the lock until its deadline
        waits_s = STALL_S if left_s is None else min(left_s, STALL_S)
        ends = time.monotonic() + waits_s

        def free() -> None:
            check_lock(self.core, max(0.0, ends - time.monotonic()))

        return self._later(free, waits_s) if waits_s >= STALL_S else Later(free)

    def begin_save(self, asked: AskedSave) -> SavingPart:
        """Begins a save by a thread of this process."""
        return _MappedSaving(self, asked)

    def _later(self, call: Callable[[], Any], waits_s: float | None = None, takes_lock: bool = False) -> Answer:
        """Returns an answer that calls the core when it is taken.

        waits_s: how long the call waits for the lock, in seconds; None: the handle's timeout. A lock that is not free
        for STALL_S stalls the shard.
        takes_lock: the call waits for the lock as long as the handle's timeout. The wait begins here. If other shards
        were waited for that long meanwhile, this lock is free by now, or the shard gives no answer.
        """
        ends = time.monotonic() + self.core.timeout_s
        waits_s = self.core.timeout_s if waits_s is None else waits_s

        def take() -> Any:
            try:
                if takes_lock and time.monotonic() >= ends:
                    check_lock(self.core, 0.0)
                return call()
            except DeadlineExceeded as error:
                if is_of_lock(error) and waits_s >= STALL_S:
                    self.stalls()
                raise Missed(self, error) from None

        return Later(take)

    def set_patience(self, timeout_s: float, num_shards: int) -> None:
        """Sets how long calls wait for the shard's lock.

        The wait is timeout_s for the only shard of a table, and at most STALL_S for one of several.
        """
        self._is_only = num_shards == 1
        self.core.timeout_s = min(timeout_s, math.inf if self._is_only else STALL_S)

    def close(self) -> None:
        """Closes the handle and the watch."""
        if self.watch is not None:
            self.watch.close()
        self.table.close()


@final
class _MappedSaving:
    """A save that a thread of this process writes (relive.fleet.shards.SavingPart)."""

    def __init__(self, shard: MappedShard, asked: AskedSave) -> None:
        self._path = asked.path
        table = shard.table
        saved = SavedCore(shard.core, table.config, None, min(asked.timeout_s, table.timeout_s))
        self._saving = SavingApart(saved, asked.path, {}, asked.staying)
        self._saving.start(f"relive-save-shard-{shard.number}")

    @property
    def has_cut(self) -> bool:
        """Whether the save has its moment."""
        return self._saving.has_cut

    @property
    def progress(self) -> float:
        """The part of the pages that is copied."""
        return self._saving.progress

    def wait(self, timeout_s: float, until_cut: bool = False) -> SaveFacts | None:
        """Waits for the thread."""
        self._saving.wait(timeout_s, until_cut)
        return self._saving.facts()

    def cancel(self) -> None:
        """Ends the save at its next block."""
        self._saving.cancel()

    def forget(self, staying: frozenset[int]) -> None:
        """Removes the cuts that do not stay."""
        folder = SaveFolder.open(self._path)
        try:
            folder.forget(staying)
        finally:
            folder.close()


@final
class _MappedPart:
    """Items that the core of a mapped shard draws.

    `_hold` is None for a read-only handle, whose draws count nowhere.
    """

    root = None  # this process reads it faster than anyone tells it

    def __init__(self, shard: MappedShard, asked: Asked) -> None:
        self._shard = shard
        self._asked = asked
        self._hold = None if asked.counts_nowhere else Hold()
        self._number: DrawNumber | None = None

    def take(self) -> tuple[Arrays, Keys, Masses]:
        """Draws the items, stratified over the shard's mass at this moment, at permuted positions."""
        number = DrawNumber(self._shard.core)
        arrays, keys, masses = self._drawn()
        number.taken()
        self._number = number
        return arrays, keys, masses

    def _drawn(self) -> tuple[Arrays, Keys, Masses]:
        asked, began = self._asked, time.monotonic()
        while True:
            try:
                drawn = self._shard.core.draw(asked.request, asked.timeout_s, self._hold)[:3]
                self._shard.note_lock(asked.request.index_number)
                return drawn
            except DeadlineExceeded as error:
                if asked.is_only:
                    raise
                if not is_of_lock(error):
                    self._shard.note_lock(asked.request.index_number)
                    raise Short(self._shard, error) from None
                if time.monotonic() >= began + asked.retry_s:
                    self._shard.note_refused(asked, began)
                    raise Missed(self._shard, error) from None

    def check(self) -> None:
        """Does nothing: a mapped shard keeps what is in flight."""

    def ask_commit(self) -> None:
        """Does nothing: commit() waits for nothing."""

    def commit(self, waits: bool = True) -> None:
        self._number = None  # it is used up
        if self._hold is not None:
            self._hold.commit(self._asked.is_read)

    def give_back(self, ends: float = math.inf) -> None:
        if self._number is None:
            return
        if self._hold is not None:
            self._hold.give_back()
        self._number.give_back()
