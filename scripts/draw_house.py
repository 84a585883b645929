"""Draws docs/images/house.svg: `python scripts/draw_house.py`.

Floors and rooms are read from the tests that hold them (tests/architecture), so that the picture cannot say otherwise.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "images" / "house.svg"
INK, SOFT, PAPER = "#1f2933", "#66788a", "#ffffff"
PYTHON, BINDINGS, CORE, BYTES = ("#dcefe2", "#3f8f5f"), ("#f6e6d2", "#b0722a"), ("#d9e8f3", "#2f6f9f"), ("#eef2f6", INK)
WIDTH, LEFT, NAMES, ROW, GAP = 980, 30, 190, 27, 4

# The subject of each floor or room, by one of its names.
NOTES = {
    "cli": "commands: train, serve, inspect, doctor, ls, rm",
    "train": "runs: actors, learners, evaluation, checkpoints, tuner",
    "agents": "agents: one file for each algorithm, policies on numpy",
    "fleet": "a table over shards; reads on a GPU; environments recorded into lanes",
    "service": "a table of another machine: messages, client, server",
    "over": "mixtures of tables, patterns of items, data loaders",
    "table": "the handle of every table; the local table; attach, connect, list, remove",
    "reading": "draws and batches; rows and late columns on their way to a core",
    "saving": "saves of a table: files, folders, loading",
    "core": "the interface of every table and of every core; open handles closed",
    "config": "the frozen values that a table is built from: steps, indexes, storage",
    "checks": "values, names and parts that callers give",
    "errors": "errors: type and fields, then a sentence",
}
ROOMS = {
    "save": "the bytes of a save, written while the table is in use",
    "table": "a handle; reading, changing and looking apart; tiers that wrap it; writers and their lanes",
    "tiers": "bulk of pages on disk: the page file, staging, the threads that spill and read",
    "read": "from leaves to windows to rows, without the lock; no window but a whole one",
    "pages": "the lock; the life of pages and lanes; publication, eviction, recovery",
    "index": "the life of a leaf; the kinds of samplers and removers; no other room names a tree",
    "words": "the bytes of a region and their names; tree, limiter, random numbers, waiting",
}


def constant(test: str, name: str) -> Any:
    """The value that a test of the architecture gives to `name` at its top."""
    tree = ast.parse((ROOT / "tests" / "architecture" / test).read_text())
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return ast.literal_eval(node.value)  # type: ignore[attr-defined]
    raise LookupError(f"{test} has no {name}")


def text(
    x: float, y: float, words: str, size: float = 13, fill: str = INK, anchor: str = "start", bold: bool = False
) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x}" y="{y}" font-size="{size}" fill="{fill}" text-anchor="{anchor}"{weight}>{words}</text>'


def box(y: float, height: float, colours: tuple[str, str]) -> str:
    shape = f'x="{LEFT}" y="{y}" width="{WIDTH - 2 * LEFT}" height="{height}" rx="5"'
    return f'<rect {shape} fill="{colours[0]}" stroke="{colours[1]}" stroke-width="1.1"/>'


def floor(y: float, names: str, note: str, colours: tuple[str, str]) -> list[str]:
    return [
        box(y, ROW, colours),
        text(LEFT + 12, y + 18, names, 13, INK, bold=True),
        text(LEFT + NAMES, y + 18, note, 12.5, INK),
    ]


def stack(y: float, title: str, floors: list[tuple[str, str]], colours: tuple[str, str]) -> tuple[list[str], float]:
    shapes = [text(LEFT, y + 14, title, 12, SOFT)]
    y += 22
    for names, note in floors:
        shapes += floor(y, names, note, colours)
        y += ROW + GAP
    return shapes, y + 10


def python_floors() -> list[tuple[str, str]]:
    floors = []
    for names in reversed(constant("test_floors.py", "FLOORS")):
        note = next((NOTES[name] for name in NOTES if name in names), "")
        floors.append((", ".join(sorted(names, key=lambda name: (name.startswith("_"), name))), note))
    return floors


def picture() -> str:
    parts = [text(LEFT, 40, "The house: everything stands on what is below it", 20, INK, bold=True)]
    shapes, y = stack(58, "src/relive: Python, numpy alone up to the table", python_floors(), PYTHON)
    parts += shapes
    bindings = [("cpp/bindings", "shapes and dtypes, the GIL released, statuses to exceptions")]
    shapes, y = stack(y, "between the two", bindings, BINDINGS)
    parts += shapes
    rooms = [(room, ROOMS.get(room, "")) for room in reversed(constant("test_rooms.py", "ROOMS"))]
    shapes, y = stack(y, "cpp/relive: C++20, knows nothing of Python", rooms, CORE)
    parts += shapes
    ground = [("one region", "header, pages, indexes, slabs: offsets only, docs/format.md; read by kernels as it lies")]
    shapes, y = stack(y, "the ground: bytes in memory, or in a file of shared memory", ground, BYTES)
    parts += shapes
    label = "Floors of the house from the bytes of a region over the rooms of the core to the commands"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y:.0f}" role="img" aria-label="{label}" '
        'font-family="Helvetica, Arial, sans-serif">'
    )
    paper = f'<rect width="{WIDTH}" height="{y:.0f}" fill="{PAPER}"/>'
    return "\n".join([head, paper, *parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    TARGET.write_text(picture())
