"""Loads the core of a table from a save, and describes a save without loading it."""

from __future__ import annotations

import mmap
import secrets
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from relive import _core
from relive.config.storage import File, LocalMemory, Storage
from relive.config.table_config import TableConfig
from relive.errors import DamagedSave, ReliveError
from relive.saving.current import FORMAT
from relive.saving.files import ALIGN, Files
from relive.saving.helping import HelpingThread
from relive.saving.memory import memory_for
from relive.saving.reader import CutReader, open_save

__all__ = ["LoadedCore", "SavedTable", "describe", "describe_shard", "load_core", "verify_save"]

BLOCK_BYTES = 8 << 20  # of one read
_FIELDS = ("page", "ref", "ticket", "offset", "num_bytes", "num_cells")  # of an image, in the core's order
_IMAGE_HEAD = struct.Struct("<IIQQ")  # magic, CRC-32C of the bytes after these two words, length, ref of the page
_IMAGE_MAGIC = 0x65676170
MOST_GROWTH = 8  # times the saved capacity, with keys that keep their meaning


@final
@dataclass(frozen=True)
class SavedTable:
    """A save, as `relive.saved(path)` describes it.

    Attributes:
        path: The folder.
        number: The number of its newest cut.
        config: The configuration of the table.
        num_steps: Steps in it.
        num_bytes: Bytes of its pages.
        beside: Names of the blobs that were saved beside it.
        format: The format of the save.
        kept: The numbers of all saves that the folder keeps, the newest first.
    """

    path: str
    number: int
    config: TableConfig
    num_steps: int
    num_bytes: int
    beside: tuple[str, ...]
    format: int
    kept: tuple[int, ...]


@final
@dataclass(frozen=True)
class LoadedCore:
    """A core that was loaded, and how: the configuration that it has now, and whether keys of the save lead to the same
    rows."""

    core: _core.CoreTable
    config: TableConfig
    keeps_keys: bool
    cut: str
    facts: Mapping[str, Any]
    beside: Mapping[str, bytes]

    @property
    def own_cut(self) -> str | None:
        """The cut, if its pages have the same names here: a save into its folder need not write them again."""
        return self.cut if self.keeps_keys else None


def entropy() -> int:
    """Returns 64 bits of chance, where the new keys of a loaded table begin. No two loads may have the same."""
    return secrets.randbits(64)


def describe(path: str, files: Files | None = None, number: int | None = None, verify: bool = False) -> SavedTable:
    """Returns the facts of a save; None: of the newest one. Cost: its facts and its list of images are read.

    verify: read every byte of the save, too, and compare the checksums.
    """
    with open_save(path, files, number) as reader:
        config, _ = _config_of(reader, None, None, None)
        if verify:
            verify_save(reader)
        return SavedTable(
            path,
            reader.number,
            config,
            _whole(reader, "num_steps"),
            int(reader.images["num_bytes"].sum()),
            tuple(reader.blob_names()),
            FORMAT,
            reader.kept_numbers(),
        )


def describe_shard(path: str, cut: str) -> tuple[TableConfig, int]:
    """Returns the configuration of the shard in this cut of a folder, and the number of the shard."""
    with open_save(path, cut=cut) as reader:
        return _config_of(reader, None, None, None)[0], _whole(reader, "shard")


def load_core(
    path: str,
    storage: Storage | None,
    capacity: int | None,
    max_lanes: int | None,
    files: Files | None = None,
    region: str | None = None,
    *,
    cut: str | int | None = None,
    more: Mapping[str, Any] | None = None,
) -> LoadedCore:
    """Makes a table from a save of a folder.

    Args:
        path: The folder.
        storage: As for relive.load, and so are capacity and max_lanes.
        capacity: In steps.
        max_lanes: At least the saved ones.
        files: The files of the folder; None: those on disk.
        region: The path of the new region, if the storage does not tell it.
        cut: The number of the save to load, or the name of its cut; None: the newest.
        more: Options of the core in place of those that the configuration gives.

    Raises the errors of `relive.load`.
    """
    with open_save(path, files, cut) as reader:
        config, saved_capacity = _config_of(reader, storage, capacity, max_lanes)
        shape = {name: _whole(reader, name) for name in ("num_pages", "page_shift", "slot_bits", "max_lanes", "shard")}
        grows = saved_capacity <= config.capacity <= MOST_GROWTH * saved_capacity
        core_config = {
            **config.core_config(),
            "page_len": 1 << min(shape["page_shift"], 12),
            "slot_bits": shape["slot_bits"] if grows else 0,
            **(more or {}),
        }
        images = reader.images
        try:
            place = region if isinstance(config.storage, File) else config.storage.path
            loader = _core.CoreLoader(core_config, place, shape, reader.state(), entropy())
            _put_images(loader, reader, images)
            beside = {name: reader.blob(name) for name in reader.blob_names()}
            core = loader.finish()
        except DamagedSave as error:
            raise DamagedSave(path, error.what, error.expected, error.got) from None
        return LoadedCore(core, config, loader.keeps_keys, reader.name, reader.facts, beside)


def _config_of(
    reader: CutReader, storage: Storage | None, capacity: int | None, max_lanes: int | None
) -> tuple[TableConfig, int]:
    """Returns the configuration of the table to make, and the capacity of the saved one."""
    try:
        saved = TableConfig.from_dict(reader.facts["table"])
    except (KeyError, TypeError, ValueError, ReliveError) as error:
        raise DamagedSave(reader.path, f"the configuration of its table: {error}") from error
    changed = replace(
        saved,
        storage=storage if storage is not None else LocalMemory(),
        capacity=saved.capacity if capacity is None else capacity,
        max_lanes=saved.max_lanes if max_lanes is None else max_lanes,
    )
    return changed, saved.capacity


def _whole(reader: CutReader, name: str) -> int:
    value = reader.facts.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**40:
        raise DamagedSave(reader.path, f"the number {name!r}", "0 to 2^40", value)
    return value


def _put_images(loader: _core.CoreLoader, reader: CutReader, images: NDArray[Any]) -> None:
    """Reads images in blocks, by segment and offset, one block ahead of the core that takes them in."""
    wanted = np.array([loader.wants(int(page)) for page in images["page"]], bool)
    images = images[wanted]
    images = images[np.lexsort((images["offset"], images["segment"]))]
    blocks = list(_blocks_of(images))
    most = max((block.end - block.begin for block in blocks), default=0)
    with memory_for(2 * most):
        buffers = [np.frombuffer(mmap.mmap(-1, most), np.uint8) for _ in range(2)] if blocks else []

    def read(number: int) -> NDArray[np.uint8]:
        block = blocks[number]
        buffer = buffers[number % 2][: block.end - block.begin]
        reader.read_block(block.segment, block.begin, buffer)
        return buffer

    with HelpingThread("relive-load") as thread:
        ahead = [thread.submit(read, 0)] if blocks else []
        for number, block in enumerate(blocks):
            buffer = ahead.pop().result()
            if number + 1 < len(blocks):
                ahead.append(thread.submit(read, number + 1))  # into the other buffer
            loader.put(buffer, block.images)


def verify_save(reader: CutReader) -> None:
    """Reads every byte of a save that a load would read, and compares the checksums. No table is made.

    Raises:
        DamagedSave: A byte of the state, of a page or of a blob has changed.
        FormatMismatch: A later version of relive wrote it.
        StorageFull: This machine has less memory than the state of the table needs.
    """
    reader.state()
    for name in reader.blob_names():
        reader.blob(name)
    blocks = list(_blocks_of(reader.images[np.lexsort((reader.images["offset"], reader.images["segment"]))]))
    most = max((block.end - block.begin for block in blocks), default=ALIGN)
    with memory_for(most):
        buffer = np.frombuffer(mmap.mmap(-1, most), np.uint8)
    for block in blocks:
        reader.read_block(block.segment, block.begin, buffer[: block.end - block.begin])
        for _, ref, _, at, num_bytes, _ in block.images.tolist():
            if not _is_image(buffer[at : at + num_bytes], ref):
                what = f"segments/{block.segment}.pages, the image at byte {block.begin + at}"
                raise DamagedSave(reader.path, what, "its checksum", "another")


def _is_image(data: NDArray[np.uint8], ref: int) -> bool:
    """Whether these bytes are a whole image of a page with this ref (cpp/relive/save/image.hpp)."""
    if data.nbytes < _IMAGE_HEAD.size:
        return False
    magic, sum_, num_bytes, of = _IMAGE_HEAD.unpack_from(data.data)
    return (magic, num_bytes, of) == (_IMAGE_MAGIC, data.nbytes, ref) and _core.crc32c(data[8:]) == sum_


@final
@dataclass(frozen=True)
class _Block:
    """Bytes of a segment that one read covers, at whole blocks, and the images in them (offsets from its begin)."""

    segment: int
    begin: int
    end: int
    images: NDArray[np.uint64]


def _blocks_of(images: NDArray[Any]) -> Iterator[_Block]:
    """Yields runs of images, sorted by place, that lie in one segment and within a block."""
    ends = images["offset"] + images["num_bytes"]
    first = 0
    for position in range(1, len(images) + 1):
        if position < len(images) and images["segment"][position] == images["segment"][first]:
            if int(ends[position]) - int(images["offset"][first]) <= BLOCK_BYTES:
                continue
        part = images[first:position]
        begin = int(part["offset"][0]) // ALIGN * ALIGN
        end = -(-int(ends[first:position].max()) // ALIGN) * ALIGN
        given = np.stack([part[name] for name in _FIELDS], axis=1).astype(np.uint64)
        given[:, 3] -= np.uint64(begin)
        yield _Block(int(part["segment"][0]), begin, end, given)
        first = position
