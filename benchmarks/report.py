"""Rewrites the measured block of README.md from benchmarks/results: `python -m benchmarks.report`."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

from benchmarks.parts import atari
from benchmarks.tables import markdown_table
from benchmarks.targets import Rows, median, ratio

ROOT = Path(__file__).resolve().parent.parent
BEGIN = "<!-- benchmarks: this block is written by `make bench-report`; do not edit -->"
END = "<!-- /benchmarks -->"
PEERS = ("SB3 uniform", "Tianshou", "cpprb")
HOPPER = (
    ("sample 256, with keys and weights", "sample", 256),
    ("update 256 priorities, keys just drawn", "update", 256),
    ("append one step", "insert 1", 1),
    ("append one step of 256 environments", "insert 256 lanes", 256),
)


def microseconds(value: float | None) -> str:
    return "" if value is None else (f"{value:,.1f}" if value < 100 else f"{value:,.0f}")


def block(folder: Path) -> str:
    """The table, the sentence below it, and the machine."""
    saved = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
    rows: Rows = {name: values["rows"] for name, values in saved.items() if "rows" in values}
    lines = [["median microseconds", "relive", *PEERS]]
    for label, operation, batch in HOPPER:
        times = [median(rows, "hopper", name, operation, batch) for name in ("relive", *PEERS)]
        lines.append([label, *map(microseconds, times)])
    stacked = [median(rows, "atari", name, "sample, warm", 256) for name in ("relive", *PEERS)]
    lines.append(["sample 256 Atari transitions, stacks of 4", *map(microseconds, stacked)])
    gigabytes = {row["contestant"]: row["gigabytes"] * 1e6 / row["num_steps"] for row in rows.get("memory", [])}
    memory = [f"{gigabytes[name]:.1f} GB" if name in gigabytes else "" for name in ("relive", *PEERS)]
    lines.append(["memory of 1,000,000 Atari steps", *memory])
    return "\n".join([*_introduction(saved), markdown_table(lines, right_from=1), *_remarks(rows)])


def _introduction(saved: dict[str, Any]) -> list[str]:
    described = saved.get("hopper", {}).get("machine")
    if described is None:
        return ["Not measured yet.\n"]
    return [
        "The table has 1,000,000 steps of Hopper's size (observation 11, action 3, float32), or of Atari where a row",
        "says so. Draws are by priority, except SB3's. One thread makes the calls. The times include the Python call,",
        f"the random numbers and the gather. {described['cpu']}, {described['cores']} cores, "
        f"{described['memory_gb']:.0f} GB, Linux {described['kernel'].split('-')[0]}.\n",
    ]


def _remarks(rows: Rows) -> list[str]:
    share = ratio(
        median(rows, "atari", "relive", "memcpy, source in memory", 256),
        median(rows, "atari", "relive", "sample, warm", 256),
    )
    rates = {row["operation"]: row["calls_per_s"] for row in rows.get("processes", [])}
    one, two = rates.get("sample, 0 writing, 1 sampling"), rates.get("sample, 0 writing, 2 sampling")
    remarks = []
    if share is not None:
        size = atari.written_bytes(256) / 1e6
        remarks.append(
            f"A sample of 256 Atari transitions writes {size:.1f} MB of stacked frames. It is {share:.2f} times as"
            f" fast as a plain copy of {size:.1f} MB."
        )
    if one and two:
        remarks.append(
            f"Two processes that sample one shared table reach {two / one:.2f} times the rate of one process."
        )
    return textwrap.wrap(" ".join(remarks), 120, break_on_hyphens=False)


def main() -> int:
    readme = ROOT / "README.md"
    text = readme.read_text()
    head, found_begin, rest = text.partition(BEGIN)
    _, found_end, tail = rest.partition(END)
    if not (found_begin and found_end):
        print("README.md has lost its marked block", file=sys.stderr)
        return 1
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "benchmarks" / "results"
    readme.write_text(head + BEGIN + "\n" + block(folder).rstrip() + "\n" + END + tail)
    return 0


if __name__ == "__main__":
    sys.exit(main())
