"""The source of a remote table's batches: requests several batches at a time, on one stream."""

from __future__ import annotations

import threading
import time
from typing import cast, final

from relive.core.request import DrawRequest
from relive.errors import DeadlineExceeded, RareItems, ReliveError, TableClosed
from relive.reading.batch import Batch
from relive.reading.batches import SLICE_S
from relive.reading.columns import Columns
from relive.service.client.connection import MIN_REPLY_S, cutoff
from relive.service.client.exchange import Exchange, StreamBroken
from relive.service.client.remote_core import RemoteCore, RemoteSelection
from relive.service.wire import framing

__all__ = ["RemoteSource"]

_REPLY_S = 10.0  # a server that does not answer a slice for so long hangs
_MAX_ASKED = 16  # most requests without an answer; answers wait in the transport


@final
class RemoteSource:
    """Sends requests for batches and takes the answers in order.

    The server keeps drawn batches in flight until the client says that they were handed out. This object owns the
    stream. take() opens the stream, and the end of the stream gives back the batches in flight. `_lock` protects the
    fields below it and the sending of requests.
    """

    def __init__(self, core: RemoteCore, request: DrawRequest, columns: Columns, timeout_s: float) -> None:
        self._core = core
        self._columns = columns
        self._remote = cast(RemoteSelection, request.selection)
        self._num_items = request.num_items
        self._timeout_s = timeout_s
        self._header = {"op": "sample", **request.to_header(), "timeout_s": SLICE_S}
        self._lock = threading.Lock()
        self._stream: Exchange | None = None
        self._num_wanted = 0
        self._num_sent = 0  # requests without an answer
        self._num_handed_out = 0  # batches handed out since the last message
        self._is_starved = False  # whether the limiter refused the last request: then one request at a time
        self._cut: BaseException | None = None  # the error of a failed send

    def ask(self, num_batches: int) -> None:
        """Sends requests for this many more batches if the stream is open."""
        with self._lock:
            self._num_wanted += num_batches
            if num_batches > 0:
                self._send_requests()

    def take(self) -> Batch | None:
        """Returns the next answer's batch. Raises ServiceUnavailable, and the server's errors."""
        stream = self._stream or self._open()
        if not self._has_sent():
            return None
        start = time.monotonic()
        try:
            if self._cut is not None and not self._num_sent:
                raise self._cut
            stream.begin(start + max(_REPLY_S, MIN_REPLY_S))
            told, body = stream.receive()
            error = framing.error_from(told["error"]) if "error" in told else None
            packing, count = self._remote.sampled, self._num_items
            block, rows = None, 0
            if error is None:
                rows = packing.num_rows(told)
                block = stream.receive_block(told, body, packing.num_bytes(count, rows))
            stream.end()
        except ReliveError:  # before StreamBroken: some errors of the library are OSErrors
            self._drop(stream)
            raise
        except StreamBroken as problem:
            self._forget(stream)
            raise self._core.connection.broken(stream, problem, start) from None
        with self._lock:
            self._num_sent -= 1
            self._num_wanted -= 1 if error is None else 0
            self._is_starved = isinstance(error, (DeadlineExceeded, RareItems))
        if error is not None:
            raise error  # as an answer, which ends no stream: the batches before it are still in flight
        assert block is not None
        *arrays, keys, probabilities = packing.arrays(block, count, rows)
        return Batch(self._columns, arrays, keys, probabilities, told["live"])

    def commit(self, was_late: bool) -> None:
        """Counts a batch as handed out. The next message tells the server."""
        if self._core.closed:
            raise TableClosed()
        with self._lock:
            self._num_handed_out += 1

    def give_back(self, num_batches: int) -> None:
        """Tells the server how many batches were handed out, and ends the stream.

        The server then gives back the other batches.
        """
        stream, self._stream = self._stream, None
        if stream is None or self._core.closed:
            return
        ends = cutoff(min(self._timeout_s, _REPLY_S))
        stream.begin(ends)
        try:
            stream.send(framing.encode({"op": "count", "handed_out": self._num_handed_out}))
        except StreamBroken:
            pass  # the server is gone, and so are its batches in flight
        self._core.connection.finish(stream, ends)

    # ---- the stream ------------------------------------------------------------------------------------------------

    def _open(self) -> Exchange:
        stream = self._core.connection.open("hold", {}, cutoff(self._timeout_s))[0]
        with self._lock:
            self._stream, self._num_sent, self._num_handed_out, self._cut = stream, 0, 0, None
        return stream

    def _has_sent(self) -> bool:
        with self._lock:
            self._send_requests()
            return self._num_sent > 0 or self._cut is not None

    def _send_requests(self) -> None:
        """Sends requests for all wanted batches; one at a time while the limiter allows none.

        Needs the lock `_lock`.
        """
        stream = self._stream
        if stream is None or self._cut is not None:
            return
        most = 1 if self._is_starved else _MAX_ASKED
        try:
            for _ in range(min(self._num_wanted, most) - self._num_sent):
                after = self._core.after()
                more = {"after": after} if after else {}
                stream.send(framing.encode({**self._header, **more, "handed_out": self._num_handed_out}))
                self._num_handed_out = 0
                self._num_sent += 1
        except StreamBroken as problem:
            self._cut = problem

    def _forget(self, stream: Exchange) -> None:
        with self._lock:
            self._stream, self._num_sent, self._num_handed_out = None, 0, 0

    def _drop(self, stream: Exchange) -> None:
        self._forget(stream)
        self._core.connection.drop(stream)
