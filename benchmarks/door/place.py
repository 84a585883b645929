"""The files of a server of these measurements, its process, and a plain stream to it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.flight as flight

from relive.core.roles import ROLES
from relive.service import ClientTLS, ServerOptions
from relive.service.wire import framing
from relive.service.wire.tokens import add_token

MIB = 1 << 20
BUDGET = 512 * MIB  # of the work of all requests, and again of all answers that are not read
OPTIONS = ServerOptions(max_work_bytes=BUDGET, max_inflight_bytes=BUDGET, max_inflight_bytes_per_client=BUDGET // 2)
FRAME_BYTES = 28 << 10  # of one row of the table "frames"
NUM_FRAMES = 9_000
NUM_SMALL = 100_000  # rows of the table "small"
OBSERVED = 11


def make_place(folder: Path) -> None:
    """Makes the certificate, a file with a token for each role, and one for the honest client."""
    words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc -days 30 -subj /CN=bench".split()
    name = ["-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(folder / "server.key"), "-out", str(folder / "server.pem")]
    subprocess.run([*words, *name, *files], check=True, capture_output=True)
    told = {role: [role] for role in ROLES} | {"honest": ["read", "append"]}
    for client, roles in told.items():
        write_token(folder, client, roles)


def write_token(folder: Path, client: str, roles: list[str]) -> None:
    """Adds a token to the file of the server, and writes it for its client."""
    path = folder / f"{client}.token"
    path.touch(mode=0o600)
    path.write_text(add_token(str(folder / "tokens.toml"), client, roles, ["*"]))


def client_tls(folder: Path, address: str) -> ClientTLS | None:
    """The files of a client, if the address has TLS."""
    return ClientTLS(folder / "server.pem") if address.startswith("grpc+tls") else None


class ServerProcess:
    """A process that serves the tables "small" and "frames".

    Args:
        folder: The files of make_place().
        tls: Whether it serves over TLS.
        descriptors: Descriptors that it may have; 0: as many as this process.
    """

    def __init__(self, folder: Path, *, tls: bool = True, descriptors: int = 0) -> None:
        words = [sys.executable, "-m", "benchmarks.door.server", str(folder), str(int(tls)), str(descriptors)]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        self._watched = threading.Event()
        self._thread: threading.Thread | None = None
        self.peak = 0

    @property
    def memory(self) -> int:
        """Private bytes that are in memory now."""
        return memory_of(self._process.pid)

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def watch(self) -> None:
        """Notes the largest memory until stop_watch()."""
        self.peak = 0
        self._watched.clear()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._watched.wait(0.05):
            self.peak = max(self.peak, self.memory)

    def stop_watch(self) -> None:
        """Ends the watch."""
        self._watched.set()
        if self._thread is not None:
            self._thread.join()

    def close(self) -> int:
        """Ends the process, and returns its status."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait(60)


def memory_of(pid: int) -> int:
    """Private bytes of a process that are in memory now; 0: it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon")), 0)


def eventually(holds: Any, seconds: float) -> float | None:
    """Seconds until it holds; None: it does not within that time."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began > seconds:
            return None
        time.sleep(0.05)
    return time.monotonic() - began


class RawStream:
    """A stream of the protocol, with any token and any message, which need not read its answers."""

    def __init__(self, folder: Path, address: str, kind: str, token: bytes | None, seconds: float = 30.0) -> None:
        location, _, table = address.rpartition("/")
        request: dict[str, Any] = {"relive": framing.VERSION, "byte_order": sys.byteorder, "table": table, "kind": kind}
        request |= dict.fromkeys(("spec", "uuid", "layout_hash", "num_lanes"))
        tls = client_tls(folder, address)
        more = {} if tls is None else tls.arguments()
        self.client = flight.FlightClient(location, generic_options=[("grpc.use_local_subchannel_pool", 1)], **more)
        headers = [] if token is None else [(b"authorization", b"Bearer " + token)]
        options = flight.FlightCallOptions(headers=headers, timeout=seconds)
        descriptor = flight.FlightDescriptor.for_command(json.dumps(request).encode())
        self._writer, self.reader = self.client.do_exchange(descriptor, options)

    def say(self, **header: Any) -> None:
        """Sends a message without a body."""
        self._writer.write_metadata(framing.encode(header))

    def hears(self) -> Mapping[str, Any]:
        """The header of the next message, which is small."""
        return framing.decode(self.reader.read_chunk().app_metadata)[0]

    def hears_all(self) -> Mapping[str, Any]:
        """The header of the next message, after all of its body has arrived."""
        told = self.hears()
        left = told.get("body_bytes", 0)
        if left:
            left -= CHUNK
        while left > 0:
            left -= len(self.reader.read_chunk().data.column(0))
        return told

    def close(self) -> None:
        """Gives the stream and its connection up."""
        self.reader.cancel()
        try:
            self._writer.close()
            self.client.close()
        except (flight.FlightError, OSError):
            pass


CHUNK = 512 << 10  # bytes that come with the header of a large answer (relive.service.server.pipe)
