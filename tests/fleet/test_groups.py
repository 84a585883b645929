"""Groups of episodes over shards: each forms in one shard, and is drawn, changed and lost with that shard."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from contract.groups import episode, grouped, spec_of_groups
from processes.shm import needs_shared_memory

import relive
from fleet.tools import PATHS, Owner
from relive import errors
from relive.fleet import ShardedTable, ShardOwner, attach
from relive.fleet.draws.placement import home
from relive.fleet.keys import ShardKeys

pytestmark = needs_shared_memory
Over = Callable[..., ShardedTable]
SCORE = relive.ArraySpec((), "float32", kind="episode")


def write_groups(table: ShardedTable, shard: int, scores: dict[int, list[float]]) -> None:
    """For each prompt its members, of 1, 2, 3, ... steps; steps are numbered by prompt and member."""
    with table.writer(shard=shard) as writer:
        for prompt, members in scores.items():
            for number, score in enumerate(members):
                one = episode(1000 * prompt + 10 * number, number + 1, prompt, truncated=True)
                writer.extend(**one, score=np.full(number + 1, score))


def check(batch: Any) -> None:
    """Every member's rows are those of the prompt of its item."""
    for item, prompt in enumerate(batch["prompt"][:, 0].tolist()):
        assert batch["prompt"][item].tolist() == [prompt] * 3 and batch.lengths[item].tolist() == [1, 2, 3]
        for number in range(3):
            first = 1000 * prompt + 10 * number
            assert batch["action"][item, number, : number + 1].tolist() == [*range(first, first + number + 1)]


@pytest.mark.parametrize("paths", PATHS)
def test_groups_of_all_shards_are_drawn_by_their_mass(over: Over, paths: tuple[str, ...]) -> None:
    """By the variance of their members; a group whose members are alike is never drawn; keys name the groups."""
    table = over(spec_of_groups(score=SCORE), grouped(sampler=relive.PromptGroups("variance", "score")), paths)
    scores = [{1: [0.0, 1.0, 0.0], 2: [1.0, 1.0, 1.0], 3: [0.0, 2.0, 0.0]}, {4: [0.0, 3.0, 3.0], 5: [0.5, 0.5, 0.5]}]
    for shard, of_shard in enumerate(scores):
        write_groups(table, shard, of_shard)
    assert table.num_items() == 5
    masses = {prompt: float(np.var(some)) for one in scores for prompt, some in one.items() if np.var(some) > 0}
    batch = table.sample(2048)
    check(batch)
    prompts = batch["prompt"][:, 0]
    law = {prompt: mass / sum(masses.values()) for prompt, mass in masses.items()}
    assert set(prompts.tolist()) == set(law)
    assert np.allclose(batch.probabilities, [law[prompt] for prompt in prompts.tolist()], rtol=1e-5)
    for prompt, part in law.items():
        assert abs((prompts == prompt).mean() - part) < 0.05
    keys = {int(prompt): int(batch.item_keys[np.argmax(prompts == prompt)]) for prompt in law}
    assert {prompt: key >> 51 for prompt, key in keys.items()} == {1: 0, 3: 0, 4: 1}

    changed = np.array([keys[1], keys[4], keys[3]])
    assert table.update_priorities(changed, np.array([1.0, 3.0, 0.0])) == 3
    again = table.sample(512)
    assert np.bincount(again["prompt"][:, 0], minlength=5).tolist() == [0, 128, 0, 0, 384]
    found = table.gather(changed)
    assert found.present.all() and found["prompt"][:, 0].tolist() == [1, 4, 3]
    assert table.delete(changed[1:2]) == 1
    assert table.gather(changed).present.tolist() == [True, False, True] and table.num_items() == 4
    listed = np.concatenate(list(table.keys()))
    assert len(listed) == 4 and set(changed[[0, 2]].tolist()) < set(listed.tolist())
    table.check()


def test_keys_that_no_shard_gave_for_a_group_change_nothing(over: Over) -> None:
    by_mass = {"sampler": relive.Prioritized(1.0)}
    indexes = {
        "steps": relive.Index(**by_mass),
        "groups": grouped(**by_mass),
        "few": grouped(max_groups=2, remover=relive.Lifo(), **by_mass),
    }
    table = over(spec_of_groups(score=SCORE), indexes)
    for shard in (0, 1):
        write_groups(table, shard, {10 * shard + k: [0.0, 1.0, 2.0] for k in (1, 2)})
    keys = {name: np.concatenate(list(table.keys(index=name))) for name in indexes}
    assert {name: len(some) for name, some in keys.items()} == {"steps": 24, "groups": 4, "few": 4}
    for name, some in keys.items():
        assert table.gather(some, index=name).present.all()
        for other in indexes:
            if other != name:  # the last key is that of an item of another index
                with pytest.raises(errors.ForeignKey) as wrong:
                    table.update_priorities(np.append(some, keys[other][0]), np.ones(len(some) + 1), index=name)
                assert wrong.value.position == len(some)
    with pytest.raises(errors.ForeignKey) as wrong:
        table.delete(np.append(keys["groups"], keys["few"].max() + 2))  # after the record that is kept free
    assert wrong.value.position == 4
    far, near = (keys[name][keys[name] >> 51 == shard] for name, shard in (("few", 1), ("steps", 0)))
    assert table.delete(np.concatenate([keys["groups"], far, near[:1]])) == 7
    assert [table.num_items(name) for name in indexes] == [23, 0, 2]  # a deleted step stays in its groups
    table.check()


def test_the_range_of_keys_is_the_cores_own(over: Over) -> None:
    """Of each index: the core knows the last key of the range, and refuses the one after it."""
    indexes = {"a": grouped(max_groups=3), "b": grouped(max_groups=4, remover=relive.Lifo()), "c": grouped()}
    table = over(spec_of_groups(score=SCORE), indexes, ("mapped",))
    core = table._fleet.shards[0].table.core
    bits, num_slots = core.geometry["slot_bits"], core.geometry["num_slots"]
    keys = ShardKeys(indexes, bits, num_slots)
    leaves = np.arange(1 << bits)
    for number in range(3):
        mine = leaves[keys.are_items(leaves | 1 << bits, number)]
        assert mine.tolist() == [*range(mine[0], mine[-1] + 1)]
        for leaf, is_own in ((mine[0] - 1, False), (mine[0], True), (mine[-1], True), (mine[-1] + 1, False)):
            try:
                core.claim(number, np.array([leaf | 1 << bits]), 0.0)
            except errors.ForeignKey:
                assert not is_own
            except errors.DeadlineExceeded:  # there is no item, so the claim waits for one
                assert is_own


def test_a_writer_of_groups_has_a_shard_by_name(over: Over) -> None:
    table = over(spec_of_groups(score=SCORE), grouped())
    with pytest.raises(errors.InvalidConfig, match="shard_of_group"):
        table.writer()
    with table.writer(shard=1) as first, table.writer(shard=0) as second:
        for writer, count in ((first, 2), (second, 1)):  # three members, which do not meet
            for number in range(count):
                writer.extend(**episode(10 * number, 2, 7, truncated=True), score=np.zeros(2))
        assert table.num_items() == 0
        first.extend(**episode(40, 2, 7, truncated=True), score=np.zeros(2))
        assert table.num_items() == 1
        assert (table.sample(2).item_keys >> 51).tolist() == [1, 1]
    only = over(spec_of_groups(score=SCORE), grouped(), ("mapped",))
    only.writer().close()
    near = over(spec_of_groups(score=SCORE), grouped(), local=1)
    near.writer().close()


def test_values_have_the_same_shard_in_every_handle(over: Over) -> None:
    table = over(spec_of_groups(score=SCORE), grouped(), ("mapped",) * 3)
    values = [*range(-1500, 1500), 2**63 - 1, -(2**63)]
    homes = [table.shard_of_group(value) for value in values]
    assert homes == [home(value, [2, 0, 1]) for value in values]
    assert all(abs(homes.count(number) - 1000) < 120 for number in range(3))  # five standard deviations
    without = [home(value, [0, 2]) for value in values]
    assert all(now == before or before == 1 for now, before in zip(without, homes, strict=True))
    for wrong in (2**63, 1.5, "a"):
        with pytest.raises(errors.InvalidConfig, match="value of a group"):
            table.shard_of_group(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("paths", PATHS)
def test_a_closed_table_has_no_shard_for_a_group(over: Over, paths: tuple[str, ...]) -> None:
    table = over(spec_of_groups(score=SCORE), grouped(), paths)
    table.close()
    with pytest.raises(errors.TableClosed):
        table.shard_of_group(7)


@pytest.mark.parametrize("paths", PATHS)
def test_each_group_is_drawn_once_by_two_readers(over: Over, paths: tuple[str, ...]) -> None:
    table = over(spec_of_groups(score=SCORE), grouped(max_groups=100, max_times_sampled=1), paths)
    got: list[list[int]] = [[], []]

    def read(reader: int) -> None:
        while sum(map(len, got)) < 60:
            try:
                batch = table.sample(2, timeout_s=0.2)
            except errors.DeadlineExceeded:
                continue
            check(batch)
            got[reader] += batch["prompt"][:, 0].tolist()

    readers = [threading.Thread(target=read, args=(reader,)) for reader in (0, 1)]
    for reader in readers:
        reader.start()
    for prompt in range(60):
        write_groups(table, table.shard_of_group(prompt), {prompt: [0.0, 1.0, 2.0]})
    for reader in readers:
        reader.join(60.0)
    assert sorted(got[0] + got[1]) == [*range(60)]


def test_limiters_count_groups_and_not_their_steps(over: Over) -> None:
    """Over the totals: 3 groups of 6 steps fit where 1 step more of a table of steps would not."""
    limiter = relive.SamplesPerInsert(1.0, min_size=1, tolerance=1.5)
    table = over(spec_of_groups(score=SCORE), grouped(limiter=limiter, max_times_sampled=1))
    write_groups(table, 0, {1: [0.0, 1.0, 2.0]})
    write_groups(table, 1, {2: [0.0, 1.0, 2.0]})
    with table.writer(shard=0) as writer:
        for at in (0, 2):
            writer.extend(**episode(at, 2, 7), score=np.zeros(2), timeout_s=0.0)  # of an episode that goes on
        with pytest.raises(errors.DeadlineExceeded):
            writer.append(observation=[0, 0], next_observation=[0, 0], action=0, reward=0.0, prompt=7, core=[0, 0],
                          score=0.0, truncated=True, timeout_s=0.0)  # fmt: skip
        check(table.sample(1))
        writer.end_episode(truncated=True)


def test_groups_of_a_killed_owner_are_left_out_and_come_back(shm_name: Any, owners: list[Owner]) -> None:
    """While they are drawn. A group that waits for a member in the dead shard gets it when the shard is back."""
    names, index = [shm_name(), shm_name()], grouped(sampler=relive.PromptGroups("variance", "score"), max_groups=50)
    configs = [
        relive.TableConfig(spec_of_groups(score=SCORE), 4096, index, relive.SharedMemory(name)) for name in names
    ]
    owners.append(Owner(1, configs[1]))
    with ShardOwner(0, configs[0]), attach(names, timeout_s=30.0) as table:
        prompts = [*range(20)]
        homes = {prompt: table.shard_of_group(prompt) for prompt in prompts}
        for prompt in prompts:
            write_groups(table, homes[prompt], {prompt: [0.0, 1.0, 2.0]})
        write_groups(table, 1, {77: [0.0, 1.0]})
        keys = np.concatenate(list(table.keys()))
        stops, problems, drawn = threading.Event(), list[BaseException](), 0

        def draw() -> None:
            nonlocal drawn
            try:
                while not stops.is_set():
                    check(table.sample(8))
                    drawn += 1
            except BaseException as problem:
                problems.append(problem)

        thread = threading.Thread(target=draw)
        thread.start()
        try:
            while drawn < 20:
                time.sleep(0.001)
            owners[0].kill()
            before = drawn
            while drawn < before + 20 and not problems:
                time.sleep(0.001)
        finally:
            stops.set()
            thread.join(60.0)
        assert not problems

        batch = table.sample(256)
        left = {prompt for prompt, shard in homes.items() if shard == 0}
        assert set(batch["prompt"][:, 0].tolist()) == left and np.allclose(batch.probabilities, 1 / len(left))
        found = table.gather(keys)
        assert found.present.tolist() == (keys >> 51 == 0).tolist() and not found["prompt"][~found.present].any()
        assert table.update_priorities(keys, np.ones(20)) == 20, "the memory of a mapped shard is changed"
        assert [table.shard_of_group(prompt) for prompt in prompts] == [0] * 20

        owners.append(Owner(1, configs[1]))
        assert owners[1].is_restored and {p: table.shard_of_group(p) for p in prompts} == homes
        assert table.gather(keys).present.all() and table.num_items() == 20
        with table.writer(shard=1) as writer:
            writer.extend(**episode(77_020, 3, 77, truncated=True), score=np.full(3, 2.0))
        assert table.num_items() == 21
        batch = table.sample(1024)
        check(batch)
        assert set(batch["prompt"][:, 0].tolist()) == {*prompts, 77}
        table.check()
