"""Shards at addresses: owners in processes of their own over loopback, which are killed, stopped and replaced."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from contract.tools import plain_spec, prioritized, write_steps
from processes.shm import needs_shared_memory

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from processes.tools import eventually, stop_process
from service.cutting import cut_as_answered

import relive
from fleet.owning import Owners
from fleet.tools import config_of, fill
from relive import errors
from relive.core.request import DrawRequest
from relive.fleet import ShardOwner, attach
from relive.fleet.remote.shard import RemoteShard
from relive.fleet.remote.streams import Line
from relive.fleet.shards import Asked
from relive.service import connect, serve
from relive.service.client.exchange import StreamBroken
from relive.service.server.shard_session import ROOT
from relive.service.wire import framing

pytestmark = needs_shared_memory
PATIENCE_S = 30.0


def states(table: Any) -> list[str]:
    return [one.state for one in table.stats().shards]


def wait_for(table: Any, expected: list[str]) -> None:
    ends = time.monotonic() + PATIENCE_S
    while states(table) != expected:
        assert time.monotonic() < ends, states(table)
        time.sleep(0.05)


def settled(owners: Owners, address: str) -> None:
    """What became of draws is told without waiting for an answer."""
    ends = time.monotonic() + PATIENCE_S
    while owners.ask("in_flight", address) != 0:
        assert time.monotonic() < ends, "a draw stays in flight"
        time.sleep(0.02)


def at(address: str) -> str:
    """The server of a shard's address."""
    return address.rpartition("/")[0]


def test_a_root_is_56_bytes() -> None:
    assert ROOT.size == 56


def test_mapped_shards_and_shards_of_other_hosts_are_one_table(start: Any, shm_name: Any) -> None:
    names, owners = [shm_name(), shm_name()], start()
    address = owners.own(1, config_of(names[1]))
    with ShardOwner(0, config_of(names[0])), attach([names[0], address], path="service") as table:
        keys = np.concatenate([fill(table, 0, 0, 30), fill(table, 1, 30, 10)])
        assert [one.path for one in table.stats().shards] == ["mapped", "service"]
        batch = table.sample(400)
        assert np.bincount(batch.item_keys >> 51).tolist() == [300, 100] and np.allclose(batch.probabilities, 1 / 40)
        assert (batch["reward"] == table.gather(batch.item_keys)["reward"]).all()
        assert table.update_priorities(keys, np.full(40, 2.0)) == 40 and table.delete(keys[38:]) == 2
        assert table.gather(keys)["reward"][:38].tolist() == list(range(38)) and len(table) == 38
        table.set_policy_version(7)
        assert [one.policy_version for one in table.stats().shards] == [7, 7]
        with table.batches(8, prefetch=3) as batches:
            assert next(batches).num_items == 8 and next(batches).num_items == 8
        settled(owners, address)
        assert table.stats().indexes["default"].sampled == 416
        table.check()


def test_a_shard_of_this_host_is_mapped_unless_told_otherwise(start: Any, shm_name: Any) -> None:
    name, owners = shm_name(), start()
    address = owners.own(0, config_of(name))
    for path, expected in ((None, "mapped"), ("mapped", "mapped"), ("service", "service")):
        with attach([address], path=path) as table:
            assert [one.path for one in table.stats().shards] == [expected]
            fill(table, 0, 0, 3)
            assert table.sample(4).num_items == 4


def test_draws_go_on_without_a_killed_owner_and_it_comes_back(start: Any, shm_name: Any) -> None:
    configs, near, far = [config_of(shm_name()), config_of(shm_name())], start(), start()
    addresses = [near.own(0, configs[0]), far.own(1, configs[1])]
    with attach(addresses, path="service") as table:
        keys = np.concatenate([fill(table, 0, 0, 30), fill(table, 1, 30, 10)])
        table.sample(64)
        far.kill()
        started = time.monotonic()
        batch = table.sample(64, timeout_s=10.0)
        assert time.monotonic() - started < 2.0
        assert (batch.item_keys >> 51 == 0).all() and np.allclose(batch.probabilities, 1 / 30)
        stats = table.stats()
        assert [one.state for one in stats.shards] == ["live", "dead"] and stats.num_steps == 30 == len(table)
        assert stats.indexes["default"].inserted == 40, "a counter does not jump back"
        assert table.gather(keys).present.tolist() == [True] * 30 + [False] * 10
        assert table.update_priorities(keys, np.full(40, 2.0)) == 30 and table.delete(keys[35:]) == 0
        table.set_policy_version(5)
        with table.writer() as writer:
            assert writer.append(observation=[0, 0], action=0, reward=0.0, next_observation=[0, 0]) >> 51 == 0
        for call in (table.clear, lambda: table.set_priority_exponent(0.5)):
            with pytest.raises(errors.ServiceUnavailable):
                call()  # and nothing is half changed
        assert len(table) == 31

        again = start()
        assert again.own(1, configs[1], at(addresses[1])) == addresses[1] and again.ask("restored", addresses[1])
        wait_for(table, ["live", "live"])
        after = table.gather(keys)
        assert after["reward"].tolist() == list(range(40)) and after.present.all()
        assert 1 in (table.sample(256).item_keys >> 51)
        assert table.stats().policy_version == 5, "what it was not told while it was dead"
        table.check()


def with_an_owner_that_died(stack: ExitStack, shm_name: Any, count: int) -> tuple[Any, np.ndarray]:
    """A table over shards of this process, and its keys. The first owner has ended, and no call has found that yet."""
    owners = [stack.enter_context(ShardOwner(number, config_of(shm_name()))) for number in range(count)]
    table = stack.enter_context(attach([owner.serve() for owner in owners], path="service", timeout_s=PATIENCE_S))
    keys = np.concatenate([fill(table, number, 10 * number, 10) for number in range(count)])
    table.sample(8)
    table._fleet.shards[0].core.connection.retries_s = 0.1  # a shorter test: nothing listens at the address
    owners[0].close()
    assert table._fleet.shards[0].state == "live"
    return table, keys


def batched(table: Any, keys: np.ndarray) -> np.ndarray:
    with table.batches(8, columns=["action"]) as batches:
        return next(batches).item_keys


NEW_COLUMNS: dict[str, Callable[[Any, np.ndarray], np.ndarray]] = {
    "sample": lambda table, keys: table.sample(8, columns=["action"]).item_keys,
    "batches": batched,
    "gather": lambda table, keys: keys[table.gather(keys, columns=["action"]).present],
}


@pytest.mark.parametrize("call", NEW_COLUMNS)
def test_columns_that_no_call_has_named_are_those_of_a_shard_that_lives(shm_name: Any, call: str) -> None:
    with ExitStack() as stack:
        table, keys = with_an_owner_that_died(stack, shm_name, 2)
        found = NEW_COLUMNS[call](table, keys)
        assert len(found) and (found >> 51 == 1).all() and states(table) == ["dead", "live"]


def test_the_columns_of_a_shard_that_is_dead_are_known(shm_name: Any) -> None:
    with ExitStack() as stack:
        table, _ = with_an_owner_that_died(stack, shm_name, 1)
        gathered = table.gather(np.arange(4), columns=["action"])
        assert gathered["action"].tolist() == [0] * 4 and not gathered.present.any()
        assert states(table) == ["dead"]
        with pytest.raises(errors.UnknownColumn):
            table.gather(np.arange(4), columns=["none"])
        with pytest.raises(errors.DeadlineExceeded, match="a shard that answers"):
            table.sample(8, columns=["action"], timeout_s=0.0)


def test_the_repr_of_a_table_asks_no_owner_at_an_address(shm_name: Any) -> None:
    with ExitStack() as stack:
        table, _ = with_an_owner_that_died(stack, shm_name, 2)
        shard = table._fleet.shards[0]
        assert repr(table) == "ShardedTable(shards 0, 1, open, indexes default)" and shard.state == "live"
        assert len(table) == 10 and shard.state == "dead", "a call finds it"
        table.close()
        assert "closed" in repr(table)


def test_the_exponent_is_that_of_a_shard_that_lives(shm_name: Any) -> None:
    with ExitStack() as stack:
        table, _ = with_an_owner_that_died(stack, shm_name, 2)
        assert table.priority_exponent() == 1.0 and states(table) == ["dead", "live"]


@pytest.mark.parametrize("refuses", [1, 2])
def test_an_exponent_that_one_shard_refuses_changes_none_while_another_is_dead(shm_name: Any, refuses: int) -> None:
    with ExitStack() as stack:
        table, _ = with_an_owner_that_died(stack, shm_name, 3)
        table._fleet.shards[refuses].ask("set_priority_exponent", 0, 0.0).take()  # from 0, any other one is refused
        with pytest.raises(errors.InvalidConfig):
            table.set_priority_exponent(0.5)
        told = table._fleet.calls.of_all("priority_exponent", 0)
        assert told == [0.0 if number == refuses else 1.0 for number in (1, 2)]


def test_a_shard_comes_back_although_ctrl_c_met_the_start_of_its_search(
    start: Any, shm_name: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    owners, names = [start(), start()], [shm_name(), shm_name()]
    places = [one.own(number, config_of(name)) for number, (one, name) in enumerate(zip(owners, names, strict=True))]
    with attach(places, path="service") as table:
        keys = np.concatenate([fill(table, 0, 0, 50), fill(table, 1, 100, 50)])
        stop_process(owners[1].process.pid)

        def interrupted(thread: threading.Thread) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(threading.Thread, "start", interrupted)
            while table.gather(keys).present.all():
                pass
        os.kill(owners[1].process.pid, signal.SIGCONT)
        assert eventually(lambda: bool(table.gather(keys).present.all()), 60.0)


def test_a_stopped_owner_is_left_out_within_two_seconds(start: Any, shm_name: Any) -> None:
    near, far = start(), start()
    addresses = [near.own(0, config_of(shm_name())), far.own(1, config_of(shm_name()))]
    with attach(addresses, path="service") as table:
        fill(table, 0, 0, 30)
        fill(table, 1, 30, 10)
        stop_process(far.process.pid)
        started = time.monotonic()
        batch = table.sample(64, timeout_s=10.0)
        assert (batch.item_keys >> 51 == 0).all() and time.monotonic() - started < 2.0
        assert states(table) == ["live", "dead"]
        os.kill(far.process.pid, signal.SIGCONT)
        wait_for(table, ["live", "live"])
        assert 1 in (table.sample(64).item_keys >> 51)


def test_another_region_at_the_address_is_not_the_shard(start: Any, shm_name: Any) -> None:
    near, far = start(), start()
    addresses = [near.own(0, config_of(shm_name())), far.own(1, config_of("x" + shm_name()))]
    name = addresses[1].rpartition("/")[2]
    with attach(addresses, path="service") as table:
        fill(table, 0, 0, 10)
        fill(table, 1, 10, 10)
        far.ask("close", addresses[1])  # with its last handle the memory goes, too
        new = far.own(1, config_of(name), at(addresses[1]))
        assert new == addresses[1]
        batch = table.sample(32, timeout_s=10.0)
        assert (batch.item_keys >> 51 == 0).all()
        wait_for(table, ["live", "replaced"])
        with attach(addresses, path="service") as other:
            assert states(other) == ["live", "live"] and len(other) == 10


def test_uses_are_taken_once(start: Any, shm_name: Any) -> None:
    index = relive.Index(max_times_sampled=2)
    owners = start()
    addresses = [owners.own(number, config_of(shm_name(), index)) for number in range(2)]
    with attach(addresses, path="service") as table:
        for shard in range(2):
            fill(table, shard, 10 * shard, 10)
        with table.batches(5, prefetch=2) as batches:
            first = next(batches).item_keys
        drawn = [first] + [table.sample(5, timeout_s=5.0).item_keys for _ in range(7)]
        _, counts = np.unique(np.concatenate(drawn), return_counts=True)
        assert counts.tolist() == [2] * 20
        with pytest.raises(errors.DeadlineExceeded):
            table.sample(1, timeout_s=0.2)
        for address in addresses:
            settled(owners, address)


def test_what_became_of_a_draw_may_ride_with_the_next_request(start: Any, shm_name: Any) -> None:
    """Where a line is another thread's just then, what is settled goes with that thread's next message."""
    owners = start()
    address = owners.own(0, config_of(shm_name()))
    shard = RemoteShard(address, 0, 10.0)
    try:
        with shard.table.writer() as writer:
            write_steps(writer, 0, 20)
        asked = Asked(DrawRequest(0, 4), 5.0, left_s=5.0, counts_nowhere=False, is_read=True, is_only=True)
        parts = [shard.begin(asked) for _ in range(1)]
        parts[0].take()
        line = parts[0]._pending.line
        line.acquire()
        parts[0].commit()
        assert owners.ask("in_flight", address) == 4 and line.settlements() == {"done": [0]}
        line.settle("done", 0)
        line._lock.release()
        assert shard.ask_root(0, 5.0)().num_items == 20
        settled(owners, address)
        assert shard.ask_root(0, 5.0)().sampled == 4
    finally:
        shard.close()


def test_what_a_missed_draw_took_elsewhere_goes_back(start: Any, shm_name: Any) -> None:
    near, far = start(), start()
    index = relive.Index(max_times_sampled=1)
    addresses = [near.own(0, config_of(shm_name(), index)), far.own(1, config_of(shm_name(), index))]
    with attach(addresses, path="service", root_age=1_000) as table:
        fill(table, 0, 0, 50)
        fill(table, 1, 50, 50)
        table.sample(2)
        far.kill()  # the roots that are kept still send draws there
        batch = table.sample(20, timeout_s=10.0)
        assert (batch.item_keys >> 51 == 0).all()
        settled(near, addresses[0])
        rest = table.stats().indexes["default"].num_items
        assert rest == 50 - 1 - 20, "a draw that was made again took no use twice"


def test_sessions_of_two_servers_have_different_names(start: Any, shm_name: Any) -> None:
    """A handle may name a session to the server that has replaced its own."""
    owners = [start(), start()]
    shards = [RemoteShard(one.own(0, config_of(shm_name())), 0, 10.0) for one in owners]
    names = {shard._lines._idle[0].session for shard in shards}
    for shard in shards:
        shard.close()
    assert len(names) == 2


@pytest.mark.parametrize("is_over", [False, True])
def test_an_item_whose_uses_are_counted_is_confirmed_before_it_is_handed_out(
    start: Any, shm_name: Any, is_over: bool
) -> None:
    """Its line is another thread's just then, and ends before it could carry what became of the draw."""
    owners = start()
    address = owners.own(0, config_of(shm_name(), relive.Index(max_times_sampled=1)))
    with attach([address], path="service") as table:
        fill(table, 0, 0, 20)
        draws = table.held_draws()
        held = draws.draw(DrawRequest(0, 8), 5.0)
        part = held.hold._drawn.held[0]
        line = part._lent._line
        part._shard._lines._idle.remove(line)
        line.acquire()
        if is_over:
            line.drop()
            settled(owners, address)  # its draw has gone back
            with pytest.raises(errors.ServiceUnavailable):
                held.hold.commit()
        else:
            held.hold.commit()
            line.drop()
        settled(owners, address)
        rest = table.sample(20 if is_over else 12, timeout_s=10.0).item_keys
        drawn = rest.tolist() if is_over else [*rest.tolist(), *held.item_keys.tolist()]
        assert len(set(drawn)) == len(drawn) == 20, "an item is handed out twice"
        draws.close()


def test_a_batch_whose_owner_falls_silent_as_it_is_handed_out_is_given_to_nobody(start: Any, shm_name: Any) -> None:
    near, far = start(), start()
    index = relive.Index(max_times_sampled=1)
    addresses = [near.own(0, config_of(shm_name(), index)), far.own(1, config_of(shm_name(), index))]
    with attach(addresses, path="service") as table:
        for shard in range(2):
            fill(table, shard, 20 * shard, 20)
        draws = table.held_draws()
        held = draws.draw(DrawRequest(0, 20), 5.0)
        stop_process(far.process.pid)
        try:
            with pytest.raises(errors.ServiceUnavailable, match="handed out"):
                held.hold.commit()
        finally:
            os.kill(far.process.pid, signal.SIGCONT)
        wait_for(table, ["live", "live"])
        for owner, address in zip((near, far), addresses, strict=True):
            settled(owner, address)
        rest = table.stats().indexes["default"].num_items
        drawn = table.sample(rest, timeout_s=10.0).item_keys.tolist()
        assert len(set(drawn)) == rest and 20 <= rest <= 40
        draws.close()


def test_batches_ahead_of_an_owner_that_fell_silent_are_handed_out_once_or_never(start: Any, shm_name: Any) -> None:
    near, far = start(), start()
    index = relive.Index(sampler=relive.Fifo(), max_times_sampled=1)
    addresses = [near.own(0, config_of(shm_name(), index)), far.own(1, config_of(shm_name(), index))]
    drawn: list[int] = []
    with attach(addresses, path="service", timeout_s=5.0) as table:
        for shard in range(2):
            fill(table, shard, 100 * shard, 60)
        with table.batches(6, prefetch=3) as batches:
            for number in range(16):
                if number == 2:
                    assert eventually(lambda: len(batches._bringer.ready) == 3)
                    stop_process(far.process.pid)
                if number == 6:
                    os.kill(far.process.pid, signal.SIGCONT)
                    wait_for(table, ["live", "live"])
                try:
                    drawn += next(batches).item_keys.tolist()
                except errors.ServiceUnavailable:
                    assert 2 <= number < 10
        while (left := table.num_items()) > 0:
            drawn += table.sample(min(left, 6)).item_keys.tolist()
    assert len(set(drawn)) == len(drawn) >= 90, "an item is handed out twice"


@pytest.mark.forms(1)
@pytest.mark.parametrize("first_dies", [False, True])
def test_uses_are_counted_in_all_shards_or_in_none(start: Any, shm_name: Any, first_dies: bool) -> None:
    """A batch that is not handed out, because the uses in one shard went back, takes no uses of the others."""
    owners, index = [start(), start()], relive.Index(max_times_sampled=1)
    addresses = [one.own(number, config_of(shm_name(), index)) for number, one in enumerate(owners)]
    dead, left = (0, 1) if first_dies else (1, 0)
    with attach(addresses, path="service") as table:
        for shard in range(2):
            fill(table, shard, 20 * shard, 20)
        draws = table.held_draws()
        held = draws.draw(DrawRequest(0, 40), 5.0)
        owners[dead].kill()
        stream = held.hold._drawn.held[dead]._lent._line.stream
        with pytest.raises(StreamBroken):  # the end of the stream is known here a moment later
            while True:
                stream.send(framing.encode({"op": "settle"}))
                time.sleep(0.02)
        with pytest.raises(errors.ServiceUnavailable):
            held.hold.commit()
        settled(owners[left], addresses[left])
        drawn = table.sample(20, timeout_s=10.0).item_keys
        assert len(set(drawn.tolist())) == 20 and (drawn >> 51 == left).all()
        held.hold.give_back()  # does nothing: the draw is over
        draws.close()


def test_bad_shards_at_addresses(start: Any, shm_name: Any) -> None:
    owners = start()
    first = owners.own(0, config_of(shm_name()))
    twin = owners.own(0, config_of(shm_name()))
    unlike = owners.own(1, config_of(shm_name(), prioritized(0.9)))
    with pytest.raises(errors.InvalidConfig, match="shard 0 twice"):
        attach([first, twin], path="service")
    with pytest.raises(errors.InvalidConfig, match="shard 0 twice"):
        attach([first, first], path="service")
    with pytest.raises(errors.InvalidConfig, match="indexes of shard 1"):
        attach([first, unlike], path="service")
    with pytest.raises(errors.NoSuchTable):
        attach([at(first) + "/other"], path="service")
    with pytest.raises(errors.InvalidConfig, match="read_only"):
        attach([first], path="service", read_only=True)
    with pytest.raises(errors.InvalidConfig, match="path"):
        attach([first], path="rdma")
    with pytest.raises(errors.ServiceUnavailable):
        attach(["grpc://127.0.0.1:1/x"], path="service", timeout_s=0.2)
    with pytest.raises(errors.InvalidConfig, match="address"):
        attach(["http://127.0.0.1:1/x"])


def test_a_table_that_is_no_shard_of_a_fleet_is_refused(shm_name: Any) -> None:
    index = relive.Index(limiter=relive.MinSize(5))
    with relive.Table(plain_spec(), 100, index, storage=relive.SharedMemory(shm_name())) as table:
        with serve({"t": table}, "grpc://127.0.0.1:0") as server, pytest.raises(errors.InvalidConfig, match="limiter"):
            attach([server.address + "/t"], path="service")


def test_a_served_shard_is_a_table_of_the_service(start: Any, shm_name: Any) -> None:
    owners = start()
    address = owners.own(3, config_of(shm_name()))
    with connect(address) as table, attach([address], path="service") as fleet:
        keys = fill(fleet, 3, 0, 5)
        assert table.gather(keys).present.all() and len(table) == 5


def test_values_that_a_dead_shard_did_not_count_are_given_again(start: Any, shm_name: Any) -> None:
    spec = relive.StepSpec({"a": relive.ArraySpec((), "int64"), "r": relive.ArraySpec((), "float32", late=True)})
    configs = [relive.TableConfig(spec, 1000, None, relive.SharedMemory(shm_name())) for _ in range(2)]
    near, far, again = start(), start(), start()
    addresses = [near.own(0, configs[0]), far.own(1, configs[1])]
    with attach(addresses, path="service") as table:
        keys = [table.writer(shard=number).extend(a=np.arange(4), truncated=True) for number in (0, 1)]
        far.kill()
        assert table.complete(np.concatenate(keys), r=np.zeros(8)) == 4
        assert again.own(1, configs[1], at(addresses[1])) == addresses[1]
        wait_for(table, ["live", "live"])
        assert table.num_items() == 4
        with pytest.raises(errors.AlreadyCompleted):
            table.complete(np.concatenate(keys), r=np.zeros(8))
        assert table.complete(keys[1], r=np.zeros(4)) == 4 and table.num_items() == 8


def test_an_owner_serves_once(shm_name: Any) -> None:
    with ShardOwner(0, config_of(shm_name())) as owner:
        address = owner.serve("grpc://127.0.0.1:0", "shown")
        assert address.endswith("/shown")
        with pytest.raises(errors.InvalidConfig, match="served"):
            owner.serve("grpc://127.0.0.1:0")
        with attach([address]) as table:
            assert table.shard_numbers == (0,)


def test_an_answer_that_is_here_is_read_however_long_another_shard_was_waited_for(shm_name: Any) -> None:
    """A stopped shard that is asked first takes a second: the others answered long before, and live."""
    with ShardOwner(0, config_of(shm_name())) as owner:
        shard = RemoteShard(owner.serve("grpc://127.0.0.1:0"), 0, 10.0)
        try:
            with shard.table.writer() as writer:
                write_steps(writer, 0, 20)
            asked = Asked(DrawRequest(0, 4), 0.2, left_s=0.2, counts_nowhere=False, is_read=True, is_only=False)
            answer, part = shard.ask_root(0, 5.0), shard.begin(asked)
            time.sleep(1.3)  # longer than either may take
            assert answer().num_items == 20 and len(part.take()[1]) == 4 and shard.is_live
            part.give_back()
        finally:
            shard.close()


@pytest.mark.parametrize("is_locked", [False, True])
def test_statistics_ask_nothing_on_a_stream_that_is_over(
    shm_name: Any, monkeypatch: pytest.MonkeyPatch, is_locked: bool
) -> None:
    """is_locked: a signal's handler raised just as a thread took the lock of the stream."""
    with ShardOwner(0, config_of(shm_name())) as owner:
        with attach([owner.serve("grpc://127.0.0.1:0")], path="service", timeout_s=5.0) as table:
            fill(table, 0, 0, 30)
            shard = table._fleet.shards[0]
            shard.ask_root(0, 5.0)()
            line, acquire = shard._lines._idle[0], Line.acquire
            if is_locked:
                assert line.acquire()
            line.drop()
            line.is_confirmed = False
            acquired: list[Line] = []
            monkeypatch.setattr(Line, "acquire", lambda one, *ends: acquired.append(one) or acquire(one, *ends))
            failed: list[Exception] = []
            monkeypatch.setattr(RemoteShard, "fails", lambda shard, error: failed.append(error))
            assert table.stats().indexes["default"].num_items == 30
            assert line not in acquired and line not in shard._lines._idle and not failed


def test_a_stream_cut_as_its_answer_came_is_not_used_again(shm_name: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with ShardOwner(0, config_of(shm_name())) as owner:
        with attach([owner.serve("grpc://127.0.0.1:0")], path="service") as table:
            fill(table, 0, 0, 30)
            shard = table._fleet.shards[0]
            shard.ask_root(0, 5.0)()
            pending = shard._lines.ask({"op": "roots", "index": 0}, time.monotonic() + 5.0)
            cut = cut_as_answered(monkeypatch)
            pending.take()
            monkeypatch.undo()
            assert cut
            failed: list[Exception] = []
            monkeypatch.setattr(RemoteShard, "fails", lambda shard, error: failed.append(error))
            assert not shard.ask_root(0, 5.0)().is_dead and not failed
