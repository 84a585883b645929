"""Measures each topology: environment steps and updates a second of whole runs, one after another, in rounds.

    python -m benchmarks.topologies [--rounds 3] [--seconds 10] [--env CartPole-v1] [--agent dqn] [TOPOLOGY ...]

Rates count the time after the first update, without evaluations. A row has the median, the least and the most over the
rounds. The programme also prints the load of the machine, and writes no file.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

from relive.train import Callback, Snapshot, preset, train

TOPOLOGIES = ("inline", "actors(2)", "learners(2, sync)", "learners(2, async)", "central(8, 200)", "double(2)")


class Window(Callback):
    """Steps, updates and dropped gradients of the seconds after the first update, then the end of the run."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._first: tuple[float, Snapshot] | None = None
        self.steps_per_s = self.updates_per_s = self.num_dropped = 0.0

    def on_progress(self, now: Snapshot) -> bool:
        """See Callback."""
        if now.num_updates == 0:
            return False
        now_s = time.monotonic()
        if self._first is None:
            self._first = now_s, now
        began_s, before = self._first
        if now_s - began_s < self._seconds:
            return False
        self.steps_per_s = (now.num_steps - before.num_steps) / (now_s - began_s)
        self.updates_per_s = (now.num_updates - before.num_updates) / (now_s - began_s)
        self.num_dropped = now.num_dropped / max(1, now.num_updates)
        return True


def measured(topology: str, options: argparse.Namespace) -> Window:
    """One run, ended after its window."""
    settings = {
        "topology": topology,
        "acting.num_actors": 2,
        "evaluation.period_updates": 10**9,
        "evaluation.stop_return": None,
        "limits.max_steps": 10**9,
        **dict(one.split("=", 1) for one in options.set),
    }
    window = Window(options.seconds)
    with tempfile.TemporaryDirectory() as folder:
        train(preset(options.agent, options.env, settings), Path(folder) / "run", callbacks=[window])
    return window


def spread(values: list[float]) -> str:
    """The median, and between which values it lies."""
    return f"{statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("topologies", nargs="*", default=list(TOPOLOGIES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--agent", default="dqn")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    options = parser.parse_args()
    windows: dict[str, list[Window]] = {topology: [] for topology in options.topologies}
    for _ in range(options.rounds):
        for topology in options.topologies:
            window = measured(topology, options)
            windows[topology].append(window)
            print(
                f"{topology}: {window.steps_per_s:,.0f} steps, {window.updates_per_s:,.0f} updates a second", flush=True
            )
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    print(f"{options.agent} on {options.env}, {len(os.sched_getaffinity(0))} cores, load {load}")
    print(
        "| topology | environment steps a second | updates a second | gradients dropped an update |\n|---|---|---|---|"
    )
    for topology, ones in windows.items():
        steps, updates = spread([one.steps_per_s for one in ones]), spread([one.updates_per_s for one in ones])
        print(f"| {topology} | {steps} | {updates} | {statistics.median(one.num_dropped for one in ones):.2f} |")


if __name__ == "__main__":
    main()
