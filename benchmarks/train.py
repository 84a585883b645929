"""`python -m benchmarks.train`: training at equal work beside Stable-Baselines3, in rounds of both sides.

Each round runs relive (one actor process and a learner), Stable-Baselines3 in one thread as shipped, and the same with
denormal numbers flushed, one after another; the order turns with the round. The first figure of a row is wall clock per
environment step in the window after the first updates; beside it CPU of all processes per step, and CPU of an update,
which a busy machine disturbs less. Ratios are taken within rounds. Results: benchmarks/results/train.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import describe
from benchmarks.peers import python_of, set_up
from benchmarks.training.cases import CASES, Case

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "train.json"
SIDES = {"relive": "relive_side", "sb3": "sb3_side", "sb3, denormals flushed": "sb3_side"}
FIGURES = ("step_us", "step_cpu_us", "update_cpu_us")
MOST_UNEQUAL = 0.01


def run_side(side: str, case: Case, seed: int) -> dict[str, float]:
    """One window of one side, in a process of its own."""
    python = sys.executable if side == "relive" else str(python_of("sb3"))
    command = [python, "-m", f"benchmarks.training.{SIDES[side]}", case.name, str(seed), str(case.window_steps)]
    command += ["flush"] if "flushed" in side else []
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=1800)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    figures: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def spread(values: list[float]) -> dict[str, float]:
    return {"median": float(np.median(values)), "lowest": min(values), "highest": max(values)}


def measure(case: Case, num_rounds: int) -> dict[str, Any]:
    """All rounds of a case: medians and spreads of each side, and of the ratios to relive within rounds."""
    rounds: list[dict[str, dict[str, float]]] = []
    order = list(SIDES)
    for number in range(num_rounds):
        turned = order[number % 3 :] + order[: number % 3]
        rounds.append({side: run_side(side, case, number) for side in turned})
        for name in FIGURES:
            told = ", ".join(f"{side} {rounds[-1][side][name]:,.0f}" for side in order)
            print(f"  {case.name} round {number + 1}: {name}: {told}", flush=True)
    result: dict[str, Any] = {"case": case.as_dict(), "rounds": rounds, "sides": {}, "ratios": {}}
    wanted = case.updates_per_step
    for side in order:
        figures = [one[side] for one in rounds]
        result["sides"][side] = {name: spread([one[name] for one in figures]) for name in (*FIGURES, "first_update_s")}
        made = [one["updates_per_step"] for one in figures]
        result["sides"][side]["updates_per_step"] = spread(made)
        unequal = max(abs(ratio / wanted - 1.0) for ratio in made)
        result["sides"][side]["equal_work"] = unequal <= MOST_UNEQUAL
        if unequal > MOST_UNEQUAL:
            print(f"  {case.name}: {side} made {made} updates a step instead of {wanted}", flush=True)
        if side != "relive":
            result["ratios"][side] = {
                name: spread([one[side][name] / one["relive"][name] for one in rounds]) for name in FIGURES
            }
    return result


def rows(results: list[dict[str, Any]]) -> list[str]:
    """A markdown table."""
    heads = ("case", "side", "us a step", "CPU us a step", "CPU us an update", "steps / relive's", "updates / relive's")
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for result in results:
        for side, figures in result["sides"].items():
            cells = [result["case"]["name"], side, *(f"{figures[name]['median']:,.0f}" for name in FIGURES)]
            ratios = result["ratios"].get(side, {})
            cells += [shown(ratios[name]) if name in ratios else "" for name in ("step_us", "update_cpu_us")]
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def shown(ratio: dict[str, float]) -> str:
    return f"{ratio['median']:.2f} ({ratio['lowest']:.2f} to {ratio['highest']:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", default=",".join(CASES), help="names, by commas")
    parser.add_argument("--scale", type=float, default=1.0, help="of the windows: 0.5 takes half as long")
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    problem = set_up("sb3")
    if problem is not None:
        sys.exit(f"the environment of sb3: {problem}")
    machine = describe()
    cases = [CASES[name].scaled(arguments.scale) for name in arguments.cases.split(",")]
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    results: list[dict[str, Any]] = []
    for case in cases:
        results.append(measure(case, arguments.rounds))
        # After each case: a run that is stopped leaves what it has measured.
        arguments.out.write_text(json.dumps({"machine": machine, "threads": 1, "cases": results}, indent=1) + "\n")
    print("\n".join(rows(results)))


if __name__ == "__main__":
    main()
