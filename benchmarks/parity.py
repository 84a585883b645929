"""`python -m benchmarks.parity`: whether what relive learns is as good as what Stable-Baselines3 learns.

Whole runs of both sides at the equal-work settings of benchmarks/training/cases.py (whole_runs.py: how long, how many
seeds), each a process, seed by seed and case by case with the sides in turn, so that a study that is stopped is
balanced. Every finished run stays in benchmarks/results/parity; the same command goes on. At its end, and with --report
at any time, the table (parity.json, parity.md) and the curves (parity.png).

Final returns are of the last agent, deterministic, twenty episodes on the same seeds of environments for both sides.
The lower end of the 90% bootstrap interval of (ours - theirs) over the seeds must be at least -5% of SB3's range: from
its mean return before learning to that at its end.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import describe
from benchmarks.peers import python_of, set_up
from benchmarks.run import RESULTS
from benchmarks.studies.runner import Job, finished, python, run_jobs
from benchmarks.studies.statistics import Points, mean_curve, median_with_none, parity, reached_at
from benchmarks.tables import aligned, markdown_table
from benchmarks.train import missing_here
from benchmarks.training.cases import CASES
from benchmarks.training.whole_runs import PARITY, WholeRun

OURS, THEIRS = "relive", "sb3"
PAL_SPEED_UP = (3.1, 10.8)  # published: times that convergence is faster than with its baselines
HEADINGS = [
    "case", "seeds", "ours", "SB3", "difference", "90% interval", "must be over", "", "s to threshold, ours", "SB3",
    "s a run, ours", "SB3",
]  # fmt: skip


def jobs_of(runs: Sequence[WholeRun], topology: str) -> list[Job]:
    """All runs, in an order in which the sides take turns and every seed comes with all cases."""
    jobs = []
    for seed in range(max(run.num_seeds for run in runs)):
        for number, run in enumerate(run for run in runs if seed < run.num_seeds):
            sides = (OURS, THEIRS) if (seed + number) % 2 == 0 else (THEIRS, OURS)
            jobs += [job_of(run, side, seed, topology) for side in sides]
    return list({job.key: job for job in jobs}.values())  # two variants of a case share the runs of SB3


def job_of(run: WholeRun, side: str, seed: int, topology: str) -> Job:
    """One run of one side."""
    words = (run.case, str(seed), str(run.num_steps))
    if side == OURS:
        command = (python(), "-m", "benchmarks.training.relive_run", *words, topology, *run.given)
        about = {**run.about(), "side": side, "seed": seed, "topology": topology}
        return Job(f"{run.name}-{side}-{seed}", command, {**about, **({"given": run.given} if run.given else {})})
    command = (str(python_of("sb3")), "-m", "benchmarks.training.sb3_run", *words)
    return Job(f"{run.case}-{side}-{seed}", command, {**run.about(), "side": side, "seed": seed})


def results_of(run: WholeRun, side: str, folder: Path, topology: str) -> dict[int, dict[str, Any]]:
    """Results of the finished runs, by seed."""
    found = {seed: finished(job_of(run, side, seed, topology), folder) for seed in range(run.num_seeds)}
    return {seed: one for seed, one in found.items() if one is not None}


def row_of(run: WholeRun, folder: Path, topology: str) -> dict[str, Any] | None:
    """A case in figures, from the seeds that both sides have finished; None where there is none."""
    sides = {side: results_of(run, side, folder, topology) for side in (OURS, THEIRS)}
    seeds = sorted(sides[OURS].keys() & sides[THEIRS].keys())
    if not seeds:
        return None
    final = {side: [float(np.mean(sides[side][seed]["final"])) for seed in seeds] for side in sides}
    at_first = [float(np.mean(sides[THEIRS][seed]["at_first"])) for seed in seeds]
    found = parity(final[OURS], final[THEIRS], at_first)
    row: dict[str, Any] = {"case": run.name, "seeds": seeds, "of": run.num_seeds, "final": final, "at_first": at_first}
    row |= {"interval": asdict(found.interval), "margin": found.margin, "reached": found.reached}
    for side in sides:
        ones = [sides[side][seed] for seed in seeds]
        curves = [[(point[1], point[2]) for point in one["curve"]] for one in ones]
        row[f"{side} to threshold, s"] = median_with_none([reached_at(curve, run.threshold) for curve in curves])
        row[f"{side}, s a run"] = float(np.median([one["seconds"] for one in ones]))
        row[f"{side}, updates"] = float(np.median([one["num_updates"] for one in ones]))
    return row


def lines_of(rows: list[dict[str, Any]]) -> list[list[str]]:
    lines = [HEADINGS]
    for row in rows:
        between = row["interval"]
        means = [f"{np.mean(row['final'][side]):,.1f}" for side in (OURS, THEIRS)]
        interval = f"{between['low']:+,.1f} to {between['high']:+,.1f}"
        verdict = "reached" if row["reached"] else "not reached"
        whole = len(row["seeds"]) == row["of"]
        times = [row[f"{side} to threshold, s"] for side in (OURS, THEIRS)]
        lines.append(
            [
                row["case"], f"{len(row['seeds'])} of {row['of']}", *means, f"{between['difference']:+,.1f}", interval,
                f"{row['margin']:,.1f}", verdict if whole else f"{verdict} so far",
                *("never" if one is None else f"{one:,.1f}" for one in times),
                *(f"{row[f'{side}, s a run']:,.0f}" for side in (OURS, THEIRS)),
            ]
        )  # fmt: skip
    return lines


def draw(path: Path, runs: Sequence[WholeRun], folder: Path, topology: str) -> None:
    """A panel a case: returns over environment steps, the mean of the seeds and the range of half of them."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(runs), 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    for panel, run in enumerate(runs, 1):
        axes = figure.add_subplot(1, len(runs), panel)
        for side, name in ((OURS, "relive"), (THEIRS, "Stable-Baselines3")):
            found = results_of(run, side, folder, topology)
            curves: list[Points] = [[(p[0], p[2]) for p in one["curve"]] for one in found.values() if one["curve"]]
            if not curves:
                continue
            steps, returns = mean_curve(curves)
            axes.plot(steps, returns.mean(axis=0), label=f"{name}, {len(curves)} seeds")
            axes.fill_between(steps, *np.percentile(returns, (25, 75), axis=0), alpha=0.2)
        axes.axhline(run.threshold, color="0.6", linewidth=0.8, linestyle="--")
        axes.set(title=run.name, xlabel="environment steps", ylabel="return" if panel == 1 else "")
        axes.legend(fontsize=7, loc="lower right")
    figure.savefig(path, dpi=110)


def report(runs: Sequence[WholeRun], folder: Path, out: Path, topology: str) -> str:
    """Writes parity.json, parity.md and parity.png; the table as text."""
    rows = [row for row in (row_of(run, folder, topology) for run in runs) if row is not None]
    if not rows:
        return "nothing is finished yet\n"
    machine, lines = describe(), lines_of(rows)
    out.mkdir(parents=True, exist_ok=True)
    (out / "parity.json").write_text(
        json.dumps({"part": "parity", "machine": machine, "topology": topology, "rows": rows}, indent=1) + "\n"
    )
    described = ", ".join(f"{name} {value}" for name, value in machine.items())
    note = (
        f"Final returns: mean over seeds of {runs[0].final_episodes} episodes each. relive: {topology}, one thread;"
        " Stable-Baselines3: one thread, as shipped. Seconds to threshold: training time, median over seeds, at the"
        " first evaluation that reaches it. PAL (Parallel Actors and Learners) publishes factors, not seconds: on"
        f" its own machine PAL converges {PAL_SPEED_UP[0]} to {PAL_SPEED_UP[1]} times as fast as its baselines.\n"
    )
    (out / "parity.md").write_text(f"# parity\n\n{described}\n\n{markdown_table(lines, right_from=2)}\n{note}")
    draw(out / "parity.png", [run for run in runs if run.name in {row["case"] for row in rows}], folder, topology)
    return aligned(lines) + note


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(PARITY), help="names, by commas")
    parser.add_argument("--seeds", type=int, help="so many of each, in place of the study's")
    parser.add_argument("--scale", type=float, default=1.0, help="of the steps of a run: 0.1 for a trial")
    parser.add_argument("--topology", default="actors(1)", help="of relive's side")
    parser.add_argument("--report", action="store_true", help="run nothing, tell what is finished")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    names = arguments.cases.split(",")
    for name in names:
        if name not in PARITY:
            sys.exit(f"cases: one of {list(PARITY)}, not {name!r}")
    runs = [replace(PARITY[name], num_steps=round(PARITY[name].num_steps * arguments.scale)) for name in names]
    if arguments.seeds is not None:
        runs = [replace(run, num_seeds=arguments.seeds) for run in runs]
    folder = arguments.out / "parity"
    failed: list[str] = []
    if not arguments.report:
        problem = set_up("sb3") or missing_here([CASES[run.case] for run in runs])
        if problem is not None:
            sys.exit(problem)
        try:
            failed = run_jobs(jobs_of(runs, arguments.topology), folder)
        except KeyboardInterrupt:
            print("stopped; the same command goes on", flush=True)
    print(report(runs, folder, arguments.out, arguments.topology))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
