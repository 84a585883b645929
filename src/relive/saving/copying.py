"""Copies a table into a save folder: rounds of pages, the cut, the rest of the pages, the commit."""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from threading import Event
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from relive import _core
from relive.errors import SaveCancelled, SaveOutrun
from relive.saving.folder import IMAGE, SaveFolder, Segment
from relive.saving.helping import HelpingThread

__all__ = ["Copying", "SaveFacts"]

BLOCK_BYTES = 8 << 20  # of one write
MOST_LEFT_BYTES = 64 << 20  # pages may be left for the time with pages pinned
MOST_ROUNDS = 8
_NICE = 10  # of the threads that copy and write: beside a busy thread on their core they get a tenth of its time
_FIELDS = ("page", "ref", "ticket", "offset", "num_bytes", "num_cells")  # of an image, in the core's order


@final
@dataclass(frozen=True)
class SaveFacts:
    """The facts of a save that is on disk.

    Attributes:
        path: The folder.
        number: The number of the cut in the folder.
        num_steps: Steps in the cut.
        num_pages: Pages in the cut.
        num_pages_written: Those of them that this save wrote; the folder had the others.
        num_bytes: Bytes that this save wrote.
        locked_s: For which the save had the table's lock, in seconds.
        wall_s: From the call to the commit, in seconds.
        cut: The name of the cut, which no other cut has.
    """

    path: str
    number: int
    num_steps: int
    num_pages: int
    num_pages_written: int
    num_bytes: int
    locked_s: float
    wall_s: float
    cut: str


@final
class _Blocks:
    """Two buffers and the thread that writes them: one is written while the other is filled."""

    def __init__(self, folder: SaveFolder, block_bytes: int) -> None:
        self._folder = folder
        self._buffers = [np.frombuffer(mmap.mmap(-1, block_bytes), np.uint8) for _ in range(2)]
        self._thread = HelpingThread("relive-save", _lower_priority)
        self._written: list[Future[int] | None] = [None, None]
        self._turn = 0
        self._segment: Segment | None = None
        self._filled: list[tuple[Future[int], NDArray[np.uint64]]] = []
        self.num_bytes = 0

    def buffer(self) -> NDArray[np.uint8]:
        """Returns the buffer to fill next. Blocks: until its last write is done."""
        written = self._written[self._turn]
        if written is not None:
            written.result()
        return self._buffers[self._turn]

    def write(self, images: NDArray[np.uint64]) -> None:
        """Writes the buffer that was filled, as far as its last image."""
        if self._segment is None:
            self._segment = self._folder.new_segment()
        end = _whole_blocks(int(images[-1, 3] + images[-1, 4]))
        view = self._buffers[self._turn].data[:end]
        future = self._thread.submit(self._segment.append, view)
        self._written[self._turn] = future
        self._filled.append((future, images))
        self.num_bytes += end
        self._turn ^= 1

    def images(self) -> NDArray[Any]:
        """Returns the places of all images that were written, in the order of writing. Blocks: for the writes."""
        parts = []
        for future, given in self._filled:
            part = np.zeros(len(given), IMAGE)
            for column, name in enumerate(_FIELDS):
                part[name] = given[:, column]
            part["offset"] += np.uint64(future.result())
            assert self._segment is not None
            part["segment"] = self._segment.number
            parts.append(part)
        return np.concatenate(parts) if parts else np.zeros(0, IMAGE)

    @property
    def segment_number(self) -> int:
        """The segment of this save; -1 if it wrote none."""
        return -1 if self._segment is None else self._segment.number

    def close(self) -> None:
        """Ends the thread. Blocks: for the write under way."""
        self._thread.close()


@final
class Copying:
    """One save of a table's core into a folder that is open.

    Args:
        core: The core of the table.
        folder: The folder, opened for saving.
        known: The images of the folder that the core may still name: those of its own cuts. Structured (IMAGE).
        cancelled: Set: the save ends with SaveCancelled at the next block.
    """

    def __init__(self, core: _core.CoreTable, folder: SaveFolder, known: NDArray[Any], cancelled: Event) -> None:
        self._folder, self._known, self._cancelled = folder, known, cancelled
        self._began_s = time.monotonic()
        self._saver = _core.CoreSaver(core)
        self._saver.begin(np.stack([known[name] for name in _FIELDS], axis=1).astype(np.uint64, copy=False))
        self._blocks = _Blocks(folder, max(BLOCK_BYTES, _whole_blocks(int(self._saver.most_image_bytes))))
        self._capacity_bytes = int(core.geometry["row_bytes"]) * int(core.geometry["capacity"])
        self._num_left = int(self._saver.bytes_missing)
        self._locked_s = 0.0
        self._thread = HelpingThread("relive-copy", _lower_priority)
        self._is_interrupted = False

    @property
    def progress(self) -> float:
        """The part of the pages that is copied, from 0 to 1."""
        whole = self._blocks.num_bytes + self._num_left
        return self._blocks.num_bytes / whole if whole else 1.0

    def copy_ahead(self) -> None:
        """Copies pages in rounds until few are left, so that little is to do at the cut.

        Raises:
            SaveOutrun: Writers fill pages faster than the save copies them.
            SaveCancelled: `cancelled` was set.
        """
        for number in range(MOST_ROUNDS):
            self._fill()
            left = self._num_left = int(self._saver.bytes_missing)
            if left <= MOST_LEFT_BYTES:
                break
            if number == MOST_ROUNDS - 1 and left > self._capacity_bytes // 8:
                raise SaveOutrun(self._folder.path, left, self._capacity_bytes)
            self._saver.next_round()

    def cut(self, timeout_s: float) -> None:
        """Copies everything but pages at one moment. From then on pages are pinned until `finish`.

        Where writers have filled more pages since `copy_ahead`, it copies those first.

        Raises:
            SaveOutrun, SaveCancelled: as `copy_ahead`.
            DeadlineExceeded: The table's lock was not available in time.
        """
        if int(self._saver.bytes_missing) > MOST_LEFT_BYTES:
            self._saver.next_round()
            self.copy_ahead()
        self._locked_s = self._saver.cut(timeout_s)

    def finish(self, facts: Mapping[str, Any], beside: Mapping[str, bytes], keep: int | frozenset[int]) -> SaveFacts:
        """Copies the rest of the pages, unpins them, and commits the cut."""
        self._fill()
        self._num_left = 0
        self._saver.end()
        images = self._images_of_cut()
        self._check_cancelled()
        sections = [(name, index, bytes_) for name, index, bytes_ in self._saver.sections()]
        told = {**facts, "num_steps": self._saver.num_steps}
        cut = self._folder.commit(sections, images, told, beside, keep)
        num_written = int(np.count_nonzero(images["segment"] == self._blocks.segment_number))
        return SaveFacts(
            self._folder.path,
            cut.number,
            self._saver.num_steps,
            len(images),
            num_written,
            self._blocks.num_bytes + cut.num_bytes,
            self._locked_s,
            time.monotonic() - self._began_s,
            cut.name,
        )

    def close(self) -> None:
        """Unpins pages and ends the threads. Closing twice is harmless."""
        self._thread.close()
        self._saver.end()
        self._blocks.close()

    def _fill(self) -> None:
        """Copies and writes pages until the core has none left for this round. A thread of low priority does it.

        The caller's own thread may have the table's lock next, so it keeps its priority.
        """
        filling = self._thread.submit(self._fill_here)
        try:
            filling.result()
        except BaseException:  # a signal: the thread must be done before the caller ends the save
            self._is_interrupted = True
            wait([filling])
            raise

    def _fill_here(self) -> None:
        while not self._is_interrupted:
            self._check_cancelled()
            images = self._saver.fill(self._blocks.buffer(), 0)
            if not len(images):
                return
            self._blocks.write(images)

    def _check_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise SaveCancelled(self._folder.path)

    def _images_of_cut(self) -> NDArray[Any]:
        """Returns the image of each page of the cut, by segment and offset: the newest copy of its ref."""
        pages = self._saver.pages()
        known = self._known[self._known["page"] <= pages[:, 0].max(initial=0)]  # a file may name any page
        all_images = np.concatenate([known, self._blocks.images()])
        newest = np.full(int(all_images["page"].max(initial=0)) + 1, -1, np.int64)
        newest[all_images["page"]] = np.arange(len(all_images))  # a later assignment wins
        chosen = all_images[newest[pages[:, 0]]] if len(pages) else all_images[:0]
        wrong = (chosen["page"] != pages[:, 0]) | (chosen["ref"] != pages[:, 1])
        wrong |= (chosen["ticket"] != pages[:, 2]) & (chosen["ticket"] != 0)
        if wrong.any():
            raise AssertionError(f"{int(wrong.sum())} pages of the cut have no image")
        return chosen[np.lexsort((chosen["offset"], chosen["segment"]))]


def _lower_priority() -> None:
    """Lets threads that sample and write go before this one. Linux has a priority for each thread."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


def _whole_blocks(num_bytes: int) -> int:
    return -(-num_bytes // 4096) * 4096
