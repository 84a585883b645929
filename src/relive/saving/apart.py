"""A save on a thread of its own, the copying before its moment too, which other threads look at and cancel."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import NamedTuple, final

from relive import _core
from relive.config.table_config import TableConfig
from relive.core.ending import start_thread
from relive.saving.copying import SaveFacts
from relive.saving.saving import Saving, facts_of

__all__ = ["SavedCore", "SavingApart"]


class SavedCore(NamedTuple):
    """The core to save.

    `loaded_from`: the name of the cut that it was loaded from with its keys; None: none. `timeout_s`: for its lock.
    """

    core: _core.CoreTable
    config: TableConfig
    loaded_from: str | None
    timeout_s: float


@final
class SavingApart:
    """One save. `_changed` protects its state. After its end it keeps the outcome, and no memory of the save.

    Args:
        saved: The core.
        path: The folder of the save.
        beside: Blobs by name.
        keep: The number of saves that the folder keeps, or the numbers of those that stay beside this one.
    """

    def __init__(self, saved: SavedCore, path: str, beside: Mapping[str, bytes], keep: int | frozenset[int]) -> None:
        self._task: tuple[SavedCore, Mapping[str, bytes]] | None = (saved, beside)
        self._path, self._keep = path, keep
        self._changed = threading.Condition()
        self._saving: Saving | None = None
        self._is_cancelled = False
        self._facts: SaveFacts | None = None
        self._error: Exception | None = None
        self._progress = 0.0  # at the end
        self.has_cut = False

    def start(self, name: str) -> None:
        """Starts the thread, under this name. Its errors are those of `facts`."""
        start_thread(self._run, name, never_writes=True)

    def _run(self) -> None:
        facts, error = None, None
        try:
            facts = self._commit()
        except Exception as problem:  # any error of a save is for the caller that waits for it
            error = problem
            _let_go_of_frames(problem)
        with self._changed:
            self._progress = self.progress
            self._facts, self._error, self._saving = facts, error, None
            self._changed.notify_all()

    def _commit(self) -> SaveFacts:
        assert self._task is not None  # start() is called once
        ((core, config, loaded_from, timeout_s), beside), self._task = self._task, None
        saving = Saving(core, self._path, facts_of(core, config))
        with self._changed:
            self._saving = saving
            if self._is_cancelled:
                saving.cancel()
        saving.make_cut(loaded_from, timeout_s)
        with self._changed:
            self.has_cut = True
            self._changed.notify_all()
        saving.finish(beside, self._keep)
        return saving.wait()

    @property
    def is_done(self) -> bool:
        """Whether the save has ended, in a commit or in an error."""
        return self._facts is not None or self._error is not None

    @property
    def progress(self) -> float:
        """The part of the pages that is copied, from 0 to 1."""
        saving = self._saving
        return self._progress if saving is None else saving.progress

    def wait(self, timeout_s: float, until_cut: bool = False) -> bool:
        """Waits for the end of the save, or for its moment. Returns False at the deadline."""
        with self._changed:
            return self._changed.wait_for(lambda: self.is_done or (until_cut and self.has_cut), timeout_s)

    def facts(self) -> SaveFacts | None:
        """Returns the facts of the save; None: it has not ended. Raises the error that ended it."""
        with self._changed:
            if self._error is not None:
                raise self._error
            return self._facts

    def cancel(self) -> None:
        """Ends the save at its next block, if it has not committed."""
        with self._changed:
            self._is_cancelled = True
            if self._saving is not None:
                self._saving.cancel()


def _let_go_of_frames(problem: BaseException | None) -> None:
    """Drops the tracebacks of an error and of those before it: their frames have the buffers of the save."""
    while problem is not None:
        problem.__traceback__ = None
        problem = problem.__context__
