"""The part of a shard of another host in a save of all shards, which the shard's owner writes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, final

from relive.fleet.shards import AskedSave
from relive.saving.copying import SaveFacts
from relive.service.client.remote_saves import begin_saving, facts_of, forget_saves
from relive.service.wire import framing

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
        self.has_cut = False
        self.progress = 0.0

    def wait(self, timeout_s: float, until_cut: bool = False) -> SaveFacts | None:
        """Asks the owner, which waits for the end of the save, or for its moment."""
        told = self._saving.look(timeout_s, "cut" if until_cut else "end", self._core.timeout_s)
        facts = facts_of(told) if "facts" in told else None
        self.has_cut = facts is not None or framing.field(told, "has_cut", bool)
        self.progress = 1.0 if facts is not None else framing.number(told, "progress")
        return facts

    def cancel(self) -> None:
        """Has the owner end the save, if the owner answers."""
        self._saving.give_up()

    def forget(self, staying: frozenset[int]) -> None:
        """Has the owner remove the cuts that do not stay."""
        if staying:
            forget_saves(self._core, self._name, staying, self._core.timeout_s)
