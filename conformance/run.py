"""Runs every case on dm-reverb and on relive: `make conformance`, `python -m conformance.run [--relive-only] [WORDS]`.

dm-reverb runs in an environment of its own (benchmarks/peers.py). The verdicts go to conformance/verdicts.json and to
docs/conformance.md. A run of named cases prints the verdicts and writes nothing. The exit status is 1 if a result of a
system differs from the expected result, or if the two systems differ in a case that calls them the same.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import peers
from conformance import page
from conformance.cases import by_name, topic_of
from conformance.relive_system import ReliveSystem
from conformance.verdicts import FAILED, conflicts, run_case

ROOT = Path(__file__).resolve().parent.parent
VERDICTS = ROOT / "conformance" / "verdicts.json"
PAGE = ROOT / "docs" / "conformance.md"
PINS = peers.FOLDER / "constraints" / "reverb.txt"
REVERB = next(line.replace("==", " ") for line in PINS.read_text().splitlines() if line.startswith("dm-reverb=="))


def run_relive(names: Sequence[str], seed: int) -> dict[str, dict[str, Any]]:
    """Outcomes of the cases on relive, in this process."""
    cases = by_name()
    return {name: run_case(cases[name], "relive", ReliveSystem(seed)).as_dict() for name in names}


def run_reverb(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Outcomes of the cases on dm-reverb, in its environment; a case that ends the process has failed."""
    outcomes: dict[str, dict[str, Any]] = {}
    left = list(names)
    with tempfile.TemporaryDirectory() as folder:
        while left:
            results = Path(folder) / f"{len(left)}.jsonl"
            ended = _reverb_process(results, left)
            for line in results.read_text().splitlines() if results.exists() else []:
                outcome = json.loads(line)
                outcomes[outcome.pop("name")] = outcome
            left = [name for name in left if name not in outcomes]
            if left:
                outcomes[left[0]] = {"verdict": FAILED, "detail": f"the process ended: {ended}"}
                left = left[1:]
    return {name: outcomes[name] for name in names}


def _reverb_process(results: Path, names: Sequence[str]) -> str:
    command = [str(peers.python_of("reverb")), "-m", "conformance.worker", "reverb", "0", str(results), *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace")  # cases have limits
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return f"status {done.returncode}, {lines[-1] if lines else 'without a word'}"


def put_together(
    reverb: dict[str, dict[str, Any]], relive: dict[str, dict[str, Any]]
) -> tuple[dict[str, Any], list[str]]:
    """The values to write, and the faults in them."""
    cases, topics = by_name(), topic_of()
    wrong, rows = [], {}
    for name, case in cases.items():
        if name not in reverb or name not in relive:
            continue
        rows[name] = {"topic": topics[name], "reverb": reverb[name], "relive": relive[name]}
        for system, outcome in (("reverb", reverb[name]), ("relive", relive[name])):
            if outcome["verdict"] == FAILED:
                wrong.append(f"{name}: {system}: {outcome['detail']}")
        wrong += [f"{name}: {conflict}" for conflict in conflicts(case, reverb[name], relive[name])]
    return {"reverb": REVERB, "cases": rows}, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs the cases of Reverb's semantics on dm-reverb and on relive.")
    parser.add_argument("names", nargs="*", help="names of cases, or words in their names; default: all cases")
    parser.add_argument(
        "--relive-only", action="store_true", help="read dm-reverb's results from the last complete run"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of relive's draws; Reverb's draws have their own seeds"
    )
    arguments = parser.parse_args()
    asked = [name for name in by_name() if not arguments.names or any(word in name for word in arguments.names)]
    if not asked:
        parser.error(f"no case's name contains {' or '.join(map(repr, arguments.names))}")
    if arguments.relive_only:
        known = json.loads(VERDICTS.read_text())["cases"]
        asked = [name for name in asked if name in known]
        reverb = {name: known[name]["reverb"] for name in asked}
    else:
        problem = peers.set_up("reverb")
        if problem is not None:
            print(f"the environment of {REVERB} could not be set up: {problem}", file=sys.stderr)
            return 1
        print(f"{len(asked)} cases on {REVERB}", flush=True)
        reverb = run_reverb(asked)
    relive = run_relive(asked, arguments.seed)
    values, wrong = put_together(reverb, relive)
    print(page.as_text(values))
    if arguments.names:
        _print_cases(values)
    elif not wrong:
        VERDICTS.write_text(json.dumps(_without_notes(values), indent=1) + "\n")
        PAGE.write_text(page.as_markdown(values))
    for sentence in wrong:
        print(f"WRONG {sentence}", file=sys.stderr)
    if wrong and not arguments.names:
        print("nothing was written", file=sys.stderr)
    return 1 if wrong else 0


def _without_notes(values: dict[str, Any]) -> dict[str, Any]:
    """The same without the sentences of refusals, which contain numbers of processes and memory."""
    rows = {
        name: {
            part: {key: value for key, value in outcome.items() if key != "notes"} if part != "topic" else outcome
            for part, outcome in row.items()
        }
        for name, row in values["cases"].items()
    }
    return {**values, "cases": rows}


def _print_cases(values: dict[str, Any]) -> None:
    for name, row in values["cases"].items():
        for system in ("reverb", "relive"):
            outcome = row[system]
            shown = outcome.get("detail", "") if outcome["verdict"] == FAILED else outcome["observed"]
            print(f"{name} | {system}: {outcome['verdict']}: {shown} {outcome.get('notes', '')}")


if __name__ == "__main__":
    sys.exit(main())
