"""What 3, 16 and 256 machines would reach, on paper: `python -m benchmarks.fleet_paper` writes the design page's block.

Everything comes from benchmarks/results/fleet.json and nodes.json by the formulas below; a test compares the page.

One batch of B bytes on one rank, from M machines with one shard each and equal masses:

    T(M) = t_exchange (M - 1) / W  +  a_local + B / (M m)  +  (M - 1) a_remote + (1 - 1 / M) B / s

t_exchange: two ranks tell each other a root; a ring of M ranks takes M - 1 such steps, once for W draws. a_local and m:
the line through the times of the smallest and the largest batch of a shard that is mapped. a_remote and s: likewise of
a shard of another node, as though a rank asked one after another; what it asks of several at once it saves.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import trajectories
from benchmarks.tables import markdown_table

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "design" / "fleet.md"
BEGIN = "<!-- paper: this block is written by `python -m benchmarks.fleet_paper`; do not edit -->\n"
END = "<!-- /paper -->\n"
MACHINES = (1, 3, 16, 256)
ROOT_AGE = 64  # W
RANKS = 2  # a machine, as many as the one that was measured has cores
LINE_BYTES_PER_S = 25e9  # of a machine: 200 Gbit/s, an assumption
GEAR = {1: 17.1, 2: 29.1, 3: 33.0}  # GB/s on so many servers, as published
GEAR_BY_BATCH = (7.9, 36.0)


class Line(NamedTuple):
    """A cost of a + B / rate seconds."""

    fixed_s: float
    bytes_per_s: float

    @classmethod
    def through(cls, small: tuple[float, float], large: tuple[float, float]) -> Line:
        """(bytes, seconds) of two batches. A machine that was busy may say less than 0 for the fixed part: then 0."""
        slope = max((large[1] - small[1]) / (large[0] - small[0]), 1e-15)
        return cls(max(small[1] - small[0] * slope, 0.0), 1.0 / slope)


class Split(NamedTuple):
    """Seconds of a batch on one rank."""

    roots_s: float
    local_s: float  # choice and copy of what is mapped
    messages_s: float
    bytes_s: float

    @property
    def total_s(self) -> float:
        return sum(self)


def medians(nodes: dict[str, Any]) -> dict[str, float]:
    """Seconds by operation."""
    return {row["operation"]: row["median_us"] / 1e6 for row in nodes["rows"] if "median_us" in row}


def line_of(times: dict[str, float], load: str, path: str) -> Line | None:
    """Of a load by a path; None where it was not measured."""
    batches = trajectories.LOADS[load].batches
    sizes = (batches[0], batches[-1])
    names = [f"{load}, {path}, {size}" for size in sizes]
    if not all(name in times for name in names):
        return None
    points = [(trajectories.batch_bytes(load, size), times[name]) for size, name in zip(sizes, names, strict=True)]
    return Line.through(*points)


def split(num_bytes: float, machines: int, exchange_s: float, local: Line, remote: Line) -> Split:
    """T(M), in its parts."""
    others = machines - 1
    return Split(
        exchange_s * others / ROOT_AGE,
        local.fixed_s + num_bytes / machines / local.bytes_per_s,
        others * remote.fixed_s,
        num_bytes * others / machines / remote.bytes_per_s,
    )


def machine_rate(num_bytes: float, machines: int, one: Split) -> float:
    """Bytes a second of a machine's ranks, no more than its line carries of what comes from others."""
    rate = RANKS * num_bytes / one.total_s
    remote = rate * (machines - 1) / machines
    return rate if remote <= LINE_BYTES_PER_S else LINE_BYTES_PER_S * machines / (machines - 1)


def shares(times: dict[str, float], path: str) -> list[list[str]]:
    """Of a batch from another node: what its choice and its copy take, and what is left, which is communication."""
    lines = [["items", "batch", "us", "compute", "memory", "communication", "GB/s"]]
    for load, (_, _, _, sizes) in trajectories.LOADS.items():
        for size in sizes:
            total = times.get(f"{load}, {path}, {size}")
            if total is None:
                continue
            compute, memory = (times[f"{load}, {part}, {size}"] for part in ("compute", "memory"))
            rest = max(0.0, total - compute - memory)
            cells = [f"{part / (compute + memory + rest):.0%}" for part in (compute, memory, rest)]
            rate = trajectories.batch_bytes(load, size) / total / 1e9
            lines.append([load, f"{size:,}", f"{total * 1e6:,.0f}", *cells, f"{rate:.3g}"])
    return lines


def block(fleet: dict[str, Any], nodes: dict[str, Any]) -> str:
    """What stands in the page."""
    times = medians(nodes)
    exchange_s = times["transitions, exchange of roots, two ranks"]
    rows_gb_per_s = {
        row["operation"].split(", ")[-1]: row["rows_per_s"] * 28_000 / 1e9
        for row in fleet["rows"]
        if row["operation"].startswith("rows of 28 kB")
    }
    machine = nodes["machine"]
    pieces = [
        f"Measured: {machine['cpu']}, {machine['cores']} cores, load {machine['load_before']} as nodes.json began; two "
        f"ranks tell each other a root in {exchange_s * 1e6:,.0f} us; rows of 28 kB from mapped shards "
        f"{rows_gb_per_s['1 drawing']:.1f} GB/s by one process, {rows_gb_per_s['2 drawing']:.1f} by two.\n"
    ]
    for path in ("by service", "by NIXL"):
        lines = shares(times, path)
        if len(lines) > 1:
            pieces += [f"A batch {path}, from one shard of another node:\n", markdown_table(lines)]
    table = [["items", "batch", "others are read", "machines", "us a batch", "roots", "local", "messages", "bytes"]]
    table[0] += ["GB/s a machine", "GB/s in all"]
    for load in ("windows", "episodes", "large rows"):
        local = line_of(times, load, "mapped")
        for path in ("by service", "by NIXL"):
            remote = line_of(times, load, path)
            if local is not None and remote is not None:
                table += _rows(load, path, exchange_s, local, remote)
    pieces.append(markdown_table(table))
    return "\n".join(pieces)


def _rows(load: str, path: str, exchange_s: float, local: Line, remote: Line) -> list[list[str]]:
    lines = []
    batches = trajectories.LOADS[load].batches
    for size in (batches[0], batches[-1]):
        for machines in MACHINES:
            num_bytes = trajectories.batch_bytes(load, size)
            one = split(num_bytes, machines, exchange_s, local, remote)
            rate = machine_rate(num_bytes, machines, one) / 1e9
            parts = [f"{part / one.total_s:.0%}" for part in one]
            where = "none" if machines == 1 else path
            rates = [f"{rate:.3g}", f"{rate * machines:,.3g}"]
            lines.append([load, f"{size:,}", where, str(machines), f"{one.total_s * 1e6:,.0f}", *parts, *rates])
    return lines


def page_with(text: str, page: str) -> str:
    """The page with this block. Raises ValueError where it has none."""
    begin, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    return page[:begin] + text + page[end:]


def measured() -> tuple[dict[str, Any], dict[str, Any]]:
    """fleet.json and nodes.json."""
    fleet, nodes = (json.loads((RESULTS / f"{name}.json").read_text()) for name in ("fleet", "nodes"))
    return fleet, nodes


def main() -> int:
    PAGE.write_text(page_with(block(*measured()), PAGE.read_text()))
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
