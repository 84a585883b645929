"""Sequences and episodes: what the kernels read is what the core reads, byte for byte, for every shape of window."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from naive.program import SPECS, Driver, make_spec
from naive.test_naive import random_programme

import relive
from gpu.tools import (
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

PAGE_LEN = 8
STATES = {name: [c for c, (_, _, kind) in columns.items() if kind == "state"] for name, columns in SPECS.items()}


def timed_columns(table: relive.Table) -> list[str]:
    return [*all_columns(table), "mask", "loss_mask"]


def random_items(rng: random.Random, columns: str) -> relive.Sequences | relive.Episodes:
    """Any shape but those that run over ends, with and without stacks, burn-in, bootstrap and the time axis first."""
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
        rng.choice(("pad", "shift", "drop")),
        rng.choice(("right", "left")),
        time_major=rng.random() < 0.4,
        **more,
    )


def assert_reads_the_same(table: relive.Table, reader: DeviceReader, keys: np.ndarray, index: str) -> int:
    """All columns of these keys, by core and kernels; how many were present."""
    columns = timed_columns(table)
    core, device = table.gather(keys, columns, index=index), reader.gather(keys, columns, index=index)
    assert device.present.numpy().tolist() == core.present.tolist()
    assert_same(core, device)
    assert device.lengths.tolist() == core.lengths.tolist()
    return int(core.present.sum())


@pytest.mark.parametrize("seed", range(8))
def test_random_programmes_read_the_same_bytes(seed: int) -> None:
    """Four indexes over the same steps, pages of eight rows, evictions, keys of earlier generations, closed lanes."""
    programme = random_programme(400 + seed, 45, None, windows=False)
    rng = random.Random(seed)
    index = {f"index{n}": relive.Index(random_items(rng, programme.columns)) for n in range(4)}
    lanes = sum(size or 1 for size in programme.writers)
    table = relive.Table(make_spec(SPECS[programme.columns]), 60 * lanes, index, max_lanes=lanes + 8, seed=7)
    with table, DeviceReader(table, "cpu", stream=0) as reader:
        assert table._core.geometry["page_len"] == PAGE_LEN
        driver = Driver(SPECS[programme.columns], table, programme.writers, programme.indexes)
        for op in programme.ops:
            driver.apply(op)
        for writer in driver.writers:
            writer.close()
        keys = np.asarray(driver.twin.keys, np.int64)
        for name in index:
            if assert_reads_the_same(table, reader, keys, name):
                core = table.gather(reader.draw(16, index=name).item_keys.numpy(), timed_columns(table), index=name)
                assert core.present.all()
