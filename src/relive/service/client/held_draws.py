"""Draws that a server keeps in flight until the client commits them or gives them back."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, final

from relive.core.request import DrawRequest
from relive.errors import ServiceUnavailable, TableClosed
from relive.reading.holds import HeldDraw
from relive.service.client.collected import Collected, end_when_collected
from relive.service.client.deadlines import cutoff, server_wait
from relive.service.client.exchange import Exchange, StreamBroken
from relive.service.client.remote_core import RemoteCore, RemoteSelection
from relive.service.wire import framing
from relive.service.wire.packing import DRAWN
from relive.service.wire.verbs import VERBS, asking

__all__ = ["RemoteDraws"]

_REPLY_S = 10.0  # a server hangs if no byte comes for so long after the deadline of the draw
_LONGEST_S = 1e6  # a wait without an end would not be watched for silence
_HURRIED_S = 1.0


@final
class _Lent:
    """A draw that the server keeps in flight, on the stream that made it (relive.reading.holds.Hold)."""

    def __init__(self, draws: RemoteDraws, stream: Exchange, number: int) -> None:
        self._draws = draws
        self._stream = stream
        self._number = number  # of the draw, in its stream
        self._is_over = False

    def is_gone(self) -> bool:
        """Whether the draw went back with its stream."""
        return not self._is_over and not self._draws.is_on(self._stream)

    def commit(self) -> None:
        """Counts the draw on the server; the oldest draw first. Raises ServiceUnavailable if it does not answer.

        An interrupt of the message ends the stream, and the draw goes back.
        """
        self.commit_within(math.inf)

    def commit_within(self, timeout_s: float) -> None:
        """As commit. After timeout_s, at least a second, the stream ends, and the draw goes back."""
        if not self._is_over:
            self._is_over = True
            self._draws.tell_of_count(self._stream, self._number, timeout_s)

    def give_back(self) -> None:
        """Gives the draw back to the server. If the stream is over, the draw went back.

        A draw that is not the newest of its stream ends the stream: all draws of the stream go back.
        """
        self.give_back_within(math.inf)

    def give_back_within(self, timeout_s: float) -> None:
        """As give_back. After timeout_s, at least a second, the stream ends, and the draw goes back with it."""
        if not self._is_over:
            self._is_over = True
            self._draws.tell_of_return(self._stream, self._number, timeout_s)


@final
class RemoteDraws:
    """Draws from a remote table (relive.reading.holds.HeldDraws). Each call is one round trip.

    The object owns a stream, which the first draw opens. When the stream ends, the server gives back the draws in
    flight and the uses that they took. The server also does so if this process dies.
    """

    def __init__(self, core: RemoteCore) -> None:
        self._core = core
        self._stream: Exchange | None = None
        self._in_flight: list[int] = []  # the numbers of the stream's draws, the oldest first
        self._num_drawn = 0
        self._is_hurried = False
        self._collected: Collected | None = None  # of the newest stream

    def is_on(self, stream: Exchange) -> bool:
        """Whether this is the stream of the draws. Else the server took back the draws in flight on it."""
        return stream is self._stream

    def draw(self, request: DrawRequest, timeout_s: float, arrives_s: float = 0.0) -> HeldDraw:
        """Makes one draw and keeps it in flight.

        Raises ServiceUnavailable, too; then all draws in flight are given back.
        """
        began = time.monotonic()
        longest_s = max(timeout_s, min(arrives_s, _REPLY_S))
        stream = self._stream or self._open(longest_s)
        after = self._core.after(longest_s)
        timeout_s, arrives_s = (max(seconds - time.monotonic() + began, 0.0) for seconds in (timeout_s, arrives_s))
        selection: RemoteSelection | None = request.selection
        op, packing = ("draw", DRAWN) if selection is None else ("sample", selection.sampled)
        header = {"op": op, **request.to_header(), "claims": True, "timeout_s": server_wait(timeout_s)}
        header |= {"after": after} if after else {}
        stream.silence_s = timeout_s + _REPLY_S
        ends = cutoff(max(timeout_s, min(arrives_s, _LONGEST_S)))

        def receive() -> tuple[dict[str, Any], Any]:
            told, body = stream.receive()
            if "error" in told:
                return told, None
            return told, stream.receive_block(told, body, packing.num_bytes(request.num_items, packing.num_rows(told)))

        told, block = self._exchange(stream, framing.encode(header | {"handed_out": 0}), ends, receive)
        if "error" in told:
            raise framing.error_from(told["error"])
        *arrays, keys, probabilities = packing.arrays(block, request.num_items, packing.num_rows(told))
        self._num_drawn += 1
        self._in_flight.append(self._num_drawn)
        return HeldDraw(arrays, keys, probabilities, told["live"], _Lent(self, stream, self._num_drawn))

    def num_live_within(self, index: int, timeout_s: float) -> int:
        """Asks for the live items of an index. Waits at most timeout_s, at least a second, for the answer."""
        header, _ = asking(VERBS["num_items"], (index,))
        told = self._core.tell(header, min(timeout_s, self._core.timeout_s), waits_for_steps=True)
        return int(told["value"])

    def hurry(self) -> None:
        """Lets the answer that is awaited, and each later one, come within a second. Any thread may call it."""
        self._is_hurried = True
        stream = self._stream
        # Without the stream's lock: a signal's handler may interrupt another call of hurry().
        if stream is not None and stream.deadline != math.inf:
            stream.deadline = min(stream.deadline, time.monotonic() + _HURRIED_S)

    def tell(self, stream: Exchange, header: dict[str, Any], timeout_s: float = math.inf) -> None:
        """Sends a message about a draw of this stream. Raises ServiceUnavailable, also if the stream is over.

        Waits for the answer at most timeout_s, and at most the handle's default.
        """
        if stream is not self._stream:
            raise ServiceUnavailable(self._core.path, 0.0, "the stream that held the batch is over")
        ends = cutoff(min(timeout_s, self._core.timeout_s))
        stream.silence_s = math.inf  # the server may wait for its lock in silence: the deadline alone counts
        told, _ = self._exchange(stream, framing.encode(header), ends, stream.receive)
        if "error" in told:
            raise framing.error_from(told["error"])

    def tell_of_count(self, stream: Exchange, number: int, timeout_s: float) -> None:
        """Counts a draw of this stream, which is its oldest one. Raises as tell()."""
        with suppress(ValueError):
            self._in_flight.remove(number)
        self.tell(stream, {"op": "count", "handed_out": 1}, timeout_s)

    def tell_of_return(self, stream: Exchange, number: int, timeout_s: float) -> None:
        """Gives back a draw of this stream, unless the stream is over. The server knows the newest draw only."""
        if stream is not self._stream:
            return
        if self._in_flight and self._in_flight[-1] == number:
            self._in_flight.pop()
            self.tell(stream, {"op": "back", "handed_out": 0}, timeout_s)
        else:
            self._end(timeout_s)

    def close(self) -> None:
        """Ends the stream. The server then takes back all draws in flight."""
        self._end(_HURRIED_S if self._is_hurried else 10.0)

    # ---- the stream ------------------------------------------------------------------------------------------------

    def _end(self, timeout_s: float) -> None:
        stream, self._stream = self._stream, None
        self._forget()
        if stream is not None and not self._core.closed:
            self._core.connection.finish(stream, cutoff(min(self._core.timeout_s, timeout_s)))

    def _forget(self) -> None:
        if self._collected is not None:
            self._collected.detach()

    def _open(self, timeout_s: float) -> Exchange:
        if self._core.closed:
            raise TableClosed()
        connection = self._core.connection
        stream, _ = connection.open("hold", {}, cutoff(timeout_s), lambda: not self._is_hurried, _REPLY_S)
        self._forget()
        self._collected = end_when_collected(self, partial(connection.drop, stream))
        self._stream, self._in_flight = stream, []
        return stream

    def _exchange(
        self, stream: Exchange, message: bytes, ends: float, receive: Callable[[], tuple[dict[str, Any], Any]]
    ) -> tuple[dict[str, Any], Any]:
        """Sends a message and receives the answer.

        If the exchange is cut short, the stream is over, and its draws go back.
        """
        start = time.monotonic()
        try:
            stream.begin(ends)
            if self._is_hurried:
                self.hurry()
            stream.send(message)
            answer = receive()
            stream.end()
        except StreamBroken as problem:
            self._stream = None
            raise self._core.connection.broken(stream, problem, start) from None
        except BaseException:
            self._stream = None
            self._core.connection.drop(stream)
            raise
        return answer
