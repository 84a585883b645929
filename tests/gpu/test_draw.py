"""The weighted draw on the device: the core's leaves for the same points, the core's draws for the same calls."""

from __future__ import annotations

import time

import numpy as np
import pytest
from processes.shm import needs_shared_memory

import relive
from gpu.tools import DEVICE, DeviceReader, all_columns, assert_same, numbered_rows, numbered_spec, set_rounds, torch
from relive import _core
from relive.errors import InvalidConfig
from relive.gpu.draw import DeviceSampler

PRIORITIZED = relive.Index(relive.Transitions(n_step=2), relive.Prioritized(priority_exponent=0.7))


def filled(count: int, priorities: np.ndarray | None = None, **more: object) -> tuple[relive.Table, np.ndarray]:
    table = relive.Table(numbered_spec(), 4096, PRIORITIZED, max_lanes=2, seed=11, **more)
    with table.writer() as writer:
        keys = writer.extend(**numbered_rows(0, count), truncated=True)
    if priorities is not None:
        table.update_priorities(keys, priorities)
    return table, keys


def slots_at(table: relive.Table, reader: DeviceReader, points: np.ndarray) -> np.ndarray:
    sampler = DeviceSampler(table._core, 0, 11, reader._view)
    return sampler.slots_at(reader._rounds_of(0), torch.from_numpy(points).to(DEVICE)).cpu().numpy()


def test_the_same_points_lead_to_the_same_leaves() -> None:
    """Random points, points exactly on the borders between leaves, the ends of the line, and beyond."""
    rng = np.random.default_rng(0)
    priorities = rng.gamma(0.3, size=1500) * (rng.random(1500) < 0.7)
    table, keys = filled(1500, priorities)
    with table, DeviceReader(table, DEVICE) as reader:
        total = table._core.total(0)
        masses = tree_leaves(table)
        borders = np.cumsum(masses)
        points = np.concatenate(
            [rng.random(1500) * total, borders[::3], np.nextafter(borders[::7], 0), [0.0, total, 2 * total, np.inf]]
        )
        expected = _core.descend(table._core, 0, points)
        got = slots_at(table, reader, points)
        np.testing.assert_array_equal(got, expected)
        assert got[-3:].tolist() == [-1, -1, -1] and (got[:1500] >= 0).all()
        assert (masses[got[got >= 0]] > 0).all()


def tree_leaves(table: relive.Table) -> np.ndarray:
    geometry = table._core.geometry
    start = geometry["trees_offset"][0]
    return np.frombuffer(table._core.region_bytes(), np.float64, geometry["num_slots"], start).copy()


@pytest.mark.forms(1)
@pytest.mark.parametrize("shared", [False, pytest.param(True, marks=needs_shared_memory)])
def test_a_draw_is_what_the_core_draws_in_that_call(shared: bool, shm_name) -> None:
    rng = np.random.default_rng(1)
    storage = {"storage": relive.SharedMemory(shm_name())} if shared else {}
    table, keys = filled(700, rng.random(700), **storage)
    with table, DeviceReader(table, DEVICE, stream=0) as reader:
        for size in (1, 33, 256):
            core, device = table.draw(size), reader.draw(size)
            np.testing.assert_array_equal(device.item_keys.cpu().numpy(), core.item_keys)
            np.testing.assert_array_equal(device.probabilities.cpu().numpy(), core.probabilities)
            assert device.num_live_items == core.num_live_items == 700
        columns = all_columns(table)
        core, device = table.sample(64, columns), reader.sample(64, columns)
        np.testing.assert_array_equal(device.item_keys.cpu().numpy(), core.item_keys)
        assert_same(core, device)
        assert device.present is None
        np.testing.assert_allclose(device.weights(0.4).cpu().numpy(), core.weights(0.4), rtol=1e-5)
        np.testing.assert_allclose(device.weights(0.4, None).cpu().numpy(), core.weights(0.4, None), rtol=1e-5)
        assert reader.sample(5)["action"].shape == (5,)


def test_the_last_n_are_what_the_core_draws() -> None:
    table = relive.Table(numbered_spec(), 4096, relive.Index(sampler=relive.Fresh(last=20)), max_lanes=2, seed=11)
    with table, DeviceReader(table, DEVICE, stream=0) as reader, table.writer() as writer:
        for first in (0, 300):
            keys = writer.extend(**numbered_rows(first, 300), truncated=True)
            core, device = table.draw(64), reader.draw(64)
            np.testing.assert_array_equal(device.item_keys.cpu().numpy(), core.item_keys)
            np.testing.assert_allclose(device.probabilities.cpu().numpy(), 1 / 20)
            assert np.isin(device.item_keys.cpu().numpy(), keys[-20:]).all()


def test_streams_differ_and_repeat() -> None:
    table, _ = filled(500)
    with table:
        drawn = []
        for stream in (None, None, 5):
            with DeviceReader(table, DEVICE, stream=stream) as reader:
                drawn.append(reader.draw(50).item_keys.cpu().numpy().tolist())
                assert (stream is None) == (reader.stream != 5)
        assert drawn[0] == drawn[1] != drawn[2]
        assert drawn[0] != table.draw(50).item_keys.tolist(), "a stream of its own, beside the handle's"


def test_draws_follow_the_masses_and_never_meet_a_zero() -> None:
    rng = np.random.default_rng(3)
    priorities = rng.random(300) ** 3
    priorities[rng.random(300) < 0.3] = 0.0
    table, keys = filled(300, priorities)
    with table, DeviceReader(table, DEVICE) as reader:
        counts = np.zeros(300)
        number_of = {int(key): number for number, key in enumerate(keys)}
        for _ in range(4):
            for key in reader.draw(3000).item_keys.tolist():
                counts[number_of[key]] += 1
        assert (counts[priorities == 0.0] == 0).all()
        masses = priorities.astype(np.float32).astype(float) ** 0.7
        expected = masses / masses.sum() * counts.sum()
        enough = expected > 5
        statistic = ((counts - expected)[enough] ** 2 / expected[enough]).sum()
        freedom = enough.sum() - 1
        assert statistic < freedom + 4 * np.sqrt(2 * freedom), "chi-square far beyond its spread"
        first = reader.draw(3000)
        np.testing.assert_allclose(
            first.probabilities.cpu().numpy().mean(), (masses**2).sum() / masses.sum() ** 2, rtol=0.02
        )


def test_an_index_without_mass_is_waited_for_until_the_deadline() -> None:
    table, keys = filled(50)
    with table, DeviceReader(table, DEVICE) as reader:
        table.update_priorities(keys, np.zeros(50, np.float32))
        start = time.monotonic()
        with pytest.raises(relive.DeadlineExceeded) as caught:
            reader.draw(4, timeout_s=0.05)
        assert time.monotonic() - start < 20 and caught.value.has == 0 and caught.value.waited_s >= 0.05
        table.update_priorities(keys[7:8], np.ones(1, np.float32))
        assert reader.draw(4, timeout_s=0.0).item_keys.tolist() == [int(keys[7])] * 4
        assert reader.draw(4).probabilities.tolist() == [1.0] * 4


def test_a_device_draw_counts_for_nothing() -> None:
    """Neither limiter nor use counts: the table's books are as they were."""
    index = relive.Index(limiter=relive.SamplesPerInsert(1.0, min_size=10), max_times_sampled=1)
    with relive.Table(numbered_spec(), 1000, index, max_lanes=1) as table, table.writer() as writer:
        writer.extend(**numbered_rows(0, 100))
        before = table.stats()
        with DeviceReader(table, DEVICE) as reader:
            reader.sample(64)
            reader.draw(500)
        after = table.stats()
        assert after.indexes == before.indexes
        table.check()


DRAWN_INDEXES = {
    "steps": relive.Index(relive.Transitions()),
    "windows": relive.Index(
        relive.Sequences(8, burn_in=3, bootstrap=1, period=4, at_end="shift"), relive.Prioritized()
    ),
    "crossing": relive.Index(relive.Sequences(8, at_end="cross")),
    "whole": relive.Index(relive.Episodes(60)),
    "ends": relive.Index(relive.Episodes(60, layout="ragged")),
}


def test_sequences_and_episodes_are_drawn_as_the_core_draws_them() -> None:
    with relive.Table(numbered_spec(), 4096, DRAWN_INDEXES, seed=11) as table:
        with table.writer() as writer:
            for number, length in enumerate((40, 3, 55, 17, 26)):
                writer.extend(**numbered_rows(100 * number, length), truncated=True)
        with DeviceReader(table, DEVICE, stream=0) as reader:
            for name in DRAWN_INDEXES:
                core, device = table.draw(33, index=name), reader.draw(33, index=name)
                np.testing.assert_array_equal(device.item_keys.cpu().numpy(), core.item_keys)
                np.testing.assert_array_equal(device.probabilities.cpu().numpy(), core.probabilities)
                assert table.gather(device.item_keys.cpu().numpy(), index=name).present.all()


def test_groups_are_refused_by_name() -> None:
    task = relive.ArraySpec((), "int64", kind="episode")
    groups = relive.Index(relive.Episodes(60, group_by="task", group_size=2, max_groups=10))
    with relive.Table(relive.StepSpec({"task": task}), 4096, groups) as table, DeviceReader(table, DEVICE) as reader:
        for call in (reader.draw, reader.sample, lambda count: reader.gather(np.arange(count))):
            with pytest.raises(InvalidConfig, match="without group_by") as caught:
                call(4)
            assert caught.value.what == "items of index 'default'"


def test_a_draw_that_a_change_of_the_exponent_meets_is_drawn_anew() -> None:
    """The first launch of the call is followed by the change: what it drew by old masses does not count."""
    table, keys = filled(40, np.arange(1, 41, dtype=np.float32))
    with table, DeviceReader(table, DEVICE) as reader:
        before = reader.draw(32)
        changed = []

        def change(stage: str) -> None:
            if not changed:
                changed.append(stage)
                table.set_priority_exponent(2.0)

        set_rounds(reader, change)
        draw = reader.draw(32)
        assert changed
    priorities = np.arange(1, 41, dtype=np.float64)
    of = {int(key): priorities[k] for k, key in enumerate(keys)}
    for one, exponent in ((before, 0.7), (draw, 2.0)):
        total = (priorities**exponent).sum()
        expected = [of[int(key)] ** exponent / total for key in np.asarray(one.item_keys.cpu())]
        np.testing.assert_allclose(np.asarray(one.probabilities.cpu()), expected, rtol=1e-6)
