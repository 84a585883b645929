"""Rollouts of a language model: relive beside TransferQueue, in one run. Writes benchmarks/results/rollouts.json.

usage: python -m benchmarks.rollouts [--rounds 3] [--passes 3] [--only KIND ...]

16 processes write 1,024 rollouts of 2,000 tokens, and give the reward of each rollout later. 2 processes read batches
of 4 groups of 8 rollouts of one prompt. Every contestant runs in processes of its own in each round; the contestants
alternate. A writer gives 8 rollouts a call, or each rollout by itself. In the paced pass, a group is completed every
20 ms and the readers are idle: it measures the time from the last reward of a group to the batch with the group.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import peers
from benchmarks.machine import describe
from benchmarks.rollout_load import ROW_BYTES

RESULTS = Path(__file__).parent / "results"
ROOT = Path(__file__).resolve().parent.parent
KINDS = {
    "relive, a table": "rollouts_relive",
    "relive, NeMo-RL's calls": "rollouts_nemo_rl",
    "TransferQueue, relive's storage": "rollouts_transferqueue",
    "TransferQueue, its SimpleStorage": "rollouts_transferqueue",
}
OTHER = "TransferQueue, its SimpleStorage"
SHAPES = ("8 a call", "1 a call")
HEADS = {"8 a call": "8 rollouts a call of a writer", "1 a call": "One rollout a call of a writer"}
LIMIT_S = 900
FACTOR, WAKE_MS = 5.0, 5.0  # the marks


def measure(kind: str, passes: int) -> dict[str, Any]:
    """One contestant in one round. Raises RuntimeError with its last words."""
    place = peers.linked_package()
    variables = {"PYTHONPATH": f"{place}:{ROOT}:{ROOT / 'tests'}", "OMP_NUM_THREADS": "1"}
    line = [str(peers.python_of("transferqueue")), "-m", "benchmarks.rollout_host", kind]
    line += [f"benchmarks.contestants.{KINDS[kind]}", str(passes)]
    try:
        done = subprocess.run(
            line, capture_output=True, text=True, timeout=LIMIT_S, cwd=ROOT, env={**os.environ, **variables}
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"not done after {LIMIT_S} s") from None
    told = [one for one in done.stdout.splitlines() if one.startswith("RESULT ")]
    if not told:
        raise RuntimeError((done.stderr.strip().splitlines() or ["it ended without a word"])[-1])
    found: dict[str, Any] = json.loads(told[-1].removeprefix("RESULT "))
    return found


def summary(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the passes of all rounds, with the lowest and the highest."""
    found: dict[str, Any] = {"versions": rounds[-1]["versions"]}
    for shape in (*SHAPES, "paced"):
        passes = [one for told in rounds for one in told["passes"][shape]]
        rates = [one["rows"] / one["seconds"] for one in passes]
        found[shape] = {
            "rows_s": spread(rates),
            "mb_s": spread([rate * ROW_BYTES / 1e6 for rate in rates]),
            "p50_ms": spread([one["p50_ms"] for one in passes if one["p50_ms"] is not None]),
            "p99_ms": spread([one["p99_ms"] for one in passes if one["p99_ms"] is not None]),
            "rows_read": spread([one["rows"] for one in passes]),
            "mixed_groups": sum(one["mixed"] for one in passes) / max(1, sum(one["groups"] for one in passes)),
            "store_mb": spread([max(one["store_mb"], one["memory_mb"]["storage_units"]) for one in passes]),
            "memory_mb": spread([one["memory_mb"]["all"] for one in passes]),
        }
    found["before_mb"] = spread([told["before_mb"]["all"] for told in rounds])
    found["units_before_mb"] = spread([told["before_mb"]["storage_units"] for told in rounds])
    return found


def spread(values: list[float]) -> list[float]:
    """[median, lowest, highest]."""
    return [round(one, 3) for one in (median(values), min(values), max(values))] if values else []


def measure_all(rounds: int, passes: int, kinds: list[str]) -> dict[str, Any]:
    """All rounds. A contestant that fails is left out with its reason."""
    readings: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
    left_out = {}
    machine = describe()
    for number in range(rounds):
        for kind in kinds:
            print(f"{kind}: round {number + 1}", flush=True)
            try:
                readings[kind].append(measure(kind, passes))
            except RuntimeError as error:
                left_out[kind] = str(error)
                print(f"  left out: {error}", flush=True)
    found = {kind: summary(one) for kind, one in readings.items() if one}
    return {"machine": machine, "rounds": rounds, "passes": passes, "left_out": left_out, "contestants": found}


def report(found: dict[str, Any]) -> str:
    """The results as markdown."""
    machine, kinds = found["machine"], found["contestants"]
    lines = ["# Rollouts of a language model", ""]
    taken = f"{found['rounds']} rounds of {found['passes']} passes"
    load = f"load before the run {machine['load_before']}"
    lines += [f"{machine['cpu']}, {machine['cores']} cores, {load}; {taken}. Written by `make bench-rollouts`.", ""]
    lines += ["16 processes write 1,024 rollouts of 2,000 tokens (26 kB each), with late rewards. 2 processes read",
              "batches of 4 groups of 8. Each figure is a median, with the lowest and the highest.", ""]  # fmt: skip
    for shape in SHAPES:
        lines += [f"## {HEADS[shape]}", ""]
        lines += ["| contestant | rows/s | MB/s | reward to batch, p99 ms | rows read of 1,024 | mixed groups |"]
        lines += ["|---|---:|---:|---:|---:|---:|"]
        for kind, one in kinds.items():
            told = one[shape]
            cells = [cell(told[name]) for name in ("rows_s", "mb_s", "p99_ms", "rows_read")]
            lines.append(f"| {kind} | " + " | ".join([*cells, f"{100 * told['mixed_groups']:.1f}%"]) + " |")
        lines += ["", *ratios(kinds, shape), ""]
    lines += [f"## Idle readers: from the last reward of a group to the batch (mark: {WAKE_MS:.0f} ms)", ""]
    lines += ["| contestant | p50 ms | p99 ms | store, MB | all processes, MB | before the first pass, MB |"]
    lines += ["|---|---:|---:|---:|---:|---:|"]
    for kind, one in kinds.items():
        cells = [cell(one["paced"][name]) for name in ("p50_ms", "p99_ms", "store_mb", "memory_mb")]
        lines.append(f"| {kind} | " + " | ".join([*cells, cell(one["before_mb"])]) + " |")
    lines += ["", "The memory of processes is proportional (PSS), with Ray's and the 18 clients'. The store of relive",
              "is its file in shared memory; the store of SimpleStorage is its storage units' processes."]  # fmt: skip
    lines += [f"Left out: {kind}: {reason}" for kind, reason in found["left_out"].items()]
    return "\n".join(lines) + "\n"


def cell(values: list[float]) -> str:
    if not values:
        return ""
    digits = 0 if values[0] >= 100 else 1
    return "{:,.{d}f} ({:,.{d}f} to {:,.{d}f})".format(*values, d=digits)


def ratios(kinds: dict[str, Any], shape: str) -> list[str]:
    """How many times the rows per second of SimpleStorage each contestant has, beside the mark."""
    if OTHER not in kinds:
        return []
    base = kinds[OTHER][shape]["rows_s"][0]
    said = [f"{kind} {one[shape]['rows_s'][0] / base:.1f}x" for kind, one in kinds.items() if kind != OTHER]
    return [f"Rows per second beside SimpleStorage's (mark: {FACTOR:.0f}x): {', '.join(said)}."]


def main() -> None:
    """Measures, and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--report", action="store_true", help="write the tables again, from the JSON")
    options = parser.parse_args()
    path = RESULTS / "rollouts.json"
    if options.report:
        found = json.loads(path.read_text())
    else:
        problem = peers.set_up("transferqueue")
        if problem is not None:
            sys.exit(f"no environment for TransferQueue: {problem}")
        found = measure_all(options.rounds, options.passes, options.only)
        path.write_text(json.dumps(found, indent=1) + "\n")
    path.with_suffix(".md").write_text(report(found))
    print(report(found))


if __name__ == "__main__":
    main()
