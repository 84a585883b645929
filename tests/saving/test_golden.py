"""Golden saves: one for each version of the formats, written once. Every later version of the library loads them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import relive
from relive.saving.current import FORMAT
from saving.make_golden import BESIDE, GOLDEN, answers, assert_same, kept_answers, unpack

NAMES = sorted(path.name.removesuffix(".tar.xz") for path in GOLDEN.glob("*.tar.xz"))


@pytest.mark.parametrize("name", NAMES)
def test_a_golden_save_gives_what_the_saved_table_gave(name: str, tmp_path: Path) -> None:
    with relive.load(unpack(GOLDEN / name, tmp_path)) as table, kept_answers(GOLDEN / name) as expected:
        table.check()
        assert table.loaded is not None and table.loaded.keeps_keys and dict(table.loaded.beside) == BESIDE
        assert_same(answers(table), expected)
        table.check()


@pytest.mark.parametrize("name", NAMES)
def test_a_table_goes_on_from_a_golden_save(name: str, tmp_path: Path) -> None:
    with relive.load(unpack(GOLDEN / name, tmp_path)) as table:
        with table.writer() as writer:
            for step in range(400):
                state = np.full(3, step, np.float32)
                row = {"observation": state, "action": step, "reward": 1.0, "memory": np.zeros(20), "prompt": step // 4}
                writer.append(**row, next_observation=state + 1, terminated=step % 4 == 3, timeout_s=20.0)
        table.check()
        table.save(tmp_path)
        with relive.load(tmp_path) as copy:
            copy.check()
            assert len(copy) == len(table) == 300


def test_there_is_a_golden_save_of_the_present_formats() -> None:
    with relive.Table(relive.StepSpec({"a": relive.ArraySpec((), "int64")}), 10) as table:
        version = table.core.geometry["format_version"]
    assert f"format{FORMAT}-region{version}" in NAMES
    assert max(path.stat().st_size for path in GOLDEN.iterdir()) < 64 << 10
