"""relive.load of damaged saves of real tables: one clear error, or a table that is sound and goes on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from conftest import SOAK

import relive
from relive import errors
from saving.hostile import RANDOM, WISE, Contents, change_section

CASES = 60 if SOAK else 6  # of each kind of table and damage
SPEC = relive.StepSpec(
    {
        "observation": relive.ArraySpec((3,), "float32", kind="state"),
        "action": relive.ArraySpec((), "int64"),
        "reward": relive.ArraySpec((), "float32"),
    }
)
KINDS: dict[str, Callable[[], relive.Index]] = {
    "transitions": relive.Index,
    "priorities": lambda: relive.Index(sampler=relive.Prioritized(0.6)),
    "sequences": lambda: relive.Index(relive.Sequences(4)),
}


def made(index: relive.Index) -> relive.Table:
    table = relive.Table(SPEC, 300, index, max_lanes=4)
    fill(table, 200)
    return table


def fill(table: relive.Table, num_steps: int) -> None:
    with table.writer() as writer:
        for k in range(num_steps):
            state = np.full(3, k, np.float32)
            writer.append(
                observation=state, action=k % 3, reward=1.0, next_observation=state + 1, terminated=k % 20 == 19
            )


@pytest.fixture(scope="module", params=KINDS)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Contents:
    folder = tmp_path_factory.mktemp("save")
    table = made(KINDS[request.param]())
    for _ in range(2):
        table.save(folder, {"model": b"weights"}, keep=2)
        fill(table, 60)
    table.close()
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != "lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def write(folder: Path, files: Contents) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)


@pytest.mark.parametrize("damage", [*RANDOM, *WISE], ids=lambda damage: damage.__name__)
def test_a_damaged_save_is_an_error_or_a_sound_table(saved: Contents, damage: Any, tmp_path: Path) -> None:
    for seed in range(CASES):
        files = dict(saved)
        damage(files, Random(seed))
        write(tmp_path / "save", files)
        try:
            table = relive.load(tmp_path / "save")
        except errors.ReliveError as error:
            allowed = (errors.DamagedSave, errors.NoSuchSave, errors.FormatMismatch, errors.InvalidConfig)
            assert isinstance(error, allowed), (seed, repr(error))
            continue
        table.check()
        fill(table, 50)
        table.check()
        table.sample(8)
        table.close()


@pytest.mark.parametrize("damage", [*RANDOM, *WISE], ids=lambda damage: damage.__name__)
def test_a_table_saves_into_its_damaged_folder(damage: Any, tmp_path: Path) -> None:
    """The table that made the save goes on saving there: the save is whole, or is refused with one error."""
    table = made(relive.Index())
    for seed in range(CASES):
        folder = tmp_path / str(seed)
        table.save(folder, {"model": b"weights"})
        files = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
        lock = files.pop("lock")
        damage(files, Random(seed))
        write(folder, {**files, "lock": lock})
        for name in ("segments", "cuts", "beside"):
            (folder / name).mkdir(exist_ok=True)
        try:
            table.save(folder)
        except errors.ReliveError:
            continue
        finally:
            fill(table, 3)
        try:
            relive.load(folder).close()
        except errors.DamagedSave as error:  # the pages that the save did not write again are not read by it
            assert damage in RANDOM or damage.__name__ == "other_images", (seed, error)
    table.close()


@pytest.mark.parametrize("page", [2**40, 2**62, 2**64 - 1])
def test_a_page_of_any_number_takes_no_memory(page: int, tmp_path: Path) -> None:
    table = made(relive.Index())
    table.save(tmp_path)
    paths = [path for path in tmp_path.rglob("*") if path.is_file()]
    files = {str(path.relative_to(tmp_path)): path.read_bytes() for path in paths}
    change_section(files, b"images", lambda data: page.to_bytes(8, "little") + data[8:])
    write(tmp_path, files)
    table.save(tmp_path)
    loaded = relive.load(tmp_path)
    assert len(loaded) == len(table)
    loaded.close()
    table.close()
