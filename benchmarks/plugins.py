"""The gain of an adapter: the same program with the library's own buffer and with relive's, in pairs.

`make bench-plugins`, or `python -m benchmarks.plugins [--pairs N] [--steps N]`. Each run is a process of its own in the
environment of its library. The two runs of a pair have the same seed and take turns of a quarter of a second, so that
both meet the same changes of the machine's speed. For each case the page gives:

- the share of the time that the calls of the library's buffer take;
- the bound on the ratio of end-to-end times that this share sets: 1 / (1 - share) (Amdahl);
- the ratio of end-to-end times, as the median over pairs, with the least and the largest;
- the mean return of the last episodes of each side over the seeds, with the least and the largest.

Times are seconds of the process on the processor, of one thread, so that other programs disturb them little.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import machine, peers
from benchmarks.plugin_programs import CASES, Measured

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "plugins.json"
SIDES = ("library", "relive")
TURN_S = 0.25


def main() -> int:
    """Runs all cases, and writes the results."""
    parser = argparse.ArgumentParser(description="programs with the buffers of their libraries and with relive's")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--cases", nargs="*", choices=list(CASES), default=list(CASES))
    parser.add_argument("--report", action="store_true", help="write the table again, from the JSON")
    parser.add_argument("--worker", nargs=3, metavar=("CASE", "SIDE", "SEED"))
    options = parser.parse_args()
    if options.worker:
        case, side, seed = options.worker
        steps = options.steps // CASES[case].steps_by
        print(json.dumps(CASES[case].run(side == "relive", int(seed), steps)))
        return 0
    if not options.report:
        measure(options.cases, options.pairs, options.steps)
    if not RESULTS.exists():
        print("no case was measured")
        return 1
    RESULTS.with_suffix(".md").write_text(report(json.loads(RESULTS.read_text())))
    return 0


def measure(cases: list[str], pairs: int, steps: int) -> None:
    """Runs the cases. Results of cases that are not measured now stay, if their settings are these."""
    problems = peers.set_up_all({CASES[case].peer for case in cases})
    place = peers.linked_package()
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if (found.get("steps"), found.get("pairs")) != (steps, pairs):
        found = {"steps": steps, "pairs": pairs, "cases": {}}
    for case in cases:
        if CASES[case].peer in problems:
            continue
        told = paired(case, pairs, steps, place)
        found["cases"][case] = told | {"machine": machine.describe()}
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")


def paired(case: str, pairs: int, steps: int, place: Path) -> dict[str, Any]:
    """The figures of one case over all pairs."""
    runs: dict[str, list[Measured]] = {side: [] for side in SIDES}
    for seed in range(pairs):
        for side, measured in in_turns(case, seed, steps, place).items():
            runs[side].append(measured)
    ratios = [one["total_s"] / two["total_s"] for one, two in zip(runs["library"], runs["relive"], strict=True)]
    share = statistics.median(one["replay_s"] / one["total_s"] for one in runs["library"])
    told = {
        "share_of_replay": share,
        "bound": 1 / (1 - share),
        "ratio": statistics.median(ratios),
        "ratios": sorted(ratios),
        "replay_s": {side: statistics.median(one["replay_s"] for one in runs[side]) for side in SIDES},
        "total_s": {side: statistics.median(one["total_s"] for one in runs[side]) for side in SIDES},
        "returns": {side: [one["mean_return"] for one in runs[side]] for side in SIDES},
    }
    print(f"{case}: replay {share:.1%}, bound {told['bound']:.3f}, measured {told['ratio']:.3f}", flush=True)
    return told


def in_turns(case: str, seed: int, steps: int, place: Path) -> dict[str, Measured]:
    """Both runs of a pair, each in a process of its own, in turns: while one runs, the other is stopped."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as ends:
        files = {side: (Path(folder) / f"{side}.out", Path(folder) / f"{side}.err") for side in SIDES}
        processes = {side: started(case, side, seed, steps, place, files[side]) for side in SIDES}
        for process in processes.values():
            ends.callback(process.wait)
            ends.callback(process.kill)
            process.send_signal(signal.SIGSTOP)
        running = list(SIDES)
        while running:
            for side in tuple(running):
                if not runs_on(processes[side], TURN_S if len(running) > 1 else None):
                    running.remove(side)
        return {side: result_of(processes[side], *files[side]) for side in SIDES}


def started(
    case: str, side: str, seed: int, steps: int, place: Path, files: tuple[Path, Path]
) -> subprocess.Popen[bytes]:
    """One run in the environment of the library. files: where its output and its errors go."""
    python = str(peers.python_of(CASES[case].peer))
    line = [python, "-m", "benchmarks.plugins", "--steps", str(steps), "--worker", case, side, str(seed)]
    variables = {**os.environ, "PYTHONPATH": f"{place}:{ROOT}", "OMP_NUM_THREADS": "1"}
    with files[0].open("wb") as output, files[1].open("wb") as errors:
        return subprocess.Popen(line, cwd=ROOT, env=variables, stdout=output, stderr=errors)


def runs_on(process: subprocess.Popen[bytes], seconds: float | None) -> bool:
    """Lets a stopped process run for so long, or to its end if None, and stops it. False if it has ended."""
    process.send_signal(signal.SIGCONT)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGSTOP)
        return True
    return False


def result_of(process: subprocess.Popen[bytes], output: Path, errors: Path) -> Measured:
    """The figures of a run that has ended."""
    if process.returncode != 0:
        raise RuntimeError(errors.read_text(errors="replace"))
    result: Measured = json.loads(output.read_text().strip().splitlines()[-1])
    return result


def report(found: dict[str, Any]) -> str:
    """The results as markdown."""
    lines = [
        "# Adapters end to end",
        "",
        f"{found['pairs']} pairs with the same seeds. The runs of a pair take turns of {TURN_S} s. DQN takes "
        f"{found['steps']:,} steps, with RLlib a quarter of them; SAC takes a tenth. Seconds are of the processor. "
        "Written by `make bench-plugins`.",
        "",
        "| program | time in replay | bound | measured | least, largest | replay, s | with relive | return | with it |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for case, told in found["cases"].items():
        ratios, replay = told["ratios"], told["replay_s"]
        returns = [
            f"{statistics.mean(told['returns'][side]):.0f} ({min(told['returns'][side]):.0f} to "
            f"{max(told['returns'][side]):.0f})"
            for side in SIDES
        ]
        cells = (
            CASES[case].title,
            f"{told['share_of_replay']:.1%}",
            f"{told['bound']:.2f}",
            f"{told['ratio']:.2f}",
            f"{ratios[0]:.2f}, {ratios[-1]:.2f}",
            f"{replay['library']:.2f}",
            f"{replay['relive']:.2f}",
            *returns,
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
