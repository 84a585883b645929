"""SaveFolder: the folder of a save while it is written. It commits a save as a whole, or leaves the one before.

relive-save.json   the format, its lowest reader version, the id of the folder
segments/N.pages   blocks of page images, only ever appended to
cuts/N.cut         the state of the table (cut_file.py)
beside/N/NAME      bytes that the caller gave
CURRENT            the kept saves, the newest first, and the segments that they name
lock               locked by the saver
door               only if a table lives in the folder (place.py)
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from relive.core.distinct import distinct
from relive.errors import DamagedSave, InvalidConfig, NoSuchSave, StorageFull, SystemFailure
from relive.saving.blobs import NUMBER, described, remove_blobs, write_blobs
from relive.saving.current import CURRENT, FOLDER, FORMAT, KeptCut, line_of, read_current, read_folder
from relive.saving.cut_file import Section, write_cut
from relive.saving.disk_files import DiskFiles
from relive.saving.files import ALIGN, Files
from relive.saving.reader import IMAGE, MOST_SEGMENTS, CutReader, bytes_of_json

__all__ = ["DOOR", "IMAGE", "CommittedCut", "SaveFolder", "Segment", "remove_all"]

DOOR = "door"


@final
class Segment:
    """A new file of page images."""

    def __init__(self, files: Files, number: int) -> None:
        self.number = number
        self._files = files
        self._handle: int | None = files.create("segments", f"{number}.pages")
        self._at = 0

    def append(self, block: memoryview) -> int:
        """Writes a block, whose length is a multiple of ALIGN. Returns its place in the file."""
        assert self._handle is not None and len(block) % ALIGN == 0
        at = self._at
        self._files.append(self._handle, block, at)
        self._at += len(block)
        return at

    def sync(self) -> None:
        """Returns when all blocks are on disk."""
        assert self._handle is not None
        self._files.sync(self._handle)

    def close(self) -> None:
        """Closes the file. Closing twice is harmless."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._files.close_handle(handle)


@final
@dataclass(frozen=True)
class CommittedCut:
    """A save that is on disk. num_bytes: of its cut and blobs."""

    number: int
    name: str
    num_bytes: int


@final
class SaveFolder:
    """A folder of saves, locked for one saver. Close it."""

    def __init__(self, path: str, files: Files) -> None:
        self.path, self._files = path, files
        self._segment: Segment | None = None
        self._may_be_named = False  # whether CURRENT may name the new save
        self._kept: list[KeptCut] = []
        self.current: CutReader | None = None

    @classmethod
    def open(cls, path: str, files: Files | None = None, *, lives: str | None = None) -> SaveFolder:
        """Opens a folder for one save, makes it if it is not there, and removes what a saver that died has left.

        Args:
            path: The folder.
            files: Its files; None: those on disk.
            lives: The id of the folder, if the saved table lives in it; None: the table lives elsewhere.

        Raises:
            InvalidConfig: The folder has other files and no save, or another table lives in it.
            FileNotFoundError: The table lives in the folder, and the folder is gone.
            SaveInUse: Another save goes on.
            DamagedSave, FormatMismatch: The folder's own files cannot be read.
            StorageFull, SystemFailure: The folder cannot be written.
        """
        folder = cls(path, files if files is not None else DiskFiles(path, makes=lives is None))
        try:
            folder._begin(lives)
        except BaseException:
            folder.close()
            raise
        return folder

    def _begin(self, lives: str | None) -> None:
        files = self._files
        names = set(files.names())
        if (DOOR in names and lives is None) or (lives is not None and read_folder(files, self.path) != lives):
            raise InvalidConfig(
                "folder of a save", "a folder in which no table lives", f"{self.path}, File() of a table"
            )
        if FOLDER not in names and not names <= {"lock", f"{FOLDER}.new"}:
            other = sorted(names - {"lock"})[0]
            raise InvalidConfig("folder of a save", "an empty folder, or one with saves", f"{self.path} with {other!r}")
        files.lock()
        if FOLDER not in set(files.names()):
            told = {"format": FORMAT, "lowest_reader": FORMAT, "folder": secrets.token_hex(16)}
            self._write_new(FOLDER, line_of(told))
            self._rename_new(FOLDER)
        self._id = read_folder(files, self.path)
        for name in ("segments", "cuts", "beside"):
            files.make_folder(name)
        try:
            self._kept = read_current(files, self.path, self._id)
        except NoSuchSave:
            self._kept = []
        files.remove(f"{FOLDER}.new")
        files.remove(f"{CURRENT}.new")
        files.sync_folder()  # a saver that died may have renamed CURRENT and not synced the name
        self._remove_unnamed()
        if self._kept:
            with contextlib.suppress(DamagedSave, StorageFull):  # it must not prevent a new save
                self.current = CutReader(files, self.path, self._kept[0].number)

    def _write_new(self, name: str, data: bytes) -> None:
        """Writes a small file under a second name, and syncs it."""
        files = self._files
        files.remove(f"{name}.new")
        handle = files.create(f"{name}.new")
        try:
            files.append(handle, memoryview(data), 0)
            files.sync(handle)
        finally:
            files.close_handle(handle)

    def _rename_new(self, name: str) -> None:
        """Gives the file its own name."""
        self._files.rename(f"{name}.new", name)
        self._files.sync_folder()

    def reusable(self) -> NDArray[Any]:
        """Returns the images of the newest save in segments that are at least half in use, as IMAGE."""
        if self.current is None:
            return np.zeros(0, IMAGE)
        images = self.current.images
        sizes = {segment: self._segment_bytes(segment) for segment in distinct(images["segment"]).tolist()}
        live = {segment: int(images["num_bytes"][images["segment"] == segment].sum()) for segment in sizes}
        good = [segment for segment, size in sizes.items() if 2 * live[segment] + ALIGN >= size]
        if len(good) >= MOST_SEGMENTS:  # many small saves: the smaller half of their segments becomes one
            good = sorted(good, key=live.__getitem__)[len(good) // 2 :]
        return images[np.isin(images["segment"], good)]

    def _segment_bytes(self, number: int) -> int:
        handle = self._files.open("segments", f"{number}.pages")
        try:
            return self._files.size(handle)
        finally:
            self._files.close_handle(handle)

    def new_segment(self) -> Segment:
        """Begins the segment of this save. Its number is new, so no late reader takes it for another save's."""
        named = {number for cut in self._kept for number in (cut.number, *cut.segments)}
        self._segment = Segment(self._files, max(named, default=0) + 1)
        return self._segment

    def commit(
        self,
        sections: Sequence[Section],
        images: NDArray[Any],
        facts: Mapping[str, Any],
        beside: Mapping[str, bytes],
        keep: int | frozenset[int],
    ) -> CommittedCut:
        """Makes these sections and images the newest save. Files that no kept save names are removed afterwards.

        Args:
            sections: The state of the table.
            images: The page images that it consists of, IMAGE.
            facts: Plain values for the section "facts".
            beside: Blobs by name.
            keep: The number of saves that stay, or the numbers of those that stay beside this one.

        Raises:
            StorageFull, SystemFailure: A write or a sync failed. The save before stays whole.
        """
        number = max((cut.number for cut in self._kept), default=0) + 1
        name = secrets.token_hex(16)
        try:
            num_bytes = self._write_files(number, name, sections, images, facts, beside)
            segments = tuple(distinct(images["segment"]).tolist())
            before = self._kept[: keep - 1] if isinstance(keep, int) else self._named(keep)
            kept = [KeptCut(number, segments), *before]
            self._write_current(kept)
            self._may_be_named = True
            self._rename_new(CURRENT)
        except BaseException:
            if not self._may_be_named:
                self._remove_failed()
            raise
        self._kept, self._segment, self._may_be_named = kept, None, False
        with contextlib.suppress(SystemFailure):  # the save is made; the next one removes the files
            self._remove_unnamed()
        return CommittedCut(number, name, num_bytes)

    def _named(self, numbers: frozenset[int]) -> list[KeptCut]:
        return [cut for cut in self._kept if cut.number in numbers]

    def _write_current(self, kept: Sequence[KeptCut]) -> None:
        self._write_new(CURRENT, line_of({"folder": self._id, "cuts": [cut.to_list() for cut in kept]}))

    def forget(self, staying: frozenset[int]) -> None:
        """Removes all saves but those with these numbers. If the folder has none of these, all saves stay.

        Raises:
            StorageFull, SystemFailure: A write or a sync failed. All saves stay, or those with these numbers.
        """
        kept = self._named(staying)
        if not kept or kept == self._kept:
            return
        self._write_current(kept)
        self._rename_new(CURRENT)
        self._kept = kept
        self._remove_unnamed()

    def _write_files(
        self,
        number: int,
        name: str,
        sections: Sequence[Section],
        images: NDArray[Any],
        facts: Mapping[str, Any],
        beside: Mapping[str, bytes],
    ) -> int:
        """Writes and syncs everything but CURRENT. Returns the bytes of cut and blobs."""
        files = self._files
        if self._segment is not None:
            self._segment.sync()
            self._segment.close()
        told = {
            **facts,
            "cut": name,
            "beside": described(beside),
        }
        whole = [("facts", 0, bytes_of_json(told)), ("images", 0, images.view(np.uint8).reshape(-1)), *sections]
        handle = files.create("cuts", f"{number}.cut")
        try:
            num_bytes = write_cut(files, handle, whole)
            files.sync(handle)
        finally:
            files.close_handle(handle)
        num_bytes += write_blobs(files, number, beside)
        for folder in ("segments", "cuts", "beside"):
            files.sync_folder(folder)
        files.sync_folder()
        return num_bytes

    def _remove_unnamed(self) -> None:
        """Removes files of saves that are not kept, each by its own name. A name that no save has given stays."""
        files = self._files
        if self._segment is not None:
            self._segment.close()
        cuts = {cut.number for cut in self._kept}
        segments = {number for cut in self._kept for number in cut.segments}
        for name in files.names("segments"):
            if name.endswith(".pages") and NUMBER.fullmatch(name[:-6]) and int(name[:-6]) not in segments:
                files.remove("segments", name)
        for name in files.names("cuts"):
            if name.endswith(".cut") and NUMBER.fullmatch(name[:-4]) and int(name[:-4]) not in cuts:
                files.remove("cuts", name)
        remove_blobs(files, cuts)

    def _remove_failed(self) -> None:
        """Removes the files of a save that failed, as far as the system lets it; the next save removes the rest."""
        with contextlib.suppress(SystemFailure):
            self._remove_unnamed()
            self._files.remove(f"{CURRENT}.new")

    def close(self) -> None:
        """Ends the save and unlocks the folder. A save without a commit leaves no file. Closing twice is harmless."""
        with contextlib.ExitStack() as ends:
            ends.callback(self._files.close)
            if self.current is not None:
                ends.callback(self.current.close)
            if self._segment is not None and not self._may_be_named:
                ends.callback(self._remove_failed)
            if self._segment is not None:
                ends.callback(self._segment.close)
            self._segment = None


def remove_all(path: str) -> None:
    """Removes a folder of saves: the files that relive makes there, each by its name, and the folder if it is empty.

    Raises:
        SystemFailure: A file cannot be removed.
    """
    files = DiskFiles(path, makes=False)
    try:
        files.remove(CURRENT)
        remove_blobs(files, ())
        for folder, end in (("cuts", ".cut"), ("segments", ".pages")):
            for name in files.names(folder):
                if name.endswith(end) and NUMBER.fullmatch(name[: -len(end)]):
                    files.remove(folder, name)
        for folder in ("beside", "cuts", "segments"):
            files.remove_folder(folder)
        for name in (f"{CURRENT}.new", f"{FOLDER}.new", FOLDER, "hosts", "lock", DOOR):
            files.remove(name)
    finally:
        files.close()
    with contextlib.suppress(OSError):  # other files lie in it
        os.rmdir(path)
