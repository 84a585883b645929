"""The life of a server, as far as clients decide or ask: it drains, removes a table, and tells how it is."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, final

from relive.config.storage import SharedMemory
from relive.core.ending import start_thread
from relive.core.locked import check_lock
from relive.errors import AccessDenied, DeadlineExceeded, InvalidConfig, NoSuchTable, ReliveError
from relive.service.server.guard import Caller, Guard, Permit
from relive.service.server.hosting import Counts, Hosted
from relive.service.server.saves import Saves
from relive.table.open import remove

__all__ = ["Life"]

_LOCK_S = 1.0
_ANSWER_S = 0.2  # for the answer to arrive before its connection is cut


@final
class Life:
    """Drains a server and removes its tables, for clients with the role admin.

    Args:
        hosted: The served tables. drop() removes from it.
        counts: The streams.
        guard: Knows the clients.
    """

    def __init__(self, hosted: dict[str, Hosted], counts: Counts, guard: Guard) -> None:
        self._hosted = hosted
        self._counts = counts
        self._guard = guard
        self._changed = threading.Lock()
        self.saves: dict[str, Saves] = {}  # of removed tables that were being saved
        self.drained = threading.Event()

    def drain(self, caller: Caller) -> None:
        """Takes no new stream from now on. `relive serve` ends when the calls under way are answered.

        Raises:
            AccessDenied: The client has not the role admin for every table.
        """
        for name in list(self._hosted):
            try:
                Permit(self._guard, caller, name).check("admin")
            except AccessDenied:
                raise AccessDenied("*", "admin") from None
        self._counts.drains = True
        self.drained.set()

    def drop(self, name: str) -> None:
        """Serves the table no more, and removes its shared memory. The streams of its clients end.

        Raises:
            NoSuchTable: Another client has removed it.
            InvalidConfig: The table lives in a folder, which `relive rm` removes.
        """
        with self._changed:
            hosted = self._hosted.get(name)
            if hosted is None:
                raise NoSuchTable(name)
            storage = hosted.table.config.storage
            if hosted.table.config.storage.path is not None and not isinstance(storage, SharedMemory):
                raise InvalidConfig(
                    f"table {name!r}", "a table in memory; `relive rm` removes one in a folder", storage
                )
            if isinstance(storage, SharedMemory):
                hosted.table.core.set_keeps_file(False)
                with contextlib.suppress(NoSuchTable):
                    remove(storage.name, force=True)
            del self._hosted[name]
            if hosted.saves.is_busy:
                self.saves[name] = hosted.saves
            hosted.parameters.close()
        start_thread(self._cut_later, "relive-server-drop", name, never_writes=True)

    def is_in_use(self, name: str, serves: bool = True) -> bool:
        """Whether the table is served, or a stream or a save of it goes on after drop() or the end of the server.

        serves: False: the server is closed.
        """
        if name in self._hosted and (serves or self._hosted[name].saves.is_busy):
            return True
        is_saved = name in self.saves and self.saves[name].is_busy
        return is_saved or any(one.table == name for one in self._guard.permits())

    def _cut_later(self, name: str) -> None:
        self._guard.ends.wait(_ANSWER_S)
        self._guard.cut_streams_of(name)

    def health(self) -> dict[str, Any]:
        """Returns "state" ("serving" or "draining"), and "stuck": {table: process} of tables that cannot be locked.

        Blocks: for at most a second a table.
        """
        stuck: dict[str, int | None] = {}
        for name, hosted in list(self._hosted.items()):
            try:
                check_lock(hosted.table.core, _LOCK_S)
            except DeadlineExceeded as problem:
                stuck[name] = problem.holder_pid
            except ReliveError:
                continue
        return {"state": "draining" if self._counts.drains else "serving", "stuck": stuck}
