"""Batches that are drawn ahead over served shards: asked for behind each other, before earlier ones came."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from contract.tools import write_steps
from processes.shm import needs_shared_memory

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from processes.tools import eventually
from service.proxy import Proxy

import relive
from fleet.test_remote import settled
from fleet.tools import config_of, fill
from relive import errors
from relive.core.request import DrawRequest
from relive.fleet import ShardOwner, attach
from relive.fleet.drawing import Drawing
from relive.fleet.holds import FleetSource

pytestmark = needs_shared_memory


def test_batches_ahead_are_asked_for_before_the_first_of_them_is_taken(start: Any, shm_name: Any) -> None:
    """Each batch that was handed out counts once, and no other does; the owners hear of it soon."""
    owners = start()
    addresses = [owners.own(number, config_of(shm_name())) for number in range(2)]
    with attach(addresses, path="service") as table:
        for shard in range(2):
            fill(table, shard, 100 * shard, 50)
        source = ahead(table, 8, prefetch=4)
        source.ask(3)
        assert len(source._begun) == 1  # it brings the roots
        source.take().hold.give_back()
        source.ask(4)
        assert len(source._begun) == 4
        assert eventually(lambda: sum(owners.ask("in_flight", address) for address in addresses) == 4 * 8)
        source.close()
        for address in addresses:
            settled(owners, address)
        sampled = table.stats().indexes["default"].sampled
        with table.batches(8, prefetch=4) as batches:
            for _ in range(25):
                batch = next(batches)
                assert len(batch) == 8 and (batch["next_observation"] == batch["observation"] + 1).all()
            assert eventually(lambda: sum(owners.ask("in_flight", address) for address in addresses) == 4 * 8)
        for address in addresses:
            settled(owners, address)
        assert table.stats().indexes["default"].sampled == sampled + 25 * 8


@pytest.mark.parametrize(
    "index",
    [
        relive.Index(max_times_sampled=1),
        relive.Index(sampler=relive.Fifo()),
        relive.Index(limiter=relive.SamplesPerInsert(4.0, 1, 1_000.0)),
    ],
    ids=["uses", "order", "limiter"],
)
def test_draws_that_follow_from_each_other_are_made_one_after_another(start: Any, shm_name: Any, index: Any) -> None:
    owners = start()
    with attach([owners.own(0, config_of(shm_name(), index))], path="service") as table:
        fill(table, 0, 0, 50)
        source, _ = table._batch_source(DrawRequest(0, 4), None, 4, 5.0)  # type: ignore[arg-type]
        source.ask(3)
        assert not source._begun  # type: ignore[attr-defined]
        source.close()


def test_a_batch_handed_out_while_its_stream_waits_for_the_next_one_counts_soon(start: Any, shm_name: Any) -> None:
    """The stream has another answer under way as the batch is handed out, and no message follows."""
    owners = start()
    address = owners.own(0, config_of(shm_name()))
    with attach([address], path="service") as table:
        fill(table, 0, 0, 50)
        drawing, request = table._fleet.drawing, DrawRequest(0, 4)
        first = drawing.finish(drawing.begin(request, 5.0), 5.0)
        second = drawing.begin(request, 5.0)
        drawing.commit(first)
        assert all(part._pending.outcome is None for part in first.held)  # type: ignore[attr-defined]
        drawing.flush()
        third = drawing.finish(second, 5.0)
        assert eventually(lambda: owners.ask("in_flight", address) == 4)
        drawing.commit(third)
        drawing.flush()
        settled(owners, address)


def test_mapped_shards_draw_as_if_nothing_were_ahead(shm_name: Any) -> None:
    name = shm_name()
    with ShardOwner(0, config_of(name)), attach([name]) as table:
        assert not table._fleet.drawing.can_overlap(0)


def test_batches_ahead_go_on_without_a_killed_owner(start: Any, shm_name: Any) -> None:
    near, far = start(), start()
    addresses = [near.own(0, config_of(shm_name())), far.own(1, config_of(shm_name()))]
    with attach(addresses, path="service", timeout_s=10.0) as table:
        for shard in range(2):
            fill(table, shard, 100 * shard, 50)
        with table.batches(8, prefetch=4) as batches:
            assert {int(key) >> 51 for _ in range(5) for key in next(batches).item_keys} == {0, 1}
            far.kill()
            shards = [{int(key) >> 51 for key in next(batches).item_keys} for _ in range(20)]
            assert shards[-1] == {0}
        settled(near, addresses[0])


# ---- what comes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_shards", [1, 2])
@pytest.mark.parametrize(
    "items",
    [
        relive.Transitions(stack={"observation": 2}),
        relive.Sequences(5, period=2, at_end="pad"),
        relive.Sequences(5, period=2, at_end="pad", time_major=True),
        relive.Episodes(12),
        relive.Episodes(12, layout="ragged"),
    ],
    ids=lambda items: type(items).__name__,
)
def test_each_batch_is_what_its_keys_say(start: Any, shm_name: Any, items: Any, num_shards: int) -> None:
    owners = start()
    index = relive.Index(items, relive.Prioritized(0.6))
    addresses = [owners.own(number, config_of(shm_name(), index)) for number in range(num_shards)]
    with attach(addresses, path="service") as table:
        for shard in range(num_shards):
            for first in range(0, 60, 12):
                with table.writer(shard=shard) as writer:
                    write_steps(writer, 100 * shard + first, 12 - shard, truncated=True)
        source = ahead(table, 6, prefetch=6)
        with relive.Batches(source, 6, 6, None, 10.0) as batches:
            for number in range(30):
                batch = next(batches)
                same = table.gather(batch.item_keys)
                assert len(batch) == 6 and batch.probabilities.shape == (6,) and batch.weights(beta=0.4).shape == (6,)
                for name in ("observation", "reward", "offsets", "lengths"):
                    assert (name in batch) == (name in same)
                    if name in batch:
                        assert np.array_equal(batch[name], same[name]), (name, number)


def ahead(table: Any, num_items: int, prefetch: int, **asked: Any) -> FleetSource:
    """The source of batches(), whose columns are all."""
    opened: list[Any] = []
    make = table._batch_source

    def note(*arguments: Any) -> Any:
        opened.append(make(*arguments))
        return opened[-1]

    table._batch_source = note
    try:
        table.batches(num_items, prefetch=prefetch, timeout_s=10.0, **asked)
    finally:
        del table._batch_source
    source = opened[0][0]
    assert isinstance(source, FleetSource)
    return source


def test_batches_ahead_are_fair_samples(start: Any, shm_name: Any) -> None:
    """Every other batch has each item as often as its probability says."""
    owners = start()
    addresses = [owners.own(number, config_of(shm_name())) for number in range(2)]
    with attach(addresses, path="service") as table:
        keys = np.concatenate([fill(table, 0, 0, 30), fill(table, 1, 100, 10)])
        priorities = np.linspace(1.0, 5.0, 40)
        table.update_priorities(keys, priorities)
        shares = priorities / priorities.sum()
        counts = np.zeros((2, 40))
        order = np.argsort(keys)
        num_batches = 600
        with table.batches(16, prefetch=4) as batches:
            for number, batch in enumerate(itertools.islice(batches, num_batches)):
                at = order[np.searchsorted(keys[order], batch.item_keys)]
                assert np.allclose(batch.probabilities, shares[at], rtol=1e-3)
                np.add.at(counts[number % 2], at, 1)
        expected = shares * num_batches / 2 * 16
        assert ((counts - expected) ** 2 / expected).sum(1).max() < 80.0  # chi-square, 39 degrees: p < 0.0001


def test_the_same_batches_come_however_slow_the_program_is(start: Any, shm_name: Any) -> None:
    seen: list[list[int]] = []
    for pauses_s in (0.0, 0.01, 0.0):
        owners = start()
        addresses = [owners.own(number, config_of(shm_name())) for number in range(2)]
        with attach(addresses, path="service", stream=7) as table:
            for shard in range(2):
                fill(table, shard, 100 * shard, 50)
            with table.batches(8, prefetch=4) as batches:
                seen.append([])
                for batch in itertools.islice(batches, 20):
                    seen[-1] += batch["reward"].tolist()
                    time.sleep(pauses_s)
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize("num_taken", [1, 4, 9])
def test_those_batches_count_that_were_handed_out(start: Any, shm_name: Any, num_taken: int) -> None:
    owners = start()
    addresses = [owners.own(number, config_of(shm_name())) for number in range(2)]
    with attach(addresses, path="service") as table:
        for shard in range(2):
            fill(table, shard, 100 * shard, 50)
        with table.batches(8, prefetch=8) as batches:
            for _ in range(num_taken):
                next(batches)
        for address in addresses:
            settled(owners, address)
        assert table.stats().indexes["default"].sampled == 8 * num_taken


@pytest.mark.parametrize("prefetch", [0, 1, 4])
def test_what_was_handed_out_counts_though_the_table_closes_at_once(start: Any, shm_name: Any, prefetch: int) -> None:
    """The stream with the ticket ends as soon as the owner has read it, not before."""
    owners = start()
    addresses = [owners.own(number, config_of(shm_name())) for number in range(2)]
    with attach(addresses, path="service") as watching:
        for shard in range(2):
            fill(watching, shard, 100 * shard, 50)
        for number in range(1, 21):
            with attach(addresses, path="service") as table:
                if prefetch:
                    with table.batches(8, prefetch=prefetch) as batches:
                        for _ in range(5):
                            next(batches)
                else:
                    for _ in range(5):
                        table.sample(8)
            for address in addresses:
                settled(owners, address)
            assert watching.stats().indexes["default"].sampled == number * 40


@pytest.fixture
def slow(shm_name: Any) -> Iterator[Any]:
    """A table of 64 frames of 16 kB whose owner is behind a link, and the link."""
    spec = relive.StepSpec({"frame": relive.ArraySpec((64, 64, 4), "uint8")})
    name = shm_name()
    config = relive.TableConfig(spec, 1_000, storage=relive.SharedMemory(name), timeout_s=60.0)
    with ShardOwner(0, config) as owner:
        address = owner.serve()
        with Proxy(int(address.rsplit(":", 1)[1].split("/")[0])) as link:
            with attach([f"{link.address}/{name}"], path="service", timeout_s=60.0) as table:
                with table.writer() as writer:
                    writer.extend(frame=np.ones((64, 64, 64, 4), np.uint8))
                yield table, link


def test_batches_ahead_of_a_slow_link_have_their_time_one_after_another(slow: Any) -> None:
    """All that was asked for takes twice the deadline to come, and each batch a small part of it."""
    table, link = slow
    link.bytes_a_second = 2e6
    with table.batches(8, prefetch=40, timeout_s=1.5) as batches:
        for _ in range(25):
            assert (next(batches)["frame"] == 1).all()


def test_shards_that_fill_up_and_new_priorities_are_seen_by_draws_ahead(start: Any, shm_name: Any) -> None:
    """Roots that come with draws replace questions for them, and the shard without a mass tells none."""
    owners = start()
    addresses = [owners.own(number, config_of(shm_name())) for number in range(2)]
    with attach(addresses, path="service") as table:
        keys = fill(table, 0, 0, 50)
        with table.batches(8, prefetch=4) as batches:
            assert {int(key) >> 51 for batch in itertools.islice(batches, 10) for key in batch.item_keys} == {0}
            more = fill(table, 1, 100, 50)
            assert eventually(lambda: any(int(key) >> 51 == 1 for key in next(batches).item_keys))
            table.update_priorities(keys, np.full(50, 1e-6))
            table.update_priorities(more[1:], np.full(49, 1e-6))
            assert eventually(lambda: (next(batches).item_keys == more[0]).all())


def test_a_root_that_is_none_ends_its_draw(start: Any, shm_name: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    owners = start()
    address = owners.own(0, config_of(shm_name()))
    with attach([address], path="service") as table:
        fill(table, 0, 0, 50)
        drawing = table._fleet.drawing
        for told in ("no root", "00"):
            begun = drawing.begin(DrawRequest(0, 4), 5.0)
            with monkeypatch.context() as patched, pytest.raises(errors.BadMessage):
                patched.setattr("relive.fleet.remote.shard.framing.field", lambda *_, told=told: told)
                drawing.finish(begun, 5.0)
        settled(owners, address)
        assert len(table.sample(4)) == 4


def test_rows_of_shards_in_a_mixture_have_the_time_of_the_call(shm_name: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where another source is drawn first, and the limiter is asked once."""
    times: list[float] = []
    as_it_is = Drawing.hold

    def hold(drawing: Any, request: Any, timeout_s: float, arrives_s: float = 0.0) -> Any:
        times.append(max(timeout_s, arrives_s))
        return as_it_is(drawing, request, timeout_s, arrives_s)

    monkeypatch.setattr(Drawing, "hold", hold)
    name = shm_name()
    with ShardOwner(0, config_of(name)), attach([name]) as table:
        fill(table, 0, 0, 30)
        for order in (("a", "b"), ("b", "a")):
            with relive.Mixture({name: 0.5 for name in order}, {"a": table, "b": table}, timeout_s=60.0) as mixture:
                mixture.sample(8)
                with mixture.batches(8, prefetch=1) as batches:
                    next(batches)
    assert times and min(times) > 40.0
