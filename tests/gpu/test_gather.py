"""The kernels gather the same bits as the core."""

from __future__ import annotations

import numpy as np
import pytest
from naive.program import SPECS, Driver, make_index, make_spec
from naive.test_naive import random_programme

import relive
from gpu.tools import (
    DEVICE,
    GPU_BLOCKS,
    DeviceReader,
    assert_gathers_the_same,
    assert_same,
    numbered_rows,
    numbered_spec,
    set_rounds,
    torch,
)
from relive.gpu.kernels.words import NUM_COPIES

# Seeds whose programmes cover every kind of columns, one and two indexes, small and roomy tables (see the test below).
SEEDS = (302, 303, 306, 312, 311, 319)
LENGTH = 90


def test_the_seeds_cover_what_they_should() -> None:
    programmes = [random_programme(seed, LENGTH, None, windows=False) for seed in SEEDS]
    assert {programme.columns for programme in programmes} == set(SPECS)
    indexes = [items for programme in programmes for items in programme.indexes]
    assert {len(programme.indexes) for programme in programmes} == {1, 2}
    assert {items.stack_pad for items in indexes if items.stack} == {"repeat", "zeros"}
    assert {items.n_step for items in indexes} >= {1, 2, 4, 5}


@pytest.mark.forms(2)
@pytest.mark.parametrize("seed", SEEDS)
def test_random_programmes_gather_the_same_bytes(seed: int) -> None:
    programme = random_programme(seed, LENGTH, None, windows=False)
    index = {f"index{number}": make_index(items) for number, items in enumerate(programme.indexes)}
    lanes = sum(size or 1 for size in programme.writers)
    table = relive.Table(make_spec(SPECS[programme.columns]), programme.capacity, index, max_lanes=lanes + 2, seed=7)
    with table, DeviceReader(table, DEVICE) as reader:
        driver = Driver(SPECS[programme.columns], table, programme.writers, programme.indexes)
        for op in programme.ops:
            driver.apply(op)
        keys = np.asarray(driver.twin.keys, np.int64)
        for name in index:
            assert_gathers_the_same(table, reader, keys, name)
        for writer in driver.writers:
            writer.close()
        keys = np.asarray(driver.twin.keys[-60:], np.int64)
        assert assert_gathers_the_same(table, reader, keys, "index0") > 0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_returns_round_as_the_core_rounds_them(dtype: str) -> None:
    """gamma 0.99, ordinary rewards and discounts: sums in float64 in the core's order, rounded once."""
    rng = np.random.default_rng(4)
    spec = relive.StepSpec(
        {"observation": relive.ArraySpec((2,), "float32", kind="state"), "reward": relive.ArraySpec((), dtype)}
    )
    with relive.Table(spec, 4096, relive.Index(relive.Transitions(n_step=7, gamma=0.99))) as table:
        with table.writer() as writer:
            keys = writer.extend(
                observation=rng.normal(size=(1001, 2)).astype("f4"),
                reward=(rng.normal(size=1000) * 10.0 ** rng.integers(-6, 6, 1000)).astype(dtype),
                discount=rng.random(1000, np.float32),
                terminated=rng.random(1000) < 0.02,
            )
        with DeviceReader(table, DEVICE) as reader:
            assert assert_gathers_the_same(table, reader, keys, None) == 1000


def test_every_page_in_another_frame() -> None:
    """A page is not a frame: kernels look the frame up, as the core does. Block sizes are those of a GPU."""
    index = relive.Index(relive.Transitions(n_step=3, stack={"frame": 3}))
    with relive.Table(numbered_spec(), 1000, index, max_lanes=2) as table:
        with table.writer() as writer:
            keys = writer.extend(**numbered_rows(0, 900), truncated=True)
        with DeviceReader(table, DEVICE) as reader:
            set_rounds(reader, blocks=GPU_BLOCKS)
            assert table._core.move_all_pages() > 10
            chosen = keys[np.random.default_rng(0).integers(0, 900, 200)]
            assert assert_gathers_the_same(table, reader, chosen, None) == 200


def test_words_of_pages_are_copied_as_they_are() -> None:
    """A batch of more items than the table has pages copies their words, frames and ends, each to its own cell."""
    with relive.Table(numbered_spec(), 300, max_lanes=2) as table, table.writer() as writer:
        keys = writer.extend(**numbered_rows(0, 250), truncated=True)
        assert table._core.move_all_pages() > 3
        region, facts = np.frombuffer(table._core.region_bytes(), np.uint8), table._core.geometry
        count = facts["num_pages"]
        with DeviceReader(table, DEVICE) as reader:
            rounds, outputs = reader._rounds_of(0), reader._plan(None, ["action"])[1]
            chosen = torch.from_numpy(keys[:count]).to(DEVICE)
            scratch = rounds.scratch(count)
            with reader._view.held() as span:
                rounds.gather(span, scratch, chosen, outputs.room(count, None, reader.device))
            copies = scratch.cells[-int(NUM_COPIES) * count :].cpu().numpy().reshape(-1, count)
        words = region[facts["words_offset"] :][: 8 * count].view(np.int64)
        frames = region[facts["frames_offset"] :][: 4 * count].view(np.int32)
        np.testing.assert_array_equal(copies[0], words)
        np.testing.assert_array_equal(copies[1], frames)
        np.testing.assert_array_equal(copies[3], words)
        assert not (copies[1][1:] == copies[1][:-1]).all() and (copies[2] > 0).any()


def test_large_rows_are_copied_in_tiles() -> None:
    """Rows of 3 kB and 100 kB and odd sizes, more than one tile each, beside small ones."""
    spec = relive.StepSpec(
        {
            "observation": relive.ArraySpec((28, 28, 4), "uint8", kind="state"),
            "core": relive.ArraySpec((2, 6400), "float64", kind="start"),
            "odd": relive.ArraySpec((9001,), "uint8"),
            "reward": relive.ArraySpec((), "float32"),
        }
    )
    rng = np.random.default_rng(2)
    rows = {
        "observation": rng.integers(0, 256, (21, 28, 28, 4), dtype=np.uint8),
        "core": rng.normal(size=(20, 2, 6400)),
        "odd": rng.integers(0, 256, (20, 9001), dtype=np.uint8),
        "reward": rng.normal(size=20).astype(np.float32),
    }
    with relive.Table(spec, 64, relive.Index(relive.Transitions(stack={"observation": 2})), max_lanes=1) as table:
        with table.writer() as writer:
            keys = writer.extend(**rows, truncated=True)
        with DeviceReader(table, DEVICE) as reader:
            set_rounds(reader, blocks=GPU_BLOCKS)
            columns = ["observation", "next_observation", "core", "odd"]
            chosen = keys[[0, 3, 17]]
            assert_same(table.gather(chosen, columns), reader.gather(chosen, columns))


def test_generations_of_reused_pages_tell_old_keys_from_new() -> None:
    """Slots are reused many times over; a key of an earlier generation is not present, whatever lies there now."""
    with relive.Table(numbered_spec(), 64, max_lanes=1) as table, table.writer() as writer:
        with DeviceReader(table, DEVICE) as reader:
            old: list[np.ndarray] = []
            for turn in range(16):
                old.append(writer.extend(**numbered_rows(100 * turn, 100)))
            keys = np.concatenate(old)
            slots = keys & ((1 << table._core.geometry["slot_bits"]) - 1)
            assert len(np.unique(slots)) < len(keys) / 4
            assert 0 < assert_gathers_the_same(table, reader, keys, None) <= 64


def test_items_deleted_or_of_a_cut_lane() -> None:
    with relive.Table(numbered_spec(), 200, relive.Index(relive.Transitions(n_step=4)), max_lanes=2) as table:
        with table.writer() as writer:
            keys = writer.extend(**numbered_rows(0, 50))
        assert table.delete(keys[10:20]) == 10
        with DeviceReader(table, DEVICE) as reader:
            assert assert_gathers_the_same(table, reader, keys, None) == 40
