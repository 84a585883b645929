"""The blobs of a save folder, bytes that the caller gave: beside/N/NAME for the save of number N."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from relive import _core
from relive.errors import DamagedSave
from relive.saving.files import Files
from relive.saving.memory import memory_for

__all__ = ["BESIDE", "NUMBER", "described", "read_blob", "remove_blobs", "write_blobs"]

BESIDE = "beside"
NUMBER = re.compile("0|[1-9][0-9]*", re.ASCII)


def described(blobs: Mapping[str, bytes]) -> dict[str, list[int]]:
    """Returns the length and the CRC-32C of each blob: what a save tells of its blobs."""
    return {name: [len(data), _core.crc32c(data)] for name, data in blobs.items()}


def write_blobs(files: Files, number: int, blobs: Mapping[str, bytes]) -> int:
    """Writes and syncs the blobs of a save, and their folder. Returns the bytes. The folder `beside` is there."""
    if not blobs:
        return 0
    files.make_folder(BESIDE, str(number))
    for name, data in blobs.items():
        handle = files.create(BESIDE, str(number), name)
        try:
            files.append(handle, memoryview(data), 0)
            files.sync(handle)
        finally:
            files.close_handle(handle)
    files.sync_folder(BESIDE, str(number))
    return sum(map(len, blobs.values()))


def read_blob(files: Files, handle: int, path: str, shown: str, told: tuple[int, int]) -> bytes:
    """Reads a blob.

    Args:
        files: The files of the folder.
        handle: The blob's open file, which stays open.
        path: The folder, for errors.
        shown: The name of the blob, for errors.
        told: The length and the CRC-32C that the save tells.

    Raises:
        DamagedSave: The blob is another.
        StorageFull: It does not fit into memory.
    """
    size = files.size(handle)
    if size != told[0]:
        raise DamagedSave(path, f"the length of {shown}", told[0], size)
    with memory_for(2 * size):  # the bytes and their copy
        data = bytearray(size)
        files.read(handle, 0, memoryview(data))
        if _core.crc32c(data) != told[1]:
            raise DamagedSave(path, shown, "its checksum", "another")
        return bytes(data)


def remove_blobs(files: Files, staying: Collection[int]) -> None:
    """Removes the blobs of all saves but these numbers. A folder whose name is no number stays."""
    for name in files.names(BESIDE):
        if NUMBER.fullmatch(name) and int(name) not in staying:
            for blob in files.names(BESIDE, name):
                files.remove(BESIDE, name, blob)
            files.remove_folder(BESIDE, name)
