"""Looks after the connections of a server: cuts those that are of no use, and gives memory back after a peak."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection
from typing import final

import pyarrow as pa

from relive._core import free_batch_memory, kept_batch_bytes
from relive.core.ending import start_thread
from relive.service.server.budget import Budget
from relive.service.wire.options import ServerOptions
from relive.service.wire.sockets import keep_alive, peer_of, tcp_sockets

__all__ = ["Keeper", "give_memory_back", "private_bytes"]

Peer = tuple[str, int]

_LOOK_EVERY_S = 1.0
_TRIM_EVERY_S = 20.0
_LARGE_PEAK = 32 << 20  # bytes of requests, of kept batches or of growth, after which memory goes back to the system
_LARGEST_KEPT = 1 << 20  # bytes of a block, and of the end of a heap, that malloc may keep after they are freed
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of mallopt
_SPARE = 4  # descriptors that the thread releases to look at the connections when no other is left


@final
class Keeper:
    """A thread of a server that looks at its connections once a second.

    - It sets the options of TCP on each new connection: a peer whose machine is gone ends within about 15 s.
    - It cuts a connection that has been without a stream for `idle_s`, and the oldest of those without a stream
      beyond `max_connections`.
    - It returns freed memory to the system after a peak of requests. For this it has malloc take blocks of 1 MiB and
      more from the system and return them when they are freed, in the whole process.

    Args:
        options: Limits of the server.
        peers: Returns the peers that have a stream.
        stalled: Returns the peers that do not read an answer.
        budgets: The memory of requests.
    """

    def __init__(
        self,
        options: ServerOptions,
        peers: Callable[[], Collection[Peer]],
        stalled: Callable[[], Collection[Peer]],
        budgets: Collection[Budget],
    ) -> None:
        self._options = options
        self._peers = peers
        self._stalled = stalled
        self._budgets = budgets
        self._is_accepted: Callable[[socket.SocketType], bool] = lambda one: False
        self._silent_since: dict[Peer, float] = {}
        self._spare = [os.open(os.devnull, os.O_RDONLY) for _ in range(_SPARE)]
        self._trimmed = time.monotonic()
        self._private_bytes = private_bytes()  # after the last return of memory
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None
        self.num_cut = 0

    def start(self, is_accepted: Callable[[socket.SocketType], bool]) -> None:
        """Starts the thread, for the connections that the server accepted: those for which the function is true."""
        self._is_accepted = is_accepted
        _have_large_blocks_returned()
        self._thread = start_thread(self._run, "relive-server-keeper", never_writes=True)

    def close(self) -> None:
        """Ends the thread."""
        self._ends.set()
        if self._thread is not None:
            self._thread.join(1.0)
        while self._spare:
            os.close(self._spare.pop())

    def _run(self) -> None:
        while not self._ends.wait(_LOOK_EVERY_S):
            try:
                self.look()
            except OSError as problem:
                if problem.errno not in (errno.EMFILE, errno.ENFILE):
                    continue
                while self._spare:  # no descriptor is left to look with
                    os.close(self._spare.pop())
                with contextlib.suppress(OSError):
                    self.look()
                with contextlib.suppress(OSError):
                    while len(self._spare) < _SPARE:
                        self._spare.append(os.open(os.devnull, os.O_RDONLY))
            self._trim()

    def look(self) -> None:
        """Looks at the connections once. Raises OSError if no descriptor is left."""
        now, with_streams, stalled = time.monotonic(), set(self._peers()), set(self._stalled())
        seen: dict[Peer, float] = {}
        for one in tcp_sockets():
            peer = self._peer(one)
            if peer is None:
                continue
            is_new = peer not in self._silent_since
            if is_new:
                keep_alive(one)
            since = now if is_new or peer in with_streams else self._silent_since[peer]
            seen[peer] = since
        self._silent_since = seen
        silent = sorted((since, peer) for peer, since in seen.items() if peer not in with_streams)
        too_many = max(len(seen) - self.most_connections, 0)
        ended = {peer for at, (since, peer) in enumerate(silent) if at < too_many or now - since > self._options.idle_s}
        self._cut(ended | stalled)

    @property
    def most_connections(self) -> int:
        """Connections that may be open: at most three quarters of the descriptors that the process may have."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return self._options.max_connections if soft < 0 else min(self._options.max_connections, soft * 3 // 4)

    def _peer(self, one: socket.SocketType) -> Peer | None:
        try:
            return peer_of(one) if self._is_accepted(one) else None
        except (OSError, IndexError, TypeError, ValueError):
            return None  # a listening socket, or one of another family

    def _cut(self, peers: Collection[Peer]) -> None:
        for one in tcp_sockets() if peers else ():
            with contextlib.suppress(OSError):
                if self._peer(one) in peers:
                    one.shutdown(socket.SHUT_RDWR)
                    self.num_cut += 1

    def _trim(self) -> None:
        if time.monotonic() - self._trimmed < _TRIM_EVERY_S:
            return
        self._trimmed = time.monotonic()
        peak = max(one.forget_peak() for one in self._budgets)
        grown = private_bytes() - self._private_bytes
        if max(peak, kept_batch_bytes(), grown) >= _LARGE_PEAK:
            give_memory_back()
            self._private_bytes = private_bytes()


def give_memory_back() -> None:
    """Returns freed memory of this process to the system: of batches, of Arrow and of malloc."""
    free_batch_memory()
    pa.default_memory_pool().release_unused()
    _of_malloc("malloc_trim", 0)


def _have_large_blocks_returned() -> None:
    """Sets the thresholds of malloc. By itself it raises them to 32 MiB when blocks of that size are freed.

    malloc_trim() leaves the end of each heap but the first, and every thread has a heap.
    """
    _of_malloc("mallopt", _M_MMAP_THRESHOLD, _LARGEST_KEPT)
    _of_malloc("mallopt", _M_TRIM_THRESHOLD, _LARGEST_KEPT)


def _of_malloc(name: str, *arguments: int) -> None:
    """Calls a function of glibc's malloc, where there is one."""
    function = getattr(ctypes.CDLL(None), name, None) if sys.platform.startswith("linux") else None
    if function is not None:
        function(*arguments)


def private_bytes() -> int:
    """Returns the bytes of this process in memory that it shares with no other; 0 if the system does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            _, resident, shared = file.read().split()[:3]
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * resource.getpagesize()
