"""The server's end of one stream: reads messages, and writes messages and large bodies."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.flight as flight

from relive.errors import BadMessage
from relive.service.wire.framing import NOTHING, PULSE, Bytes, decode, encode
from relive.service.wire.packing import Packing, address_of, room_for

__all__ = ["BODY", "CHUNK_BYTES", "SMALL_BYTES", "Pipe", "StreamBroken", "packed"]

_BYTES = pa.uint8()
BODY = pa.schema([pa.field("body", _BYTES, nullable=False)])
SMALL_BYTES = 256 << 10  # up to this size a body is sent in the message itself: one write instead of several
# A chunk is copied out of the transport while the next chunk arrives, and stays in a core's cache meanwhile. Larger
# chunks wait for each other. Smaller chunks cost more wake-ups than they save (measured: chunks of 256 KiB take 1.4
# times the CPU time of chunks of 512 KiB).
CHUNK_BYTES = 512 << 10
_PULSES = 0.2  # the part of a client's patience after which a pulse is due
_SHORT = 4096  # most bytes of a message that is compared with the message before it
_NEVER = b"\xff\xff\xff\xff"  # no message begins with these bytes: a header of 4 GiB
StreamBroken = (flight.FlightError, pa.ArrowException, OSError)  # errors of reads and writes of a broken stream


def packed(packing: Packing, arrays: Sequence[npt.NDArray[Any]], num_items: int, num_rows: int = 0) -> list[pa.Buffer]:
    """Returns the arrays as the packing places them, without a copy: one buffer if they already lie so.

    The buffers keep the arrays alive.
    """
    num_bytes = packing.num_bytes(num_items, num_rows)
    if not num_bytes:
        return []
    if packing.lies_in_one_block(arrays, num_items, num_rows):
        return [pa.foreign_buffer(address_of(arrays[0]), num_bytes, arrays)]
    buffers = []
    for array in arrays:
        buffers.append(pa.foreign_buffer(address_of(array), array.nbytes, array))
        gap = room_for(array.nbytes) - array.nbytes
        if gap:
            buffers.append(pa.py_buffer(bytes(gap)))
    return buffers


@final
class Pipe:
    """Reads and writes messages of one stream; used by the one thread that serves the stream.

    Another thread may call pulse(), is_due() and is_stalled(). `_sending` protects the writer, `_asking` the end of the
    context while another thread asks it.
    """

    def __init__(self, context: Any, reader: Any, writer: Any, count_busy: Callable[[int], None]) -> None:
        self._context = context
        self._reader = reader
        self._writer = writer
        self._count_busy = count_busy
        self._sending = threading.Lock()
        self._asking = threading.Lock()
        self._is_busy = self._is_over = False
        self._busy_since = self._pulsed_at = 0.0
        self.patience_s = 1.0  # how long the client bears a silence
        self._sent_at = math.inf  # when the part of an answer that is being sent now was begun
        self._gives_up = math.inf  # when the client gives up on what is being sent now
        self.gives_up = math.inf  # when the client gives up on the body of the next answer
        self._has_begun = False
        self._last = _NEVER  # length and header of the last message: requests for batches repeat it
        self._last_header: dict[str, Any] = {}

    def gone(self) -> bool:
        """Returns whether the client has given up the stream."""
        return bool(self._context.is_cancelled())

    def read(self) -> tuple[dict[str, Any], Bytes] | None:
        """Returns the next message; None at the end of the stream. Blocks until a message comes. Raises BadMessage.

        A header that repeats the header before it is the same dict. The caller must not change that dict.
        """
        self.rest()
        try:
            chunk = self._reader.read_chunk()
        except StopIteration:
            return None
        self._is_busy, self._busy_since = True, time.monotonic()
        self._count_busy(1)
        if chunk.data is not None or chunk.app_metadata is None:
            raise BadMessage("message", "metadata alone", "a record batch")
        if chunk.app_metadata.size > _SHORT:
            return decode(chunk.app_metadata)
        message = chunk.app_metadata.to_pybytes()
        if not message.startswith(self._last):
            header, body = decode(message)
            self._last, self._last_header = message[: len(message) - len(body)], header
            return header, body
        end = len(self._last)
        return self._last_header, np.frombuffer(message, np.uint8, offset=end) if end < len(message) else NOTHING

    def rest(self) -> None:
        """Marks the message that was read last as finished: a server that closes need not wait for that message."""
        if self._is_busy:
            self._is_busy = False
            self._count_busy(-1)

    def is_due(self) -> bool:
        """Returns whether the session works on its last message, and its client waits for the next pulse.

        A client that is stopped reads none: the fewer pulses, the longer its stream takes them.
        """
        quiet_since = max(self._busy_since, self._pulsed_at)
        return self._is_busy and time.monotonic() - quiet_since >= _PULSES * self.patience_s

    def is_stalled(self, longest_s: float) -> bool:
        """Returns whether the client does not read its answer: no part for so long, or after it has given up.

        A client that has cancelled the stream reads. The write of the cancelled stream ends when the bytes that gRPC
        has taken are sent, which takes a while over a slow link.
        """
        with self._asking:  # a write that was begun does not end meanwhile, so the context lives
            now, sent_at = time.monotonic(), self._sent_at
            if now - sent_at > 1.0 and now > self._gives_up and not self.gone():
                return True
            return now - sent_at > longest_s

    def pulse(self) -> None:
        """Says that the session works on an answer, unless it is sending one or the pulse before is not sent yet.

        Never waits for the session. Blocks: while the client does not read, which is_stalled() does not count: a client
        may be stopped as long as it has no answer.
        """
        if self._sending.acquire(blocking=False):
            try:
                if self._is_busy and not self._is_over:
                    self._pulsed_at = time.monotonic()
                    self._writer.write_metadata(PULSE)
            finally:
                self._sending.release()

    def end(self) -> None:
        """Waits for a pulse that is being sent: after the stream's end its writer must not be used."""
        self._send(math.inf, setattr, self, "_is_over", True)

    def send(self, header: Mapping[str, Any], *parts: Any) -> None:
        """Sends a small message. It may follow the deadline of its call, as an error does: `gives_up` is not asked."""
        self._send(math.inf, self._writer.write_metadata, encode(header, *parts))

    def send_buffers(self, header: Mapping[str, Any], buffers: Sequence[pa.Buffer]) -> None:
        """Sends a message whose body is these buffers, one after the other, to a client that waits until `gives_up`.

        A large body is sent as record batches of bytes.
        """
        num_bytes = sum(buffer.size for buffer in buffers)
        if num_bytes <= SMALL_BYTES:
            self._send(self.gives_up, self._writer.write_metadata, encode(header, *buffers))
        else:
            self._send(self.gives_up, self._write_chunks, encode({**header, "body_bytes": num_bytes}), buffers)

    def _send(self, gives_up: float, write: Callable[..., None], *what: Any) -> None:
        """Makes a write, and notes when it began: is_stalled() is true if the client does not read.

        A wait for a pulse is noted, too: the client does not read that pulse.
        """
        self._gives_up, self._sent_at = gives_up, time.monotonic()
        try:
            with self._sending:
                write(*what)
        finally:
            with self._asking:
                self._sent_at = math.inf

    def _write_chunks(self, first: bytes, buffers: Sequence[pa.Buffer]) -> None:
        if not self._has_begun:
            self._writer.begin(BODY)
            self._has_begun = True
        message: bytes | None = first
        for buffer in buffers:
            for start in range(0, buffer.size, CHUNK_BYTES):
                part = buffer.slice(start, min(CHUNK_BYTES, buffer.size - start))
                column = pa.Array.from_buffers(_BYTES, part.size, [None, part])
                batch = pa.RecordBatch.from_arrays([column], schema=BODY)
                self._sent_at = time.monotonic()
                if message is None:
                    self._writer.write_batch(batch)
                else:
                    self._writer.write_with_metadata(batch, message)
                    message = None
