"""Golden saves: one for each version of the formats, written once. Every later version of the library loads them."""

from __future__ import annotations

import io
import lzma
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relive
from relive.saving.current import FORMAT
from saving.make_golden import BESIDE, GOLDEN, answers

NAMES = sorted(path.name.removesuffix(".tar.xz") for path in GOLDEN.glob("*.tar.xz"))


def unpack(name: str, folder: Path) -> Path:
    with tarfile.open(GOLDEN / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


def answers_of(name: str) -> Any:
    return np.load(io.BytesIO(lzma.decompress((GOLDEN / f"{name}.npz.xz").read_bytes())))


@pytest.mark.parametrize("name", NAMES)
def test_a_golden_save_gives_what_the_saved_table_gave(name: str, tmp_path: Path) -> None:
    with relive.load(unpack(name, tmp_path)) as table, answers_of(name) as expected:
        table.check()
        assert table.loaded is not None and table.loaded.keeps_keys and dict(table.loaded.beside) == BESIDE
        told = answers(table)
        assert set(told) >= set(expected.files)
        for part in expected.files:
            if part.endswith(("probabilities", "sums")):  # the last bit of a power differs between machines
                np.testing.assert_allclose(told[part], expected[part], rtol=1e-12, err_msg=part)
            else:
                assert told[part].dtype == expected[part].dtype, part
                assert told[part].tobytes() == expected[part].tobytes(), part
        table.check()


@pytest.mark.parametrize("name", NAMES)
def test_a_table_goes_on_from_a_golden_save(name: str, tmp_path: Path) -> None:
    with relive.load(unpack(name, tmp_path)) as table:
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
