"""What stands for NIXL's calls in tests, and an owner and a reader of a region over it, in one process."""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import relive
from relive.fleet import ShardOwner
from relive.fleet.onesided.nixl import NixlMemory, Offered, SharedRegion
from relive.fleet.onesided.nixl_agent import Agent
from relive.fleet.onesided.peer import PeerShard
from relive.fleet.onesided.peer_layout import PeerLayout
from relive.fleet.onesided.rows import OneSidedReader
from relive.service import Door
from relive.service.server.shard_session import layout_of

__all__ = ["FakeNixl", "Pair"]


class FakeNixl:
    """What fleet/onesided/nixl.py asks of NIXL: reads are copies; requests hang, fail and end when a test says so."""

    NIXL_THREAD_SYNC_RW, DRAM_SEG, NIXL_READ, NIXL_INIT_AGENT = "rw", "dram", "read", ""
    NIXL_SUCCESS, NIXL_IN_PROG = "success", "in progress"

    def __init__(self) -> None:
        self.hangs: Callable[[int], bool] = lambda request: False
        self.fails: Callable[[int], bool] = lambda request: False
        self.makes: Callable[[int], None] = lambda num_cells: None  # before a request is made
        self.refuses_memory: Callable[[int, int], bool] = lambda address, num_bytes: False
        self.registered: dict[int, int] = {}
        self.lists: dict[int, np.ndarray] = {}
        self.requests: dict[int, Any] = {}
        self.peers: set[str] = set()
        self.made_by: dict[int, str] = {}  # request: thread, cells
        self.num_cells: dict[int, int] = {}
        self.posted: set[int] = set()
        self.num_agents = 0
        self._numbers = itertools.count(1)

    class nixlAgentConfig:
        pass

    class nixlRegDList(list):  # noqa: B903 - NIXL's own name and arguments
        def __init__(self, kind: Any, rows: list[Any]) -> None:
            super().__init__(rows)

    def nixlAgent(self, name: str, config: Any) -> FakeNixl:
        assert config.useProgThread and config.pthrDelay > 0, "first reads hang without; a core spins with 0"
        self.num_agents += 1
        self.name = name
        return self

    def createBackend(self, name: str, options: Any) -> int:
        return 1

    def _number(self) -> int:
        return next(self._numbers)

    def registerMem(self, rows: Any, backends: Any) -> None:
        for address, num_bytes, _, _ in rows:
            if self.refuses_memory(address, num_bytes):
                raise RuntimeError("NIXL_ERR_BACKEND")
            self.registered[address] = num_bytes

    def deregisterMem(self, rows: Any, backends: Any) -> None:
        for address, *_ in rows:
            del self.registered[address]

    def getLocalMD(self) -> bytes:
        return b"metadata"

    def loadRemoteMD(self, metadata: bytes) -> bytes:
        if metadata != b"metadata":
            raise RuntimeError("NIXL_ERR_MISMATCH")
        self.peers.add("its owner")
        return b"its owner"

    def invalidateRemoteMD(self, name: str) -> None:
        self.peers.remove(name)

    def prepXferDlist(self, name: str, kind: Any, rows: np.ndarray, backends: Any) -> int:
        number = self._number()
        self.lists[number] = rows.astype(np.int64)
        return number

    def releasedDlistH(self, number: int) -> None:
        del self.lists[number]

    def _cells(self, number: int, cells: np.ndarray) -> list[tuple[int, int]]:
        rows = self.lists[number]
        run, place = np.divmod(cells, rows[0, 4])
        return list(zip((rows[run, 0] + place * rows[0, 3]).tolist(), rows[run, 1].tolist(), strict=True))

    def makeXferReq(self, op: Any, here: int, to: Any, there: int, source: Any, *more: Any) -> int:
        assert to.dtype == np.int32 == source.dtype
        self.makes(len(to))
        number = self._number()
        assert self.peers, "the lists of a peer whose connection ended are void"
        self.requests[number] = self._cells(here, to), self._cells(there, source)
        self.made_by[number], self.num_cells[number] = threading.current_thread().name, len(to)
        return number

    def postXferReq(self, number: int, message: bytes) -> str:
        assert number not in self.posted, "a request was posted twice"
        self.posted.add(number)
        if self.fails(number):
            raise RuntimeError("NIXL_ERR_REMOTE_DISCONNECT")
        return self.getXferStatus(number)

    def getXferStatus(self, number: int) -> str:
        if self.hangs(number):
            return self.NIXL_IN_PROG
        for (target, size), (source, _) in zip(*self.requests[number], strict=True):
            ctypes.memmove(target, source, size)
        return self.NIXL_SUCCESS

    def releaseXferReq(self, number: int) -> None:
        assert not self.hangs(number), "a request that is under way was released"
        del self.requests[number]


class Pair:
    """An owner's region and a reader of it, over one FakeNixl."""

    def __init__(self, name: str, num_values: int = 100) -> None:
        """num_values: of a large row, 4 bytes each."""
        self.fake = FakeNixl()
        self.agent = Agent(self.fake)
        storage = relive.SharedMemory(name)
        spec = relive.StepSpec(
            {"large": relive.ArraySpec((num_values,), "float32"), "action": relive.ArraySpec((), "int64")}
        )
        self.table = relive.Table(spec, 200, storage=storage, max_lanes=2)
        with self.table.writer() as writer:
            rows = np.arange(60)
            self.keys = np.asarray(writer.extend(large=np.broadcast_to(rows[:, None], (60, num_values)), action=rows))
        self.shared = SharedRegion(self.table.core, lambda: self.agent)
        self.reader, self.memory = self.open()

    def open(self) -> tuple[OneSidedReader, NixlMemory]:
        fields, metadata = self.shared.give()
        offered = Offered("grpc://x/y", fields["base"], fields["num_bytes"], "its owner", metadata)
        memory = NixlMemory(offered, self.agent)
        layout = PeerLayout.from_told(layout_of(self.table.core))
        return OneSidedReader(self.table.config, layout, memory), memory

    def read(self, timeout_s: float = 10.0) -> Any:
        return self.reader.gather(0, ["action", "large"], self.keys[::3], timeout_s)

    @contextmanager
    def served(self, config: relive.TableConfig, must: bool) -> Iterator[tuple[ShardOwner, PeerShard]]:
        """Another shard, whose owner serves it, and a handle that reads it by the same fake."""
        with ShardOwner(0, config) as owner:
            address = owner.serve(door=Door(offers=True))
            shared = SharedRegion(owner.table.core, lambda: self.agent)

            def give() -> Any:
                fields, metadata = shared.give()
                return fields | {"agent": "its owner"}, metadata

            owner._server.offer(address.rpartition("/")[2], "nixl", give)
            shard = PeerShard(address, 0, 10.0, must, lambda offered: NixlMemory(offered, self.agent))
            try:
                yield owner, shard
            finally:
                shard.close()
                shared.close()

    def close(self) -> None:
        self.agent.end_second_hand()
        self.fake.hangs = lambda request: False
        self.memory.close(self.reader.close)
        self.agent.sweep()
        self.shared.close()
        self.table.close()
