"""Saves by name below a folder, and saves of a folder that stay by their numbers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive.saving.folder import IMAGE, SaveFolder
from relive.saving.named import checked_name, named_save, newest_save
from saving.test_save import made


def commit(path: Path, keep: int | frozenset[int]) -> int:
    folder = SaveFolder.open(str(path))
    try:
        return folder.commit([], np.zeros(0, IMAGE), {}, {}, keep).number
    finally:
        folder.close()


def cuts(path: Path) -> list[int]:
    return sorted(int(name.name.removesuffix(".cut")) for name in (path / "cuts").iterdir())


def test_saves_stay_by_their_numbers(tmp_path: Path) -> None:
    assert [commit(tmp_path, 9) for _ in range(4)] == [1, 2, 3, 4]
    assert commit(tmp_path, frozenset({2, 4, 77})) == 5 and cuts(tmp_path) == [2, 4, 5]
    assert commit(tmp_path, frozenset()) == 6 and cuts(tmp_path) == [6]


def test_saves_are_forgotten_by_their_numbers(tmp_path: Path) -> None:
    for _ in range(4):
        commit(tmp_path, 9)
    for staying, left in (({2, 3, 9}, [2, 3]), ({9}, [2, 3]), (set(), [2, 3]), ({3}, [3])):
        folder = SaveFolder.open(str(tmp_path))
        folder.forget(frozenset(staying))
        folder.close()
        assert cuts(tmp_path) == left
    assert commit(tmp_path, 9) == 4 and cuts(tmp_path) == [3, 4]


@pytest.mark.parametrize("name", ["", ".", "..", ".a", "a/b", "/a", "a\0", "a\n", "\u202e", "x" * 201, 7, None, b"a"])
def test_names_that_are_none(tmp_path: Path, name: Any) -> None:
    for call in (lambda: checked_name("name", name), lambda: named_save(str(tmp_path), "table", name)):
        with pytest.raises(errors.InvalidConfig):
            call()


def test_good_names(tmp_path: Path) -> None:
    for name in ("a", "a.b", "ü ñ", "x" * 200, "-rf", "~"):
        assert named_save(str(tmp_path), "table", name) == os.path.join(tmp_path, "table", name)


def test_the_newest_save_is_that_of_the_last_commit(tmp_path: Path) -> None:
    assert newest_save(str(tmp_path), "table") is None
    table, _ = made(num_steps=20)
    for name in ("a", "b"):
        table.save(tmp_path / "table" / name)
    for name, at in (("a", 200), ("b", 100)):
        os.utime(tmp_path / "table" / name / "CURRENT", (at, at))
    (tmp_path / "table" / "link").symlink_to(tmp_path / "table" / "b")
    table.save(tmp_path / "table" / ".hidden")
    assert newest_save(str(tmp_path), "table") == str(tmp_path / "table" / "a")
    table.save(tmp_path / "table" / "b")
    assert newest_save(str(tmp_path), "table") == str(tmp_path / "table" / "b")
    assert relive.saved(tmp_path / "table" / "b").number == 2
