"""The saves of one served table that clients asked for: each runs on a thread of its own, and sessions look at it.

A client names a save by a token of its own. So a client that is interrupted can cancel a save before it has heard that
the save began. A save does not end with the stream that asked for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, NamedTuple, final

from relive.core.ending import start_thread
from relive.errors import InvalidConfig, SaveCancelled, SavesNotAllowed, ServiceUnavailable
from relive.saving.copying import SaveFacts
from relive.saving.folder import SaveFolder
from relive.saving.named import named_save
from relive.saving.saving import Saving, facts_of
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
class _Save:
    """One save. `_changed` protects its state."""

    def __init__(self, table: Table, path: str, asked: AskedSave) -> None:
        self._table, self._path, self._asked = table, path, asked
        self._changed = threading.Condition()
        self._saving: Saving | None = None
        self._is_cancelled = self._has_cut = False
        self._facts: SaveFacts | None = None
        self._error: Exception | None = None

    @property
    def is_done(self) -> bool:
        """Whether the save has ended, in a commit or in an error."""
        return self._facts is not None or self._error is not None

    def run(self) -> None:
        """Saves the table, on the calling thread."""
        try:
            facts = self._commit()
        except Exception as error:  # any error of a save is the answer to the client that asked for it
            with self._changed:
                self._error = error
                self._changed.notify_all()
        else:
            with self._changed:
                self._facts = facts
                self._changed.notify_all()

    def _commit(self) -> SaveFacts:
        table = self._table
        saving = Saving(table.core, self._path, facts_of(table.core, table.config))
        with self._changed:
            self._saving = saving
            if self._is_cancelled:
                saving.cancel()
        loaded = table.loaded
        saving.make_cut(loaded.cut if loaded is not None and loaded.keeps_keys else None, table.timeout_s)
        with self._changed:
            self._has_cut = True
            self._changed.notify_all()
        saving.finish(self._asked.beside, self._asked.keep)
        return saving.wait()

    def cancel(self) -> None:
        """Ends the save at its next block, if it has not committed."""
        with self._changed:
            self._is_cancelled = True
            if self._saving is not None:
                self._saving.cancel()

    def wait(self, timeout_s: float, until_cut: bool) -> bool:
        """Waits for the end of the save, or for its moment. Returns False at the deadline."""
        with self._changed:
            return self._changed.wait_for(lambda: self.is_done or (until_cut and self._has_cut), timeout_s)

    def told(self) -> dict[str, Any]:
        """Returns the state of the save. Raises the error that ended it."""
        with self._changed:
            if self._error is not None:
                raise self._error
            saving, facts = self._saving, self._facts
            progress = 0.0 if saving is None else saving.progress
            told = {"has_cut": self._has_cut, "progress": progress}
        return told if facts is None else {**told, "facts": asdict(facts)}


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
        self._saves: dict[str, _Save] = {}  # by token, the oldest first
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
            SaveCancelled: The server closes.
        """
        path = self.path_of(asked.name)
        save = _Save(self._table, path, asked)
        with self._changed:
            if self._is_closed:
                raise SaveCancelled(path)
            going_on = sum(not one.is_done for one in self._saves.values())
            if going_on >= MOST_AT_ONCE:
                raise InvalidConfig("saves of a table", f"at most {MOST_AT_ONCE} at once", going_on + 1)
            for known in [key for key, one in self._saves.items() if one.is_done][: -_MOST_KNOWN + 1]:
                del self._saves[known]
            self._saves[token] = save
        try:
            start_thread(save.run, "relive-server-save", never_writes=True)
        except BaseException:
            with self._changed:
                self._saves.pop(token, None)
            raise

    def told(self, token: str, timeout_s: float, until_cut: bool) -> dict[str, Any]:
        """Returns the state of a save, after a wait for its end or its moment. Raises the error that ended it."""
        save = self._known(token)
        save.wait(timeout_s, until_cut)
        return save.told()

    def cancel(self, token: str) -> None:
        """Ends a save. One that is not known has ended, or is a server's before this one."""
        with self._changed:
            save = self._saves.get(token)
        if save is not None:
            save.cancel()

    def forget(self, name: str, staying: frozenset[int]) -> None:
        """Removes all saves of a folder but those with these numbers, and the newest if none of them is there."""
        folder = SaveFolder.open(self.path_of(name))
        try:
            folder.forget(staying)
        finally:
            folder.close()

    def _known(self, token: str) -> _Save:
        with self._changed:
            save = self._saves.get(token)
        if save is None:
            reason = "it does not know this save: it was started again, or has made many saves since"
            raise ServiceUnavailable(self._name, 0.0, reason)
        return save

    def close(self, ends: float) -> None:
        """Cancels all saves, and waits for their threads until `ends`, a time.monotonic()."""
        with self._changed:
            self._is_closed = True
            saves = list(self._saves.values())
        for save in saves:
            save.cancel()
        for save in saves:
            save.wait(max(ends - time.monotonic(), 0.0), until_cut=False)
