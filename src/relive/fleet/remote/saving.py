"""The part of a shard of another host in a save of all shards, which the shard's owner writes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, final

from relive.fleet.shards import AskedSave
from relive.saving.copying import SaveFacts
from relive.service.client.remote_saves import begin_saving, facts_of, forget_saves

if TYPE_CHECKING:
    from relive.fleet.remote.shard import RemoteShard

__all__ = ["RemoteSavingPart"]


@final
class RemoteSavingPart:
    """A save below the owner's own folder (relive.fleet.shards.SavingPart)."""

    def __init__(self, shard: RemoteShard, asked: AskedSave) -> None:
        self._core, self._name = shard.core, asked.name
        ends = time.monotonic() + asked.timeout_s
        self._saving = begin_saving(shard.core, asked.name, {}, asked.staying, ends)

    def wait(self, timeout_s: float) -> SaveFacts | None:
        """Asks the owner, which waits for the end of the save."""
        told = self._saving.follow("facts", time.monotonic() + timeout_s, self._core.timeout_s)
        return None if told is None else facts_of(told)

    def cancel(self) -> None:
        """Has the owner end the save, if the owner answers."""
        self._saving.give_up()

    def forget(self, staying: frozenset[int]) -> None:
        """Has the owner remove the cuts that do not stay."""
        if staying:
            forget_saves(self._core, self._name, staying, self._core.timeout_s)
