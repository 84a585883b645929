"""Counts the draws of each sampler and the items that each remover keeps: `python scripts/draw_choices.py`.

samplers.svg: 40 steps, each with its own version, the oldest on the left. Their priorities are at the top; the counts
of their draws are below. removers.svg: the 40 items that stay of 200 that were published in order. The script writes
both into docs/images, with the same result each time.
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from draw_how_it_works import LANES, LIGHT, PAPER, SOFT, text

import relive

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
WIDTH, LEFT, TOP, ROW, BAR = 760, 210, 92, 50, 36
SPEC = relive.StepSpec({"number": relive.ArraySpec((), "int64")})
NUM_ITEMS, NUM_WRITTEN = 40, 200
SAMPLERS: tuple[tuple[str, Any, int], ...] = (
    ("Uniform()", relive.Uniform(), 256),
    ("Prioritized(0.6)", relive.Prioritized(0.6), 256),
    ("Prioritized(2.0)", relive.Prioritized(2.0), 256),
    ("RankBased(0.7)", relive.RankBased(0.7), 256),
    ("TopK(10)", relive.TopK(10), 256),
    ("MaxPriority()", relive.MaxPriority(), 8),
    ("MinPriority()", relive.MinPriority(), 8),
    ("Fifo()", relive.Fifo(), 8),
    ("Lifo()", relive.Lifo(), 8),
    ("Fresh(last=12)", relive.Fresh(last=12), 256),
    ("Fresh(decay=0.9)", relive.Fresh(decay=0.9), 256),
)
REMOVERS: tuple[tuple[str, Any], ...] = (
    ("Fifo()", relive.Fifo()),
    ("Lifo()", relive.Lifo()),
    ("Uniform()", relive.Uniform()),
    ("Reservoir()", relive.Reservoir()),
    ("MinPriority()", relive.MinPriority()),
    ("MaxPriority()", relive.MaxPriority()),
    ("Prioritized(2.0)", relive.Prioritized(2.0)),
)
Numbers = npt.NDArray[np.float64]


def priorities_of(count: int) -> Numbers:
    """A wave, so that old and new items both have high and low priorities."""
    at = np.arange(count)
    return np.round(1.0 + 0.9 * np.sin(at * 2 * np.pi / 17) + 0.02 * (at * 7 % 5), 3)


def draws(sampler: Any, batch: int) -> Numbers:
    """The number of draws of each item, as a share of the largest."""
    with relive.Table(SPEC, 100, relive.Index(sampler=sampler), seed=1) as table, table.writer() as writer:
        written = []
        for version in range(NUM_ITEMS):
            table.set_policy_version(version)
            written.append(int(writer.append(number=version)))
        keys = np.array(written)
        if table.config.index["default"].has_priorities:
            table.update_priorities(keys, priorities_of(NUM_ITEMS))
        counts = np.zeros(NUM_ITEMS)
        for _ in range(400):
            np.add.at(counts, table.sample(batch)["number"], 1)
    return counts / counts.max()


def kept(remover: Any) -> Numbers:
    """1 for each item that stayed, 0 for the others."""
    index = relive.Index(remover=remover, max_items=NUM_ITEMS)
    with relive.Table(SPEC, NUM_WRITTEN, index, seed=1) as table, table.writer() as writer:
        given = priorities_of(NUM_WRITTEN)
        looks = index.has_priorities
        keys = [int(writer.append(number=n, priority=given[n] if looks else None)) for n in range(NUM_WRITTEN)]
        return np.asarray(table.gather(np.array(keys)).present, np.float64)


def bars(y: float, name: str, heights: Numbers, colour: int) -> list[str]:
    """One line: its name, and a bar for each item."""
    step = (WIDTH - LEFT - 24) / len(heights)
    parts = [text(LEFT - 14, y - 6, escape(name), 13, anchor="end")]
    parts.append(f'<path d="M{LEFT} {y} H{WIDTH - 24}" stroke="{SOFT}" stroke-width="1"/>')
    for n, height in enumerate(heights):
        if height > 0:
            parts.append(
                f'<rect x="{LEFT + n * step + 0.5:.1f}" y="{y - BAR * height:.1f}" width="{step - 1:.1f}"'
                f' height="{BAR * height:.1f}" fill="{LIGHT[colour]}" stroke="{LANES[colour]}" stroke-width="0.8"/>'
            )
    return parts


def picture(title: str, first: Numbers, lines: list[tuple[str, Numbers]], label: str) -> str:
    """The priorities, then a line for each kind."""
    height = TOP + ROW * len(lines) + 66
    parts = [text(WIDTH / 2, 30, escape(title), 16, anchor="middle")]
    parts += bars(TOP, "priority", first / first.max(), 2)
    for k, (name, heights) in enumerate(lines):
        parts += bars(TOP + ROW * (k + 1) + 8, name, heights, 0)
    bottom = TOP + ROW * len(lines) + 34
    parts.append(text(LEFT, bottom, "oldest", 12, anchor="start"))
    parts.append(text(WIDTH - 24, bottom, "newest", 12, anchor="end"))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"'
        f' aria-label="{escape(label)}" font-family="system-ui, sans-serif">'
    )
    return "\n".join([head, f'<rect width="{WIDTH}" height="{height}" fill="{PAPER}"/>', *parts, "</svg>"]) + "\n"


def pictures() -> dict[str, str]:
    """Each file's name and text."""
    samplers = [(name, draws(kind, batch)) for name, kind, batch in SAMPLERS]
    removers = [(name, kept(kind)) for name, kind in REMOVERS]
    return {
        "samplers.svg": picture(
            "how often each of 40 items is drawn",
            priorities_of(NUM_ITEMS),
            samplers,
            "Counts of draws by sampler: all alike, by priority, by rank, the best, the oldest or the newest items",
        ),
        "removers.svg": picture(
            "which 40 of 200 items stay",
            priorities_of(NUM_WRITTEN),
            removers,
            "Items that stay by remover: the newest, the oldest, any, a fair sample of all, the best or the worst",
        ),
    }


def main() -> int:
    for name, drawn in pictures().items():
        (IMAGES / name).write_text(drawn)
    return 0


if __name__ == "__main__":
    sys.exit(main())
