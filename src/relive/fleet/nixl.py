"""One-sided reads by NIXL: UCX within a host and over TCP, RDMA and EFA by the same calls.

NIXL is no extra of relive, for its packages ask for torch, which it does not need here:

    pip install --no-deps nixl-cu12==1.5.1

An owner registers the mapping of its region once, and says over the service where it lies (SharedRegion, asked for by
name: "nixl"). A reader makes lists of cells once, over frames and rows, and asks for them by number (NixlMemory). The
owner's Python takes no part; its agent's progress thread must run, or first reads hang.

Protocol. One agent a process, for both roles, behind one lock: its calls are not thread-safe, and each is short. A read
is a request a list, all of them posted before one is waited for. A request that is not done when its reader gives up
is *quarantined*, with all memory that its bytes may come to, until it is: only then that memory is freed, and the lists
that it was made of. A peer that disconnected is told at once; its lists are void, and new ones need new metadata: they
are made when the shard is found alive again over the service, never back to back: what failed rests for a second.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import math
import os
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from relive import _core
from relive.errors import DeadlineExceeded, ServiceUnavailable, SystemFailure
from relive.fleet.errors import PeerUnreadable
from relive.fleet.peer_layout import Area, Indices
from relive.fleet.reading import Move, Place

__all__ = ["COMMAND", "NixlMemory", "Offered", "SharedRegion", "agent_of_process", "is_installed"]

COMMAND = "pip install --no-deps nixl-cu12==1.5.1"
_MODULES = ("nixl_cu12", "nixl_cu13")
_BACKEND = "UCX"
_PAUSE_US = 1  # of the progress thread: 0 would have it spin on a core of its own
_MOST_CELLS = 2**31 - 1
_REST_S = 1.0  # of a connection that ended, before it is made anew
_SHORTEST_S, _LONGEST_S = 0.00002, 0.001  # between two looks at a request


# ---- the agent of this process -------------------------------------------------------------------------------------


def is_installed() -> bool:
    """Whether NIXL can be imported here."""
    return _found() is not None


def _found() -> str | None:
    finder = importlib.import_module("importlib.util")
    return next((name for name in _MODULES if finder.find_spec(name) is not None), None)


def _bindings() -> Any:
    """NIXL's own calls, quiet: it says on the terminal what it does, unless the user said how loud it shall be."""
    name = _found()
    if name is None:
        raise PeerUnreadable("this process", f"NIXL is not installed ({COMMAND})")
    os.environ.setdefault("NIXL_LOG_LEVEL", "FATAL")
    try:
        return importlib.import_module(f"{name}._bindings")
    except (ImportError, OSError) as problem:  # a library of its own that is not there
        raise PeerUnreadable("this process", f"NIXL cannot be loaded ({problem})") from None


@final
class Agent:
    """NIXL's agent, behind one lock. bindings: NIXL's, or what stands for them in a test."""

    def __init__(self, bindings: Any) -> None:
        self.lock = threading.RLock()
        self._nixl = bindings
        self.process = os.getpid()
        self._quarantine: list[_Leftover] = []
        self._peers: dict[str, int] = {}  # how many use each: a connection ends with the last of them
        self._let_go: dict[str, float] = {}  # when
        try:
            config = bindings.nixlAgentConfig()
            config.useProgThread = True
            config.useListenThread = False
            config.pthrDelay = _PAUSE_US
            config.syncMode = bindings.NIXL_THREAD_SYNC_NONE
            self.name = f"relive-{uuid.uuid4().hex}"
            self._agent = bindings.nixlAgent(self.name, config)
            self._backend = self._agent.createBackend(_BACKEND, {})
        except Exception as problem:  # NIXL's errors have no class of their own in all of its versions
            raise PeerUnreadable("this process", f"NIXL has no {_BACKEND} here ({_short(problem)})") from None
        self.done, self.in_progress = bindings.NIXL_SUCCESS, bindings.NIXL_IN_PROG

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
            raise SystemFailure(f"registering {num_bytes} bytes of memory with NIXL ({_short(problem)})") from None

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
            return max(0.0, _REST_S - (time.monotonic() - self._let_go.get(peer, -math.inf)))

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
                self._let_go = {name: at for name, at in self._let_go.items() if time.monotonic() - at < _REST_S}
                if has_failed:
                    self._let_go[peer] = time.monotonic()
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
        """A read that is to be posted. Raises what NIXL raises."""
        to_cells, from_cells = to_cells.astype(np.int32), from_cells.astype(np.int32)
        with self.lock:
            return self._agent.makeXferReq(
                self._nixl.NIXL_READ, target, to_cells, source, from_cells, b"", [self._backend], False
            )

    def post(self, request: Any) -> None:
        """It is under way from now on. Raises what NIXL raises: then it is not."""
        with self.lock:
            status = self._agent.postXferReq(request, b"")
        if status not in (self.done, self.in_progress):
            raise RuntimeError(str(status))

    def is_done(self, request: Any) -> bool:
        """Whether all of its bytes are here. Raises what NIXL raises."""
        with self.lock:
            status = self._agent.getXferStatus(request)
        if status == self.done:
            return True
        if status == self.in_progress:
            return False
        raise RuntimeError(str(status))

    def release(self, request: Any) -> None:
        """It is done."""
        with self.lock:
            self._release(request)

    def _release(self, request: Any) -> None:
        with contextlib.suppress(Exception):
            self._agent.releaseXferReq(request)

    # ---- the quarantine --------------------------------------------------------------------------------------------

    def quarantine(self, requests: Sequence[Any], end: Callable[[], None]) -> None:
        """Calls end() when none of the requests is under way any more."""
        with self.lock:
            self._quarantine.append(_Leftover(list(requests), end))

    def sweep(self) -> int:
        """Lets out of the quarantine what is done; how many are left there."""
        with self.lock:
            kept = []
            for one in self._quarantine:
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
        self._release(request)
        return True


class _Leftover(NamedTuple):
    """Requests that somebody gave up on, and what is to be done when they are over."""

    requests: list[Any]
    end: Callable[[], None]


_agents: list[Agent] = []
_making = threading.Lock()


def agent_of_process() -> Agent:
    """The only one; a forked child gets its own. Raises PeerUnreadable where there is no NIXL."""
    with _making:
        if not _agents or _agents[-1].process != os.getpid():
            _agents.append(Agent(_bindings()))  # that of a parent is kept: ending it would end the parent's connections
        return _agents[-1]


# ---- the owner's side ----------------------------------------------------------------------------------------------


@final
class SharedRegion:
    """What an owner offers as "nixl": its region's mapping, registered when somebody first asks for it.

    Owner of the registration and of a hold on the mapping.
    """

    def __init__(self, core: _core.CoreTable, make_agent: Callable[[], Agent] = agent_of_process) -> None:
        self._core = core
        self._make_agent = make_agent
        self._hold: _core.RegionHold | None = None
        self._agent: Agent | None = None
        self._region: Any = None
        self._lock = threading.Lock()
        self._fields: dict[str, Any] = {}

    def give(self) -> tuple[dict[str, Any], bytes]:
        """Where the region lies, and the metadata of this process's agent. Raises PeerUnreadable, SystemFailure."""
        with self._lock:
            if self._agent is None:
                agent, geometry = self._make_agent(), self._core.geometry
                num_bytes = int(geometry["region_bytes"])
                hold = _core.RegionHold(self._core)
                hold.__enter__()
                try:
                    self._region = agent.register(hold.address, num_bytes)
                except BaseException:
                    hold.__exit__(None, None, None)
                    raise
                self._hold, self._agent = hold, agent
                self._fields = {"base": hold.address, "num_bytes": num_bytes, "uuid": geometry["uuid"].hex()}
                self._fields["agent"] = agent.name
            return dict(self._fields), self._agent.metadata()

    def close(self) -> None:
        """Nobody reads it any more. Before the table is closed, which waits for the hold."""
        with self._lock:
            if self._agent is not None and self._hold is not None:
                self._agent.unregister(self._region)
                self._hold.__exit__(None, None, None)
                self._agent = self._hold = None


# ---- the reader's side ---------------------------------------------------------------------------------------------


class Offered(NamedTuple):
    """Where a peer's region lies in its process, and how to reach that."""

    address: str  # of the shard, for messages
    base: int
    num_bytes: int
    agent: str  # its agent's name
    metadata: bytes


@final
class NixlMemory:
    """A peer's region by NIXL, as relive.fleet.reading.Memory says. One thread at a time.

    Owner of its lists and registrations, and of the memory that was allowed until close(): where requests are under way
    then, until they are over.
    """

    def __init__(self, offered: Offered, agent: Agent) -> None:
        self._offered = offered
        self._agent = agent
        self._lists: list[Any] = []
        self._regions: dict[int, tuple[Any, object]] = {}  # by number: what was registered, and who keeps it
        self._numbers = itertools.count()
        self._pending: list[Any] = []
        self._has_failed = False
        agent.sweep()
        try:
            agent.connect(offered.agent, offered.metadata)
        except Exception as problem:  # NIXL's
            raise PeerUnreadable(offered.address, f"NIXL cannot reach it ({_short(problem)})") from None

    @property
    def progress(self) -> str:
        """Who moves the bytes."""
        return self._agent.progress

    def source(self, area: Area) -> Any:
        """Cells of the peer's region."""
        end = int(area.offsets(np.array([0, area.num_cells - 1])).max()) + area.cell_bytes
        if area.num_cells > _MOST_CELLS or end > self._offered.num_bytes:
            raise PeerUnreadable(self._offered.address, f"its {area.name} lie beyond what it registered")
        return self._listed(self._offered.agent, area, self._offered.base)

    def allow(self, address: int, num_bytes: int, keeper: object) -> int:
        """Registers it. Raises SystemFailure."""
        number = next(self._numbers)
        self._regions[number] = self._agent.register(address, num_bytes), keeper
        return number

    def disallow(self, allowed: int, target: Any) -> None:
        """Unregisters it."""
        if allowed in self._regions:  # a closed one has none
            self._agent.release_cells(target)
            self._lists.remove(target)
            self._agent.unregister(self._regions.pop(allowed)[0])

    def target(self, place: Place) -> Any:
        """Cells of memory here."""
        return self._listed("", place.area, place.base)

    def _listed(self, name: str, area: Area, base: int) -> Any:
        try:
            self._lists.append(self._agent.cells(name, area, base))
        except Exception as problem:  # NIXL's
            raise PeerUnreadable(self._offered.address, f"NIXL refuses its {area.name} ({_short(problem)})") from None
        return self._lists[-1]

    def read(self, moves: Sequence[Move], timeout_s: float) -> None:
        """Posts all, then waits. Raises ServiceUnavailable where the peer is gone, DeadlineExceeded."""
        started = time.monotonic()
        try:
            for source, target, from_cells, to_cells in moves:
                # Noted before it is under way: whatever cuts this short, its bytes may come.
                self._pending.append(self._agent.request(target, to_cells, source, from_cells))
                self._agent.post(self._pending[-1])
            pause_s = 0.0
            while self._pending:
                if self._agent.is_done(self._pending[-1]):
                    self._agent.release(self._pending.pop())
                    continue
                if time.monotonic() - started >= timeout_s:
                    raise DeadlineExceeded("bytes of a peer's memory", "", time.monotonic() - started)
                time.sleep(pause_s)
                pause_s = min(max(2 * pause_s, _SHORTEST_S), _LONGEST_S)
        except DeadlineExceeded:
            self._has_failed = True
            raise
        except Exception as problem:  # NIXL's: NIXL_ERR_REMOTE_DISCONNECT where the peer was killed
            self._has_failed = True
            waited_s = time.monotonic() - started
            raise ServiceUnavailable(self._offered.address, waited_s, _short(problem)) from None

    @property
    def num_pending(self) -> int:
        """Requests that were given up on."""
        return len(self._pending)

    def close(self, end: Callable[[], None] = lambda: None) -> None:
        """Ends it, then calls end(): at once, or when no byte can come any more (Agent.sweep)."""
        pending, self._pending = self._pending, []

        def ended() -> None:
            for one in self._lists:
                self._agent.release_cells(one)
            self._agent.disconnect(self._offered.agent, self._has_failed)
            for region, _ in self._regions.values():
                self._agent.unregister(region)
            self._lists, self._regions = [], {}
            end()

        if pending:
            self._agent.quarantine(pending, ended)
            self._agent.sweep()
        else:
            ended()


def _short(problem: BaseException) -> str:
    return (str(problem) or type(problem).__name__)[:200]
