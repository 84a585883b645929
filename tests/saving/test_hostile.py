"""Damaged and hostile folders: each is one clear error, or the save that was made, in little memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from random import Random

import pytest
from conftest import SOAK

from relive.errors import DamagedSave, FormatMismatch, NoSuchSave, ReliveError
from relive.saving.folder import SaveFolder
from relive.saving.reader import open_newest
from saving.hostile import RANDOM, WISE, Contents
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


def read_all(disk: Disk) -> None:
    """Reads everything of the newest save. The bytes of pages have sums of their own, which the core checks."""
    with open_newest(PATH, MemoryFiles(disk)) as reader:
        number = reader.facts.get("number")
        for name, index, data in reader.state():
            if number in (1, 2, 3) and (name, index) == ("numbers", 0):
                assert bytes(data) == bytes(section(number))
        for name in reader.blob_names():
            data = reader.blob(name)
            assert number not in (1, 2, 3) or data == blob(number)
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
            read_all(disk_of(files))
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
