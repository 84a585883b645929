"""Saves of a table that is made up: pages with tickets, a section, a blob. Each save differs from the one before."""

from __future__ import annotations

import functools
import mmap

import numpy as np

from relive.errors import NoSuchSave
from relive.saving.files import Files
from relive.saving.folder import IMAGE, CommittedCut, SaveFolder
from relive.saving.reader import CutReader, open_save
from saving.power import Disk, MemoryFiles

NUM_PAGES = 6
CHANGED = 2  # pages change between two saves
PATH = "memory"


def ticket(page: int, number: int) -> int:
    """The ticket that a page has at save `number`: the number of the last save before which it changed."""
    return max(k for k in range(1, number + 1) if k == 1 or (page - CHANGED * k) % NUM_PAGES < CHANGED)


@functools.lru_cache(maxsize=4096)
def contents(page: int, ticket_: int) -> bytes:
    """The bytes of a page at a ticket."""
    rng = np.random.default_rng((page, ticket_))
    return rng.bytes(3000 + int(rng.integers(6000)))


def section(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 255, 9000 + number, np.uint8)


def blob(number: int) -> bytes:
    return np.random.default_rng((number, 77)).bytes(5000 + number)


def save(files: Files | None, number: int, keep: int = 1, path: str = PATH) -> CommittedCut:
    """Makes save `number`: it writes the pages that the folder does not have."""
    folder = SaveFolder.open(path, files)
    try:
        known = folder.reusable()
        images = np.zeros(NUM_PAGES, IMAGE)
        segment = None
        for page in range(NUM_PAGES):
            ref = ticket(page, number)
            old = known[(known["page"] == page) & (known["ticket"] == ref)]
            if len(old):
                images[page] = old[0]
                continue
            segment = segment or folder.new_segment()
            data = contents(page, ref)
            block = mmap.mmap(-1, -(-len(data) // 4096) * 4096)
            block[: len(data)] = data
            at = segment.append(memoryview(block))
            images[page] = (page, 7, ref, at, len(data), 0, segment.number)
        sections = [("numbers", 0, section(number)), ("leaves", 3, section(number)[:100].copy())]
        return folder.commit(sections, images, {"number": number}, {"model": blob(number)}, keep)
    finally:
        folder.close()


def number_of(reader: CutReader) -> int:
    """Returns the number of the save that a reader shows. Fails if any byte is another one's."""
    number = int(reader.facts["number"])
    assert [page for page in reader.images["page"]] == list(range(NUM_PAGES))
    for image in reader.images:
        page, at, num_bytes = int(image["page"]), int(image["offset"]), int(image["num_bytes"])
        assert image["ticket"] == ticket(page, number)
        data = np.empty(num_bytes, np.uint8)
        reader.read_block(int(image["segment"]), at, data)
        assert bytes(data) == contents(page, int(image["ticket"])), f"page {page} of save {number}"
    state = {(name, index): data for name, index, data in reader.state()}
    assert np.array_equal(state["numbers", 0], section(number))
    assert np.array_equal(state["leaves", 3], section(number)[:100])
    assert reader.blob_names() == ["model"] and reader.blob("model") == blob(number)
    return number


def read(files: Files | None, path: str = PATH) -> int:
    """Returns the number of the newest save; 0: there is none."""
    try:
        reader = open_save(path, files)
    except NoSuchSave:
        return 0
    with reader:
        return number_of(reader)


def leftovers(disk: Disk) -> set[str]:
    """The files of a folder that keeps one save and that this save does not name."""
    with open_save(PATH, MemoryFiles(disk)) as reader:
        named = {f"segments/{segment}.pages" for segment in reader.images["segment"]}
        named |= {f"cuts/{reader.number}.cut", f"beside/{reader.number}/model"}
    return disk.paths() - named - {"relive-save.json", "CURRENT", "lock"}
