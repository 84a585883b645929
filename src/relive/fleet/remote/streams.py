"""Streams to the session of a shard on another host: one request at a time each, draws settled by ticket."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from typing import Any, NamedTuple, TypeAlias, final

from relive.errors import BadMessage
from relive.service.client.connection import Connection
from relive.service.client.exchange import Exchange, StreamBroken
from relive.service.wire import framing
from relive.service.wire.packing import Packing

__all__ = ["Line", "Lines", "Pending", "Reply"]

_LATE_S = 0.1  # for an answer that is here already, whoever was waited for before it; two looks of the watch

Ticket: TypeAlias = int | tuple[int, int]  # of a draw; and how many of its items went before they were read


class Reply(NamedTuple):
    """An answer: its header, the bytes that came with it, and the block of arrays where one was expected."""

    header: dict[str, Any]
    body: Any
    block: Any


@final
class Line:
    """One stream. A thread that has it asks and receives; any thread may say what became of a draw that it holds.

    Protocol: tickets that are settled are noted first, then sent by whoever has the line's turn: at once where nobody
    has it, else by the thread that has, with its next message or when it gives the turn back. Nobody waits for it.
    """

    def __init__(self, connection: Connection, stream: Exchange) -> None:
        self.stream = stream
        self.is_over = False
        self.is_confirmed = True  # what was settled was heard of over there: an answer came behind it
        self._connection = connection
        self._turn = threading.Lock()
        self._settled: deque[tuple[str, Ticket]] = deque()

    def take_turn(self) -> None:
        """Before asking. Nobody holds it for long without being the line's only user."""
        self._turn.acquire()

    def give_turn(self) -> None:
        """After the answer."""
        self._turn.release()
        self._send_settled()

    def settlements(self) -> dict[str, list[Ticket]]:
        """What a message should say first."""
        told: dict[str, list[Ticket]] = {}
        while self._settled:
            with contextlib.suppress(IndexError):
                name, ticket = self._settled.popleft()
                told.setdefault(name, []).append(ticket)
        return told

    def settle(self, name: str, ticket: Ticket) -> bool:
        """A draw was handed out ("done") or goes "back". False where the stream is over: all of it went back then."""
        self._settled.append((name, ticket))
        self._send_settled()
        return not self.is_over

    def _send_settled(self) -> None:
        while self._settled and not self.is_over and self._turn.acquire(blocking=False):
            try:
                told = self.settlements()
                if told:
                    self.is_confirmed = False
                    self.stream.send(framing.encode({"op": "settle", **told}))
            except StreamBroken:
                self.is_over = True
            finally:
                self._turn.release()

    def drop(self) -> None:
        """Ends the stream: what it holds goes back."""
        self.is_over = True
        self._connection.drop(self.stream)


@final
class Pending:
    """A request that was sent, and its answer that is to come. Owner of its line until take() or drop().

    Its deadline acts while somebody waits: another shard that is waited for first does not cut off this one's answer.
    """

    def __init__(self, lines: Lines, line: Line, started: float, ends: float) -> None:
        self._lines = lines
        self.line = line
        self._started = started
        self._ends = ends

    def take(self, packing: Packing | None = None, num_items: int = 0) -> Reply:
        """Waits for it. Raises what the shard raised, and ServiceUnavailable where it does not answer in time."""
        stream = self.line.stream
        try:
            stream.begin(max(self._ends, time.monotonic() + _LATE_S))
            told, body = stream.receive()
            block = None
            if packing is not None and "error" not in told:
                block = stream.receive_block(told, body, packing.num_bytes(num_items, packing.num_rows(told)))
            stream.end()
        except (*StreamBroken, BadMessage) as problem:
            self.line.is_over = True
            raise self._lines.connection.broken(stream, problem, self._started) from None
        except BaseException:
            self.drop()  # between a request and its answer: nobody could use it again
            raise
        self.line.is_confirmed = True
        self._lines.give(self.line)
        if "error" in told:
            raise framing.error_from(told["error"])
        return Reply(told, body, block)

    def drop(self) -> None:
        """Nobody waits for it any more."""
        self.line.drop()


@final
class Lines:
    """All streams to one shard: as many as requests are under way at once. Any number of threads."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._idle: deque[Line] = deque()

    def open(self, ends: float) -> tuple[Line, dict[str, Any]]:
        """A new one, not idle, and what the shard says of itself. Raises ServiceUnavailable, FormatMismatch."""
        stream, hello = self.connection.open("shard", {}, ends)
        line = Line(self.connection, stream)
        line.take_turn()
        return line, hello

    def ask(self, header: dict[str, Any], ends: float) -> Pending:
        """Sends a request. Raises ServiceUnavailable, FormatMismatch, TableClosed, ForkedHandle."""
        self.connection.check_process("a table over shards")
        line = self._idle_one()
        if line is None:
            line = self.open(ends)[0]
            line.give_turn()
        return self._ask(line, header, ends)

    def _ask(self, line: Line, header: dict[str, Any], ends: float) -> Pending:
        started = time.monotonic()
        line.take_turn()
        try:
            line.stream.begin(ends)
            line.stream.send(framing.encode(header | line.settlements()))
            line.stream.end()
        except StreamBroken as problem:
            line.is_over = True
            raise self.connection.broken(line.stream, problem, started) from None
        except BaseException:
            line.drop()
            raise
        return Pending(self, line, started, ends)

    def give(self, line: Line) -> None:
        """Free for the next request, unless the watch cut the stream just as its answer came."""
        if line.stream.expired:
            line.drop()
            line.give_turn()
            return
        line.give_turn()
        self._idle.append(line)

    def confirm(self, ends: float) -> None:
        """Waits until all that was settled so far was heard of. Raises ServiceUnavailable."""
        for line in [one for one in list(self._idle) if not one.is_confirmed]:
            try:
                self._idle.remove(line)
            except ValueError:
                continue  # another thread asks on it now
            self._ask(line, {"op": "roots", "index": 0}, ends).take()

    def forget(self) -> None:
        """Drops those that are idle: the shard did not answer on another."""
        while self._idle:
            with contextlib.suppress(IndexError):
                self._idle.pop().drop()

    def _idle_one(self) -> Line | None:
        while self._idle:
            with contextlib.suppress(IndexError):
                line = self._idle.pop()
                if not line.is_over:
                    return line
                line.drop()
        return None
