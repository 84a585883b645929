"""Lanes on the server: the core of a writer in which every call is answered before it returns."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, final

import numpy as np
import numpy.typing as npt

from relive.core.turns import Turn, held
from relive.errors import (
    BadMessage,
    DeadlineExceeded,
    ReliveError,
    ServiceUnavailable,
    WriterClosed,
)
from relive.service.client.collected import end_when_collected
from relive.service.client.connection import Connection
from relive.service.client.deadlines import cutoff, server_wait
from relive.service.client.exchange import Exchange, StreamBroken
from relive.service.wire import framing
from relive.service.wire.encoding import Operation, RowEncoder

__all__ = ["LANES_S", "SyncWriterCore", "RemoteWriterCore", "received_keys"]

Keys = npt.NDArray[np.int64]
Lanes = npt.NDArray[np.int32]

CLOSE_S = 10.0
LANES_S = 1.0  # how long other calls of the handle wait for the new lanes of a writer, once for each lost stream


class RemoteWriterCore(ABC):
    """Encodes a Writer's calls to its core as operations to be sent."""

    def __init__(self, connection: Connection, encoder: RowEncoder, timeout_s: float) -> None:
        self._connection = connection
        self._encoder = encoder
        self.timeout_s = timeout_s
        self._closed = False
        self._lanes = _Lanes(connection)
        end_when_collected(self, self._lanes.end)  # before a stream is opened: Ctrl-C may come at any moment

    @abstractmethod
    def append(self, columns: dict[str, Any], lanes: Lanes | None, priority: Any, timeout_s: float) -> Any:
        """Appends one step of each lane."""

    def append_alike(self, columns: dict[str, Any], timeout_s: float) -> Any:
        """Returns None: names are checked at every call, which costs little compared with a message."""
        return None

    @abstractmethod
    def extend(self, columns: dict[str, Any], lanes: Lanes | None, priority: Any, timeout_s: float) -> Any:
        """Appends a block of steps."""

    @abstractmethod
    def end_episode(self, columns: dict[str, Any], terminated: bool, lanes: Lanes | None, timeout_s: float) -> None:
        """Ends an episode."""

    @abstractmethod
    def abandon(self, lanes: Lanes | None, timeout_s: float) -> None:
        """Drops the open episodes of lanes."""

    @abstractmethod
    def set_policy_version(self, version: int | None) -> None:
        """Sets the version of the rows from now on."""

    def close(self) -> None:
        """Cuts the lanes.

        Returns when the lanes are cut, or when the server is gone (the server then cuts the lanes itself).
        """
        self.close_by(cutoff(min(self.timeout_s, CLOSE_S)))

    @abstractmethod
    def close_by(self, ends: float) -> None:
        """Cuts the lanes. Waits for the server until `ends`, a time.monotonic()."""

    @abstractmethod
    def unseen(self, ends: float) -> tuple[int, int] | None:
        """Returns (session, message) that the server must apply before a later call; None if nothing is unanswered.

        Waits until `ends`, a time.monotonic(), for lanes that are being opened.
        """

    @property
    def closed(self) -> bool:
        """Whether close() was called, on this writer or on the table."""
        return self._closed or self._connection.closed

    @property
    def num_lanes(self) -> int:
        """Number of lanes, whether or not arrays have an axis for them."""
        return self._encoder.layout.width

    def _open(
        self, ends: float, into: list[Exchange], wanted: Callable[[], bool] = lambda: True, **fields: Any
    ) -> tuple[Exchange, int]:
        """Opens a stream, as Connection.open does. Returns the stream and the number of its session."""
        asked = {"num_lanes": self._encoder.layout.num_lanes, **fields}
        try:
            stream, hello = self._connection.open("write", asked, ends, wanted, math.inf, into)
            self._encoder.max_keys = framing.whole(hello, "max_keys", 1, 1 << 62)
            return stream, framing.field(hello, "session", int)
        except BaseException:
            self._connection.drop_all(into)
            raise

    def _check_open(self) -> None:
        self._connection.check_process("a writer")
        if self.closed:
            raise WriterClosed()


def received_keys(stream: Exchange, told: dict[str, Any], body: framing.Bytes, most: int) -> framing.Bytes:
    """Returns the bytes of the keys of an answer whose first part came with its header. `most`: the most keys.

    Raises BadMessage, after which the stream is of no further use, and StreamBroken.
    """
    if "body_bytes" not in told:
        return body
    return stream.receive_block(told, body, framing.whole(told, "body_bytes", 0, 8 * most))


def keys_of(operation: Operation, body: framing.Bytes) -> Keys:
    """Returns the keys of one operation from the bytes of an answer, in the shape that the call returns."""
    if len(body) != 8 * operation.num_keys:
        raise BadMessage("keys of an answer", f"{operation.num_keys}", len(body) // 8)
    keys: Keys = np.frombuffer(body.tobytes(), np.int64).reshape(operation.keys_shape)
    return keys


def _error_of(operation: Operation, told: Any, body: framing.Bytes) -> ReliveError:
    """Returns the error of an operation, with the keys of the rows that were stored before the error."""
    if not len(body):
        return framing.error_from(told)
    keys: Keys = np.frombuffer(body.tobytes(), np.int64)
    return framing.error_from(told, stored=len(keys), num_rows=operation.num_keys, keys=keys)


@final
class _Lanes:
    """The stream of a writer. Apart from the writer, so that the stream can be ended after the writer was collected."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.streams: list[Exchange] = []  # at most one; Connection.open() changes the list

    def end(self) -> None:
        """Ends the stream. The server then cuts the lanes."""
        if self._connection.closed:
            self.streams.clear()
        else:
            self._connection.drop_all(self.streams)


@final
class SyncWriterCore(RemoteWriterCore):
    """Sends one message for each call. A writer that is collected cuts its lanes.

    A thread waits until the call of another thread has ended, at most until its deadline: gRPC aborts the process if
    two threads send on one stream.

    After ServiceUnavailable the call may or may not have been applied. It is not repeated.

    The next call then opens new lanes, because the old lanes were cut when their stream ended.
    """

    def __init__(self, connection: Connection, encoder: RowEncoder, timeout_s: float) -> None:
        super().__init__(connection, encoder, timeout_s)
        self._sequence = 0
        self._version: int | None = None
        self._told: tuple[Exchange, int | None] | None = None  # a stream, and the version that its server was told
        self._turn = Turn()
        self._open(cutoff(timeout_s), self._lanes.streams)

    @property
    def _stream(self) -> Exchange | None:
        return next(iter(self._lanes.streams), None)

    def append(self, columns: dict[str, Any], lanes: Lanes | None, priority: Any, timeout_s: float) -> Any:
        """Appends one step of each lane. Returns keys int64[M], or an int for a writer of one lane."""
        with self._alone(timeout_s) as left_s:
            keys = self._send(self._encoder.append(columns, lanes, priority), left_s)
        return keys if keys.ndim else int(keys)

    def extend(self, columns: dict[str, Any], lanes: Lanes | None, priority: Any, timeout_s: float) -> Keys:
        """Appends a block of steps. Returns keys int64[T, M], or [T] for a writer of one lane."""
        with self._alone(timeout_s) as left_s:
            return self._send(self._encoder.extend(columns, lanes, priority), left_s)

    def end_episode(self, columns: dict[str, Any], terminated: bool, lanes: Lanes | None, timeout_s: float) -> None:
        """Ends an episode."""
        with self._alone(timeout_s) as left_s:
            self._send(self._encoder.end(columns, terminated, lanes), left_s)

    def abandon(self, lanes: Lanes | None, timeout_s: float) -> None:
        """Drops the open episodes of lanes."""
        with self._alone(timeout_s) as left_s:
            self._send(self._encoder.abandon(lanes), left_s)

    def set_policy_version(self, version: int | None) -> None:
        """Sets the version of the rows from now on. The version is sent again when new lanes are opened."""
        with self._alone(self.timeout_s) as left_s:
            self._version = version
            self._send(None, left_s)

    def close(self) -> None:
        """Cuts the lanes. Raises DeadlineExceeded if the call of another thread does not end in time."""
        if self._closed or self._connection.is_foreign:
            self._closed = True
            return
        wait_s = min(self.timeout_s, CLOSE_S)
        ends = cutoff(wait_s)
        with held(self._turn, "to close this writer", wait_s):
            self._cut(ends)

    def close_by(self, ends: float) -> None:
        """Cuts the lanes. If another thread's call is under way, the call ends, and the server cuts the lanes."""
        if self._closed or self._connection.is_foreign:
            self._closed = True
            return
        try:
            with held(self._turn, "to close this writer", 0.0):
                self._cut(ends)
        except DeadlineExceeded:
            self._closed = True
            stream = self._stream
            if stream is not None:
                stream.interrupt()

    def _cut(self, ends: float) -> None:
        try:
            self._closed = True
            stream = self._stream
            if stream is not None and not self._connection.closed:
                self._connection.finish(stream, ends)
        finally:
            self._lanes.end()

    def unseen(self, ends: float) -> None:
        """Returns None: every call was answered."""
        return None

    @contextmanager
    def _alone(self, timeout_s: float) -> Iterator[float]:
        """Lets one call at a time pass, and yields the seconds that the call has left.

        Raises WriterClosed, ForkedHandle, DeadlineExceeded.
        """
        self._check_open()
        start = time.monotonic()
        with held(self._turn, "this writer", timeout_s):
            self._check_open()
            yield _left(timeout_s, start)

    def _send(self, operation: Operation | None, timeout_s: float) -> Keys:
        """Sends an operation; None: the policy version alone. Opens new lanes if the old ones were cut.

        The version is sent before the operation if the server of this stream was not told it. A signal's handler may
        have raised after the lanes were opened.
        """
        start, ends = time.monotonic(), cutoff(timeout_s)
        stream, keys = self._stream, np.zeros(0, np.int64)
        if stream is None:
            stream = self._open(ends, self._lanes.streams)[0]
            timeout_s = _left(timeout_s, start)  # the server may have been away: the limiter's wait is in the rest
        told = self._told
        if operation is None or self._version != (told[1] if told is not None and told[0] is stream else None):
            version = self._version
            keys = self._exchange(stream, _version(version), timeout_s, ends, start)
            self._told = stream, version
            timeout_s = _left(timeout_s, start)
        return keys if operation is None else self._exchange(stream, operation, timeout_s, ends, start)

    def _exchange(self, stream: Exchange, operation: Operation, timeout_s: float, ends: float, start: float) -> Keys:
        self._sequence += 1
        number = self._sequence
        # Each message is an epoch of its own: the server drops no later message after a refusal.
        header = {"seq": number, "epoch": number, "timeout_s": server_wait(timeout_s)}
        message = framing.encode({**header, "ops": [operation.header]}, *operation.arrays)
        try:
            stream.begin(ends)
            stream.send(message)
            told, body = stream.receive()
            body = received_keys(stream, told, body, operation.num_keys)
            stream.end()
        except StreamBroken as problem:
            error = self._connection.broken(stream, problem, start)
            self._lanes.end()
            if isinstance(error, ServiceUnavailable) and not self._closed:
                error.tell_rows(np.zeros(0, np.int64), operation.num_keys, operation.num_keys)
                raise error from None
            raise WriterClosed() from None
        except BaseException as problem:  # of a signal's handler
            self._lanes.end()
            with suppress(AttributeError):  # it may take no attributes
                problem.unanswered = operation.num_keys  # type: ignore[attr-defined]
            raise
        if "error" in told:
            error = _error_of(operation, told["error"], body)
            if isinstance(error, ServiceUnavailable):  # the server closes: the next call waits for the one that follows
                self._lanes.end()
            raise error
        return keys_of(operation, body)


def _left(timeout_s: float, start: float) -> float:
    """Returns the seconds that a call has left that began at `start`, a time.monotonic()."""
    return max(timeout_s - (time.monotonic() - start), 0.0)


def _version(version: int | None) -> Operation:
    return Operation({"op": "version", "version": version}, [], (0,))
