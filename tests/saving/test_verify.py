"""relive.saved(path, verify=True): it finds each changed byte that a load finds, and makes no table."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import relive
from relive import _core, errors
from relive.saving.reader import open_save
from saving.test_joints import LATE, add_episodes

NUM_FLIPS = 40
INDEXES = {
    "ranked": relive.Index(sampler=relive.RankBased()),
    "episodes": relive.Index(relive.Episodes(12, too_long="tail")),
    "groups": relive.Index(relive.Episodes(12, group_by="prompt", group_size=3, max_groups=8)),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two saves of a table, with pages of both and a blob."""
    with relive.Table(LATE, 2_000, INDEXES) as table:
        add_episodes(table, 20, late=True)
        table.save(tmp_path / "save", {"model": bytes(range(200))}, keep=2)
        add_episodes(table, 20, late=True)
        table.save(tmp_path / "save", {"model": bytes(range(100))}, keep=2)
    return tmp_path / "save"


def outcome(call: Any) -> str:
    try:
        call().close()
        return "whole"
    except (errors.DamagedSave, errors.NoSuchSave, errors.FormatMismatch) as error:
        return type(error).__name__


class Verified:
    """The outcome of a verification, closed as a table is."""

    def __init__(self, path: Path) -> None:
        self.found = relive.saved(path, verify=True)

    def close(self) -> None:
        assert self.found.num_steps > 0


def test_a_whole_save_is_described(folder: Path) -> None:
    assert relive.saved(folder, verify=True) == relive.saved(folder)
    assert relive.saved(folder, 1, verify=True) == relive.saved(folder, 1)
    with pytest.raises(errors.InvalidConfig, match="verify"):
        relive.saved(folder, verify=1)  # type: ignore[arg-type]
    with pytest.raises(errors.NoSuchSave):
        relive.saved(folder.with_name("none"), verify=True)


def test_an_empty_table_is_verified(tmp_path: Path) -> None:
    with relive.Table(LATE, 100) as table:
        table.save(tmp_path)
    assert relive.saved(tmp_path, verify=True).num_steps == 0


def test_it_finds_the_changed_bytes_that_a_load_finds(folder: Path, tmp_path: Path) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "lock")
    random, outcomes = Random(3), set()
    for number in range(NUM_FLIPS):
        copy = tmp_path / "copy"
        shutil.copytree(folder, copy)
        path = copy / files[number % len(files)].relative_to(folder)
        data = bytearray(path.read_bytes())
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
        path.write_bytes(data)
        loaded, verified = outcome(lambda at=copy: relive.load(at)), outcome(lambda at=copy: Verified(at))
        assert loaded == verified, path
        outcomes.add(verified)
        shutil.rmtree(copy)
    assert {"whole", "DamagedSave"} <= outcomes


def test_a_flipped_bit_of_an_old_image_is_named(folder: Path) -> None:
    path = folder / "segments" / "1.pages"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    with pytest.raises(errors.DamagedSave, match=r"segments/1\.pages, the image at byte 0") as found:
        relive.saved(folder, 1, verify=True)
    assert found.value.path == str(folder)


def test_an_image_in_the_place_of_another_is_found(folder: Path) -> None:
    """Both have a right checksum."""
    with open_save(str(folder)) as reader:
        images = reader.images
    one, other = next(
        (a, b) for a in images for b in images if a["page"] != b["page"] and a["num_bytes"] == b["num_bytes"]
    )
    path = folder / "segments" / f"{one['segment']}.pages"
    target = bytearray((folder / "segments" / f"{other['segment']}.pages").read_bytes())
    length = int(one["num_bytes"])
    source = path.read_bytes()[int(one["offset"]) : int(one["offset"]) + length]
    assert _core.crc32c(np.frombuffer(source, np.uint8)[8:]) == int.from_bytes(source[4:8], "little")
    target[int(other["offset"]) : int(other["offset"]) + length] = source
    (folder / "segments" / f"{other['segment']}.pages").write_bytes(target)
    for call in (lambda: relive.saved(folder, verify=True), lambda: relive.load(folder)):
        with pytest.raises(errors.DamagedSave):
            call()
