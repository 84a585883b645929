"""The client's end of one stream, and the watch that cuts streams whose answer is late."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Mapping
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

from relive._core import new_buffer
from relive.errors import BadMessage
from relive.service.wire import framing
from relive.service.wire.framing import Bytes

__all__ = ["Exchange", "StreamBroken", "Watch"]

StreamBroken = (flight.FlightError, pa.ArrowException, OSError, StopIteration)  # what a dead stream raises

_LOOK_EVERY_S = 0.05
_ROUNDS_BEFORE_SLEEP = 40


@final
class Watch:
    """A thread that cancels streams at their deadlines; it sleeps while no stream waits. Owner of the thread."""

    def __init__(self) -> None:
        self._streams: set[Exchange] = set()
        self._changed = threading.Condition()
        self._stopped = False
        self._thread: threading.Thread | None = None
        self.sleeps = True

    def add(self, stream: Exchange) -> None:
        """Looks after a stream from now on."""
        with self._changed:
            self._streams.add(stream)

    def remove(self, stream: Exchange) -> None:
        """No longer."""
        with self._changed:
            self._streams.discard(stream)

    def wake(self) -> None:
        """A stream has a deadline; called by streams while `sleeps` is set."""
        with self._changed:
            if self._thread is None and not self._stopped:
                self._thread = threading.Thread(target=self._look, name="relive-deadlines", daemon=True)
                self._thread.start()
            self.sleeps = False
            self._changed.notify_all()

    def stop(self) -> None:
        """Ends the thread."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _look(self) -> None:
        quiet = 0
        with self._changed:
            while not self._stopped:
                now, busy = time.monotonic(), False
                for stream in tuple(self._streams):
                    busy |= stream.deadline != math.inf
                    if now >= stream.deadline:
                        stream.expire(now)
                quiet = 0 if busy else quiet + 1
                # A stream that sets its deadline between this look and the sleep finds `sleeps` set and wakes us, or
                # is seen by the look that follows the setting of it.
                self.sleeps = quiet > _ROUNDS_BEFORE_SLEEP
                self._changed.wait(None if quiet > _ROUNDS_BEFORE_SLEEP + 1 else _LOOK_EVERY_S)


@final
class Exchange:
    """Messages out, messages in. One thread may send while another receives; within each, one at a time.

    A deadline set by begin() holds until end(): past it the watch cancels the stream, and who waits on it gets one of
    StreamBroken. A stream is not usable after any error of the transport.
    """

    def __init__(self, writer: Any, reader: Any, watch: Watch) -> None:
        self._writer = writer
        self._reader = reader
        self._watch = watch
        self._changed = threading.Lock()
        self.deadline = math.inf
        self.expired = False
        watch.add(self)

    def begin(self, deadline: float) -> None:
        """From now until end() the stream is cancelled at this time.monotonic()."""
        with self._changed:
            self.deadline = deadline
        if self._watch.sleeps:
            self._watch.wake()

    def end(self) -> None:
        """The answer is there."""
        with self._changed:
            self.deadline = math.inf

    def expire(self, now: float) -> None:
        """Cancels the stream if its deadline has passed; the watch's call."""
        with self._changed:
            if now >= self.deadline:
                self.expired = True
                self.deadline = math.inf
                self._reader.cancel()

    def send(self, message: bytes) -> None:
        """Sends one message; blocks while the transport is full."""
        self._writer.write_metadata(message)

    def receive(self) -> tuple[dict[str, Any], Bytes]:
        """The next message, header and body; blocks until it comes. Raises StreamBroken."""
        chunk = self._reader.read_chunk()
        if chunk.app_metadata is None:
            raise BadMessage("answer", "a message", "a record batch")
        header, body = framing.decode(chunk.app_metadata)
        return header, body if chunk.data is None else _bytes_of(chunk.data)

    def receive_block(self, header: Mapping[str, Any], body: Bytes, num_bytes: int) -> Bytes:
        """The body of an answer of num_bytes in a pooled buffer; `body`, what came with the header, is its beginning.

        Raises BadMessage, after which the stream is of no use, and what the server says went wrong in mid-answer.
        """
        told = header.get("body_bytes", len(body))
        if told != num_bytes:
            raise BadMessage("body of an answer", f"{num_bytes} bytes", told)
        block = new_buffer(max(num_bytes, 1))
        at = 0
        while True:
            if len(body) > num_bytes - at:
                raise BadMessage("body of an answer", f"{num_bytes} bytes", at + len(body))
            block[at : at + len(body)] = body
            at += len(body)
            if at == num_bytes:
                return block
            chunk = self._reader.read_chunk()
            if chunk.app_metadata is not None:
                raise BadMessage("body of an answer", f"{num_bytes} bytes", "a message")
            body = _bytes_of(chunk.data)

    def half_close(self, deadline: float) -> None:
        """Says that nothing more comes; another thread reads the stream to its end."""
        self.begin(deadline)
        with contextlib.suppress(*StreamBroken):
            self._writer.done_writing()

    def finish(self, deadline: float) -> bool:
        """Says that nothing more comes and waits until the server has ended the stream; False where it did not."""
        self.begin(deadline)
        try:
            self._writer.done_writing()
            while True:
                self._reader.read_chunk()
        except StopIteration:
            return True
        except StreamBroken:
            return False
        finally:
            self.end()
            self._dispose()

    def interrupt(self) -> None:
        """From another thread: who waits on the stream gets StreamBroken, and cancels it."""
        self._reader.cancel()

    def cancel(self) -> None:
        """Ends the stream at once; by the thread that uses it, or when none does."""
        self._reader.cancel()
        self._dispose()

    def _dispose(self) -> None:
        self._watch.remove(self)
        with contextlib.suppress(*StreamBroken):
            self._writer.close()  # Arrow complains on stderr of writers that were never closed


def _bytes_of(chunk: Any) -> Bytes:
    """The bytes of a record batch of one column; a view."""
    return np.frombuffer(chunk.column(0).buffers()[1], np.uint8)[: chunk.num_rows]
