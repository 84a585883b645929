"""What a server does on one stream: answers calls one after the other, or lends batches ahead of their use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, final

import numpy as np

from relive._core import Claims
from relive.errors import BadMessage, InvalidConfig, ReliveError
from relive.reading.sources import DrawNumber
from relive.service.server.hosting import Hosted, HostedSelection
from relive.service.server.item_calls import Creation, items_of
from relive.service.server.pipe import Pipe, StreamBroken, packed
from relive.service.wire import framing
from relive.service.wire.framing import Bytes
from relive.service.wire.options import ServerOptions
from relive.service.wire.packing import CREATED, DRAWN, LISTED, PRESENT
from relive.service.wire.verbs import VERBS, Verb, arguments

__all__ = ["CallSession", "HoldSession", "Session", "bound"]

Header = dict[str, Any]


def bound(num_items: int, item_bytes: int, options: ServerOptions) -> int:
    """num_items, refused where a reply would be too large. Raises InvalidConfig."""
    most = max(options.max_reply_bytes // (item_bytes + 16), 1)
    if not 0 <= num_items <= most:
        raise InvalidConfig("num_items", f"at most {most}, as a reply holds {options.max_reply_bytes} bytes", num_items)
    return num_items


class Session(ABC):
    """One stream from its handshake to its end. Owner of what the client holds through it: gives it back at the end."""

    def __init__(self, pipe: Pipe, hosted: Hosted, options: ServerOptions) -> None:
        self.pipe = pipe
        self.hosted = hosted
        self.options = options
        self._selected_for: Header | None = None
        self._selected: tuple[HostedSelection, int]

    def run(self) -> None:
        """Until the client ends the stream or is gone. An error is an answer, not an end."""
        try:
            self.pipe.send(self.hosted.hello() | self.begin())
            while (message := self._next()) is not None:
                try:
                    self.handle(*message)
                except ReliveError as problem:  # some are OSErrors, as broken streams are
                    self.refuse(message[0], problem)
                except StreamBroken:
                    return
                except Exception as problem:  # whatever a message caused is told to who sent it
                    self.refuse(message[0], problem)
        except StreamBroken:
            return
        finally:
            self.pipe.rest()
            self.end()

    def _next(self) -> tuple[Header, Bytes] | None:
        while True:
            try:
                return self.pipe.read()
            except BadMessage as problem:
                self.refuse({}, problem)

    def refuse(self, header: Header, problem: Exception) -> None:
        """Answers with an error."""
        self.pipe.send({"error": framing.error_to(problem)})

    def begin(self) -> Header:
        """More for the handshake."""
        return {}

    def end(self) -> None:  # noqa: B027 - most have nothing to give back
        """Gives back what is held."""

    @abstractmethod
    def handle(self, header: Header, body: Bytes) -> None:
        """Answers one message, or raises."""

    def _where(self, header: Header, number: int) -> Any:
        """The condition of a draw, None where it has none. Raises BadMessage, InvalidConfig, UnknownColumn."""
        if "where" not in header:
            return None
        return self.hosted.table.condition(number, framing.field(header, "where", str))

    def _selection(self, header: Header) -> tuple[HostedSelection, int]:
        """The selection of a header, and the number of its index. One that came again was looked up already."""
        if header is not self._selected_for:
            number = framing.whole(header, "index", 0, 1 << 16)
            self._selected = self.hosted.select(number, header.get("names")), number
            self._selected_for = header
        return self._selected


@final
class CallSession(Session):
    """Calls and their answers."""

    def handle(self, header: Header, body: Bytes) -> None:
        """Answers one call."""
        op = framing.field(header, "op", str)
        call, verb = self._CALLS.get(op), VERBS.get(op)
        if call is None and verb is None:
            raise BadMessage("op", " or ".join((*self._CALLS, *VERBS)), op[:40])
        if "after" in header:
            self.hosted.wait_for(header["after"], framing.seconds(header))
        if call is not None:
            call(self, header, body)
        elif verb is not None:
            self._ask(verb, header, body)

    # ---- reading ---------------------------------------------------------------------------------------------------

    def _sample(self, header: Header, body: Bytes) -> None:
        selection, number = self._selection(header)
        count = bound(framing.whole(header, "n", 1, 2**31 - 1), selection.item_bytes, self.options)
        core, where = self.hosted.table.core, self._where(header, number)
        arrays, keys, probabilities, num_live = self.hosted.wait(
            lambda slice_s: core.sample(selection.core, count, slice_s, where=where),
            framing.seconds(header),
            self.pipe.gone,
        )
        send_sample(self.pipe, selection, arrays, keys, probabilities, {"live": num_live})

    def _draw(self, header: Header, body: Bytes) -> None:
        number = framing.whole(header, "index", 0, 1 << 16)
        self.hosted.index_name(number)
        count = bound(framing.whole(header, "n", 1, 2**31 - 1), 0, self.options)
        core, where = self.hosted.table.core, self._where(header, number)
        keys, probabilities, num_live = self.hosted.wait(
            lambda slice_s: core.draw(number, count, slice_s, where=where), framing.seconds(header), self.pipe.gone
        )
        self.pipe.send_buffers({"live": num_live}, packed(DRAWN, [keys, probabilities], count))

    def _claim(self, header: Header, body: Bytes) -> None:
        number = framing.whole(header, "index", 0, 1 << 16)
        self.hosted.index_name(number)
        count = bound(framing.whole(header, "n", 0, 2**31 - 1), 0, self.options)
        (keys,) = framing.arrays_of(body, (np.int64, (count,)))
        core = self.hosted.table.core
        taken, num_live = self.hosted.wait(
            lambda slice_s: core.claim(number, keys, slice_s), framing.seconds(header), self.pipe.gone
        )
        self.pipe.send_buffers({"live": num_live}, packed(PRESENT, [taken], count))

    def _list(self, header: Header, body: Bytes) -> None:
        number = framing.whole(header, "index", 0, 1 << 16)
        self.hosted.index_name(number)
        most = max(self.options.max_reply_bytes // LISTED.item_bytes(1), 1)
        first, count = framing.whole(header, "first", 0, 1 << 48), framing.whole(header, "n", 1, 1 << 48)
        where = self._where(header, number)
        *found, next_leaf = self.hosted.table.core.list_items(number, first, min(count, most, 1 << 20), where)
        rows = len(found[0])
        self.pipe.send_buffers({"rows": rows, "next": next_leaf}, packed(LISTED, found, 0, rows))

    def _gather(self, header: Header, body: Bytes) -> None:
        selection, _ = self._selection(header)
        count = bound(framing.whole(header, "n", 0, 2**31 - 1), selection.item_bytes, self.options)
        (keys,) = framing.arrays_of(body, (np.int64, (count,)))
        arrays, present = self.hosted.table.core.gather(selection.core, keys, None)
        rows = num_rows(selection, arrays)
        columns = packed(selection.gathered, arrays, count, rows)
        told = {"rows": rows} if selection.gathered.is_ragged else {}
        self.pipe.send_buffers(told, [*columns, *packed(PRESENT, [present], count)])

    def _describe(self, header: Header, body: Bytes) -> None:
        selection, _ = self._selection(header)
        outputs = selection.gathered.outputs
        self.pipe.send({"outputs": [[one.name, one.dtype.str, one.shape, one.item_axis, one.per] for one in outputs]})

    def _create(self, header: Header, body: Bytes) -> None:
        number, items = items_of(self.hosted, header, body)
        count = bound(len(items.windows), 0, self.options)
        creation = Creation(self.hosted.table.core, number, items)
        told: Header = {}
        try:
            self.hosted.wait(creation.go_on, framing.seconds(header), self.pipe.gone)
        except ReliveError as problem:  # told with the keys of what was made before it
            told["stopped"] = framing.error_to(problem)
        told["made"] = creation.made
        self.pipe.send_buffers(told, packed(CREATED, [creation.keys], count))

    def _ask(self, verb: Verb, header: Header, body: Bytes) -> None:
        """A simple call: whatever the core returns is the answer."""
        core = self.hosted.table.core
        values = arguments(verb, header, body, len(self.hosted.table.config.index))
        member = getattr(core, verb.name)
        self.pipe.send({"value": member if verb.is_property else member(*values)})

    # Of the class, not bound: a session that held itself would keep its stream's ends, and the table, until the
    # collector comes round, long after Arrow has let go of the stream.
    _CALLS: ClassVar[dict[str, Callable[[CallSession, Header, Bytes], None]]] = {
        "sample": _sample,
        "draw": _draw,
        "claim": _claim,
        "list": _list,
        "gather": _gather,
        "create": _create,
        "select": _describe,
    }


class _Lent(NamedTuple):
    """A batch that was drawn and is not handed out. claims: the uses it took, where they are given back with it.
    is_read: its rows were sent with it; else they are still to be gathered.
    """

    number: int  # of its index
    num_items: int
    draw: DrawNumber
    claims: Claims | None
    is_read: bool = True


@final
class HoldSession(Session):
    """Batches drawn ahead: in flight until the client says that one was handed out, given back at the stream's end.

    A message may give the newest one back itself ("back"); with "claims" the uses that a draw took are given back, too.
    """

    def __init__(self, pipe: Pipe, hosted: Hosted, options: ServerOptions) -> None:
        super().__init__(pipe, hosted, options)
        self._held: list[_Lent] = []  # oldest first

    def handle(self, header: Header, body: Bytes) -> None:
        """Counts what was handed out, then draws one more batch if that is asked."""
        if "after" in header:
            self.hosted.wait_for(header["after"], framing.seconds(header))
        for _ in range(framing.whole(header, "handed_out", 0, len(self._held))):
            self._commit(self._held.pop(0))
        op = framing.field(header, "op", str)
        if op == "sample":
            self._sample(header)
        elif op == "draw":
            self._draw(header)
        elif op in ("count", "back"):
            if op == "back" and self._held:
                self._give_back(self._held.pop())
            self.pipe.send({"value": len(self._held)})
        else:
            raise BadMessage("op", "sample, draw, back or count", op[:40])

    def _sample(self, header: Header) -> None:
        core, draw = self.hosted.table.core, DrawNumber(self.hosted.table.core)
        selection, number = self._selection(header)
        count = bound(framing.whole(header, "n", 1, 2**31 - 1), selection.item_bytes, self.options)
        claims = Claims() if header.get("claims") is True else None
        where = self._where(header, number)
        arrays, keys, probabilities, num_live = self.hosted.wait(
            lambda slice_s: core.sample(selection.core, count, slice_s, True, where=where, claims=claims),
            framing.seconds(header),
            self.pipe.gone,
        )
        draw.taken()
        self._held.append(_Lent(number, count, draw, claims))
        send_sample(self.pipe, selection, arrays, keys, probabilities, {"live": num_live})

    def _draw(self, header: Header) -> None:
        core, draw, claims = self.hosted.table.core, DrawNumber(self.hosted.table.core), Claims()
        number = framing.whole(header, "index", 0, 1 << 16)
        self.hosted.index_name(number)
        count = bound(framing.whole(header, "n", 1, 2**31 - 1), 0, self.options)
        where = self._where(header, number)
        keys, probabilities, num_live = self.hosted.wait(
            lambda slice_s: core.draw(number, count, slice_s, where=where, claims=claims),
            framing.seconds(header),
            self.pipe.gone,
        )
        draw.taken()
        self._held.append(_Lent(number, count, draw, claims, is_read=False))
        self.pipe.send_buffers({"live": num_live}, packed(DRAWN, [keys, probabilities], count))

    def _commit(self, lent: _Lent) -> None:
        core = self.hosted.table.core
        if lent.claims is None:
            core.commit_held(lent.number, lent.num_items)
        else:
            core.commit_batch(lent.number, lent.num_items, lent.claims, lent.is_read)

    def _give_back(self, lent: _Lent) -> None:
        core = self.hosted.table.core
        if lent.claims is None:
            core.return_held(lent.number, lent.num_items)
        else:
            core.give_back_batch(lent.number, lent.num_items, lent.claims)
        lent.draw.give_back()

    def end(self) -> None:
        """Gives back what was not handed out."""
        held, self._held = self._held, []
        if not self.hosted.table.closed:  # closing the table gives everything back
            for lent in reversed(held):
                self._give_back(lent)


def send_sample(
    pipe: Pipe, selection: HostedSelection, arrays: Any, keys: Any, probabilities: Any, header: Header
) -> None:
    """A sample as one block, which the core has made already unless its layout changed."""
    rows = num_rows(selection, arrays)
    parts = packed(selection.sampled, [*arrays, keys, probabilities], len(keys), rows)
    pipe.send_buffers({**header, "rows": rows} if selection.gathered.is_ragged else header, parts)


def num_rows(selection: HostedSelection, arrays: Any) -> int:
    """The rows of all items of a batch, where they lie end to end."""
    pairs = zip(selection.gathered.outputs, arrays, strict=True)
    return next((len(array) for output, array in pairs if output.per == "row"), 0)
