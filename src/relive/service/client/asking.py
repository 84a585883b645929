"""A call of a client: the message goes out at once, and the answer is taken later."""

from __future__ import annotations

import math
import time
from typing import Any, NamedTuple, final

import numpy as np

from relive.errors import ServiceUnavailable, TableClosed
from relive.service.client.connection import Connection
from relive.service.client.deadlines import LATE_S, server_wait
from relive.service.client.exchange import StreamBroken
from relive.service.wire import framing
from relive.service.wire.framing import Bytes
from relive.service.wire.packing import Packing
from relive.service.wire.verbs import VERBS

__all__ = ["Answer", "Asking"]

_NO_WAIT_S = 0.1  # a call that waited longer for its stream tells the server the rest of its time
_LOOKS = frozenset({"select", "gather", "list", *(verb.name for verb in VERBS.values() if verb.looks)})


class Answer(NamedTuple):
    """The answer to one call: the header, and the block that its packing describes (None if no block is due)."""

    header: dict[str, Any]
    block: Bytes | None


@final
class Asking:
    """A call that was sent and is not answered yet. Owns its stream until take() or drop(). One thread at a time.

    If the stream breaks, a call that only reads is sent again, until `ends`. Any other call is never sent twice.
    """

    def __init__(
        self, connection: Connection, op: str, message: bytes, ends: float, packing: Packing | None, count: int
    ) -> None:
        self._connection = connection
        self._op = op
        self._message = message
        self._ends = ends
        self._packing = packing
        self._count = count
        self._began = time.monotonic()
        connection.check_time(ends, len(message))
        self._send()

    def take(self, at_once: bool = False) -> Answer:
        """Waits for the answer until `ends`, or for LATE_S after it: the answer may have come during another wait.

        at_once: the message was sent just now.

        Raises the server's error, ServiceUnavailable, TableClosed, BadMessage.
        """
        while True:
            stream, packing = self._stream, self._packing
            try:
                if not at_once:  # else the deadline is set
                    stream.begin(max(self._ends, time.monotonic() + LATE_S), self._asked)
                told, body = stream.receive()
                block = None
                if packing is not None and "error" not in told:
                    block = stream.receive_block(told, body, packing.num_bytes(self._count, packing.num_rows(told)))
                stream.end()
            except StreamBroken as problem:
                self._note_broken(problem)
                self._send()
                continue
            except BaseException:
                self.drop()
                raise
            self._connection.give(stream)
            if "error" in told:
                raise framing.error_from(told["error"])
            return Answer(told, block)

    def rest(self) -> None:
        """Removes the deadline until take(), so that a wait for another server cuts off no answer."""
        self._stream.end()

    def drop(self) -> None:
        """Gives up on the answer: a stream between a call and its answer is of no further use."""
        self._connection.drop(self._stream)

    def _send(self) -> None:
        while True:
            self._asked = time.monotonic()
            self._stream = stream = self._connection.take(self._ends)
            try:
                stream.begin(self._ends)
                stream.send(self._timed_message())
            except StreamBroken as problem:
                self._note_broken(problem)
            except BaseException:
                self.drop()
                raise
            else:
                return

    def _timed_message(self) -> bytes:
        """Returns the message. If the call waited for its stream, the server has the rest of the time for the limiter.

        The limiter's error then comes before the deadline. After the deadline, the client would drop the stream.
        """
        if time.monotonic() - self._began < _NO_WAIT_S or math.isinf(self._ends):
            return self._message
        header, body = framing.decode(self._message)
        left_s = server_wait(max(self._ends - time.monotonic(), 0.0))
        if header.get("timeout_s") is None or left_s is None or header["timeout_s"] <= left_s:
            return self._message
        return framing.encode({**header, "timeout_s": left_s}, body)

    def _note_broken(self, problem: BaseException) -> None:
        """Returns if the call may be sent again; open() raises at `ends`. Else raises the error of the stream."""
        error = self._connection.broken(self._stream, problem, self._asked)
        if self._connection.is_closing:  # an upload of a writer that ends may take the connection with it
            error = TableClosed()
        if self._op not in _LOOKS or self._stream.expired or isinstance(error, TableClosed):
            if self._op == "create" and isinstance(error, ServiceUnavailable):
                error.tell_items(np.zeros(0, np.int64), self._count, self._count)
            raise error from None
