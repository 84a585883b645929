"""Counts the calls of a server from their first byte, and knows which of them wait for their client.

A call has a thread of the server as soon as its headers have come, also if nothing follows them. Flight tells the peer
of a call only after its first message. A call is therefore refused by its headers, and a connection is cut once the
call's handler has told its peer.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from typing import Any, NamedTuple, final

import pyarrow.flight as flight

from relive.service.server.guard import Guard
from relive.service.server.pipe import Pipe
from relive.service.wire.options import ServerOptions
from relive.service.wire.sockets import peer_in
from relive.service.wire.tokens import digest_of

__all__ = ["ANSWERED", "HEALTH", "MORE", "MOST_STRANGERS", "Call", "Calls"]

HEALTH = "relive.health"
ANSWERED = f"this server answers do_exchange and the action {HEALTH} alone"
MORE = 16  # calls beyond a limit of streams: their sessions say which limit it is
MOST_STRANGERS = 128  # calls of strangers, which hear that they are; and as many that ask for the server's health
_TOO_MANY = "this server has as many calls as it takes at once"


class _Group(NamedTuple):
    """Calls that have a limit together: those of a kind ("stream", "stranger", "health"), by one client ("": any)."""

    kind: str
    client: str = ""


@final
class Call(flight.ServerMiddleware):  # type: ignore[misc]
    """A call, from its headers to its end.

    Attributes:
        digest: Hash of its token; "" without one.
        group: The calls that it counts with.
    """

    def __init__(self, calls: Calls, digest: str, group: _Group) -> None:
        self._calls = calls
        self.digest = digest
        self.group = group
        self.pipe: Pipe | None = None
        self._peer: tuple[str, int] | None = None
        self._answered_at = math.inf

    def opened(self, peer: str, pipe: Pipe) -> None:
        """Notes the peer of a stream, and its end of the stream."""
        self._peer, self.pipe = peer_in(peer), pipe

    def answered(self, peer: str) -> None:
        """Notes that a call without a stream has its answer, which its client has yet to read."""
        self._peer, self._answered_at = peer_in(peer), time.monotonic()

    def peer_if_stalled(self, longest_s: float) -> tuple[str, int] | None:
        """Returns the peer if it does not read its answer, else None."""
        pipe = self.pipe
        if pipe is None:
            return self._peer if time.monotonic() - self._answered_at > longest_s else None
        return self._peer if pipe.is_stalled(longest_s) else None

    def call_completed(self, exception: BaseException | None) -> None:
        """Forgets the call. Flight calls it at each end of a call, also of one that sent no message."""
        self._calls.end(self)


@final
class Calls(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """The calls under way. Refuses a call if there are as many as its client, or all clients, may have.

    `_changed` protects the set and its counts.

    Args:
        options: The limits of streams.
        guard: Knows the tokens.
    """

    NAME = "calls"

    def __init__(self, options: ServerOptions, guard: Guard) -> None:
        self._options = options
        self._guard = guard
        self._changed = threading.Lock()
        self._open: set[Call] = set()
        self._counts: Counter[_Group] = Counter()

    def start_call(self, info: Any, headers: Any) -> Call:
        """Returns the call, which Flight keeps until its end.

        Raises FlightServerError if there are too many calls, and for a call that the server does not answer: Arrow
        would answer it with a traceback, which names files.
        """
        if info.method not in (flight.FlightMethod.DO_EXCHANGE, flight.FlightMethod.DO_ACTION):
            raise flight.FlightServerError(ANSWERED)
        digest = _digest_in(headers)
        group, most, most_streams = self._limits(info.method, digest)
        call = Call(self, digest, group)
        with self._changed:
            streams = sum(number for one, number in self._counts.items() if one.kind == "stream")
            is_taken = self._counts[group] < most and streams < most_streams
            if is_taken:
                self._open.add(call)
                self._counts[group] += 1
        if not is_taken:
            self._guard.count_refusal()
            raise flight.FlightServerError(_TOO_MANY)
        return call

    def _limits(self, method: Any, digest: str) -> tuple[_Group, float, float]:
        """Returns the group of a call, the most calls of the group, and the most of all streams for this call."""
        if method == flight.FlightMethod.DO_ACTION:
            return _Group("health"), MOST_STRANGERS, math.inf
        entry = self._guard.told_by(digest)
        if entry is None:
            return _Group("stranger"), MOST_STRANGERS, math.inf
        options, is_admin = self._options, any("admin" in one.roles for one in entry.grants)
        reserved = 0 if is_admin else options.reserved_streams
        most = options.max_streams_per_client + MORE if entry.name else math.inf
        return _Group("stream", entry.name), most, max(options.max_streams - reserved, 1) + MORE

    def end(self, call: Call) -> None:
        """Forgets a call that has ended."""
        with self._changed:
            if call in self._open:
                self._open.discard(call)
                self._counts[call.group] -= 1
                if not self._counts[call.group]:
                    del self._counts[call.group]
        call.pipe = None

    def open(self) -> list[Call]:
        """Returns the calls under way."""
        with self._changed:
            return list(self._open)

    def stalled(self, longest_s: float) -> set[tuple[str, int]]:
        """Returns the peers that do not read an answer."""
        found = {one.peer_if_stalled(longest_s) for one in self.open()}
        return {one for one in found if one is not None}


def _digest_in(headers: Any) -> str:
    """Returns the hash of the token of a call, before any code of the service sees the token; "" without one."""
    return next(
        (
            digest_of(one[7:] if isinstance(one, str) else one[7:].decode("latin-1"))
            for name, values in headers.items()
            if name.lower() == "authorization"
            for one in values
            if one[:7] in ("Bearer ", b"Bearer ")
        ),
        "",
    )
