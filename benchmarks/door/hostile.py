"""A program: a client that means harm, until it is killed.

usage: python -m benchmarks.door.hostile FOLDER ADDRESS ACT ROLE
ROLE: the role of its token; "none": it has no token. The process runs when no other process wants the core, because a
stranger's work is done on another machine. Twice a second it writes the number of its tries into FOLDER/tries.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

import relive
from benchmarks.door.honest import STEP
from benchmarks.door.place import BUDGET, FRAME_BYTES, RawStream, client_tls
from relive.service.wire.sockets import tcp_sockets

NUM_SILENT = 300
WRONG_A_SECOND = 100
_AN_ITEM = 16 + 160  # bytes of a drawn key: the answer and the work
_FAILURES = (flight.FlightError, pa.ArrowException, OSError, StopIteration)
_SO_ATTACH_FILTER, _RETURN_NOTHING = 26, struct.pack("HBBI", 0x06, 0, 0, 0)


class Hostile:
    """A client with the token of one role, or without one."""

    def __init__(self, folder: Path, address: str, role: str) -> None:
        self.folder, self.address = folder, address
        self.token = None if role == "none" else (folder / f"{role}.token").read_bytes().strip()
        self.kept: list[Any] = []
        self.tries = 0

    def stream(self, table: str = "small", kind: str = "call", token: bytes | None = None) -> RawStream:
        """Opens a stream, and reads what the server says first."""
        stream = RawStream(self.folder, f"{self.address}/{table}", kind, token or self.token, 600.0)
        self.tries += 1
        stream.hears()
        return stream

    def count(self) -> None:
        """Writes the number of tries, for as long as the process lives."""
        while True:
            (self.folder / "tries").write_text(str(self.tries))
            time.sleep(0.5)

    # ---- the acts: each function is called again and again ---------------------------------------------------------

    def draw(self) -> None:
        """Draws gigabytes of keys at once, then as many as the server's budget lets through."""
        stream = self.stream()
        for count in (1 << 26, *[int(BUDGET * 0.99) // _AN_ITEM] * 20):
            self.tries += 1
            stream.say(op="draw", index=0, n=count, timeout_s=30.0)
            stream.hears_all()
        stream.close()

    def unread(self) -> None:
        """Asks for eight large answers, and reads none."""
        for _ in range(8):
            stream = self.stream("frames")
            stream.say(op="sample", index=0, names=["frame"], n=BUDGET // 4 // FRAME_BYTES, timeout_s=30.0)
            self.kept.append(stream)
        time.sleep(1000.0)

    def silent(self) -> None:
        """Opens 300 connections that say nothing. With a token, each has a stream that says nothing."""
        for _ in range(NUM_SILENT):
            host, _, port = self.address.rpartition("/")[2].rpartition(":")
            self.tries += 0 if self.token else 1
            try:
                kept = self.stream() if self.token else socket.create_connection((host, int(port)), 1.0)
            except _FAILURES:
                continue
            self.kept.append(kept)
        time.sleep(1000.0)

    def cable(self) -> None:
        """Writes, until its cable is pulled. Without a token it has only connected."""
        if self.token is None:
            host, _, port = self.address.rpartition("/")[2].rpartition(":")
            self.kept.append(socket.create_connection((host, int(port)), 5.0))
        else:
            tls, token = client_tls(self.folder, self.address), self.folder / "append.token"
            remote = relive.connect(f"{self.address}/small", tls=tls, token=token)
            writer = remote.writer(streaming=relive.service.Streaming())
            for _ in range(100):
                writer.append(**STEP)
            writer.flush()
            self.kept += [remote, writer]
        pull_cable()
        time.sleep(1000.0)

    def wrong_tokens(self) -> None:
        """A hundred tokens a second. None is known; or all have a role that the call does not need."""
        threads = [threading.Thread(target=self._try_tokens, daemon=True) for _ in range(WRONG_A_SECOND)]
        for thread in threads:
            thread.start()
        time.sleep(1000.0)

    def _try_tokens(self) -> None:
        while True:
            due = time.monotonic() + 1.0
            attempt(lambda: self.stream(kind="write", token=self.token or secrets.token_urlsafe(32).encode()))
            time.sleep(max(due - time.monotonic(), 0.0))

    def megabyte_token(self) -> None:
        """A token of a megabyte, which begins with the right one if there is one."""
        attempt(lambda: self.stream(token=(self.token or b"") + b"x" * (1 << 20)))
        time.sleep(0.01)

    def clear(self) -> None:
        """Empties the table, without the role, as often as it is answered."""
        stream = self.stream()
        while True:
            self.tries += 1
            stream.say(op="clear")
            stream.hears()


def attempt(call: Callable[[], RawStream]) -> None:
    """Makes a stream and closes it. The server may refuse it."""
    try:
        call().close()
    except _FAILURES:
        pass


def pull_cable() -> None:
    """From now on each connection of this process drops every packet that arrives, and sends none of its own accord."""
    program = ctypes.create_string_buffer(_RETURN_NOTHING)
    told = struct.pack("HL", 1, ctypes.addressof(program))
    for one in tcp_sockets():
        if one.family in (socket.AF_INET, socket.AF_INET6):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 0)
            one.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, told)


def main() -> None:
    """Acts until it is killed. A refusal begins the act again."""
    os.nice(19)
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    folder, address, act, role = sys.argv[1:]
    hostile = Hostile(Path(folder), address, role)
    print("ready", flush=True)
    threading.Thread(target=hostile.count, daemon=True).start()
    heard: set[str] = set()
    while True:
        try:
            getattr(hostile, act)()
        except (relive.errors.ReliveError, *_FAILURES) as problem:
            if type(problem).__name__ not in heard:
                heard.add(type(problem).__name__)
                sys.stderr.write(f"  hostile {act}, {role}: {type(problem).__name__} {str(problem)[:200]}\n")
            time.sleep(0.01)


if __name__ == "__main__":
    main()
