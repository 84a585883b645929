"""Runs the measurements: `python -m benchmarks.run [--quick] [--only hopper,atari] [--no-peers]`.

Every entry of a part's plan is a process of its own; contestants take turns, round after round, so that what else the
machine does meets all of them. Results lie in benchmarks/results (a quick run's in benchmarks/results/quick).
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import contestants, machine, peers, targets, timing
from benchmarks.tables import as_markdown, as_text

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PARTS = (
    "hopper",
    "nested",
    "atari",
    "sequences",
    "choices",
    "memory",
    "processes",
    "locks",
    "fleet",
    "nodes",
    "service",
    "tiers",
)
TIME_LIMIT_S = 600
ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")}


def run_job(part: str, job: dict[str, Any]) -> dict[str, Any] | str:
    """Runs one process to its end and returns what it measured, or in words what went wrong."""
    peer = contestants.ENVIRONMENTS.get(job["contestant"])
    python = sys.executable if peer is None else str(peers.python_of(peer))
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "readings.json"
        command = [python, "-m", "benchmarks.worker", part, json.dumps(job), str(output)]
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env={**os.environ, **ONE_THREAD},
                capture_output=True,
                text=True,
                timeout=TIME_LIMIT_S,
            )
        except subprocess.TimeoutExpired:
            return f"not done after {TIME_LIMIT_S} s"
        if done.returncode != 0 or not output.exists():
            lines = done.stderr.strip().splitlines()
            return lines[-1] if lines else f"exit status {done.returncode}"
        if done.stdout:
            print("\n" + done.stdout.rstrip(), end=" ", flush=True)
        measured: dict[str, Any] = json.loads(output.read_text())
        return measured


def run_part(part: str, quick: bool, left_out: set[str]) -> dict[str, Any]:
    """All rounds of one part, joined to one row for each contestant, table size, operation and batch size."""
    jobs = importlib.import_module(f"benchmarks.parts.{part}").plan(quick)
    jobs = [job for job in jobs if contestants.ENVIRONMENTS.get(job["contestant"], "") not in left_out]
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    versions: dict[str, dict[str, str]] = {}
    failures = []
    for position, job in enumerate(jobs, start=1):
        start = time.monotonic()
        print(f"{part} {position}/{len(jobs)}: {job['contestant']}, {job['num_steps']:,} steps", end=" ", flush=True)
        measured = run_job(part, job)
        print(f"({time.monotonic() - start:.1f} s)", flush=True)
        if isinstance(measured, str):
            failures.append(f"{job['contestant']}, {job['num_steps']:,} steps: {measured}")
            print(f"  failed: {measured}", flush=True)
            continue
        versions[job["contestant"]] = measured["versions"]
        for reading in measured["readings"]:
            key = (job["num_steps"], reading["operation"], reading["batch"], job["contestant"])
            found.setdefault(key, []).append(reading)
    return {
        "part": part,
        "quick": quick,
        "rows": [_row(key, readings) for key, readings in sorted(found.items(), key=_order)],
        "versions": versions,
        "failures": failures,
    }


def _order(entry: tuple[tuple[Any, ...], Any]) -> tuple[Any, ...]:
    num_steps, operation, batch, contestant = entry[0]
    return num_steps, operation, batch, list(contestants.MODULES).index(contestant)


def _row(key: tuple[Any, ...], readings: list[dict[str, Any]]) -> dict[str, Any]:
    num_steps, operation, batch, contestant = key
    row: dict[str, Any] = {"num_steps": num_steps, "operation": operation, "batch": batch, "contestant": contestant}
    if readings[0]["readings_us"]:
        row |= timing.summarise([reading["readings_us"] for reading in readings])
    for name in readings[0].get("rates", {}):
        values = sorted(reading["rates"][name] for reading in readings)
        row[name] = round(values[len(values) // 2], 3)
    return row


def _needed(parts: list[str], quick: bool) -> set[str]:
    """The peers that take part in these parts."""
    jobs = [job for part in parts for job in importlib.import_module(f"benchmarks.parts.{part}").plan(quick)]
    return {
        contestants.ENVIRONMENTS[job["contestant"]] for job in jobs if job["contestant"] in contestants.ENVIRONMENTS
    }


def save(name: str, folder: Path, values: dict[str, Any], markdown: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(values, indent=1) + "\n")
    (folder / f"{name}.md").write_text(markdown)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures relive beside other replay buffers.")
    parser.add_argument("--quick", action="store_true", help="fewer and smaller rounds, about three minutes")
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts, separated by commas: {', '.join(PARTS)}")
    parser.add_argument("--no-peers", action="store_true", help="relive alone")
    arguments = parser.parse_args()
    parts = arguments.only.split(",")
    unknown = sorted(set(parts) - set(PARTS))
    if unknown:
        parser.error(f"unknown parts {unknown}; there are {', '.join(PARTS)}")

    folder = RESULTS / "quick" if arguments.quick else RESULTS
    left_out = set(peers.PEERS) if arguments.no_peers else set(peers.set_up_all(_needed(parts, arguments.quick)))
    failed = False
    for part in parts:
        described = machine.describe()
        if float(described["load_before"]) > 0.7:
            print(f"note: load {described['load_before']} before {part}; figures of a busy machine are too slow")
        values = {"machine": described, **run_part(part, arguments.quick, left_out)}
        save(part, folder, values, as_markdown(values))
        print("\n" + as_text(values), flush=True)
        failed = failed or bool(values["failures"])
    checked = targets.check(folder)
    save("targets", folder, {"targets": checked}, targets.as_markdown(checked))
    print(targets.as_text(checked))
    print(f"saved in {folder.relative_to(ROOT)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
