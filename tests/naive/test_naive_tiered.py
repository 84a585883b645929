"""The naive twin against tables that keep all but a few pages on the disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiered.tools import needs_tiers, smallest_storage

import relive
from naive.compare import run_programme
from naive.program import SPECS, make_index, make_spec
from naive.test_naive import random_programme
from naive.test_naive_saved import with_reloads

pytestmark = needs_tiers


def run_on_disk(
    seed: int, length: int, capacity: int | None, directory: Path, check_every: int, loads_every: int = 0
) -> relive.TierStats:
    programme = random_programme(seed, length, capacity)
    if loads_every:
        programme = with_reloads(programme, seed, loads_every)
    lanes = sum(size or 1 for size in programme.writers)
    index = {f"index{number}": make_index(items) for number, items in enumerate(programme.indexes)}
    spec = make_spec(SPECS[programme.columns])
    storage = smallest_storage(directory, spec, programme.capacity, index, lanes, max_lanes=lanes + 2)
    seen: list[relive.TierStats] = []

    def spill(table: relive.Table) -> None:
        table._core.spill_all_pages()
        if table.stats().tiers is not None:
            seen.append(table.stats().tiers)

    run_programme(programme, storage=storage, check_every=check_every, before_check=spill)
    return seen[-1]


@pytest.mark.forms(4)
@pytest.mark.parametrize("seed", range(10))
def test_long_random_programmes_on_the_disk(seed: int, tmp_path: Path, profile_scale: int) -> None:
    """All closed pages are on the disk whenever the twin is asked."""
    for extra in range(profile_scale):
        tiers = run_on_disk(1000 * extra + 500 + seed, 200, None, tmp_path, 50)
        assert tiers.disk_errors == 0


@pytest.mark.parametrize("seed", range(3))
def test_the_same_in_a_table_that_never_fills(seed: int, tmp_path: Path) -> None:
    tiers = run_on_disk(600 + seed, 150, 1 << 12, tmp_path, 75)
    assert tiers.bytes_read > 0 and tiers.pages_on_disk > 0


@pytest.mark.forms(2)
@pytest.mark.parametrize("seed", range(6))
def test_saves_lead_from_disk_to_memory_and_back(seed: int, tmp_path: Path, profile_scale: int) -> None:
    """Every second load of a programme goes into memory, the others on to the disk."""
    for extra in range(profile_scale):
        tiers = run_on_disk(1000 * extra + 700 + seed, 150, None, tmp_path, 50, loads_every=20)
        assert tiers.disk_errors == 0
