"""Serves views of a table to a browser on this machine: one static page, and the view as JSON."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from relive.cli.inspecting.view import Looker, rounded
from relive.errors import ReliveError

__all__ = ["make_server"]

_PAGE = Path(__file__).with_name("page.html")
_HOSTS = ("127.0.0.1", "localhost", "[::1]")
_PORT = re.compile(r":[0-9]+\Z")
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'"


def make_server(look: Looker, port: int) -> ThreadingHTTPServer:
    """A server of 127.0.0.1 that is not running yet.

    Args:
        look: makes the views.
        port: the port; 0: a free one.

    Raises:
        OSError: the port is taken.
    """
    page, lock = _PAGE.read_bytes(), threading.Lock()

    def view() -> bytes:
        with lock:  # two tabs would halve each other's rates
            return json.dumps(rounded(look.look().as_dict()), allow_nan=False).encode()

    return ThreadingHTTPServer(("127.0.0.1", port), _handler(page, view))


def _handler(page: bytes, view: Callable[[], bytes]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(ConnectionError):  # the browser went away
                super().handle()

        def do_GET(self) -> None:
            # A page of another site that resolves to this machine has another Host. Port 80 is not in the header.
            if _PORT.sub("", self.headers.get("Host", "")) not in _HOSTS:
                self._answer(403, "text/plain", b"only for this machine")
            elif self.path == "/":
                self._answer(200, "text/html; charset=utf-8", page)
            elif self.path == "/view.json":
                try:
                    body, status = view(), 200
                except ReliveError as problem:
                    body, status = json.dumps({"error": str(problem)}).encode(), 503
                self._answer(status, "application/json", body)
            else:
                self._answer(404, "text/plain", b"no such page")

        def _answer(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("Content-Security-Policy", _POLICY)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler
