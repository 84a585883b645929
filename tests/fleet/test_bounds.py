"""Queue and StalenessBudget over shards beside naive twins: what passes, in which order, and how often."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from contract.groups import episode, grouped, spec_of_groups
from contract.tools import plain_spec, prioritized, step
from processes.shm import needs_shared_memory

import relive
from fleet.tools import PATHS, Owner, config_of, in_threads
from relive import errors
from relive.fleet import ShardedTable, ShardOwner, attach, saved

pytestmark = needs_shared_memory
Over = Callable[..., ShardedTable]


def passes(call: Callable[..., Any], *values: Any, **named: Any) -> bool:
    """Whether the call passes at once."""
    try:
        call(*values, **named, timeout_s=0.0)
    except errors.DeadlineExceeded:
        return False
    return True


def alone(number: int) -> dict[str, Any]:
    """One step that is a whole episode."""
    return step(number, number + 1, truncated=True)


def queue(max_size: int, sampler: Any = None, **more: Any) -> relive.Index:
    return relive.Index(sampler=sampler or relive.Fifo(), limiter=relive.Queue(max_size), max_times_sampled=1, **more)


def budget(eta: float, count: int, **more: Any) -> relive.Index:
    return relive.Index(limiter=relive.StalenessBudget(eta, count), **{"max_times_sampled": 1, **more})


@pytest.mark.parametrize("paths", PATHS)
def test_a_queue_beside_its_twin(over: Over, paths: tuple[str, ...]) -> None:
    """A list for each shard. Writers pass while all lists have less than max_size; a draw takes from their fronts."""
    table, random = over(plain_spec(), queue(6), paths), np.random.default_rng(0)
    lists: list[list[int]] = [[], []]
    drawn: list[int] = []
    writers = [table.writer(shard=shard) for shard in (0, 1)]
    for number in range(150):
        shard, count = int(random.integers(2)), int(random.integers(1, 4))
        there = sum(map(len, lists))
        if random.random() < 0.6:
            assert passes(writers[shard].append, **alone(number)) == (there < 6)
            if there < 6:
                lists[shard].append(number)
        else:
            try:
                batch = table.sample(count, timeout_s=0.0 if count > there else 30.0)
            except errors.DeadlineExceeded:
                assert count > there
                continue
            assert count <= there and (batch.probabilities == 1.0).all()
            got = sorted(batch["action"].tolist())
            for one in lists:
                front = [item for item in got if item in one]
                assert front == one[: len(front)], "the oldest of its shard come first"
                del one[: len(front)]
            drawn += got
        assert table.num_items() == sum(map(len, lists))
    assert len(drawn) == len(set(drawn)) > 50
    with pytest.raises(errors.RequestTooLarge):
        table.sample(7, timeout_s=0.0)
    table.check()


@pytest.mark.parametrize("paths", PATHS)
def test_a_budget_beside_its_twin(over: Over, paths: tuple[str, ...]) -> None:
    """Items ever drawn, and items that are there: at most (eta + version - first version + 1) x items_per_version.

    First version: of all shards together, and of the shard itself, that at which the first step came.
    """
    table, random = over(plain_spec(), budget(0.5, 4), paths), np.random.default_rng(1)
    version = 1000  # a learner that goes on beside an empty table has no budget of 1000 versions
    table.set_policy_version(version)
    there, used, firsts, num_refused = [list[int](), list[int]()], [0, 0], [-1, -1], 0
    writers = [table.writer(shard=shard) for shard in (0, 1)]

    def has_room(items: int, first: int) -> bool:
        return items + 1 <= (0.5 + (version - first if first >= 0 else 0) + 1) * 4

    for number in range(200):
        chance, shard = random.random(), int(number > 60 and random.random() < 0.3)
        if chance < 0.6:
            counts = [used[one] + len(there[one]) for one in (0, 1)]
            fits = has_room(counts[shard], firsts[shard])
            fits &= has_room(sum(counts), min([first for first in firsts if first >= 0], default=-1))
            try:
                there[shard].append(int(writers[shard].append(**alone(number), timeout_s=0.0)))
                firsts[shard] = version if firsts[shard] < 0 else firsts[shard]
                assert fits
            except errors.DeadlineExceeded:
                assert not fits
                num_refused += 1
        elif chance < 0.75 and sum(map(len, there)):
            for key in table.draw(min(3, sum(map(len, there)))).item_keys.tolist():
                there[key >> 51].remove(key)
                used[key >> 51] += 1
        elif chance < 0.85 and there[shard]:
            assert table.delete(np.array([there[shard].pop(0)])) == 1  # an item that left unused makes room
        elif chance > 0.9:
            version += 1
            table.set_policy_version(version)
        assert table.num_items() == sum(map(len, there))
    assert version > 1005 and min(used) > 2 and sum(used) > 20 and num_refused > 10
    table.check()


@pytest.mark.parametrize("num_readers", [1, 2])
@pytest.mark.parametrize("paths", PATHS)
def test_each_item_is_drawn_once_by_readers_of_two_handles(
    over: Over, paths: tuple[str, ...], num_readers: int
) -> None:
    """While four threads write to both shards: none twice, none lost.

    A reader alone gets the items of a writer in their order. Of two readers, one may get a later item while the draw of
    the other goes back, because a shard lacked items.
    """
    table = over(plain_spec(), queue(8), paths)
    again = table.reopens()
    assert again is not None
    count, got, most = 40, [list[int](), list[int]()], 0

    def write(number: int) -> None:
        with table.writer(shard=number % 2) as writer:
            for k in range(count):
                writer.append(**alone(1000 * number + k), timeout_s=60.0)

    def read(reader: int, table: Any) -> None:
        nonlocal most
        while sum(map(len, got)) < 4 * count:
            most = max(most, table.num_items())
            try:
                got[reader] += sorted(table.sample(2, timeout_s=0.2)["action"].tolist())
            except errors.DeadlineExceeded:
                continue

    with again(7) as other:
        threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        threads += [threading.Thread(target=read, args=pair) for pair in enumerate((table, other)[:num_readers])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60.0)
    assert sorted(got[0] + got[1]) == sorted(1000 * number + k for number in range(4) for k in range(count))
    assert most <= 8 + 3, "each of the other writers can overshoot by one call"
    for number in range(4 if num_readers == 1 else 0):
        mine = [item for item in got[0] if item // 1000 == number]
        assert mine == sorted(mine)


def test_ranks_of_a_group_take_other_items_of_a_queue(shm_name: Any) -> None:
    names = [shm_name(), shm_name()]
    with ShardOwner(0, config_of(names[0], queue(16))), ShardOwner(1, config_of(names[1], queue(16))):
        with attach(names) as table:
            for shard in (0, 1):
                with table.writer(shard=shard) as writer:
                    for k in range(8):
                        writer.append(**alone(100 * shard + k))

        def draw(rank: int, exchange: Any) -> list[int]:
            with attach(names, stream=rank, exchange=exchange) as table:
                with pytest.raises(errors.RequestTooLarge):
                    table.draw(9)  # of each of two ranks
                return [item for _ in range(2) for item in table.sample(4)["action"].tolist()]

        mine, theirs = in_threads(draw, 2)
        assert sorted(mine + theirs) == [*range(8), *range(100, 108)]
        with attach(names) as table, table.writer(shard=1) as writer:
            for k in range(7):
                writer.append(**alone(200 + k))

        def draw_more(rank: int, exchange: Any) -> list[int]:
            with attach(names, stream=rank, exchange=exchange) as table:
                with pytest.raises(errors.DeadlineExceeded):
                    table.sample(4, timeout_s=0.3)  # of 7, which are too few for two ranks
                return [item for _ in range(3) for item in table.sample(1)["action"].tolist()]

        mine, theirs = in_threads(draw_more, 2)
        assert len(mine) == 3 and len({*mine, *theirs}) == 6


@pytest.mark.parametrize("by", ["queue", "budget"])
def test_a_waiting_writer_of_one_shard_goes_on_by_what_another_shard_does(over: Over, by: str) -> None:
    table = over(plain_spec(), queue(4) if by == "queue" else budget(0, 4))
    with table.writer(shard=0) as near, table.writer(shard=1) as far:
        for k in range(4):
            near.append(**alone(k))
        assert not passes(far.append, **alone(10))
        waits = threading.Thread(target=lambda: far.append(**alone(10), timeout_s=30.0))
        waits.start()
        time.sleep(0.05)
        assert waits.is_alive()
        if by == "queue":
            assert table.sample(1)["action"].tolist() == [0]
        else:
            table.sample(4)
            table.set_policy_version(1)
        waits.join(30.0)
        assert not waits.is_alive() and table.num_items() == (4 if by == "queue" else 1)


def test_blocks_and_draws_of_the_whole_size_do_not_wait_for_each_other(over: Over) -> None:
    """A block that does not fit beside the items of the other shard is let in while there is room for one item."""
    table = over(plain_spec(), queue(4))
    with table.writer(shard=0) as near, table.writer(shard=1) as far:
        near.append(**alone(0))
        rows = {"observation": np.zeros((4, 2)), "action": np.arange(10, 13), "reward": np.zeros(3)}
        far.extend(**rows, truncated=True, timeout_s=30.0)
        assert sorted(table.sample(4, timeout_s=30.0)["action"].tolist()) == [0, 10, 11, 12]
        with pytest.raises(errors.RequestTooLarge):
            far.extend(
                observation=np.zeros((6, 2)), action=np.arange(5), reward=np.zeros(5), truncated=True, timeout_s=30.0
            )


def test_items_without_a_mass_make_room(over: Over) -> None:
    """No draw finds them, so no draw would ever make room."""
    table = over(plain_spec(), prioritized(initial=1.0, limiter=relive.Queue(4), max_times_sampled=1))
    with table.writer(shard=0) as near, table.writer(shard=1) as far:
        keys = [writer.append(**alone(k)) for k, writer in enumerate((near, far, near, far))]
        assert not passes(near.append, **alone(8)) and not passes(far.append, **alone(8))
        assert table.update_priorities(np.array(keys[1:3]), np.zeros(2)) == 2
        far.append(**alone(5), timeout_s=0.0)
        near.append(**alone(6), timeout_s=0.0)
        assert not passes(near.append, **alone(8)) and not passes(far.append, **alone(8))
        assert sorted(table.sample(4)["action"].tolist()) == [0, 3, 5, 6]


@pytest.mark.parametrize("limiter", [relive.Queue(4), relive.StalenessBudget(0, 4)], ids=["queue", "budget"])
def test_groups_count_once_and_their_members_never_wait_for_each_other(over: Over, limiter: Any) -> None:
    table = over(spec_of_groups(), grouped(limiter=limiter, max_groups=20, max_times_sampled=1))
    writers = [table.writer(shard=shard) for shard in (0, 1)]

    def write(shard: int, prompt: int, members: int) -> bool:
        one = [passes(writers[shard].extend, **episode(10 * k, 2, prompt, truncated=True)) for k in range(members)]
        return all(one)

    assert write(0, 1, 3) and write(1, 2, 2) and write(0, 3, 3) and write(1, 2, 1) and write(1, 4, 3)
    assert table.num_items() == 4
    assert not write(0, 5, 1) and not write(1, 5, 1)
    assert sorted(table.sample(4)["prompt"][:, 0].tolist()) == [1, 2, 3, 4]
    table.set_policy_version(1)
    assert write(0, 5, 3) and write(1, 6, 3)
    table.check()


@pytest.mark.parametrize("path", ["mapped", pytest.param("service", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("by", ["queue", "budget"])
def test_what_a_dead_shard_had_takes_no_room(
    shm_name: Any, owners: list[Owner], start: Any, path: str, by: str
) -> None:
    """Otherwise writers would wait for draws of items that are gone. Items that were drawn from it stay counted."""
    index = queue(6) if by == "queue" else budget(0, 6)
    names = [shm_name(), shm_name()]
    far: Any
    if path == "mapped":
        far = Owner(1, config_of(names[1], index))
        owners.append(far)
    else:
        far = start()
        names[1] = far.own(1, config_of(names[1], index))
    ways = {} if path == "mapped" else {"path": "service"}
    with ShardOwner(0, config_of(names[0], index)), attach(names, timeout_s=30.0, **ways) as table:
        with table.writer(shard=1) as writer:
            for k in range(6):
                writer.append(**alone(k))
            drawn = table.sample(2)["action"].tolist()
            assert drawn == [0, 1] or by == "budget"
            assert passes(writer.append, **alone(6)) == (by == "queue")
        table.stats()  # the last known numbers of a shard of another host are those of the last answer
        far.kill()
        with table.writer(shard=0) as writer:
            room = 6 if by == "queue" else 4
            for k in range(room):
                writer.append(**alone(10 + k), timeout_s=10.0)
            assert not passes(writer.append, **alone(30))
            assert sorted(table.sample(room)["action"].tolist()) == [*range(10, 10 + room)]


@pytest.mark.parametrize("joins_at", [8, 20], ids=["a late shard", "a shard without a row"])
def test_a_budget_keeps_the_versions_of_a_shard_that_died(shm_name: Any, joins_at: int) -> None:
    """The items drawn from it stay counted, and so do its versions. Else the writers of others would wait."""
    names = [shm_name(), shm_name()]
    ends = 20
    with (
        ShardOwner(0, config_of(names[0], budget(1, 8))) as first,
        ShardOwner(1, config_of(names[1], budget(1, 8))),
        attach(names, timeout_s=30.0) as table,
        table.writer(shard=0) as near,
        table.writer(shard=1) as far,
    ):
        for version in range(ends):
            table.set_policy_version(version)
            for k in range(8):
                (far if k % 2 and version >= joins_at else near).append(**alone(k), timeout_s=10.0)
            assert table.sample(8).num_items == 8
        first.let_go()
        table.set_policy_version(ends)
        near.append(**alone(ends), timeout_s=10.0)  # a mapped shard takes rows without an owner. They take no room
        for _ in range(2 * 8):
            far.append(**alone(ends), timeout_s=10.0)
        assert not passes(far.append, **alone(ends))


def test_a_budget_goes_on_while_no_shard_lives(shm_name: Any) -> None:
    name = shm_name()
    with ShardOwner(0, config_of(name, budget(0, 4))) as owner, attach([name], timeout_s=30.0) as table:
        with table.writer() as writer:
            for version in range(3):
                table.set_policy_version(version)
                for _ in range(4):
                    writer.append(**alone(version), timeout_s=10.0)
                assert table.sample(4).num_items == 4
            owner.let_go()
            table.set_policy_version(3)
            for _ in range(4):
                writer.append(**alone(3), timeout_s=10.0)
            assert not passes(writer.append, **alone(3))


def test_a_saved_budget_goes_on(shm_name: Any, tmp_path: Any) -> None:
    names, folder = [shm_name(), shm_name()], tmp_path / "saved"

    def over(load: Any) -> Any:
        return [ShardOwner(number, config_of(name, budget(0, 4)), load=load) for number, name in enumerate(names)]

    owners = over(None)
    with attach(names) as table:
        table.set_policy_version(50)
        for k in range(4):
            with table.writer(shard=k % 2) as writer:
                writer.append(**alone(k))
        table.sample(3)
        table.save(folder)
    for owner in owners:
        owner.close()
    owners = over(saved(folder))
    with attach(names) as table, table.writer(shard=0) as writer:
        assert table.policy_version == 50 and table.limiter() == relive.StalenessBudget(0, 4)
        assert not passes(writer.append, **alone(9))
        table.set_policy_version(51)
        for k in range(4):
            writer.append(**alone(10 + k), timeout_s=0.0)
        assert not passes(writer.append, **alone(20))
    for owner in owners:
        owner.close()
