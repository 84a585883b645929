"""NIXL: requests that do not end, memory that cannot be registered, owners killed in mid-read; and the real one."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from contract.tools import plain_spec
from processes.shm import needs_shared_memory

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

import relive
from fleet.owning import Owners
from fleet.racing import Racing, race
from fleet.test_remote import at, settled, states, wait_for
from fleet.tools import TRANSPORTS, config_of, fill, needs_nixl
from relive import errors
from relive.fleet import PeerUnreadable, ShardOwner, attach, nixl
from relive.fleet.nixl import Agent, NixlMemory, Offered, SharedRegion
from relive.fleet.one_sided import OneSidedReader
from relive.fleet.peer import PeerShard
from relive.fleet.peer_layout import PeerLayout
from relive.service.shard_session import layout_of

pytestmark = needs_shared_memory


# ---- NIXL's own calls, in this process -----------------------------------------------------------------------------


class FakeNixl:
    """What relive.fleet.nixl asks of NIXL: reads are copies; requests hang, fail and end when a test says so."""

    NIXL_THREAD_SYNC_NONE, DRAM_SEG, NIXL_READ, NIXL_INIT_AGENT = "none", "dram", "read", ""
    NIXL_SUCCESS, NIXL_IN_PROG = "success", "in progress"

    def __init__(self) -> None:
        self.hangs: Callable[[int], bool] = lambda request: False
        self.fails: Callable[[int], bool] = lambda request: False
        self.refuses_memory: Callable[[int, int], bool] = lambda address, num_bytes: False
        self.registered: dict[int, int] = {}
        self.lists: dict[int, np.ndarray] = {}
        self.requests: dict[int, Any] = {}
        self.peers: set[str] = set()
        self.num_agents = self._last = 0

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
        self._last += 1
        return self._last

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
        self.peers.add(self.name)
        return self.name.encode()

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
        number = self._number()
        assert self.peers, "the lists of a peer whose connection ended are void"
        self.requests[number] = self._cells(here, to), self._cells(there, source)
        return number

    def postXferReq(self, number: int, message: bytes) -> str:
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

    def __init__(self, name: str) -> None:
        self.fake = FakeNixl()
        self.agent = Agent(self.fake)
        storage = relive.SharedMemory(name)
        spec = relive.StepSpec({"large": relive.ArraySpec((100,), "float32"), "action": relive.ArraySpec((), "int64")})
        self.table = relive.Table(spec, 200, storage=storage, max_lanes=2)
        with self.table.writer() as writer:
            rows = np.arange(60)
            self.keys = np.asarray(writer.extend(large=np.broadcast_to(rows[:, None], (60, 100)), action=rows))
        self.shared = SharedRegion(self.table.core, lambda: self.agent)
        self.reader, self.memory = self.open()

    def open(self) -> tuple[OneSidedReader, NixlMemory]:
        fields, metadata = self.shared.give()
        offered = Offered("grpc://x/y", fields["base"], fields["num_bytes"], fields["agent"], metadata)
        memory = NixlMemory(offered, self.agent)
        layout = PeerLayout.from_told(layout_of(self.table.core))
        return OneSidedReader(self.table.config, layout, memory), memory

    def read(self, timeout_s: float = 10.0) -> Any:
        return self.reader.gather(0, ["action", "large"], self.keys[::3], timeout_s)

    def close(self) -> None:
        self.fake.hangs = lambda request: False
        self.memory.close(self.reader.close)
        self.agent.sweep()
        self.shared.close()
        self.table.close()


@pytest.fixture
def pair(shm_name: Any) -> Iterator[Pair]:
    one = Pair(shm_name())
    yield one
    one.close()
    assert not one.fake.registered and not one.fake.lists and not one.fake.requests and not one.fake.peers


def test_reads_through_nixls_calls(pair: Pair) -> None:
    for _ in range(3):
        got = pair.read()
        assert got.present.all() and got.arrays[0].tolist() == list(range(0, 60, 3))
        assert (got.arrays[1] == got.arrays[0][:, None]).all()
    assert not pair.fake.requests and pair.fake.num_agents == 1


def test_a_request_that_does_not_end_is_quarantined_with_its_memory(pair: Pair) -> None:
    """A byte that comes late finds the memory still there; only when it has come is that freed."""
    pair.read()
    hung: set[int] = set()

    def hangs(request: int) -> bool:
        if not hung:
            hung.add(request)
        return request in hung

    pair.fake.hangs = hangs
    with pytest.raises(errors.DeadlineExceeded):
        pair.read(0.05)
    assert pair.reader.is_spoiled and pair.memory.num_pending == 1
    ended: list[bool] = []
    before = dict(pair.fake.registered)

    def end() -> None:
        ended.append(True)
        pair_reader.close()

    pair_reader = pair.reader
    pair.memory.close(end)
    gc.collect()
    assert pair.agent.sweep() == 1 and not ended and pair.fake.registered == before and pair_reader.mirror.base
    pair.reader, pair.memory = pair.open()  # beside it
    assert pair.read().present.all() and not ended
    pair.fake.hangs = lambda request: False
    assert pair.agent.sweep() == 0 and ended == [True] and not pair_reader.mirror.base
    assert pair.read().present.all()


def test_a_failed_request_of_several_leaves_none_behind(pair: Pair) -> None:
    pair.read()
    seen: list[int] = []

    def fails(request: int) -> bool:
        seen.append(request)
        return len(seen) == 3  # of the directory: some are posted already

    pair.fake.fails = fails
    with pytest.raises(errors.ServiceUnavailable, match="NIXL_ERR_REMOTE_DISCONNECT"):
        pair.read()
    pair.fake.fails = lambda request: False
    pair.memory.close(pair.reader.close)
    assert not pair.fake.requests and not pair.fake.peers
    with pytest.raises(PeerUnreadable, match="just now"):
        pair.open()  # never back to back
    pair.agent._let_go.clear()  # a second later
    pair.reader, pair.memory = pair.open()
    assert pair.read().present.all()


def test_memory_that_cannot_be_registered(pair: Pair, shm_name: Any) -> None:
    pair.fake.refuses_memory = lambda address, num_bytes: True
    with pytest.raises(errors.SystemFailure, match="registering"):
        pair.open()
    other = SharedRegion(pair.table.core, lambda: pair.agent)
    with pytest.raises(errors.SystemFailure, match="NIXL_ERR_BACKEND"):
        other.give()
    pair.fake.refuses_memory = lambda address, num_bytes: False
    other.close()
    pair.fake.peers.clear()
    pair.fake.lists = {number: rows for number, rows in pair.fake.lists.items() if number in pair.memory._lists}


def test_what_a_peer_says_of_its_memory_is_not_believed(pair: Pair) -> None:
    fields, metadata = pair.shared.give()
    small = NixlMemory(Offered("grpc://x/y", fields["base"], 1 << 12, fields["agent"], metadata), pair.agent)
    with pytest.raises(PeerUnreadable, match="beyond what it registered"):
        OneSidedReader(pair.table.config, PeerLayout.from_told(layout_of(pair.table.core)), small)
    small.close()
    with pytest.raises(PeerUnreadable, match="NIXL_ERR_MISMATCH"):
        NixlMemory(Offered("grpc://x/y", 1, 1, fields["agent"], b"other"), pair.agent)
    with pytest.raises(PeerUnreadable, match="another agent's"):
        NixlMemory(Offered("grpc://x/y", 1, 1, "someone", metadata), pair.agent)


def test_arrays_that_are_let_go_are_not_kept_for_ever(pair: Pair) -> None:
    held = [pair.read() for _ in range(20)]
    most = len(pair.fake.registered)
    assert all((one.arrays[1] == one.arrays[0][:, None]).all() for one in held)
    held.clear()
    gc.collect()
    pair.read()
    assert len(pair.fake.registered) <= most - 14


def test_where_nixl_is_not_installed(shm_name: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nixl, "_MODULES", ("no_nixl_of_this_name",))
    monkeypatch.setattr(nixl, "_agents", [])
    assert not nixl.is_installed()
    with ShardOwner(0, config_of(shm_name())) as owner:
        address = owner.serve("grpc://127.0.0.1:0")
        with pytest.raises(PeerUnreadable, match="does not offer its memory"):
            attach([address], path="nixl")
        shard = PeerShard(address, 0, 10.0, must=False)
        try:
            assert shard.path == "service" and "NIXL is not installed" in shard.progress
        finally:
            shard.close()
    with pytest.raises(PeerUnreadable, match="pip install --no-deps nixl-cu12"):
        nixl.agent_of_process()


# ---- the real one --------------------------------------------------------------------------------------------------


@pytest.fixture
def start() -> Iterator[Callable[..., Owners]]:
    made: list[Owners] = []

    def one() -> Owners:
        made.append(Owners(**TRANSPORTS))
        return made[-1]

    yield one
    for owners in made:
        if owners.process.is_alive():
            os.kill(owners.process.pid or 0, signal.SIGCONT)
        owners.kill()


def paths(table: Any) -> list[str]:
    return [one.path for one in table.stats().shards]


@needs_nixl
def test_the_owners_python_takes_no_part_in_reads(start: Any, shm_name: Any) -> None:
    owners = start()
    address = owners.own(0, config_of(shm_name()))
    with attach([address], path="nixl") as table:
        keys = fill(table, 0, 0, 300)
        assert table.gather(keys)["reward"].tolist() == list(range(300))
        assert paths(table) == ["nixl"] and "UCX" in table.stats().shards[0].progress
        os.kill(owners.process.pid, signal.SIGSTOP)  # memory within a host needs not even its progress thread
        shard = table._fleet.shards[0]
        read = shard._read(0, ["reward"], keys, 10.0)
        assert read is not None and read.arrays[0].tolist() == list(range(300))
        os.kill(owners.process.pid, signal.SIGCONT)


@needs_nixl
def test_one_table_of_all_three_paths(start: Any, shm_name: Any) -> None:
    names, owners = [shm_name() for _ in range(2)], start()
    far = owners.own(1, config_of(names[1]))
    with ShardOwner(0, config_of(names[0])), attach([names[0], far], path="nixl") as table:
        keys = np.concatenate([fill(table, 0, 0, 30), fill(table, 1, 30, 10)])
        assert paths(table) == ["mapped", "nixl"]
        batch = table.sample(400)
        assert np.bincount(batch.item_keys >> 51).tolist() == [300, 100] and np.allclose(batch.probabilities, 1 / 40)
        order = np.argsort(keys)
        expected = np.arange(40)[order[np.searchsorted(keys[order], batch.item_keys)]]
        assert batch["reward"].tolist() == expected.tolist()
        out = {"reward": np.empty(40, np.float32)}
        table.gather(keys, columns=["reward"], out=out)
        assert out["reward"].tolist() == list(range(40))
        with table.batches(8, prefetch=3) as batches:
            assert next(batches).num_items == 8
        settled(owners, far)
        table.check()


@needs_nixl
def test_an_owner_killed_in_mid_read_is_left_out_and_read_again(start: Any, shm_name: Any) -> None:
    configs, near, far = [config_of(shm_name()), config_of(shm_name())], start(), start()
    addresses = [near.own(0, configs[0]), far.own(1, configs[1])]
    with attach(addresses, path="nixl") as table:
        keys = np.concatenate([fill(table, 0, 0, 200), fill(table, 1, 200, 200)])
        killer = threading.Timer(0.3, far.kill)
        killer.start()
        ends, slowest = time.monotonic() + 1.0, 0.0
        while time.monotonic() < ends:
            started = time.monotonic()
            assert table.sample(64, timeout_s=10.0).num_items == 64
            slowest = max(slowest, time.monotonic() - started)
        killer.join()
        assert slowest < 2.0 and states(table) == ["live", "dead"]
        assert table.gather(keys).present.tolist() == [True] * 200 + [False] * 200

        again = start()
        assert again.own(1, configs[1], at(addresses[1])) == addresses[1]
        wait_for(table, ["live", "live"])
        ends = time.monotonic() + 30.0
        while paths(table) != ["nixl", "nixl"]:  # new metadata, new lists
            assert time.monotonic() < ends
            table.sample(8)
            time.sleep(0.1)
        assert table.gather(keys)["reward"].tolist() == list(range(400))


@needs_nixl
def test_what_goes_by_the_owner_all_the_same(start: Any, shm_name: Any) -> None:
    indexes = {"plain": relive.Index(), "twice": relive.Index(max_times_sampled=2)}
    owners = start()
    address = owners.own(0, config_of(shm_name(), indexes))
    with attach([address], path="nixl") as table:
        fill(table, 0, 0, 8)
        drawn = [table.sample(8, index="twice", timeout_s=5.0).item_keys for _ in range(2)]
        assert np.unique(np.concatenate(drawn), return_counts=True)[1].tolist() == [2] * 8
        assert table.sample(8, index="plain").num_items == 8 and paths(table) == ["nixl"]


@needs_nixl
def test_bad_peers(start: Any, shm_name: Any) -> None:
    owners = start()
    spec = relive.StepSpec(
        {"core": relive.ArraySpec((100,), "float32", kind="start"), "action": relive.ArraySpec((), "int64")}
    )
    config = relive.TableConfig(
        spec, 4096, relive.Index(relive.Sequences(4)), relive.SharedMemory(shm_name()), max_lanes=4
    )
    address = owners.own(0, config)
    with pytest.raises(PeerUnreadable, match="kind start"):
        attach([address], path="nixl")
    first, twin = owners.own(1, config_of(shm_name())), owners.own(1, config_of(shm_name()))
    with pytest.raises(errors.InvalidConfig, match="shard 1 twice"):
        attach([first, twin], path="nixl")
    assert plain_spec() == config_of(shm_name()).spec


@needs_nixl
def test_no_torn_row_under_full_write_load(start: Any, shm_name: Any) -> None:
    """A short race; `python -m fleet.racing` in tests/ runs for a million rows."""
    result = race(Racing(num_rows=20_000, batch=64), shm_name(), "nixl")
    assert result.num_rows >= 20_000 and result.num_torn == 0
    assert result.num_refused > 0, "the writer was never met: nothing was tried"
