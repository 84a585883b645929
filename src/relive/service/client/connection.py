"""A client's connection to one table of a server: opens and reopens streams, keeps deadlines, makes the handshake."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from operator import methodcaller
from typing import Any, NamedTuple, final

import pyarrow.flight as flight

from relive._core import BatchMemory
from relive.core.ending import at_end
from relive.errors import BadMessage, Draining, ReliveError, ServiceUnavailable, TableClosed
from relive.service.client.deadlines import LATE_S
from relive.service.client.exchange import Exchange, StreamBroken, Watch, unopened
from relive.service.client.handshakes import handshake_problem, short_reason
from relive.service.client.link import Link
from relive.service.wire import framing
from relive.service.wire.access import OPEN, Access
from relive.service.wire.address import parse_table
from relive.service.wire.sockets import new_mark
from relive.service.wire.transport import all_of, check_process, keep_for_ever, leave_to_parent

__all__ = ["Connection", "close_connections"]

_LEAVE_S = 1.0
_PAUSES_S = (0.02, 0.5)  # the first and the longest between two tries to reach a server
_LARGE = 1 << 16  # bytes of a question for which a connection may have no room
_LAST_TRY_S = 0.05  # the last try begins so long before the deadline
_SHORT_WAITS = frozenset({"call", "shard"})  # kinds of streams on which silence_s and retries_s count

_kept: list[list[Connection]] = []  # a list for each fork, from before it until after it; in a child for ever
_open: weakref.WeakSet[Connection] = weakref.WeakSet()  # for forks, and for the end of the interpreter as in server.py


class _Opening(NamedTuple):
    """A stream whose hello is due, and the time.monotonic() at which it was asked for."""

    stream: Exchange
    started: float


def _pause(before_s: float, ends: float) -> float:
    """Seconds until the next try to reach a server: twice the pause before. 0 if no try fits before `ends`."""
    left = ends - time.monotonic() - _LAST_TRY_S
    return min(max(2 * before_s, _PAUSES_S[0]), _PAUSES_S[1], left) if left > 0 else 0.0


@final
class Connection:
    """Streams to one table, opened when threads need them. Any number of threads; not usable in a forked child.

    If a stream breaks, the connection drops that stream and all idle streams. The next call connects again and waits
    for the server until the call's deadline. The server must then serve the same table, else FormatMismatch.

    If the connection is collected, its watch ends the streams.

    Args:
        address: Address of the table.
        spec_json: The expected spec; None: any.
        silence_s: How long a call waits without a byte from the server, in seconds; inf: until its deadline alone.
        access: The certificates and the token of this client.

    Attributes:
        retries_s: How long a call tries to open a stream if the server is not there, in seconds; inf, the default:
            until its deadline.

    Raises:
        ForkedHandle: This process is a forked child of a process that used the service.
        InvalidConfig: The access does not fit the address.
    """

    def __init__(self, address: str, spec_json: str | None, silence_s: float = math.inf, access: Access = OPEN) -> None:
        check_process("this process")
        self.address = address
        location, self._table = parse_table(address)
        access.check(location)
        self.access = access
        self._spec_json = spec_json
        self._identity: dict[str, str | None] = {"uuid": None, "layout_hash": None}
        self._idle: dict[str, deque[Exchange]] = {"call": deque(), "parameters": deque()}
        self._opening: dict[str, _Opening] = {}  # by kind: streams whose hello no call has received yet
        self._all: set[Exchange] = set()
        self._users: weakref.WeakSet[Any] = weakref.WeakSet()
        self._changed = threading.Lock()
        self._silence_s = silence_s
        self.retries_s = math.inf
        self.link: Link = Link(location, access, new_mark({one.link.mark for one in all_of(_open)}))
        self._watch = Watch(self, self.link.heard_s, self.link.moved_s, partial(_cut, weakref.ref(self)))
        self._memory = BatchMemory()
        self._cut_at = -math.inf  # when this handle cut its connection last
        self.closed = False
        self.is_closing = False  # whether the handle closes its writers, and then this connection
        self.is_foreign = False  # whether this process is a forked child: the streams then belong to the parent
        _open.add(self)

    @property
    def port(self) -> str:
        """Port of the server."""
        return self.link.location.rpartition(":")[2]

    def check_process(self, what: str) -> None:
        """Raises ForkedHandle in a forked child."""
        if self.is_foreign:
            check_process(what)

    def check_time(self, ends: float, num_bytes: int = 0) -> None:
        """Raises ServiceUnavailable if a question of so many bytes may not be sent until `ends`.

        The time of its call has passed, but for LATE_S, and the connection is full, or the question is large. The end
        of a write would take longer, and cut the connection.
        """
        if self._is_too_late(ends, num_bytes):
            raise ServiceUnavailable(self.address, 0.0, "no answer in time", True)

    def _is_too_late(self, ends: float, num_bytes: int = 0) -> bool:
        return ends <= time.monotonic() + LATE_S and (num_bytes > _LARGE or self.link.is_full())

    def give(self, stream: Exchange, kind: str = "call") -> None:
        """Makes a stream available to the next call, unless the watch cancelled the stream while the answer came."""
        if stream.expired:
            self.drop(stream)
        else:
            self._idle[kind].append(stream)

    def take(self, ends: float, kind: str = "call") -> Exchange:
        """Returns an idle stream of this kind, or a new stream."""
        self.check_process("a remote table")
        try:
            return self._idle[kind].pop()
        except IndexError:
            return self.open(kind, {}, ends)[0]

    def quiet_s(self, since: float) -> float:
        """Returns for how long the server has been silent, at most since a time.monotonic()."""
        return self._watch.quiet_s(since)

    # ---- streams ---------------------------------------------------------------------------------------------------

    def open(
        self,
        kind: str,
        fields: dict[str, Any],
        ends: float,
        wanted: Callable[[], bool] = lambda: True,
        hello_s: float = math.inf,
        into: list[Exchange] | None = None,
    ) -> tuple[Exchange, dict[str, Any]]:
        """Opens a stream, and returns the stream and the server's hello.

        If the server is not there, or sends no hello within hello_s seconds, the method retries until `ends`, as long
        as wanted() is true.

        into: An empty list that gets the stream. Ctrl-C may come after the end of this method and before the caller has
        noted the stream: the caller then drops the stream in the list. If the method raises, the list is empty.
        """
        opened: list[Exchange] = [] if into is None else into
        try:
            return self._open(kind, fields, ends, wanted, hello_s, opened)
        except BaseException:
            self.drop_all(opened)
            raise

    def _open(
        self,
        kind: str,
        fields: dict[str, Any],
        ends: float,
        wanted: Callable[[], bool],
        hello_s: float,
        opened: list[Exchange],
    ) -> tuple[Exchange, dict[str, Any]]:
        opening = self._prepared(kind, opened)
        start = time.monotonic() if opening is None else opening.started
        tries_until = min(ends, start + (self.retries_s if kind in _SHORT_WAITS else math.inf))
        pause_s, refusal = _PAUSES_S[0] / 2, None
        while True:
            if self.closed:
                raise TableClosed()
            if opening is None and (time.monotonic() >= tries_until or not wanted()):
                try:
                    waited_s = time.monotonic() - start
                    is_there = waited_s < LATE_S  # a question at the end of its call
                    raise refusal or ServiceUnavailable(self.address, waited_s, "no answer in time", is_there)
                finally:
                    del refusal  # as below
            self.check_process("a remote table")
            is_there = False
            try:
                if opening is None:
                    self.drop_all(opened)
                one, opening = opening or self._begin_open(kind, fields, ends, opened), None
                try:
                    return one.stream, self._greeted(one, min(ends, time.monotonic() + hello_s))
                finally:
                    is_there = one.stream.was_heard
                    del one  # an error that is kept keeps this frame
            except ReliveError as problem:  # before StreamBroken: some errors of the library are OSErrors
                if not isinstance(problem, Draining):
                    raise  # the server's answer
                self.link.forget()
                pause_s = _pause(pause_s, tries_until)
                if not pause_s or not wanted():
                    raise
                refusal = problem.with_traceback(None)
            except StreamBroken as problem:
                refusal = None
                self.link.forget()
                _raise_handshake_problem(self.address, problem)
                pause_s = _pause(pause_s, tries_until)
                if not pause_s or not wanted():
                    reason = "no answer in time" if is_there else short_reason(problem, self.link.location)
                    raise ServiceUnavailable(self.address, time.monotonic() - start, reason, is_there) from None
            time.sleep(pause_s)

    def prepare(self, kind: str, ends: float) -> None:
        """Begins to open a stream of this kind if none is idle. Waits for no hello: a later call does.

        The beginning waits while the transport is full, until `ends`.
        """
        if self._idle.get(kind) or kind in self._opening or self.closed or self.is_foreign or self._is_too_late(ends):
            return
        begun: list[Exchange] = []
        try:
            with contextlib.suppress(*StreamBroken):
                opening = self._begin_open(kind, {}, ends, begun)
                if self._opening.setdefault(kind, opening) is opening:  # else another thread was first
                    begun.clear()
        finally:
            self.drop_all(begun)

    def _prepared(self, kind: str, opened: list[Exchange]) -> _Opening | None:
        """Returns the stream that prepare() began, if it did, and adds it to `opened`."""
        begun: list[_Opening] = []
        try:
            with contextlib.suppress(KeyError):
                begun.extend(map(self._opening.pop, (kind,)))  # no signal's handler runs between the pop and its note
            opened.extend(one.stream for one in begun)
        except BaseException:
            self.drop_all([one.stream for one in begun])
            raise
        return begun[0] if begun else None

    def _begin_open(self, kind: str, fields: dict[str, Any], until: float, opened: list[Exchange]) -> _Opening:
        """Begins a stream and adds it to `opened`, which is empty. Waits while the transport is full, until `until`."""
        quiet_s, access = self._silence_s if kind in _SHORT_WAITS else math.inf, self.access
        request = {
            "relive": framing.VERSION,
            "byte_order": sys.byteorder,
            "table": self._table,
            "kind": kind,
            "spec": self._spec_json,
            **self._identity,
            **fields,
            **({} if quiet_s == math.inf else {"pulses": True}),
        }
        started, ends = time.monotonic(), list[tuple[Any, Any]]()  # ends: the writer and the reader
        descriptor = flight.FlightDescriptor.for_command(json.dumps(request).encode())
        clients = [self.link.client()]
        with self._changed:
            self._all.add(begun := unopened(self._watch))
        try:
            # No signal's handler runs between the beginning of the stream and its note.
            begun.begin(until)
            begun.open(
                ends.extend,
                map(methodcaller("do_exchange", descriptor, *access.call_options(self.link.location)), clients),
            )
            leave_to_parent(*ends[0])
            stream = Exchange(*ends[0], self._watch, quiet_s)
            opened.append(stream)
        except BaseException:
            for writer, reader in ends:
                reader.cancel()
                with contextlib.suppress(*StreamBroken):
                    writer.close()
            raise
        finally:
            clients.clear()  # if an error is kept, its traceback keeps frames: the client would go on connecting
            ends.clear()
            self.drop(begun)
        with self._changed:
            if not self.closed:  # close() looks for streams after it has set `closed`
                self._all.add(stream)
        if self.closed:
            raise TableClosed()
        return _Opening(stream, started)

    def _greeted(self, opening: _Opening, ends: float) -> dict[str, Any]:
        stream = opening.stream
        try:
            stream.begin(ends, opening.started)
            hello, _ = stream.receive()
            stream.end()
            if "error" in hello:
                raise framing.error_from(hello["error"])
            self._identity = {name: framing.field(hello, name, str) for name in self._identity}
            self.link.keep_alive()
        except BaseException:
            self.drop(stream)
            del stream, opening  # as in open()
            raise
        return hello

    def broken(self, stream: Exchange, problem: BaseException, start: float) -> ReliveError:
        """Returns the error of a broken stream.

        Drops that stream. Also drops every idle stream, because most likely all are broken, unless bytes came from the
        server until the deadline of the call.
        """
        expired = stream.expired
        self.drop(stream)
        if not expired:
            self.link.forget()
        if not stream.was_heard:
            self._drop_idle()
        if self.closed:
            return TableClosed()
        if isinstance(problem, BadMessage):
            return problem
        reason = "no answer in time" if expired else short_reason(problem, self.link.location, is_greeted=True)
        if stream.was_silent:
            reason = f"no byte came for {stream.silence_s:g} s"
        is_there = stream.was_heard or (not expired and start <= self._cut_at)
        return ServiceUnavailable(self.address, time.monotonic() - start, reason, is_there)

    def drop(self, stream: Exchange) -> None:
        """Ends a stream at once. In a forked child it stays as it is: the parent uses the same socket."""
        if self.is_foreign:
            return
        stream.cancel()
        with self._changed:  # after the cancel: close() ends the watch once no cancelled stream that it finds is in use
            self._all.discard(stream)

    def drop_all(self, streams: list[Exchange]) -> None:
        """Ends these streams at once, and empties the list."""
        while streams:
            self.drop(streams[-1])
            del streams[-1]

    def finish(self, stream: Exchange, ends: float) -> bool:
        """Ends a stream, and waits until the server has given back the stream's draws and lanes.

        False if not done by `ends`.
        """
        try:
            if self.is_foreign or time.monotonic() >= ends:  # another stream has waited for the server until then
                self.drop(stream)
                return False
            with self._changed:
                self._all.discard(stream)
            return stream.finish(ends)
        except BaseException:  # of a signal's handler: close() finds the stream no more
            self.drop(stream)
            raise

    def _drop_idle(self) -> None:
        while self._opening:
            with contextlib.suppress(KeyError):
                self.drop(self._opening.popitem()[1].stream)
        for idle in self._idle.values():
            while idle:
                with contextlib.suppress(IndexError):
                    self.drop(idle.pop())

    def cut(self) -> None:
        """Ends the TCP connections of this handle over which bytes wait to be sent, with all their streams."""
        if self.link.cut():
            self._cut_at = time.monotonic()
            self._drop_idle()

    def tell_end(self, user: Any) -> None:
        """Calls user.note_closed() when the connection closes, if the user still exists then."""
        with self._changed:
            self._users.add(user)

    def streams(self) -> list[Exchange]:
        """The streams that are open."""
        with self._changed:
            return list(self._all)

    def disown(self) -> None:
        """Leaves everything to the parent, in a forked child."""
        self.is_foreign = True

    def close(self) -> None:
        """Ends every stream at once. A call that waits on a stream raises TableClosed."""
        self.closed = True
        _open.discard(self)
        if self.is_foreign:
            return
        self._memory.close()
        self._drop_idle()
        with self._changed:
            streams, self._all = tuple(self._all), set()
            users = list(self._users)
        self.link.forget()
        for stream in streams:
            stream.interrupt()
        self._watch.stop()  # after these lines no write begins
        for user in users:
            user.note_closed()


def _raise_handshake_problem(address: str, problem: BaseException) -> None:
    """Raises HandshakeFailed for an error of gRPC about a handshake that would fail again."""
    failed = handshake_problem(address, str(problem))
    if failed is not None:
        try:
            raise failed from None
        finally:
            del failed  # else this frame and the error would refer to each other until a collection


def _cut(connection: weakref.ref[Connection]) -> None:
    found = connection()
    if found is not None:
        found.cut()


def _keep() -> None:
    """Before a fork. In the child Python drops threads that are about to run, and maybe the last user of a handle."""
    _kept.append(all_of(_open))


def _disown() -> None:
    keep_for_ever(*_kept)
    for connection in {one for connections in _kept for one in connections}:
        connection.disown()


os.register_at_fork(before=_keep, after_in_parent=_kept.pop, after_in_child=_disown)


@at_end
def close_connections(port: str | None = None) -> None:
    """Closes the connections to servers at this port, or all connections; called at the end of the process.

    At the end it waits until the threads of the program have left Arrow, at most a second: see start_thread().
    """
    streams: list[Exchange] = []
    for connection in list(_open):
        if port is None or connection.port == port:
            streams += connection.streams()
            connection.close()
    ends = time.monotonic() + _LEAVE_S
    while port is None and any(stream.is_in_use for stream in streams) and time.monotonic() < ends:
        time.sleep(0.002)
