"""The source of a remote table's batches: requests several batches at a time, on one stream."""

from __future__ import annotations

import math
import time
from collections import deque
from typing import cast, final

from relive.core.request import DrawRequest
from relive.errors import DeadlineExceeded, RareItems, ReliveError, ServiceUnavailable, TableClosed
from relive.reading.batch import Batch
from relive.reading.batches import SLICE_S
from relive.reading.columns import Columns
from relive.reading.holds import Returned, Taken
from relive.service.client.deadlines import cutoff
from relive.service.client.exchange import Exchange, StreamBroken
from relive.service.client.remote_core import RemoteCore, RemoteSelection
from relive.service.wire import framing

__all__ = ["RemoteSource"]

_REPLY_S = 10.0  # the stream ends if the server is silent for so long: it answers a request within a slice
_SILENT_S = 0.9  # next() tells of a silence of so long: an answer may take a second, and cutoff() leaves 0.1 s of it
_LONGEST_S = 1e6  # a wait without an end would not be watched for silence
_MAX_ASKED = 16  # most requests without an answer; answers wait in the transport


@final
class _Lent:
    """The hold of a batch that the server keeps in flight. The end of the stream gives back every batch of it."""

    def __init__(self, source: RemoteSource, stream: Exchange) -> None:
        self._source = source
        self._stream = stream
        self.is_handed_out = False

    def commit(self, was_late: bool = False) -> None:
        """Counts the batch as handed out. The next message tells the server. Raises Returned if the stream is over."""
        if self._source.closed:
            raise TableClosed()
        if not self._source.is_on(self._stream):
            raise Returned
        self.is_handed_out = True

    def give_back(self) -> None:
        """Does nothing: the source ends the stream when it is closed."""


@final
class RemoteSource:
    """Sends requests for batches and takes the answers in order.

    The server keeps drawn batches in flight until the client says that they were handed out. While it works on an
    answer, it sends pulses. This object owns the stream. take() opens the stream and sends the requests. close() ends
    the stream, which gives back the batches in flight. Only the thread of take() and close() uses the stream, so no
    signal's handler interrupts a message.

    depth: batches that are requested or wait to be handed out.
    """

    def __init__(self, core: RemoteCore, request: DrawRequest, columns: Columns, depth: int, timeout_s: float) -> None:
        self._core = core
        self._columns = columns
        self._remote = cast(RemoteSelection, request.selection)
        self._num_items = request.num_items
        self._depth = depth
        self._timeout_s = timeout_s
        self._header = {"op": "sample", **request.to_header(), "timeout_s": SLICE_S}
        self._stream: Exchange | None = None
        self._lent: deque[_Lent] = deque()  # batches of this stream that the server does not know as handed out
        self._num_sent = 0  # requests without an answer
        self._is_starved = False  # whether the limiter refused the last request: then one request at a time
        self._cut: BaseException | None = None  # the error of a failed send
        self._is_cancelled = False
        self._waits_since = math.inf  # when take() began to wait for the server; inf: it does not wait

    @property
    def closed(self) -> bool:
        """Whether the table's handle is closed."""
        return self._core.closed

    def is_on(self, stream: Exchange) -> bool:
        """Whether this is the stream of the source. Else the server took back the batches in flight on it."""
        return stream is self._stream

    def ask(self, num_batches: int) -> None:
        """Does nothing: take() sends requests ahead."""

    def take(self) -> Taken:
        """Returns the next answer's batch. Raises ServiceUnavailable, and the server's errors."""
        self._waits_since = time.monotonic()
        try:
            return self._take()
        finally:
            self._waits_since = math.inf

    def silence(self) -> ServiceUnavailable | None:
        """The error of a server that has been silent for a second of the wait in take()."""
        since = self._waits_since
        if time.monotonic() - since < _SILENT_S:
            return None
        quiet_s = self._core.connection.quiet_s(since)
        if quiet_s < _SILENT_S:
            return None
        return ServiceUnavailable(self._core.path, quiet_s, f"no byte came for {quiet_s:.3g} s")

    def _take(self) -> Taken:
        stream = self._stream or self._open()
        self._send_requests(stream)
        start = time.monotonic()
        try:
            if self._cut is not None and not self._num_sent:
                raise self._cut
            self._begin(stream, start)
            told, body = stream.receive()
            error = framing.error_from(told["error"]) if "error" in told else None
            packing, count = self._remote.sampled, self._num_items
            block, rows = None, 0
            if error is None:
                rows = packing.num_rows(told)
                block = stream.receive_block(told, body, packing.num_bytes(count, rows))
            stream.end()
        except ReliveError:  # before StreamBroken: some errors of the library are OSErrors
            self._forget()
            self._core.connection.drop(stream)
            raise
        except StreamBroken as problem:
            self._forget()
            raise self._core.connection.broken(stream, problem, start) from None
        self._num_sent -= 1
        self._is_starved = isinstance(error, (DeadlineExceeded, RareItems))
        if error is not None:
            raise error  # as an answer, which ends no stream: the batches before it are still in flight
        assert block is not None
        *arrays, keys, probabilities = packing.arrays(block, count, rows)
        self._lent.append(_Lent(self, stream))
        return Taken(Batch(self._columns, arrays, keys, probabilities, told["live"]), self._lent[-1])

    def cancel(self) -> None:
        """Shortens a wait for rows on their way, and ends the tries to reach a server that is away.

        The server answers a request within a slice.
        """
        self._is_cancelled = True
        stream = self._stream
        if stream is not None:  # without the stream's lock: a signal's handler may interrupt another call of cancel()
            stream.deadline = min(stream.deadline, time.monotonic() + _REPLY_S)

    def close(self) -> None:
        """Tells the server how many batches were handed out, and ends the stream.

        The server then gives back the other batches.
        """
        stream, handed_out = self._stream, self._num_handed_out()
        self._forget()
        if stream is None or self._core.closed:
            return
        ends = cutoff(min(self._timeout_s, _REPLY_S))
        stream.begin(ends)
        try:
            stream.send(framing.encode({"op": "count", "handed_out": handed_out}))
        except StreamBroken:
            pass  # the server is gone, and so are its batches in flight
        self._core.connection.finish(stream, ends)

    # ---- the stream ------------------------------------------------------------------------------------------------

    def _open(self) -> Exchange:
        connection, ends = self._core.connection, cutoff(self._timeout_s)
        stream, _ = connection.open("hold", {"pulses": True}, ends, lambda: not self._is_cancelled, _REPLY_S)
        stream.silence_s = _REPLY_S
        self._stream, self._cut = stream, None
        return stream

    def _begin(self, stream: Exchange, start: float) -> None:
        """Sets the deadline of an answer: rows on their way are waited for, and a silent server is not."""
        stream.begin(start + min(max(_REPLY_S, self._timeout_s), _LONGEST_S))
        if self._is_cancelled:
            self.cancel()

    def _num_handed_out(self) -> int:
        """The batches that were handed out since the last message, which has to tell the server."""
        count = 0
        while self._lent and self._lent[0].is_handed_out:
            self._lent.popleft()
            count += 1
        return count

    def _send_requests(self, stream: Exchange) -> None:
        """Sends requests for all batches that are wanted; one at a time while the limiter allows none."""
        if self._cut is not None:
            return
        most = 1 if self._is_starved else _MAX_ASKED
        num_wanted = self._depth - sum(not lent.is_handed_out for lent in self._lent)
        try:
            for _ in range(max(min(num_wanted, most), 1) - self._num_sent):
                after = self._core.after(self._timeout_s)
                more = {"after": after} if after else {}
                stream.send(framing.encode({**self._header, **more, "handed_out": self._num_handed_out()}))
                self._num_sent += 1
        except StreamBroken as problem:
            self._cut = problem

    def _forget(self) -> None:
        self._stream, self._num_sent = None, 0
        self._lent.clear()
