"""Measures what each hostile act costs an honest client, and the server."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import relive
from benchmarks.door.place import BUDGET, MIB, ServerProcess, client_tls, eventually

ALLOWED = 2 * BUDGET + 256 * MIB  # above the memory before the act
LEFT = 64 * MIB
MOST_P99 = 2.0
GONE_S = 20.0
CALLS = ("sample", "append")


class Act(NamedTuple):
    """The function of benchmarks.door.hostile, the lowest role that allows it, and the descriptors of the server."""

    name: str
    told: str
    role: str
    descriptors: int = 0


ACTS = (
    Act("draw", "draws gigabytes", "read"),
    Act("unread", "reads none of 8 large answers", "read"),
    Act("silent", "300 silent connections, 256 descriptors", "read", 256),
    Act("cable", "a writer's cable is pulled", "append"),
    Act("wrong_tokens", "100 wrong tokens a second", "read"),
    Act("megabyte_token", "tokens of a megabyte", "read"),
    Act("clear", "clears without the role", "read"),
)


class Client:
    """A process of one of the programs, which says "ready" first."""

    def __init__(self, program: str, *words: str) -> None:
        command = [sys.executable, "-m", f"benchmarks.door.{program}", *words]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        assert self.process.stdout is not None
        self.process.stdout.readline()

    def result(self) -> Any:
        """Ends its input, and returns its line of JSON."""
        told, _ = self.process.communicate("", timeout=120)
        return json.loads(told)

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.communicate()


def measured(folder: Path, act: Act, role: str, seconds: float, rounds: int) -> dict[str, Any]:
    """One act by one client: rounds of an honest client alone, then beside the act."""
    server = ServerProcess(folder, descriptors=act.descriptors)
    honest = Client("honest", str(folder), server.address)
    time.sleep(1.0)
    before, spans, peaks, back_s = server.memory, [], [], []
    gone_s: list[float | None] = []
    tries = []
    for _ in range(rounds):
        began = time.monotonic()
        time.sleep(seconds)
        server.watch()
        hostile = Client("hostile", str(folder), server.address, act.name, role)
        acts = time.monotonic()
        if act.name == "cable" and role != "none":
            gone_s.append(lanes_end(folder, server.address))
        time.sleep(max(acts + seconds - time.monotonic(), 0.0))
        ends = time.monotonic()
        hostile.kill()
        server.stop_watch()
        tries.append(round(int((folder / "tries").read_text()) / (ends - acts), 1))
        spans.append((began, acts, ends))
        peaks.append(server.peak)
        back_s.append(eventually(lambda: server.memory <= before + LEFT, 60.0))
    told = {
        "act": act.name, "role": role, "descriptors": act.descriptors, "before_mb": mb(before),
        "peak_mb": [mb(one) for one in peaks], "back_s": back_s, "gone_s": gone_s, "tries_a_second": tries,
        "after_mb": mb(server.memory), "is_alive": server.runs,
    }  # fmt: skip
    calls = honest.result()
    told["status"] = server.close()
    return told | latencies(calls, spans)


def mb(num_bytes: int) -> float:
    """In MiB."""
    return round(num_bytes / MIB, 1)


def lanes_end(folder: Path, address: str) -> float | None:
    """Seconds until the server has closed the lane of the client whose cable is pulled. The honest one has a lane."""
    tls, token = client_tls(folder, address), folder / "honest.token"
    with relive.connect(f"{address}/small", tls=tls, token=token) as remote:
        eventually(lambda: remote.stats().num_lanes >= 2, 10.0)
        return eventually(lambda: remote.stats().num_lanes <= 1, 60.0)


def latencies(calls: list[tuple[float, str, float]], spans: list[tuple[float, float, float]]) -> dict[str, Any]:
    """The honest client's 99th percentiles in milliseconds, alone and meanwhile, for each kind of call."""
    found: dict[str, Any] = {"failed": sum(took < 0.0 for _, _, took in calls)}
    for name in CALLS:
        pairs = []
        for began, acts, ends in spans:
            alone = [took for at, call, took in calls if call == name and began <= at < acts]
            meanwhile = [took for at, call, took in calls if call == name and acts <= at < ends]
            pairs.append((p99(alone), p99(meanwhile)))
        ratio = statistics.median(there / alone for alone, there in pairs)
        found[name] = {"alone_ms": [one for one, _ in pairs], "meanwhile_ms": [one for _, one in pairs]}
        found[name]["ratio"] = round(ratio, 2)
    spent = [
        took for at, call, took in calls if call == "connect" and any(acts <= at < ends for _, acts, ends in spans)
    ]
    found["connects"] = {"number": len(spent), "longest_s": round(max(spent, default=0.0), 3)}
    return found


def p99(seconds: list[float]) -> float:
    """In milliseconds."""
    return round(float(np.percentile(seconds, 99)) * 1e3, 3)


def faults(told: dict[str, Any]) -> list[str]:
    """The rules that an act broke."""
    found = []
    for name in CALLS:
        if told[name]["ratio"] > MOST_P99:
            found.append(f"p99 of {name} {told[name]['ratio']} x")
    if max(told["peak_mb"]) > told["before_mb"] + mb(ALLOWED):
        found.append("memory meanwhile")
    if None in told["back_s"]:
        found.append("memory after 60 s")
    if any(one is None or one > GONE_S for one in told["gone_s"]):
        found.append("lanes")
    if told["failed"]:
        found.append(f"{told['failed']} honest calls failed")
    if not told["is_alive"] or told["status"]:
        found.append(f"the server ended with {told['status']}")
    return found
