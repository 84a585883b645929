"""Saves all shards of a table: each writes its own part, and one rename commits all parts."""

from __future__ import annotations

import contextlib
import math
import os
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, final, overload

from relive.checks.names import names_arguments
from relive.checks.values import flag, folder_path, timeout
from relive.errors import DeadlineExceeded, ReadOnly, ReliveError, SaveCancelled, TableClosed
from relive.fleet.errors import ShardNotSaved
from relive.fleet.saved import ShardsFolder
from relive.fleet.shards import AskedSave, SavingPart, Shards
from relive.saving.copying import SaveFacts
from relive.saving.saving import checked
from relive.saving.under_way import UnderWay
from relive.table.handle import TableHandle

if TYPE_CHECKING:
    from relive.fleet.core import FleetCore

__all__ = ["SavesShards", "ShardsSaveFacts", "ShardsSaving"]

_SLICE_S = 0.25  # of a wait; Ctrl-C and cancel() take effect between two slices
_ENDING_S = 5.0  # how long the parts of a save that failed may take to end


@final
@dataclass(frozen=True)
class ShardsSaveFacts:
    """The facts of a save of all shards that is on disk.

    Attributes:
        path: The folder of the save.
        number: The number of the save in the folder.
        shards: The facts of each shard's save, by number. Their paths are those of the machine that wrote them.
        wall_s: From the call to the commit, in seconds.
    """

    path: str
    number: int
    shards: Mapping[int, SaveFacts]
    wall_s: float

    @property
    def num_steps(self) -> int:
        """Steps of all shards."""
        return sum(facts.num_steps for facts in self.shards.values())

    @property
    def num_bytes(self) -> int:
        """Bytes that this save wrote, on all machines."""
        return sum(facts.num_bytes for facts in self.shards.values())


@final
class ShardsSaving(UnderWay[ShardsSaveFacts]):
    """A save of all shards whose moments have passed: the table goes on, and a thread commits when all are written.

    `sharded.save(path, wait=False)` returns it. A process that ends, and a table that is closed, wait for the thread. A
    forked child has no part in the save.
    """

    _what = "a save of all shards"

    def __init__(self, path: str) -> None:
        """Opens the folder. Raises the errors of ShardsFolder."""
        super().__init__()
        self._began = time.monotonic()
        self._parts: dict[int, SavingPart] = {}  # by number of the shard
        self._told: dict[int, SaveFacts] = {}  # of the parts that have ended
        self._folder = ShardsFolder(path)  # last: it is locked from here on

    def begin(self, shards: Shards, timeout_s: float) -> None:
        """Begins the part of each shard. Raises ShardNotSaved, and the errors of Shard.begin_save."""
        for shard in shards:
            if not shard.is_live:
                raise ShardNotSaved(shard.number, shard.state)
        for shard in shards:
            place, staying = self._folder.place_of(shard.number), self._folder.staying(shard.number)
            self._parts[shard.number] = shard.begin_save(AskedSave(place, self._folder.name, staying, timeout_s))

    def wait_for_moments(self, timeout_s: float) -> None:
        """Waits until each shard has its moment, at most timeout_s from the begin of the save."""
        self._follow(True, timeout_s, f"the moments of {self._what}")

    def finish(self, beside: Mapping[str, bytes], keep: int, timeout_s: float = math.inf) -> None:
        """Waits for all parts and commits, on the calling thread. The outcome is that of `wait`.

        Args:
            beside: Blobs by name.
            keep: The number of saves that the folder keeps.
            timeout_s: From the begin of the save until all parts are on disk, in seconds.
        """
        try:
            with self._noted_error():
                self._follow(False, timeout_s, f"the commit of {self._what}")
                self._check_cancelled()
                facts = dict(sorted(self._told.items()))
                number = self._folder.commit(facts, beside, keep).number
                self._forget()
                self._facts = ShardsSaveFacts(self._folder.path, number, facts, time.monotonic() - self._began)
        finally:
            self.abandon()

    def finish_behind(self, beside: Mapping[str, bytes], keep: int) -> None:
        """The same on a thread of its own. If a signal's handler raises in the start of the thread, the save ends."""
        self._finish_on_a_thread(partial(self.finish, beside, keep))

    def abandon(self) -> None:
        """Ends a save that no thread finishes. If it was not committed, the save before it stays."""
        if self.done:
            return
        try:
            if self._facts is None:
                self._give_up()
        finally:
            try:
                self._folder.close()
            finally:
                self._done.set()

    def _follow(self, until_moment: bool, timeout_s: float, what: str) -> None:
        """Waits for each part's moment or end, and notes the facts of those that end.

        The parts are looked at in turn, so a part that fails ends the save although others go on.

        Raises:
            DeadlineExceeded: Not all were there timeout_s after the begin of the save.
            SaveCancelled: `cancel` was called.
            ReliveError: The error that ended a part.
        """
        ends = self._began + timeout_s
        left = {number: part for number, part in self._parts.items() if number not in self._told}
        while left:
            for number, part in list(left.items()):
                self._check_cancelled()
                seconds = ends - time.monotonic()
                facts = part.wait(max(min(seconds, _SLICE_S), 0.0), until_moment)
                if facts is not None:
                    self._told[number] = facts
                if facts is not None or (until_moment and part.has_cut):
                    del left[number]
                elif seconds <= 0.0:
                    raise DeadlineExceeded(what, "pages to write", timeout_s)

    def _check_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise SaveCancelled(self._folder.path)

    def _give_up(self) -> None:
        """Ends all parts, and removes those that were written, as far as owners let it. The next save does the rest."""
        for part in self._parts.values():
            with contextlib.suppress(ReliveError, OSError):  # a part whose owner cannot be told ends by itself
                part.cancel()
        ends = time.monotonic() + _ENDING_S
        for part in self._parts.values():
            with contextlib.suppress(ReliveError, OSError):  # it ended by this error
                while part.wait(_SLICE_S) is None and time.monotonic() < ends:
                    continue
        self._forget()

    def _forget(self) -> None:
        """Removes the parts of saves that are not kept."""
        for number, part in self._parts.items():
            with contextlib.suppress(ReliveError, OSError):  # the next save removes them
                part.forget(self._folder.staying(number))

    @property
    def path(self) -> str:
        """The folder."""
        return self._folder.path

    @property
    def progress(self) -> float:
        """The part of the pages that is copied, from 0 to 1: the mean over the shards. 1 is not the commit: see `done`.

        For a shard whose owner writes it, this is the number that the owner told last.
        """
        parts = self._parts.values()
        return 1.0 if self._facts is not None else sum(part.progress for part in parts) / len(parts)


class SavesShards(TableHandle):
    """The part of a handle on several shards that saves them."""

    _fleet: FleetCore
    _savings: weakref.WeakSet[ShardsSaving]  # those under way, and those that a caller keeps

    @overload
    def save(
        self,
        path: str | os.PathLike[str],
        beside: Mapping[str, bytes] | None = None,
        wait: Literal[True] = True,
        keep: int = 1,
        timeout_s: float | None = None,
    ) -> ShardsSaveFacts: ...
    @overload
    def save(
        self,
        path: str | os.PathLike[str],
        beside: Mapping[str, bytes] | None = None,
        *,
        wait: Literal[False],
        keep: int = 1,
        timeout_s: float | None = None,
    ) -> ShardsSaving: ...
    @names_arguments
    def save(
        self,
        path: str | os.PathLike[str],
        beside: Mapping[str, bytes] | None = None,
        wait: bool = True,
        keep: int = 1,
        timeout_s: float | None = None,
    ) -> ShardsSaveFacts | ShardsSaving:
        """Saves all shards. ShardOwner(load=path) makes each shard again. One rename commits all shards together.

        Each shard is saved as it is at one moment of this call, and the moments of two shards differ. This process
        writes the shards that it maps, to path/shards/N. The owners of the other shards write these below their own
        folders (ShardOwner.serve(saves=)). Writers and samplers go on. If the save fails, or a process dies, the save
        before it stays whole, with all shards. In a group, one rank saves.

        Args:
            path: Folder of the save. It is made if it is not there.
            beside: Blobs to keep with the shards, by name: a model, a configuration. The same rename commits them.
                relive.fleet.saved(path).blob(name) reads one.
            wait: False: return when the moments of all shards have passed; a thread commits the save when all shards
                are on disk.
            keep: Number of saves that the folder keeps, this one included.
            timeout_s: Deadline in seconds of the whole call; None: the handle's default. The save is cancelled then,
                and also if Ctrl-C interrupts the call.

        Returns:
            The facts of the save; with wait=False a ShardsSaving, which has progress, wait() and cancel().

        Raises:
            ShardNotSaved: A shard is not live. Nothing was saved.
            SavesNotAllowed: The owner of a shard of another host has no folder for saves.
            SaveInUse: Another save into this folder goes on.
            DeadlineExceeded: The save did not end in time, and is cancelled.
            StorageFull, SystemFailure: A folder cannot be written.
            SaveOutrun: Writers fill pages of a shard faster than its folder takes them in.
            ServiceUnavailable: The owner of a shard does not answer, or died.
            InvalidConfig: The path is no folder of such saves, or an argument has another type or value.
            ReadOnly, TableClosed: The handle is read-only, or closed.

        Blocks: until the pages of all shards are copied, and with wait=True until all shards are on disk.
        """
        blobs, kept = checked(beside, keep)
        waits = flag("wait", wait)
        seconds = self._timeout_s if timeout_s is None else timeout(timeout_s)
        if self.closed:
            raise TableClosed()
        if self._fleet.read_only:
            raise ReadOnly()
        saving = ShardsSaving(folder_path("path of a save", path))
        try:  # at once: a signal's handler may raise in any call
            saving.begin(self._fleet.shards, seconds)
            if waits:
                saving.finish(blobs, kept, seconds)
            else:
                saving.wait_for_moments(seconds)
        except BaseException:
            saving.abandon()
            raise
        if waits:
            return saving.wait()
        self._savings.add(saving)  # before the thread: close() waits for it
        saving.finish_behind(blobs, kept)
        return saving
