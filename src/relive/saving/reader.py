"""CutReader: one save of a folder, read with suspicion. No lock is needed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import TracebackType
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from relive import _core
from relive.errors import DamagedSave, NoSuchSave, SystemFailure
from relive.saving.current import read_current, read_folder
from relive.saving.cut_file import SectionPlace, read_section, read_table
from relive.saving.files import DiskFiles, Files

__all__ = ["IMAGE", "CutReader", "bytes_of_json", "open_newest", "with_sum"]

# An image of a page: what it shows, and where it lies.
IMAGE = np.dtype([(name, "<u8") for name in ("page", "ref", "ticket", "offset", "num_bytes", "num_cells", "segment")])
_OWN = ("facts", "images")
_SUM_BYTES = 4
_TRIES = 3  # a newer save may remove files of the one that is being read


def bytes_of_json(value: Mapping[str, Any]) -> NDArray[np.uint8]:
    """Returns plain values as a section."""
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def with_sum(data: bytes) -> bytes:
    """Returns a blob with its CRC-32C behind it."""
    return data + _core.crc32c(data).to_bytes(_SUM_BYTES, "little")


def open_newest(path: str, files: Files | None = None) -> CutReader:
    """Opens the newest save of a folder.

    Raises:
        NoSuchSave: The folder has none.
        DamagedSave, FormatMismatch: It cannot be read.
    """
    for last in (*[False] * (_TRIES - 1), True):
        try:
            opened = files if files is not None else DiskFiles(path, makes=False)
        except FileNotFoundError:
            raise NoSuchSave(path) from None
        try:
            kept = read_current(opened, path, read_folder(opened, path))
            return CutReader(opened, path, kept[0].number)
        except DamagedSave:
            opened.close()
            if last:
                raise
        except BaseException:
            opened.close()
            raise
    raise AssertionError("unreachable")


@final
class CutReader:
    """A cut that is open: its facts, its sections, its images, its blobs."""

    def __init__(self, files: Files, path: str, number: int) -> None:
        """Reads the table of sections, the facts and the list of images. Raises DamagedSave."""
        self.path, self.number, self._files = path, number, files
        self._segments: dict[int, int] = {}
        try:
            self._handle: int | None = files.open("cuts", f"{number}.cut")
        except (FileNotFoundError, SystemFailure) as error:
            raise DamagedSave(path, f"cuts/{number}.cut", "a file", "none") from error
        try:
            self._places = read_table(files, self._handle, path)
            self.facts = self._read_facts()
            self.images = self._read_images()
        except BaseException:
            self.close()
            raise

    @property
    def name(self) -> str:
        """The name of the cut, which no other cut has."""
        return str(self.facts.get("cut"))

    def _place(self, name: str) -> SectionPlace:
        for place in self._places:
            if place.name == name:
                return place
        raise DamagedSave(self.path, "a cut", f"the section {name!r}", "none")

    def _read_facts(self) -> dict[str, Any]:
        data = self._bytes(self._place("facts"))
        try:
            facts = json.loads(bytes(data))
        except (ValueError, RecursionError) as error:
            raise DamagedSave(self.path, "the facts", "JSON", str(error)) from error
        if not isinstance(facts, dict):
            raise DamagedSave(self.path, "the facts", "an object", type(facts).__name__)
        return facts

    def _read_images(self) -> NDArray[Any]:
        data = self._bytes(self._place("images"))
        if data.nbytes % IMAGE.itemsize:
            raise DamagedSave(self.path, "the list of images", f"a multiple of {IMAGE.itemsize} bytes", data.nbytes)
        images = data.view(IMAGE)
        sizes: dict[int, int] = {}
        for number in np.unique(images["segment"]).tolist():
            sizes[number] = self._files.size(self._segment(number))
        ends = np.array([sizes[number] for number in images["segment"].tolist()], np.uint64)
        if ((images["offset"] > ends) | (images["num_bytes"] > ends - np.minimum(images["offset"], ends))).any():
            raise DamagedSave(self.path, "an image", "bytes within its segment", "bytes behind its end")
        return images

    def _segment(self, number: int) -> int:
        if number not in self._segments:
            try:
                self._segments[number] = self._files.open("segments", f"{number}.pages")
            except (FileNotFoundError, SystemFailure) as error:
                raise DamagedSave(self.path, f"segments/{number}.pages", "a file", "none") from error
        return self._segments[number]

    def _bytes(self, place: SectionPlace) -> NDArray[np.uint8]:
        assert self._handle is not None
        return read_section(self._files, self._handle, place, self.path)

    def state(self) -> list[tuple[str, int, NDArray[np.uint8]]]:
        """Returns the sections of the table's state."""
        return [(place.name, place.index, self._bytes(place)) for place in self._places if place.name not in _OWN]

    def read_block(self, segment: int, at: int, into: NDArray[np.uint8]) -> None:
        """Fills `into` with bytes of a segment. Raises DamagedSave if it is shorter."""
        if self._files.read(self._segment(segment), at, into.data) != into.nbytes:
            raise DamagedSave(self.path, f"segments/{segment}.pages", f"{at + into.nbytes} bytes", "fewer")

    def blob_names(self) -> list[str]:
        """Returns the names of the blobs beside the table."""
        beside = self.facts.get("beside", {})
        if not isinstance(beside, dict):
            raise DamagedSave(self.path, "the list of blobs", "an object", type(beside).__name__)
        return list(beside)

    def blob(self, name: str) -> bytes:
        """Returns one of them. Raises DamagedSave."""
        try:
            handle = self._files.open("beside", str(self.number), name)
        except (OSError, ValueError, SystemFailure) as error:
            raise DamagedSave(self.path, f"beside/{self.number}/{name}", "a file", "none") from error
        try:
            data = bytearray(self._files.size(handle))
            self._files.read(handle, 0, memoryview(data))
        finally:
            self._files.close_handle(handle)
        whole = bytes(data)
        if len(whole) < _SUM_BYTES or with_sum(whole[:-_SUM_BYTES]) != whole:
            raise DamagedSave(self.path, f"beside/{self.number}/{name}", "its checksum", "another")
        return whole[:-_SUM_BYTES]

    def close(self) -> None:
        """Closes the files of the cut, not those of the folder. Closing twice is harmless."""
        handle, self._handle = self._handle, None
        for one in (*([] if handle is None else [handle]), *self._segments.values()):
            self._files.close_handle(one)
        self._segments = {}

    def __enter__(self) -> CutReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        self._files.close()
