"""Serves one stream: answers calls one after the other, or lends batches ahead of their use."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, final

import numpy as np

from relive._core import Hold
from relive.core.request import DrawRequest
from relive.core.roles import Needed, Role
from relive.errors import BadMessage, InvalidConfig, ReliveError
from relive.reading.sources import DrawNumber
from relive.service.server.guard import Permit
from relive.service.server.hosting import Hosted, HostedSelection
from relive.service.server.item_calls import (
    SCRATCH_BYTES,
    AskedDraw,
    Creation,
    claim_of,
    draw_bytes,
    drawn_answer,
    items_of,
    num_rows,
)
from relive.service.server.pipe import Pipe, StreamBroken, packed
from relive.service.server.room import Kept, Room, kept_bytes
from relive.service.server.save_calls import begin_save, cancel_save, forget_saves, look_at_save
from relive.service.wire import framing
from relive.service.wire.framing import Bytes
from relive.service.wire.options import ServerOptions
from relive.service.wire.packing import CREATED, LISTED, PRESENT
from relive.service.wire.verbs import VERBS, Verb, arguments

__all__ = ["CallSession", "HoldSession", "Session", "bound"]

Header = dict[str, Any]


def bound(num_items: int, item_bytes: int, options: ServerOptions) -> int:
    """Returns num_items. Raises InvalidConfig if the reply would be too large."""
    most = max(options.max_reply_bytes // (item_bytes + 16), 1)
    if not 0 <= num_items <= most:
        raise InvalidConfig("num_items", f"at most {most}, as a reply holds {options.max_reply_bytes} bytes", num_items)
    return num_items


_COPIES = 4  # of the arrays of a simple call: received, aligned, sorted, and the core's own
_MEMORY_S = 60.0


def _seconds(header: Header) -> float:
    """Returns the deadline of a call that waits for memory alone. Raises BadMessage."""
    return framing.seconds(header) if "timeout_s" in header else _MEMORY_S


class Session(ABC):
    """Serves one stream, from its handshake to its end.

    The session owns the draws and lanes of its client, and gives them back at the end. Before it answers a message it
    asks whether the client has the role of the message's op now.

    Attributes:
        ROLES: The ops of this kind of stream, and the role that each op needs. No other op is answered.
    """

    ROLES: ClassVar[Mapping[str, Needed]] = {}

    def __init__(self, pipe: Pipe, hosted: Hosted, options: ServerOptions, permit: Permit) -> None:
        self.pipe = pipe
        self.hosted = hosted
        self.options = options
        self.permit = permit
        self._asked_by: Header | None = None
        self._asked: AskedDraw

    def run(self) -> None:
        """Serves until the client ends the stream or is gone.

        An error is sent as an answer and does not end the stream.
        """
        try:
            self.pipe.send(self.hosted.hello() | self.begin())
            while (message := self._next()) is not None:
                try:
                    self.permit.check(self.role_of(message[0]))
                    if self.hosted.observe is None:
                        self.handle(*message)
                    else:
                        self._handle_observed(self.hosted.observe, *message)
                except ReliveError as problem:  # before StreamBroken: some errors of the library are OSErrors
                    self.refuse(message[0], problem)
                except StreamBroken:
                    return
                except Exception as problem:  # any error of a message is sent to the client
                    self.refuse(message[0], problem)
        except StreamBroken:
            return
        finally:
            self.pipe.rest()
            self.end()

    def _handle_observed(self, observe: Callable[..., None], header: Header, body: Bytes) -> None:
        began = time.monotonic()
        try:
            self.handle(header, body)
        finally:
            kind = type(self).__name__.removesuffix("Session").lower()
            observe(self.hosted.name, kind, self.label_of(header), time.monotonic() - began)

    def _next(self) -> tuple[Header, Bytes] | None:
        while True:
            try:
                return self.pipe.read()
            except BadMessage as problem:
                self.refuse({}, problem)

    @classmethod
    def roles(cls) -> frozenset[Role]:
        """Returns the roles of the ops of this kind of stream. A client with one of them may open the stream."""
        return frozenset(one for one in cls.ROLES.values() if one != "any")

    def role_of(self, header: Header) -> Needed:
        """Returns the role that a message needs. Raises BadMessage for an op that this kind of stream does not have."""
        op = framing.field(header, "op", str)
        role = self.ROLES.get(op)
        if role is None:
            raise BadMessage("op", " or ".join(self.ROLES), op[:40])
        return role

    def label_of(self, header: Header) -> str:
        """Returns the name of a message in the metrics. Few names exist: each is kept as long as the server."""
        return str(header["op"])  # role_of() has found it in ROLES

    def refuse(self, header: Header, problem: Exception) -> None:
        """Answers with an error."""
        self.pipe.send({"error": framing.error_to(problem)})

    def begin(self) -> Header:
        """Returns further fields for the handshake."""
        return {}

    def end(self) -> None:  # noqa: B027 - most sessions have nothing to give back
        """Gives back the draws and lanes of the client."""

    @abstractmethod
    def handle(self, header: Header, body: Bytes) -> None:
        """Answers one message, or raises."""

    def _room(self, reply_bytes: int, work_bytes: int, seconds: float) -> Room:
        """Has room for an answer until it is sent. Gives a function that makes a call within the budgets."""
        return Room(self.hosted.memory, self.permit.client, self.pipe, (reply_bytes, work_bytes), seconds)

    def _asked_draw(self, header: Header, has_columns: bool) -> AskedDraw:
        """Returns the draw of a header. A header that repeats the header before it is not read again.

        Raises BadMessage, InvalidConfig (also if the reply would be too large), UnknownColumn.
        """
        if header is not self._asked_by:
            table, select = self.hosted.table, self.hosted.select if has_columns else None
            request = DrawRequest.from_header(header, len(table.config.index), select, table.condition)
            selection: HostedSelection | None = request.selection
            bound(request.num_items, 0 if selection is None else selection.item_bytes, self.options)
            core = None if selection is None else selection.core
            self._asked, self._asked_by = AskedDraw(request._replace(selection=core), selection), header
        return self._asked


class _Call(NamedTuple):
    """A call that is no simple call: the role that it needs, and the method that answers it."""

    role: Needed
    answer: Callable[[Any, Header, Bytes], None]


@final
class CallSession(Session):
    """Answers calls one after the other."""

    def handle(self, header: Header, body: Bytes) -> None:
        """Answers one call."""
        op = header["op"]
        if "after" in header:
            self.hosted.wait_for(header["after"], framing.seconds(header), self.pipe.gone)
        if op in self._CALLS:
            self._CALLS[op].answer(self, header, body)
        else:
            self._ask(VERBS[op], header, body)

    # ---- reading ---------------------------------------------------------------------------------------------------

    def _draw(self, header: Header, body: Bytes) -> None:
        core, asked = self.hosted.table.core, self._asked_draw(header, header["op"] == "sample")
        seconds = framing.seconds(header)
        with self._room(*draw_bytes(asked), seconds) as within:
            drawn = self.hosted.wait(
                lambda slice_s: within(lambda: core.draw(asked.request, slice_s)), seconds, self.pipe.gone
            )
            self.pipe.send_buffers(*drawn_answer(asked, drawn, {}))

    def _claim(self, header: Header, body: Bytes) -> None:
        number = framing.whole(header, "index", 0, 1 << 16)
        self.hosted.index_name(number)
        count = bound(framing.whole(header, "n", 0, 2**31 - 1), 0, self.options)
        (keys,) = framing.arrays_of(body, (np.int64, (count,)))
        claim, seconds = claim_of(self.hosted.table.core, header), framing.seconds(header)
        with self._room(count, count * SCRATCH_BYTES, seconds) as within:
            taken, num_live = self.hosted.wait(
                lambda slice_s: within(lambda: claim(number, keys, slice_s)), seconds, self.pipe.gone
            )
            self.pipe.gives_up = math.inf  # the uses are counted, and over shards `seconds` is 0
            self.pipe.send_buffers({"live": num_live}, packed(PRESENT, [taken], count))

    def _list(self, header: Header, body: Bytes) -> None:
        number = framing.whole(header, "index", 0, len(self.hosted.table.indexes))  # the last one: the steps
        leaf_bytes, memory = LISTED.item_bytes(1), self.hosted.memory
        reply_bytes = min(self.options.max_reply_bytes, memory.inflight.largest)
        most = max(min(reply_bytes // leaf_bytes, memory.work.largest // (leaf_bytes + SCRATCH_BYTES)), 1)
        first, count = framing.whole(header, "first", 0, 1 << 48), framing.whole(header, "n", 1, 1 << 48)
        text = framing.field(header, "where", str) if "where" in header else None
        if text is not None:
            self.hosted.index_name(number)
        where = None if text is None else self.hosted.table.condition(number, text)
        count = min(count, most, 1 << 20)
        core = self.hosted.table.core
        with self._room(count * leaf_bytes, count * SCRATCH_BYTES, _seconds(header)) as within:
            *found, next_leaf = within(lambda: core.list_items(number, first, count, where))
            rows = len(found[0])
            self.pipe.send_buffers({"rows": rows, "next": next_leaf}, packed(LISTED, found, 0, rows))

    def _gather(self, header: Header, body: Bytes) -> None:
        selection = self._selection(header)
        count = bound(framing.whole(header, "n", 0, 2**31 - 1), selection.item_bytes, self.options)
        (keys,) = framing.arrays_of(body, (np.int64, (count,)))
        core = self.hosted.table.core
        with self._room(count * (selection.item_bytes + 1), count * SCRATCH_BYTES, _seconds(header)) as within:
            arrays, present = within(lambda: core.gather(selection.core, keys, None))
            rows = num_rows(selection, arrays)
            columns = packed(selection.gathered, arrays, count, rows)
            told = {"rows": rows} if selection.gathered.is_ragged else {}
            self.pipe.send_buffers(told, [*columns, *packed(PRESENT, [present], count)])

    def _describe(self, header: Header, body: Bytes) -> None:
        selection = self._selection(header)
        outputs = selection.gathered.outputs
        self.pipe.send({"outputs": [[one.name, one.dtype.str, one.shape, one.item_axis, one.per] for one in outputs]})

    def _create(self, header: Header, body: Bytes) -> None:
        number, items = items_of(self.hosted, header, body)
        count = bound(len(items.windows), 0, self.options)
        creation, seconds = Creation(self.hosted.table.core, number, items), framing.seconds(header)
        told: Header = {}
        with self._room(CREATED.num_bytes(count), len(body) * _COPIES, seconds) as within:
            try:
                self.hosted.wait(lambda slice_s: within(lambda: creation.go_on(slice_s)), seconds, self.pipe.gone)
            except ReliveError as problem:  # sent with the keys of the items that were made before the error
                told["stopped"] = framing.error_to(problem)
            told["made"] = creation.made
            self.pipe.send_buffers(told, packed(CREATED, [creation.keys], count))

    def _drop(self, header: Header, body: Bytes) -> None:
        self.hosted.life.drop(self.hosted.name)
        self.pipe.send({})

    def _drain(self, header: Header, body: Bytes) -> None:
        self.hosted.life.drain(self.permit.caller)
        self.pipe.send({})

    def _save(self, header: Header, body: Bytes) -> None:
        self.pipe.send(self._SAVE_CALLS[header["op"]](self.hosted, header, body))

    def _selection(self, header: Header) -> HostedSelection:
        return self.hosted.select(framing.whole(header, "index", 0, 1 << 16), header.get("names"))

    def _ask(self, verb: Verb, header: Header, body: Bytes) -> None:
        """Answers a simple call with the core's return value."""
        core = self.hosted.table.core
        values = arguments(verb, header, body, len(self.hosted.table.config.index))
        with self._room(0, len(body) * _COPIES, _seconds(header)) as within:
            value = within(lambda: getattr(core, verb.name) if verb.is_property else getattr(core, verb.name)(*values))
        self.pipe.send({"value": value})

    # Functions of the class, not bound methods. A session that referenced itself would keep both ends of its stream and
    # the table alive until the next garbage collection, long after Arrow has released the stream.
    _CALLS: ClassVar[dict[str, _Call]] = {
        "sample": _Call("read", _draw),
        "draw": _Call("read", _draw),
        "claim": _Call("read", _claim),
        "list": _Call("read", _list),
        "gather": _Call("read", _gather),
        "create": _Call("append", _create),
        "select": _Call("any", _describe),
        "save": _Call("admin", _save),
        "saving": _Call("admin", _save),
        "cancel": _Call("admin", _save),
        "forget": _Call("admin", _save),
        "drop": _Call("admin", _drop),
        "drain": _Call("admin", _drain),
    }
    ROLES = {name: one.role for name, one in _CALLS.items()} | {name: one.role for name, one in VERBS.items()}
    _SAVE_CALLS: ClassVar[dict[str, Callable[[Hosted, Header, Bytes], Header]]] = {
        "save": begin_save,
        "saving": look_at_save,
        "cancel": cancel_save,
        "forget": forget_saves,
    }


class _Lent(NamedTuple):
    """A batch that was drawn and not yet handed out."""

    hold: Hold
    number: DrawNumber
    num_bytes: int


@final
class HoldSession(Session):
    """Lends batches ahead of their use.

    A drawn batch is in flight until the client says that the batch was handed out. At the stream's end the remaining
    batches are given back. A message with "back" gives back the newest batch. With "claims", the uses that a draw took
    are given back, too.
    """

    ROLES = {"sample": "read", "draw": "read", "count": "read", "back": "read"}

    def __init__(self, pipe: Pipe, hosted: Hosted, options: ServerOptions, permit: Permit) -> None:
        super().__init__(pipe, hosted, options, permit)
        self._held: list[_Lent] = []  # the oldest batch first
        self._kept = Kept(hosted.memory.draws, permit.client)

    def handle(self, header: Header, body: Bytes) -> None:
        """Counts the batches that were handed out, then draws one more batch if the message requests one."""
        for _ in range(framing.whole(header, "handed_out", 0, len(self._held))):
            lent = self._held.pop(0)  # before a wait that may end in an error: the client tells its count once
            try:
                lent.hold.commit()
            finally:
                self._kept.give(lent.num_bytes)
        if "after" in header:
            self.hosted.wait_for(header["after"], framing.seconds(header), self.pipe.gone)
        op = header["op"]
        if op in ("sample", "draw"):
            self._draw(header, op == "sample")
        else:  # "count" or "back"
            if op == "back" and self._held:
                self._give_back(self._held.pop())
            self.pipe.send({"value": len(self._held)})

    def _draw(self, header: Header, has_columns: bool) -> None:
        core, number = self.hosted.table.core, DrawNumber(self.hosted.table.core)
        asked = self._asked_draw(header, has_columns)
        gives_back_uses = header.get("claims") is True or not has_columns
        hold, seconds = Hold(gives_back_uses=gives_back_uses), framing.seconds(header)
        keeps_uses = gives_back_uses and self.hosted.counts_uses(asked.request.index_number)
        num_bytes = kept_bytes(asked.request.num_items, keeps_uses)
        with self._room(*draw_bytes(asked), seconds) as within:
            with self._kept.room(num_bytes, seconds, self.pipe.gone) as left_s:
                drawn = self.hosted.wait(
                    lambda slice_s: within(lambda: core.draw(asked.request, slice_s, hold)), left_s, self.pipe.gone
                )
                number.taken()
                self._held.append(_Lent(hold, number, num_bytes))
            # timeout_s may be a slice of the client's wait for the limiter. The client may read the batch later.
            self.pipe.gives_up = math.inf
            self.pipe.send_buffers(*drawn_answer(asked, drawn, {}))

    def _give_back(self, lent: _Lent) -> None:
        try:
            lent.hold.give_back()
            lent.number.give_back()
        finally:
            self._kept.give(lent.num_bytes)

    def end(self) -> None:
        """Gives back the batches that were not handed out, the newest first."""
        try:
            while self._held:
                self._give_back(self._held.pop())
        finally:
            self._kept.close()
