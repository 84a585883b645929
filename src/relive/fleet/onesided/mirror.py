"""The mirror: a table of this process with the pages of one batch, copied word for word from a peer's region.

The core alone defines a window, its extent and the values computed over it (cpp/relive/read). A reader of a peer's
memory therefore copies pages, links, states and rows into a small region with the same spec, indexes and page length,
and lets the core of that region gather.

- Pages get numbers of the mirror's own, and so do the links between them.
- The generation of every page is the first one, because the peer's generations may not fit in the mirror's keys.
- Pages that were not copied are absent. A link to such a page leads to a page that is gone, and a window that needs it
  is not whole (W1).

One thread at a time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np
import numpy.typing as npt

from relive import _core
from relive.config.limiters import MinSize
from relive.config.storage import LocalMemory
from relive.config.table_config import TableConfig
from relive.errors import InvalidConfig, ReliveError
from relive.fleet.onesided.peer_layout import Indices, PeerLayout

__all__ = ["Mirror"]

_LANES = 8
_PAGES_A_LANE = 56  # the capacity is 8 x this many pages: with that many lanes the page length stays as it is
_MOST_BYTES = 1 << 34  # of address space; only pages that are read get memory
_FORMAT = _core.region_format()
_PREV, _NEXT = (_FORMAT[name] // _FORMAT["word_bytes"] for name in ("page_prev_at", "page_next_at"))
_GENERATION_BIT = _FORMAT["generation_shift"]  # of a page word
_GENERATION = 1  # of every page in the mirror


@final
class Mirror:
    """Owns the region. base: address of the region in this process while the mirror is open.

    Raises InvalidConfig if no region of this process has rows with the peer's layout.
    """

    def __init__(self, config: TableConfig, peer: PeerLayout) -> None:
        indexes = {name: replace(index, limiter=MinSize()) for name, index in config.index.items()}
        capacity = _LANES * _PAGES_A_LANE * peer.page_len
        small = replace(config, capacity=capacity, max_lanes=_LANES, storage=LocalMemory(), index=indexes)
        made = small.core_config() | {"shard": peer.shard, "metadata": small.to_metadata()}
        self.core = _core.create_table(made, None)
        try:
            self.layout = _layout_of(self.core, peer)
            self._check(peer)
        except BaseException:
            self.core.close()
            raise
        self._hold = _core.PinnedRegion(self.core)
        self._hold.__enter__()  # the mapping stays where it is until close()
        self.base = self._hold.address
        self.num_pages = self.layout.num_pages - 1  # the last page stands for all pages that are gone
        self._words = self.view(self.layout.words_offset, self.layout.num_pages, np.uint64)
        frames = self.view(self.layout.frames_offset, self.layout.num_pages, np.uint32)
        frames[:] = np.arange(self.layout.num_pages)  # page k always lies in frame k
        page_words = self.layout.page_bytes // 8
        self._pages = self.view(self.layout.pages_offset, self.layout.num_pages * page_words, np.uint64)
        self._pages = self._pages.reshape(-1, page_words)
        self._tails = self.view(self.layout.tails_offset, self.layout.num_pages * self.layout.tail_words, np.uint64)
        self._tails = self._tails.reshape(self.layout.num_pages, -1)
        self._states = [self.view(at, self.layout.num_slots, np.uint16) for at in self.layout.states_offset]
        self._version = self.view(self.layout.version_at, 1, np.uint32)
        self._heads = self.view(0, self.layout.region_bytes // 4, np.uint32)

    def _check(self, peer: PeerLayout) -> None:
        own = self.layout
        for what in ("page_len", "record_stride", "tail_words", "page_bytes"):
            if getattr(own, what) != getattr(peer, what):
                raise InvalidConfig(f"{what} of a mirror", str(getattr(peer, what)), getattr(own, what))
        lies = ("name", "dtype", "num_bytes", "area", "kind")
        for mine, theirs in zip(own.columns, peer.columns, strict=True):
            same = [mine[name] == theirs[name] for name in lies]
            same.append(mine["area"] != "record" or mine["offset"] == theirs["offset"])
            if not all(same):
                raise InvalidConfig("columns of a mirror", str(dict(theirs)), dict(mine))
        if own.region_bytes > _MOST_BYTES:
            raise InvalidConfig("pages of the peer", "of rows small enough to be mirrored", f"{own.region_bytes} bytes")

    def view(self, offset: int, count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """A view of words of the region."""
        num_bytes = count * np.dtype(dtype).itemsize
        memory: Any = (ctypes.c_ubyte * num_bytes).from_address(self.base + offset)
        words: npt.NDArray[Any] = np.frombuffer(memory, dtype)
        return words

    # ---- pages from the rows read ----------------------------------------------------------------------------------

    def show(
        self,
        words: npt.NDArray[np.uint64],
        pages: npt.NDArray[np.uint64],
        tails: npt.NDArray[np.uint64],
        links: tuple[Indices, Indices],
    ) -> None:
        """Sets pages 0 to K - 1: their words, records and tails, and the pages before and after each.

        Marks and rows were already copied to their places in the mirror.

        Args:
            words: uint64 [K], the words of the pages.
            pages: uint64 [K, words of a page], their records.
            tails: uint64 [K, tail words], their tails.
            links: (before, after), int64 [K] each. -1: no page. -2: a page that is gone, or was not read.
        """
        count = len(words)
        self._tails[:count] = tails.reshape(count, -1)
        self._pages[:count] = pages
        for at, there in zip((_PREV, _NEXT), links, strict=True):
            gone = there == -2
            page = np.where(gone, self.num_pages, there)
            refs = (_GENERATION << self.layout.page_bits | page).astype(np.uint64)
            self._pages[:count, at] = np.where(there == -1, np.uint64(0), refs)
        self._words[:count] = words & np.uint64((1 << _GENERATION_BIT) - 1) | np.uint64(_GENERATION << _GENERATION_BIT)

    def keys_of(self, pages: Indices, rows: Indices) -> Indices:
        """The keys of rows of pages that were set."""
        return self.layout.keys_of(pages, rows, np.full(len(rows), _GENERATION))

    def set_states(self, index: int, pages: Indices, rows: Indices) -> None:
        """Marks these rows as items of an index, because their leaf states in the peer did."""
        self._states[index][pages * self.layout.page_len + rows] = 0

    def forget(self, count: int) -> None:
        """Removes all pages, whatever their rows contain."""
        self._words[:count] = 0

    def set_policy_version(self, version: int) -> None:
        """Sets the policy version that staleness is counted from."""
        self._version[0] = version

    def heads(self, pages: Indices, rows: Indices) -> npt.NDArray[np.uint32]:
        """The heads of records that were copied."""
        starts = self.layout.slabs_offset // 4 + self._frame_words(pages)
        found: npt.NDArray[np.uint32] = self._heads[starts + rows * (self.layout.record_stride // 4)]
        return found

    def _frame_words(self, pages: Indices) -> Indices:
        slabs, places = np.divmod(pages, self.layout.frames_per_slab)
        words: Indices = (slabs * self.layout.slab_bytes + places * self.layout.frame_bytes) // 4
        return words

    def gather(self, selection: Any, keys: Indices) -> tuple[list[npt.NDArray[Any]], npt.NDArray[np.bool_]]:
        """Gathers keys of the mirror by its core."""
        return self.core.gather(selection, keys, None)

    def select(self, index: int, names: Sequence[str]) -> Any:
        """Resolves columns of an index. Raises UnknownColumn."""
        return self.core.select(index, list(names))

    def close(self) -> None:
        """Closes the mirror. No transport may write to it any more."""
        if self.base:
            self.base = 0
            self._words = self._pages = self._tails = self._version = self._heads = np.empty(0, np.uint64)
            self._states = []
            self._hold.__exit__(None, None, None)
            self.core.close()


def _layout_of(core: _core.CoreTable, peer: PeerLayout) -> PeerLayout:
    told = {"geometry": core.geometry, "columns": core.layout, "shapes": peer.shapes}
    try:
        return PeerLayout.from_told(told)
    except ReliveError as problem:
        raise InvalidConfig("a mirror", "a region of this build's format", str(problem)) from None
