"""The saves of one served table that clients asked for: each runs on a thread of its own, and sessions look at it.

A client names a save by a token of its own. So a client that is interrupted can cancel a save before it has heard that
the save began. A save does not end with the stream that asked for it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, NamedTuple, final

from relive.errors import BadMessage, InvalidConfig, SaveCancelled, SavesNotAllowed, ServiceUnavailable
from relive.saving.apart import SavedCore, SavingApart
from relive.saving.folder import SaveFolder
from relive.saving.named import named_save
from relive.table.table import Table

__all__ = ["AskedSave", "Saves"]

MOST_AT_ONCE = 8  # saves of one table; each has a thread and two buffers of 8 MiB
_MOST_KNOWN = 64  # saves whose outcome a client can ask for


class AskedSave(NamedTuple):
    """A save that a client asked for.

    `keep`: the number of saves that the folder keeps, or the numbers of those that stay beside the new save.
    """

    name: str
    beside: Mapping[str, bytes]
    keep: int | frozenset[int]


@final
class Saves:
    """All saves of one served table. `_changed` protects the list of them.

    Args:
        name: The name of the table.
        table: The table.
        root: The server's folder of saves; None: clients may not save.
    """

    def __init__(self, name: str, table: Table, root: str | None) -> None:
        self._name, self._table, self._root = name, table, root
        self._changed = threading.Lock()
        self._saves: dict[str, SavingApart] = {}  # by token, the oldest first
        self._cancelled: deque[str] = deque(maxlen=_MOST_KNOWN)  # tokens whose save may still come
        self._is_closed = False

    def path_of(self, name: object) -> str:
        """Returns the folder of the save of this name. Raises SavesNotAllowed, InvalidConfig."""
        if self._root is None:
            raise SavesNotAllowed(self._name)
        return named_save(self._root, self._name, name)

    def begin(self, token: str, asked: AskedSave) -> None:
        """Starts a save. Its errors are told by `told`.

        Raises:
            SavesNotAllowed: The server has no folder of saves.
            InvalidConfig: The name is none, or too many saves of the table go on.
            SaveCancelled: The server closes, or the client has cancelled the save: its streams may change places.
        """
        path = self.path_of(asked.name)
        table, loaded = self._table, self._table.loaded
        since = loaded.own_cut if loaded is not None else None
        saved = SavedCore(table.core, table.config, since, table.timeout_s)
        save = SavingApart(saved, path, asked.beside, asked.keep)
        with self._changed:
            if self._is_closed or token in self._cancelled:
                raise SaveCancelled(path)
            if token in self._saves:
                raise BadMessage("header field 'token'", "a new one for each save", token)
            going_on = sum(not one.is_done for one in self._saves.values())
            if going_on >= MOST_AT_ONCE:
                raise InvalidConfig("saves of a table", f"at most {MOST_AT_ONCE} at once", going_on + 1)
            for known in [key for key, one in self._saves.items() if one.is_done][: -_MOST_KNOWN + 1]:
                del self._saves[known]
            self._saves[token] = save
        try:
            save.start("relive-server-save")
        except BaseException:
            with self._changed:
                self._saves.pop(token, None)
            raise

    def told(self, token: str, timeout_s: float, until_cut: bool) -> dict[str, Any]:
        """Returns the state of a save, after a wait for its end or its moment. Raises the error that ended it."""
        save = self._known(token)
        save.wait(timeout_s, until_cut)
        facts, told = save.facts(), {"has_cut": save.has_cut, "progress": save.progress}
        return told if facts is None else {**told, "facts": asdict(facts)}

    def cancel(self, token: str) -> None:
        """Ends a save. One that is not known has ended, is a server's before this one, or comes later: begin()."""
        with self._changed:
            save = self._saves.get(token)
            if save is None:
                self._cancelled.append(token)
        if save is not None:
            save.cancel()

    def forget(self, name: str, staying: frozenset[int]) -> None:
        """Removes all saves of a folder but those with these numbers, and the newest if none of them is there."""
        folder = SaveFolder.open(self.path_of(name))
        try:
            folder.forget(staying)
        finally:
            folder.close()

    def _known(self, token: str) -> SavingApart:
        with self._changed:
            save = self._saves.get(token)
        if save is None:
            reason = "it does not know this save: it was started again, or has made many saves since"
            raise ServiceUnavailable(self._name, 0.0, reason)
        return save

    @property
    def is_busy(self) -> bool:
        """Whether a save goes on."""
        with self._changed:
            return any(not one.is_done for one in self._saves.values())

    def close(self, ends: float) -> None:
        """Cancels all saves, and waits for their threads until `ends`, a time.monotonic()."""
        with self._changed:
            self._is_closed = True
            saves = list(self._saves.values())
        for save in saves:
            save.cancel()
        for save in saves:
            save.wait(max(ends - time.monotonic(), 0.0))
