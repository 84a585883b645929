"""One-sided reads by NIXL: UCX within a host and over TCP, RDMA and EFA by the same calls.

An owner registers the mapping of its region once, and tells over the service where the region lies (SharedRegion,
requested by the name "nixl"). A reader makes lists of cells once, over frames and rows, and asks for cells by number
(NixlMemory). The owner's Python code takes no part. The progress thread of its agent must run, otherwise first reads
hang.

Protocol:

- Reader and owner both keep this process's agent (nixl_agent.py) while they live.
- A read is one request a list. All requests are posted before the first wait.
- If posts copy, a large request is halved, and the second hand makes the other half.
- A request that is not done when its reader gives up is quarantined in the agent.
- A disconnected peer is reported at once. Its lists are void, and new lists need new metadata. New lists are made when
  the service finds the shard alive again, never back to back.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple, final

import numpy as np

from relive import _core
from relive.errors import DeadlineExceeded, ServiceUnavailable
from relive.fleet.errors import PeerUnreadable
from relive.fleet.onesided.copy_thread import Handed
from relive.fleet.onesided.nixl_agent import Agent, is_installed, shared_agent, short
from relive.fleet.onesided.peer_layout import Area
from relive.fleet.onesided.transport import Move, Place

__all__ = ["NixlMemory", "Offered", "SharedRegion", "is_installed", "open_memory"]

_MOST_CELLS = 2**31 - 1
_HALVED_BYTES = 1 << 20  # from this size on, half of a copy takes longer than handing it to another thread
_HEAD_START_BYTES = 250_000  # bytes that the caller copies before the other thread begins
_SHORTEST_S, _LONGEST_S = 0.00002, 0.001  # between two checks of a request


# ---- the owner's side ----------------------------------------------------------------------------------------------


@final
class SharedRegion:
    """The mapping of an owner's region, offered as "nixl". The mapping is registered at the first request.

    Owns the registration, a pin of the mapping, and from the first request on a reference to the agent.
    """

    def __init__(self, core: _core.CoreTable, hold: Callable[[], Agent] = shared_agent) -> None:
        """hold: takes one more reference to the agent, and returns it."""
        self._core = core
        self._shared_agent = hold
        self._hold: _core.PinnedRegion | None = None
        self._agent: Agent | None = None
        self._region: Any = None
        self._lock = threading.Lock()
        self._fields: dict[str, Any] = {}

    def give(self) -> tuple[dict[str, Any], bytes]:
        """Where the region lies, and the metadata of this process's agent. Raises PeerUnreadable, SystemFailure."""
        with self._lock:
            if self._agent is None:
                geometry, hold = self._core.geometry, _core.PinnedRegion(self._core)
                num_bytes = int(geometry["region_bytes"])
                with ExitStack() as undo:
                    hold.__enter__()
                    undo.callback(hold.__exit__, None, None, None)
                    agent = self._shared_agent()
                    undo.callback(agent.let_go)
                    self._region = agent.register(hold.address, num_bytes)
                    undo.pop_all()
                self._hold, self._agent = hold, agent
                self._fields = {"base": hold.address, "num_bytes": num_bytes, "uuid": geometry["uuid"].hex()}
                self._fields["agent"] = agent.name
            return dict(self._fields), self._agent.metadata()

    def close(self) -> None:
        """Ends the registration.

        No process may read the region any more. Call it before the table closes, which waits for it.
        """
        with self._lock:
            if self._agent is not None and self._hold is not None:
                self._agent.unregister(self._region)
                self._agent.let_go()
                self._hold.__exit__(None, None, None)
                self._agent = self._hold = None


# ---- the reader's side ---------------------------------------------------------------------------------------------


class Offered(NamedTuple):
    """Where a peer's region lies in its process, and how to reach that process."""

    address: str  # of the shard, for messages
    base: int
    num_bytes: int
    agent: str  # its agent's name
    metadata: bytes


class _Cells(NamedTuple):
    """A list of cells in NIXL."""

    number: Any
    cell_bytes: int


@final
class NixlMemory:
    """A peer's region by NIXL, with the interface of relive.fleet.onesided.transport.Memory. One thread at a time.

    Owns its lists and registrations, the memory that was allowed, and a reference to the agent until close(). If
    requests
    are under way at close(), it keeps them until the requests are over.
    """

    def __init__(self, offered: Offered, agent: Agent) -> None:
        """agent: the caller took a reference for this object.

        If PeerUnreadable is raised, the caller keeps the reference.
        """
        self._offered = offered
        self._agent = agent
        self._lists: list[_Cells] = []
        self._regions: dict[int, tuple[Any, object]] = {}  # by number: registration, keeper of the memory
        self._numbers = itertools.count()
        self._pending: list[Any] = []  # requests; the second hand adds its own
        self._beside: list[Handed] = []
        self._copies = False  # the last large post returned with all bytes: the posting thread copies
        self._has_failed = False
        agent.sweep()
        try:
            agent.connect(offered.agent, offered.metadata)
        except Exception as problem:  # NIXL's
            raise PeerUnreadable(offered.address, f"NIXL cannot reach it ({short(problem)})") from None

    @property
    def progress(self) -> str:
        """Which component moves the bytes."""
        return self._agent.progress

    def source(self, area: Area) -> _Cells:
        """Makes a list of cells of the peer's region."""
        end = int(area.offsets(np.array([0, area.num_cells - 1])).max()) + area.cell_bytes
        if area.num_cells > _MOST_CELLS or end > self._offered.num_bytes:
            raise PeerUnreadable(self._offered.address, f"its {area.name} lie beyond what it registered")
        return self._listed(self._offered.agent, area, self._offered.base)

    def allow(self, address: int, num_bytes: int, keeper: object) -> int:
        """Registers memory. Raises SystemFailure."""
        number = next(self._numbers)
        self._regions[number] = self._agent.register(address, num_bytes), keeper
        return number

    def disallow(self, allowed: int, target: _Cells) -> None:
        """Unregisters memory."""
        if allowed in self._regions:  # closed memory has no registrations
            self._agent.release_cells(target.number)
            self._lists.remove(target)
            self._agent.unregister(self._regions.pop(allowed)[0])

    def target(self, place: Place) -> _Cells:
        """Makes a list of cells of memory in this process."""
        return self._listed("", place.area, place.base)

    def _listed(self, name: str, area: Area, base: int) -> _Cells:
        try:
            self._lists.append(_Cells(self._agent.cells(name, area, base), area.cell_bytes))
        except Exception as problem:  # NIXL's
            raise PeerUnreadable(self._offered.address, f"NIXL refuses its {area.name} ({short(problem)})") from None
        return self._lists[-1]

    def read(self, moves: Sequence[Move], timeout_s: float) -> None:
        """Posts all requests, then waits. Raises ServiceUnavailable if the peer is gone, and DeadlineExceeded."""
        started = time.monotonic()
        try:
            for move in moves:
                self._post(move)
            while self._beside:
                if not self._beside[-1].wait(max(timeout_s - (time.monotonic() - started), 0.0)):
                    raise DeadlineExceeded("bytes of a peer's memory", "", time.monotonic() - started)
                self._beside.pop()
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
            raise ServiceUnavailable(self._offered.address, waited_s, short(problem)) from None

    def _post(self, move: Move) -> None:
        """Posts one request.

        The request is noted before it starts, because its bytes may come even if this call is interrupted.
        """
        source, target, from_cells, to_cells = move
        is_large = len(to_cells) > 1 and len(to_cells) * target.cell_bytes >= _HALVED_BYTES
        if is_large and self._copies:
            own = (len(to_cells) + _HEAD_START_BYTES // target.cell_bytes + 1) // 2
            others = target.number, to_cells[own:], source.number, from_cells[own:]
            self._agent.post_beside((self._pending, self._beside), *others)
            to_cells, from_cells = to_cells[:own], from_cells[:own]
        request = self._agent.request(target.number, to_cells, source.number, from_cells)
        self._pending.append(request)
        is_here = self._agent.post(request)
        if is_large:
            self._copies = is_here

    @property
    def num_pending(self) -> int:
        """Number of requests that were given up."""
        return len(self._pending)

    def close(self, end: Callable[[], None] = lambda: None) -> None:
        """Ends the memory, then calls end(): at once, or as soon as no byte can come any more (Agent.sweep)."""
        pending, self._pending = self._pending, []
        beside, self._beside = self._beside, []

        def ended() -> None:
            for one in self._lists:
                self._agent.release_cells(one.number)
            self._agent.disconnect(self._offered.agent, self._has_failed)
            for region, _ in self._regions.values():
                self._agent.unregister(region)
            self._lists, self._regions = [], {}
            self._agent.let_go()
            end()

        if pending or beside:
            self._agent.quarantine(pending, beside, ended)
            self._agent.sweep()
        else:
            ended()


def open_memory(offered: Offered) -> NixlMemory:
    """By this process's agent. Waits, under a second, where a connection ended just now. Raises PeerUnreadable."""
    agent = shared_agent()
    try:
        agent.sweep()  # first: a connection that it ends rests, too
        time.sleep(agent.rest_s(offered.agent))
        return NixlMemory(offered, agent)
    except BaseException:
        agent.let_go()
        raise
