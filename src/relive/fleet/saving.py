"""Saves all shards of a table: each writes its own part, and one rename commits all parts."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from relive.errors import DeadlineExceeded, ReliveError
from relive.fleet.errors import ShardNotSaved
from relive.fleet.saved import ShardsFolder
from relive.fleet.shards import AskedSave, SavingPart, Shards
from relive.saving.copying import SaveFacts

__all__ = ["ShardsSaveFacts", "save_shards"]

_SLICE_S = 0.25  # of a wait; Ctrl-C takes effect between two slices
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


def save_shards(shards: Shards, path: str, beside: Mapping[str, bytes], keep: int, timeout_s: float) -> ShardsSaveFacts:
    """Saves all shards. ShardedTable.save lists the arguments and the errors."""
    began = time.monotonic()
    with ShardsFolder(path) as folder:
        for shard in shards:
            if not shard.is_live:
                raise ShardNotSaved(shard.number, shard.state)
        parts: dict[int, SavingPart] = {}
        try:
            for shard in shards:
                asked = AskedSave(folder.place_of(shard.number), folder.name, folder.staying(shard.number), timeout_s)
                parts[shard.number] = shard.begin_save(asked)
            facts = {number: _facts_of(part, began, timeout_s) for number, part in parts.items()}
            committed = folder.commit(facts, beside, keep)
        except BaseException:
            _give_up(parts, folder)
            raise
        _forget(parts, folder)
        return ShardsSaveFacts(folder.path, committed.number, facts, time.monotonic() - began)


def _facts_of(part: SavingPart, began: float, timeout_s: float) -> SaveFacts:
    """Waits for the part of a shard. Raises DeadlineExceeded, or the error that ended the part."""
    while True:
        left = began + timeout_s - time.monotonic()
        facts = part.wait(max(min(left, _SLICE_S), 0.0))
        if facts is not None:
            return facts
        if left <= 0.0:
            raise DeadlineExceeded("the commit of a save of all shards", "pages to write", timeout_s)


def _give_up(parts: Mapping[int, SavingPart], folder: ShardsFolder) -> None:
    """Ends all parts, and removes those that were written, as far as owners let it. The next save does the rest."""
    for part in parts.values():
        part.cancel()
    ends = time.monotonic() + _ENDING_S
    for part in parts.values():
        with contextlib.suppress(ReliveError):  # it ended by this error
            while part.wait(_SLICE_S) is None and time.monotonic() < ends:
                continue
    _forget(parts, folder)


def _forget(parts: Mapping[int, SavingPart], folder: ShardsFolder) -> None:
    """Removes the parts of saves that are not kept."""
    for number, part in parts.items():
        with contextlib.suppress(ReliveError):  # the next save removes them
            part.forget(folder.staying(number))
