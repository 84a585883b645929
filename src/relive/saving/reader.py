"""CutReader: one save of a folder, read with suspicion. No lock is needed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import TracebackType
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from relive.core.distinct import distinct
from relive.errors import DamagedSave, FormatMismatch, NoSuchSave, SystemFailure
from relive.saving.blobs import BESIDE, read_blob
from relive.saving.current import read_current, read_folder
from relive.saving.cut_file import SectionPlace, read_section, read_table
from relive.saving.disk_files import DiskFiles
from relive.saving.files import Files, is_no_file
from relive.saving.memory import memory_for

__all__ = ["IMAGE", "CutReader", "bytes_of_json", "kept_numbers", "open_save"]

# An image of a page: what it shows, and where it lies.
IMAGE = np.dtype([(name, "<u8") for name in ("page", "ref", "ticket", "offset", "num_bytes", "num_cells", "segment")])
MOST_SEGMENTS = 256  # of a cut; a reader has a descriptor on each
MOST_BLOBS = 256  # that a reader has a descriptor on
_OWN = ("facts", "images")
_STATE = frozenset(
    "ages,joined,lanes,leaves,numbers,orders,page words,pages,places,queue,rank order,record words,states,tails,values,"
    "visited,waits,windows".split(",")
)
_MOST_FACTS_BYTES = 16 << 20
_TRIES = 10  # newer saves remove files of the one that is being read


def bytes_of_json(value: Mapping[str, Any]) -> NDArray[np.uint8]:
    """Returns plain values as a section."""
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def open_save(path: str, files: Files | None = None, cut: str | int | None = None) -> CutReader:
    """Opens a save of a folder: the newest one, that of a number, or the one whose cut has a name.

    Raises:
        NoSuchSave: The folder has none, or none of this number.
        DamagedSave, FormatMismatch: It cannot be read, or the folder has no cut of this name.
        StorageFull: The machine has less memory than its list of images needs.
    """
    try:
        opened = files if files is not None else DiskFiles(path, makes=False)
    except FileNotFoundError:
        raise NoSuchSave(path) from None
    try:
        if cut is None:
            return _newest_of(opened, path)
        return _numbered(opened, path, cut) if isinstance(cut, int) else _named(opened, path, cut)
    except BaseException:
        opened.close()
        raise


def kept_numbers(path: str) -> list[int]:
    """Returns the numbers of the saves that a folder keeps, the newest first. No save is read.

    Raises:
        NoSuchSave: The folder has none.
        DamagedSave, FormatMismatch: Their list cannot be read.
    """
    try:
        files = DiskFiles(path, makes=False)
    except FileNotFoundError:
        raise NoSuchSave(path) from None
    try:
        return [one.number for one in read_current(files, path, read_folder(files, path))]
    finally:
        files.close()


def _newest_of(files: Files, path: str) -> CutReader:
    tried = None
    for _ in range(_TRIES):
        newest = read_current(files, path, read_folder(files, path))[0].number
        if newest == tried:
            break
        try:
            return CutReader(files, path, newest)
        except DamagedSave as error:
            tried, problem = newest, error  # unless a newer save has removed its files meanwhile
    raise problem


def _numbered(files: Files, path: str, number: int) -> CutReader:
    kept = [one.number for one in read_current(files, path, read_folder(files, path))]
    if number not in kept:
        raise NoSuchSave(path, number, kept)
    return CutReader(files, path, number)


def _named(files: Files, path: str, cut: str) -> CutReader:
    kept = read_current(files, path, read_folder(files, path))
    for one in kept:
        reader = CutReader(files, path, one.number)
        if reader.name == cut:
            return reader
        reader.close()
    raise DamagedSave(path, "the list of saves", f"the cut {cut}", f"{len(kept)} others")


@final
class CutReader:
    """A cut that is open: its facts, its sections, its images, its blobs.

    All files are open from the beginning, so a newer save may remove their names. Blobs after the first MOST_BLOBS are
    the exception: each of those is opened when it is read.
    """

    def __init__(self, files: Files, path: str, number: int) -> None:
        """Reads the table of sections, the facts and the list of images. Raises DamagedSave, StorageFull."""
        self.path, self.number, self._files = path, number, files
        self._segments: dict[int, int] = {}
        self._opened_blobs: dict[str, int] = {}
        self._handle: int | None = self._open("cuts", f"{number}.cut")
        try:
            self._places = read_table(files, self._handle, path)
            self.facts = self._read_facts()
            self.images = self._read_images()
            for name in self.blob_names()[:MOST_BLOBS]:
                self._opened_blobs[name] = self._open_blob(name)
        except BaseException:
            self.close()
            raise

    def kept_numbers(self) -> tuple[int, ...]:
        """Returns the numbers of the saves that the folder keeps now, the newest first."""
        kept = read_current(self._files, self.path, read_folder(self._files, self.path))
        return tuple(one.number for one in kept)

    def _open(self, *names: str) -> int:
        try:
            return self._files.open(*names)
        except (FileNotFoundError, SystemFailure) as error:
            if not is_no_file(error):
                raise
            raise DamagedSave(self.path, "/".join(names), "a file", "none") from error

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
        place = self._place("facts")
        if place.num_bytes > _MOST_FACTS_BYTES:
            raise DamagedSave(self.path, "the facts", f"at most {_MOST_FACTS_BYTES} bytes", place.num_bytes)
        data = self._bytes(place)
        try:
            facts = json.loads(bytes(data))
        except (ValueError, RecursionError) as error:
            raise DamagedSave(self.path, "the facts", "JSON", str(error)) from error
        if not isinstance(facts, dict):
            raise DamagedSave(self.path, "the facts", "an object", type(facts).__name__)
        return facts

    def _read_images(self) -> NDArray[Any]:
        place = self._place("images")
        with memory_for(2 * place.num_bytes):  # the list, and the columns that are sorted
            return self._checked_images(self._bytes(place))

    def _checked_images(self, data: NDArray[np.uint8]) -> NDArray[Any]:
        if data.nbytes % IMAGE.itemsize:
            raise DamagedSave(self.path, "the list of images", f"a multiple of {IMAGE.itemsize} bytes", data.nbytes)
        images = data.view(IMAGE)
        if len(distinct(images["page"])) != len(images):
            raise DamagedSave(self.path, "the list of images", "each page once", "a page twice")
        numbers = distinct(images["segment"])
        if len(numbers) > MOST_SEGMENTS:
            raise DamagedSave(self.path, "the list of images", f"at most {MOST_SEGMENTS} segments", len(numbers))
        sizes = [self._files.size(self._segment(number)) for number in numbers.tolist()]
        ends = np.array(sizes, np.uint64)[np.searchsorted(numbers, images["segment"])]
        if ((images["offset"] > ends) | (images["num_bytes"] > ends - np.minimum(images["offset"], ends))).any():
            raise DamagedSave(self.path, "an image", "bytes within its segment", "bytes behind its end")
        return images

    def _segment(self, number: int) -> int:
        if number not in self._segments:
            self._segments[number] = self._open("segments", f"{number}.pages")
        return self._segments[number]

    def _bytes(self, place: SectionPlace) -> NDArray[np.uint8]:
        assert self._handle is not None
        return read_section(self._files, self._handle, place, self.path)

    def state(self) -> list[tuple[str, int, NDArray[np.uint8]]]:
        """Returns the sections of the table's state. Raises FormatMismatch, DamagedSave, StorageFull."""
        for place in self._places:
            if place.must_know and place.name not in _STATE and place.name not in _OWN:
                raise FormatMismatch("list of sections", "no section that it does not know", place.name)
        places = [place for place in self._places if place.name in _STATE]
        with memory_for(sum(place.num_bytes for place in places)):
            return [(place.name, place.index, self._bytes(place)) for place in places]

    def read_block(self, segment: int, at: int, into: NDArray[np.uint8]) -> None:
        """Fills `into` with bytes of a segment. Raises DamagedSave if it is shorter."""
        if self._files.read(self._segment(segment), at, into.data) != into.nbytes:
            raise DamagedSave(self.path, f"segments/{segment}.pages", f"{at + into.nbytes} bytes", "fewer")

    def _blobs(self) -> dict[str, tuple[int, int]]:
        """Returns the length and the CRC-32C of each blob."""
        beside = self.facts.get("beside", {})
        try:
            blobs = {name: (num_bytes, sum_) for name, (num_bytes, sum_) in beside.items()}
        except (AttributeError, TypeError, ValueError) as error:
            raise DamagedSave(self.path, "the list of blobs", "an object of lengths and sums", beside) from error
        return blobs

    def blob_names(self) -> list[str]:
        """Returns the names of the blobs beside the table."""
        return list(self._blobs())

    def blob(self, name: str) -> bytes:
        """Returns one of them. Raises DamagedSave, StorageFull, KeyError."""
        told, sum_ = self._blobs()[name]
        if name in self._opened_blobs:
            return self._blob_in(self._opened_blobs[name], name, told, sum_)
        handle = self._open_blob(name)
        try:
            return self._blob_in(handle, name, told, sum_)
        finally:
            self._files.close_handle(handle)

    def _open_blob(self, name: str) -> int:
        return self._open(BESIDE, str(self.number), name)

    def _blob_in(self, handle: int, name: str, told: int, sum_: int) -> bytes:
        return read_blob(self._files, handle, self.path, f"{BESIDE}/{self.number}/{name}", (told, sum_))

    def close(self) -> None:
        """Closes the files of the cut, not those of the folder. Closing twice is harmless."""
        handle, self._handle = self._handle, None
        for one in (
            *([] if handle is None else [handle]),
            *self._segments.values(),
            *self._opened_blobs.values(),
        ):
            self._files.close_handle(one)
        self._segments, self._opened_blobs = {}, {}

    def __enter__(self) -> CutReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        self._files.close()
