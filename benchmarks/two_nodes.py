"""Two nodes in a network of their own: `unshare --net --pid ... python -m benchmarks.two_nodes JOB FOLDER OUTPUT`."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import contestants, timing, trajectories

HEAD = "127.0.0.1"


def main(job_text: str, folder: str, output: str) -> None:
    job = json.loads(job_text)
    raise_loopback()
    module = contestants.load(job["contestant"])
    if module.USES_RAY:
        start_ray(folder)
    readings = []
    with module.open_nodes(job["load"]) as calls:
        for operation, (batch, call) in calls.items():
            print(job["load"], operation, file=sys.stderr, flush=True)
            several = 10 if "ahead" in operation else 1  # or a batch that was there already is all that is seen
            began_s, busy_s = time.perf_counter(), busy_seconds()
            taken = timing.time_calls(call, 60 * several if job["quick"] else 300, several, warm_up=10)
            cores = (busy_seconds() - busy_s) / (time.perf_counter() - began_s)
            reading: dict[str, Any] = {"operation": f"{job['load']}, {operation}", "batch": batch, "readings_us": taken}
            median_s = sorted(taken)[len(taken) // 2] / 1e6
            rate = trajectories.batch_bytes(job["load"], batch) / median_s / 1e9
            reading["rates"] = {"gb_per_s": rate, "cores_busy": cores}
            readings.append(reading)
    Path(output).write_text(json.dumps(readings))


def busy_seconds() -> float:
    """Processor time of all processes of both nodes: this process has a process namespace of its own."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            fields = stat.read_text().rpartition(") ")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def raise_loopback() -> None:
    """The loopback device of a new network namespace is down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH14s", b"lo", 0x1, b""))  # SIOCSIFFLAGS, IFF_UP


def start_ray(folder: str) -> None:
    """Two Ray nodes; what is to run on the second one asks for the resource `other`."""
    os.environ.update({"RAY_USAGE_STATS_ENABLED": "0", "RAY_ADDRESS": f"{HEAD}:6379", "RAY_TMPDIR": folder})
    os.environ["HOME"] = folder  # a token that another cluster has left in the user's folder is not of these nodes
    usual = ["--num-cpus=4", "--object-store-memory=400000000", "--disable-usage-stats"]
    head = ["--head", f"--node-ip-address={HEAD}", "--port=6379", "--include-dashboard=false", f"--temp-dir={folder}"]
    other = [f"--address={HEAD}:6379", f"--node-ip-address={trajectories.OTHER_NODE}", '--resources={"other": 4}']
    for options in (head, other):
        ray = str(Path(sys.executable).with_name("ray"))
        subprocess.run([ray, "start", *usual, *options], check=True, capture_output=True, timeout=120)


if __name__ == "__main__":
    main(*sys.argv[1:])
