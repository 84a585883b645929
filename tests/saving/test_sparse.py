"""Files with holes are as long as they say and need no disk: a load takes no memory for them, and ends in one error."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import relive
from relive.errors import StorageFull
from relive.saving.reader import IMAGE, open_save
from saving.hostile import HEAD, change_section, sections_of, with_sections
from saving.test_power_tables import SPEC
from saving.tools import read, save

HOLE = 1 << 42  # more memory than a machine of tests has; less than the longest file of a file system


def _long_section(path: Path, name: bytes) -> None:
    cut = path / "cuts" / "1.cut"
    data = cut.read_bytes()
    sections = sections_of(data)
    section = next(section for section in sections if section[0].rstrip(b"\0") == name)
    sections.remove(section)
    section[3:5] = [len(data), HOLE]
    cut.write_bytes(with_sections([*sections, section], list(HEAD.unpack_from(data)[:4]), places=False))
    os.truncate(cut, len(data) + HOLE)


def _change(path: Path, name: bytes, change: Callable[[bytes], bytes]) -> None:
    files = {"cuts/1.cut": (path / "cuts" / "1.cut").read_bytes()}
    change_section(files, name, change)
    (path / "cuts" / "1.cut").write_bytes(files["cuts/1.cut"])


def _long_state(path: Path) -> None:
    _long_section(path, b"leaves")


def _long_images(path: Path) -> None:
    _long_section(path, b"images")


def _long_blob(path: Path) -> None:
    def change(data: bytes) -> bytes:
        facts = json.loads(data)
        facts["beside"]["model"][0] = HOLE
        return json.dumps(facts).encode()

    _change(path, b"facts", change)
    os.truncate(path / "beside" / "1" / "model", HOLE)


def _long_image(path: Path) -> None:
    def change(data: bytes) -> bytes:
        images = np.frombuffer(bytearray(data), IMAGE)
        images["num_bytes"][0] = HOLE
        return images.tobytes()

    _change(path, b"images", change)
    os.truncate(path / "segments" / "1.pages", 2 * HOLE)


HOLES = [_long_state, _long_images, _long_blob, _long_image]


@pytest.mark.parametrize("hole", HOLES)
def test_a_hole_takes_no_memory(hole: Callable[[Path], None], tmp_path: Path) -> None:
    table = relive.Table(SPEC, 200, max_lanes=2)
    with table.writer() as writer:
        for k in range(100):
            state = np.full(3, k, np.float32)
            writer.append(observation=state, action=k, reward=1.0, next_observation=state + 1)
    table.save(tmp_path, {"model": b"weights"})
    hole(tmp_path)
    with pytest.raises(StorageFull) as refused:
        relive.load(tmp_path)
    assert refused.value.path == "memory" and refused.value.needs_bytes >= HOLE > refused.value.has_bytes > 0


@pytest.mark.parametrize("hole", [_long_state, _long_images, _long_blob])
def test_a_save_after_a_hole_is_made(hole: Callable[[Path], None], tmp_path: Path) -> None:
    save(None, 1, path=str(tmp_path))
    hole(tmp_path)
    save(None, 2, path=str(tmp_path))
    assert read(None, str(tmp_path)) == 2


def test_many_sections_that_are_too_long_together(tmp_path: Path) -> None:
    """Each section alone would fit."""
    save(None, 1, path=str(tmp_path))
    cut = tmp_path / "cuts" / "1.cut"
    data, each = cut.read_bytes(), HOLE // 500
    sections, begin = sections_of(data), len(data) + (1 << 16)
    for number in range(500):
        sections.append([b"leaves", 10 + number, 1, begin + number * each, each, 0, b""])
    head = list(HEAD.unpack_from(data)[:4])
    head[3] = len(sections)
    at = 64 * (1 + len(sections))
    for section in sections[:-500]:
        at += -at % 64
        section[3], at = at, at + section[4]
    cut.write_bytes(with_sections(sections, head, places=False))
    os.truncate(cut, begin + 500 * each)
    with open_save(str(tmp_path)) as reader, pytest.raises(StorageFull):
        reader.state()
