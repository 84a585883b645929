"""A reader that is overtaken, given up or made anew: whoever draws meanwhile waits for none of it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from contract.tools import write_steps
from processes.shm import needs_shared_memory

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from processes.tools import stop_process

import relive
from fleet.fake_nixl import Pair
from fleet.tools import config_of, fill, needs_nixl
from relive import errors
from relive.fleet import ShardOwner, attach
from relive.fleet.onesided import nixl_agent
from relive.fleet.onesided.nixl import NixlMemory, Offered, SharedRegion, open_memory
from relive.fleet.onesided.peer import PeerShard
from relive.fleet.sharded_table import ShardedTable
from relive.service import Door

pytestmark = needs_shared_memory
PATIENCE_S = 10.0


def wait_until(is_so: Callable[[], bool]) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < ends
        time.sleep(0.02)


@contextlib.contextmanager
def peers(pair: Pair, owners: list[ShardOwner]) -> Iterator[list[PeerShard]]:
    """Shards of owners in this process, read by the fake."""
    with ExitStack() as stack:
        shards = []
        for owner in owners:
            address, region = owner.serve(door=Door(offers=True)), SharedRegion(owner.table.core, lambda: pair.agent)
            stack.callback(region.close)

            def give(region: SharedRegion = region) -> Any:
                fields, metadata = region.give()
                return fields | {"agent": "its owner"}, metadata

            owner._server.offer(address.rpartition("/")[2], "nixl", give)
            shards.append(PeerShard(address, 0, 10.0, True, lambda offered: NixlMemory(offered, pair.agent)))
            stack.callback(shards[-1].close)
        yield shards


@pytest.mark.parametrize("num_shards", [1, 2])
def test_a_writer_that_is_faster_than_reads_starves_no_draw(
    pair: Pair, shm_name: Any, monkeypatch: pytest.MonkeyPatch, num_shards: int
) -> None:
    """All that was drawn is gone whenever its rows are read: at last the owner sends them with their keys."""
    with ExitStack() as stack:
        owners = [
            stack.enter_context(ShardOwner(at, config_of(shm_name(), capacity=64 if at == 0 else 4096)))
            for at in range(num_shards)
        ]
        shards = stack.enter_context(peers(pair, owners))
        table = stack.enter_context(ShardedTable(shards))
        writer = stack.enter_context(owners[0].table.writer())
        written = 64
        write_steps(writer, 0, written)
        if num_shards == 2:
            fill(table, 1, 1000, 64)
        as_it_is = PeerShard._read

        def overtaken(shard: Any, *arguments: Any) -> Any:
            nonlocal written
            if shard is shards[0]:
                write_steps(writer, written, 2 * owners[0].table.capacity)
                written += 2 * owners[0].table.capacity
            return as_it_is(shard, *arguments)

        monkeypatch.setattr(PeerShard, "_read", overtaken)
        with table.batches(8, prefetch=2, timeout_s=3.0) as batches:
            for _ in range(3):
                batch = next(batches)
                assert batch.num_items == 8 and 0 in batch.item_keys >> 51  # not without the shard that is written to
                assert (batch["observation"][:, 0] == batch["reward"]).all()
        assert shards[0].path == "nixl"
        wait_until(lambda: not owners[0].table.stats().indexes["default"].in_flight)
        assert table.stats().indexes["default"].sampled == 24


def test_a_draw_without_columns_of_items_that_went_meanwhile(
    pair: Pair, shm_name: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        ShardOwner(0, config_of(shm_name(), capacity=64)) as owner,
        peers(pair, [owner]) as shards,
        ShardedTable(shards) as table,
        owner.table.writer() as writer,
    ):
        write_steps(writer, 0, 64)
        as_it_is, calls = PeerShard._read, 0

        def overtaken(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 1:
                write_steps(writer, 64, 2 * owner.table.capacity)
            return as_it_is(*arguments)

        monkeypatch.setattr(PeerShard, "_read", overtaken)
        batch = table.sample(8, columns=[])
        assert calls == 2 and batch.num_items == 8 and table.gather(batch.item_keys).present.all()


def test_memory_that_cannot_be_registered_for_a_batch_leaves_its_rows_to_the_owner(pair: Pair, shm_name: Any) -> None:
    """As where the process may lock no more memory (ulimit -l). The reader itself has registered its memory before."""
    spec = relive.StepSpec({"large": relive.ArraySpec((300,), "float32")})
    config = relive.TableConfig(spec, 200, storage=relive.SharedMemory(shm_name()))
    with ShardOwner(0, config) as owner, peers(pair, [owner]) as (shard,), ShardedTable([shard]) as table:
        with owner.table.writer() as writer:
            writer.extend(large=np.broadcast_to(np.arange(50)[:, None], (50, 300)), truncated=True)
        refused: list[int] = []
        pair.fake.refuses_memory = lambda address, num_bytes: not refused.append(num_bytes)
        for _ in range(3):
            assert table.sample(8, columns=["large"])["large"].shape == (8, 300)
        pair.fake.refuses_memory = lambda address, num_bytes: False
        assert refused and shard.path == "service" and "registering" in shard.progress


def test_a_shard_that_comes_back_as_its_handle_closes_gets_no_reader(pair: Pair, shm_name: Any) -> None:
    """Its watch may be on the way to make one: nobody would end that, nor let go of the agent."""
    with ShardOwner(0, config_of(shm_name())) as owner, peers(pair, [owner]) as (shard,):
        made: list[float] = []
        shard._make_reader = made.append  # type: ignore[method-assign]
        with shard._reading:
            shard._retire(errors.ServiceUnavailable(shard.address, 0.0, "a test"))
        shard.is_back()
        assert len(made) == 1
        shard.close()
        shard.is_back()
        assert len(made) == 1


def test_a_connection_that_a_sweep_ends_rests_before_it_is_made_anew(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.read()
    monkeypatch.setattr(nixl_agent, "_agents", [pair.agent])
    monkeypatch.setattr(nixl_agent, "_ended", {})
    pair.fake.hangs = lambda request: True
    with pytest.raises(errors.DeadlineExceeded):
        pair.read(0.05)
    pair.agent.num_users += 5  # more than this test lets go of
    pair.memory.close(pair.reader.close)  # to the quarantine
    pair.fake.hangs = lambda request: False  # its bytes come
    fields, metadata = pair.shared.give()
    started = time.monotonic()
    pair.memory = open_memory(Offered("grpc://x/y", fields["base"], fields["num_bytes"], "its owner", metadata))
    assert time.monotonic() - started > 0.5


@needs_nixl
def test_a_reader_that_is_made_anew_of_a_stopped_owner_holds_nobody_up(
    start: Any, shm_name: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped between its keys and its rows, where a reader is due: the other shard's owner answers all the same."""
    near, far = start(), start()
    addresses = [near.own(0, config_of(shm_name())), far.own(1, config_of(shm_name()))]
    with attach(addresses, path="nixl") as table:
        fill(table, 0, 0, 30)
        fill(table, 1, 30, 10)
        shard = table._fleet.shards[0]
        with shard._reading:
            shard._retire(errors.ServiceUnavailable(shard.address, 0.0, "a test"))
        shard._not_before = 0.0
        as_it_is = shard.rows

        def rows(*arguments: Any, **named: Any) -> Any:
            stop_process(near.process.pid)
            return as_it_is(*arguments, **named)

        monkeypatch.setattr(shard, "rows", rows)
        started = time.monotonic()
        try:
            batch = table.sample(16, timeout_s=10.0)
            took_s = time.monotonic() - started
        finally:
            os.kill(near.process.pid, signal.SIGCONT)
        assert (batch.item_keys >> 51 == 1).all() and took_s < 4.5


@needs_nixl
def test_a_shard_that_answers_again_is_drawn_from_while_its_reader_is_made(
    start: Any, shm_name: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    owners = start()
    with attach([owners.own(0, config_of(shm_name()))], path="nixl") as table:
        fill(table, 0, 0, 30)
        table.sample(4)
        shard = table._fleet.shards[0]
        as_it_is, begun, ends = PeerShard._make_reader, threading.Event(), threading.Event()

        def slow(*arguments: Any) -> None:
            begun.set()
            ends.wait(2 * PATIENCE_S)
            as_it_is(*arguments)

        monkeypatch.setattr(PeerShard, "_make_reader", slow)
        stop_process(owners.process.pid)
        try:
            wait_until(lambda: shard.ask_root(0, 5.0)().is_dead)
            os.kill(owners.process.pid, signal.SIGCONT)
            assert begun.wait(PATIENCE_S)
            with table.batches(8, timeout_s=PATIENCE_S) as batches:
                assert next(batches).num_items == 8
            assert shard.path == "service" and not ends.is_set()
            ends.set()
            wait_until(lambda: shard.path == "nixl")
            assert table.sample(8).num_items == 8
        finally:
            ends.set()
            os.kill(owners.process.pid, signal.SIGCONT)
