"""Damaged and hostile folders: each is one clear error, or the save that was made, in little memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from random import Random

import numpy as np
import pytest
from conftest import SOAK

from relive.errors import DamagedSave, FormatMismatch, NoSuchSave, ReliveError
from relive.saving.current import line_of
from relive.saving.folder import SaveFolder
from relive.saving.reader import open_save
from saving.hostile import ENTRY, HEAD, HEAD_BYTES, RANDOM, WISE, Contents, change_section, sections_of, with_sections
from saving.power import Disk, File, Folder, MemoryFiles
from saving.tools import PATH, blob, save, section

CASES = 1000 if SOAK else 40  # of each way to damage a folder
MOST_BYTES = 48 << 20


def disk_of(files: Contents) -> Disk:
    disk = Disk()
    for name in ("segments", "cuts", "beside"):
        disk.root.nodes[name] = Folder()
    for path, data in files.items():
        at = disk.root
        *folders, name = path.split("/")
        for one in folders:
            node = at.nodes.setdefault(one, Folder())
            assert isinstance(node, Folder)
            at = node
        at.nodes[name] = File(bytearray(data), data)
    return disk


def contents_of(disk: Disk) -> Contents:
    files = MemoryFiles(disk)
    found = {}
    for path in disk.paths() - {"lock"}:
        handle = files.open(*path.split("/"))
        data = bytearray(files.size(handle))
        files.read(handle, 0, memoryview(data))
        found[path] = bytes(data)
    return found


@pytest.fixture(scope="module")
def three_saves() -> Contents:
    disk = Disk()
    for number in (1, 2, 3):
        save(MemoryFiles(disk), number, keep=2)
    return contents_of(disk)


@pytest.fixture
def little_memory() -> Iterator[None]:
    """Fails a test that takes more memory than a few times the folder's size."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()


def read_all(disk: Disk, *, is_told: bool = False) -> None:
    """Reads everything of the newest save. The bytes of pages have sums of their own, which the core checks.

    Args:
        disk: The disk.
        is_told: Whether the number that the save tells is the number of a save that was made.
    """
    with open_save(PATH, MemoryFiles(disk)) as reader:
        number = reader.facts.get("number")
        for name, index, data in reader.state():
            if is_told and (name, index) == ("numbers", 0):
                assert bytes(data) == bytes(section(number))
        for name in reader.blob_names():
            data = reader.blob(name)
            assert not is_told or data == blob(number)
        for image in reader.images[:50]:
            reader.read_block(int(image["segment"]), int(image["offset"]), np.empty(int(image["num_bytes"]), np.uint8))


@pytest.mark.parametrize("damage", [*RANDOM, *WISE], ids=lambda damage: damage.__name__)
def test_each_damage_is_one_error(three_saves: Contents, damage: object, little_memory: None) -> None:
    assert callable(damage)
    num_errors = 0
    for seed in range(CASES):
        files = dict(three_saves)
        damage(files, Random(seed))
        try:
            read_all(disk_of(files), is_told=damage in RANDOM)
        except (DamagedSave, NoSuchSave, FormatMismatch) as error:
            num_errors += 1
            assert len(str(error)) < 2000
    assert num_errors > CASES // 10


@pytest.mark.parametrize("damage", [*RANDOM, *WISE], ids=lambda damage: damage.__name__)
def test_a_save_into_a_damaged_folder(three_saves: Contents, damage: object) -> None:
    """The save is made and is whole, or is refused with one error, and removes nothing of the kept saves then."""
    assert callable(damage)
    for seed in range(CASES // 2):
        files = dict(three_saves)
        damage(files, Random(seed))
        disk = disk_of(files)
        try:
            folder = SaveFolder.open(PATH, MemoryFiles(disk))
        except ReliveError:
            kept = {path for path in files if path.endswith((".pages", ".cut", "model"))}
            assert kept <= disk.paths()
            continue
        folder.reusable()
        folder.close()


def test_sections_that_overlap_take_no_memory(three_saves: Contents, little_memory: None) -> None:
    files = dict(three_saves)
    sections, head = sections_of(files["cuts/3.cut"]), list(HEAD.unpack_from(files["cuts/3.cut"])[:4])
    large = [b"leaves", 0, 1, 1 << 20, 1 << 20, 0, bytes(1 << 20)]
    sections += [[*large[:1], index, *large[2:]] for index in range(1000)]
    head[3] = len(sections)
    at = HEAD_BYTES + ENTRY.size * len(sections)
    for section_ in sections[:-1000]:
        at += -at % 64
        section_[3] = at
        at += section_[4]
    files["cuts/3.cut"] = with_sections(sections, head, places=False)
    with pytest.raises(DamagedSave, match="the place of a section"):
        read_all(disk_of(files))


def test_very_long_text_makes_a_short_error(three_saves: Contents) -> None:
    files = {**three_saves, "CURRENT": line_of({"folder": "x" * 100_000, "cuts": []})}
    with pytest.raises(DamagedSave) as failed:
        read_all(disk_of(files))
    assert len(str(failed.value)) < 1000 and len(str(failed.value.expected)) < 300


@pytest.mark.parametrize("version", [2, 2**32 - 1])
def test_newer_formats_name_the_version(three_saves: Contents, version: int) -> None:
    files = dict(three_saves)
    sections, head = sections_of(files["cuts/3.cut"]), list(HEAD.unpack_from(files["cuts/3.cut"])[:4])
    files["cuts/3.cut"] = with_sections(sections, [head[0], version, 1, head[3]])
    read_all(disk_of(files), is_told=True)  # a later version that this reader still reads
    files["cuts/3.cut"] = with_sections(sections, [head[0], version, version, head[3]])
    with pytest.raises(FormatMismatch) as failed:
        read_all(disk_of(files))
    assert failed.value.expected == 1 and failed.value.got == version
    files = {**three_saves, "relive-save.json": line_of({"format": 9, "lowest_reader": version, "folder": "x"})}
    with pytest.raises(FormatMismatch):
        read_all(disk_of(files))


@pytest.mark.parametrize("must_know", [True, False])
def test_newer_sections(three_saves: Contents, must_know: bool) -> None:
    files = dict(three_saves)
    sections, head = sections_of(files["cuts/3.cut"]), list(HEAD.unpack_from(files["cuts/3.cut"])[:4])
    sections.append([b"of a later version", 0, int(must_know), 0, 0, 0, b"what it says"])
    head[3] += 1
    files["cuts/3.cut"] = with_sections(sections, head)
    if must_know:
        with pytest.raises(FormatMismatch, match="of a later version"):
            read_all(disk_of(files))
    else:
        read_all(disk_of(files), is_told=True)


def test_a_page_twice(three_saves: Contents) -> None:
    files = dict(three_saves)
    change_section(files, b"images", lambda data: data + data[:56])
    with pytest.raises(DamagedSave, match="each page once"):
        read_all(disk_of(files))
