"""The pages of a peer as a one-sided reader knows them: words, leaf states, links, frames (R1 to R3 and R5 of rows.py).

The word of a page may be *recalled* from an earlier batch, and with it the frame that was read after the word. R5 of
every later batch reads that word again. A recalled frame is therefore as certain as one that the batch read itself: the
frame did not change between the two reads. Words count moves modulo 65,536. A word that was not read for RECALLED_S is
not recalled, because a page could have moved that often meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, final

import numpy as np
import numpy.typing as npt

from relive import _core
from relive.core.distinct import distinct
from relive.fleet.onesided.peer_layout import BLOCK_ROWS, Indices, PeerLayout
from relive.fleet.onesided.transport import Directory, Memory, Move, Plan, Present

__all__ = ["GONE", "NONE", "PUBLISHED", "Pages", "PeerPages", "generations_of"]

Words = npt.NDArray[np.uint64]

RECALLED_S = 1.0
_LOOK_S = 0.1  # between two comparisons of all words that came with a batch's words
_FORMAT = _core.region_format()
PUBLISHED = _FORMAT["most_uses"] + 1  # leaf states below it belong to items
NONE, GONE = -1, -2  # values of links
_STATE_BITS, _GENERATION_BIT = _FORMAT["state_bits"], _FORMAT["generation_shift"]  # of a page word
_OPEN, _CLOSED = _FORMAT["page_open"], _FORMAT["page_closed"]
_PREV, _NEXT = (_FORMAT[name] // _FORMAT["word_bytes"] for name in ("page_prev_at", "page_next_at"))


class Pages(NamedTuple):
    """The pages of an attempt, numbered as in the mirror."""

    ids: Indices
    words: Words
    is_used: Present


def generations_of(words: Words) -> Indices:
    """The generations in page words."""
    return (words >> np.uint64(_GENERATION_BIT)).astype(np.int64)


@final
class PeerPages:
    """The directories of one peer, and the values that were read of them. One thread at a time.

    read: the reader's function that reads moves, until a time. most: largest number of pages in one attempt.
    """

    def __init__(
        self, layout: PeerLayout, memory: Memory, most: int, read: Callable[[list[Move], float], None]
    ) -> None:
        self._layout = layout
        self._memory = memory
        self._most = most
        self._read = read
        self._words = Directory(memory, layout.words(), np.uint64)
        self._again = Directory(memory, layout.words(), np.uint64, self._words.source)
        self._frames = Directory(memory, layout.frames(), np.uint32)
        self._version = Directory(memory, layout.version(), np.uint32)
        self._states: dict[int, Directory] = {}  # by index
        self.records = Directory(memory, layout.pages(), np.uint64)
        self.tails = Directory(memory, layout.tails(), np.uint64)
        self._recalled = np.zeros(layout.num_pages, np.uint64)  # recalled words; 0: none
        self._looked_s = np.zeros(layout.num_pages)  # when the page's word was last read
        self._looked_round_s = 0.0  # when all words that came were last compared with the recalled words

    @property
    def policy_version(self) -> int:
        """The policy version, as last read with a directory whose plan needs it."""
        return int(self._version.values[0])

    def read_words(self, ids: Indices, ends: float) -> Pages:
        """R1: reads the words of these pages."""
        self._read([self._words.move(ids)], ends)
        words = self._words.values[ids].copy()
        state = words & np.uint64((1 << _STATE_BITS) - 1)
        return Pages(ids, words, (state == _OPEN) | (state == _CLOSED))

    def read_directory(self, plan: Plan, pages: Pages, items: tuple[Indices, Indices, Present], ends: float) -> Present:
        """R2: reads records, frames and tails of pages, and the leaf states of live items.

        Returns bool [B]: which leaves are items'.
        """
        own, rows, alive = items
        states, slots = self._states_of(plan.index), pages.ids[own] * self._layout.page_len + rows
        moves = [states.move(distinct(slots[alive] // BLOCK_ROWS))]
        if plan.needs_version:
            moves.append(self._version.move(np.zeros(1, np.int64)))
        self._read(moves + self._of_pages(plan, pages.ids), ends)
        return self._published(states, slots)

    @staticmethod
    def _published(states: Directory, slots: Indices) -> Present:
        published: Present = states.flat[slots] < PUBLISHED
        return published

    def _of_pages(self, plan: Plan, ids: Indices) -> list[Move]:
        moves = [self._frames.move(ids)]
        if not plan.is_plain or plan.after:
            moves.append(self.records.move(ids))
        return moves if plan.is_plain else [*moves, self.tails.move(ids)]

    def follow(
        self, plan: Plan, pages: Pages, own: Indices, rows: Indices, ends: float
    ) -> tuple[Pages, Indices, tuple[Indices, Indices]]:
        """R3: reads the pages that windows run over.

        Returns the pages; the chain, int64 [B, before + 1 + after], page numbers of this attempt; and the links.
        """
        before, after, page_len = plan.pages_before, plan.pages_after, self._layout.page_len
        chain = np.full((len(own), before + 1 + after), NONE, np.int64)
        chain[:, before] = own
        for hop in range(1, max(before, after) + 1):
            wanted = []
            if hop <= after:
                wanted.append((_NEXT, before + hop, before + hop - 1, rows + plan.after >= hop * page_len))
            if hop <= before:
                wanted.append((_PREV, before - hop, before - hop + 1, rows - plan.before < (1 - hop) * page_len))
            pages = self._hop(plan, pages, chain, wanted, ends)
        if plan.is_plain:
            return pages, chain, (own, own)  # no caller uses the links of a plain plan
        return pages, chain, (self._links(pages, _PREV), self._links(pages, _NEXT))

    def _hop(
        self, plan: Plan, pages: Pages, chain: Indices, wanted: list[tuple[int, int, int, Present]], ends: float
    ) -> Pages:
        """Reads one page further, in both directions."""
        there: list[tuple[int, Indices, Indices]] = []
        for link, to, come_from, needs in wanted:
            which = np.flatnonzero(needs & (chain[:, come_from] >= 0))
            refs = self.records.values[pages.ids[chain[which, come_from]], link]
            page, generation = self._layout.ref_parts(refs)
            ok = (generation > 0) & (page < self._layout.num_pages)
            there.append((to, which[ok], page[ok]))
        found = np.concatenate([page for *_, page in there]) if there else np.empty(0, np.int64)
        new = np.setdiff1d(found, pages.ids)[: self._most - len(pages.ids)]
        if len(new):
            more = self.read_words(new, ends)
            self._read(self._of_pages(plan, new), ends)
            joined = [np.concatenate(pair) for pair in zip(pages, more, strict=True)]
            pages = Pages(joined[0], joined[1], joined[2])
        links = {_PREV: self._links(pages, _PREV), _NEXT: self._links(pages, _NEXT)}
        for (link, to, come_from, _), (_, which, _) in zip(wanted, there, strict=True):
            chain[which, to] = np.maximum(links[link][chain[which, come_from]], NONE)
        return pages

    def _links(self, pages: Pages, link: int) -> Indices:
        """For each page, the number of the page that its link leads to; NONE, or GONE (A1)."""
        refs = self.records.values[pages.ids, link]
        page, generation = self._layout.ref_parts(refs)
        order = np.argsort(pages.ids)
        at = np.minimum(np.searchsorted(pages.ids, page, sorter=order), len(order) - 1)
        number = order[at]
        is_it = self._is_it(
            pages.ids[number] == page, pages.is_used[number], generations_of(pages.words)[number] == generation
        )
        return np.where(refs == 0, NONE, np.where(is_it, number, GONE))

    @staticmethod
    def is_alive(is_used: Present, found: Indices, wanted: Indices) -> Present:
        """For each item, whether its page still contains it (G2)."""
        alive: Present = is_used & (found == wanted)
        return alive

    @staticmethod
    def _is_it(same_page: Present, is_used: Present, same_generation: Present) -> Present:
        """For each link, whether the page that it names is the page that was meant (A1)."""
        return same_page & is_used & same_generation

    def changed(self, pages: Pages, ends: float, are_recalled: bool = False) -> Present:
        """R5: which pages changed since their word was read. are_recalled: the words may be recalled ones."""
        move = self._again.move(pages.ids)
        self._read([move], ends)
        now = self._again.values[pages.ids]
        changed: Present = (now ^ pages.words) >= np.uint64(1 << _STATE_BITS)
        time_s = time.monotonic()
        if are_recalled and time_s < self._looked_round_s + _LOOK_S:
            self._looked_s[pages.ids] = time_s  # pages that changed are read again, and recalled then
            return changed
        self._recalled[pages.ids] = np.where(pages.is_used, pages.words, np.uint64(0))
        self._look(move.from_cells, time_s)
        return changed

    # ---- recalled pages ---------------------------------------------------------------------------------------------

    def _look(self, cells: Indices, time_s: float) -> None:
        """Compares recalled words with the words of the second read, which may contain more pages than were asked for.

        Words that changed are no longer recalled.
        """
        where = slice(None) if len(cells) == self._layout.num_pages else cells
        now, recalled = self._again.values[where], self._recalled[where]
        self._recalled[where] = recalled * ((now ^ recalled) < (1 << _STATE_BITS))
        self._looked_s[where] = time_s
        self._looked_round_s = time_s

    def recalled(self, ids: Indices, generations: Indices) -> Pages | None:
        """A page for each id, possibly the same page twice. None unless all are recalled and have these generations."""
        words = self._recalled[ids]
        is_used = self._looked_s[ids] >= time.monotonic() - RECALLED_S
        if not self.is_alive(is_used, generations_of(words), generations).all():
            return None
        return Pages(ids, words, is_used)

    def states_with(self, index: int, slots: Indices) -> tuple[Move, Callable[[], Present]]:
        """(move, answer): the move reads leaf states with other cells; answer() then tells which leaves are items'."""
        states = self._states_of(index)
        return states.move(slots // BLOCK_ROWS), lambda: self._published(states, slots)

    # ---- parts -----------------------------------------------------------------------------------------------------

    def frames_of(self, pages: Pages) -> Indices:
        """The frames of the pages' rows.

        A number beyond the frames was torn. The words will tell so, and no byte beyond the frames is read.
        """
        frames: Indices = np.minimum(self._frames.values[pages.ids], self._layout.num_frames - 1).astype(np.int64)
        return frames

    def _states_of(self, index: int) -> Directory:
        if index not in self._states:
            self._states[index] = Directory(self._memory, self._layout.states(index), np.uint16)
        return self._states[index]
