"""Batches asked for ahead, several at a time, on one stream."""

from __future__ import annotations

import time
from typing import Any, cast, final

from relive.ahead import Ahead
from relive.batch import Batch, Plan
from relive.errors import DeadlineExceeded, ReliveError, ServiceUnavailable, TableClosed
from relive.service import wire
from relive.service.connection import MIN_REPLY_S, cutoff
from relive.service.exchange import Exchange, StreamBroken
from relive.service.remote_core import RemoteCore, RemotePlan

__all__ = ["RemoteBatches"]

_SLICE_S = 0.2  # how long the server waits for the limiter before it says so
_REPLY_S = 10.0  # no answer to a slice for so long: the server hangs
_MAX_ASKED = 16  # requests under way; the answers wait in the transport


@final
class RemoteBatches(Ahead):
    """An iterator of batches that are drawn, gathered and sent ahead; use it in a `with` block.

    Up to `prefetch` batches are asked for or wait here, counted as sampled only when handed out; closing gives the rest
    back to the limiter. An error in the background is raised by next(), which waits at most timeout_s, then
    DeadlineExceeded; it may be called again, also after ServiceUnavailable: the stream is opened anew.
    Owner of the stream, of the thread that reads it, and of the waiting batches. next() may be called from any thread.
    """

    def __init__(
        self, core: RemoteCore, plan: Plan, num_items: int, prefetch: int, device: Any, timeout_s: float
    ) -> None:
        super().__init__(num_items, prefetch, device, timeout_s)
        self._core = core
        self._plan = plan
        self._remote = cast(RemotePlan, plan.core)
        self._stream: Exchange | None = None
        self._asked = 0  # requests without an answer yet
        self._handed_out = 0  # since the last message
        self._cut: BaseException | None = None  # how sending on the stream failed

    # ---- the consumer's side; _changed is held ---------------------------------------------------------------------

    def _raise_if_over(self) -> None:
        if self._stopping:
            raise StopIteration
        if self._core.closed:
            raise TableClosed()
        if self._error is not None:
            error = self._error
            if isinstance(error, ServiceUnavailable):
                self._error = None  # told once; the thread tries again
                self._changed.notify_all()
            raise error

    def _count_handed_out(self) -> None:
        if self._core.closed:
            raise TableClosed()
        self._handed_out += 1

    def _room_came(self) -> None:
        self._ask()

    def _at_hand(self) -> object:
        return "no answer yet"

    def _give_up(self, num_unused: int) -> None:
        """Says how many were handed out; the server gives back the others when the stream ends."""
        stream, self._stream = self._stream, None
        if stream is not None and not self._core.closed:
            ends = cutoff(min(self._timeout_s, _REPLY_S))
            stream.begin(ends)
            try:
                stream.send(wire.encode({"op": "count", "handed_out": self._handed_out}))
            except StreamBroken:
                pass  # the server is gone, and with it what it held
            self._core.connection.finish(stream, ends)

    def _ask(self) -> None:
        """Sends requests while there is room for their batches: one at a time while the limiter allows none."""
        stream = self._stream
        if stream is None or self._stopping:
            return
        most = 1 if self._starved is not None else _MAX_ASKED
        room = min(self._prefetch - len(self._ready) - self._asked, most - self._asked)
        header = {"op": "sample", "index": self._remote.number, "names": self._remote.names, "n": self._num_items}
        header["timeout_s"] = _SLICE_S
        try:
            for _ in range(room):
                after = self._core.after()
                more = {"after": after} if after else {}
                stream.send(wire.encode({**header, **more, "handed_out": self._handed_out}))
                self._handed_out = 0
                self._asked += 1
        except StreamBroken as problem:
            self._cut = problem  # said by the reader: where nothing is asked for any more, nobody else would find out
            self._changed.notify_all()
            return
        if room > 0:
            self._changed.notify_all()

    # ---- the thread ------------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        while not self._stopping:
            try:
                self._read_stream()
            except StopIteration:
                return
            except BaseException as error:
                self._fail(error)
                if not isinstance(error, ServiceUnavailable):
                    return
                with self._changed:
                    self._changed.wait_for(lambda: self._error is None or self._stopping)

    def _read_stream(self) -> None:
        """From one opening of the stream to its end."""
        stream = self._core.connection.open("hold", {}, cutoff(self._timeout_s))[0]
        with self._changed:
            self._stream, self._asked, self._handed_out, self._cut = stream, 0, 0, None
        start = time.monotonic()
        try:
            while self._wait_until_asked():
                start = time.monotonic()
                stream.begin(start + max(_REPLY_S, MIN_REPLY_S))
                batch = self._receive(stream)
                stream.end()
                with self._changed:
                    self._asked -= 1
                    if batch is not None:
                        self._ready.append(batch)
                        self._changed.notify_all()
        except ReliveError:
            self._lose(stream)
            self._core.connection.drop(stream)
            raise
        except StreamBroken as problem:
            self._lose(stream)
            raise self._core.connection.broken(stream, problem, start) from None

    def _lose(self, stream: Exchange) -> None:
        with self._changed:
            self._stream, self._asked, self._handed_out = None, 0, 0

    def _wait_until_asked(self) -> bool:
        with self._changed:
            while not self._stopping:
                self._ask()
                if self._asked:
                    return True
                if self._cut is not None:
                    raise self._cut
                self._changed.wait()
            return False

    def _receive(self, stream: Exchange) -> Batch | None:
        """One batch, or None where the limiter did not allow one within a slice."""
        told, body = stream.receive()
        if "error" in told:
            error = wire.error_from(told["error"])
            if not isinstance(error, DeadlineExceeded):
                raise error
            self._starved = error
            return None
        self._starved = None
        packing, count = self._remote.sampled, self._num_items
        block = stream.receive_block(told, body, packing.num_bytes(count))
        *arrays, keys, probabilities = packing.arrays(block, count)
        batch = Batch(self._plan.columns, arrays, keys, probabilities, told["live"])
        return batch if self._device is None else batch.to_torch(self._device)
