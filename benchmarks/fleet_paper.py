"""Computes the rates of 3, 16 and 256 machines from measured costs.

`python -m benchmarks.fleet_paper` writes the block of the design page, and the comparison in docs/fleet.md. All figures
come from benchmarks/results/fleet.json and nodes.json, those of more machines by the formula below. A test compares the
pages.

One rank draws a batch of n items and B bytes. M machines have one shard each, with equal masses. The rank asks
k = min(M - 1, n) of the shards:

    T(M) = x (M - 1) / W  +  a + B / (M m)  +  q a' + (1 - 1 / M) B / s        q = 1 or k

  x        time in which two ranks tell each other a root. A ring of M ranks takes M - 1 such steps, once for W draws
  a, m     the line through the times of the smallest and the largest batch of a shard that is mapped
  a', s    the same line for a shard of another node
  q = 1    all shards are asked at once and answer at the same time
  q = k    the shards are asked one after the other

A handle asks all shards at once, on one core that takes part in each answer. Its rate is therefore between the two.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import trajectories
from benchmarks.tables import markdown_table

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "design" / "fleet.md"
USERS_PAGE = ROOT / "docs" / "fleet.md"
BEGIN = "<!-- paper: this block is written by `python -m benchmarks.fleet_paper`; do not edit -->\n"
END = "<!-- /paper -->\n"
MACHINES = (1, 3, 16, 256)
ROOT_AGE = 64  # W
RANKS = 2  # a machine, as many as the one that was measured has cores
LINE_BYTES_PER_S = 25e9  # of a machine: 200 Gbit/s, an assumption
PATHS = ("by service", "by NIXL")
SERVICE = "by service"
PEERS = {"object store": "Ray's object store", "RayReplayBuffer": "RayReplayBuffer", "Reverb": "dm-reverb"}
ITEMS = {
    "transitions": "transitions of 60 B",
    "windows": "windows of 32 steps",
    "episodes": "episodes of 200 steps",
    "large rows": "rows of 110 kB",
}


class Line(NamedTuple):
    """A cost of a + B / rate seconds."""

    fixed_s: float
    bytes_per_s: float

    @classmethod
    def through(cls, small: tuple[float, float], large: tuple[float, float]) -> Line:
        """(bytes, seconds) of two batches. A machine that was busy may say less than 0 for the fixed part: then 0."""
        slope = max((large[1] - small[1]) / (large[0] - small[0]), 1e-15)
        return cls(max(small[1] - small[0] * slope, 0.0), 1.0 / slope)


class Batch(NamedTuple):
    """The size of the batch that a rank draws."""

    num_items: int
    num_bytes: float


def medians(nodes: dict[str, Any]) -> dict[str, float]:
    """Seconds by operation."""
    return {row["operation"]: row["median_us"] / 1e6 for row in nodes["rows"] if "median_us" in row}


def line_of(times: dict[str, float], load: str, path: str) -> Line | None:
    """The cost of a batch of this load by this path. None if it was not measured."""
    batches = trajectories.LOADS[load].batches
    sizes = (batches[0], batches[-1])
    names = [f"{load}, {path}, {size}" for size in sizes]
    if not all(name in times for name in names):
        return None
    points = [(trajectories.batch_bytes(load, size), times[name]) for size, name in zip(sizes, names, strict=True)]
    return Line.through(*points)


def batch_s(load: Batch, machines: int, exchange_s: float, local: Line, remote: Line, at_once: bool) -> float:
    """T(M)."""
    others = machines - 1
    asked = min(others, load.num_items)
    messages = min(asked, 1) if at_once else asked
    mine = local.fixed_s + load.num_bytes / machines / local.bytes_per_s
    theirs = messages * remote.fixed_s + load.num_bytes * others / machines / remote.bytes_per_s
    return exchange_s * others / ROOT_AGE + mine + theirs


def machine_rate(num_bytes: float, machines: int, seconds: float) -> float:
    """Bytes a second of a machine's ranks, no more than its line carries of what comes from others."""
    rate = RANKS * num_bytes / seconds
    remote = rate * (machines - 1) / machines
    return rate if remote <= LINE_BYTES_PER_S else LINE_BYTES_PER_S * machines / (machines - 1)


def shares(times: dict[str, float], path: str) -> list[list[str]]:
    """Shares of the time of a batch from another node: its choice, its copy, and the rest, which is communication."""
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
    """The text of the page's block."""
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
        f"{rows_gb_per_s['1 drawing']:.1f} GB/s by one process, {rows_gb_per_s['2 drawing']:.1f} by two "
        f"({fleet['machine']['cpu']}).\n"
    ]
    for path in PATHS:
        lines = shares(times, path)
        if len(lines) > 1:
            pieces += [f"A batch {path}, from one shard of another node:\n", markdown_table(lines)]
    table = [["items", "batch", "others are read", "machines", "us, asked at once", "us, one after another"]]
    table[0] += ["GB/s in all, at once", "one after another"]
    for load, paths in (("windows", PATHS[:1]), ("episodes", PATHS[:1]), ("large rows", PATHS)):
        local = line_of(times, load, "mapped")
        for path in paths:
            remote = line_of(times, load, path)
            if local is not None and remote is not None:
                table += _rows(load, path, exchange_s, local, remote)
    pieces.append(markdown_table(table))
    return "\n".join(pieces)


def _rows(load: str, path: str, exchange_s: float, local: Line, remote: Line) -> list[list[str]]:
    lines = []
    batches = trajectories.LOADS[load].batches
    for size in (batches[0], batches[-1]):
        asked = Batch(size, trajectories.batch_bytes(load, size))
        for machines in MACHINES:
            times = [batch_s(asked, machines, exchange_s, local, remote, at_once) for at_once in (True, False)]
            rates = [machines * machine_rate(asked.num_bytes, machines, seconds) / 1e9 for seconds in times]
            cells = [f"{seconds * 1e6:,.0f}" for seconds in times]
            cells += [f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}" for rate in rates]
            lines.append([load, f"{size:,}", "none" if machines == 1 else path, str(machines), *cells])
    return lines


def busy_cores(nodes: dict[str, Any]) -> dict[str, float]:
    """Cores that all processes of both nodes kept busy, by operation."""
    return {row["operation"]: row["cores_busy"] for row in nodes["rows"] if "cores_busy" in row}


def comparison(times: dict[str, float], busy: dict[str, float]) -> str:
    """A row for each kind and size of batch: microseconds, in brackets with four batches under way.

    The last column has the cores that are busy meanwhile, for the batches over two shards.
    """
    columns = {"mapped": "mapped", SERVICE: "service", "by NIXL": "NIXL", **PEERS}
    rows = [
        (min(_of_service(times, load, size) / _best_peer(times, load, size), 9.0), load, size)
        for load, (*_, sizes) in trajectories.LOADS.items()
        for size in sizes
    ]
    losing = sorted(row for row in rows if row[0] < 1.0)
    table = [["batch", *columns.values(), "service / best other", "two shards by service", "x of one by one"]]
    table[0].append("cores busy")
    for rate, load, size in losing + [row for row in rows if row[0] >= 1.0]:
        cells = [_both(times, load, name, size) for name in columns]
        two = [times[f"{load}, two shards by service{way}, {size}"] for way in ("", ", ahead")]
        both = _both(times, load, "two shards by service", size)
        kept = [busy.get(f"{load}, two shards by service{way}, {size}") for way in ("", ", ahead")]
        told = f"{kept[0]:.2f} ({kept[1]:.2f})" if kept[0] and kept[1] else ""
        table.append([f"{size:,} {ITEMS[load]}", *cells, f"{rate:.2f}", both, f"{two[0] / two[1]:.2f}", told])
    return markdown_table(table, right_from=1)


def _quicker(times: dict[str, float], load: str, name: str, size: int) -> float:
    return min(times.get(f"{load}, {name}{way}, {size}", math.inf) for way in ("", ", ahead"))


def _of_service(times: dict[str, float], load: str, size: int) -> float:
    """Batches a second of the service."""
    return 1.0 / _quicker(times, load, SERVICE, size)


def _best_peer(times: dict[str, float], load: str, size: int) -> float:
    """Batches a second of the fastest of the other libraries."""
    return 1.0 / min(_quicker(times, load, name, size) for name in PEERS)


def _both(times: dict[str, float], load: str, name: str, size: int) -> str:
    """The time of one by one, and in brackets that of several under way, if both were measured."""
    one, ahead = (times.get(f"{load}, {name}{way}, {size}") for way in ("", ", ahead"))
    told = [f"{one * 1e6:,.0f}"] if one is not None else []
    return " ".join(told + ([f"({ahead * 1e6:,.0f})"] if ahead is not None else []))


def page_with(text: str, page: str) -> str:
    """The page with this block. Raises ValueError where it has none."""
    begin, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    return page[:begin] + text + page[end:]


def measured() -> tuple[dict[str, Any], dict[str, Any]]:
    """fleet.json and nodes.json."""
    fleet, nodes = (json.loads((RESULTS / f"{name}.json").read_text()) for name in ("fleet", "nodes"))
    return fleet, nodes


def pages() -> dict[Path, str]:
    """The text of each page's block."""
    fleet, nodes = measured()
    return {PAGE: block(fleet, nodes), USERS_PAGE: comparison(medians(nodes), busy_cores(nodes))}


def main() -> int:
    for page, text in pages().items():
        page.write_text(page_with(text, page.read_text()))
        print(f"wrote {page.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
