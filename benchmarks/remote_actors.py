"""`python -m benchmarks.remote_actors`: one actor over loopback beside one of the run's own, and pulls of parameters.

A round measures both sides, one after the other. The order changes with each round. A side is a whole run of DQN on
CartPole-v1 with 4 environments an actor. The run learns nothing, and its limiter never makes an actor wait. The figure
is steps a second between two totals that the learner counts. The run's own actor writes into shared memory. The other
actor streams through the service.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import relive
from benchmarks.machine import describe
from relive.service import serve
from relive.train import Callback, Snapshot, preset, train

FIRST, LAST = 5_000, 45_000
SIZES = (1_000_000, 20_000_000)


class Window(Callback):
    """The time between two totals of steps; for a served run it starts the actor."""

    def __init__(self, is_remote: bool) -> None:
        self._is_remote = is_remote
        self._actor: subprocess.Popen[bytes] | None = None
        self._first: tuple[float, int] | None = None
        self.steps_per_s = 0.0

    def on_progress(self, now: Snapshot) -> bool:
        if self._is_remote and self._actor is None:
            command = [sys.executable, "-m", "relive.cli", "act", ADDRESS, "--seed", "0"]
            self._actor = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        if now.num_steps < FIRST:
            return False
        if self._first is None:
            self._first = (now.elapsed_s, now.num_steps)
        if now.num_steps < self._first[1] + LAST - FIRST:
            return False
        self.steps_per_s = (now.num_steps - self._first[1]) / (now.elapsed_s - self._first[0])
        return True

    def close(self) -> None:
        """Ends the actor."""
        if self._actor is not None:
            self._actor.terminate()
            self._actor.wait(30)


ADDRESS = "grpc://127.0.0.1:7391/run"


def acted(is_remote: bool) -> float:
    """Steps a second of one actor."""
    settings: dict[str, object] = {
        "acting.num_actors": 0 if is_remote else 1, "environment.num_envs_per_actor": 4,
        "replay.capacity": 1_000_000, "replay.min_size": 900_000,
    }  # fmt: skip
    if is_remote:
        settings["serving.address"] = ADDRESS
    window = Window(is_remote)
    with tempfile.TemporaryDirectory() as folder:
        train(preset("dqn", "CartPole-v1", settings), Path(folder) / "run", callbacks=[window])
    window.close()
    return window.steps_per_s


def pulled(num_bytes: int, rounds: int) -> list[float]:
    """Milliseconds of pulls of so many bytes, each of a new version that is there; server and client in one process."""
    spec = relive.StepSpec({"action": relive.ArraySpec((), "int64")})
    times = []
    with relive.Table(spec, 100) as table, serve({"t": table}, "grpc://127.0.0.1:0") as server:
        store = server.parameters("t")
        with relive.connect(server.address + "/t") as remote:
            for version in range(1, rounds + 4):
                store.publish({"w": np.full(num_bytes // 4, version, np.float32)}, version)
                began_s = time.perf_counter()
                found = remote.parameters.pull(timeout_s=20.0)
                if version > 3:
                    times.append(1e3 * (time.perf_counter() - began_s))
                assert found is not None and found.version == version
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    print(json.dumps(describe()))
    pairs = []
    for number in range(rounds):
        sides = {is_remote: acted(is_remote) for is_remote in ((False, True), (True, False))[number % 2]}
        pairs.append((sides[False], sides[True]))
        print(f"round {number + 1}: own {sides[False]:,.0f}, over loopback {sides[True]:,.0f} steps/s", flush=True)
    ratio = statistics.median(remote / own for own, remote in pairs)
    own, remote = (statistics.median(side) for side in zip(*pairs, strict=True))
    print(f"medians: own {own:,.0f}, over loopback {remote:,.0f} steps/s, {ratio:.2f} within rounds")
    for num_bytes in SIZES:
        times = pulled(num_bytes, 15)
        print(f"pull of {num_bytes / 1e6:.0f} MB: median {statistics.median(times):.1f} ms, lowest {min(times):.1f}")


if __name__ == "__main__":
    main()
