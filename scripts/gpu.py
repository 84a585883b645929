"""Runs everything that needs a GPU, one part after another, and ends with a table.

  tests   tests/gpu on the card; without a card, by Triton's interpreter
  soak    draws and gathers beside writers, checked row by row (tests/gpu/soak.py)
  bench   the measurements of benchmarks/gpu
  train   DQN and SAC on the card, to their marks (benchmarks/gpu/training.py)

Results, a log of each part, and summary.json go into one folder. The same command goes on after a stop: a part that
passed on the same card, with the same versions, sources and sizes, does not run again.

usage: python scripts/gpu.py [--only tests,bench] [--device auto|cuda|cpu] [--out runs/gpu] [--again] [--seconds 120]

Exit status: 0 if every part passed, 1 if a part did not, 2 if nothing could start, 130 after Ctrl-C or SIGTERM.
It needs Python and its standard library; the parts need more (`make gpu-wheel` packs it).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpu_parts import (
    KEPT,
    MOST_WORKERS,
    PASSED,
    STOPPED,
    TIMED_OUT,
    Outcome,
    Part,
    Sizes,
    last_lines,
    parts_of,
    probe,
    read_log,
    reason_against,
    run_part,
)

NAMES = ("tests", "soak", "bench", "train")
VERSIONS = ("card", "capability", "driver", "cuda", "torch", "triton", "numpy", "python", "relive", "cores")
SAME = ("card", "torch", "triton", "numpy", "python")  # else a part runs again
CPU_SECONDS, CARD_SECONDS = 30, 120  # of the soak
NOTHING_STARTED, INTERRUPTED = 2, 130  # exit statuses
SUMMARY = "summary.json"


def say(line: str = "") -> None:
    print(line, flush=True)


def key_of(part: Part, sizes: Sizes, machine: dict[str, Any]) -> dict[str, Any]:
    """All that the result of a part depends on, with a digest of the package and of the sources of the part."""
    total = hashlib.sha256()
    for folder in [*map(Path, machine.get("package", [])), part.module.parent]:
        for path in sorted([*folder.rglob("*.py"), *folder.rglob("_core*.so")]):
            total.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    key = {**{name: machine.get(name) for name in SAME}, "device": sizes.device, "size": part.size}
    return {**key, "sources": total.hexdigest()[:16]}


class Summary:
    """summary.json: the machine, and the outcome of each part with the key that it belongs to."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / SUMMARY
        try:
            self.parts: dict[str, dict[str, Any]] = dict(json.loads(self._path.read_text())["parts"])
        except (OSError, ValueError, KeyError, TypeError):
            self.parts = {}

    def passed(self, name: str, key: dict[str, Any]) -> dict[str, Any] | None:
        """The kept outcome of a part that passed with this key."""
        kept = self.parts.get(name, {})
        return kept if kept.get("result") == PASSED and kept.get("key") == key else None

    def save(self, machine: dict[str, Any], device: str) -> None:
        """Writes the file, whole or not at all."""
        tree = {"device": device, "machine": machine, "parts": self.parts}
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(tree, indent=1) + "\n")
        new.replace(self._path)


def run_all(parts: Sequence[Part], sizes: Sizes, machine: dict[str, Any], arguments: argparse.Namespace) -> int:
    """Runs the parts that have not passed yet. Returns the exit status."""
    out: Path = arguments.out
    summary, rows, interrupted = Summary(out), dict[str, Outcome](), False
    for number, part in enumerate(parts, 1):
        key, head, log = key_of(part, sizes, machine), f"[{number}/{len(parts)}] {part.name}", out / f"{part.name}.log"
        kept = None if arguments.again else summary.passed(part.name, key)
        if kept is not None:
            rows[part.name] = Outcome(KEPT, kept["seconds"], kept["log"], kept["last_line"], kept["remarks"])
            say(f"{head}: passed before, not repeated (--again repeats it)")
            continue
        reason = reason_against(part, machine)
        if reason:
            log.write_text(f"{reason}\n")
            outcome = Outcome("failed", 0.0, str(log), reason, [reason])
        else:
            say(f"{head}: starts, at most {part.limit_s:.0f} s, log {log}")
            try:
                outcome = run_part(part, log)
            except KeyboardInterrupt:
                outcome, interrupted = read_log(log, STOPPED, 0.0), True
        rows[part.name] = outcome
        summary.parts[part.name] = {**asdict(outcome), "key": key}
        summary.save(machine, sizes.device)
        tell(head, outcome)
        if interrupted:
            break
    say()
    say(table(rows))
    bad = [name for name, row in rows.items() if row.result not in (PASSED, KEPT)]
    if interrupted:
        say("stopped: the same command goes on with the parts that have not passed")
        return INTERRUPTED
    say(f"not passed: {', '.join(bad)}" if bad else "every part passed")
    return 1 if bad else 0


def tell(head: str, outcome: Outcome) -> None:
    """Prints the end of a part: its result, the work that it skipped, and the end of its log if it failed."""
    say(f"{head}: {outcome.result} in {outcome.seconds:.0f} s: {outcome.last_line}")
    for remark in outcome.remarks:
        say(f"    {remark}")
    if outcome.result in ("failed", TIMED_OUT):
        say(f"    --- the end of {outcome.log}:")
        for line in last_lines(Path(outcome.log)):
            say(f"    | {line}")


def table(rows: dict[str, Outcome]) -> str:
    """Part, result, seconds, log; in columns."""
    cells = [("part", "result", "seconds", "log")]
    cells += [(name, row.result, f"{row.seconds:.0f}", row.log) for name, row in rows.items()]
    widths = [max(len(line[column]) for line in cells) for column in range(3)]
    return "\n".join(
        f"{name:<{widths[0]}}  {result:<{widths[1]}}  {seconds:>{widths[2]}}  {log}"
        for name, result, seconds, log in cells
    )


def chosen_device(asked: str, machine: dict[str, Any]) -> str:
    """The device of the run. Raises SystemExit if a card is asked for and torch sees none."""
    if asked == "cuda" and "card" not in machine:
        say(f"no card: torch {machine.get('torch', '(missing)')} sees no CUDA device; nothing was run")
        raise SystemExit(NOTHING_STARTED)
    return asked if asked != "auto" else "cuda" if "card" in machine else "cpu"


def describe(machine: dict[str, Any], sizes: Sizes) -> None:
    """Prints the machine, and what a run without a card, or with these versions, cannot show."""
    say(", ".join(f"{name} {machine[name]}" for name in VERSIONS if name in machine))
    say(f"relive is that of {', '.join(machine.get('package', [])) or 'no folder'}")
    if sizes.device == "cpu":
        say("note: no card is used. Triton's interpreter runs the kernels, and every part is small")
        if str(machine.get("triton", "")).startswith("3.6."):
            say("note: the interpreter of Triton 3.6 cannot run these kernels with a recent NumPy. Triton 3.9.0 can")
    if sizes.num_workers == 1:
        say("note: the tests run in one process" + ("" if "xdist" in machine else ": pytest-xdist is not here"))


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(NAMES), help="names of parts, by commas")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto", help="auto: what torch sees")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"), help="folder of results and logs")
    parser.add_argument("--again", action="store_true", help="repeat parts that have passed")
    parser.add_argument("--seconds", type=int, help=f"of the soak: {CARD_SECONDS} on a card, {CPU_SECONDS} without one")
    arguments = parser.parse_args(words)
    arguments.only = arguments.only.split(",")
    unknown = [name for name in arguments.only if name not in NAMES]
    if unknown:
        parser.error(f"--only: names of {', '.join(NAMES)}, by commas, not {', '.join(unknown)}")
    arguments.out = Path(os.path.abspath(arguments.out))
    return arguments


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    arguments = parse()
    for number in (signal.SIGINT, signal.SIGTERM):  # also if the shell that started this ignores SIGINT
        signal.signal(number, interrupt)
    try:
        machine = probe()
        device = chosen_device(arguments.device, machine)
        workers = min(MOST_WORKERS, machine["cores"]) if "xdist" in machine else 1
        seconds = arguments.seconds or (CARD_SECONDS if device == "cuda" else CPU_SECONDS)
        sizes = Sizes(device, seconds, workers)
        describe(machine, sizes)
        arguments.out.mkdir(parents=True, exist_ok=True)
        parts = [part for part in parts_of(sizes, arguments.out) if part.name in arguments.only]
        return run_all(parts, sizes, machine, arguments)
    except KeyboardInterrupt:
        say("stopped")
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
