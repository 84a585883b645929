"""Shuffle as its users meet it: several processes in one epoch, removers and groups beside it, refusals, its cost."""

from __future__ import annotations

import os
import pickle
from typing import Any

import numpy as np
import pytest
from processes.shm import needs_shared_memory
from processes.tools import children

import relive
from relive import errors
from relive.core.request import DrawRequest

SPEC = relive.StepSpec({"number": relive.ArraySpec((), "int64")})


def shuffled(capacity: int, count: int, **options: Any) -> tuple[relive.Table, np.ndarray]:
    index = relive.Index(sampler=relive.Shuffle(), **options.pop("index", {}))
    table = relive.Table(SPEC, capacity, index, **options)
    with table.writer() as writer:
        keys = writer.extend(number=np.arange(count))
    return table, keys


def draw_many(pipe: Any, name: str, num_batches: int, num_items: int) -> None:
    with relive.attach(name) as table:
        drawn = [table.sample(num_items).item_keys for _ in range(num_batches)]
    pipe.send(np.concatenate(drawn))


def draw_until_killed(pipe: Any, name: str) -> None:
    table = relive.attach(name)
    pipe.send(table.draw(40).item_keys)
    while True:
        pipe.send(None)
        pipe.recv()


@needs_shared_memory
def test_four_processes_share_an_epoch() -> None:
    name = f"shuffle-of-four-{os.getpid()}"
    table, keys = shuffled(4_000, 4_000, storage=relive.SharedMemory(name, overwrite=True))
    with table, children() as start:
        drawing = [start("spawn", draw_many, name, 20, 50) for _ in range(4)]
        seen = np.concatenate([child.answer() for child in drawing])
        assert sorted(seen.tolist()) == sorted(keys.tolist())


@needs_shared_memory
def test_what_the_dead_had_drawn_is_lost_and_nothing_else() -> None:
    name = f"shuffle-of-the-dead-{os.getpid()}"
    table, keys = shuffled(400, 400, storage=relive.SharedMemory(name, overwrite=True))
    with table, children() as start:
        child = start("spawn", draw_until_killed, name)
        lost = child.answer()
        child.kill()
        seen = np.concatenate([table.draw(40).item_keys for _ in range(9)])
        assert sorted([*seen.tolist(), *lost.tolist()]) == sorted(keys.tolist())
        table.check()


@needs_shared_memory
def test_a_read_only_handle_cannot_take_a_turn() -> None:
    name = "shuffle-read-only"
    table, keys = shuffled(100, 50, storage=relive.SharedMemory(name, overwrite=True))
    with table, relive.attach(name, read_only=True) as reader:
        for call in (lambda: reader.draw(2), lambda: reader.sample(2)):
            with pytest.raises(errors.ReadOnly):
                call()
        with pytest.raises(errors.ReadOnly):
            reader.claim(relive.Draw.of(keys[:1], [1.0]))
        assert np.concatenate(list(reader.keys())).tolist() == keys.tolist()
        assert reader.gather(relive.Draw.of(keys[:1], [1.0])).present.all()


def test_what_comes_meanwhile_comes_at_most_once() -> None:
    table, keys = shuffled(1_000, 300)
    seen: list[int] = []
    with table, table.writer() as writer:
        for _ in range(10):
            seen += table.draw(20).item_keys.tolist()
            writer.extend(number=np.arange(5))
        seen += table.draw(100).item_keys.tolist()
        # The first epoch is over once each of the old ones has come; none of them twice before that.
        old = [key for key in seen if key in set(keys.tolist())]
        assert len(old[:250]) == len(set(old[:250]))


def test_a_failed_draw_gives_its_turns_back() -> None:
    table, keys = shuffled(100, 10, index={"max_times_sampled": 1})
    with table:
        assert len(set(table.draw(4).item_keys.tolist())) == 4
        with pytest.raises((errors.DeadlineExceeded, errors.WaitsForItself)):
            table.draw(7, timeout_s=0.0)
        assert table.num_items() == 6
        assert len(set(table.draw(6).item_keys.tolist())) == 6
        table.check()


def test_draws_that_go_back_give_their_turns_back() -> None:
    """If the newest goes back first, and no other draw came after it."""
    table, keys = shuffled(100, 20)
    with table:
        draws, request = table.held_draws(), DrawRequest(0, 4)
        drawn = [draws.draw(request, 1.0) for _ in range(3)]
        for one in reversed(drawn):
            one.hold.give_back()
        assert table.draw(12).item_keys.tolist() == [key for one in drawn for key in one.item_keys.tolist()]
        older, newer = draws.draw(request, 1.0), draws.draw(request, 1.0)
        older.hold.give_back()  # its positions are lost
        newer.hold.give_back()
        assert table.draw(4).item_keys.tolist() == newer.item_keys.tolist()
        table.check()


def test_batches_that_were_not_handed_out_come_again_in_the_epoch() -> None:
    table, keys = shuffled(100, 60)
    with table:
        with table.batches(6, prefetch=4, timeout_s=20.0) as batches:
            seen = next(batches).item_keys.tolist()
            while len(batches._bringer.ready) < 4:
                pass
        assert sorted([*seen, *table.draw(54).item_keys.tolist()]) == sorted(keys.tolist())


def test_a_sparse_table_is_walked_within_the_deadline() -> None:
    table, keys = shuffled(200_000, 1_000)
    with table:
        table.delete(keys[1:])
        assert table.draw(3, timeout_s=20.0).item_keys.tolist() == [int(keys[0])] * 3


@pytest.mark.parametrize("remover", [relive.Lifo(), relive.Uniform(), relive.MinPriority(), relive.Reservoir()])
def test_shuffle_beside_removers(remover: Any) -> None:
    table, _ = shuffled(200, 150, index={"remover": remover, "max_items": 20})
    with table:
        drawn = table.draw(20).item_keys.tolist()
        assert sorted(drawn) == sorted(np.concatenate(list(table.keys())).tolist())
        table.check()


def test_shuffle_of_sequences_and_explicit_items() -> None:
    sequences = relive.Index(relive.Sequences(4, period=2), sampler=relive.Shuffle())
    explicit = relive.Index(relive.Explicit({"": relive.Window(2)}, max_items=30), sampler=relive.Shuffle())
    with relive.Table(SPEC, 200, {"sequences": sequences, "explicit": explicit}) as table:
        with table.writer() as writer:
            keys = writer.extend(number=np.arange(60))
            made = table.create_items(keys[:12], index="explicit")
        assert sorted(table.draw(12, index="explicit").item_keys.tolist()) == sorted(made.tolist())
        assert np.concatenate(list(table.keys("explicit"))).tolist() == made.tolist()
        count = table.num_items("sequences")
        assert len(set(table.sample(count, index="sequences").item_keys.tolist())) == count


def test_configurations_hold_it() -> None:
    index = relive.Index(sampler=relive.Shuffle())
    assert relive.Index.from_dict(index.to_dict()) == index and pickle.loads(pickle.dumps(index)) == index
    table, _ = shuffled(100, 20)
    with table, pytest.raises(errors.NoPriorities):
        table.update_priorities([1], [1.0])
    with pytest.raises(errors.UnknownArgument):
        relive.Shuffle(seed=1)  # type: ignore[call-arg]


def test_a_claimed_draw_pickles_and_has_rows() -> None:
    own = relive.Draw.of([1, 2, 3], [0.5, 0.25, 0.25], index="best")
    again = pickle.loads(pickle.dumps(own))
    assert (again.index, again.item_keys.tolist()) == ("best", [1, 2, 3])
    assert own.rows(slice(1, None)).probabilities.tolist() == [0.25, 0.25]


@pytest.mark.core_alone
@pytest.mark.parametrize("num_keys", [1_000_000, pytest.param(10_000_000, marks=pytest.mark.soak)])
def test_an_epoch_of_many_keys_brings_each_once(num_keys: int) -> None:
    """The sampler stores one number, its progress. Otherwise the table is as large as without Shuffle."""
    sizes = []
    for sampler in (relive.Uniform(), relive.Shuffle()):
        with relive.Table(SPEC, num_keys, relive.Index(sampler=sampler), max_lanes=1) as table:
            sizes.append(table.stats().num_bytes)
            if isinstance(sampler, relive.Uniform):
                continue
            with table.writer() as writer:
                for first in range(0, num_keys, 100_000):
                    writer.extend(number=np.arange(first, first + 100_000))
            seen = np.zeros(num_keys, np.uint8)
            for first in range(0, num_keys, 8_192):
                np.add.at(seen, table.sample(min(8_192, num_keys - first))["number"], 1)
            assert (seen == 1).all()
    assert sizes[1] - sizes[0] <= 4096
