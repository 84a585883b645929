"""NIXL: requests that do not end, memory that cannot be registered, owners killed in mid-read; and the real one."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract.tools import plain_spec, write_steps
from processes.shm import needs_shared_memory

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")
from processes.tools import stop_process

import relive
from fleet.fake_nixl import Pair
from fleet.racing import LARGE, Racing, race
from fleet.test_remote import at, settled, states, wait_for
from fleet.tools import config_of, fill, needs_nixl
from relive import errors
from relive.fleet import PeerUnreadable, ShardOwner, attach
from relive.fleet.onesided import nixl_agent
from relive.fleet.onesided.nixl import NixlMemory, Offered, SharedRegion
from relive.fleet.onesided.peer import PeerShard
from relive.fleet.onesided.peer_layout import PeerLayout
from relive.fleet.onesided.rows import OneSidedReader
from relive.service import Door
from relive.service.server.shard_session import layout_of

pytestmark = needs_shared_memory


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
    nixl_agent._ended.clear()  # a second later
    pair.reader, pair.memory = pair.open()
    assert pair.read().present.all()


def test_a_connection_ends_with_its_last_reader(pair: Pair) -> None:
    other, memory = pair.open()
    memory.close(other.close)
    assert pair.fake.peers and pair.read().present.all()
    assert pair.agent.rest_s("its owner") == 0.0


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
    small = NixlMemory(Offered("grpc://x/y", fields["base"], 1 << 12, "its owner", metadata), pair.agent)
    with pytest.raises(PeerUnreadable, match="beyond what it registered"):
        OneSidedReader(pair.table.config, PeerLayout.from_told(layout_of(pair.table.core)), small)
    small.close()
    with pytest.raises(PeerUnreadable, match="NIXL_ERR_MISMATCH"):
        NixlMemory(Offered("grpc://x/y", 1, 1, "its owner", b"other"), pair.agent)
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


def test_what_cuts_a_read_short_leaves_its_memory_to_it(pair: Pair, shm_name: Any) -> None:
    """Ctrl-C in a read: the next one is by another reader, and the first one's bytes find their memory."""
    with pair.served(config_of(shm_name()), must=True) as (owner, shard):
        with owner.table.writer() as writer:
            keys = write_steps(writer, 0, 50)
        selection = shard.select(0, ["reward"])
        assert shard.gather(selection, keys, None)[0][0].tolist() == list(range(50)) and shard.path == "nixl"

        asked: list[int] = []

        def interrupted(request: int) -> bool:
            asked.append(request)
            if len(asked) == 1:
                raise KeyboardInterrupt
            return request == asked[0]

        pair.fake.hangs = interrupted
        with pytest.raises(KeyboardInterrupt):
            shard.gather(selection, keys, None)
        assert pair.agent.sweep() == 1  # its bytes have not come yet
        pair.fake.hangs = lambda request: False
        assert pair.agent.sweep() == 0
        assert shard.path == "service" and "cut short" in shard.progress
        assert shard.gather(selection, keys, None)[1].all()
        shard._not_before = 0.0  # a second later
        nixl_agent._ended.clear()
        assert shard.gather(selection, keys, None)[0][0].tolist() == list(range(50)) and shard.path == "nixl"


def test_where_nixl_is_not_installed(shm_name: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nixl_agent, "_MODULES", ("no_nixl_of_this_name",))
    monkeypatch.setattr(nixl_agent, "_agents", [])
    assert not nixl_agent.is_installed()
    with ShardOwner(0, config_of(shm_name())) as owner:
        address = owner.serve(door=Door(offers=True))
        with pytest.raises(PeerUnreadable, match="does not offer its memory"):
            attach([address], path="nixl")
        shard = PeerShard(address, 0, 10.0, must=False)
        try:
            assert shard.path == "service" and "NIXL is not installed" in shard.progress
        finally:
            shard.close()
    with pytest.raises(PeerUnreadable, match="pip install --no-deps nixl-cu12"):
        nixl_agent.shared_agent()


def test_the_command_installs_the_version_that_is_tested() -> None:
    pinned = Path(__file__).resolve().parents[2] / "constraints.txt"
    assert nixl_agent.COMMAND.rpartition(" ")[2] in pinned.read_text().splitlines()


# ---- the real one --------------------------------------------------------------------------------------------------


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
        stop_process(owners.process.pid)  # memory within a host needs not even its progress thread
        shard = table._fleet.shards[0]
        read = shard._read(0, ["reward"], keys)
        assert read is not None and read.arrays[0].tolist() == list(range(300))
        os.kill(owners.process.pid, signal.SIGCONT)


def name_of(thread: Path) -> str:
    """A thread's name; empty where it ended since it was listed: other tests' threads come and go meanwhile."""
    try:
        return thread.joinpath("comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def has_threads_of_ucx() -> bool:
    return any(name_of(thread) == "async" for thread in Path("/proc/self/task").iterdir())


def threads_of_ucx_end(within_s: float = 10.0) -> bool:
    """A joined thread may stand in /proc for a moment: the kernel wakes who joins before it takes the entry away."""
    end = time.monotonic() + within_s
    while has_threads_of_ucx():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


@needs_nixl
def test_the_agent_ends_with_the_last_who_uses_it(start: Any, shm_name: Any) -> None:
    owners = start()
    addresses = [owners.own(number, config_of(shm_name())) for number in range(2)]
    with attach([addresses[0]], path="nixl") as table:
        fill(table, 0, 0, 30)
        with attach([addresses[1]], path="nixl") as other:
            keys = fill(other, 1, 0, 30)
            assert [agent.num_users for agent in nixl_agent._agents] == [2]
        assert [agent.num_users for agent in nixl_agent._agents] == [1] and has_threads_of_ucx()
        assert table.sample(8).num_items == 8 and paths(table) == ["nixl"]
    assert not nixl_agent._agents and threads_of_ucx_end()
    assert os.environ["UCX_KEEPALIVE_INTERVAL"] == "inf"  # or the user's own: it looks at connections that ended
    with attach([addresses[1]], path="nixl") as other:  # another one, to which the owner's is no stranger
        assert other.gather(keys)["reward"].tolist() == list(range(30)) and paths(other) == ["nixl"]


@needs_nixl
def test_a_shard_of_this_process_is_mapped(shm_name: Any) -> None:
    with ShardOwner(0, config_of(shm_name())) as owner:
        address = owner.serve(door=Door(offers=True))
        with pytest.raises(PeerUnreadable, match="this process"):
            attach([address], path="nixl")


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
def test_a_shard_of_another_host_is_read_by_nixl_by_itself(
    start: Any, shm_name: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    owners = start()
    address = owners.own(0, config_of(shm_name()))
    monkeypatch.setattr("relive.fleet.opened._on_this_host", lambda *of: None)
    with attach([address]) as table:
        fill(table, 0, 0, 10)
        assert table.sample(4).num_items == 4 and paths(table) == ["nixl"]


@needs_nixl
def test_an_owner_that_closes_and_lives_on(start: Any, shm_name: Any) -> None:
    """Its mapping is gone, its process is not: reads fail or find no page of theirs, and nobody dies of it."""
    owners = start()
    address = owners.own(0, config_of(shm_name()))
    with attach([address], path="nixl") as table:
        keys = fill(table, 0, 0, 50)
        assert table.gather(keys).present.all()
        owners.ask("close", address)
        shard = table._fleet.shards[0]
        for _ in range(3):
            read = shard._read(0, ["reward"], keys)
            assert read is None or not read.present.any()
        assert not table.gather(keys).present.any() and states(table) == ["dead"]


@needs_nixl
def test_threads_that_draw_at_once(start: Any, shm_name: Any) -> None:
    owners = start()
    addresses = [owners.own(number, config_of(shm_name())) for number in range(2)]
    with attach(addresses, path="nixl") as table:
        keys = np.concatenate([fill(table, number, 100 * number, 100) for number in range(2)])
        rewards = dict(zip(keys.tolist(), range(200), strict=True))
        failures: list[BaseException] = []

        def draw() -> None:
            try:
                for _ in range(30):
                    batch = table.sample(32, timeout_s=30.0)
                    expected = [rewards[key] for key in batch.item_keys.tolist()]
                    assert batch["reward"].tolist() == expected
            except BaseException as problem:
                failures.append(problem)

        threads = [threading.Thread(target=draw) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120.0)
        assert not failures
        for address in addresses:
            settled(owners, address)


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


@pytest.mark.forms(1)
@needs_nixl
@pytest.mark.parametrize("racing", [Racing(num_rows=20_000, batch=64), LARGE], ids=["small", "halved"])
def test_no_torn_row_under_full_write_load(racing: Racing, shm_name: Any) -> None:
    """A short race; `python -m fleet.racing` in tests/ runs for a million rows."""
    result = race(racing, shm_name(), "nixl")
    assert result.num_rows >= racing.num_rows and result.num_torn == 0
    assert result.num_refused > 0, "the writer was never met: nothing was tried"
