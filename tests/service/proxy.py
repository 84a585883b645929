"""A link that can fail: a TCP proxy of this process which passes bytes on, stops passing them, or cuts."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType

_PIECE = 8192
_DROPS = 64


class Proxy:
    """Between clients and the server at a port. cut(): ends all connections; `refuses`: takes no new ones. `stalls`:
    nothing passes, nothing ends. `cuts_after`: connections end when so many bytes came from the server, then None.
    `bytes_a_second`: a slow link from the server, of short pieces; None: as fast as it goes. `trickles`: the link to
    the server takes a few bytes each 10 ms. `buffer_bytes`: how much the proxy takes and does not pass on, in each
    direction; None: as the system chooses.
    """

    def __init__(self, port: int, buffer_bytes: int | None = None) -> None:
        self._target = port
        self._buffer_bytes = buffer_bytes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._bound(self._listener)  # and each connection that it takes
        self.port: int = self._listener.getsockname()[1]
        self.refuses = self.stalls = self.trickles = False
        self.cuts_after: int | None = None
        self.bytes_a_second: float | None = None
        self.num_connections = 0
        self._open: set[socket.socket] = set()
        self._passes = threading.Condition()
        self._closed = False
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    @property
    def address(self) -> str:
        """grpc://host:port of the proxy."""
        return f"grpc://127.0.0.1:{self.port}"

    def aim(self, port: int) -> None:
        """New connections go to another server."""
        self._target = port

    def cut(self) -> None:
        """Ends every connection; those who wait find it out at once."""
        for one in list(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def stall(self, stalls: bool) -> None:
        """From now on nothing passes, or passes again."""
        with self._passes:
            self.stalls = stalls
            self._passes.notify_all()

    def close(self) -> None:
        """The end of it, and of its threads: while one is left, no wait of this process is one for itself."""
        self._closed = True
        self.stall(False)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # closing alone would leave the thread in accept()
        self._listener.close()
        while self._threads:
            self.cut()
            self._threads[0].join(0.05)
            self._threads = [thread for thread in self._threads if thread.is_alive()]

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.refuses:
                client.close()
                continue
            try:
                server = socket.socket()
                self._bound(server)
                server.settimeout(5)
                server.connect(("127.0.0.1", self._target))
            except OSError:
                server.close()
                client.close()
                continue
            server.settimeout(None)
            self.num_connections += 1
            self._open |= {client, server}
            self._start(self._pass, client, server, False)
            self._start(self._pass, server, client, True)

    def _bound(self, one: socket.socket) -> None:
        if self._buffer_bytes is not None:
            for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                one.setsockopt(socket.SOL_SOCKET, option, self._buffer_bytes)

    def _most(self, from_server: bool) -> int:
        if not from_server and self.trickles:
            return _DROPS
        return 1 << 16 if self.bytes_a_second is None else _PIECE

    def _pass(self, source: socket.socket, target: socket.socket, from_server: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(self._most(from_server)):
                if from_server and self.bytes_a_second is not None:
                    time.sleep(len(data) / self.bytes_a_second)
                if not from_server and self.trickles:
                    time.sleep(0.01)
                with self._passes:
                    self._passes.wait_for(lambda: not self.stalls)
                if from_server and self.cuts_after is not None:
                    self.cuts_after -= len(data)
                    if self.cuts_after <= 0:
                        self.cuts_after = None
                        break
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
            self._open.discard(one)
