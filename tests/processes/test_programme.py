"""Every kind of item over one shared table in four processes; 60 s and more kills in the soak."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import relive
from processes import kinds, numbered, programme
from processes.shm import needs_shared_memory
from relive import Batch

pytestmark = needs_shared_memory
SECONDS, LONG_S = 2.5, 60.0


@pytest.mark.forms(1)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kills", [0, 2])
def test_every_item_is_what_its_rows_say(kills: int, shm_name: Any, profile_scale: int) -> None:
    is_long = profile_scale > 1
    seconds, kills = (LONG_S, kills * 10) if is_long else (SECONDS, kills)
    _, stats, wrong = programme.run(shm_name(), seconds, kills, seed=7)
    assert not wrong
    assert stats.swept <= kills and stats.evicted > programme.CAPACITY


# ---- the programme notices what it looks for -----------------------------------------------------------------------


@pytest.fixture
def table(shm_name: Any) -> Any:
    """Complete steps of one lane, and an explicit item of each episode's first ones."""
    with numbered.make_table(shm_name(), 2000, 500, 0) as made, made.writer(num_lanes=1) as writer:
        number = np.array([1 << 48], np.int64)
        random = np.random.default_rng(0)
        for _ in range(400):
            ends = numbered.steps_of(number) == numbered.lengths_of(number) - 1
            keys = kinds._append(writer, np.array([0]), number, ends, random)
            made.complete(keys, reward=numbered.rewards_of(number), mark=numbered.marks_of(number))
            if numbered.steps_of(number)[0] % 4 == 3:
                firsts = np.array([[[number[0] - 3, 4], [number[0], 1]]])
                windows = {"past": (keys, -4), "far": (keys, 1)}
                made.create_items(windows, index="pieces", firsts=firsts, seals=numbered.seals_of(firsts))
            number = np.where(ends, ((number >> 16) + 1) << 16, number + 1)
        yield made


@pytest.mark.parametrize("index", numbered.INDEXES)
def test_any_other_value_in_a_batch_is_noticed(index: str, table: relive.Table) -> None:
    names = numbered.columns_of(index)
    batch = table.sample(32, index=index, columns=names)
    for may_be_cut in (False, True):
        assert not numbered.faults_of(index, batch, may_be_cut).any()
    for name in names:
        array = batch[name]
        kept = array.copy()
        array[5] = ~array[5] if array.dtype == bool else array[5] + 1
        faults = numbered.faults_of(index, batch)
        assert faults[5] and faults.sum() == 1, name
        array[...] = kept


def test_another_row_in_the_middle_of_a_window_is_noticed(table: relive.Table) -> None:
    batch = table.sample(32, index="sequences", columns=numbered.columns_of("sequences"))
    whole = np.flatnonzero(batch["mask"].all(axis=1))
    one, other = whole[0], next(row for row in whole if batch["number"][row, 4] != batch["number"][whole[0], 4])
    for name in numbered.columns_of("sequences"):
        if batch[name].ndim > 1:
            batch[name][one, 4] = batch[name][other, 4]
    assert numbered.faults_of("sequences", batch)[one] and not numbered.faults_of("sequences", batch)[other]


def test_what_was_deleted_or_evicted_is_noticed(table: relive.Table) -> None:
    past = kinds._Past()
    batch: Batch = table.sample(32, index="transitions", columns=numbered.columns_of("transitions"))
    past.drawn.append((batch.item_keys, batch["number"]))
    past.look(table, np.random.default_rng(0))
    assert not past.evicted and not past.deleted_among("transitions", batch.item_keys)
    past.deleted["steps"].extend(batch.item_keys[:2].tolist())
    assert past.deleted_among("sequences", batch.item_keys) >= 2 and not past.deleted_among("pieces", batch.item_keys)
    past.deleted["steps"].clear()
    table.clear()
    past.look(table, np.random.default_rng(0))
    assert past.evicted_among(batch["number"] - 1) and not past.evicted_among(batch["number"] + (1 << 40))


def test_counters_that_do_not_add_up_are_noticed(table: relive.Table) -> None:
    stats = table.stats()
    assert not [line for line in programme.faults_in(Counter(), stats, True) if "appended" in line]
    for has_kills in (True, False):
        lost = replace(stats, evicted=stats.evicted + 1)
        assert [line for line in programme.faults_in(Counter(), lost, has_kills) if "appended = live" in line]
    counts = Counter(steps=400, applied=400, told=400, items=programme._items_told(stats))
    settled = replace(stats, num_lanes=0)
    assert all(line.startswith(("no ", "drawn")) for line in programme.faults_in(counts, settled, False))
    for name in ("steps", "applied", "stale", "again", "told", "deleted", "updates", "items", "torn"):
        assert programme.faults_in(counts + Counter({name: 1}), settled, False) != programme.faults_in(
            counts, settled, False
        ), name
