"""Saving: a save that goes on while the program does."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import partial
from typing import Any, final

import numpy as np

from relive import _core
from relive.checks.values import integer, is_name
from relive.config.table_config import TableConfig
from relive.errors import InvalidConfig
from relive.saving.copying import Copying, SaveFacts
from relive.saving.files import Files
from relive.saving.folder import IMAGE, SaveFolder
from relive.saving.under_way import UnderWay

__all__ = ["Saving", "checked", "facts_of"]

MAX_NAME_BYTES = 200
_MOST_KEPT = 1000


def checked(beside: Mapping[str, bytes] | None, keep: int) -> tuple[dict[str, bytes], int]:
    """Returns the blobs and the number of saves to keep. Raises InvalidConfig."""
    if beside is not None and not isinstance(beside, Mapping):
        raise InvalidConfig("beside", "{name: bytes}, or None", beside)
    blobs = {} if beside is None else dict(beside)
    for name, data in blobs.items():
        if not is_name(name, MAX_NAME_BYTES) or "/" in name or name in (".", ".."):
            raise InvalidConfig("name of a blob", f"1 to {MAX_NAME_BYTES} bytes of text without '/'", name)
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise InvalidConfig(f"blob {name!r}", "bytes", type(data).__name__)
    return {name: bytes(data) for name, data in blobs.items()}, integer("keep", keep, 1, _MOST_KEPT)


def facts_of(core: _core.CoreTable, config: TableConfig) -> dict[str, Any]:
    """Returns the facts of a table that a load needs beside its state."""
    geometry = core.geometry
    names = ("num_pages", "slot_bits", "max_lanes", "shard")
    return {
        "region": geometry["uuid"].hex(),
        "table": config.to_dict(),
        **{name: int(geometry[name]) for name in names},
        "page_shift": int(geometry["page_len"]).bit_length() - 1,
    }


def cursor_of(core: _core.CoreTable) -> dict[str, Any]:
    """Returns the position of the handle's draws: its stream, and the number of its next draw."""
    return {"stream": core.stream, "next_draw": core.next_call}


@final
class Saving(UnderWay[SaveFacts]):
    """A save whose cut is made: the table goes on, and a thread writes the rest.

    `table.save(path, wait=False)` returns it. A process that ends waits for the thread. Closing the table waits until
    the pages are copied. A forked child has no part in the save.
    """

    def __init__(
        self,
        core: _core.CoreTable,
        path: str,
        told: Mapping[str, Any],
        files: Files | None = None,
        *,
        lives: str | None = None,
    ) -> None:
        """Opens the folder. lives: its id, if the table lives in it. Raises the errors of SaveFolder.open."""
        super().__init__()
        self._core, self._told = core, told
        self._folder = SaveFolder.open(path, files, lives=lives)
        self._copying: Copying | None = None
        self.loaded_from: str | None = None  # the name of the cut that the table was loaded from

    def copy_ahead(self) -> None:
        """Copies pages, so that little is left at the cut. `make_cut` comes next, on any thread."""
        try:
            current = self._folder.current
            is_own = current is not None and (
                current.facts.get("region") == self._told["region"] or current.name == self.loaded_from
            )
            known = self._folder.reusable() if is_own else np.zeros(0, IMAGE)
            self._copying = Copying(self._core, self._folder, known, self._cancelled)
            self._copying.copy_ahead()
        except BaseException:
            self.abandon()
            raise

    def make_cut(self, loaded_from: str | None, timeout_s: float) -> None:
        """Copies the state at one moment: the table as the save will have it.

        Args:
            loaded_from: The name of the cut that the table was loaded from; None: it was not loaded, or `loaded_from`
                of this object says it.
            timeout_s: For the table's lock, in seconds.
        """
        self.loaded_from = self.loaded_from or loaded_from
        if self._copying is None:
            self.copy_ahead()
        try:
            assert self._copying is not None
            self._copying.cut(timeout_s)
            self._told = {**self._told, **cursor_of(self._core)}
        except BaseException:
            self.abandon()
            raise

    def finish(self, beside: Mapping[str, bytes], keep: int | frozenset[int]) -> None:
        """Writes the rest and commits, on the calling thread. The outcome is that of `wait`.

        Args:
            beside: Blobs by name.
            keep: The number of saves that the folder keeps, or the numbers of those that stay beside this one.
        """
        try:
            with self._noted_error():
                assert self._copying is not None
                self._facts = self._copying.finish(self._told, beside, keep)
        finally:
            self.abandon()

    def finish_behind(self, beside: Mapping[str, bytes], keep: int | frozenset[int]) -> None:
        """The same on a thread of its own. If a signal's handler raises in the start of the thread, the save ends."""
        self._finish_on_a_thread(partial(self.finish, beside, keep))

    def abandon(self) -> None:
        """Ends a save that no thread finishes: the folder is unlocked, and the save before it stays."""
        with contextlib.ExitStack() as ends:
            ends.callback(self._done.set)
            ends.callback(self._folder.close)
            if self._copying is not None:
                ends.callback(self._copying.close)

    @property
    def path(self) -> str:
        """The folder."""
        return self._folder.path

    @property
    def progress(self) -> float:
        """The part of the pages that is copied, from 0 to 1. 1 before the commit is done: see `done`."""
        return 1.0 if self._copying is None or self._facts is not None else self._copying.progress
