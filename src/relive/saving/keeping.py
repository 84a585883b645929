"""Keeper: saves a table that lives in a folder: every sync_s seconds, when asked, and at the table's last close.

- Each process with a handle that may write has a Keeper and its thread. The process that has lock byte 2 of the region
  saves every sync_s seconds. If it ends, another takes the byte.
- All saves of a process are made by that thread. A caller of sync() waits for it.
- A process that closes has the door (place.py). So of several processes that close at once, the last one sees that it
  is the last.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, final

from relive import _core
from relive.config.table_config import TableConfig
from relive.core.ending import at_end, start_thread
from relive.core.turns import take
from relive.errors import DeadlineExceeded, InvalidConfig, ReliveError, SaveInUse, TableClosed
from relive.saving.disk_files import DiskFiles
from relive.saving.place import Place
from relive.saving.saving import Saving, facts_of

__all__ = ["Keeper", "KeeperFacts"]

_POLL_S = 0.1  # of a wait for the thread, which might have ended
_RETRY_S = 0.02  # after which a save that another one kept away is tried again
_CLOSING_S = 0.5  # the least time that a close waits for the door
# Numbers of stats() that change without a change that a save would keep.
_PASSING = (
    *("redraws", "slow_draws", "sampler_wait", "writer_wait", "samplers_wait", "writers_wait", "waiting", "is_stuck"),
    *("draw_size", "insert_size", "num_bytes", "num_participants", "frames", "tiers"),
)

_open: weakref.WeakSet[Keeper] = weakref.WeakSet()


@final
@dataclass(frozen=True)
class KeeperFacts:
    """The state of a Keeper.

    Attributes:
        saver: Whether this process saves the table every sync_s seconds.
        saved_s: Seconds since this process saved the table; None: it has not.
        problem: Why its last save failed; empty if it did not fail.
    """

    saver: bool
    saved_s: float | None
    problem: str


@final
class _Request:
    """A save that a caller waits for."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.error: Exception | None = None


@final
class Keeper:
    """Saves one table into the folder that it lives in, and closes it. Several threads may use it.

    Owns: its thread, and the lock among hosts. The handle and the Keeper share the core.
    """

    def __init__(self, core: _core.CoreTable, config: TableConfig, place: Place, hosts: DiskFiles | None) -> None:
        """Keeps a table.

        Args:
            core: The core of the table.
            config: The configuration of the table.
            place: Where it lives.
            hosts: The lock among hosts, which the Keeper closes; None: there is none.
        """
        self._core, self._config, self.place, self._hosts = core, config, place, hosts
        self._sync_s = getattr(config.storage, "sync_s", None)
        self._asked: SimpleQueue[_Request | None] = SimpleQueue()  # may be put to by a finalizer
        self._process = os.getpid()
        self._thread: threading.Thread | None = None
        self._closing = threading.Lock()
        self._closer: int | None = None  # the thread that closes
        self._is_over = False
        self._loaded_from: str | None = None
        self._seen: Any = None  # the state at the last save
        self._is_saver = False
        self._saved_at_s: float | None = None
        self._problem = ""

    def begin(self, loaded_from: str | None, *, is_new: bool) -> None:
        """Starts the thread. A new table is saved first, so that it outlasts a power cut from its first step on.

        Args:
            loaded_from: The name of the cut that the table was loaded from; None: it was not loaded.
            is_new: Whether no save of this region is in the folder.
        """
        self._loaded_from = loaded_from
        if is_new:
            error = self._save()
            if error is not None:
                raise error
        self._thread = start_thread(_run, "relive-keep", self, never_writes=True)
        _open.add(self)

    # ---- the thread ------------------------------------------------------------------------------------------------

    def turn(self, due_s: float) -> tuple[bool, float]:
        """Waits for requests, or until a save is due, and saves. Returns whether to go on, and when a save is due."""
        requests: list[_Request | None] = []
        with contextlib.suppress(Empty):
            requests.append(self._asked.get(timeout=max(due_s - time.monotonic(), 0.0) if self._sync_s else None))
            while True:
                requests.append(self._asked.get_nowait())
        waiting = [request for request in requests if request is not None]
        is_last = len(waiting) < len(requests)
        if waiting or (not is_last and self._is_due()):
            error = self._save(must=bool(waiting))
            for request in waiting:
                request.error = error
                request.done.set()
        return not is_last, due_s if waiting else time.monotonic() + (self._sync_s or 0.0)

    def _is_due(self) -> bool:
        try:
            self._is_saver = bool(self._core.becomes_saver())
            return self._is_saver and self._state() != self._seen
        except ReliveError:  # closed
            return False

    def _state(self) -> Any:
        """Returns numbers that change with everything that a save keeps."""
        told = self._core.stats()
        indexes = [_lasting(one) for one in told.pop("indexes")]
        exponents = [self._core.priority_exponent(index) for index in range(len(indexes))]
        return _lasting(told), indexes, exponents

    def _save(self, *, must: bool = True) -> Exception | None:
        """Saves the table. Returns why it could not. must: wait for the save of another process."""
        while True:
            try:
                seen = self._state()
                saving = Saving(
                    self._core, self.place.folder, facts_of(self._core, self._config), lives=self.place.identity
                )
                saving.make_cut(self._loaded_from, self._config.timeout_s)
                saving.finish({}, 1)
                saving.wait()
            except SaveInUse as error:
                if not must or self._is_over:
                    return error
                time.sleep(_RETRY_S)
            except Exception as error:  # any error of a save is for the caller that waits for it, and for stats()
                self._problem = str(error)
                return error
            else:
                self._seen, self._saved_at_s, self._problem = seen, time.monotonic(), ""
                return None

    # ---- for the handle --------------------------------------------------------------------------------------------

    @property
    def timeout_s(self) -> float:
        """The deadline of the handle's calls, in seconds."""
        return self._config.timeout_s

    @property
    def facts(self) -> KeeperFacts:
        """The state of this process's saves."""
        at_s = self._saved_at_s
        return KeeperFacts(self._is_saver, None if at_s is None else time.monotonic() - at_s, self._problem)

    def sync(self, timeout_s: float) -> None:
        """Waits for a save that begins after this call.

        Raises:
            DeadlineExceeded: It has not ended in time; it goes on.
            StorageFull, SystemFailure, SaveOutrun: It failed; the save before it stays whole.
            TableClosed: The table was closed meanwhile.
            InvalidConfig: The process is a forked child of the one that opened the table.
        """
        if os.getpid() != self._process:
            raise InvalidConfig("sync of a table", "the process that opened it", "a forked child of it")
        request, began_s = _Request(), time.monotonic()
        self._asked.put(request)
        while not request.done.wait(max(min(_POLL_S, began_s + timeout_s - time.monotonic()), 0.0)):
            if self._thread is None or not self._thread.is_alive():
                raise TableClosed()
            waited_s = time.monotonic() - began_s
            if waited_s >= timeout_s:
                raise DeadlineExceeded("the save of a table", "pages to write", waited_s)
        if request.error is not None:
            raise request.error

    def close(self, timeout_s: float) -> None:
        """Closes the table. The last handle that may write saves it first.

        If Ctrl-C ends the call, another call goes on. A table that cannot be saved is closed all the same: its region
        stays, and the next process finds it there.

        Raises:
            DeadlineExceeded, StorageFull, SystemFailure, SaveOutrun: The table could not be saved.
        """
        if os.getpid() != self._process:
            self._core.close()
            return
        if self._closer == threading.get_ident():
            return  # in a signal's handler that interrupted the call that closes the table
        mine: list[bool] = []
        try:
            if not take(self._closing, timeout_s, mine):
                raise DeadlineExceeded("to close a table", "another thread closes it", timeout_s)
            self._closer = threading.get_ident()
            if not self._is_over:
                self._close(timeout_s)
        finally:
            if True in mine:
                self._closer = None
                self._closing.release()

    def _close(self, timeout_s: float) -> None:
        error = self._save_and_close(time.monotonic() + timeout_s)
        self._is_over = True
        _open.discard(self)
        self.leave()
        if self._hosts is not None:
            self._hosts.close()
        if error is not None:
            raise error

    def _save_and_close(self, ends_s: float) -> Exception | None:
        with contextlib.ExitStack() as opened:
            try:
                opened.enter_context(self.place.door(max(ends_s, time.monotonic() + _CLOSING_S)))
                if self._core.is_last_writer():
                    if self.place.reason or self._state() != self._seen:
                        self.sync(max(ends_s - time.monotonic(), _CLOSING_S))
                    if self.place.reason:
                        self._core.set_keeps_file(False)  # the save has all; the region's memory becomes free
            except (ReliveError, OSError) as problem:  # the folder is gone, or the disk is full
                error: Exception | None = None if isinstance(problem, TableClosed) else problem
            else:
                error = None
            self._core.close()
        return error

    def leave(self) -> None:
        """Ends the thread, when it has done what it was asked for. A finalizer may call this."""
        self._asked.put(None)


def _lasting(told: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in told.items() if not name.startswith(_PASSING)}


def _run(keeper: Keeper) -> None:
    goes_on, due_s = True, time.monotonic()
    while goes_on:
        goes_on, due_s = keeper.turn(due_s)


@at_end
def _close_all() -> None:
    """Closes the tables that are still open when the process ends."""
    with contextlib.ExitStack() as closers:
        for keeper in list(_open):
            closers.callback(keeper.close, keeper.timeout_s)
