"""One table over shards in shared memory: draws, weights, keys, writers, ranks, and what is refused."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from contract.tools import plain_spec, prioritized, step, write_steps
from processes.shm import needs_shared_memory

import relive
from fleet.tools import Together, config_of, fill
from relive import errors
from relive.fleet import (
    GroupReader,
    NotOverShards,
    RankFailed,
    RanksDisagree,
    ShardedTable,
    ShardOwner,
    attach,
    make_shard,
)
from relive.fleet.agreement import HEAD_BYTES
from relive.fleet.draws.placement import ROOT_BYTES

pytestmark = needs_shared_memory
Names = list[str]


@pytest.fixture
def shards(shm_name: Any) -> Iterator[Callable[..., Names]]:
    with contextlib.ExitStack() as stack:

        def make(count: int, index: Any = None, **more: Any) -> Names:
            names = [shm_name() for _ in range(count)]
            for number, name in enumerate(names):
                stack.enter_context(ShardOwner(number, config_of(name, index, **more)))
            return names

        yield make


def test_items_come_by_mass_with_the_probabilities_of_one_table(shards: Any) -> None:
    with attach(shards(3), stream=1) as table:
        keys = np.concatenate([fill(table, 0, 0, 5), fill(table, 1, 5, 17), fill(table, 2, 22, 2)])
        priorities = np.random.default_rng(0).lognormal(0.0, 1.0, len(keys)).astype(np.float32)
        assert table.update_priorities(keys, priorities) == len(keys)
        expected = dict(zip(keys.tolist(), (priorities / priorities.sum(dtype=float)).tolist(), strict=True))
        seen = dict.fromkeys(expected, 0)
        first_slice = dict.fromkeys(expected, 0)
        for _ in range(1_000):
            batch = table.sample(64)
            for key, probability in zip(batch.item_keys.tolist(), batch.probabilities.tolist(), strict=True):
                seen[key] += 1
                assert probability == pytest.approx(expected[key], rel=1e-6)
            for key in batch.item_keys[:8].tolist():
                first_slice[key] += 1
        assert batch.num_live_items == 24
        assert np.allclose(batch.weights(0.5, None), (24 * batch.probabilities) ** -0.5, rtol=1e-6)
        for tally, draws in ((seen, 64_000), (first_slice, 8_000)):
            chi = sum((tally[key] - p * draws) ** 2 / (p * draws) for key, p in expected.items())
            assert chi < 60.0  # 23 degrees of freedom


def test_rows_are_those_of_their_keys_wherever_they_lie(shards: Any) -> None:
    with attach(shards(2)) as table:
        keys = np.concatenate([fill(table, 0, 0, 50), fill(table, 1, 50, 50)])
        assert (keys >> 51).tolist() == [0] * 50 + [1] * 50
        batch = table.sample(200)
        value = {key: number for number, key in enumerate(keys.tolist())}
        assert batch["reward"].tolist() == [value[key] for key in batch.item_keys.tolist()]
        assert batch["next_observation"][:, 1].tolist() == [value[key] + 1 for key in batch.item_keys.tolist()]
        mixed = np.random.default_rng(1).permutation(keys)
        out = {"reward": np.empty(100, np.float32)}
        again = table.gather(mixed, columns=["reward"], out=out)
        assert out["reward"].tolist() == [value[key] for key in mixed.tolist()] and again.present.all()
        assert table.delete(keys[::2]) == 50 and len(table) == 50
        gone = table.gather(keys, columns=["reward"])
        assert gone.present.tolist() == [False, True] * 50
        assert table.update_priorities(keys, np.ones(100)) == 50 and table.stats().updates_stale == 50
        assert sorted(np.concatenate(list(table.keys())).tolist()) == sorted(keys[1::2].tolist())
        table.check()


def test_sequences_with_time_first(shards: Any) -> None:
    index = relive.Index(relive.Sequences(4, time_major=True))
    with attach(shards(2, index)) as table:
        for shard in (0, 1):
            with table.writer(shard=shard) as writer:
                write_steps(writer, 100 * shard, 16, truncated=True)
        batch = table.sample(64)
        assert batch["reward"].shape == (4, 64)
        assert (np.diff(batch["reward"], axis=0) == 1).all()
        assert {int(value) // 100 for value in batch["reward"][0]} == {0, 1}


def test_bad_calls_change_no_shard(shards: Any) -> None:
    with attach(shards(2)) as table:
        keys = np.concatenate([fill(table, 0, 0, 4), fill(table, 1, 4, 4)])
        before = table.stats().as_dict()
        for priorities in ([1.0] * 7 + [np.nan], [1.0] * 7 + [-1.0], [1.0] * 7 + [1e39]):
            with pytest.raises(errors.InvalidPriority) as bad:
                table.update_priorities(keys, np.array(priorities))
            assert bad.value.position == 7
        for foreign in (5 << 51 | 1, -1, int(keys[4]) | 2**16 - 1 << 17 | 2**17 - 1):
            for call in (table.delete, lambda some: table.update_priorities(some, np.ones(9))):
                with pytest.raises(errors.ForeignKey) as wrong:
                    call(np.append(keys, foreign))
                assert wrong.value.position == 8
        assert table.stats().as_dict() == before


def test_writers_take_the_local_the_named_or_the_emptiest_shard(shards: Any) -> None:
    names = shards(3)
    with attach(names, local=1) as table:
        with table.writer() as writer:
            assert write_steps(writer, 0, 8)[0] >> 51 == 1
        assert fill(table, 0, 8, 4)[0] >> 51 == 0
        for wrong in (7, 1.0, True, "1"):
            with pytest.raises(errors.InvalidConfig, match="shard"):
                table.writer(shard=wrong)  # type: ignore[arg-type]
    with attach(names) as table, table.writer() as writer:
        assert write_steps(writer, 12, 1)[0] >> 51 == 2
    with pytest.raises(errors.InvalidConfig):
        attach(names, local=3)


def test_stats_are_totals_and_versions_the_lowest(shards: Any) -> None:
    with attach(shards(2)) as table:
        fill(table, 0, 0, 10)
        fill(table, 1, 10, 30)
        table.set_policy_version(5)
        with relive.attach(table._fleet.shards[1].table.path.rpartition("relive-")[2]) as alone:
            alone.set_policy_version(4)
            assert alone.num_items() == 30
        stats = table.stats()
        assert (stats.num_steps, stats.capacity, stats.policy_version) == (40, 8192, 4) and table.policy_version == 4
        assert [one.num_steps for one in stats.shards] == [10, 30] and {one.state for one in stats.shards} == {"live"}
        assert table.capacity == 8192 and len(table) == 40
        table.sample(64)
        assert table.stats().indexes["default"].sampled == 64


def test_min_size_and_samples_per_insert_act_on_totals(shards: Any) -> None:
    limiter = relive.SamplesPerInsert(1.0, min_size=10, tolerance=10.0)
    with attach(shards(2, prioritized(limiter=limiter))) as table:
        fill(table, 0, 0, 6)
        with pytest.raises(errors.DeadlineExceeded) as caught:
            table.draw(1, timeout_s=0.0)
        assert caught.value.needs == "10 live items, and 1 samples left to draw"
        assert caught.value.has == "6 live items, and 6 samples left to draw"
        fill(table, 1, 6, 14)
        with table.writer(shard=0) as writer:
            with pytest.raises(errors.DeadlineExceeded):
                writer.append(**step(20, 21), timeout_s=0.0)
            table.draw(5)
            write_steps(writer, 20, 5)
        assert table.limiter() == limiter
        with pytest.raises(errors.RequestTooLarge):
            table.draw(21)


@pytest.mark.parametrize(
    "sampler",
    [
        relive.Uniform(),
        relive.TopK(7),
        relive.TopK(12),
        relive.TopK(40),
        relive.TopK(0.5),
        relive.Fresh(last=9),
        relive.Fresh(last=12),
    ],
    ids=repr,
)
def test_the_only_shard_refuses_a_draw_without_replacement_as_one_table_does(shards: Any, sampler: Any) -> None:
    """It does so before it waits: writers may stop as soon as min_size items are there."""
    index = relive.Index(sampler=sampler, limiter=relive.SamplesPerInsert(4.0, 12, 1000.0), replacement=False)

    def refusal(table: Any, num_items: int) -> str:
        try:
            table.draw(num_items, timeout_s=0.0)
        except errors.RequestTooLarge as error:
            return f"{error.requested} {error.window} {error}"
        except (errors.DeadlineExceeded, errors.WaitsForItself):
            return "waits"
        return "drawn"

    with relive.Table(plain_spec(), 4096, index) as one, attach(shards(1, index)) as table:
        asked = (3, 6, 7, 8, 9, 10, 12, 13, 5000)
        refusals = [refusal(one, num_items) for num_items in asked]
        assert [refusal(table, num_items) for num_items in asked] == refusals
        assert refusals[0] == "waits" and "without replacement" in refusals[-2]
        fill(table, 0, 0, 12)
        assert refusal(table, 6) == "drawn" and refusal(table, 13) == refusals[-2]


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    ("ratio", "times", "tolerance", "most"), [(1.0, 1, 32.0, 48), (2.0, 2, 48.0, 79), (1.0, 3, 32.0, 64)]
)
def test_a_draw_of_more_uses_than_may_be_left_where_writers_wait_is_refused(
    shards: Any, count: int, ratio: float, times: int, tolerance: float, most: int
) -> None:
    """Such a draw and the writers would wait for each other. The last of these draws is bound by the window alone."""
    limiter = relive.SamplesPerInsert(ratio, min_size=16, tolerance=tolerance)
    index = relive.Index(sampler=relive.Fifo(), limiter=limiter, max_times_sampled=times)

    def fills(writer: Any) -> int:
        with contextlib.suppress(errors.DeadlineExceeded):
            for number in range(1000):
                writer.append(**step(number, number + 1, truncated=True), timeout_s=0.0)
        return number

    with attach(shards(count, index), timeout_s=30.0) as table, table.writer(shard=count - 1) as writer:
        for call in (table.sample, table.draw, table.batches):
            with pytest.raises(errors.RequestTooLarge, match=r"tolerance [0-9]+: window \[-16, ") as refused:
                call(most + 1)
            assert refused.value.requested == most + 1
            bounds = f"max_times_sampled {times}" if most < limiter.window - ratio else ""
            assert (refused.value.window, refused.value.uses) == (most, bounds)
            assert (f" {most} uses of items may be left (" in str(refused.value)) == bool(bounds)
        for one_more in range(6):
            assert fills(writer)
            for _ in range(one_more):
                table.draw(1)
            fills(writer)
            assert table.sample(most, timeout_s=30.0).num_items == most


@pytest.mark.parametrize("count", [1, 2])
def test_items_without_mass_make_room_as_in_one_table(shards: Any, count: int) -> None:
    """No draw takes the limiter down while every priority is 0, so the writer goes on."""
    index = prioritized(limiter=relive.SamplesPerInsert(1.0, min_size=10, tolerance=10.0))
    with attach(shards(count, index)) as table, table.writer(shard=count - 1) as writer:
        write_steps(writer, 0, 20)
        for keys in table.keys():
            table.update_priorities(keys, np.zeros(len(keys)))
        with pytest.raises(errors.DeadlineExceeded):
            table.draw(4, timeout_s=0.0)
        writer.append(**step(20, 21), timeout_s=0.0)
        with pytest.raises(errors.DeadlineExceeded):
            writer.append(**step(21, 22), timeout_s=0.0)
        assert table.draw(4).num_items == 4


def test_a_draw_that_waits_for_an_item_with_mass_says_so(shards: Any) -> None:
    with attach(shards(2, prioritized())) as table:
        fill(table, 0, 0, 6)
        table.update_priorities(next(iter(table.keys())), np.zeros(6))
        with pytest.raises(errors.DeadlineExceeded) as caught:
            table.draw(1, timeout_s=0.0)
        assert "mass" in str(caught.value.needs) and "6 live items" in str(caught.value.has)


def test_who_waits_for_the_limiter_keeps_nobody_waiting(shards: Any) -> None:
    free, bound = prioritized(), prioritized(limiter=relive.MinSize(50))
    with attach(shards(2, {"free": free, "bound": bound})) as table:
        fill(table, 0, 0, 10)
        got: list[int] = []
        waits = threading.Thread(target=lambda: got.append(table.draw(4, timeout_s=60.0, index="bound").num_items))
        waits.start()
        for _ in range(50):
            assert table.draw(4, timeout_s=5.0, index="free").num_items == 4
        assert waits.is_alive()
        fill(table, 1, 10, 40)
        waits.join(60.0)
        assert got == [4]


def test_batches_that_are_not_used_go_back(shards: Any) -> None:
    with attach(shards(2)) as table:
        fill(table, 0, 0, 20)
        fill(table, 1, 20, 20)
        with table.batches(16, prefetch=3) as batches:
            for _ in range(5):
                assert next(batches).num_items == 16
        index = table.stats().indexes["default"]
        assert (index.sampled, index.in_flight) == (80, 0)


# ---- ranks -----------------------------------------------------------------------------------------------------------


def on_ranks(world: int, names: Names, work: Callable[[ShardedTable], Any]) -> list[Any]:
    results: list[Any] = [None] * world

    def run(rank: int, exchange: Any) -> None:
        with attach(names, stream=rank, exchange=exchange) as table:
            results[rank] = work(table)

    threads = [threading.Thread(target=run, args=(rank, one)) for rank, one in enumerate(Together(world).ranks())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    return results


@pytest.mark.parametrize(("count", "num_items"), [(2_000, 8), (20, 8), (20, 512)])
def test_ranks_send_and_hear_roots_and_nothing_that_grows(shards: Any, count: int, num_items: int) -> None:
    """A root of <= 64 bytes sent for a shard, and a head of 28 bytes; as much heard for each other shard."""
    names, draws = shards(2), 10
    with attach(names) as table:
        fill(table, 0, 0, count)
        fill(table, 1, count, 10)
    told = on_ranks(2, names, lambda table: [table.draw(num_items) for _ in range(draws)] and table.agreement_bytes)
    assert told == [(draws * (HEAD_BYTES + ROOT_BYTES),) * 2] * 2
    assert ROOT_BYTES <= 64 and told[0][0] <= draws * 84 and told[0][1] <= draws * 84


def test_ranks_draw_disjoint_shares_of_the_same_roots(shards: Any) -> None:
    names = shards(3)
    with attach(names) as table:
        sizes = [30, 60, 10]
        for shard, size in enumerate(sizes):
            fill(table, shard, 100 * shard, size)
    drawn = on_ranks(4, names, lambda table: [table.draw(25).item_keys for _ in range(20)])
    for ranks in zip(*drawn, strict=True):
        together = np.bincount(np.concatenate(ranks) >> 51, minlength=3)
        assert abs(together - np.array(sizes)).max() <= 1  # of 100 points: the shares of one comb, not of four


@pytest.mark.parametrize("max_times", [None, 1])
def test_ranks_are_given_the_same_first_items_unless_uses_are_counted(shards: Any, max_times: int | None) -> None:
    names = shards(2, relive.Index(sampler=relive.Fifo(), max_times_sampled=max_times))
    with attach(names) as table:
        keys = [fill(table, shard, 100 * shard, 100) for shard in (0, 1)]
    mine, theirs = on_ranks(2, names, lambda table: set(table.sample(8).item_keys.tolist()))
    if max_times is None:
        assert mine == theirs == {key for one in keys for key in one[:4].tolist()}
    else:
        assert mine | theirs == {key for one in keys for key in one[:8].tolist()} and len(mine | theirs) == 16


@pytest.mark.parametrize("what", ["shards", "root_age"])
def test_a_rank_with_other_shards_or_ages_is_named_before_the_first_draw(shards: Any, what: str) -> None:
    names = shards(2)
    others = shards(2) if what == "shards" else names
    ages = [1, 4] if what == "root_age" else [1, 1]
    caught: list[Any] = [None, None]

    def run(rank: int, exchange: Any) -> None:
        with pytest.raises(RanksDisagree) as found:
            attach([names, others][rank], exchange=exchange, root_age=ages[rank])
        caught[rank] = found.value

    threads = [threading.Thread(target=run, args=(rank, one)) for rank, one in enumerate(Together(2).ranks())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert [error.rank for error in caught] == [1, 0] and all(what in error.what for error in caught)
    if what == "root_age":
        assert [(error.expected, error.got) for error in caught] == [(1, 4), (4, 1)]


# ---- a shard that is made anew -------------------------------------------------------------------------------------


def keys_of_one_made(name: str, **more: Any) -> np.ndarray:
    """Of 40 steps of a shard that is removed again."""
    with ShardOwner(3, config_of(name), **more), attach([name]) as table:
        return fill(table, 3, 0, 40)


def test_keys_of_a_region_that_was_lost_are_gone_in_the_one_that_takes_its_number(shm_name: Any) -> None:
    name = shm_name()
    old = keys_of_one_made(name)
    with ShardOwner(3, config_of(name)) as owner, attach([name]) as table:
        new = fill(table, 3, 0, 40)
        assert not owner.is_restored and not set(old) & set(new) and (old >> 51 == new >> 51).all()
        assert not table.gather(old).present.any() and table.gather(new).present.all()
        assert table.update_priorities(old, np.full(40, 7.0)) == 0 and table.update_priorities(new, np.ones(40)) == 40
        assert table.delete(old) == 0 and len(table) == 40


def test_keys_are_the_same_where_the_epoch_is(shm_name: Any) -> None:
    first, again = (keys_of_one_made(shm_name(), epoch=7) for _ in range(2))
    other, last = keys_of_one_made(shm_name(), epoch=8), keys_of_one_made(shm_name(), epoch=2**62 - 1)
    assert (first == again).all() and not set(first) & set(other) and (last > 0).all() and (last >> 51 == 3).all()
    with relive.Table.from_config(config_of(shm_name())) as table, table.writer() as writer:
        alone = np.asarray(write_steps(writer, 0, 40))
    assert (keys_of_one_made(shm_name(), epoch=0) == alone + (3 << 51)).all(), "one that is no shard begins at 1"


def test_an_epoch_that_is_none(shm_name: Any) -> None:
    name = shm_name()
    for wrong in (-1, 2**62, "1", 1.5, True):
        with pytest.raises(errors.InvalidConfig, match="epoch"):
            ShardOwner(3, config_of(name), epoch=wrong)
    with ShardOwner(3, config_of(name), epoch=1) as owner, pytest.raises(errors.InvalidConfig, match="epoch"):
        ShardOwner(3, config_of(name), epoch=-1)  # also where it would not make one
    assert owner.number == 3


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_shards_that_do_not_belong_together(shards: Any, shm_name: Any) -> None:
    names = shards(2)
    other_spec, other_index, no_shard = shards(1, relive.Index())[0], shm_name(), shm_name()
    for wrong in ([names[0], names[0]], [names[1], other_spec], names[0], [], None, 3, b"shard"):
        with pytest.raises(errors.InvalidConfig):
            attach(wrong)  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidConfig, match="exchange"):
        attach(names, exchange=3)  # type: ignore[arg-type]
    with pytest.raises(errors.NoSuchTable):
        attach([names[0], no_shard])
    with relive.Table.from_config(config_of(other_index, prioritized(limiter=relive.MinSize(7)))):
        with pytest.raises(errors.InvalidConfig, match="limiter"):
            attach([other_index])
    for number in (-1, 4096, "0"):
        with pytest.raises(errors.InvalidConfig):
            make_shard(number, config_of(shm_name()))


def test_conditions_of_the_only_shard_and_of_several(shards: Any) -> None:
    """However the draw is asked for; of several shards a listing alone can have one."""
    for count in (1, 2):
        with attach(shards(count)) as table, relive.Mixture({"all": 1.0}, {"all": table}) as mixture:
            fill(table, 0, 0, 30)

            def batch(table: ShardedTable = table) -> relive.Batch:
                with table.batches(8, where="reward >= 20") as batches:
                    return next(batches)

            for draw in (
                lambda table=table: table.sample(8, where="reward >= 20"),
                lambda table=table: table.gather(table.draw(8, where="reward >= 20")),
                lambda mixture=mixture: mixture.sample(8, where="reward >= 20"),
                lambda table=table: GroupReader(table, next(Together(1).ranks())).sample(8, where="reward >= 20"),
                batch,
            ):
                if count == 1:
                    assert draw()["reward"].min() >= 20.0
                else:
                    with pytest.raises((NotOverShards, RankFailed), match="where="):
                        draw()
            assert sum(len(page) for page in table.keys(where="reward >= 20")) == 10


@pytest.mark.parametrize(
    "index",
    [
        relive.Index(sampler=relive.Shuffle()),
        relive.Index(sampler=relive.Fresh(decay=0.9)),
        relive.Index(replacement=False),
    ],
)
def test_what_does_not_work_yet_says_so(shards: Any, index: relive.Index) -> None:
    with pytest.raises(NotOverShards) as refused:
        attach(shards(2, index))
    assert refused.value.what and refused.value.reason and refused.value.instead


def test_calls_that_do_not_work_yet_say_so(shards: Any) -> None:
    with attach(shards(2)) as table:
        fill(table, 0, 0, 4)
        for call in (
            lambda: table.sample(1, where="reward > 0"),
            lambda: table.draw(1, where="reward > 0"),
            lambda: table.set_limiter(relive.MinSize(2)),
        ):
            with pytest.raises(NotOverShards):
                call()


def test_a_second_owner_is_refused_and_handles_of_this_process_need_none(shm_name: Any) -> None:
    name = shm_name()
    with ShardOwner(1, config_of(name)) as owner:
        assert not owner.is_restored
        with pytest.raises(errors.NameTaken):
            ShardOwner(1, config_of(name))
        with pytest.raises(errors.InvalidConfig):
            ShardOwner(2, config_of(name))
        with attach([name]) as table:
            fill(table, 1, 0, 4)
            assert table.sample(4).num_items == 4
    local = [make_shard(number, relive.TableConfig(owner.table.spec, 100, prioritized())) for number in (0, 1)]
    with ShardedTable.over(local) as table:
        fill(table, 1, 0, 4)
        assert (table.draw(4).item_keys >> 51).tolist() == [1] * 4
