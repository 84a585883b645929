"""Compares the measured figures with the figures that relive aims at.

The comparison is printed and never asserted, because a busy machine is no failure.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.parts import atari, choices, locks
from benchmarks.tables import aligned, markdown_table

Rows = dict[str, list[dict[str, Any]]]


@dataclass(frozen=True)
class Demand:
    """One figure: it is reached when value(rows) is at most (or, with at_least, at least) the limit."""

    work: str
    figure: str
    must: float
    aim: float | None
    unit: str
    value: Callable[[Rows], float | None]
    at_least: bool = False


def median(
    rows: Rows, part: str, contestant: str, operation: str, batch: int, num_steps: int | None = None
) -> float | None:
    """The median of one row in microseconds; num_steps None: the largest table measured up to 1e6."""
    fitting = [
        row
        for row in rows.get(part, [])
        if (row["contestant"], row["operation"], row["batch"]) == (contestant, operation, batch)
        and (row["num_steps"] == num_steps if num_steps else row["num_steps"] <= 1_000_000)
    ]
    return max(fitting, key=lambda row: row["num_steps"])["median_us"] if fitting else None


def ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def hopper(contestant: str, operation: str, batch: int = 256) -> Callable[[Rows], float | None]:
    return lambda rows: median(rows, "hopper", contestant, operation, batch)


def _times_faster(part: str, other: str, operation: str) -> Callable[[Rows], float | None]:
    """How many times as long the other takes, at a batch of 256."""
    return lambda rows: ratio(median(rows, part, other, operation, 256), median(rows, part, "relive", operation, 256))


def _copy_share(source: str) -> Callable[[Rows], float | None]:
    return lambda rows: ratio(
        median(rows, "atari", "relive", f"memcpy, source in {source}", 256),
        median(rows, "atari", "relive", "sample, warm", 256),
    )


def _gigabytes(contestant: str) -> Callable[[Rows], float | None]:
    """Memory of a million steps. A smaller run says little, because fixed parts are a larger share of its memory."""

    def value(rows: Rows) -> float | None:
        for row in rows.get("memory", []):
            if row["contestant"] == contestant and row["num_steps"] == 1_000_000:
                return float(row["gigabytes"])
        return None

    return value


def _two_samplers(rows: Rows) -> float | None:
    rates = {row["operation"]: row["calls_per_s"] for row in rows.get("processes", [])}
    return ratio(rates.get("sample, 0 writing, 2 sampling"), rates.get("sample, 0 writing, 1 sampling"))


def _own_against_one_lock(rows: Rows) -> float | None:
    rates = {row["operation"]: row["rows_per_s"] for row in rows.get("locks", [])}
    return ratio(*(rates.get(f"both, {way}") for way in locks.WAYS))


def _shards(operation: str, root_age: int) -> Callable[[Rows], float | None]:
    """A batch over two shards against one of the same steps in one table."""

    def value(rows: Rows) -> float | None:
        ways = ("two shards, roots of " + str(root_age), "one table")
        return ratio(*(median(rows, "fleet", "relive shared", f"{operation}, {way}", 256) for way in ways))

    return value


def _two_ranks(rows: Rows) -> float | None:
    rates = {row["operation"]: row["rows_per_s"] for row in rows.get("fleet", []) if "rows_per_s" in row}
    return ratio(*(rates.get(f"rows of 28 kB, two shards, {number} drawing") for number in (2, 1)))


def _by_nixl(rows: Rows) -> float | None:
    """The rate of a gather by NIXL, as a share of the rate of a local gather of the same rows."""
    shares = {row["operation"]: row["of_local"] for row in rows.get("fleet", []) if "of_local" in row}
    return shares.get("gather of 32 rows of 110 kB, a shard, nixl")


def service(operation: str, batch: int = 256) -> Callable[[Rows], float | None]:
    return lambda rows: median(rows, "service", "relive service", operation, batch)


def _beside_reverb(rows: Rows) -> float | None:
    """One sample here against the quicker of Reverb's two ways, one of which has its batches made ahead."""
    ways = [median(rows, "service", "Reverb", "sample", 256)]
    for row in rows.get("service", []):
        if (row["contestant"], row["operation"]) == ("Reverb", "sample ahead"):
            ways.append(1e6 / row["calls_per_s"])
    known = [way for way in ways if way is not None]
    return ratio(min(known), service("sample")(rows)) if known else None


def _row_rate(operation: str) -> Callable[[Rows], float | None]:
    def value(rows: Rows) -> float | None:
        rates = [row["gb_per_s"] for row in rows.get("service", []) if row["operation"] == operation]
        return float(rates[0]) if rates else None

    return value


def _late(operation: str) -> Callable[[Rows], float | None]:
    def value(rows: Rows) -> float | None:
        late = [row["late_batches"] for row in rows.get("tiers", []) if row["operation"] == operation]
        return float(late[0]) if late else None

    return value


def _over_mapping(operation: str) -> Callable[[Rows], float | None]:
    """Items a second of a tiered table over those of a mapped file, plain or advised: the faster of the two."""

    def value(rows: Rows) -> float | None:
        rates = {r["contestant"]: r["items_per_s"] for r in rows.get("tiers", []) if r["operation"] == operation}
        mapped = [rate for contestant, rate in rates.items() if contestant.startswith("memory map")]
        return ratio(rates.get("relive tiered"), max(mapped, default=None))

    return value


def _windows_share(rows: Rows) -> float | None:
    """The speed of a gather of windows of 121 frames, as a share of the speed of memcpy."""
    of = [median(rows, "sequences", "relive", f"{what} of 121 frames", 64) for what in ("memcpy", "windows")]
    return ratio(*of)


def _growth(what: str) -> Callable[[Rows], float | None]:
    """How many times as much a batch's time grows from 1e5 steps to 1e7 as memcpy's of equally many windows."""

    def grown(rows: Rows, operation: str) -> float | None:
        few, many = (median(rows, "sequences", "relive", operation, 64, size) for size in (100_000, 10_000_000))
        return ratio(many, few)

    return lambda rows: ratio(grown(rows, f"{what} of 32"), grown(rows, "memcpy of 32"))


def _beside(operation: str, other: str, batch: int = 256) -> Callable[[Rows], float | None]:
    """How many times as long one operation of the part on choices takes as another of the same process."""
    return lambda rows: ratio(*(median(rows, "choices", "relive", of, batch) for of in (operation, other)))


def _chosen(what: str, sampler: str, most: float) -> Demand:
    """The time of one operation of a sampler, compared with the proportional sampler of the same process."""
    value = _beside(f"{what}, {sampler}", f"{what}, {choices.PROPORTIONAL} beside {sampler}")
    return Demand(f"{what} of 256, {sampler}", "x of the proportional one", most, None, "x", value)


def _drawn_where(share: float) -> Demand:
    value = _beside(f"sample where {share:g} passes", "sample without a condition")
    return Demand("sample where a share passes", f"{share:g}: x of none", 1.2 / share, None, "x", value)


def _recovered(sampler: str) -> Demand:
    """The first call that takes the lock of a dead holder, in a table of a million items."""

    def value(rows: Rows) -> float | None:
        taken_us = median(rows, "choices", "relive", f"recovery, {sampler}", 1)
        return None if taken_us is None else taken_us * 1e3 / 1_000_000

    return Demand(f"recovery of a million, {sampler}", "a leaf", 10, None, "ns", value)


SAMPLE = "prioritized sample of 256, gathered, keys, weights"
STACKS = "Atari stacks, sample 256, warm"
SERVED = "over loopback, prioritized sample of 256"
DEMANDS = (
    Demand(SAMPLE, "time", 28, 18, "us", hopper("relive", "sample")),
    Demand(SAMPLE, "Tianshou / relive", 5, None, "x", _times_faster("hopper", "Tianshou", "sample"), True),
    Demand("update_priorities of 256, just drawn", "time", 10, 5, "us", hopper("relive", "update")),
    Demand("append one step", "relive / SB3", 1, None, "x",
           lambda r: ratio(hopper("relive", "insert 1", 1)(r), hopper("SB3 uniform", "insert 1", 1)(r))),
    Demand("append one step", "time", 3.3, 1.5, "us", hopper("relive", "insert 1", 1)),
    Demand("append 256 lanes", "time", 40, 15, "us", hopper("relive", "insert 256 lanes")),
    Demand("12 nested columns against 5, sample 256", "ratio", 2, 1.5, "x",
           lambda r: ratio(median(r, "nested", "relive", "sample, 12 nested columns", 256),
                           median(r, "nested", "relive", "sample, 5 columns", 256))),
    Demand(STACKS, "share of memcpy, source in memory", 0.6, 0.8, "x", _copy_share("memory"), True),
    Demand(STACKS, "share of memcpy, source in cache", 0.6, 0.8, "x", _copy_share("cache"), True),
    Demand(STACKS, "SB3 / relive", 3, None, "x", _times_faster("atari", "SB3 uniform", "sample, warm"), True),
    Demand("64 windows of 121 frames of 84 x 84", "share of memcpy", 0.7, None, "x", _windows_share, True),
    Demand("a batch of sequences, 1e7 steps against 1e5", "growth / memcpy's", 1.3, None, "x", _growth("sequences")),
    Demand("a batch of episodes, 1e7 steps against 1e5", "growth / memcpy's", 1.3, None, "x", _growth("episodes")),
    *(_chosen("sample", sampler, most) for sampler, most in (("RankBased", 2.0), ("TopK 1%", 2.0))),
    *(_chosen("sample", f"Fresh({of})", 1.5) for of in ("last=1%", "decay=0.99")),
    _chosen("sample", choices.STALE, 1.5),
    *(_chosen("update", sampler, 3.0) for sampler in ("RankBased", "TopK 1%")),
    *(_drawn_where(share) for share in choices.SHARES),
    *(_recovered(sampler) for sampler in choices.RECOVERED),
    Demand("extend an index with a condition", "x of none", 1.05, None, "x",
           _beside("extend, all pass", "extend, no condition", choices.BLOCK)),
    Demand("append to an index with a condition", "x of none", 1.05, None, "x",
           _beside("append 20 steps, all pass", "append 20 steps, no condition", 1)),
    Demand("1e6 Atari steps, all touched", "process memory", 7.3, None, "GB", _gigabytes("relive")),
    Demand("1e6 Atari steps, all touched", "shared memory", 7.3, None, "GB", _gigabytes("relive shared")),
    Demand("two processes sampling against one", "throughput", 1.6, 1.9, "x", _two_samplers, True),
    Demand("2 write and 2 sample rows of 28 kB", "rows a second, of one lock's", 1.5, None, "x",
           _own_against_one_lock, True),
    Demand("256 over two shards, drawn ahead", "roots of 8: x of one table", 5, None, "x", _shards("drawn ahead", 8)),
    Demand("256 over two shards, drawn ahead", "roots of 1: x of one table", 5, None, "x", _shards("drawn ahead", 1)),
    Demand("28 kB rows over two shards", "two processes / one", 1.6, None, "x", _two_ranks, True),
    Demand("32 rows of 110 kB of a peer, by NIXL", "rate / a local gather's", 0.35, 0.8, "x", _by_nixl, True),
    Demand(SERVED, "time", 1000, 400, "us", service("sample")),
    Demand(SERVED, "quicker of Reverb's ways / relive", 3, 6, "x", _beside_reverb, True),
    Demand("over loopback, sample of 28 kB rows", "rate", 1, 1.5, "GB/s", _row_rate("sample, 28 kB rows"), True),
    Demand("over loopback, sample of 110 kB rows", "rate", 1, 1.5, "GB/s", _row_rate("sample, 110 kB rows"), True),
    Demand("over loopback, sample of 1 MB rows", "rate", 1, 1.5, "GB/s", _row_rate("sample, 1 MB rows"), True),
    Demand("over loopback, append one step, streamed", "time", 20, 10, "us", service("append, streamed", 1)),
    Demand("R2D2 at 1x, memory for 25 %", "late batches", 0, None, "", _late("R2D2 at 1x")),
    Demand("IMPALA at 1x, memory for 25 %", "late batches", 0, None, "", _late("IMPALA at 1x")),
    Demand("700 kB items, memory for 25 %", "relive / memory mapping", 1, None, "x",
           _over_mapping("full speed, 700 kB"), True),
    Demand("10 MB items, memory for 25 %", "relive / memory mapping", 1, None, "x",
           _over_mapping("full speed, 10 MB"), True),
)  # fmt: skip


def check(folder: Path) -> list[dict[str, Any]]:
    """Every demand with its figure, from the results that lie in the folder."""
    rows: Rows = {}
    for path in sorted(folder.glob("*.json")):
        saved = json.loads(path.read_text())
        if "rows" in saved:
            rows[saved["part"]] = saved["rows"]
    checked = []
    for demand in DEMANDS:
        value = demand.value(rows)
        checked.append(
            {
                "work": demand.work,
                "figure": demand.figure,
                "measured": None if value is None else round(value, 3),
                "unit": demand.unit,
                "must": demand.must,
                "aim": demand.aim,
                "at_least": demand.at_least,
                "verdict": _verdict(demand, value),
            }
        )
    return checked


def _verdict(demand: Demand, value: float | None) -> str:
    def reached(limit: float) -> bool:
        assert value is not None
        return value >= limit if demand.at_least else value <= limit

    if value is None:
        return "not measured"
    if not reached(demand.must):
        return "not reached"
    return "aim reached" if demand.aim is not None and reached(demand.aim) else "must reached"


def _grid(checked: list[dict[str, Any]]) -> list[list[str]]:
    lines = [["work", "figure", "measured", "must", "aim", ""]]
    for one in checked:
        sign = ">=" if one["at_least"] else "<="
        unit = one["unit"]
        lines.append(
            [
                one["work"],
                one["figure"],
                "" if one["measured"] is None else f"{one['measured']:.3g} {unit}",
                f"{sign} {one['must']:g} {unit}",
                "" if one["aim"] is None else f"{sign} {one['aim']:g} {unit}",
                one["verdict"],
            ]
        )
    return lines


def as_text(checked: list[dict[str, Any]]) -> str:
    return aligned(_grid(checked))


def as_markdown(checked: list[dict[str, Any]]) -> str:
    written = atari.written_bytes(256) / 1e6
    note = f"A batch of 256 stacks, observation and next, is {written:.1f} MB written. memcpy: numpy copies as much.\n"
    return "# targets\n\n" + markdown_table(_grid(checked)) + "\n" + note
