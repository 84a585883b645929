"""A policy version that a mapped shard cannot take while its lock is stuck: the shard gets it later."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import Any

import pytest
from processes.shm import needs_shared_memory
from processes.test_locks import stopped_holder
from processes.tools import eventually

import relive
from fleet.tools import config_of, fill
from relive import errors
from relive.fleet import ShardedTable, ShardOwner, attach
from relive.fleet.shards import Missed

pytestmark = needs_shared_memory
COUNTED = relive.Index(max_times_sampled=60_000)  # a lower version then needs the lock


def made(stack: ExitStack, names: list[str]) -> ShardedTable:
    for number, name in enumerate(names):
        stack.enter_context(ShardOwner(number, config_of(name, COUNTED)))
    table = stack.enter_context(attach(names, timeout_s=0.5))
    for number in range(len(names)):
        fill(table, number, 100 * number, 50)
    table.set_policy_version(5)
    return table


def made_and_missed(stack: ExitStack, names: list[str]) -> ShardedTable:
    """A table whose second shard did not get version 3. Its lock is free again."""
    table = made(stack, names)
    with stopped_holder(names[1]) as holder:
        table.set_policy_version(3)
        holder.kill()
    return table


def versions(table: ShardedTable) -> list[int]:
    return [one.core.policy_version for one in table._fleet.shards]


def test_a_shard_whose_lock_is_stuck_gets_the_version_later(shm_name: Any) -> None:
    names = [shm_name(), shm_name()]
    with ExitStack() as stack:
        table = made(stack, names)
        with stopped_holder(names[1]) as holder:
            table.set_policy_version(3)
            assert versions(table) == [3, 5]
            holder.kill()

        def draws() -> bool:
            assert table.sample(1, timeout_s=30.0).num_items == 1
            return versions(table) == [3, 3]

        assert eventually(draws, 10.0)
        table.set_policy_version(4)
        table._fleet.shards[1].core.set_policy_version(6)
        assert table.stats().policy_version == 4 and versions(table) == [4, 6], "it is not sent twice"


def test_a_newer_version_replaces_one_that_a_shard_did_not_get(shm_name: Any) -> None:
    names = [shm_name(), shm_name()]
    with ExitStack() as stack:
        table = made_and_missed(stack, names)
        table.set_policy_version(4)
        assert versions(table) == [4, 4]
        assert table.num_items() > 0 and versions(table) == [4, 4]


def test_the_only_shard_of_a_table_refuses_a_version_and_does_not_get_it_later(shm_name: Any) -> None:
    names = [shm_name()]
    with ExitStack() as stack:
        table = made(stack, names)
        with stopped_holder(names[0]) as holder:
            with pytest.raises(errors.DeadlineExceeded):
                table.set_policy_version(3)
            holder.kill()
        assert table.sample(1).num_items == 1 and table.num_items() > 0 and versions(table) == [5]


def test_a_version_that_another_handle_set_meanwhile_stays(shm_name: Any) -> None:
    names = [shm_name(), shm_name()]
    with ExitStack() as stack:
        table = made_and_missed(stack, names)
        table._fleet.shards[1].core.set_policy_version(6)
        assert table.num_items() > 0 and versions(table) == [3, 6]


@pytest.mark.parametrize("every", [False, True])
def test_a_version_that_comes_while_a_shard_gets_an_older_one_is_sent_too(
    shm_name: Any, monkeypatch: pytest.MonkeyPatch, every: bool
) -> None:
    """The shard at an address answers again. Its thread sends version 6, and the program sets version 7 meanwhile.

    every: the program sets one more during each version that the thread sends. The shard is live nevertheless.
    """
    with ExitStack() as stack:
        owner = stack.enter_context(ShardOwner(0, config_of(shm_name())))
        table = stack.enter_context(attach([owner.serve()], path="service"))
        shard: Any = table._fleet.shards[0]
        table.set_policy_version(5)
        shard._state, shard._policy_version, shard._newest_version = "dead", 6, 6
        send = shard.core.set_policy_version

        def send_slowly(version: int) -> None:
            send(version)
            if version == 6 or (every and version < 50):
                with suppress(Missed):
                    shard.ask("set_policy_version", version + 1).take()

        monkeypatch.setattr(shard.core, "set_policy_version", send_slowly)
        assert shard.look() and shard.is_live
        assert shard.core.policy_version == shard._newest_version < 50
