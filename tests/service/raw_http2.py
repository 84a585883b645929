"""A client of plain HTTP/2, which decides itself how much it reads and how far it opens a stream."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import sys
import threading
from collections import Counter
from types import TracebackType
from typing import Any, final

from relive.service.wire import framing

__all__ = ["RawClient"]

_DATA, _HEADERS, _RST, _SETTINGS, _PING, _WINDOW = 0, 1, 3, 4, 6, 8
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_INITIAL_WINDOW = 4  # of the settings
_SERVICE = "/arrow.flight.protocol.FlightService/"
_ENOUGH = 1 << 20


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def _header(name: str, value: str) -> bytes:
    """A header that stands as it is: no table of HPACK, no Huffman code."""
    return b"\0" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode()


def _varint(value: int) -> bytes:
    low, value = value & 127, value >> 7
    return bytes((low | 128,)) + _varint(value) if value else bytes((low,))


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


@final
class RawClient:
    """One connection. A thread of it reads all that comes: `num_bytes` of each stream, and which streams have `ended`.

    It grants the connection as many bytes as come, and a stream none unless grant() says so.

    Args:
        address: Address of a server.
        window: Bytes that each stream may receive at first.
    """

    def __init__(self, address: str, window: int = 65_535) -> None:
        host, _, port = address.removeprefix("grpc://").rpartition(":")
        self._socket = socket.create_connection((host, int(port)), 20.0)
        self._socket.settimeout(None)
        self._sending = threading.Lock()
        self._last = -1
        self.num_bytes: Counter[int] = Counter()
        self.ended: set[int] = set()
        self.num_settings = 0  # that the server has acknowledged
        self.is_cut = False
        self._send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _settings(window))
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def open(self, token: str | None = None, method: str = "DoExchange") -> int:
        """Begins a call, and sends nothing in it. Returns the number of its stream."""
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":path": _SERVICE + method,
            ":authority": "x",
            "content-type": "application/grpc",
            "te": "trailers",
            **({} if token is None else {"authorization": f"Bearer {token}"}),
        }
        with self._sending:
            self._last += 2
            stream = self._last
        self._send(_frame(_HEADERS, _END_HEADERS, stream, b"".join(map(_header, headers, headers.values()))))
        return stream

    def describe(self, stream: int, kind: str, table: str, **more: Any) -> None:
        """Sends the descriptor of a stream."""
        request = {
            "relive": framing.VERSION,
            "byte_order": sys.byteorder,
            "table": table,
            "kind": kind,
            "spec": None,
            "uuid": None,
            "layout_hash": None,
            **more,
        }
        self.send(stream, _field(1, _varint(1 << 3) + _varint(2) + _field(2, json.dumps(request).encode())))

    def say(self, stream: int, body: bytes = b"", **header: Any) -> None:
        """Sends a message."""
        self.send(stream, _field(3, framing.encode(header, body)))

    def send(self, stream: int, message: bytes, *, is_last: bool = False) -> None:
        """Sends a message of gRPC."""
        flags = _END_STREAM if is_last else 0
        self._send(_frame(_DATA, flags, stream, b"\0" + struct.pack(">I", len(message)) + message))

    def half_close(self, stream: int) -> None:
        """Says that nothing more comes."""
        self._send(_frame(_DATA, _END_STREAM, stream))

    def reset(self, stream: int) -> None:
        """Cancels a call."""
        self._send(_frame(_RST, 0, stream, struct.pack(">I", 8)))

    def set_window(self, window: int) -> None:
        """Changes the bytes that streams may receive, also of those that are open: what they received is taken off."""
        self._send(_settings(window))

    def grant(self, stream: int, num_bytes: int = _ENOUGH) -> None:
        """Lets a stream receive so many bytes more."""
        self._send(_frame(_WINDOW, 0, stream, struct.pack(">I", num_bytes)))

    def close(self) -> None:
        """Ends the connection."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(20.0)
        self._socket.close()

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _send(self, content: bytes) -> None:
        with self._sending, contextlib.suppress(OSError):  # of a connection that is cut
            self._socket.sendall(content)

    def _read(self) -> None:
        with contextlib.suppress(OSError), self._socket.makefile("rb") as file:
            while len(head := file.read(9)) == 9:
                payload = file.read(int.from_bytes(head[:3], "big"))
                self._take(head[3], head[4], int.from_bytes(head[5:], "big"), payload)
        self.is_cut = True

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == _SETTINGS and not flags & _ACK:
            self._send(_frame(_SETTINGS, _ACK, 0))
        elif kind == _SETTINGS:
            self.num_settings += 1
        elif kind == _PING and not flags & _ACK:
            self._send(_frame(_PING, _ACK, 0, payload))
        elif kind == _DATA:
            self.num_bytes[stream] += len(payload)
            if payload:
                self.grant(0, len(payload))
        if kind == _RST or (kind in (_DATA, _HEADERS) and flags & _END_STREAM):
            self.ended.add(stream)


def _settings(window: int) -> bytes:
    return _frame(_SETTINGS, 0, 0, struct.pack(">HI", _INITIAL_WINDOW, window))
