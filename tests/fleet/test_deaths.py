"""A shard whose owner is killed: draws go on over the others, and it comes back with what its memory holds."""

from __future__ import annotations

import importlib
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from contract.tools import prioritized, step
from processes.shm import needs_shared_memory
from processes.test_locks import stopped_holder
from processes.tools import eventually

import relive
from fleet.tools import CONTEXT, Owner, config_of, fill
from relive import errors
from relive.core import locked
from relive.fleet import NoLiveShard, ShardOwner, attach, drawing, mapped, shards
from relive.fleet import owner as owner_module

pytestmark = needs_shared_memory


def test_draws_go_on_without_a_killed_shard_and_it_comes_back(shm_name: Any, owners: list[Owner]) -> None:
    names = [shm_name(), shm_name()]
    owners.append(Owner(1, config_of(names[1])))
    with ShardOwner(0, config_of(names[0])), attach(names) as table:
        keys = np.concatenate([fill(table, 0, 0, 30), fill(table, 1, 30, 10)])
        assert {one.state for one in table.stats().shards} == {"live"}
        owners[0].kill()

        batch = table.sample(64, timeout_s=2.0)
        assert (batch.item_keys >> 51 == 0).all() and batch.num_live_items == 30
        assert np.allclose(batch.probabilities, 1 / 30)
        stats = table.stats()
        assert [one.state for one in stats.shards] == ["live", "dead"] and stats.num_steps == 30 == len(table)
        assert stats.indexes["default"].inserted == 40, "a counter does not jump back"
        present = table.gather(keys, columns=["reward"])
        assert present.present.tolist() == [True] * 30 + [False] * 10 and not present["reward"][30:].any()
        assert table.update_priorities(keys, np.full(40, 2.0)) == 40, "the memory of a mapped shard is changed"
        assert table.delete(keys[35:]) == 5
        with table.writer() as writer:
            assert writer.append(observation=[0, 0], action=0, reward=0.0, next_observation=[0, 0]) >> 51 == 0

        owners.append(Owner(1, config_of(names[1])))
        assert owners[1].is_restored
        again = table.gather(keys, columns=["reward"])
        assert again.present.tolist() == [True] * 35 + [False] * 5
        assert again["reward"][:35].tolist() == list(range(35))
        assert {one.state for one in table.stats().shards} == {"live"}
        assert 1 in (table.sample(256).item_keys >> 51)
        table.check()


def test_a_draw_of_which_no_shard_answers_says_so(shm_name: Any, owners: list[Owner]) -> None:
    names = [shm_name(), shm_name()]
    owners += [Owner(number, config_of(name)) for number, name in enumerate(names)]
    with attach(names) as table:
        fill(table, 0, 0, 30)
        fill(table, 1, 30, 10)
        for owner in owners:
            owner.kill()
        with pytest.raises(errors.DeadlineExceeded, match="needs a shard that answers, has 2 that do not") as raised:
            table.sample(8, timeout_s=0.2)
        assert "limiter" not in str(raised.value)


def test_an_owner_that_is_refused_leaves_what_the_killed_one_held(shm_name: Any, owners: list[Owner]) -> None:
    name = shm_name()
    owners.append(Owner(1, config_of(name)))
    with attach([name]) as table:
        keys = fill(table, 1, 0, 10)
    owners[0].kill()
    for number, more in ((1, {"capacity": 500}), (2, {}), (1, {"seed": 5})):
        with pytest.raises(errors.InvalidConfig, match="of the shard at"):
            ShardOwner(number, config_of(name, **more))
    with ShardOwner(1, config_of(name)) as owner:
        assert owner.is_restored and owner.table.gather(keys).present.all()


def test_an_owner_that_dies_while_another_is_refused_leaves_what_it_held(
    shm_name: Any, owners: list[Owner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is held a little longer than the memory: who comes in between is refused, and is alone with it then."""
    name = shm_name()
    owners.append(Owner(0, config_of(name)))
    with attach([name]) as table:
        keys = fill(table, 0, 0, 30)

    def held(descriptor: int, path: str) -> None:
        owners[0].kill()
        raise errors.NameTaken(path, [])

    monkeypatch.setattr(owner_module, "_lock", held)
    with pytest.raises(errors.NameTaken):
        ShardOwner(0, config_of(name))
    monkeypatch.undo()
    with ShardOwner(0, config_of(name)) as again:
        assert again.is_restored and again.table.gather(keys).present.all()


def test_roots_that_are_kept_do_not_keep_a_shard_alive(shm_name: Any, owners: list[Owner]) -> None:
    names = [shm_name(), shm_name()]
    owners.append(Owner(1, config_of(names[1])))
    with ShardOwner(0, config_of(names[0])), attach(names, root_age=1_000) as table:
        fill(table, 0, 0, 10)
        fill(table, 1, 10, 30)
        assert 1 in (table.sample(64).item_keys >> 51)
        owners[0].kill()
        batch = table.sample(64, timeout_s=2.0)
        assert (batch.item_keys >> 51 == 0).all() and np.allclose(batch.probabilities, 0.1)


def test_where_no_shard_lives_calls_end_at_their_deadline(shm_name: Any, owners: list[Owner]) -> None:
    name = shm_name()
    owners.append(Owner(3, config_of(name)))
    with attach([name]) as table:
        keys = fill(table, 3, 0, 5)
        owners[0].kill()
        for call in (table.sample, table.draw):
            with pytest.raises(errors.DeadlineExceeded):
                call(4, timeout_s=0.05)
        assert not table.gather(keys).present.any() and len(table) == 0
        with pytest.raises(NoLiveShard):
            table.writer()


PACED = relive.SamplesPerInsert(1.0, min_size=10, tolerance=10.0)  # writers wait at inserted - sampled = 20


def stored(writer: Any, most: int = 50, keys: list[int] | None = None) -> int:
    """How many of so many steps go in at once; their keys are added to `keys`."""
    for count in range(most):
        try:
            key = writer.append(**step(count, count + 1, truncated=True), timeout_s=0.0)
        except errors.DeadlineExceeded:
            return count
        if keys is not None:
            keys.append(int(key))
    return most


@pytest.mark.parametrize("initial", ["max", "given"])
@pytest.mark.parametrize("num_shards", [1, 2])
def test_a_writer_of_a_shard_without_an_owner_waits_for_the_limiter(
    shm_name: Any, owners: list[Owner], num_shards: int, initial: str
) -> None:
    """Items that wait for a priority count, too. The writer goes on when draws reach its shard again."""
    index = prioritized(initial=initial, limiter=PACED)
    configs = [config_of(shm_name(), index) for _ in range(num_shards)]
    owners += [Owner(number, config) for number, config in enumerate(configs)]
    with attach([config.storage.name for config in configs], timeout_s=30.0) as table, table.writer(shard=0) as writer:
        keys = list[int]()
        assert stored(writer, 6, keys) == 6
        owners[0].kill()
        assert stored(writer, 50, keys) == 14
        with pytest.raises(errors.DeadlineExceeded):
            table.draw(1, timeout_s=0.0)
        owners.append(Owner(0, configs[0]))
        assert stored(writer) == 0
        if initial == "given":
            table.update_priorities(np.array(keys), np.ones(20))
        table.draw(5)
        assert stored(writer) == 5


def test_draws_of_other_shards_make_room_for_a_writer_of_a_shard_without_an_owner(
    shm_name: Any, owners: list[Owner]
) -> None:
    configs = [config_of(shm_name(), prioritized(limiter=PACED)) for _ in range(2)]
    owners += [Owner(number, config) for number, config in enumerate(configs)]
    with attach([config.storage.name for config in configs], timeout_s=30.0) as table:
        with table.writer(shard=0) as near, table.writer(shard=1) as far:
            assert (stored(near, 15), stored(far, 5), stored(near), stored(far)) == (15, 5, 0, 0)
            owners[0].kill()
            assert (stored(near), stored(far), stored(near)) == (0, 5, 0)  # draws need ten items of live shards
            assert (table.draw(8).item_keys >> 51 == 1).all()
            assert (stored(near), stored(far)) == (3, 0)
            owners.append(Owner(0, configs[0]))
            assert (stored(near), stored(far)) == (0, 0)
            table.draw(2)
            assert (stored(far), stored(near)) == (2, 0)


def test_masses_of_zero_in_other_shards_let_no_writer_of_a_shard_without_an_owner_pass(
    shm_name: Any, owners: list[Owner]
) -> None:
    """Its rows give no live shard a mass, however many there are."""
    configs = [config_of(shm_name(), prioritized(limiter=PACED)) for _ in range(2)]
    owners += [Owner(number, config) for number, config in enumerate(configs)]
    with attach([config.storage.name for config in configs], timeout_s=30.0) as table:
        table.update_priorities(fill(table, 1, 0, 10), np.zeros(10))
        with table.writer(shard=0) as near, table.writer(shard=1) as far:
            assert stored(near, 10) == 10
            owners[0].kill()
            assert (stored(near), stored(far)) == (0, 1)
            assert (table.draw(5).item_keys >> 51 == 1).all()


def test_a_shard_whose_lock_is_held_is_left_out(shm_name: Any, owners: list[Owner]) -> None:
    """A process that is stopped in the lock: no owner died, but nothing that needs the lock goes on there."""
    names = [shm_name(), shm_name()]
    with ShardOwner(0, config_of(names[0])), ShardOwner(1, config_of(names[1])), attach(names) as table:
        keys = np.concatenate([fill(table, 0, 0, 10), fill(table, 1, 10, 10)])
        held = CONTEXT.Process(target=hammer, args=(names[1],), daemon=True)
        held.start()
        try:
            assert held.pid is not None
            for _ in range(40):  # stop it again and again: some stops find it in the lock, and none may stop the draws
                os.kill(held.pid, signal.SIGSTOP)
                assert table.sample(16, timeout_s=30.0).num_items == 16
                table.update_priorities(keys, np.ones(20))
                os.kill(held.pid, signal.SIGCONT)
                time.sleep(0.01)
        finally:
            held.kill()
            held.join(60.0)
        assert table.sample(16, timeout_s=30.0).num_items == 16  # killed in the lock or not: it is taken over


@pytest.mark.parametrize("path", ["mapped", "service"])
@pytest.mark.parametrize("is_freed", [True, False])
def test_a_draw_that_counts_uses_waits_for_a_lock_as_long_as_other_draws(
    shm_name: Any, monkeypatch: pytest.MonkeyPatch, path: Any, is_freed: bool
) -> None:
    """A shard whose lock comes free is not left out. is_freed: as soon as a draw has waited for the lock."""
    if path == "service":
        pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")
    module: Any = mapped if path == "mapped" else importlib.import_module("relive.fleet.remote.shard")
    names, index = [shm_name(), shm_name()], relive.Index(max_times_sampled=1)
    noted = list[int]()
    kind = module.MappedShard if path == "mapped" else module.RemoteShard
    draws: Any = mapped if path == "mapped" else importlib.import_module("relive.fleet.remote.part")
    monkeypatch.setattr(kind, "stalls", lambda shard: noted.append(shard.number))
    for one in (drawing, shards):
        monkeypatch.setattr(one, "STALL_S", 30.0 if is_freed else 0.1)
    with (
        ShardOwner(0, config_of(names[0], index)) as first,
        ShardOwner(1, config_of(names[1], index)) as second,
        attach(names if path == "mapped" else [first.serve(), second.serve()], path=path) as table,
    ):
        fill(table, 0, 0, 10)
        fill(table, 1, 10, 10)
        with stopped_holder(names[1]) as holder:

            def is_of_lock(error: errors.DeadlineExceeded) -> bool:
                if is_freed:
                    holder.kill()
                return locked.is_of_lock(error)

            monkeypatch.setattr(draws, "is_of_lock", is_of_lock)
            drawn = table.sample(20 if is_freed else 4, timeout_s=60.0).item_keys >> 51
            assert np.bincount(drawn).tolist() == ([10, 10] if is_freed else [4])
            assert noted == ([] if is_freed else [1])


def hammer(name: str) -> None:
    """Changes priorities of a shard for ever."""
    import relive

    with relive.attach(name) as table:
        keys = np.concatenate(list(table.keys()))
        while True:
            table.update_priorities(np.tile(keys, 100), np.ones(100 * len(keys)))


def test_a_child_of_the_owner_does_not_keep_its_shard_alive(shm_name: Any) -> None:
    name = shm_name()
    owner = ShardOwner(0, config_of(name))
    with attach([name]) as table:
        told, tells = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(tells, b"here")
            time.sleep(60.0)
            os._exit(0)
        try:
            assert os.read(told, 4) == b"here"
            assert [one.state for one in table.stats().shards] == ["live"]
            owner.close()
            assert [one.state for one in table.stats().shards] == ["dead"]
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


# ---- other answers than silence --------------------------------------------------------------------------------------


@pytest.fixture
def service() -> Any:
    return pytest.importorskip("relive.service", reason="pyarrow is not installed here (pip install 'relive[service]')")


def test_a_shard_whose_server_drains_is_left_out(shm_name: Any, service: Any) -> None:
    """Threads that need a stream of their own find the shard at its end. Other shards serve their draws."""
    names = [shm_name(), shm_name()]
    with ShardOwner(0, config_of(names[0])) as going, ShardOwner(1, config_of(names[1])) as staying:
        with attach([going.serve(), staying.serve()], path="service", timeout_s=20.0) as table:
            fill(table, 0, 0, 30)
            fill(table, 1, 30, 10)
            assert going._server is not None
            going._server.drain()
            begun = threading.Barrier(4)

            def draw(_: int) -> int:
                begun.wait(60.0)
                return sum(table.sample(8).num_items for _ in range(5))

            with ThreadPoolExecutor(4) as threads:
                assert list(threads.map(draw, range(4))) == [40] * 4


@pytest.mark.parametrize("call", ["gather", "len", "stats", "update_priorities"])
def test_another_server_at_the_address_of_a_shard_is_no_shard(shm_name: Any, service: Any, call: str) -> None:
    names = [shm_name(), shm_name()]
    spec = relive.StepSpec({"a": relive.ArraySpec((), "int64")})
    with ExitStack() as stack:
        going = stack.enter_context(ShardOwner(0, config_of(names[0])))
        staying = stack.enter_context(ShardOwner(1, config_of(names[1])))
        addresses = [going.serve(), staying.serve()]
        table = stack.enter_context(attach(addresses, path="service", timeout_s=20.0))
        keys = np.concatenate([fill(table, 0, 0, 30), fill(table, 1, 30, 10)])
        going.close()
        other = stack.enter_context(relive.Table(spec, 10))
        stack.enter_context(service.serve({"other": other}, addresses[0].rpartition("/")[0]))
        calls: dict[str, Callable[[], Any]] = {
            "gather": lambda: table.gather(keys).present.tolist() == [False] * 30 + [True] * 10,
            "len": lambda: len(table) == 10,
            "stats": lambda: [one.state for one in table.stats().shards] == ["dead", "live"],
            "update_priorities": lambda: table.update_priorities(keys, np.ones(40)) == 10,
        }
        assert calls[call](), "at the first call"
        assert all(one() for one in calls.values())


def test_close_ends_the_wait_for_shards_that_are_all_dead(shm_name: Any, service: Any) -> None:
    with ShardOwner(0, config_of(shm_name())) as owner:
        table = attach([owner.serve()], path="service", timeout_s=20.0)
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            table.sample(4, timeout_s=math.inf)
        except errors.ReliveError as error:
            raised.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert eventually(lambda: table._fleet.shards[0].state == "dead")
    table.close()
    thread.join(30.0)
    assert [type(one) for one in raised] == [errors.TableClosed]
    keys = np.zeros(1, np.int64)
    calls: list[Callable[[], Any]] = [
        lambda: table.sample(4), lambda: table.gather(keys), lambda: table.update_priorities(keys, np.ones(1)),
        lambda: table.delete(keys), lambda: table.set_policy_version(1), lambda: table.policy_version, table.check,
        lambda: list(table.keys()), table.stats, lambda: len(table), table.clear, table.writer,
    ]  # fmt: skip
    for number, call in enumerate(calls):
        with pytest.raises(errors.TableClosed):
            call()
            pytest.fail(f"call {number}")
