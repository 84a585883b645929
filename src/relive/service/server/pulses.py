"""Tells clients that wait for an answer that the server works on it.

A client that asked for pulses takes a server that sends no byte for a second for hung. An answer may take longer: a
gather of gigabytes, the check of a large table. A stopped process sends no pulse, and neither does a session whose
table is locked by a process that does not go on. The session of a writer ends its waits for the lock itself, so it
sends pulses meanwhile.

A pulse blocks its thread if the client does not read. Such a pulse has a thread of its own, and no other pulse waits
for it.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import deque
from typing import final

from relive._core import CoreTable
from relive.core.ending import start_thread
from relive.core.locked import check_lock
from relive.errors import DeadlineExceeded
from relive.service.server.pipe import Pipe, StreamBroken

__all__ = ["Pulses"]

_EVERY_S = 0.25
_LOCK_S = 0.05  # a wait for a lock that goes from hand to hand is shorter
_TOGETHER_S = 0.1  # for the pulses of a round that one thread sends


@final
class Pulses:
    """A thread that has pulses sent over the pipes that asked for them. It runs while there is such a pipe.

    `_changed` protects the pipes. Pulses are sent outside its critical section, by other threads.
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
            _send(_without_stuck(working))
            working.clear()  # a pipe that ends is released at once, and not at the next pulse


def _without_stuck(working: list[tuple[Pipe, CoreTable | None]]) -> deque[Pipe]:
    """Returns the pipes whose tables can be locked."""
    cores = {id(core): core for _, core in working if core is not None}
    stuck = {key for key, core in cores.items() if _is_stuck(core)}
    return deque(pipe for pipe, core in working if id(core) not in stuck)


def _send(due: deque[Pipe]) -> None:
    """Sends a pulse over each pipe: one after the other for _TOGETHER_S, then each of the rest on a thread of its own.

    A pulse waits while its client does not read. The next rounds leave its pipe out.

    Blocks: for about _TOGETHER_S, however many clients do not read.
    """
    with contextlib.suppress(IndexError, RuntimeError):  # none is left, or the system starts no more threads now
        if due:
            _start(due).join(_TOGETHER_S)
        while True:
            _start(deque([due.popleft()]))


def _start(due: deque[Pipe]) -> threading.Thread:
    return start_thread(_pulse_all, "relive-server-pulse", due, never_writes=True)


def _pulse_all(due: deque[Pipe]) -> None:
    with contextlib.suppress(IndexError):  # another thread has taken the last pipe
        while True:
            with contextlib.suppress(*StreamBroken):
                due.popleft().pulse()


def _is_stuck(core: CoreTable) -> bool:
    try:
        check_lock(core, _LOCK_S)
    except DeadlineExceeded:
        return True
    return False
