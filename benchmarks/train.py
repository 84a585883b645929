"""`python -m benchmarks.train`: training at equal work beside Stable-Baselines3, in rounds of all sides.

Each round runs relive in one process, with an actor process, and with two learners (these also in bfloat16, and one
with a compiled update), and Stable-Baselines3 in one thread as shipped, the same with denormal numbers flushed, and
with the threads that torch takes by itself, one after another; the order turns with the round. The first figure of a
row is wall clock per environment step in the window after the first updates; beside it CPU of all processes per step,
and CPU of an update, which a busy machine disturbs less. Ratios are taken within rounds. Results:
benchmarks/results/train.json, and train.md beside it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import describe
from benchmarks.peers import python_of, set_up
from benchmarks.training.cases import CASES, DEFAULT, SHIPPED, SIDES, Case, Side

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "train.json"
FIGURES = ("step_us", "step_cpu_us", "update_cpu_us")
MOST_UNEQUAL = 0.01
Figures = dict[str, float]


def call(python: str, programme: str, *arguments: str) -> Figures:
    """Runs a programme of benchmarks/training in a process of its own. Returns the JSON of its last line."""
    command = [python, "-m", f"benchmarks.training.{programme}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=1800)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    figures: Figures = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def run_side(side: Side, case: Case, seed: int) -> Figures:
    """One window of one side."""
    python = sys.executable if side.is_relive else str(python_of("sb3"))
    return call(python, side.programme, case.name, str(seed), str(case.window_steps), side.name)


def spread(values: list[float]) -> Figures:
    return {"median": float(np.median(values)), "lowest": min(values), "highest": max(values)}


def measure(case: Case, sides: list[Side], num_rounds: int) -> dict[str, Any]:
    """All rounds of a case: medians and spreads of each side, and of the ratios to SB3's rows within rounds."""
    compiles = any("update=compiled" in side.settings for side in sides)
    compiling = call(sys.executable, "warm", case.name) if compiles else {}
    rounds: list[dict[str, Figures]] = []
    floors: list[Figures] = []
    for number in range(num_rounds):
        turn = number % len(sides)
        rounds.append({side.name: run_side(side, case, number) for side in sides[turn:] + sides[:turn]})
        floors.append(call(sys.executable, "floor", case.name))
        for name in FIGURES:
            told = ", ".join(f"{side.name} {rounds[-1][side.name][name]:,.0f}" for side in sides)
            print(f"  {case.name} round {number + 1}: {name}: {told}", flush=True)
    result: dict[str, Any] = {"case": case.as_dict(), "rounds": rounds, "sides": {}, "compiling": compiling}
    result["floor_us"] = {name: spread([floor[name] for floor in floors]) for name in ("one", "two")}
    for side in sides:
        result["sides"][side.name] = of_side(case, side, rounds)
    return result


def of_side(case: Case, side: Side, rounds: list[dict[str, Figures]]) -> dict[str, Any]:
    """The figures of a side, and, of relive's, how many times as fast as SB3's rows it was."""
    figures = [one[side.name] for one in rounds]
    result: dict[str, Any] = {"side": asdict(side), "threads": figures[0]["threads"]}
    result |= {name: spread([one[name] for one in figures]) for name in (*FIGURES, "first_update_s")}
    made = [one["updates_per_step"] for one in figures]
    unequal = max(abs(ratio / case.updates_per_step - 1.0) for ratio in made)
    result |= {"updates_per_step": spread(made), "equal_work": unequal <= MOST_UNEQUAL}
    if unequal > MOST_UNEQUAL:
        print(f"  {case.name}: {side.name} made {made} updates a step instead of {case.updates_per_step}", flush=True)
    if not side.is_relive:
        return result
    for peer in (SHIPPED, DEFAULT):
        if peer in rounds[0]:
            result[f"times {peer}"] = spread([one[peer]["step_us"] / one[side.name]["step_us"] for one in rounds])
    if SHIPPED in rounds[0]:
        ratios = [one[SHIPPED]["update_cpu_us"] / one[side.name]["update_cpu_us"] for one in rounds]
        result[f"updates, times {SHIPPED}"] = spread(ratios)
        paid = [paid_at_step(case, one[side.name], one[SHIPPED]) for one in rounds]
        result["paid_at_step"] = None if None in paid else float(np.median([step for step in paid if step is not None]))
    return result


def paid_at_step(case: Case, mine: Figures, theirs: Figures) -> float | None:
    """The environment step by which a later first update is made good; None where it never is."""
    behind_s = mine["first_update_s"] - theirs["first_update_s"]
    gained_us = theirs["step_us"] - mine["step_us"]
    if gained_us <= 0:
        return None
    return case.learning_starts + max(0.0, 1e6 * behind_s / gained_us)


def rows(results: list[dict[str, Any]]) -> list[str]:
    """A markdown table: a row a side; the floor stands in the rows that miss what they must reach."""
    heads = (
        "case", "side", "threads", "us a step", "CPU us a step", "CPU us an update", "updates a step",
        "times SB3, one thread", "times SB3, its threads", "first update, s", "paid at step", "floor, us an update",
    )  # fmt: skip
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for result in results:
        case = result["case"]
        for name, figures in result["sides"].items():
            cells = [case["name"], name, f"{figures['threads']:.0f}"]
            cells += [f"{figures[figure]['median']:,.0f}" for figure in FIGURES]
            unequal = "" if figures["equal_work"] else ": unequal"
            cells.append(f"{figures['updates_per_step']['median']:.3f}{unequal}")
            cells += [shown(figures, f"times {SHIPPED}", case["must"])]
            cells += [shown(figures, f"times {DEFAULT}", case["must_default"])]
            cells.append(f"{figures['first_update_s']['median']:.1f}")
            paid = figures.get("paid_at_step", "")
            cells.append("never" if paid is None else f"{paid:,.0f}" if paid != "" else "")
            cells.append(floor_of(result, figures))
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def floor_of(result: dict[str, Any], figures: dict[str, Any]) -> str:
    """The floor of a row that misses what it must reach: of its learners' rows of a batch."""
    missed = any(
        f"times {peer}" in figures and figures[f"times {peer}"]["median"] < result["case"][must]
        for peer, must in ((SHIPPED, "must"), (DEFAULT, "must_default"))
    )
    if not missed:
        return ""
    floor = result["floor_us"]["two" if "learners(2" in figures["side"]["topology"] else "one"]["median"]
    return f"{floor:,.0f}"


def shown(figures: dict[str, Any], name: str, must: float) -> str:
    if name not in figures:
        return ""
    ratio = figures[name]
    text = f"{ratio['median']:.2f} ({ratio['lowest']:.2f} to {ratio['highest']:.2f})"
    return text if ratio["median"] >= must else f"{text}, must {must}"


def missing_here(cases: list[Case]) -> str | None:
    """The package that relive's side of these cases needs and does not find, with the command that installs it."""
    if all(case.env_id != "Hopper-v5" for case in cases):
        return None
    try:
        import mujoco  # noqa: F401
    except ImportError:
        return f"Hopper-v5 needs MuJoCo: {sys.executable} -m pip install -c constraints.txt 'gymnasium[mujoco]'"
    return None


def chosen(text: str, known: dict[str, Any], what: str) -> list[Any]:
    """The values of these names."""
    names = [name.strip() for name in text.split(";" if ";" in text or what == "sides" else ",")]
    for name in names:
        if name not in known:
            sys.exit(f"{what}: one of {list(known)}, not {name!r}")
    return [known[name] for name in names]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", default=",".join(CASES), help="names, by commas")
    parser.add_argument("--sides", default=";".join(SIDES), help="names, by semicolons")
    parser.add_argument("--scale", type=float, default=1.0, help="of the windows: 0.5 takes half as long")
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    sides = chosen(arguments.sides, SIDES, "sides")
    cases = [case.scaled(arguments.scale) for case in chosen(arguments.cases, CASES, "cases")]
    problem = set_up("sb3") or missing_here(cases)
    if problem is not None:
        sys.exit(problem)
    machine = describe()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    results: list[dict[str, Any]] = []
    for case in cases:
        results.append(measure(case, sides, arguments.rounds))
        # After each case: a run that is stopped leaves what it has measured.
        arguments.out.write_text(json.dumps({"machine": machine, "cases": results}, indent=1) + "\n")
        arguments.out.with_suffix(".md").write_text("\n".join(rows(results)) + "\n")
    print("\n".join(rows(results)))


if __name__ == "__main__":
    main()
