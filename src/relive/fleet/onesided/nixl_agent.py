"""NIXL's agent of this process: memory that is registered, peers, lists of cells, requests, the quarantine.

NIXL is no extra of relive, for its packages ask for torch, which it does not need here:

    pip install --no-deps nixl-cu12==1.5.1

Protocol. One agent a process, for both roles. What changes peers, memory and lists is behind one lock of ours, and each
such call is short. Requests are made, posted and looked at without it: NIXL's own lock (SYNC_RW) lets several threads
do so, each request being one thread's at a time. Within a host a post is the copy: the caller's thread makes it. So
large reads are halved, and one half is made and posted by the agent's *second hand*, a thread of its own, over the
second of two UCX workers, each of which has a lock and a connection a peer. NIXL gives workers to threads in turns: a
process that reads by more than two threads may have one whose worker is the second hand's, and whose halves then wait
for each other, as if they were not made.

The agent is held by whoever uses it (hold_agent), and ends, with its threads, when the last of them lets it go: none of
NIXL's or UCX's threads runs in a process that reads nobody and is read by nobody. A request that is not done when its
reader gives up is *quarantined*, with all memory that its bytes may come to, until it is, and the second hand is done
with it: only then that memory is freed, and the lists that it was made of; the agent is held until then. A peer that
disconnected is told at once; its lists are void, and new ones need new metadata: what failed rests for a second, also
where another agent is made meanwhile.
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

__all__ = ["COMMAND", "Agent", "hold_agent", "is_installed", "short"]

COMMAND = "pip install --no-deps nixl-cu12==1.5.1"
_MODULES = ("nixl_cu12", "nixl_cu13")
_BACKEND = "UCX"
_OPTIONS = {"num_workers": "2"}  # the second for the second hand
_PAUSE_US = 100_000  # between looks of the progress thread that nothing woke; it spins on a lock while a copy holds it
_REST_S = 1.0  # of a connection that ended, before it is made anew


def short(problem: BaseException) -> str:
    """What NIXL said, for a sentence."""
    return (str(problem) or type(problem).__name__)[:200]


def is_installed() -> bool:
    """Whether NIXL can be imported here."""
    return _found() is not None


def _found() -> str | None:
    finder = importlib.import_module("importlib.util")
    return next((name for name in _MODULES if finder.find_spec(name) is not None), None)


def _bindings() -> Any:
    """NIXL's own calls. Quiet, and without UCX's keepalive, unless the user's environment says otherwise.

    NIXL tells on the terminal what it does. UCX asks its peers every 20 s whether they live, and may look at a
    connection that has ended for that (openucx/ucx issue 11217), which ends the process; shards are asked over the
    service, five times a second.
    """
    name = _found()
    if name is None:
        raise PeerUnreadable("this process", f"NIXL is not installed ({COMMAND})")
    os.environ.setdefault("NIXL_LOG_LEVEL", "FATAL")
    os.environ.setdefault("UCX_KEEPALIVE_INTERVAL", "inf")
    try:
        return importlib.import_module(f"{name}._bindings")
    except (ImportError, OSError) as problem:  # a library of its own that is not there
        raise PeerUnreadable("this process", f"NIXL cannot be loaded ({problem})") from None


@final
class Agent:
    """NIXL's agent. bindings: NIXL's, or what stands for them in a test.

    Owner of NIXL's and UCX's threads, and of its second hand's. The process's is made by hold_agent() and ended by
    let_go(); in tests whoever made it ends it.
    """

    def __init__(self, bindings: Any) -> None:
        self.lock = threading.RLock()
        self._nixl = bindings
        self.process = os.getpid()
        self._quarantine: list[_Leftover] = []
        self._peers: dict[str, int] = {}  # how many use each: a connection ends with the last of them
        self._second_hand: SecondHand | None = None
        self.num_holds = 0  # changed under _making
        try:
            config = bindings.nixlAgentConfig()
            config.useProgThread = True
            config.useListenThread = False
            config.pthrDelay = _PAUSE_US
            config.syncMode = bindings.NIXL_THREAD_SYNC_RW
            self.name = f"relive-{uuid.uuid4().hex}"
            self._agent = bindings.nixlAgent(self.name, config)
            self._backend = self._agent.createBackend(_BACKEND, dict(_OPTIONS))
        except Exception as problem:  # NIXL's errors have no class of their own in all of its versions
            raise PeerUnreadable("this process", f"NIXL has no {_BACKEND} here ({short(problem)})") from None
        self.done, self.in_progress = bindings.NIXL_SUCCESS, bindings.NIXL_IN_PROG

    def let_go(self) -> None:
        """One hold less. The last of them ends the agent of this process: its threads are joined, milliseconds."""
        with _making:
            self.num_holds -= 1
            if self.num_holds == 0 and self in _agents and self.process == os.getpid():
                _agents.remove(self)
                self.end_second_hand()
                self._agent = self._backend = None  # whoever deletes the last reference joins the threads

    @property
    def progress(self) -> str:
        """Who moves the bytes."""
        chosen = os.environ.get("UCX_TLS")
        return f"NIXL over UCX ({f'UCX_TLS={chosen}' if chosen else 'its choice of transports'}), progress threads"

    def register(self, address: int, num_bytes: int) -> Any:
        """Memory that may be read from, or come to. Raises SystemFailure."""
        try:
            with self.lock:
                region = self._nixl.nixlRegDList(self._nixl.DRAM_SEG, [(address, num_bytes, 0, "")])
                self._agent.registerMem(region, [self._backend])
            return region
        except Exception as problem:  # as above
            raise SystemFailure(f"registering {num_bytes} bytes of memory with NIXL ({short(problem)})") from None

    def unregister(self, region: Any) -> None:
        """No longer."""
        with self.lock, contextlib.suppress(Exception):  # it is gone either way
            self._agent.deregisterMem(region, [self._backend])

    def metadata(self) -> bytes:
        """What a peer needs to reach this agent, and all that it registered so far."""
        with self.lock:
            return bytes(self._agent.getLocalMD())

    def rest_s(self, peer: str) -> float:
        """How long a peer's connection, which ended, is to rest before it is made anew."""
        with self.lock:
            return max(0.0, _REST_S - (time.monotonic() - _ended.get(peer, -math.inf)))

    def connect(self, peer: str, metadata: bytes) -> None:
        """One more that uses a peer. Raises ConnectionError (its connection ended just now), and what NIXL raises."""
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
        """One less; with the last the connection ends, and lists of its cells are void. One that failed rests then."""
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
        """A list of cells: of the peer of this name, "": of this process."""
        rows = np.empty((len(area.starts), 5), np.uint64)
        rows[:, 0] = area.starts.astype(np.uint64) + np.uint64(base)
        rows[:, 1:] = area.cell_bytes, 0, area.stride, area.run_cells
        with self.lock:
            return self._agent.prepXferDlist(
                name or self._nixl.NIXL_INIT_AGENT, self._nixl.DRAM_SEG, rows, [self._backend]
            )

    def release_cells(self, cells: Any) -> None:
        """A list is not used any more."""
        with self.lock, contextlib.suppress(Exception):
            self._agent.releasedDlistH(cells)

    # ---- requests --------------------------------------------------------------------------------------------------

    def request(self, target: Any, to_cells: Indices, source: Any, from_cells: Indices) -> Any:
        """A read that is to be posted, over the worker of the calling thread. Raises what NIXL raises."""
        to_cells, from_cells = to_cells.astype(np.int32, copy=False), from_cells.astype(np.int32, copy=False)
        return self._agent.makeXferReq(
            self._nixl.NIXL_READ, target, to_cells, source, from_cells, b"", [self._backend], False
        )

    def post(self, request: Any) -> bool:
        """It is under way from now on; whether all of its bytes are here already. Raises what NIXL raises: it is not.

        Blocks for as long as a copy takes where the transport is one.
        """
        return self._is_over_by(self._agent.postXferReq(request, b""))

    def post_beside(
        self, noted: tuple[list[Any], list[Handed]], target: Any, to_cells: Indices, source: Any, from_cells: Indices
    ) -> None:
        """The same two by the second hand, while the caller does something else.

        noted: get the request before it is posted, and nothing once the job is over; and the job before it is begun.
        """
        requests, jobs = noted

        def posted() -> None:
            request = self.request(target, to_cells, source, from_cells)
            requests.append(request)  # beside the caller, who adds its own
            self.post(request)

        with self.lock:
            if self._second_hand is None:
                self._second_hand = SecondHand("relive-nixl")
            self._second_hand.hand(posted, jobs)

    def end_second_hand(self) -> None:
        """Ends that thread, when it is done with what it has. Nobody hands it anything meanwhile: no lock is taken."""
        hand, self._second_hand = self._second_hand, None
        if hand is not None:
            hand.end()

    def is_done(self, request: Any) -> bool:
        """Whether all of its bytes are here. Raises what NIXL raises."""
        return self._is_over_by(self._agent.getXferStatus(request))

    def _is_over_by(self, status: Any) -> bool:
        if status == self.done:
            return True
        if status == self.in_progress:
            return False
        raise RuntimeError(str(status))

    def release(self, request: Any) -> None:
        """It is done."""
        with contextlib.suppress(Exception):
            self._agent.releaseXferReq(request)

    # ---- the quarantine --------------------------------------------------------------------------------------------

    def quarantine(self, requests: list[Any], beside: Sequence[Handed], end: Callable[[], None]) -> None:
        """Calls end() when none of the requests is under way any more, nor any that the second hand will add."""
        with self.lock:
            self._quarantine.append(_Leftover(requests, beside, end))

    def sweep(self) -> int:
        """Lets out of the quarantine what is done; how many are left there."""
        with self.lock:
            kept = []
            for one in self._quarantine:
                if not all(handed.is_over for handed in one.beside):  # the second hand has one of them, or will
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
        except Exception:  # it failed, which ends it too
            pass
        self.release(request)
        return True


class _Leftover(NamedTuple):
    """Requests that somebody gave up on, and what is to be done when they are over."""

    requests: list[Any]
    beside: Sequence[Handed]
    end: Callable[[], None]


_agents: list[Agent] = []
_ended: dict[str, float] = {}  # by peer: when a connection to it ended, of those that rest
_making = threading.Lock()  # of an agent, and of how often it is held; taken behind an agent's own, never before it


def hold_agent() -> Agent:
    """The only one, held once more: let_go() ends that. A forked child gets its own. Raises PeerUnreadable: no NIXL."""
    with _making:
        if not _agents or _agents[-1].process != os.getpid():
            _agents.append(Agent(_bindings()))  # that of a parent is kept: ending it would end the parent's connections
        _agents[-1].num_holds += 1
        return _agents[-1]
