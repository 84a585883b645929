"""Measures how fast a revoked token's streams end, and how fast a server is ready again after a stop or a kill."""

from __future__ import annotations

import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

import relive
from benchmarks.door.place import RawStream, ServerProcess, write_token
from relive.service import health
from relive.service.wire.tokens import remove_token

MOST_REVOKED_S, MOST_READY_S = 1.0, 2.0
ROW_BYTES = 1 << 20
NAME = "bench-door"
FILE = """
address = "grpc://127.0.0.1:{port}"

[tables.{name}]
capacity = {rows}
columns.frame = {{ shape = [{row_bytes}], dtype = "uint8" }}
"""


def revoked(folder: Path, rounds: int) -> dict[str, Any]:
    """Seconds from the change of the file until a stream of each kind has ended."""
    server = ServerProcess(folder)
    found: dict[str, list[float]] = {"call": [], "write": []}
    for number in range(rounds):
        for kind, taken in found.items():
            client = f"revoked{number}{kind}"
            write_token(folder, client, ["read", "append"])
            time.sleep(0.5)  # the server reads the file
            token = (folder / f"{client}.token").read_bytes().strip()
            stream = RawStream(folder, f"{server.address}/small", kind, token)
            stream.hears()
            remove_token(str(folder / "tokens.toml"), client)
            began = time.monotonic()
            wait_for_end(stream)
            taken.append(round(time.monotonic() - began, 3))
            stream.close()
    server.close()
    every = [one for taken in found.values() for one in taken]
    return {
        "seconds": found,
        "median_s": statistics.median(every),
        "longest_s": max(every),
        "at_most_s": MOST_REVOKED_S,
    }


def wait_for_end(stream: RawStream) -> None:
    """Waits until the server has ended the stream."""
    try:
        stream.hears()
    except (flight.FlightError, pa.ArrowException, OSError, StopIteration):
        return
    raise AssertionError("the stream said something instead")


def restarted(folder: Path, num_bytes: int, rounds: int, port: int = 7461) -> dict[str, Any]:
    """Seconds from the start of `relive serve` until it serves a table that is there, after each way to end."""
    config = folder / "table.toml"
    config.write_text(FILE.format(port=port, name=NAME, rows=num_bytes // ROW_BYTES, row_bytes=ROW_BYTES))
    address = f"grpc://127.0.0.1:{port}"
    found: dict[str, list[float]] = {"SIGTERM": [], "SIGKILL": []}
    process, _ = started(config, address)
    try:
        rows = fill(f"{address}/{NAME}", num_bytes // ROW_BYTES)
        for _ in range(rounds):
            for name, taken in found.items():
                process.send_signal(getattr(signal, name))
                process.wait(60)
                process, seconds = started(config, address)
                taken.append(round(seconds, 3))
                with relive.connect(f"{address}/{NAME}") as remote:
                    assert len(remote) == rows and remote.sample(2).num_items == 2
    finally:
        process.kill()
        process.wait()
        relive.remove(NAME, force=True)
    every = [one for taken in found.values() for one in taken]
    told = {"gigabytes": round(num_bytes / 1e9, 2), "seconds": found, "longest_s": max(every)}
    return told | {"median_s": statistics.median(every), "at_most_s": MOST_READY_S}


def started(config: Path, address: str) -> tuple[subprocess.Popen[bytes], float]:
    """A process of `relive serve`, and the seconds until it says that it serves."""
    began = time.monotonic()
    command = [str(Path(sys.executable).with_name("relive")), "serve", str(config)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    while time.monotonic() - began < 60.0:
        if listens(address) and health(address, timeout_s=10.0).is_well:
            return process, time.monotonic() - began
        time.sleep(0.005)
    process.kill()
    raise TimeoutError("relive serve does not serve")


def listens(address: str) -> bool:
    """Whether a server takes connections at the address. A client of gRPC would cost the server's start more."""
    try:
        socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), 1.0).close()
    except OSError:
        return False
    return True


def fill(address: str, rows: int) -> int:
    """Fills the table. Returns its steps."""
    frames = np.ones((16, ROW_BYTES), np.uint8)
    with relive.connect(address, timeout_s=60.0) as remote, remote.writer() as writer:
        for _ in range(rows // len(frames)):
            writer.extend(frame=frames)
    with relive.connect(address) as remote:  # after the end of the writer, whose last step may need the next one
        return len(remote)
