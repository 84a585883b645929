"""A program: serves the tables of these measurements until its input ends.

usage: python -m benchmarks.door.server FOLDER TLS DESCRIPTORS
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import numpy as np

import relive
from benchmarks.door.place import FRAME_BYTES, NUM_FRAMES, NUM_SMALL, OBSERVED, OPTIONS
from relive.service import ServerTLS, serve


def small_table() -> relive.Table:
    """Full of prioritized rows of 56 bytes."""
    spec = relive.StepSpec(
        {
            "observation": relive.ArraySpec((OBSERVED,), "float32", kind="state"),
            "action": relive.ArraySpec((3,), "float32"),
            "reward": relive.ArraySpec((), "float32"),
        }
    )
    table = relive.Table(spec, NUM_SMALL, relive.Index(sampler=relive.Prioritized(0.6)), max_lanes=64)
    with table.writer() as writer:
        for _ in range(NUM_SMALL // 10_000):
            observation, action = np.ones((10_000, OBSERVED), np.float32), np.ones((10_000, 3), np.float32)
            writer.extend(observation=observation, action=action, reward=np.ones(10_000, np.float32))
    return table


def frame_table() -> relive.Table:
    """Full of rows of 28 kB."""
    table = relive.Table(relive.StepSpec({"frame": relive.ArraySpec((FRAME_BYTES,), "uint8")}), NUM_FRAMES)
    rows = np.random.default_rng(0).integers(0, 255, (500, FRAME_BYTES)).astype(np.uint8)
    with table.writer() as writer:
        for _ in range(NUM_FRAMES // len(rows)):
            writer.extend(frame=rows)
    return table


def main() -> None:
    """Serves. The first line of the output is the address."""
    folder, has_tls, descriptors = Path(sys.argv[1]), sys.argv[2] == "1", int(sys.argv[3])
    if descriptors:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
    tls = ServerTLS(folder / "server.pem", folder / "server.key") if has_tls else None
    where = "grpc+tls://127.0.0.1:0" if has_tls else "grpc://127.0.0.1:0"
    with small_table() as small, frame_table() as frames:
        tables = {"small": small, "frames": frames}
        with serve(tables, where, OPTIONS, tls=tls, tokens=folder / "tokens.toml") as server:
            print(server.address, flush=True)
            sys.stdin.read()


if __name__ == "__main__":
    main()
