"""Sequences and episodes: what the kernels read is what the core reads, byte for byte, for every shape of window."""

from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np
import pytest
from naive.program import SPECS, Driver, make_spec
from naive.test_naive import random_programme

import relive
from gpu.tools import (
    DEVICE,
    GPU_BLOCKS,
    DeviceReader,
    all_columns,
    assert_same,
    numbered_rows,
    numbered_spec,
    set_rounds,
    torch,
)
from relive import errors
from relive.gpu.kernels.walks import STRETCH

PAGE_LEN = 8
STATES = {name: [c for c, (_, _, kind) in columns.items() if kind == "state"] for name, columns in SPECS.items()}


def timed_columns(table: relive.Table) -> list[str]:
    return [*all_columns(table), "mask", "loss_mask"]


def random_items(rng: random.Random, columns: str) -> relive.Sequences | relive.Episodes:
    """Any shape, with and without stacks, burn-in, bootstrap and the time axis first."""
    stack = {name: depth for name in STATES[columns] if (depth := rng.randint(1, 4)) > 1}
    more: dict[str, Any] = {"stack": stack, "stack_pad": rng.choice(("repeat", "zeros")), "gamma": rng.choice((1, 0.9))}
    if rng.random() < 0.4:
        too_long: Any = rng.choice(("head", "tail", "random"))
        if rng.random() < 0.5:
            return relive.Episodes(rng.randint(1, 20), rng.randint(0, 1), too_long, layout="ragged", **more)
        more["time_major"], more["pad"] = rng.random() < 0.4, rng.choice(("right", "left"))
        return relive.Episodes(rng.randint(1, 20), rng.randint(0, 1), too_long, **more)
    return relive.Sequences(
        rng.randint(1, 14),
        rng.randint(0, 9),
        rng.randint(0, 3),
        rng.choice((None, rng.randint(1, 10))),
        rng.choice(("pad", "shift", "drop", "cross", "cross")),
        rng.choice(("right", "left")),
        time_major=rng.random() < 0.4,
        **more,
    )


def assert_reads_the_same(
    table: relive.Table, reader: DeviceReader, keys: np.ndarray, index: str | None, columns: list[str] | None
) -> int:
    """These columns of these keys, by core and kernels; how many were present."""
    core, device = table.gather(keys, columns, index=index), reader.gather(keys, columns, index=index)
    assert device.present.cpu().numpy().tolist() == core.present.tolist()
    assert_same(core, device)
    if "mask" in core:
        assert device.lengths.tolist() == core.lengths.tolist()
    return int(core.present.sum())


@pytest.mark.parametrize("seed", [0, *(pytest.param(one, marks=pytest.mark.thorough) for one in (1, 2))])
def test_random_programmes_read_the_same_bytes(seed: int) -> None:
    """Three indexes over the same steps, pages of eight rows, evictions, keys of earlier generations, closed lanes."""
    programme = random_programme(400 + seed, 35, None, windows=False)
    rng = random.Random(seed)
    index = {f"index{n}": relive.Index(random_items(rng, programme.columns)) for n in range(3)}
    lanes = sum(size or 1 for size in programme.writers)
    table = relive.Table(make_spec(SPECS[programme.columns]), 64 * lanes, index, max_lanes=lanes + 8, seed=7)
    with table, DeviceReader(table, DEVICE) as reader:
        assert table._core.geometry["page_len"] == PAGE_LEN
        driver = Driver(SPECS[programme.columns], table, programme.writers, programme.indexes)
        for op in programme.ops:
            driver.apply(op)
        for writer in driver.writers:
            writer.close()
        keys = np.asarray(driver.twin.keys, np.int64)
        present = 0
        for name in index:
            # Without next_ states and truncated no row behind a whole window is looked at.
            few = rng.choice((None, ["loss_mask", *table.spec.columns], ["terminated"], ["policy_version", "first"]))
            for columns in (timed_columns(table), few):
                present += assert_reads_the_same(table, reader, keys, name, columns)
        assert present > 0


SHAPES = {
    "r2d2": relive.Sequences(8, burn_in=3, bootstrap=1, period=4, at_end="shift", gamma=0.997),
    "left": relive.Sequences(5, burn_in=2, bootstrap=2, period=3, pad="left", stack={"frame": 3}),
    "major": relive.Sequences(6, at_end="drop", time_major=True, stack={"observation": 4}, stack_pad="zeros"),
    "cross": relive.Sequences(9, burn_in=7, bootstrap=1, period=4, at_end="cross", stack={"frame": 2}),
    "whole": relive.Episodes(30, bootstrap=1, pad="left", time_major=True),
    "tail": relive.Episodes(13, too_long="tail"),
    "ragged": relive.Episodes(30, bootstrap=1, layout="ragged", stack={"observation": 4}),
}


def filled(items: Any, lengths: tuple[int, ...] = (24, 3, 29, 17), **more: Any) -> tuple[relive.Table, np.ndarray]:
    table = relive.Table(numbered_spec(), 2048, relive.Index(items, relive.Prioritized()), seed=11, **more)
    keys = []
    with table.writer() as writer:
        for number, length in enumerate(lengths):
            table.set_policy_version(number)
            keys.append(writer.extend(**numbered_rows(100 * number, length), truncated=True))
    return table, np.concatenate(keys)


@pytest.mark.forms(3)
@pytest.mark.parametrize("name", SHAPES)
def test_a_sample_is_what_the_core_samples_in_that_call(name: str) -> None:
    """Keys, probabilities, the columns that come unasked, trimmed where the core trims; block sizes of a GPU."""
    table, keys = filled(SHAPES[name])
    with table, DeviceReader(table, DEVICE, stream=0) as reader:
        core, device = table.sample(9), reader.sample(9)
        np.testing.assert_array_equal(device.item_keys.cpu().numpy(), core.item_keys)
        np.testing.assert_array_equal(device.probabilities.cpu().numpy(), core.probabilities)
        assert_same(core, device)
        assert device.mask.shape == core.mask.shape and device.lengths.tolist() == core.lengths.tolist()
        np.testing.assert_allclose(device.weights(0.4).cpu().numpy(), core.weights(0.4), rtol=1e-5)
        set_rounds(reader, blocks=GPU_BLOCKS)
        chosen = keys[np.random.default_rng(0).permutation(len(keys))[:40]]
        assert assert_reads_the_same(table, reader, np.concatenate([chosen, keys[:1]]), None, timed_columns(table)) > 0
        nobody = reader.gather(keys[:0])
        assert_same(table.gather(keys[:0]), nobody)
        assert nobody.num_items == 0


@pytest.mark.parametrize("items", [
    relive.Sequences(70, burn_in=10, bootstrap=1, period=9, at_end="shift"),
    relive.Sequences(64, at_end="pad", stack={"observation": 3}),
    relive.Episodes(150, bootstrap=1),
])  # fmt: skip
@pytest.mark.forms(1)
def test_windows_of_more_than_a_stretch(items: Any) -> None:
    """Pages and windows longer than the stretch of rows that the walk reads at a time, ends at each place of it."""
    lengths = (*range(61, 68), 95, 96, 97, 128, 150, 31, 32, 33)
    rows = {name: one for name, one in numbered_spec().columns.items() if name != "frame"}
    index = relive.Index(items, relive.Prioritized())
    with relive.Table(relive.StepSpec(rows), 40_000, index, max_lanes=2) as table, table.writer() as writer:
        assert table._core.geometry["page_len"] > 2 * int(STRETCH.value)
        keys = []
        for number, length in enumerate(lengths):
            given = numbered_rows(200 * number, length)
            del given["frame"]
            keys.append(writer.extend(**given, truncated=number % 2 == 0, terminated=number % 2 == 1))
        with DeviceReader(table, DEVICE) as reader:
            chosen = np.concatenate(keys)[::3]
            columns = ["observation", "next_observation", "action", "terminated", "truncated", "num_steps", "mask"]
            assert assert_reads_the_same(table, reader, chosen, None, columns) > len(lengths) // 2


def test_rows_end_to_end_have_offsets_and_no_out() -> None:
    table, keys = filled(SHAPES["ragged"])
    with table, DeviceReader(table, DEVICE) as reader:
        firsts = keys[[24, 1, 0, 27]]  # the second is no item
        batch = reader.gather(firsts, ["action"])
        assert list(batch) == ["action", "offsets"] and batch.present.tolist() == [True, False, True, True]
        assert batch.offsets.tolist() == [0, 4, 4, 29, 59]
        assert batch["action"].tolist() == [100, 101, 102, 0, *range(24), 0, *range(200, 229), 0]
        with pytest.raises(errors.UnknownColumn):
            _ = batch.lengths  # the rows behind are no steps, and only the mask tells
        nobody = reader.gather(keys[[1, 2]], ["action", "num_steps"])
        assert nobody.offsets.tolist() == [0, 0, 0] and nobody["num_steps"].tolist() == [0, 0]
        with pytest.raises(errors.InvalidConfig, match="out of ragged items"):
            reader.gather(firsts, ["action"], out={"action": torch.zeros(59, dtype=torch.int64, device=DEVICE)})


def test_out_of_items_with_a_time_axis_has_all_their_rows() -> None:
    table, keys = filled(SHAPES["whole"])
    with table, DeviceReader(table, DEVICE) as reader:
        ones = functools.partial(torch.ones, device=DEVICE)
        out = {"action": ones((31, 2), dtype=torch.int64), "mask": ones((31, 2), dtype=torch.bool)}
        batch = reader.gather(keys[[0, 1]], ["action"], out=out)
        assert out["mask"].sum(0).tolist() == [24, 0] and out["action"][6:30, 0].tolist() == list(range(24))
        assert batch["action"].shape == (25, 2) and batch["action"][0, 0] == 0
        for wrong in (ones((2, 31), dtype=torch.int64), ones((25, 2), dtype=torch.int64)):
            with pytest.raises(errors.ShapeMismatch):
                reader.gather(keys[[0, 1]], ["action"], out={**out, "action": wrong})
        with pytest.raises(errors.UnknownColumn):
            reader.gather(keys[:1], ["offsets"])
        with pytest.raises(errors.UnknownColumn):
            _ = reader.gather(keys[:1], ["action"]).offsets
