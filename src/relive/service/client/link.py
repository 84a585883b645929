"""The way of a handle to its server: the client of gRPC, and the TCP connections that the client makes."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, final

from relive.service.wire.access import Access
from relive.service.wire.memory import keep_freed_memory
from relive.service.wire.sockets import cut, heard_s, is_stuck, keep_alive_to, moved_s, peers_of, tcp_sockets
from relive.service.wire.transport import with_few_wakeups

__all__ = ["Link"]

_OPTIONS = [
    # Windows and frames as large as batches. With the default sizes, large bodies arrive at about half the speed.
    ("grpc.http2.lookahead_bytes", 16 << 20),
    ("grpc.http2.max_frame_size", (16 << 20) - 1),
    # The window is wide enough: no pings between batches to measure the best width.
    ("grpc.http2.bdp_probe", 0),
    # A connection of its own with short pauses between retries. By default the pauses grow up to two minutes.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    # A client that sends pings, here every 24 days, gives its sockets their timeout as TCP_USER_TIMEOUT: our mark.
    ("grpc.keepalive_time_ms", 2**31 - 2),
]
_MARK = "grpc.keepalive_timeout_ms"


@final
class Link:
    """The client of gRPC of one handle, made when it is needed. Any number of threads.

    The sockets of the client have a mark, which tells them from those of other handles to the same server. Looks at
    them raise nothing: without a free descriptor nothing is known, and nothing is cut.
    """

    def __init__(self, location: str, access: Access, mark: int) -> None:
        self.location = location
        self.access = access
        self.mark = mark
        self._changed = threading.Lock()
        self._client: Any = None
        self._keeps_alive = False  # whether the sockets of this client have the options of TCP
        self._peers: frozenset[tuple[str, int]] | None = None

    def client(self) -> Any:
        """Returns the client, which does not wait for its connection."""
        with self._changed:
            if self._client is None:
                keep_freed_memory()
                self._keeps_alive = False
                self._client = with_few_wakeups(
                    lambda: self.access.client(self.location, [*_OPTIONS, (_MARK, self.mark)])
                )
            return self._client

    def forget(self) -> None:
        """Makes a new client next time. gRPC retries a failed connection only after a pause, but connects a new client
        at once.
        """
        with self._changed:
            self._client = None

    def keep_alive(self) -> None:
        """Sets the options of TCP on the connections of the client, once: it has reached the server."""
        if not self._keeps_alive:
            self._keeps_alive = True
            self._peers = peers_of(self.location) or self._peers  # a name may mean another machine by now
            keep_alive_to(self.addresses())

    def addresses(self) -> frozenset[tuple[str, int]]:
        """Returns the addresses of the server, as they were when a client reached it last."""
        if self._peers is None:
            self._peers = peers_of(self.location)
        return self._peers

    def heard_s(self) -> float | None:
        """Returns how long ago the last byte came from the server, in seconds; None: not known."""
        with contextlib.suppress(OSError):
            return heard_s(self.addresses())
        return None

    def moved_s(self) -> float | None:
        """Returns how long ago the server took a part of the bytes that wait to be sent, in seconds.

        None: none wait, or not known.
        """
        with contextlib.suppress(OSError):
            return moved_s(self.addresses())
        return None

    def is_full(self) -> bool:
        """Whether bytes wait until the server has more room for them, as far as is known."""
        with contextlib.suppress(OSError):
            return any(map(is_stuck(self.addresses(), self.mark, or_unacked=False), tcp_sockets()))
        return False

    def cut(self) -> bool:
        """Ends the TCP connections over which bytes wait to be sent. Returns whether there was one."""
        with contextlib.suppress(OSError):
            if cut(is_stuck(self.addresses(), self.mark), drops_unsent=True):
                self.forget()
                return True
        return False
