"""Batches from another node: relive's paths, Ray's object store, TorchRL's RayReplayBuffer, Reverb.

Two nodes of one machine, in a network that has only loopback: what is measured is what each library does for a batch,
not a wire. Transitions, windows of 32 steps and episodes of 200 in batches of up to 1,024, and rows of 110 kB; one
batch at a time, and with four on their way. `compute` is the choice of the items, `memory` their copy into a batch,
both where they lie; what is left of a batch's time is communication.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import trajectories

CONTESTANTS = ("relive fleet", "Ray objects", "RayReplayBuffer", "Reverb, other node")
UNSHARE = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
TIME_LIMIT_S = 500


def plan(quick: bool) -> list[dict[str, Any]]:
    jobs = [
        {"contestant": name, "load": load, "num_steps": trajectories.LOADS[load].num_steps, "quick": quick}
        for load in trajectories.LOADS
        for name in CONTESTANTS
    ]
    return jobs  # one round: what differs here differs by factors


def work(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Runs benchmarks.two_nodes in namespaces of its own, with which all that it starts ends."""
    with tempfile.TemporaryDirectory(prefix="r", ignore_cleanup_errors=True) as folder:
        output = Path(folder) / "readings.json"
        command = [*UNSHARE, sys.executable, "-m", "benchmarks.two_nodes", json.dumps(job), folder, str(output)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT_S)
        if done.returncode or not output.exists():
            raise RuntimeError((done.stderr.strip().splitlines() or ["no word"])[-1])
        readings: list[dict[str, Any]] = json.loads(output.read_text())
        return readings
