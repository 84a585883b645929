"""Draws that a server keeps in flight until the client commits them or gives them back."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, final

from relive.core.request import DrawRequest
from relive.errors import ServiceUnavailable, TableClosed
from relive.reading.holds import HeldDraw
from relive.service.client.connection import cutoff, server_wait
from relive.service.client.exchange import Exchange, StreamBroken
from relive.service.client.remote_core import RemoteCore, RemoteSelection
from relive.service.wire import framing
from relive.service.wire.packing import DRAWN

__all__ = ["RemoteDraws"]


@final
class _Lent:
    """A draw that the server keeps in flight, on the stream that made it (relive.reading.holds.Hold)."""

    def __init__(self, draws: RemoteDraws, stream: Exchange) -> None:
        self._draws = draws
        self._stream = stream
        self._is_over = False

    def commit(self) -> None:
        """Counts the draw on the server; the oldest draw first. Raises ServiceUnavailable if it does not answer.

        An interrupt of the message ends the stream, and the draw goes back.
        """
        self.commit_within(math.inf)

    def commit_within(self, timeout_s: float) -> None:
        """As commit. After timeout_s, at least a second, the stream ends, and the draw goes back."""
        if not self._is_over:
            self._is_over = True
            self._draws.tell(self._stream, {"op": "count", "handed_out": 1}, timeout_s)

    def give_back(self) -> None:
        """Gives the draw back to the server; the newest draw first. If the stream is over, the draw went back."""
        self.give_back_within(math.inf)

    def give_back_within(self, timeout_s: float) -> None:
        """As give_back. After timeout_s, at least a second, the stream ends, and the draw goes back with it."""
        if not self._is_over:
            self._is_over = True
            self._draws.tell_of_return(self._stream, timeout_s)


@final
class RemoteDraws:
    """Draws from a remote table (relive.reading.holds.HeldDraws). Each call is one round trip.

    The object owns a stream, which the first draw opens. When the stream ends, the server gives back the draws in
    flight and the uses that they took. The server also does so if this process dies.
    """

    def __init__(self, core: RemoteCore) -> None:
        self._core = core
        self._stream: Exchange | None = None

    def draw(self, request: DrawRequest, timeout_s: float) -> HeldDraw:
        """Makes one draw and keeps it in flight.

        Raises ServiceUnavailable, too; then all draws in flight are given back.
        """
        selection: RemoteSelection | None = request.selection
        op, packing = ("draw", DRAWN) if selection is None else ("sample", selection.sampled)
        after = self._core.after()
        header = {"op": op, **request.to_header(), "claims": True, "timeout_s": server_wait(timeout_s)}
        header |= {"after": after} if after else {}
        stream = self._stream or self._open(timeout_s)

        def receive() -> tuple[dict[str, Any], Any]:
            told, body = stream.receive()
            if "error" in told:
                return told, None
            return told, stream.receive_block(told, body, packing.num_bytes(request.num_items, packing.num_rows(told)))

        told, block = self._exchange(stream, framing.encode(header | {"handed_out": 0}), cutoff(timeout_s), receive)
        if "error" in told:
            raise framing.error_from(told["error"])
        *arrays, keys, probabilities = packing.arrays(block, request.num_items, packing.num_rows(told))
        return HeldDraw(arrays, keys, probabilities, told["live"], _Lent(self, stream))

    def tell(self, stream: Exchange, header: dict[str, Any], timeout_s: float = math.inf) -> None:
        """Sends a message about a draw of this stream. Raises ServiceUnavailable, also if the stream is over.

        Waits for the answer at most timeout_s, and at most the handle's default.
        """
        if stream is not self._stream:
            raise ServiceUnavailable(self._core.path, 0.0, "the stream that held the batch is over")
        ends = cutoff(min(timeout_s, self._core.timeout_s))
        told, _ = self._exchange(stream, framing.encode(header), ends, stream.receive)
        if "error" in told:
            raise framing.error_from(told["error"])

    def tell_of_return(self, stream: Exchange, timeout_s: float = math.inf) -> None:
        """Gives back the newest draw of this stream, unless the stream is over."""
        if stream is self._stream:
            self.tell(stream, {"op": "back", "handed_out": 0}, timeout_s)

    def close(self) -> None:
        """Ends the stream. The server then takes back all draws in flight."""
        stream, self._stream = self._stream, None
        if stream is not None and not self._core.closed:
            self._core.connection.finish(stream, cutoff(min(self._core.timeout_s, 10.0)))

    # ---- the stream ------------------------------------------------------------------------------------------------

    def _open(self, timeout_s: float) -> Exchange:
        if self._core.closed:
            raise TableClosed()
        stream = self._core.connection.open("hold", {}, cutoff(max(timeout_s, min(self._core.timeout_s, 10.0))))[0]
        self._stream = stream
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
