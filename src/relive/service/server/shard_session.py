"""Serves a stream to a table that is one of several shards: its roots, its draws, and the place of its bytes.

A fleet makes each draw from several shards. A shard counts its part of the draw after all shards have given their
parts; otherwise that part goes back. Each draw therefore has a ticket. A message lists the tickets of the draws that
were handed out ("done") and of the draws that go back ("back"), in any order, because the draws of several threads
share one stream. Draws without a settlement go back when the stream ends.

If uses are counted, a ticket that is lost with its stream would let items be handed out twice. Such a draw is settled
by "confirm". It has an answer, and comes on any stream of the client: the stream of the draw may be busy, or over.
"""

from __future__ import annotations

import math
import secrets
import struct
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple, final

import numpy as np
import pyarrow as pa

from relive._core import CoreTable, Hold
from relive.core.late_rows import first_filled
from relive.core.limiter_words import limiter_words
from relive.core.locked import check_lock
from relive.core.request import DrawRequest
from relive.errors import BadMessage, ReliveError, TableClosed
from relive.reading.sources import DrawNumber
from relive.service.server.guard import Permit
from relive.service.server.hosting import Hosted
from relive.service.server.item_calls import AskedDraw, draw_bytes, drawn_answer
from relive.service.server.pipe import Pipe
from relive.service.server.room import Kept, kept_bytes
from relive.service.server.sessions import Header, Session
from relive.service.wire import framing
from relive.service.wire.framing import Bytes
from relive.service.wire.options import ServerOptions
from relive.service.wire.packing import MOST_DRAWS, MOST_TOGETHER_BYTES, MOST_TOGETHER_ITEMS

__all__ = ["ROOT", "ShardSession", "layout_of"]

ROOT = struct.Struct("<dqdqqqq")  # mass, live items, largest priority, inserted, sampled, pending, policy version
_MAX_SETTLED = 4096
# docs/format.md: rows before, spanned rows and bootstrap rows of each index
_SHAPES_AT, _SHAPE = 320, struct.Struct("<3I")


class _Lent(NamedTuple):
    """A draw that is not settled.

    `is_read`: the rows of the draw have been read when it is handed out; if False, the rows are still to be gathered.
    `num_bytes`: its memory.
    """

    request: DrawRequest
    number: DrawNumber
    hold: Hold
    is_read: bool
    num_bytes: int


@final
class ShardSession(Session):
    """Answers a handle on several shards. The session owns its draws that are not settled."""

    ROLES = {
        "roots": "read",
        "draw": "read",
        "draws": "read",
        "settle": "read",
        "confirm": "read",
        "layout": "read",
        "offer": "read",  # the server has offers only if its Door says so
        "filled": "read",
        "free": "read",
    }

    def __init__(self, pipe: Pipe, hosted: Hosted, options: ServerOptions, permit: Permit) -> None:
        super().__init__(pipe, hosted, options, permit)
        self._lent: dict[int, _Lent] = {}
        self._kept = Kept(hosted.memory.draws, permit.client)
        self._next_ticket = 0
        self._number = secrets.randbits(60)  # a client may name it to the server that replaced this one

    @property
    def _core(self) -> CoreTable:
        return self.hosted.table.core

    def begin(self) -> Header:
        """Returns the shard's number, the form of its keys, and the path of its file for a client on the same host."""
        geometry = self._core.geometry
        told = {name: int(geometry[name]) for name in ("shard", "slot_bits", "num_slots", "format_version")}
        self.hosted.lending[self._number] = self
        return told | {
            "path": self.hosted.table.path,
            "offers": sorted(self.hosted.offers),
            "draws": True,  # this version answers several draws of one message
            "session": self._number,
        }

    def handle(self, header: Header, body: Bytes) -> None:
        """Settles the draws that the message lists, then answers the message.

        A message that only settles has no answer.
        """
        op = header["op"]
        if "done" in header or "back" in header:
            self._settle(header)
        if op == "settle":
            return
        if "after" in header:
            self.hosted.wait_for(header["after"], framing.seconds(header), self.pipe.gone)
        if op == "roots":
            self._root(header)
        elif op == "draw":
            self._draw(header)
        elif op == "draws":
            self._draws(header)
        elif op == "confirm":
            self._confirm(header)
        elif op == "layout":
            self.pipe.send(layout_of(self._core))
        elif op == "offer":
            self._offer(header)
        elif op == "filled":
            (keys,) = framing.arrays_of(body, (np.int64, (framing.whole(header, "n", 0, 2**31 - 1),)))
            self.pipe.send({"position": first_filled(self._core, keys)})
        else:  # "free"
            check_lock(self._core, framing.seconds(header))
            self.pipe.send({})

    def _root(self, header: Header) -> None:
        indexes = list(self.hosted.table.config.index.values())
        number = framing.whole(header, "index", 0, len(indexes) - 1)
        told: dict[str, Any] = {}
        if indexes[number].limiter.bounds_items:
            massless, base_version = limiter_words(self._core, number)
            told = {"massless": massless, "base_version": base_version}
        self.pipe.send(told, ROOT.pack(*self._core.root(number)))

    def _draw(self, header: Header) -> None:
        asked = self._asked_draw(header, "names" in header)
        with ExitStack() as rooms:
            self.pipe.send_buffers(*self._lend(header, asked, framing.seconds(header), rooms))

    def _draws(self, header: Header) -> None:
        """Makes draws that differ in their numbers of items alone, in order, and answers them with one message.

        If one fails, those after it are not made, and the answer has the error.
        """
        counts = framing.field(header, "n", list)
        if not 1 <= len(counts) <= MOST_DRAWS:
            raise BadMessage("number of draws", f"1 to {MOST_DRAWS}", len(counts))
        every = [self._asked_draw(header | {"n": count}, "names" in header) for count in counts]
        num_items, num_bytes = sum(one.request.num_items for one in every), sum(draw_bytes(one)[0] for one in every)
        if num_items > MOST_TOGETHER_ITEMS or num_bytes > MOST_TOGETHER_BYTES:
            most = f"at most {MOST_TOGETHER_ITEMS} items and {MOST_TOGETHER_BYTES} bytes"
            raise BadMessage("draws in one message", most, f"{num_items} items and {num_bytes} bytes")
        ends = time.monotonic() + framing.seconds(header)
        told: dict[str, Any] = {"drawn": []}
        parts: list[pa.Buffer] = []
        with ExitStack() as rooms:
            for asked in every:
                try:
                    one, buffers = self._lend(header, asked, max(ends - time.monotonic(), 0.0), rooms)
                except Exception as problem:  # any error of a message is sent to the client
                    told["stopped"] = framing.error_to(problem)
                    break
                told["drawn"].append(one)
                parts.extend(buffers)
            self.pipe.send_buffers(told, parts)

    def _lend(
        self, header: Header, asked: AskedDraw, seconds: float, rooms: ExitStack
    ) -> tuple[Header, list[pa.Buffer]]:
        """Makes a draw, which has a ticket from then on. Returns its answer. `rooms` keeps the memory of the answer."""
        core, number, index = self._core, DrawNumber(self._core), asked.request.index_number
        hold = None if self.hosted.table.read_only else Hold()  # a draw of a reader is not counted
        num_bytes = 0 if hold is None else kept_bytes(asked.request.num_items, self.hosted.counts_uses(index))
        within = rooms.enter_context(self._room(*draw_bytes(asked), seconds))
        with self._kept.room(num_bytes, seconds, self.pipe.gone) as left_s:
            drawn = self.hosted.wait(
                lambda slice_s: within(lambda: core.draw(asked.request, slice_s, hold)), left_s, self.pipe.gone
            )
            number.taken()
            ticket, self._next_ticket = self._next_ticket, self._next_ticket + 1
            if hold is not None:
                is_read = header.get("is_read") is not False
                self._lent[ticket] = _Lent(asked.request, number, hold, is_read, num_bytes)
        self.pipe.gives_up = math.inf  # as in HoldSession
        told: dict[str, Any] = {"ticket": ticket}
        try:
            if header.get("root") is True:  # of a draw ahead, which needs no question of its own for the next one
                told["root"] = ROOT.pack(*core.root(index)).hex()
            return drawn_answer(asked, drawn, told)
        except BaseException:  # the client never hears this ticket
            lent = self._lent.pop(ticket, None)
            if lent is not None:
                with suppress(ReliveError):  # the first error says more; the end of the hold gives the draw back
                    self._give_back(lent)
            raise

    def _settle(self, header: Header) -> None:
        for name, settle in (("done", self._commit), ("back", self._give_back)):
            tickets = header.get(name, [])
            if not isinstance(tickets, list) or len(tickets) > _MAX_SETTLED:
                continue  # no answer could report the fault; the remaining draws go back at the stream's end
            for told in tickets:
                ticket, lost = told if isinstance(told, list) and len(told) == 2 else (told, 0)
                lent = self._lent.pop(ticket, None) if type(ticket) is int else None
                if lent is not None:
                    settle(lent, lost)

    def _confirm(self, header: Header) -> None:
        """Counts a draw of a session, and answers whether it was still in flight."""
        session = self.hosted.lending.get(framing.whole(header, "session", 0, 1 << 62))
        self.pipe.send({"there": session is not None and session.confirm(framing.whole(header, "ticket", 0, 1 << 62))})

    def confirm(self, ticket: int) -> bool:
        """Counts a draw. Returns whether it was in flight. The threads of other streams call it."""
        lent = self._lent.pop(ticket, None)
        if lent is not None:
            self._commit(lent, 0)
        return lent is not None

    def _commit(self, lent: _Lent, lost: Any) -> None:
        """Counts the draw, except items that were removed before their rows were read and so not handed out."""
        index, num_items = lent.request.index_number, lent.request.num_items
        num_lost = min(max(lost, 0), num_items) if type(lost) is int and not self.hosted.counts_uses(index) else 0
        try:
            if not self.hosted.table.closed:
                lent.hold.commit(lent.is_read, num_lost)
        finally:
            self._kept.give(lent.num_bytes)

    def _give_back(self, lent: _Lent, lost: Any = 0) -> None:
        try:
            lent.hold.give_back()
            lent.number.give_back()
        finally:
            self._kept.give(lent.num_bytes)

    def refuse(self, header: Header, problem: Exception) -> None:
        """Answers with an error, as every session does. A message that only settles has no answer."""
        if header.get("op") != "settle":
            super().refuse(header, problem)

    def _offer(self, header: Header) -> None:
        name = framing.field(header, "what", str)
        give = self.hosted.offers.get(name)
        if give is None:
            raise BadMessage("offer", " or ".join(self.hosted.offers) or "none", name[:40])
        fields, body = give()
        self.pipe.send({"fields": fields}, body)

    def end(self) -> None:
        """Gives back the draws that were not settled, the newest first."""
        self.hosted.lending.pop(self._number, None)
        try:
            while self._lent and not self.hosted.table.closed:  # a closed table has given every draw back
                with suppress(KeyError, TableClosed):  # KeyError: another stream has just confirmed the last one
                    self._give_back(self._lent.popitem()[1])
        finally:
            self._kept.close()


def layout_of(core: CoreTable) -> Mapping[str, Any]:
    """Returns the serialised layout: the numbers of the region that docs/format.md describes."""
    geometry = {name: value for name, value in core.geometry.items() if name not in ("uuid", "boot_id")}
    with core.region_bytes() as region:
        at = [_SHAPES_AT + number * _SHAPE.size for number in range(len(geometry["trees_offset"]))]
        shapes = [_SHAPE.unpack_from(region, one) for one in at]
    return {"geometry": geometry | {"uuid": core.geometry["uuid"].hex()}, "columns": core.layout, "shapes": shapes}
