"""Batches asked for ahead, several at a time, on one stream."""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, cast, final

from relive._closing import Closing
from relive.batch import Batch, Plan
from relive.errors import DeadlineExceeded, ForkedHandle, InvalidConfig, ReliveError, ServiceUnavailable, TableClosed
from relive.service import wire
from relive.service.connection import MIN_REPLY_S, cutoff
from relive.service.exchange import Exchange, StreamBroken
from relive.service.remote_core import RemoteCore, RemotePlan

__all__ = ["RemoteBatches"]

_SLICE_S = 0.2  # how long the server waits for the limiter before it says so
_REPLY_S = 10.0  # no answer to a slice for so long: the server hangs
_MAX_ASKED = 16  # requests under way; the answers wait in the transport


@final
class RemoteBatches(Closing):
    """An iterator of batches that are drawn, gathered and sent ahead; use it in a `with` block.

    Up to `prefetch` batches are asked for or wait here, counted as sampled only when handed out; closing gives the rest
    back to the limiter. An error in the background is raised by next(), which waits at most timeout_s, then
    DeadlineExceeded; it may be called again, also after ServiceUnavailable: the stream is opened anew.
    Owner of the stream, of the thread that reads it, and of the waiting batches. next() may be called from any thread.
    """

    def __init__(
        self, core: RemoteCore, plan: Plan, num_items: int, prefetch: int, device: Any, timeout_s: float
    ) -> None:
        self._core = core
        self._plan = plan
        self._remote = cast(RemotePlan, plan.core)
        self._num_items = num_items
        self._prefetch = prefetch
        self._device = device
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        self._ready: deque[Batch] = deque()
        self._stream: Exchange | None = None
        self._asked = 0  # requests without an answer yet
        self._handed_out = 0  # since the last message
        self._cut: BaseException | None = None  # how sending on the stream failed
        self._starved: DeadlineExceeded | None = None  # why the last answer brought no batch
        self._error: BaseException | None = None
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._process = 0

    def __enter__(self) -> RemoteBatches:
        if self._thread is not None or self._stopping:
            raise InvalidConfig("batches()", "one `with` block each", "a second one")
        self._thread = threading.Thread(target=self._fill, name="relive-prefetch", daemon=True)
        self._process = os.getpid()
        self._thread.start()
        return self

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._thread is not None and self._process != os.getpid() and not self._stopping:
            raise ForkedHandle("an iterator of batches")
        start = time.monotonic()
        with self._changed:
            if self._thread is None and not self._stopping:
                raise InvalidConfig("batches()", "use in a `with` block", "next() outside of it")
            while not self._ready:
                self._raise_if_over()
                waited = time.monotonic() - start
                if waited >= self._timeout_s:
                    raise self._deadline_exceeded(waited)
                self._changed.wait(None if math.isinf(self._timeout_s) else self._timeout_s - waited)
            if self._core.closed:
                raise TableClosed()
            batch = self._ready.popleft()
            self._handed_out += 1
            self._ask()
            return batch

    def close(self) -> None:
        """Stops and gives back what was not handed out; waits for what is under way. Closing twice is harmless."""
        if self._thread is not None and self._process != os.getpid():
            self._stopping = True  # a forked child: stream and thread are its parent's
            return
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        stream, self._stream = self._stream, None
        self._ready.clear()
        if stream is not None and not self._core.closed:
            ends = cutoff(min(self._timeout_s, _REPLY_S))
            stream.begin(ends)
            try:
                stream.send(wire.encode({"op": "count", "handed_out": self._handed_out}))
            except StreamBroken:
                pass  # the server is gone, and with it what it held
            self._core.connection.finish(stream, ends)

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

    def _deadline_exceeded(self, waited_s: float) -> DeadlineExceeded:
        last = self._starved
        if last is None:
            return DeadlineExceeded(f"{self._num_items} items", "no answer yet", waited_s)
        return DeadlineExceeded(last.needs, last.has, waited_s, last.holder_pid)

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
            except BaseException as error:  # handed to the consumer, who raises it
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                    if not isinstance(error, ServiceUnavailable):
                        return
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

    def __repr__(self) -> str:
        state = "closed" if self._stopping else "running" if self._thread is not None else "not started"
        return f"RemoteBatches({self._num_items} items, {len(self._ready)} of {self._prefetch} ready, {state})"
