"""Measures which fan-out a tree of sums should have: `python -m benchmarks.study_tree [--rounds 200]`.

Builds tests/cpp/study_tree.cpp, optimised, runs it once and writes its output to benchmarks/results/tree.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.run import RESULTS, ROOT, save
from benchmarks.tables import aligned, markdown_table

BUILD = ROOT / "build" / "study"
RELEASE = ("-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS_RELEASE=-O3 -DNDEBUG")
HEADINGS = ["leaves", "batch", "tree", "fan-out", "draw us", "update us", "both, of relive's", "lines a point"]


def build() -> Path:
    """The programme. Raises CalledProcessError where it does not build."""
    for command in (
        ["cmake", "-S", "tests/cpp", "-B", str(BUILD), "-G", "Ninja", *RELEASE],
        ["cmake", "--build", str(BUILD), "--parallel", "2", "--target", "study_tree"],
    ):
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return BUILD / "study_tree"


def table(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Headings and rows as strings; a draw with its update is compared with relive's of the same size and batch."""
    own = {(row["leaves"], row["batch"]): _both(row) for row in rows if row["tree"] == "relive"}
    lines = [HEADINGS]
    for row in rows:
        times = _both(row) / own[row["leaves"], row["batch"]]
        size = [f"{row['leaves']:,}", f"{row['batch']:,}", row["tree"], str(row["fanout"])]
        measured = [f"{row['draw_us']:.1f}", f"{row['update_us']:.1f}", f"{times:.2f}"]
        lines.append([*size, *measured, f"{row['lines'] / row['batch']:.2f}"])
    return lines


def _both(row: dict[str, Any]) -> float:
    return float(row["draw_us"] + row["update_us"])


def main() -> int:
    parser = argparse.ArgumentParser(description="Times trees of sums of several fan-outs.")
    parser.add_argument("--rounds", type=int, default=200, help="batches of each tree; medians of them are printed")
    arguments = parser.parse_args()
    done = subprocess.run([str(build()), str(arguments.rounds)], check=True, capture_output=True, text=True)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    values = {"part": "tree", "machine": machine.describe(), "rounds": arguments.rounds, "rows": rows}
    lines = table(rows)
    save("tree", RESULTS, values, markdown_table(lines, right_from=3) + "\n")
    print(aligned(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
