"""The client's end of one stream, and the watch that cancels streams: at their deadline, silence, or Ctrl-C."""

from __future__ import annotations

import contextlib
import math
import queue
import signal
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from threading import get_ident
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

from relive._core import heard, interrupted, new_buffer
from relive.core.ending import start_thread
from relive.errors import BadMessage
from relive.service.client.deadlines import LATE_S
from relive.service.wire import framing
from relive.service.wire.framing import Bytes

__all__ = ["Exchange", "StreamBroken", "Watch", "unopened"]

StreamBroken = (flight.FlightError, pa.ArrowException, OSError, StopIteration)  # errors of a dead stream

_LOOK_EVERY_S = 0.05
_ROUNDS_BEFORE_SLEEP = 40
_PAUSE_S = 0.5  # between two looks of the watch: this process was stopped, or had no processor
_FOREVER_S = 1e9  # 30 years
_LEAVE_S = 0.5  # from the cancel of a stream until its connection ends, if a thread is still in a write
_MOST = 0.9  # of a silence: the shortest wait for an answer is as long, and the clock is read twice
_CLOCK_S = 0.05  # the system tells the time of a byte less exactly than this


@final
class Watch:
    """A thread that cancels streams at their deadlines, and earlier if their server is silent for too long.

    A server is silent while no byte comes from it, over any stream and for any thread, and while it takes none of the
    bytes that wait to be sent to it. If this process stood still, the silence counts from its next look: what came
    meanwhile is not read yet. The object owns the thread, which sleeps while no stream waits.

    A wait of the main thread in gRPC hears no signals. The thread therefore cancels the stream of such a wait when
    Ctrl-C comes, and the wait raises KeyboardInterrupt. A handler of the program is not run earlier: it may return, and
    the call would have lost its stream.

    gRPC ends a wait on a cancelled stream at once, but a write, and the opening of a stream, only when the bytes that
    gRPC has taken, up to 1.2 MB, are in the buffer of TCP. If a thread is still in a write 0.5 s after the cancel, the
    connection is therefore cut.

    Args:
        owner: If it is collected, the thread ends every stream, which then has no other user, and itself.
        heard_s: Tells how long ago the last byte came from the server, in seconds; None: not known.
        moved_s: Tells how long ago the server took a part of the bytes that wait to be sent, in seconds; None: none
            wait, or not known.
        cut: Ends the connection, with all its streams, if bytes wait to be sent over it. None of the three raises.
    """

    def __init__(
        self,
        owner: object,
        heard_s: Callable[[], float | None] = lambda: None,
        moved_s: Callable[[], float | None] = lambda: None,
        cut: Callable[[], object] = lambda: None,
    ) -> None:
        self._heard_s, self._moved_s, self._cut = heard_s, moved_s, cut
        self._streams: set[Exchange] = set()  # changed by one step at a time
        self._changed: queue.SimpleQueue[object] = queue.SimpleQueue()  # a collection may put: put() takes no lock
        self._owner = weakref.ref(owner, self._changed.put)  # no Python, where a signal's handler could raise
        self._starting = threading.Lock()
        self._stopped = False
        self._thread: threading.Thread | None = None
        self.heard_at = 0.0  # when a stream received a message last
        self._looked_at = math.inf  # inf: the thread sleeps
        self._went_on_at = 0.0  # when this process went on last
        self._moved_at = 0.0  # when the server took bytes last, of more that wait
        self.main_waits: Exchange | None = None  # the stream on which the main thread waits; set by that thread
        self.sleeps = True

    def add(self, stream: Exchange) -> None:
        """Watches a stream from now on."""
        self._streams.add(stream)

    def remove(self, stream: Exchange) -> None:
        """Stops watching a stream."""
        self._streams.discard(stream)

    def wake(self) -> None:
        """Wakes the thread: a stream has a deadline, or a thread to wait for. Streams call it while `sleeps` is set."""
        if self._thread is None:
            with self._starting:  # `sleeps` is still set: if Ctrl-C interrupts the start, the next stream starts it
                if self._thread is None and not self._stopped:
                    self._thread = start_thread(self._look, "relive-deadlines", never_writes=True)
        self.sleeps = False
        self._changed.put(None)

    def stop(self) -> None:
        """Ends the thread once no cancelled stream is in a write. The streams stay with their users. Takes no lock."""
        self._stopped = True
        self._changed.put(None)

    def _look(self) -> None:
        quiet = 0
        while self._is_needed:
            busy = self._expire(time.monotonic()) | self._end_interrupted()
            quiet = 0 if busy else quiet + 1
            # If a stream sets its deadline between this look and the sleep, one of two things happens. Either the
            # stream finds `sleeps` set and wakes this thread, or the look after the setting of `sleeps` sees the
            # deadline.
            self.sleeps = quiet > _ROUNDS_BEFORE_SLEEP
            sleeps_now = quiet > _ROUNDS_BEFORE_SLEEP + 1
            if sleeps_now:
                self._looked_at = math.inf
            with contextlib.suppress(queue.Empty):
                self._changed.get(timeout=None if sleeps_now else _LOOK_EVERY_S)
        if not self._stopped:
            for stream in tuple(self._streams):
                stream.cancel()
        self._changed.put(None)  # for another thread, if Ctrl-C came just after the start of this one

    @property
    def _is_needed(self) -> bool:
        return any(one.is_leaving for one in tuple(self._streams)) if self._stopped else self._owner() is not None

    def _expire(self, now: float) -> bool:
        """Returns whether a stream is waited for. On return the thread refers to no stream: it owns none."""
        busy = is_stuck = False
        if now - self._looked_at > _PAUSE_S:
            self._went_on_at = now
        self._looked_at = now
        for stream in tuple(self._streams):  # a collection in this loop may drop a stream
            busy |= stream.deadline != math.inf or stream.is_leaving
            is_stuck |= stream.is_stuck(now)
            if now >= stream.deadline:
                self._ask_sockets(now)
                stream.expire(now)
            elif now >= stream.silent_from(self._silent_since):
                heard_at = self.heard_at if self._ask_sockets(now) else now
                is_silent = now >= stream.silent_from(self._silent_since)
                if is_silent and stream.is_read(now, heard_at):
                    stream.expire(now, is_silent=True)
        if is_stuck:
            self._cut()
        return busy

    @property
    def _silent_since(self) -> float:
        """When the server was last known not to be silent."""
        return max(self.heard_at, self._went_on_at, self._moved_at)

    def quiet_s(self, since: float) -> float:
        """Returns for how long the server has been silent, at most since a time.monotonic(). Any thread may call it."""
        now = time.monotonic()
        self._ask_sockets(now)
        return now - max(since, self._silent_since)

    def _end_interrupted(self) -> bool:
        """Cancels the stream on which the main thread waits if Ctrl-C came. Returns whether the main thread waits."""
        stream = self.main_waits
        if stream is not None and interrupted() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            stream.expired = True
            stream.interrupt()
        return stream is not None

    def _ask_sockets(self, now: float) -> bool:
        """Notes when the last byte came, and when the server took bytes. Returns whether the first time is known."""
        heard_s, moved_s = self._heard_s(), self._moved_s()
        if heard_s is not None:
            self.heard_at = max(self.heard_at, now - heard_s)
        if moved_s is not None:
            self._moved_at = max(self._moved_at, now - moved_s)
        return heard_s is not None


@final
class Exchange:
    """Sends and receives the messages of one stream.

    One thread may send while another thread receives. At most one thread sends at a time, and at most one receives. A
    deadline that begin() sets stays until end(). After the deadline, or after silence_s seconds in which the server was
    silent, the watch cancels the stream, and the waiting thread gets an error of StreamBroken. After any error of the
    transport the stream is not usable.

    Ctrl-C ends a wait of the main thread within 0.1 s, a write within a second.
    """

    def __init__(self, writer: Any, reader: Any, watch: Watch, silence_s: float = math.inf) -> None:
        self._writer = writer
        self._reader = reader
        self._watch = watch
        self._changed = threading.Lock()
        self._main = threading.main_thread().ident
        self._inside: list[int] = []  # the threads that wait in Arrow; changed by one step at a time
        self._open = [None]  # empty once the writer is closed, or about to be
        self._is_over = False
        self._is_writing = False
        self._cancelled_at = math.inf
        self.silence_s = silence_s
        self._quiet_from = self._begun = math.inf
        self.deadline = math.inf
        self.expired = False
        self.was_silent = False  # expired, and not because of its deadline
        self.was_heard = False  # expired at its deadline, and bytes came while it waited, or it waited too shortly
        watch.add(self)

    def open(self, begin: Callable[..., None], *arguments: Any) -> None:
        """Calls begin(), which opens a stream, as a write: it blocks while the transport is full. See Watch."""
        try:
            self._write(begin, *arguments)
        except StreamBroken:
            if self.expired:
                raise flight.FlightTimedOutError("no answer in time") from None
            raise

    def begin(self, deadline: float, since: float | None = None, silence_s: float | None = None) -> None:
        """Sets the deadline, a time.monotonic(). The watch cancels the stream then, unless end() came before.

        Args:
            deadline: The time.
            since: When the answer was asked for, if that was earlier: silence counts from then.
            silence_s: The longest silence from now on, in seconds; None: as before.
        """
        now = time.monotonic()
        with self._changed:
            self._quiet_from, self._begun = now if since is None else since, now
            if silence_s is not None:
                self.silence_s = silence_s
            # Silence counts while there is a deadline.
            self.deadline = min(deadline, now + _FOREVER_S) if self.silence_s < math.inf else deadline
        if self._watch.sleeps:
            self._watch.wake()

    def end(self) -> None:
        """Removes the deadline: the answer has arrived."""
        with self._changed:
            self.deadline = math.inf

    def silent_from(self, heard_at: float) -> float:
        """Returns when the server counts as silent, if the last byte came at heard_at; inf while nothing is awaited."""
        if self.deadline == math.inf:
            return math.inf
        return max(self._quiet_from, heard_at) + self.silence_s

    def is_read(self, now: float, heard_at: float) -> bool:
        """Whether this stream has received what its server sent, if the last byte came at heard_at.

        An answer may have come while the thread waited for another server. It is received within LATE_S. If no byte
        came since the question, there is none.
        """
        return now >= self._begun + LATE_S or heard_at < self._quiet_from - _CLOCK_S

    def expire(self, now: float, is_silent: bool = False) -> None:
        """Cancels the stream if its deadline has passed, or if its server is silent; called by the watch."""
        with self._changed:
            if now >= self.deadline or (is_silent and self.deadline != math.inf):
                self.expired, self.was_silent = True, now < self.deadline
                heard = self._watch.heard_at > self._quiet_from + _CLOCK_S
                self.was_heard = not self.was_silent and (heard or self._is_early(now))
                self.deadline = math.inf
                self._cancelled_at = min(self._cancelled_at, now)
                self._reader.cancel()

    def _is_early(self, now: float) -> bool:
        """Whether the server had less time than that of a silence, as for a question at the end of its call."""
        return self.silence_s < math.inf and now < self._quiet_from + _MOST * self.silence_s

    @property
    def is_leaving(self) -> bool:
        """Whether a thread is still in a write of the stream, which was cancelled."""
        return self._is_writing and self._cancelled_at != math.inf

    def is_stuck(self, now: float) -> bool:
        """Whether that thread does not leave: it is asked every 0.5 s from the cancel on."""
        if not self.is_leaving or now < self._cancelled_at + _LEAVE_S:
            return False
        self._cancelled_at = now
        return True

    def send(self, message: bytes) -> None:
        """Sends one message; blocks while the transport is full."""
        self._write(self._writer.write_metadata, message)

    def receive(self) -> tuple[dict[str, Any], Bytes]:
        """Returns the header and the body of the next message; blocks until the message comes. Raises StreamBroken."""
        while True:
            chunk = self._wait(self._reader.read_chunk)
            self._watch.heard_at = time.monotonic()
            if chunk.app_metadata is None:
                raise BadMessage("answer", "a message", "a record batch")
            if chunk.data is not None or not framing.is_pulse(chunk.app_metadata):
                break
        header, body = framing.decode(chunk.app_metadata)
        return header, body if chunk.data is None else _bytes_of(chunk.data)

    def receive_block(self, header: Mapping[str, Any], body: Bytes, num_bytes: int) -> Bytes:
        """Receives the body of an answer, of num_bytes, into a pooled buffer.

        `body` is the part that came with the header.

        Raises BadMessage, after which the stream is of no further use, and the error that the server reports in
        mid-answer.
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
            chunk = self._wait(self._reader.read_chunk)
            self._watch.heard_at = time.monotonic()
            if chunk.app_metadata is not None:
                raise BadMessage("body of an answer", f"{num_bytes} bytes", "a message")
            body = _bytes_of(chunk.data)

    def _write(self, write: Callable[..., None], *arguments: Any) -> None:
        try:
            self._is_writing = True
            self._wait(write, *arguments)
        finally:
            self._is_writing = False

    def _wait(self, wait: Callable[..., Any], *arguments: Any) -> Any:
        thread = get_ident()
        self._inside.append(thread)
        try:
            if self._is_over:  # after the mark above: the end is marked before anyone looks for threads
                raise flight.FlightCancelledError("the stream has ended")
            if thread != self._main:
                return wait(*arguments)
            watch = self._watch
            outer = watch.main_waits  # a signal's handler may call in the middle of a wait
            try:
                watch.main_waits = self
                if watch.sleeps:
                    watch.wake()
                return heard(wait, *arguments)
            finally:
                watch.main_waits = outer
        finally:
            if self._is_over and len(self._inside) == 1:
                self._dispose()
            self._inside.remove(thread)
            if self._is_over and not self._inside:  # the end, or another thread, came between these two lines
                self._dispose()

    def half_close(self, deadline: float) -> None:
        """Says that nothing more will be sent. Another thread reads the stream to its end, which no pulse announces."""
        self.begin(deadline, silence_s=math.inf)
        with contextlib.suppress(*StreamBroken):
            self._write(self._writer.done_writing)

    def finish(self, deadline: float) -> bool:
        """Says that nothing more will be sent, and waits until the server has ended the stream.

        False if the server did not.
        """
        self.begin(deadline)
        try:
            self._write(self._writer.done_writing)
            while True:
                self._wait(self._reader.read_chunk)
        except StopIteration:
            return True
        except StreamBroken:
            return False
        except BaseException:
            self._reader.cancel()  # else the end would wait for the server without a deadline
            raise
        finally:
            self.end()
            self._dispose()

    def interrupt(self) -> None:
        """Cancels the stream from another thread.

        The last thread that leaves a wait on the stream ends it, with StreamBroken. If none waits, it ends here.
        """
        self._is_over = True  # before the look for threads
        self._end(bool(self._inside))

    def cancel(self) -> None:
        """Ends the stream at once. If another thread waits on the stream, that thread ends it, as after interrupt()."""
        self._is_over = True  # before the look for threads
        thread = get_ident()
        self._end(any(one != thread for one in tuple(self._inside)))

    def _end(self, is_in_use: bool) -> None:
        if self._open:
            self._cancelled_at = min(self._cancelled_at, time.monotonic())
            self._reader.cancel()
        if not is_in_use:
            self._dispose()
        elif self._watch.sleeps:
            self._watch.wake()

    @property
    def is_in_use(self) -> bool:
        """Whether a thread waits on the stream, or ends it."""
        return bool(self._inside)

    def _dispose(self) -> None:
        self._watch.remove(self)
        with contextlib.suppress(IndexError, *StreamBroken):
            self._open.pop()  # one thread closes it
            self._writer.close()  # Arrow prints a warning on stderr for a writer that was never closed


class _NoStream:
    """Both ends of a stream that is not there yet."""

    @staticmethod
    def cancel() -> None: ...

    @staticmethod
    def close() -> None: ...


def unopened(watch: Watch) -> Exchange:
    """Returns a stream that gRPC has not opened yet: its open() opens another one. A cancel only marks it."""
    return Exchange(_NoStream, _NoStream, watch)


def _bytes_of(chunk: Any) -> Bytes:
    """Returns the bytes of a record batch of one column, as a view."""
    return np.frombuffer(chunk.column(0).buffers()[1], np.uint8)[: chunk.num_rows]
