"""The core of a streaming writer: calls return at once, one thread sends blocks, another thread takes the answers."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, final

import numpy as np

from relive.core.ending import start_thread
from relive.errors import (
    DeadlineExceeded,
    DtypeMismatch,
    ReliveError,
    TableClosed,
    Unacknowledged,
    WaitsForItself,
    WriterClosed,
)
from relive.service.client.blocks import Block, Keys, Lanes, Part, StreamedKeys, whole_part
from relive.service.client.connection import Connection
from relive.service.client.deadlines import MIN_REPLY_S, cutoff, server_wait
from relive.service.client.exchange import Exchange, StreamBroken
from relive.service.client.remote_writer import CLOSE_S, LANES_S, RemoteWriterCore, received_keys
from relive.service.wire import encoding, framing
from relive.service.wire.encoding import Operation, RowEncoder, given
from relive.service.wire.options import Streaming

__all__ = ["StreamedWriterCore"]

_END_S = 0.2  # after the deadline of a close, for the threads of all streams that were interrupted


@final
class _Message:
    """One part with its number and its timeout: sent at once, and answered at once."""

    __slots__ = ("epoch", "part", "sequence", "timeout_s", "version")

    def __init__(self, sequence: int, epoch: int, part: Part, timeout_s: float, version: int | None) -> None:
        self.sequence = sequence
        self.epoch = epoch  # at its making: a server drops the rest of an epoch in which it refused a message
        self.part = part
        self.timeout_s = timeout_s
        self.version = version  # of its rows: a stream that this message opens begins with that version


@final
class StreamedWriterCore(RemoteWriterCore):
    """Gathers appends in a block. Sends blocks, extends, ends and versions in order, and takes their answers in order.

    The server may wait for the limiter with each step, so a block may take its timeout for each of its rows. Meanwhile
    the server sends pulses. A server counts as hung if during one timeout it sends no byte, and takes none of the bytes
    that wait to be sent.

    After a failure, everything that was not acknowledged is given up, once. The next call raises Unacknowledged. The
    stream ends, also if the server refused a step: the lost steps would be a hole in the episodes of its lanes. The
    writer continues on new lanes, which it opens after the server has cut the old ones.

    The object owns the stream and two threads. `_changed` protects the fields below it; no message is sent or received
    in its critical section. A signal's handler that calls from within that section gets WaitsForItself. If a handler
    raises there, every row of an append that returned stays in its block or message.
    """

    def __init__(self, connection: Connection, encoder: RowEncoder, timeout_s: float, streaming: Streaming) -> None:
        super().__init__(connection, encoder, timeout_s)
        self._streaming = streaming
        stream, session = self._open(cutoff(timeout_s), self._lanes.streams, pulses=True)
        self._lock = threading.RLock()
        self._is_inside: Callable[[], bool] = self._lock._is_owned  # type: ignore[attr-defined]  # as Condition asks it
        self._changed = threading.Condition(self._lock)
        self._stream: Exchange | None = stream
        self._session: int | None = session
        self._opening: list[Exchange] = []  # at most one: the stream that the sender opens now
        self._receives_on: Exchange | None = None  # the stream of the newest receiver
        self._sends_on: Exchange | None = None  # the stream on which the sender sends a message now
        self._block: Block | None = None
        self._block_ends = 0.0  # when the block is sent even if it is not full
        self._outbox: deque[_Message] = deque()
        self._sent: deque[_Message] = deque()
        self._sequence = 0  # number of the last message made
        self._epoch = 0
        self._failure: Unacknowledged | None = None
        self._version: int | None = None
        self._lanes_by: float | None = None  # until when calls wait for new lanes; None: no call has
        self._stopping = False
        self._has_sender = True
        self._sender: threading.Thread | None = None
        self._receiver: threading.Thread | None = None

    def start(self) -> None:
        """Starts the threads, which keep this object until close()."""
        self._connection.tell_end(self)
        if self._stream is not None:
            self._receiver = self._start_receiver(self._stream)
        self._sender = start_thread(self._send_all, "relive-writer")
        self._lanes.streams.clear()  # from now on close() ends the stream

    # ---- calls -----------------------------------------------------------------------------------------------------

    def append(self, columns: dict[str, Any], lanes: Lanes | None, priority: Any, timeout_s: float) -> StreamedKeys:
        """Copies one step of each lane. Waits only if too many blocks are unanswered."""
        columns = given(columns)
        names = (*columns, "priority") if priority is not None else tuple(columns)
        signature = (names, None if lanes is None else lanes.tobytes(), timeout_s)
        self._check_free()
        with self._lock:  # entering the condition itself would cost as much as a column
            if self._closed or self._failure is not None:
                self._check_usable()
            block = self._block
            if block is None or block.signature != signature or block.num_rows == block.capacity:
                block = self._new_block(signature, lanes, timeout_s)
                if lanes is None and priority is None and timeout_s == self.timeout_s:
                    block.plain_names = names
            keys = block.put(columns, priority)
            if block.is_due:
                self._look_at(block)
            return keys

    def append_alike(self, columns: dict[str, Any], timeout_s: float) -> StreamedKeys | None:
        """As append, if the open block has these very columns and the call gives nothing else; else None, no effect.

        A closed or failed writer has no open block, and the names of an open block were checked.
        """
        if timeout_s != self.timeout_s or self._connection.is_foreign or self._is_inside():
            return None
        with self._lock:
            block = self._block
            if block is None or block.plain_names != tuple(columns):
                return None
            try:
                keys = block.put(columns, None)
            except DtypeMismatch:
                if given(columns) is not columns:
                    return None  # an end that is None: a row with other columns
                raise
            except IndexError:
                if block.num_rows == block.capacity:  # a signal's handler raised before the full block was sent
                    return None
                raise
            if block.is_due:  # also if the row that opened the block was refused
                self._look_at(block)
            return keys

    def extend(self, columns: dict[str, Any], lanes: Lanes | None, priority: Any, timeout_s: float) -> StreamedKeys:
        """Copies and queues a block of steps."""
        operation = self._encoder.extend(columns, lanes, priority)
        return StreamedKeys(self._queue(operation, timeout_s), 0, operation.keys_shape)

    def end_episode(self, columns: dict[str, Any], terminated: bool, lanes: Lanes | None, timeout_s: float) -> None:
        """Ends an episode, after the steps that were appended before."""
        self._queue(self._encoder.end(columns, terminated, lanes), timeout_s)

    def abandon(self, lanes: Lanes | None, timeout_s: float) -> None:
        """Drops open episodes, with the steps that were appended to them before."""
        self._queue(self._encoder.abandon(lanes), timeout_s)

    def set_policy_version(self, version: int | None) -> None:
        """Sets the version of the rows that are appended from now on."""
        self._queue(_version(version), self.timeout_s)

    def flush(self, timeout_s: float) -> None:
        """Waits until everything is acknowledged. Raises Unacknowledged, DeadlineExceeded."""
        self._check_free()
        with self._changed:
            self._check_usable()
            self._seal()
            self._wait(lambda: not (self._outbox or self._sent) or self._failure is not None, timeout_s)
            self._check_usable()

    def wait_for_keys(self, part: Part, timeout_s: float | None) -> None:
        """Waits until this part is answered. Raises DeadlineExceeded, ForkedHandle.

        timeout_s: At least a second is waited, as for every answer. None: the writer's deadline.
        """
        self._check_free()
        with self._changed:
            if self._block is not None and self._block.part is part:
                self._seal()
            seconds = self.timeout_s if timeout_s is None else max(timeout_s, MIN_REPLY_S)
            self._wait(lambda: part.keys is not None or part.error is not None, seconds)

    def unseen(self, ends: float) -> tuple[int, int] | None:
        """Sends the open block. Returns (session, last message) if a message is unanswered."""
        if self._connection.is_foreign:
            return None  # the call that asks is refused
        self._check_free()
        with self._changed:
            self._seal()
            # New lanes are being opened. If the server is gone, the call learns it itself.
            if self._session is None and (self._outbox or self._sent):
                if self._lanes_by is None and time.monotonic() < ends:
                    self._lanes_by = time.monotonic() + LANES_S
                left_s = min(ends, self._lanes_by or ends) - time.monotonic()
                if left_s > 0.0:
                    with contextlib.suppress(DeadlineExceeded):
                        self._wait(lambda: self._session is not None or not (self._outbox or self._sent), left_s)
            waiting = self._outbox or self._sent
            if not waiting or self._session is None:
                return None
            return self._session, waiting[-1].sequence

    def close_by(self, ends: float) -> None:
        """Waits for the sent messages, then cuts the lanes. Raises Unacknowledged if some steps were not stored."""
        if self._closed or self._connection.is_foreign:
            self._closed = True
            return
        self._check_free()
        stream: Exchange | None = None
        try:
            with self._changed:
                self._seal()
                try:
                    # Until no message is in flight, also after a failure: a remaining message would open a stream.
                    self._wait(lambda: not self._outbox and not self._sent, max(ends - time.monotonic(), 0.0))
                except DeadlineExceeded as problem:
                    self._give_up(problem)
                    self._sent.clear()
                failure, self._failure = self._failure, None
                stream = self._stream
                self._closed = self._stopping = True
                self._stream = None
                self._changed.notify_all()
            self._end(stream, ends)
        except BaseException:
            if self._closed:  # a signal's handler raised, and a second close() does nothing
                self._interrupt(stream)
                if stream is not None and not stream.is_in_use:  # else a thread drops it
                    self._connection.drop(stream)
                self.note_closed()
            raise
        if failure is not None:
            raise failure

    def _end(self, stream: Exchange | None, ends: float) -> None:
        """Waits for the threads, and ends the stream.

        The writers of a handle have the same `ends`, and so one deadline for all their threads. A thread may be late: a
        try to connect hears no interrupt.
        """
        leaves_by = ends + _END_S
        is_late = time.monotonic() >= ends or bool(self._lanes.streams)  # after Ctrl-C in start(): a thread may read
        if is_late:
            self._interrupt(stream)
        if self._sender is not None:
            self._sender.join(max(leaves_by - time.monotonic(), 0.0))
        if stream is not None:
            if not is_late and (self._sender is None or not self._sender.is_alive()):
                # Not after an interrupt, nor beside a message: gRPC aborts the process if two operations write.
                stream.half_close(max(ends, time.monotonic() + _END_S))
        if self._receiver is not None:  # also without a stream: the server may still cut the lanes of refused steps
            self._receiver.join(max(leaves_by - time.monotonic(), 0.0))
        if stream is not None:
            if stream.is_in_use:
                stream.interrupt()  # the thread that waits on it drops it
            else:
                self._connection.finish(stream, ends)

    def _interrupt(self, stream: Exchange | None) -> None:
        """Ends the waits of both threads for the server: on this stream, on its successor, and for the cut of lanes."""
        for one in {stream, self._receives_on, self._sends_on, *self._opening}:
            if one is not None:
                one.interrupt()

    def note_closed(self) -> None:
        """The connection has closed: the sender ends once it has given up what it has."""
        with self._changed:
            self._changed.notify_all()

    def _check_free(self) -> None:
        """Raises ForkedHandle before the lock, which a fork may have copied taken, and WaitsForItself."""
        self._connection.check_process("a writer")
        if self._is_inside():
            raise WaitsForItself("this writer", "a call of this same thread, which a signal's handler is called from")

    # ---- the caller's side; in the critical section of _changed -----------------------------------------------------

    def _check_usable(self) -> None:
        self._check_open()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _new_block(self, signature: tuple[Any, ...], lanes: Lanes | None, timeout_s: float) -> Block:
        self._seal()
        self._wait_for_room(timeout_s)
        self._seal()  # a signal's handler may have appended during the wait
        cells = [self._encoder.layout.cells[name] for name in signature[0]]
        width = self._encoder.layout.width if lanes is None else max(len(lanes), 1)
        row_bytes = width * sum(dtype.itemsize * int(np.prod(shape, dtype=np.int64)) for dtype, shape in cells)
        encoding.check_num_bytes(row_bytes)
        most_bytes = min(self._streaming.max_block_bytes, encoding.MAX_BODY_BYTES)
        encoding.check_num_keys(width, self._encoder.max_keys)
        most_rows = min(self._streaming.max_rows, self._encoder.max_keys) // width
        capacity = max(min(most_rows, most_bytes // max(row_bytes, 1)), 1)
        kept = None if lanes is None else lanes.copy()
        block = Block(self._encoder, self, signature, kept, capacity, self._limiter_wait_s(timeout_s))
        self._block = block
        return block

    def _look_at(self, block: Block) -> None:
        """After a row of a block that is due: posts a full block, and tells the sender of a block that begins."""
        if block.num_rows == block.capacity:
            self._seal()
        else:
            self._block_ends = time.monotonic() + self._streaming.linger_s
            self._changed.notify_all()
            block.is_due = False

    def _seal(self) -> None:
        """Posts the open block. If a signal's handler raises in it, the next call posts the block, but never twice."""
        block = self._block
        if block is not None and block.num_rows and not self._is_posted(block.part):
            self._post(block.seal(), block.timeout_s)
        self._block = None

    def _is_posted(self, part: Part) -> bool:
        """Whether the part of the newest block has its message."""
        waiting = self._outbox or self._sent
        is_last = bool(waiting) and waiting[-1].part is part
        return is_last or part.keys is not None or part.error is not None

    def _queue(self, operation: Operation, timeout_s: float) -> Part:
        self._check_free()
        part = whole_part(self, operation)
        with self._changed:
            self._check_usable()
            self._seal()
            self._wait_for_room(timeout_s)
            if operation.header["op"] == "version":
                self._version = operation.header["version"]
            self._post(part, self._limiter_wait_s(timeout_s))
        return part

    def _limiter_wait_s(self, timeout_s: float) -> float:
        """Returns how long the server may wait with the steps of a call with this timeout."""
        held_s = self._streaming.held_s
        return timeout_s if held_s is None else held_s

    def _post(self, part: Part, timeout_s: float) -> None:
        self._sequence += 1
        message = _Message(self._sequence, self._epoch, part, timeout_s, self._version)
        self._changed.notify_all()  # first: a signal's handler may raise after the next line
        self._outbox.append(message)
        if not self._has_sender:
            self._give_up(TableClosed())

    def _wait_for_room(self, timeout_s: float) -> None:
        most = self._streaming.max_in_flight
        self._wait(lambda: len(self._outbox) + len(self._sent) < most or self._failure is not None, timeout_s)
        self._check_usable()

    def _wait(self, done: Any, timeout_s: float) -> None:
        start = time.monotonic()
        try:
            is_done = self._changed.wait_for(done, None if timeout_s == float("inf") else timeout_s)
        except BaseException:
            if not self._is_inside():  # a signal's handler raised just after Python had released the lock for the wait
                self._lock.acquire()
            raise
        if not is_done:
            has = f"{len(self._outbox) + len(self._sent)} blocks of steps not acknowledged yet"
            raise DeadlineExceeded("the server's acknowledgement", has, time.monotonic() - start)

    # ---- failures; in the critical section of _changed --------------------------------------------------------------

    def _give_up(self, cause: ReliveError) -> None:
        """Gives up everything that is not answered. The next call and reads of the lost keys raise the failure.

        A failure that no call has raised yet keeps its cause, and counts what is lost now, too.
        """
        self._seal()
        lost = [message.part for message in (*self._sent, *self._outbox) if message.part.error is None]
        num_calls = sum(part.num_calls for part in lost)
        num_steps = sum(part.num_steps - _stored(part) for part in lost)
        reason, untold = str(cause), self._failure
        if untold is not None:
            num_calls, num_steps = num_calls + untold.num_calls, num_steps + untold.num_steps
            reason = untold.reason
        failure = Unacknowledged(num_calls, num_steps, reason)
        failure.__cause__ = cause if untold is None else untold.__cause__
        for part in lost:
            part.error = failure
        self._outbox.clear()
        self._failure = failure
        self._epoch += 1
        self._changed.notify_all()

    def _lose_stream(self, stream: Exchange | None, cause: ReliveError) -> None:
        """Gives up the stream, and what was sent on it. None: no stream could be opened."""
        with self._changed:
            if self._stream is stream:  # else the other thread was first
                self._stream = self._session = None
                self._give_up(cause)
                self._sent.clear()
                self._changed.notify_all()

    # ---- the sending thread ----------------------------------------------------------------------------------------

    def _send_all(self) -> None:
        while (taken := self._next_message()) is not None:
            (message, stream), start = taken, time.monotonic()
            try:
                if stream is None:
                    stream = self._open_again(message)
                if self._begin_sending(stream, message):
                    self._send(stream, message)
            except ReliveError as problem:
                if stream is not None:
                    self._connection.drop(stream)
                self._lose_stream(stream, problem)
            except StreamBroken as problem:
                assert stream is not None
                self._lose_stream(stream, self._connection.broken(stream, problem, start))
            finally:
                with self._changed:
                    self._sends_on = None
                    self._opening.clear()
                    self._changed.notify_all()

    def _next_message(self) -> tuple[_Message, Exchange | None] | None:
        """Returns the next message and its stream (None: it opens one). None: there will be no message."""
        with self._changed:
            while True:
                if self._stopping:
                    return None
                if self._outbox:
                    message = self._outbox.popleft()
                    self._sent.append(message)
                    if len(self._sent) == 1 and self._stream is not None:
                        _await(self._stream, message)
                    return message, self._stream
                if self._connection.closed and (self._block is None or not self._block.num_rows):
                    self._has_sender = False
                    return None
                if self._block is None or not self._block.num_rows:
                    self._changed.wait()
                    continue
                left = self._block_ends - time.monotonic()
                if left <= 0.0:
                    self._seal()
                else:
                    self._changed.wait(left)

    def _begin_sending(self, stream: Exchange, message: _Message) -> bool:
        """Returns whether the message was not given up together with its stream. It is then being sent."""
        with self._changed:
            is_wanted = self._stream is stream and message in self._sent
            self._sends_on = stream if is_wanted else None
            return is_wanted

    def _send(self, stream: Exchange, message: _Message) -> None:
        operation = message.part.operation
        assert operation is not None
        header = {"seq": message.sequence, "epoch": message.epoch, "timeout_s": server_wait(message.timeout_s)}
        stream.send(framing.encode({**header, "ops": [operation.header]}, *operation.arrays))
        operation.arrays = []  # a part lives as long as its keys, but its rows are no longer needed

    def _open_again(self, message: _Message) -> Exchange:
        """Opens the stream on which this message is the first.

        The message's timeout is for the limiter. The cut of the old lanes and the handshake may take longer.
        """
        start, ends = time.monotonic(), cutoff(max(message.timeout_s, self.timeout_s))
        if self._receiver is not None:
            self._receiver.join(min(ends - start, CLOSE_S))  # until the old lanes are cut: the table may have no others
        stream, session = self._open(ends, self._opening, lambda: not self._stopping, pulses=True)
        if message.version is not None:
            header = {"seq": 0, "epoch": self._epoch, "timeout_s": 0.0}
            stream.begin(ends)
            try:
                stream.send(framing.encode({**header, "ops": [_version(message.version).header]}))
            except StreamBroken as problem:
                raise self._connection.broken(stream, problem, start) from None
            stream.end()
        with self._changed:
            closed = self._stopping
            if not closed:
                self._stream, self._session, self._lanes_by = stream, session, None
                if message in self._sent:  # else it was given up meanwhile, and no answer will end the wait for one
                    _await(stream, message)
                self._changed.notify_all()
        if closed:
            self._connection.drop(stream)
            raise WriterClosed()
        self._receiver = self._start_receiver(stream)
        return stream

    # ---- the receiving thread --------------------------------------------------------------------------------------

    def _start_receiver(self, stream: Exchange) -> threading.Thread:
        self._receives_on = stream
        return start_thread(self._receive_all, "relive-keys", stream)

    def _receive_all(self, stream: Exchange) -> None:
        start, is_refused = time.monotonic(), False
        try:
            while True:
                told, body = stream.receive()
                body = received_keys(stream, told, body, self._num_keys_due())
                start = time.monotonic()
                with self._changed:
                    is_refusal = self._take_answer(stream, told, body)
                if is_refusal:
                    is_refused = True
                    self._half_close(stream)
        except ReliveError as problem:
            self._connection.drop(stream)
            self._lose_stream(stream, problem)
        except StreamBroken as problem:
            if is_refused:
                self._connection.drop(stream)  # the server has cut the lanes, or is gone
            elif not (self._stopping and isinstance(problem, StopIteration)):  # else close() requested the end
                self._lose_stream(stream, self._connection.broken(stream, problem, start))
        finally:
            if self._receives_on is stream:
                self._receives_on = None

    def _num_keys_due(self) -> int:
        """Returns the most keys of the next answer; 0 if it is the answer to a message that was given up."""
        with self._changed:
            return self._sent[0].part.num_steps if self._sent else 0

    def _take_answer(self, stream: Exchange, told: dict[str, Any], body: framing.Bytes) -> bool:
        """Notes the answer to the first message. Returns whether the server refused it: the stream must then end."""
        is_refusal = "error" in told or bool(told.get("dropped"))
        if self._stream is not stream or not self._sent:
            return False  # the answer to a message that was given up
        if told.get("seq", 0) <= 0 and not is_refusal:
            return False  # the answer to the version with which a stream begins
        message = self._sent[0]
        message.part.keys = _keys(body)
        if is_refusal:
            self._lose_stream(stream, framing.error_from(told.get("error")))
            return True
        self._sent.popleft()
        if self._sent:
            _await(stream, self._sent[0])
        else:
            stream.end()
        self._changed.notify_all()
        return False

    def _half_close(self, stream: Exchange) -> None:
        """Says that nothing more comes on a stream whose steps were refused. The server then cuts its lanes, and ends
        the stream.
        """
        ends = cutoff(min(self.timeout_s, CLOSE_S))
        with self._changed:  # gRPC aborts the process if two operations write
            is_idle = self._changed.wait_for(lambda: self._sends_on is not stream, ends - time.monotonic())
        if is_idle:
            stream.half_close(ends)
        else:
            stream.interrupt()


def _await(stream: Exchange, message: _Message) -> None:
    """Sets how long the answer to this message may take, and how long the server may be silent until then."""
    timeout_s, num_waits = message.timeout_s, max(message.part.num_calls, 1)
    stream.begin(cutoff(num_waits * timeout_s), silence_s=max(timeout_s, MIN_REPLY_S))


def _version(version: int | None) -> Operation:
    return Operation({"op": "version", "version": version}, [], (0,))


def _keys(body: framing.Bytes) -> Keys:
    keys: Keys = np.frombuffer(body.tobytes(), np.int64)
    return keys


def _stored(part: Part) -> int:
    return 0 if part.keys is None else len(part.keys)
