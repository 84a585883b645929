"""Reads rows of a peer's region one-sidedly, and checks them by the rules of a reader without the lock.

The transport is another module (nixl.py; tests have a transport that tears). The transport copies cells of areas, and
returns when all of them have come. This module defines which cells are read in which order. The order alone makes it
impossible to hand out a torn row:

R1  The word of each item's page comes first. The word must belong to a page in use, of the key's generation (G2).
R2  After the words have come: leaf states, records of pages, frames and tails (G3, G4: the frame after its word). If a
    leaf state is not an item's, the item is gone.
R3  The same for pages that windows run on to, found by the links of R2: the word, and after it the rest (A1).
R4  Then rows, at the frames of R2 and R3: packed records; marks if they are asked for or a head says so; then large
    rows. All rows that the index's shape may need are read. The shape bounds them, not the episode.
R5  After the last row: the word of every page once more. An item is torn if the generation or the count of moves of one
    of its pages differs from R1 or R3. A torn item is read again (G4).
R6  The rows go to the mirror (mirror.py), whose core makes the batch. A window is whole or absent (W1). Pages that were
    not read are absent.

For large columns alone, R1 and R2 except leaf states may come from an earlier batch (peer_pages.py, which has R1 to R3
and R5). Then only states, rows and words are read. If the keys come from a draw, the states are read with the rows.

Transitions, sequences and episodes are read here. Owners make uniform and prioritized draws (keys and masses), and
everything that counts. A reader that gave up in the middle of a read is spoiled: bytes may still come into its memory,
which belongs to the transport until then.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from relive import _core
from relive.config.table_config import TableConfig
from relive.core.distinct import distinct
from relive.errors import InvalidConfig
from relive.fleet.draws.mixing import empty
from relive.fleet.onesided.mirror import Mirror
from relive.fleet.onesided.peer_layout import BLOCK_ROWS, Indices, PeerLayout
from relive.fleet.onesided.peer_pages import Pages, PeerPages, generations_of
from relive.fleet.onesided.transport import Columns, Direct, Memory, Move, Place, Plan, Present, zero

__all__ = ["Gathered", "OneSidedReader"]

Arrays = list[npt.NDArray[Any]]

ROUNDS = 16  # the core tries as many rounds without the lock
_OWN_DISCOUNT = _core.region_format()["discount_bit"]  # bit of a head


class Gathered(NamedTuple):
    """Columns of some keys.

    unsettled: positions of keys that changed in every round, so that nothing is known of them.
    """

    arrays: Arrays
    present: Present
    unsettled: Indices


class _Recalled(NamedTuple):
    """Large rows of keys with recalled pages, in the order of plan.direct, and which are items' and whole."""

    made: Arrays
    good: Present
    changed: Present


# ---- the reader ----------------------------------------------------------------------------------------------------


@final
class OneSidedReader:
    """Reads items of one peer by key. One thread at a time. Owns its mirror.

    Raises InvalidConfig for regions that it does not read (a column of kind start, pages of one row).
    """

    def __init__(self, config: TableConfig, layout: PeerLayout, memory: Memory) -> None:
        if layout.cell_stride:
            raise InvalidConfig("columns of a shard that is read one-sidedly", "none of kind start", "some")
        self._config = config
        self._layout = layout
        self._memory = memory
        self.mirror = Mirror(config, layout)
        self.is_spoiled = False
        self.num_torn = 0  # items that R5 found torn
        self.num_read = 0  # items handed out
        self._plans: dict[tuple[int, tuple[str, ...]], Plan] = {}
        own = self.mirror.layout
        memory.allow(self.mirror.base, own.region_bytes, self.mirror)
        self._pages = PeerPages(layout, memory, self.mirror.num_pages, self._read)
        self._marks = memory.source(layout.marks()), memory.target(Place(own.marks(), self.mirror.base))
        self._rows = memory.source(layout.records()), memory.target(Place(own.records(), self.mirror.base))
        self._columns: dict[str, tuple[Any, Any]] = {}  # by name: source, and target in the mirror
        self._rooms: dict[str, Columns] = {}

    @staticmethod
    def refusal(config: TableConfig, index: int) -> str:
        """Why items of an index are read through their owner; "" if they are read one-sidedly."""
        one = list(config.index.values())[index]
        if not one.items.keys_are_steps:
            return "explicit items and groups"
        if one.sampler.replaces_goals:
            return "goals of Hindsight"
        if one.items.is_ragged:
            return "ragged batches"
        return ""

    def gather(
        self, index: int, names: Sequence[str], keys: Indices, timeout_s: float, *, are_published: bool = False
    ) -> Gathered:
        """Reads columns of keys that are known to be this shard's, int64 [B].

        are_published: whether the keys are known to have been items before.

        Blocks until no item changed during its read, for at most 16 rounds or timeout_s seconds. Raises
        DeadlineExceeded (the reader is then spoiled), ServiceUnavailable if the peer is gone, and UnknownColumn.
        """
        plan = self._plan(index, tuple(names))
        ends = time.monotonic() + timeout_s
        recalled = self._attempt_recalled(plan, keys, ends, are_published) if plan.is_plain and len(keys) else None
        if recalled is not None and recalled.good.all():  # the whole batch, as it came
            self.num_read += len(keys)
            shown = [
                self._shown(plan, one, rows, len(keys)) for one, rows in zip(plan.direct, recalled.made, strict=True)
            ]
            return Gathered(shown, recalled.good, np.empty(0, np.int64))
        arrays = [empty(output, len(keys)) for output in plan.outputs]
        present, left = np.zeros(len(keys), np.bool_), np.arange(len(keys))
        if recalled is not None:
            self.num_torn += int(recalled.changed.sum())
            self._place_large(plan, np.flatnonzero(recalled.good), left, (arrays, present), recalled.made)
            left = left[recalled.changed]
        for _ in range(ROUNDS):
            torn = []
            for first in range(0, len(left), plan.most_items):
                some = left[first : first + plan.most_items]
                torn.append(some[self._attempt(plan, keys[some], some, (arrays, present), ends)])
            left = np.concatenate(torn) if torn else left[:0]
            if not len(left):
                break
        self.num_read += int(present.sum())
        zero(plan.outputs, arrays, ~present)
        return Gathered(arrays, present, left)

    def close(self) -> None:
        """Ends the reader. Close a spoiled reader only when its transport is done with its memory."""
        self.mirror.close()

    # ---- one attempt -----------------------------------------------------------------------------------------------

    def _attempt(
        self, plan: Plan, keys: Indices, positions: Indices, out: tuple[Arrays, Present], ends: float
    ) -> Present:
        """Reads items once. Returns bool [B]: which keys changed during the read."""
        item_pages, rows, generations = self._layout.parts_of(keys)
        ids = distinct(item_pages)
        own = np.searchsorted(ids, item_pages)
        pages = self._pages.read_words(ids, ends)  # R1
        alive = self._pages.is_alive(pages.is_used[own], generations_of(pages.words)[own], generations)
        torn = np.zeros(len(keys), np.bool_)
        if not alive.any():
            return torn
        published = self._pages.read_directory(plan, pages, (own, rows, alive), ends)  # R2
        if plan.needs_version:
            self.mirror.set_policy_version(self._pages.policy_version)
        wanted = np.flatnonzero(alive & published)
        if not len(wanted):
            return torn
        own, rows = own[wanted], rows[wanted]
        pages, chain, links = self._pages.follow(plan, pages, own, rows, ends)  # R3
        large, are_led_to = self._read_rows(plan, pages, chain, rows, links, ends)  # R4
        changed = self._pages.changed(pages, ends)  # R5
        is_torn = np.any(changed[np.maximum(chain, 0)] & (chain >= 0), axis=1)
        self.num_torn += int(is_torn.sum())
        whole = self._deliver(
            plan, pages, links, (own, rows), positions[wanted], ~is_torn & are_led_to, out, large
        )  # R6
        torn[wanted] = ~whole
        return torn

    def _attempt_recalled(self, plan: Plan, keys: Indices, ends: float, are_published: bool) -> _Recalled | None:
        """Reads large rows alone if all their pages are recalled, with three reads instead of four, or with two.

        Two reads are enough if the keys are known to have been items: their rows stay the same as long as their page
        does, and
        the leaf states, which tell whether they are still items, may come with the rows. For other keys the states come
        first,
        because rows that were read before their leaf was published may belong to the row's last tenant.

        Returns None if a page is not recalled, or if a next state lies in a next page, which links lead to. Two parts
        of a
        batch would cost more reads than one part, and a copy.
        """
        item_pages, rows, generations = self._layout.parts_of(keys)
        pages = self._pages.recalled(item_pages, generations)  # R1, R2: from an earlier read
        if pages is None or (plan.reads_next and (rows == self._layout.page_len - 1).any()):
            return None
        own, first = np.arange(len(keys)), self._pages.frames_of(pages) * self._layout.page_len + rows
        moves, made = [], []
        for one in plan.direct:
            array, target = self._room(one.column).lend(len(keys))
            made.append(array)
            moves.append(Move(self._column(one.column)[0], target, first + one.is_next, own))
        states, is_item = self._pages.states_with(plan.index, item_pages * self._layout.page_len + rows)
        if are_published:
            self._read([states, *moves], ends)  # R2, R4
            published = is_item()
        else:
            self._read([states], ends)  # R2
            published = is_item()
            self._read(moves, ends)  # R4
        changed = self._pages.changed(pages, ends, are_recalled=True)  # R5
        return _Recalled(made, published & ~changed, changed)  # R6

    # ---- rows ------------------------------------------------------------------------------------------------------

    def _spread(self, plan: Plan, chain: Indices, rows: Indices) -> tuple[Indices, Indices]:
        """(page, row) of every row that a window may need and that links led to, each once."""
        page_len = self._layout.page_len
        places = rows[:, None] + np.arange(-plan.before, plan.after + 1)
        hop = np.floor_divide(places, page_len)
        pages = np.take_along_axis(chain, hop + plan.pages_before, axis=1)
        flat = distinct((pages * page_len + (places - hop * page_len))[pages >= 0])
        return np.divmod(flat, page_len)

    def _read_rows(
        self, plan: Plan, pages: Pages, chain: Indices, rows: Indices, links: tuple[Indices, Indices], ends: float
    ) -> tuple[Arrays, Present]:
        """Reads rows to their places in the mirror, and large rows of transitions into the returned arrays.

        Returns the arrays and bool [B]: whether links led to the whole window, as far as known without the mirror.
        """
        page_len, at_once = self._layout.page_len, self._layout.rows_a_cell
        frames = self._pages.frames_of(pages)
        one_step = np.zeros(len(rows), np.int64), np.ones(len(rows), np.int64), np.ones(len(rows), np.bool_)
        if plan.is_plain:
            large, made, are_led_to = self._large(plan, frames, chain, rows, one_step)
            self._read(large, ends)
            return made, are_led_to
        page, row = self._spread(plan, chain, rows)
        cells = distinct((page * page_len + row) // at_once)
        per_page = page_len // at_once
        home, place = np.divmod(cells, per_page)
        moves = [Move(*self._rows, frames[home] * per_page + place, cells)]
        blocks = distinct((page * page_len + row) // BLOCK_ROWS)
        home, place = np.divmod(blocks, page_len // BLOCK_ROWS)
        marks = Move(*self._marks, pages.ids[home] * (page_len // BLOCK_ROWS) + place, blocks)
        if plan.needs_marks:
            moves.append(marks)
        for column in plan.mirrored:
            moves.append(Move(*self._column(column), frames[page] * page_len + row, page * page_len + row))
        made = []
        if plan.sizes is None:
            large, made, _ = self._large(plan, frames, chain, rows, one_step)
            moves += large
        self._read(moves, ends)
        if not plan.needs_marks and np.any(self.mirror.heads(page, row) & np.uint32(_OWN_DISCOUNT)):
            self._read([marks], ends)
        if plan.sizes is not None:
            large, made, _ = self._large(plan, frames, chain, rows, self._sizes(plan, pages, chain, rows, links))
            self._read(large, ends)
        return made, one_step[2]

    def _sizes(
        self, plan: Plan, pages: Pages, chain: Indices, rows: Indices, links: tuple[Indices, Indices]
    ) -> tuple[Indices, Indices, Present]:
        """For each window: its episode's steps before it, its steps, whether it is whole (by the mirror's heads)."""
        self._show(pages, links)
        own = chain[:, plan.pages_before]
        self.mirror.set_states(plan.index, own, rows)
        keys = self.mirror.keys_of(own, rows)
        (steps, num_steps), whole = self.mirror.gather(plan.sizes, keys)
        self.mirror.forget(len(pages.ids))
        return steps, num_steps, whole

    def _large(
        self,
        plan: Plan,
        frames: Indices,
        chain: Indices,
        rows: Indices,
        sizes: tuple[Indices, Indices, Present],
    ) -> tuple[list[Move], Arrays, Present]:
        """Moves for one row of each item and frame of a stack, from its place in the peer to its place in the batch."""
        steps, num_steps, whole = sizes
        moves, made = [], []
        are_led_to = np.ones(len(rows), np.bool_)
        for one in plan.direct:
            array, target = self._room(one.column).lend(len(rows) * one.stack)
            made.append(array)
            back = np.arange(one.stack - 1, -1, -1)
            place = (num_steps if one.is_next else np.zeros_like(steps))[:, None] - back
            begins = -steps[:, None]  # rows from the item's own back to its episode's first
            is_there = (place >= begins) & whole[:, None]
            source = np.maximum(place, begins) + rows[:, None]
            hop = np.floor_divide(source, self._layout.page_len)
            page = np.take_along_axis(chain, np.clip(hop + plan.pages_before, 0, chain.shape[1] - 1), axis=1)
            wanted = (is_there | (whole[:, None] & (not one.pads_zeros))) & (page >= 0)
            cells = frames[np.maximum(page, 0)] * self._layout.page_len + (source - hop * self._layout.page_len)
            moves.append(Move(self._column(one.column)[0], target, cells[wanted], np.flatnonzero(wanted)))
            are_led_to &= wanted.all(axis=1)
            if not wanted.all():
                array.reshape(len(rows), one.stack, -1)[~wanted] = 0
        return moves, made, are_led_to

    # ---- the batch -------------------------------------------------------------------------------------------------

    def _deliver(
        self,
        plan: Plan,
        pages: Pages,
        links: tuple[Indices, Indices],
        items: tuple[Indices, Indices],
        positions: Indices,
        is_good: Present,
        out: tuple[Arrays, Present],
        large: Arrays,
    ) -> Present:
        """Copies the columns of items that did not change to their places. Returns bool [B]: which items were whole."""
        own, rows = items
        good = np.flatnonzero(is_good)
        whole = np.zeros(len(own), np.bool_)
        if not len(good):
            return whole
        some: Arrays = []
        if plan.is_plain:  # the leaf of an item says that its window is complete, and the whole window is here
            whole[good] = True
        else:
            self._show(pages, links)
            self.mirror.set_states(plan.index, own[good], rows[good])
            keys = self.mirror.keys_of(own[good], rows[good])
            some, whole[good] = self.mirror.gather(plan.selection, keys)
            self.mirror.forget(len(pages.ids))
        arrays, present = out
        keep = whole[good]
        to = positions[good][keep]
        for number, array in zip(plan.by_core, some, strict=False):  # one more array if all columns asked for are large
            if plan.outputs[number][3] == 0:
                arrays[number][to] = array[keep]
            else:  # the item axis comes after the time axis
                arrays[number][:, to] = array[:, keep]
        self._place_large(plan, good[keep], positions, out, large)
        return whole

    @staticmethod
    def _shown(plan: Plan, one: Direct, rows: npt.NDArray[Any], num_items: int) -> npt.NDArray[Any]:
        """Large rows in the shape of the batch."""
        _, dtype, shape, *_ = plan.outputs[one.output]
        return rows.view(dtype).reshape(num_items, *shape)

    def _place_large(
        self, plan: Plan, good: Indices, positions: Indices, out: tuple[Arrays, Present], large: Arrays
    ) -> None:
        """Copies the good large rows (one row or stack a position) to their places, and marks the items as present."""
        arrays, present = out
        is_whole = len(good) == len(positions) == len(present)
        for one, rows in zip(plan.direct, large, strict=True):
            values = self._shown(plan, one, rows, len(positions))
            if is_whole:
                arrays[one.output] = values  # the whole batch, as it came
            else:
                arrays[one.output][positions[good]] = values[good]
        present[positions[good]] = True

    # ---- parts -----------------------------------------------------------------------------------------------------

    def _read(self, moves: list[Move], ends: float) -> None:
        try:
            self._memory.read([move for move in moves if len(move.to_cells)], max(ends - time.monotonic(), 0.001))
        except BaseException:  # after any error bytes may still come
            self.is_spoiled = True
            raise

    def _show(self, pages: Pages, links: tuple[Indices, Indices]) -> None:
        """Sets the mirror's pages to these."""
        records, tails = self._pages.records.values[pages.ids], self._pages.tails.values[pages.ids]
        self.mirror.show(pages.words, records, tails, links)

    def _column(self, column: Any) -> tuple[Any, Any]:
        name = str(column["name"])
        if name not in self._columns:
            mine = next(one for one in self.mirror.layout.columns if one["name"] == name)
            place = Place(self.mirror.layout.column(mine), self.mirror.base)
            self._columns[name] = self._memory.source(self._layout.column(column)), self._memory.target(place)
        return self._columns[name]

    def _room(self, column: Any) -> Columns:
        name = str(column["name"])
        if name not in self._rooms:
            self._rooms[name] = Columns(self._memory, name, int(column["num_bytes"]))
        return self._rooms[name]

    def _plan(self, index: int, names: tuple[str, ...]) -> Plan:
        if (index, names) not in self._plans:
            self._plans[index, names] = Plan.make(self._config, self._layout, self.mirror, index, names)
        return self._plans[index, names]
