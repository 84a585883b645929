"""Golden saves of shards: one for each version of the formats, written once. Every later version loads them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from processes.shm import needs_shared_memory
from saving.make_golden import answers, assert_same, kept_answers, unpack

import relive.fleet
from fleet.make_golden import BESIDE, GOLDEN, opened, owned, present_name, write

pytestmark = needs_shared_memory
NAMES = sorted(path.name.removesuffix(".tar.xz") for path in GOLDEN.glob("*.tar.xz"))


@pytest.mark.parametrize("name", NAMES)
def test_a_golden_save_gives_what_the_saved_shards_gave(name: str, tmp_path: Path, names: list[str]) -> None:
    described = relive.fleet.saved(unpack(GOLDEN / name, tmp_path))
    assert {blob: described.blob(blob) for blob in described.beside} == BESIDE and described.numbers == (0, 1)
    with owned(names, described), opened(names) as table, kept_answers(GOLDEN / name) as expected:
        assert len(table) == described.num_steps
        assert_same(answers(table), expected)
        table.check()


@pytest.mark.parametrize("name", NAMES)
def test_shards_go_on_from_a_golden_save(name: str, tmp_path: Path, names: list[str]) -> None:
    with owned(names, unpack(GOLDEN / name, tmp_path)), opened(names) as table:
        before = set(np.concatenate(list(table.keys(index="steps"))).tolist())
        new = write(table)
        table.check()
        assert before and not new & before
        facts = table.save(tmp_path)
        assert (facts.number, facts.num_steps) == (2, len(table))


def test_there_is_a_golden_save_of_the_present_formats() -> None:
    assert present_name() in NAMES
    assert max(path.stat().st_size for path in GOLDEN.iterdir()) < 32 << 10
