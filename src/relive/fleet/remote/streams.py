"""Streams to the session of a shard on another host.

Each stream carries one request at a time, or those of one thread behind each other (turns.py); tickets settle draws.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias, final

from relive.errors import BadMessage
from relive.service.client.collected import end_when_collected
from relive.service.client.connection import Connection
from relive.service.client.deadlines import LATE_S
from relive.service.client.exchange import Exchange, StreamBroken
from relive.service.wire import framing

__all__ = ["Lent", "Line", "Lines", "Pending", "Reply"]

_MOST_NOTED = 64  # tickets of a line that wait for its next message
Expected: TypeAlias = Callable[[dict[str, Any]], int]
Ticket: TypeAlias = int | tuple[int, int]  # of a draw; with the number of its items that went before they were read


class Reply(NamedTuple):
    """An answer: its header, the bytes after the header, the block of arrays if one was expected, and the draw if it is
    the answer to one."""

    header: dict[str, Any]
    body: Any
    block: Any
    lent: Lent | None


@final
class Line:
    """One stream. One thread at a time sends requests and receives their answers. Any thread may settle a draw.

    Protocol: a settled ticket is first noted. If no thread has the line's lock, the settling thread sends the ticket at
    once. Otherwise the thread that has the lock sends it, with its next message or when it releases the lock. No thread
    waits for this. A ticket that nothing waits for goes with the next message of the line, or when many are noted.

    A ticket may be lost with the stream. A draw whose uses are counted is therefore confirmed by a request of its own,
    which may take another stream of the shard (`Lent.ask_confirm`).

    A signal's handler that raises may lose a line between two steps of its user. The stream then ends when the line is
    collected, and the shard takes back the draws in flight in it.
    """

    def __init__(self, connection: Connection, stream: Exchange, session: int) -> None:
        self.stream = stream
        self.session = session  # the number by which other streams name this one
        self.is_over = False
        self.is_confirmed = True  # the shard received all tickets that were sent: an answer came after them
        self.num_flushes = 0  # of all lines of the shard, when this one's last request was sent
        self._is_urgent = False  # whether a noted ticket must not wait for the line's next message
        self._connection = connection
        self._lock = threading.Lock()
        self._settled: deque[tuple[str, Ticket]] = deque()
        end_when_collected(self, partial(connection.drop, stream))

    def acquire(self, ends: float = 0.0) -> bool:
        """Takes the line's lock before a request. Returns False if another thread still has it at `ends`.

        That thread sends settled tickets, or a signal's handler raised just as it took the lock.
        """
        return self._lock.acquire(timeout=min(max(ends - time.monotonic(), 0.0), threading.TIMEOUT_MAX))

    def release(self) -> None:
        """Releases the line's lock after the answer, and sends settled tickets."""
        self._lock.release()
        self._send_settled()

    def settlements(self) -> dict[str, list[Ticket]]:
        """The settled tickets, which the next message must contain."""
        told: dict[str, list[Ticket]] = {}
        while self._settled:
            with contextlib.suppress(IndexError):
                name, ticket = self._settled.popleft()
                told.setdefault(name, []).append(ticket)
        return told

    @property
    def knows_all(self) -> bool:
        """Whether the shard has received all settled tickets, as far as its answers tell."""
        return self.is_confirmed and not self._settled

    def settle(self, name: str, ticket: Ticket, may_wait: bool = False) -> bool:
        """Settles a draw as handed out ("done") or given "back".

        may_wait: nothing waits for the ticket, so it may go with the line's next message.

        False if the stream is over: then all its draws went back.
        """
        self._settled.append((name, ticket))
        if not may_wait or len(self._settled) >= _MOST_NOTED:
            self._is_urgent = True
        self._send_settled()
        return not self.is_over

    def flush(self) -> None:
        """Sends the tickets that wait for the line's next message."""
        self._is_urgent = True
        self._send_settled()

    def look(self) -> bool:
        """Whether the stream goes on, as far as this end can know without an answer."""
        self._send_settled(or_nothing=True)
        return not self.is_over

    def _send_settled(self, or_nothing: bool = False) -> None:
        while ((self._is_urgent and self._settled) or or_nothing) and not self.is_over:
            is_own = None  # not known yet
            try:
                is_own = self._lock.acquire(blocking=False)
                if not is_own:
                    return
                self._is_urgent = False  # before the tickets are taken: a later one sets it again
                told = self.settlements()
                if told:
                    self.is_confirmed = False
                if told or or_nothing:
                    or_nothing = False
                    self.stream.send(framing.encode({"op": "settle", **told}))
            except StreamBroken:
                self.is_over = True
            except BaseException:
                if is_own is not False:
                    self.drop()  # it is not known whether the shard knows these tickets, or whether the lock was taken
                raise
            finally:
                if is_own:
                    self._lock.release()

    def drop(self) -> None:
        """Ends the stream. Draws in flight in it go back."""
        self.is_over = True
        self._connection.drop(self.stream)


@final
class Lent:
    """A draw in flight on a line. The first call of commit or give_back settles it; later calls do nothing.

    A draw that was not settled goes back when the object is collected.
    """

    def __init__(self, line: Line, ticket: int) -> None:
        self._line = line
        self._ticket = ticket
        self._collected = end_when_collected(self, partial(line.settle, "back", ticket))

    @property
    def is_over(self) -> bool:
        """Whether the stream of the draw is over, so that the draw went back."""
        return self._line.is_over

    def is_there(self) -> bool:
        """Whether the draw is still in flight, as far as this end can know without an answer."""
        return self._line.look()

    def commit(self, num_lost: int, may_wait: bool = False) -> bool:
        """Counts the draw, without the items that were lost. False if the stream is over: then the draw went back."""
        if not self._collected.detach():
            return not self._line.is_over
        return self._line.settle("done", (self._ticket, num_lost) if num_lost else self._ticket, may_wait)

    def ask_confirm(self, lines: Lines, ends: float) -> Pending:
        """Asks the shard to count the draw, and to answer whether it was still in flight."""
        return lines.ask({"op": "confirm", "session": self._line.session, "ticket": self._ticket}, ends)

    def confirmed(self, pending: Pending) -> bool:
        """Waits for that answer. Without an answer the draw is not settled here."""
        is_counted = pending.take().header.get("there") is True
        self._collected.detach()
        return is_counted

    def give_back(self) -> None:
        """Gives the draw back."""
        if self._collected.detach():
            self._line.settle("back", self._ticket)


@final
class Pending:
    """A request that was sent and waits for its answer. Owns its line until take() or drop().

    The deadline acts only during take(). A wait for another shard therefore does not cut off this shard's answer.

    expects: tells the bytes of the arrays that an answer with this header has; None: the answer has a body, or none.
    """

    def __init__(self, lines: Lines, line: Line, started: float, ends: float, expects: Expected | None) -> None:
        self._lines = lines
        self.line = line
        self._started = started
        self._ends = ends
        self._expects = expects

    def take(self, is_last: bool = True) -> Reply:
        """Waits for the answer, which is the next one on the line. is_last: no other is due on the line.

        Raises the error that the shard raised, and ServiceUnavailable if it does not answer in time.
        """
        stream = self.line.stream
        try:
            stream.begin(max(self._ends, time.monotonic() + LATE_S), self._started)
            told, body = stream.receive()
            block = lent = None
            if self._expects is not None and "error" not in told:
                block = stream.receive_block(told, body, self._expects(told))
            stream.end()
            if "ticket" in told:
                lent = Lent(self.line, framing.whole(told, "ticket", 0, 1 << 62))
        except (*StreamBroken, BadMessage) as problem:
            self.line.is_over = True
            raise self._lines.connection.broken(stream, problem, self._started) from None
        except BaseException:
            self.drop()  # between a request and its answer the stream cannot be used again
            raise
        if is_last:
            self.line.is_confirmed = True
            self._lines.give(self.line)
        if "error" in told:
            raise framing.error_from(told["error"])
        return Reply(told, body, block, lent)

    def hurry(self, ends: float) -> None:
        """Brings the deadline forward."""
        self._ends = min(self._ends, ends)

    def extend(self, ends: float) -> None:
        """Puts the deadline off: the answers before this one took their time."""
        self._ends = max(self._ends, ends)

    @property
    def ends(self) -> float:
        """The deadline, a time.monotonic()."""
        return self._ends

    def drop(self) -> None:
        """Gives up on the answer, and ends the stream."""
        self.line.drop()


@final
class Lines:
    """All streams to one shard, as many as requests are under way at once. Any number of threads."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._idle: deque[Line] = deque()
        self._num_flushes = 0

    def open(self, ends: float) -> tuple[Line, dict[str, Any]]:
        """Opens a new stream, which is not idle, and takes its lock.

        Returns it with the shard's greeting. Raises ServiceUnavailable, FormatMismatch.
        """
        stream, hello = self.connection.open("shard", {}, ends)
        line = Line(self.connection, stream, framing.whole(hello, "session", 0, 1 << 62))
        line.acquire()
        return line, hello

    def prepare(self, ends: float) -> None:
        """Begins to open a stream if none is idle. Waits while the transport is full, until `ends`."""
        if not self._idle:
            self.connection.prepare("shard", ends)

    def ask(
        self,
        header: dict[str, Any],
        ends: float,
        *body: Any,
        expects: Expected | None = None,
        behind: Line | None = None,
    ) -> Pending:
        """Sends a request, with bytes after its header. `expects`: that of Pending.

        behind: the line on which answers to the caller are due; the request then waits behind theirs.

        Raises ServiceUnavailable, FormatMismatch, TableClosed, ForkedHandle.
        """
        self.connection.check_process("a table over shards")
        self.connection.check_time(ends, sum(memoryview(part).nbytes for part in body))
        # The request before took the lock of the line that this one waits behind.
        line = behind or self._idle_one() or self.open(ends)[0]
        return self._sent(line, header, ends, body, expects)

    def _sent(
        self, line: Line, header: dict[str, Any], ends: float, body: Sequence[Any] = (), expects: Expected | None = None
    ) -> Pending:
        started = time.monotonic()
        try:
            line.num_flushes = self._num_flushes
            line.stream.begin(ends)
            line.stream.send(framing.encode(header | line.settlements(), *body))
            line.stream.end()
        except StreamBroken as problem:
            line.is_over = True
            raise self.connection.broken(line.stream, problem, started) from None
        except BaseException:
            line.drop()
            raise
        return Pending(self, line, started, ends, expects)

    def give(self, line: Line) -> None:
        """Frees the line for the next request, unless the watch cut the stream just as its answer came."""
        if line.stream.expired:
            line.drop()
            line.release()
            return
        line.release()
        self._idle.append(line)
        if line.num_flushes != self._num_flushes:  # flush() did not find it idle
            line.flush()

    def confirming(self, ends: float) -> list[Pending]:
        """Asks for answers, after which the shard has received all settled tickets. Raises as ask()."""
        self.connection.check_process("a table over shards")
        self.connection.check_time(ends)
        asked: list[Pending] = []
        for line in [one for one in list(self._idle) if not one.knows_all]:
            try:
                self._idle.remove(line)
            except ValueError:
                continue  # another thread uses it now
            # If a thread cannot send the tickets, the stream ends, and its draws go back.
            if line.is_over or not line.acquire(ends):
                line.drop()
                continue
            try:
                asked.append(self._sent(line, {"op": "roots", "index": 0}, ends))
            except BaseException:
                for pending in asked:
                    pending.drop()
                raise
        return asked

    def flush(self) -> None:
        """Sends all settled tickets: of idle lines at once, of others when their answers have come."""
        self._num_flushes += 1
        for line in list(self._idle):
            line.flush()

    def forget(self) -> None:
        """Drops the idle streams, after the shard did not answer on another stream."""
        while self._idle:
            with contextlib.suppress(IndexError):
                self._idle.pop().drop()

    def _idle_one(self) -> Line | None:
        """Takes an idle line and its lock, without a wait. Returns None if there is none."""
        for _ in range(len(self._idle)):
            with contextlib.suppress(IndexError):
                line = self._idle.popleft()  # each in its turn, as what rides goes with its next message
                if line.is_over:
                    line.drop()
                elif line.acquire():
                    return line
                else:  # a thread sends settled tickets on it
                    self._idle.append(line)
        return None
