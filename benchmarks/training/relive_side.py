"""`python -m benchmarks.training.relive_side CASE SEED STEPS SIDE`: relive as the side says; JSON of its window.

CPU of the updates is that of the first learner's whole thread: draw, update, publication, looking after the actor, and
under `inline` the actor's steps too. CPU of a step is that of all processes.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.training.cases import CASES, SIDES, Case, Side, Window

_TICKS = os.sysconf("SC_CLK_TCK")


def settings_of(case: Case, seed: int, side: Side) -> dict[str, object]:
    """The options of the run."""
    from relive.train.settings import parse_assignments

    settings: dict[str, object] = {
        "agent.batch_size": case.batch_size,
        "agent.gamma": case.gamma,
        "agent.target_rate": case.target_rate,
        "agent.n_step": 1,
        "agent.priority_exponent": 0.0,
        "environment.num_envs_per_actor": case.num_envs,
        "environment.seed": seed,
        "replay.capacity": case.capacity,
        "replay.min_size": case.learning_starts,
        "replay.updates_per_step": case.updates_per_step,
        "acting.num_actors": 1,
        "topology": side.topology,
        "threads": side.threads,
        "update": "handwritten",
        "evaluation.period_updates": 10**9,
        "evaluation.stop_return": None,
        "limits.max_minutes": 30.0,
    }
    if case.agent == "dqn":
        network = {"hidden": case.hidden, "dueling": False}
        rate = {"learning_rate": case.learning_rate, "final_learning_rate": case.learning_rate}
        optimizer = {**rate, "max_gradient_norm": case.max_gradient_norm, "adam_epsilon": 1e-8}
        settings |= {f"agent.network.{name}": value for name, value in network.items()}
        settings |= {f"agent.optimizer.{name}": value for name, value in optimizer.items()}
        settings |= {"agent.double": False, "agent.target_period": case.target_period}
    else:
        settings["agent.hidden"] = case.hidden
        settings["agent.random_steps"] = case.learning_starts
        for part in ("actor", "critic"):
            settings[f"agent.{part}.learning_rate"] = case.learning_rate
            settings[f"agent.{part}.final_learning_rate"] = case.learning_rate
    return settings | parse_assignments(list(side.settings))


def cpu_of_children() -> float:
    """Seconds of CPU of the actor and the other learners."""
    total = 0
    for process in multiprocessing.active_children():
        try:
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += int(fields[11]) + int(fields[12])
    return total / _TICKS


def main() -> None:
    began_s, seed = time.monotonic(), int(sys.argv[2])
    case = replace(CASES[sys.argv[1]], window_steps=int(sys.argv[3]))
    from relive.train.config import preset
    from relive.train.run import train

    window, settings = Window(case, began_s), settings_of(case, seed, SIDES[sys.argv[4]])

    def stop_when(num_steps: int, num_updates: int) -> bool:
        cpu_s = time.process_time() + cpu_of_children() if _matters(window, num_steps) else 0.0
        return window.tick((time.monotonic(), cpu_s, time.thread_time(), num_steps, num_updates))

    with tempfile.TemporaryDirectory() as folder:
        train(preset(case.agent, case.env_id, settings), Path(folder) / "run", stop_when=stop_when)
    print(json.dumps({**window.result(), "threads": SIDES[sys.argv[4]].threads}))


def _matters(window: Window, num_steps: int) -> bool:
    """Reading /proc is not free: only at both ends of the window."""
    return window.first is None or num_steps - window.first[3] >= window.case.window_steps


if __name__ == "__main__":
    main()
