"""NIXL's agent of this process: registered memory, peers, lists of cells, requests, and the quarantine.

NIXL is not an extra of relive, because its packages require torch, which is not needed here:

    pip install --no-deps nixl-cu12==1.5.1

Agent. A process has one agent, for both roles. Calls that change peers, memory or lists are short, and run under one
lock of this module. Requests are made, posted and checked without that lock. NIXL's own lock (SYNC_RW) lets several
threads do so, if each request belongs to one thread at a time.

Copies. Within a host a post is the copy, and the caller's thread makes it. Large reads are therefore halved. The
agent's *second hand*, a thread of its own, makes and posts one half over the second of two UCX workers. Each worker has
a lock, and a connection a peer. NIXL assigns workers to threads in rotation. If a process reads with more than two
threads, a reading thread may get the worker of the second hand. Its halves then wait for each other, as if the read was
not halved.

Lifetime. Each user of the agent takes a reference (shared_agent). The agent and its threads end when the last reference
is released. No thread of NIXL or UCX runs in a process that neither reads a peer nor is read by a peer.

Quarantine. A request that is not done when its reader gives up is *quarantined*, together with all memory that its
bytes may come to. The memory stays there until the request is done and the second hand is done with the request. Only
then the memory and the request's lists are freed, and the reference to the agent is released.

Disconnection. A disconnected peer is reported at once. Its lists are void, and new lists need new metadata. A failed
connection rests for a second, even if another agent is made in the meantime.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from relive.errors import SystemFailure
from relive.fleet.errors import PeerUnreadable
from relive.fleet.onesided.copy_thread import Handed, SecondHand
from relive.fleet.onesided.peer_layout import Area, Indices

__all__ = ["COMMAND", "Agent", "shared_agent", "is_installed", "short"]

COMMAND = "pip install --no-deps nixl-cu12==1.5.1"
_MODULES = ("nixl_cu12", "nixl_cu13")
_BACKEND = "UCX"
_OPTIONS = {"num_workers": "2"}  # the second worker is for the second hand
_PAUSE_US = 100_000  # between checks of a progress thread that is not woken; it spins on a lock that a copy has taken
_REST_S = 1.0  # rest of an ended connection before it is made again


def short(problem: BaseException) -> str:
    """The text of a NIXL error, shortened for a sentence."""
    return (str(problem) or type(problem).__name__)[:200]


def is_installed() -> bool:
    """Whether NIXL can be imported here."""
    return _found() is not None


def _found() -> str | None:
    finder = importlib.import_module("importlib.util")
    return next((name for name in _MODULES if finder.find_spec(name) is not None), None)


def _bindings() -> Any:
    """NIXL's own bindings, quiet and without UCX's keepalive, unless the user's environment says otherwise.

    NIXL logs to the terminal. UCX asks its peers every 20 s whether they live. For that it may use a connection that
    has
    ended (openucx/ucx issue 11217), which ends the process. relive asks shards over the service, five times a second.
    """
    name = _found()
    if name is None:
        raise PeerUnreadable("this process", f"NIXL is not installed ({COMMAND})")
    os.environ.setdefault("NIXL_LOG_LEVEL", "FATAL")
    os.environ.setdefault("UCX_KEEPALIVE_INTERVAL", "inf")
    try:
        return importlib.import_module(f"{name}._bindings")
    except (ImportError, OSError) as problem:  # a library that NIXL needs is missing
        raise PeerUnreadable("this process", f"NIXL cannot be loaded ({problem})") from None


@final
class Agent:
    """NIXL's agent. bindings: NIXL's bindings, or a substitute in a test.

    Owns the threads of NIXL and UCX, and the second hand. shared_agent() makes the agent of the process, and let_go()
    ends
    it. In tests, the test that made an agent ends it.
    """

    def __init__(self, bindings: Any) -> None:
        self.lock = threading.RLock()
        self._nixl = bindings
        self.process = os.getpid()
        self._quarantine: list[_Leftover] = []
        self._peers: dict[str, int] = {}  # number of users of each peer: a connection ends with its last user
        self._second_hand: SecondHand | None = None
        self.num_users = 0  # protected by _making
        try:
            config = bindings.nixlAgentConfig()
            config.useProgThread = True
            config.useListenThread = False
            config.pthrDelay = _PAUSE_US
            config.syncMode = bindings.NIXL_THREAD_SYNC_RW
            self.name = f"relive-{uuid.uuid4().hex}"
            self._agent = bindings.nixlAgent(self.name, config)
            self._backend = self._agent.createBackend(_BACKEND, dict(_OPTIONS))
        except Exception as problem:  # not all versions of NIXL have an error class of their own
            raise PeerUnreadable("this process", f"NIXL has no {_BACKEND} here ({short(problem)})") from None
        self.done, self.in_progress = bindings.NIXL_SUCCESS, bindings.NIXL_IN_PROG

    def let_go(self) -> None:
        """Releases one reference.

        The last release ends the agent of this process and joins its threads, which takes milliseconds.
        """
        with _making:
            self.num_users -= 1
            if self.num_users == 0 and self in _agents and self.process == os.getpid():
                _agents.remove(self)
                self.end_second_hand()
                self._agent = self._backend = None  # deleting the last reference joins the threads

    @property
    def progress(self) -> str:
        """Which component moves the bytes."""
        chosen = os.environ.get("UCX_TLS")
        return f"NIXL over UCX ({f'UCX_TLS={chosen}' if chosen else 'its choice of transports'}), progress threads"

    def register(self, address: int, num_bytes: int) -> Any:
        """Registers memory that peers may read, or that bytes may come to. Raises SystemFailure."""
        try:
            with self.lock:
                region = self._nixl.nixlRegDList(self._nixl.DRAM_SEG, [(address, num_bytes, 0, "")])
                self._agent.registerMem(region, [self._backend])
            return region
        except Exception as problem:  # as above
            raise SystemFailure(f"registering {num_bytes} bytes of memory with NIXL ({short(problem)})") from None

    def unregister(self, region: Any) -> None:
        """Ends a registration."""
        with self.lock, contextlib.suppress(Exception):  # it is gone either way
            self._agent.deregisterMem(region, [self._backend])

    def metadata(self) -> bytes:
        """The data that a peer needs to reach this agent and all memory that was registered so far."""
        with self.lock:
            return bytes(self._agent.getLocalMD())

    def rest_s(self, peer: str) -> float:
        """Seconds that a peer's ended connection must still rest before it is made again."""
        with self.lock:
            return max(0.0, _REST_S - (time.monotonic() - _ended.get(peer, -math.inf)))

    def connect(self, peer: str, metadata: bytes) -> None:
        """Adds one user of a peer. Raises ConnectionError if its connection ended just now, and NIXL's errors."""
        with self.lock:
            if self.rest_s(peer) > 0.0:
                raise ConnectionError("its connection ended just now")
            if peer == self.name:
                raise ConnectionError("its owner is this process, which has it mapped")
            name = self._agent.loadRemoteMD(metadata)
            if (name.decode() if isinstance(name, bytes) else str(name)) != peer:
                raise ConnectionError("the metadata is another agent's")
            self._peers[peer] = self._peers.get(peer, 0) + 1

    def disconnect(self, peer: str, has_failed: bool) -> None:
        """Removes one user of a peer. The last one ends the connection, and lists of the peer's cells are void.

        A connection that failed then rests.
        """
        with self.lock:
            self._peers[peer] -= 1
            if not self._peers[peer]:
                del self._peers[peer]
                for name in [name for name, at in list(_ended.items()) if time.monotonic() - at >= _REST_S]:
                    _ended.pop(name, None)
                if has_failed:
                    _ended[peer] = time.monotonic()
                with contextlib.suppress(Exception):  # it is gone either way
                    self._agent.invalidateRemoteMD(peer)

    def cells(self, name: str, area: Area, base: int) -> Any:
        """Makes a list of cells. name: the peer's name, or "" for memory of this process."""
        rows = np.empty((len(area.starts), 5), np.uint64)
        rows[:, 0] = area.starts.astype(np.uint64) + np.uint64(base)
        rows[:, 1:] = area.cell_bytes, 0, area.stride, area.run_cells
        with self.lock:
            return self._agent.prepXferDlist(
                name or self._nixl.NIXL_INIT_AGENT, self._nixl.DRAM_SEG, rows, [self._backend]
            )

    def release_cells(self, cells: Any) -> None:
        """Releases a list."""
        with self.lock, contextlib.suppress(Exception):
            self._agent.releasedDlistH(cells)

    # ---- requests --------------------------------------------------------------------------------------------------

    def request(self, target: Any, to_cells: Indices, source: Any, from_cells: Indices) -> Any:
        """Makes a read, to be posted over the worker of the calling thread. Raises NIXL's errors."""
        to_cells, from_cells = to_cells.astype(np.int32, copy=False), from_cells.astype(np.int32, copy=False)
        return self._agent.makeXferReq(
            self._nixl.NIXL_READ, target, to_cells, source, from_cells, b"", [self._backend], False
        )

    def post(self, request: Any) -> bool:
        """Starts a read.

        Returns whether all of its bytes are already here. If it raises a NIXL error, the read did not start.

        Blocks for the length of a copy if the transport copies in the post.
        """
        return self._is_over_by(self._agent.postXferReq(request, b""))

    def post_beside(
        self, noted: tuple[list[Any], list[Handed]], target: Any, to_cells: Indices, source: Any, from_cells: Indices
    ) -> None:
        """Makes and posts a read on the second hand, while the caller does something else.

        noted: two lists. The first gets the request before it is posted, and nothing after the job is over. The second
        gets the
        job before it begins.
        """
        requests, jobs = noted

        def posted() -> None:
            request = self.request(target, to_cells, source, from_cells)
            requests.append(request)  # the caller adds its own requests to the list
            self.post(request)

        with self.lock:
            if self._second_hand is None:
                self._second_hand = SecondHand("relive-nixl")
            self._second_hand.hand(posted, jobs)

    def end_second_hand(self) -> None:
        """Ends the second hand after its queued jobs. No thread hands over jobs meanwhile, so no lock is taken."""
        hand, self._second_hand = self._second_hand, None
        if hand is not None:
            hand.end()

    def is_done(self, request: Any) -> bool:
        """Whether all bytes of a request are here. Raises NIXL's errors."""
        return self._is_over_by(self._agent.getXferStatus(request))

    def _is_over_by(self, status: Any) -> bool:
        if status == self.done:
            return True
        if status == self.in_progress:
            return False
        raise RuntimeError(str(status))

    def release(self, request: Any) -> None:
        """Releases a request that is done."""
        with contextlib.suppress(Exception):
            self._agent.releaseXferReq(request)

    # ---- the quarantine --------------------------------------------------------------------------------------------

    def quarantine(self, requests: list[Any], beside: Sequence[Handed], end: Callable[[], None]) -> None:
        """Calls end() when no request is under way any more, including the requests that the second hand will add."""
        with self.lock:
            self._quarantine.append(_Leftover(requests, beside, end))

    def sweep(self) -> int:
        """Releases finished entries of the quarantine. Returns the number of entries that remain."""
        with self.lock:
            kept = []
            for one in self._quarantine:
                if not all(handed.is_over for handed in one.beside):  # the second hand has one of its requests
                    kept.append(one)
                    continue
                one.requests[:] = [request for request in one.requests if not self._is_over(request)]
                if one.requests:
                    kept.append(one)
                else:
                    one.end()
            self._quarantine = kept
            return len(kept)

    def _is_over(self, request: Any) -> bool:
        try:
            if not self.is_done(request):
                return False
        except Exception:  # a failed request is over, too
            pass
        self.release(request)
        return True


class _Leftover(NamedTuple):
    """Requests that a reader gave up on, and the call to make when they are over."""

    requests: list[Any]
    beside: Sequence[Handed]
    end: Callable[[], None]


_agents: list[Agent] = []
_ended: dict[str, float] = {}  # by peer: the time when its connection ended, while it rests
_making = threading.Lock()  # protects the agent and its references; taken after an agent's own lock, never before


def shared_agent() -> Agent:
    """Takes a reference to the only agent of this process; let_go() releases it.

    A forked child gets its own agent. Raises PeerUnreadable if NIXL is missing.
    """
    with _making:
        if not _agents or _agents[-1].process != os.getpid():
            _agents.append(Agent(_bindings()))  # a parent's agent is kept, for its connections
        _agents[-1].num_users += 1
        return _agents[-1]


def _note_fork() -> None:
    global _making
    _making = threading.Lock()  # the copy may be taken


os.register_at_fork(after_in_child=_note_fork)
