"""Tells clients that wait for an answer that the server works on it.

A client that asked for pulses takes a server that sends no byte for a second for hung. An answer may take longer: a
gather of gigabytes, the check of a large table. A stopped process sends no pulse, and neither does a session whose
table is locked by a process that does not go on. The session of a writer ends its waits for the lock itself, so it
sends pulses meanwhile.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import final

from relive._core import CoreTable
from relive.core.ending import start_thread
from relive.core.locked import check_lock
from relive.errors import DeadlineExceeded
from relive.service.server.pipe import Pipe, StreamBroken

__all__ = ["Pulses"]

_EVERY_S = 0.25
_LOCK_S = 0.05  # a wait for a lock that goes from hand to hand is shorter


@final
class Pulses:
    """A thread that sends pulses over the pipes that asked for them. It runs while there is such a pipe.

    `_changed` protects the pipes. The thread sends outside its critical section.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._pipes: weakref.WeakKeyDictionary[Pipe, CoreTable | None] = weakref.WeakKeyDictionary()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def add(self, pipe: Pipe, core: CoreTable | None) -> None:
        """Sends pulses over a pipe until remove(), but none while the lock of this table is stuck.

        None: the lock is not asked.
        """
        with self._changed:
            self._pipes[pipe] = core
            if self._thread is None and not self._is_closed:
                self._thread = start_thread(self._run, "relive-server-pulses", never_writes=True)

    def remove(self, pipe: Pipe) -> None:
        """Sends no more pulses over a pipe."""
        with self._changed:
            self._pipes.pop(pipe, None)
            if not self._pipes:
                self._changed.notify_all()

    def close(self) -> None:
        """Ends the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait(_EVERY_S)
                if self._is_closed or not self._pipes:
                    self._thread = None
                    return
                working = [(pipe, core) for pipe, core in self._pipes.items() if pipe.is_due()]
            stuck = {id(None): False}
            for pipe, core in working:
                if core is not None and id(core) not in stuck:
                    stuck[id(core)] = _is_stuck(core)
                if not stuck[id(core)]:
                    with contextlib.suppress(*StreamBroken):
                        pipe.pulse()
            working.clear()  # a pipe that ends is released at once, and not at the next pulse


def _is_stuck(core: CoreTable) -> bool:
    try:
        check_lock(core, _LOCK_S)
    except DeadlineExceeded:
        return True
    return False
