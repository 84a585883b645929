"""Draws docs/images/topologies.svg, which processes a run consists of: `python scripts/draw_topologies.py`."""

from __future__ import annotations

from html import escape
from pathlib import Path

from draw_how_it_works import LANES, LIGHT, PAPER, SOFT, box, line, text

TARGET = Path(__file__).resolve().parent.parent / "docs" / "images" / "topologies.svg"
WIDTH, HEIGHT, COLUMN = 900, 330, 300
ACTOR, TABLE, LEARNER = 1, 2, 0
LABEL = (
    "Three topologies: inline, one process that acts and learns; actors, processes that write into the table beside one"
    " learner; learners, which share each batch and combine their gradients"
)


def part(x: float, y: float, width: float, words: str, kind: int) -> list[str]:
    """An actor, the table, or a learner."""
    return [
        box(x, y, width, 30, LIGHT[kind], LANES[kind]),
        text(x + width / 2, y + 20, escape(words), 12, anchor="middle"),
    ]


def process(x: float, y: float, width: float, height: float) -> str:
    """The frame of a process."""
    shape = f'x="{x}" y="{y}" width="{width}" height="{height}" rx="9"'
    return f'<rect {shape} fill="none" stroke="{SOFT}" stroke-width="1.2" stroke-dasharray="5 4"/>'


def inline(x: float) -> list[str]:
    """One process around all of it."""
    parts = [process(x + 30, 60, 240, 216)]
    parts += part(x + 45, 74, 98, "actor 0", ACTOR) + part(x + 157, 74, 98, "actor 1", ACTOR)
    parts += part(x + 45, 154, 210, "table", TABLE) + part(x + 45, 232, 210, "learner", LEARNER)
    for at in (94, 206):
        parts.append(line(x + at, 106, x + at, 150, arrow=True))
    return [*parts, line(x + 150, 186, x + 150, 228, arrow=True)]


def actors(x: float) -> list[str]:
    """A process an actor; the table is shared."""
    parts: list[str] = []
    for number, at in enumerate((32, 112, 192)):
        parts += [process(x + at, 60, 76, 56), *part(x + at + 7, 74, 62, f"actor {number}", ACTOR)]
        parts.append(line(x + at + 38, 118, x + at + 38, 150, arrow=True))
    parts += part(x + 32, 154, 236, "table, shared", TABLE)
    parts += [process(x + 32, 220, 236, 56), *part(x + 45, 232, 210, "learner", LEARNER)]
    return [*parts, line(x + 150, 186, x + 150, 216, arrow=True)]


def learners(x: float) -> list[str]:
    """As many slices of a batch as learners."""
    parts: list[str] = []
    for number, at in enumerate((72, 152)):
        parts += [process(x + at, 60, 76, 56), *part(x + at + 7, 74, 62, f"actor {number}", ACTOR)]
        parts.append(line(x + at + 38, 118, x + at + 38, 150, arrow=True))
    parts += part(x + 32, 154, 236, "table, shared", TABLE)
    for number, at in enumerate((32, 160)):
        parts += [process(x + at, 220, 108, 56), *part(x + at + 8, 232, 92, f"learner {number}", LEARNER)]
        parts.append(line(x + at + 54, 186, x + at + 54, 216, arrow=True))
    parts += [line(x + 142, 240, x + 158, 240, arrow=True), line(x + 158, 256, x + 142, 256, arrow=True)]
    return parts


def picture() -> str:
    """The three beside each other."""
    arrow = (
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0 L8 4 L0 8 z" fill="{SOFT}"/></marker></defs>'
    )
    parts = []
    names = ("inline", "actors(3)", "learners(2, sync)")
    notes = ("one process", "one learner, actors beside it", "each a slice; one mean of the gradients")
    for number, draw in enumerate((inline, actors, learners)):
        x = number * COLUMN
        parts += [text(x + COLUMN / 2, 36, names[number], 16, anchor="middle", bold=True), *draw(x)]
        parts.append(text(x + COLUMN / 2, 306, notes[number], 12, SOFT, "middle"))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        f' aria-label="{escape(LABEL)}" font-family="system-ui, sans-serif">'
    )
    paper = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="{PAPER}"/>'
    return "\n".join([head, paper, arrow, *parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    TARGET.write_text(picture())
