"""The file of a cut: a table of sections, then their bytes.

    head, 64 bytes: magic, version, lowest reader version, number of sections, CRC-32C of the table, CRC-32C of the head
    table: 64 bytes a section
    sections, each at a multiple of 64

A section has a name, a number (of its index), whether a reader must know it, its place, its length and its CRC-32C.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from relive import _core
from relive.errors import DamagedSave, FormatMismatch
from relive.saving.files import ALIGN, Files
from relive.saving.memory import memory_for

__all__ = ["Section", "SectionPlace", "read_section", "read_table", "write_cut"]

Section: TypeAlias = "tuple[str, int, NDArray[np.uint8]]"  # name, index, bytes

NEED_NOT_KNOW = frozenset({"rank order"})  # sections without which a table can be loaded

_MAGIC = b"relive-cut\n\0"
_VERSION = 1
_HEAD = struct.Struct("<12sIIII")  # every version begins like this, and with the sum of these bytes
_SUM = struct.Struct("<I")
_HEAD_BYTES = 64
_ENTRY = struct.Struct("<32sIIQQII")
_MOST_SECTIONS = 1024
_MAX_NAME_BYTES = 32
_BUFFER_BYTES = 1 << 20


@final
@dataclass(frozen=True)
class SectionPlace:
    """The place of a section in its file."""

    name: str
    index: int
    must_know: bool
    at: int
    num_bytes: int
    sum: int


def write_cut(files: Files, handle: int, sections: Sequence[Section]) -> int:
    """Writes the file of a cut. Returns its length in bytes."""
    at = _HEAD_BYTES + _ENTRY.size * len(sections)
    entries = bytearray()
    for name, index, data in sections:
        assert len(name.encode()) <= _MAX_NAME_BYTES
        at += -at % 64
        entries += _ENTRY.pack(
            name.encode(), index, int(name not in NEED_NOT_KNOW), at, data.nbytes, _core.crc32c(data), 0
        )
        at += data.nbytes
    head = _HEAD.pack(_MAGIC, _VERSION, _VERSION, len(sections), _core.crc32c(bytes(entries)))
    head += _SUM.pack(_core.crc32c(head))
    stream = _Stream(files, handle)
    stream.write(memoryview(head.ljust(_HEAD_BYTES, b"\0") + bytes(entries)))
    for _, _, data in sections:
        stream.pad(64)
        stream.write(data.reshape(-1).data)
    return stream.end()


def read_table(files: Files, handle: int, path: str) -> list[SectionPlace]:
    """Returns the sections of a cut. Raises DamagedSave; a length that lies is found before memory is taken."""
    size = files.size(handle)
    head = bytearray(_HEAD_BYTES)
    if files.read(handle, 0, memoryview(head)) != _HEAD_BYTES:
        raise DamagedSave(path, "a cut that is too short", f"{_HEAD_BYTES} bytes", size)
    magic, _, lowest_reader, count, total = _HEAD.unpack_from(head)
    if magic != _MAGIC or _core.crc32c(head[: _HEAD.size]) != _SUM.unpack_from(head, _HEAD.size)[0]:
        raise DamagedSave(path, "the head of a cut", "its checksum", "another")
    if lowest_reader > _VERSION:
        raise FormatMismatch("format of the save", _VERSION, lowest_reader)
    if count > _MOST_SECTIONS or _HEAD_BYTES + count * _ENTRY.size > size:
        raise DamagedSave(path, "the number of sections", f"at most {_MOST_SECTIONS}", count)
    entries = bytearray(count * _ENTRY.size)
    if files.read(handle, _HEAD_BYTES, memoryview(entries)) != len(entries) or _core.crc32c(entries) != total:
        raise DamagedSave(path, "the table of sections", "its checksum", "another")
    places: list[SectionPlace] = []
    begin = _HEAD_BYTES + len(entries)
    for number in range(count):
        name, index, must_know, at, num_bytes, sum_, _ = _ENTRY.unpack_from(entries, number * _ENTRY.size)
        if at < begin or at > size or num_bytes > size - at:  # sections that overlap could need any memory
            raise DamagedSave(path, "the place of a section", f"bytes {begin} to {size}", f"{num_bytes} bytes at {at}")
        begin = at + num_bytes
        shown = name.rstrip(b"\0").decode(errors="backslashreplace")
        places.append(SectionPlace(shown, index, bool(must_know), at, num_bytes, sum_))
    if len({(place.name, place.index) for place in places}) != count:
        raise DamagedSave(path, "the table of sections", "each name once", "a name twice")
    return places


def read_section(files: Files, handle: int, place: SectionPlace, path: str) -> NDArray[np.uint8]:
    """Returns the bytes of a section. Raises DamagedSave, StorageFull."""
    with memory_for(place.num_bytes):
        data = np.empty(place.num_bytes, np.uint8)
    if files.read(handle, place.at, data.data) != place.num_bytes or _core.crc32c(data) != place.sum:
        raise DamagedSave(path, f"section {place.name!r}", "its checksum", "another")
    return data


class _Stream:
    """Bytes in parts, written in whole blocks."""

    def __init__(self, files: Files, handle: int) -> None:
        self._files, self._handle = files, handle
        self._buffer = memoryview(mmap.mmap(-1, _BUFFER_BYTES))
        self._at, self._used = 0, 0

    def write(self, data: memoryview) -> None:
        data = data.cast("B")
        while len(data):
            part = data[: _BUFFER_BYTES - self._used]
            self._buffer[self._used : self._used + len(part)] = part
            self._used += len(part)
            data = data[len(part) :]
            if self._used == _BUFFER_BYTES:
                self._flush(self._used)

    def pad(self, to: int) -> None:
        self.write(memoryview(bytes(-self._used % to)))

    def end(self) -> int:
        """Writes the rest, padded to a whole block. Returns the length of the file."""
        self.pad(ALIGN)
        self._flush(self._used)
        return self._at

    def _flush(self, num_bytes: int) -> None:
        if num_bytes:
            self._files.append(self._handle, self._buffer[:num_bytes], self._at)
        self._at, self._used = self._at + num_bytes, 0
