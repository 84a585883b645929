"""The calls of a local handle that save the table, and say where a table that lives in a folder is."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, overload

from relive import _core
from relive.checks.names import names_arguments
from relive.checks.values import flag, folder_path, timeout
from relive.config.storage import File
from relive.errors import InvalidConfig, ReadOnly, TableClosed
from relive.table.handle import TableHandle

if TYPE_CHECKING:
    from relive.saving.copying import SaveFacts
    from relive.saving.keeping import Keeper
    from relive.saving.loading import LoadedCore
    from relive.saving.saving import Saving
    from relive.table.stats import TableStats

__all__ = ["Saved"]


class Saved(TableHandle):
    """The part of a local handle that saves the table."""

    _local: _core.CoreTable
    _loaded: LoadedCore | None = None
    _keeper: Keeper | None = None  # of a table that lives in a folder

    @overload
    def save(
        self,
        path: str | os.PathLike[str],
        beside: Mapping[str, bytes] | None = None,
        wait: Literal[True] = True,
        keep: int = 1,
    ) -> SaveFacts: ...
    @overload
    def save(
        self,
        path: str | os.PathLike[str],
        beside: Mapping[str, bytes] | None = None,
        *,
        wait: Literal[False],
        keep: int = 1,
    ) -> Saving: ...
    @names_arguments
    def save(
        self,
        path: str | os.PathLike[str],
        beside: Mapping[str, bytes] | None = None,
        wait: bool = True,
        keep: int = 1,
    ) -> SaveFacts | Saving:
        """Saves the table, as it is at one moment of this call, into a folder. relive.load makes a table from it.

        Writers and samplers of all processes go on. A second save into the same folder writes the pages that changed. A
        save that fails, or a process that dies, leaves the save before it whole. docs/saving.md describes the folder.

        Args:
            path: The folder. It is made if it is not there.
            beside: Blobs to keep with the table, by name: a model, a configuration. SavedTable.beside names them.
            wait: False: return when the moment has passed; a thread writes the rest.
            keep: The number of saves that the folder keeps, this one included.

        Returns:
            The facts of the save; with wait=False a Saving, which has progress, wait() and cancel().

        Raises:
            SaveInUse: Another process, or another thread, saves into this folder.
            StorageFull, SystemFailure: The folder cannot be written.
            SaveOutrun: Writers fill pages faster than this folder takes them in.
            InvalidConfig: The path is no folder of saves, or an argument has another type or value.
            ReadOnly, TableClosed: The handle is read-only, or closed.

        Blocks: until the pages are copied, and with wait=True until they are on disk.
        """
        saving = importlib.import_module("relive.saving.saving")  # imported here: programs that save nothing lack it
        blobs, number = saving.checked(beside, keep)
        waits = flag("wait", wait)
        one = self.begin_save(path)
        one.make_cut(None, self._timeout_s)
        if not waits:
            one.finish_behind(blobs, number)
            return one
        one.finish(blobs, number)
        return one.wait()

    @names_arguments
    def sync(self, timeout_s: float | None = None) -> None:
        """Returns when everything that was acknowledged before this call is on disk: for storage=File(path).

        Args:
            timeout_s: How long to wait, in seconds; None: the table's.

        Raises:
            DeadlineExceeded: The save did not end in time; it goes on.
            StorageFull, SystemFailure, SaveOutrun: It failed; the save before it stays whole.
            InvalidConfig: The table does not live in a folder, or this process is a forked child.
            ReadOnly, TableClosed: The handle is read-only, or closed.
        """
        seconds = self._timeout_s if timeout_s is None else timeout(timeout_s)
        if self._local.closed:
            raise TableClosed()
        if not isinstance(self._config.storage, File):
            raise InvalidConfig(
                "storage of a table to sync", "File(path); other tables have save()", self._config.storage
            )
        if self._keeper is None:
            raise ReadOnly()
        self._keeper.sync(seconds)

    def stats(self) -> TableStats:
        """Sizes and counters at this moment, over all processes. Raises TableClosed."""
        told = super().stats()
        if self._keeper is None:
            return told
        stats = importlib.import_module("relive.table.stats")  # here, so that `import relive` does not wait for it
        place, facts = self._keeper.place, self._keeper.facts
        file = stats.FileStats(place.folder, place.region, place.reason, facts.saver, facts.saved_s, facts.problem)
        return replace(told, file=file)

    def begin_save(self, path: str | os.PathLike[str]) -> Saving:
        """Begins a save: opens the folder. For floors that choose the moment of the cut; not for programs.

        The caller then copies pages with copy_ahead, takes the moment with make_cut, and ends the save with finish,
        finish_behind or abandon, each on any thread. Raises the errors of save.
        """
        saving = importlib.import_module("relive.saving.saving")
        loaded = self._loaded
        where = folder_path("path of a save", path)
        one: Saving = saving.Saving(self._local, where, saving.facts_of(self._local, self._config))
        one.loaded_from = loaded.own_cut if loaded is not None else None
        return one

    @property
    def loaded(self) -> LoadedCore | None:
        """How the table was loaded from a save, if this handle loaded it: its keeps_keys says what became of keys."""
        return self._loaded
