"""Runs the examples at length, and writes their curves into the pages: `make curves`, or `python examples/curves.py`.

    python examples/curves.py                    # every study of STUDIES
    python examples/curves.py sac ppo            # some of them
    python examples/curves.py --report           # no run: the pages again, from the results that are there

Each run is a process. Its result goes to benchmarks/results/curves/NAME/VARIANT-SEED.json, and is not computed again.
Ctrl-C stops a run, which then saves. A run that was stopped goes on from its save in runs/curves. Seeds come in
rounds, so that a stop leaves all studies with equally many seeds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "curves"
PAGES = ROOT / "docs" / "examples"
NO_INTERVAL = "one seed"


@dataclass(frozen=True)
class Study:
    """Variants of one example that one picture compares.

    Attributes:
        variants: {label: command line}.
        mark: the return that the example should reach, in words.
        seeds: number of runs of each variant.
        by: "steps" or "seconds", the horizontal axis.
        threshold: a return; the table has the median of the seconds up to the first evaluation that reaches it.
        example: the example, if the study has another name. Its page has one block for each of its studies.
    """

    variants: dict[str, str]
    mark: str
    seeds: int = 5
    by: str = "steps"
    threshold: float | None = None
    example: str = ""


BREAKOUT = "--env MinAtar/Breakout-v1 --eval-episodes 10"
C51_IQN_BREAKOUT = (
    f"{BREAKOUT} --steps 200000 --eval-every 10000 --capacity 100000 --batch-size 32 --updates-per-step 0.25"
    " --learning-rate 5e-4 --high 15"
)

STUDIES = {
    "sac": Study({"sac": "--steps 3000"}, "-200"),
    "ppo": Study(
        {"ppo": "--steps 60000 --eval-every 4000", "four uses": "--steps 60000 --eval-every 4000 --uses 4"}, "475"
    ),
    "qmix": Study({"qmix": "--eval-every 500", "vdn": "--eval-every 500 --mixer vdn"}, "8"),
    "dqn_per": Study({"priorities": "--steps 50000", "uniform": "--steps 50000 --priority-exponent 0"}, "475"),
    "c51_iqn": Study({name: f"--steps 50000 --algorithm {name}" for name in ("iqn", "c51", "dqn")}, "475"),
    "c51_iqn_minatar": Study(
        {name: f"{C51_IQN_BREAKOUT} --algorithm {name}" for name in ("iqn", "c51", "dqn")},
        "IQN's curve next to DQN's",
        example="c51_iqn",
    ),
    "her_sac": Study(
        {"hindsight": "--steps 20000", "SAC alone": "--steps 20000 --no-hindsight"}, "0.9, where SAC alone is at 0"
    ),
    "r2d2": Study(
        {
            "stored state": "--steps 20000",
            "zero state": "--steps 20000 --no-stored-state",
            "no memory": "--steps 20000 --no-memory",
        },
        "1, and above the network without memory",
    ),
    "impala": Study({"impala": "--steps 300000 --eval-every 15000"}, "475"),
    "impala_minatar": Study(
        {"impala": f"{BREAKOUT} --steps 1000000 --eval-every 50000 --hidden 128 --learning-rate 2e-3 --entropy 0.03"},
        "8",
        example="impala",
    ),
    "ape_x": Study(
        {
            "two actors": "--steps 240000",
            "one process": "--steps 240000 --num-actors 0 --envs-per-actor 8 --capacity 200000",
        },
        "200 in fewer seconds than one process",
        by="seconds",
        threshold=200.0,
    ),
    "offline": Study({"iql": "--steps 4000 --eval-every 500"}, "the mean return of the data"),
    "masac": Study(
        {"masac": "--steps 12000", "independent": "--steps 12000 --independent"}, "above independent learners"
    ),
    "r2d3": Study({"r2d3": "--steps 80000", "r2d2 alone": "--steps 80000 --demo-share 0"}, "above r2d2 alone"),
    "agent57_family": Study(
        {"family of 4": "--steps 30000", "one policy": "--steps 30000 --num-policies 1"}, "more states than one policy"
    ),
    "tiers": Study({"tiers": "--steps 12000 --eval-every 1000"}, "1"),
    "served": Study({"served": "--steps 20000 --eval-every 2000"}, "475"),
    "jax_sac": Study({"sac": "--steps 3000"}, "-200"),
    "decision_transformer": Study(
        {"by-return": "--steps 400 --eval-every 100", "uniform": "--steps 400 --eval-every 100 --return-exponent 0"},
        "0.9 of the data's best tenth",
    ),
    "grpo": Study(
        {"replay": "--steps 240000 --eval-every 8000", "no-replay": "--steps 240000 --eval-every 8000 --replays 0"},
        "0.9",
    ),
    "mat": Study({"mat": "--steps 160000", "independent": "--steps 160000 --independent"}, "above independent PPO"),
}


def example_of(name: str) -> str:
    """The example of a study."""
    return STUDIES[name].example or name


def command_of(name: str, label: str, seed: int) -> str:
    """The command that reproduces one run of a study."""
    return f"python examples/{example_of(name)}.py {STUDIES[name].variants[label]} --seed {seed}"


@contextlib.contextmanager
def ctrl_c_is_for_the_run() -> Iterator[list[int]]:
    """Ctrl-C reaches the process of the run too, which ends by itself. The list has the signals of the block."""
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    try:
        yield heard
    finally:
        signal.signal(signal.SIGINT, before)


def run(name: str, label: str, seed: int) -> None:
    """Runs one variant with one seed, or goes on with a run that was stopped."""
    target = RESULTS / name / f"{label.replace(' ', '_')}-{seed}.json"
    if target.exists():
        return
    folder = ROOT / "runs" / "curves" / name / f"{label.replace(' ', '_')}-{seed}"
    command = command_of(name, label, seed)
    options = ["--no-bar", "--run-dir", str(folder)]
    if any((folder / save).exists() for save in ("save/CURRENT", "shards/CURRENT", "learner.pt")):
        options.append("--resume")
    print(command, *options[2:], flush=True)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with ctrl_c_is_for_the_run() as heard:
        done = subprocess.run([sys.executable, *shlex.split(command)[1:], *options], cwd=ROOT, env=environment)
    if done.returncode != 0:
        raise SystemExit(f"{command} ended with {done.returncode}")
    result = json.loads((folder / "result.json").read_text())
    if result["ending"] == "stopped":
        raise SystemExit(f"{name} was stopped. `make curves` goes on from step {result['steps']}.")
    del result["settings"]["run_dir"], result["settings"]["resume"]
    result["command"] = command
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(result, indent=1) + "\n")
    if heard:
        raise SystemExit(f"{name} had ended when Ctrl-C came. `make curves` goes on with the next run.")


def results_of(name: str, label: str) -> list[dict[str, Any]]:
    """The results of all seeds of a variant."""
    found = sorted((RESULTS / name).glob(f"{label.replace(' ', '_')}-[0-9]*.json"))
    return [json.loads(path.read_text()) for path in found]


def final(result: dict[str, Any]) -> float:
    """The mean of a run's last three evaluations."""
    return float(np.mean([point[2] for point in result["curve"][-3:]]))


def interval(values: np.ndarray) -> tuple[float, float] | None:
    """The 95% bootstrap interval (percentiles) of the mean over seeds. None for a single seed."""
    from scipy.stats import bootstrap

    if len(values) < 2:
        return None
    if np.ptp(values) == 0.0:
        return float(values[0]), float(values[0])
    found = bootstrap((values,), np.mean, n_resamples=2_000, method="percentile", rng=0).confidence_interval
    return float(found.low), float(found.high)


def number(value: float) -> str:
    """A number for a table."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def seconds_to(threshold: float, results: list[dict[str, Any]]) -> str:
    """Median and range over seeds of the seconds up to the first evaluation that reaches a return."""
    found = [min((point[1] for point in r["curve"] if point[2] >= threshold), default=np.inf) for r in results]
    low, middle, high = (number(float(value)) for value in np.quantile(found, (0.0, 0.5, 1.0), method="lower"))
    return f"{middle} ({low} to {high})".replace("inf", "not reached")


def table(name: str) -> list[str]:
    """The rows of the page's table: one for each variant that has results."""
    rows = [
        "| variant | seeds | steps | seconds a run | last evaluations, mean | 95% interval | best evaluation, mean |"
    ]
    rows.append("|---|---:|---:|---:|---:|---:|---:|")
    threshold = STUDIES[name].threshold
    if threshold is not None:
        rows = [rows[0] + f" seconds to {number(threshold)}, median (range) |", rows[1] + "---:|"]
    for label in STUDIES[name].variants:
        results = results_of(name, label)
        if not results:
            continue
        finals = np.array([final(result) for result in results])
        found = interval(finals)
        between = f"{number(found[0])} to {number(found[1])}" if found else NO_INTERVAL
        steps, seconds = (round(float(np.mean([r[key] for r in results]))) for key in ("steps", "seconds"))
        best = np.mean([max(point[2] for point in result["curve"]) for result in results])
        cells = (label, len(results), f"{steps:,}", f"{seconds:,}", number(finals.mean()), between, number(float(best)))
        cells += (seconds_to(threshold, results),) if threshold is not None else ()
        rows.append("| " + " | ".join(map(str, cells)) + " |")
    return rows


def draw(name: str) -> None:
    """The picture: mean over seeds and its interval, on a common grid."""
    from matplotlib.figure import Figure

    study, axes = STUDIES[name], Figure(figsize=(6.4, 4)).subplots()
    column = 0 if study.by == "steps" else 1
    baselines = []
    for label in study.variants:
        results = results_of(name, label)
        curves = [np.asarray(result["curve"]) for result in results if result["curve"]]
        if not curves:
            continue
        baselines += [result["random_return"] for result in results if result["random_return"] is not None]
        grid = np.linspace(max(c[0, column] for c in curves), min(c[-1, column] for c in curves), 40)
        values = np.stack([np.interp(grid, curve[:, column], curve[:, 2]) for curve in curves])
        (line,) = axes.plot(grid, values.mean(0), label=f"{label} ({len(curves)})")
        if len(curves) > 1:
            low, high = np.transpose([interval(values[:, k]) for k in range(len(grid))])
            axes.fill_between(grid, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    if baselines:
        axes.axhline(float(np.mean(baselines)), linestyle=":", color="gray", label="random actions")
    axes.set(xlabel="steps of the environment" if column == 0 else "seconds", ylabel="return", title=name)
    axes.legend()
    axes.figure.savefig(PAGES / "curves" / f"{name}.png", dpi=100, metadata={"Software": None})


def report(name: str) -> None:
    """Writes the picture and the block of the page."""
    labels = [label for label in STUDIES[name].variants if results_of(name, label)]
    if not labels:
        return
    (PAGES / "curves").mkdir(parents=True, exist_ok=True)
    draw(name)
    results = [result for label in labels for result in results_of(name, label)]
    machines = ", ".join(sorted({result["machine"] for result in results}))
    lines = [
        f"![Return over {STUDIES[name].by}: mean and 95% interval over seeds](curves/{name}.png)",
        "",
        *table(name),
    ]
    lines += ["", f"The mark is {STUDIES[name].mark}. Machine: {machines}, shared with other programs.", "", "```sh"]
    lines += [command_of(name, label, 0) for label in labels] + ["```"]
    page = PAGES / f"{example_of(name)}.md"
    block = f"<!-- curve {name}: this block is written by `make curves`; do not edit -->\n"
    text, found = re.subn(
        rf"<!-- curve {name}:.*?-->\n.*?<!-- /curve -->",
        lambda _: block + "\n".join(lines) + "\n<!-- /curve -->",
        page.read_text(),
        flags=re.DOTALL,
    )
    assert found == 1, f"{page} has no block for its curve"
    page.write_text(text)


def main() -> None:
    """Runs and reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*STUDIES, []], help="default: all")
    parser.add_argument("--seeds", type=int, default=0, help="fewer seeds than the studies name")
    parser.add_argument("--report", action="store_true", help="only write the pages again")
    options = parser.parse_args()
    names = options.names or list(STUDIES)
    for seed in range(0 if options.report else max(STUDIES[name].seeds for name in names)):
        for name in names:
            if seed < (options.seeds or STUDIES[name].seeds):
                for label in STUDIES[name].variants:
                    run(name, label, seed)
                report(name)
    for name in names:
        report(name)


if __name__ == "__main__":
    main()
