"""Draws docs/images/topologies.svg, which processes a run consists of: `python scripts/draw_topologies.py`."""

from __future__ import annotations

from html import escape
from pathlib import Path

from draw_how_it_works import LANES, LIGHT, PAPER, SOFT, box, line, text

TARGET = Path(__file__).resolve().parent.parent / "docs" / "images" / "topologies.svg"
COLUMN, ROW = 300, 330
WIDTH, HEIGHT = 3 * COLUMN, 3 * ROW
ACTOR, TABLE, LEARNER = 1, 2, 0
INFERENCE = ("#f3dcea", "#a04a80")
IDLE = ("#eef2f6", SOFT)
LABEL = (
    "Seven topologies: inline, one process that acts and learns; actors, processes that write into the table beside one"
    " learner; learners in step, which share each batch and combine their gradients; learners out of step, which each"
    " draw a batch and hand gradients to a server of parameters; central inference, one process that infers the actions"
    " of all actors; double buffering, where one group of an actor's environments steps while the other is inferred;"
    " hosts, each with actors, a table and a learner, which share every update over the network"
)


def part(x: float, y: float, width: float, words: str, kind: int | tuple[str, str], height: float = 30) -> list[str]:
    """An actor, the table, a learner, or whatever has colours of its own."""
    light, dark = kind if isinstance(kind, tuple) else (LIGHT[kind], LANES[kind])
    return [
        box(x, y, width, height, light, dark),
        text(x + width / 2, y + height / 2 + 5, escape(words), 12, anchor="middle"),
    ]


def process(x: float, y: float, width: float, height: float) -> str:
    """The frame of a process."""
    shape = f'x="{x}" y="{y}" width="{width}" height="{height}" rx="9"'
    return f'<rect {shape} fill="none" stroke="{SOFT}" stroke-width="1.2" stroke-dasharray="5 4"/>'


def both_ways(x: float, top: float, bottom: float) -> list[str]:
    """Something goes down and something comes up."""
    return [line(x - 5, top, x - 5, bottom, arrow=True), line(x + 5, bottom, x + 5, top, arrow=True)]


def acting(columns: tuple[int, ...], y: float = 60, height: float = 56) -> list[str]:
    """A process an actor, above the table, which is shared."""
    parts: list[str] = []
    for number, at in enumerate(columns):
        parts += [process(at, y, 76, height), *part(at + 7, y + height / 2 - 14, 62, f"actor {number}", ACTOR, 28)]
        parts.append(line(at + 38, y + height + 2, at + 38, y + height + 20, arrow=True))
    return [*parts, *part(32, y + height + 22, 236, "table, shared", TABLE)]


def inline() -> list[str]:
    """One process around all of it."""
    parts = [process(30, 60, 240, 216)]
    parts += part(45, 74, 98, "actor 0", ACTOR) + part(157, 74, 98, "actor 1", ACTOR)
    parts += part(45, 154, 210, "table", TABLE) + part(45, 232, 210, "learner", LEARNER)
    for at in (94, 206):
        parts.append(line(at, 106, at, 150, arrow=True))
    return [*parts, line(150, 186, 150, 228, arrow=True)]


def actors() -> list[str]:
    """A process an actor; the table is shared."""
    parts = acting((32, 112, 192))
    parts += [process(32, 220, 236, 56), *part(45, 232, 210, "learner", LEARNER)]
    return [*parts, line(150, 170, 150, 216, arrow=True)]


def in_step() -> list[str]:
    """As many slices of a batch as learners."""
    parts = acting((72, 152))
    for number, at in enumerate((32, 160)):
        parts += [process(at, 220, 108, 56), *part(at + 8, 232, 92, f"learner {number}", LEARNER)]
        parts.append(line(at + 54, 170, at + 54, 216, arrow=True))
    parts += [line(142, 240, 158, 240, arrow=True), line(158, 256, 142, 256, arrow=True)]
    return parts


def out_of_step() -> list[str]:
    """A batch a learner; gradients go down to the server, parameters come back."""
    parts = acting((72, 152), 52, 44)
    for number, at in enumerate((32, 160)):
        parts += [process(at, 168, 108, 44), *part(at + 8, 176, 92, f"learner {number}", LEARNER, 28)]
        parts += [line(at + 54, 150, at + 54, 165, arrow=True), *both_ways(at + 54, 214, 237)]
    return [*parts, process(32, 240, 236, 44), *part(45, 248, 210, "parameters, optimizers", LEARNER, 28)]


def central() -> list[str]:
    """Observations go up to the inference process, actions come back."""
    parts = [process(32, 50, 236, 44), *part(45, 58, 210, "inference, a batch of all", INFERENCE, 28)]
    for number, at in enumerate((32, 112, 192)):
        parts += [process(at, 118, 76, 44), *part(at + 7, 126, 62, f"actor {number}", ACTOR, 28)]
        parts += [*both_ways(at + 38, 96, 115), line(at + 38, 164, at + 38, 178, arrow=True)]
    parts += part(32, 180, 236, "table, shared", TABLE)
    return [*parts, line(150, 212, 150, 229, arrow=True), process(32, 232, 236, 52), *part(45, 243, 210, "learner", 0)]


def double() -> list[str]:
    """Each actor has two groups: one steps while the actions of the other are inferred."""
    parts = [process(32, 50, 236, 44), *part(45, 58, 210, "inference", INFERENCE, 28)]
    for number, at in enumerate((32, 158)):
        groups = (("steps", ACTOR), ("waits", IDLE)) if number == 0 else (("waits", IDLE), ("steps", ACTOR))
        parts.append(process(at, 118, 110, 44))
        for place, (words, kind) in enumerate(groups):
            x = at + 6 + 51 * place
            parts += part(x, 126, 47, words, kind, 28)
            if words == "waits":
                parts += both_ways(x + 23, 96, 115)
            else:
                parts.append(line(x + 23, 164, x + 23, 178, arrow=True))
    parts += part(32, 180, 236, "table, shared", TABLE)
    return [*parts, line(150, 212, 150, 229, arrow=True), process(32, 232, 236, 52), *part(45, 243, 210, "learner", 0)]


def hosts() -> list[str]:
    """A frame a host; the learners' gradients meet between them. Twice as wide as the others."""
    parts: list[str] = []
    for number, at in enumerate((32, 332)):
        parts += [process(at, 50, 236, 234), text(at + 118, 72, f"host {number}", 12, SOFT, "middle")]
        for place, x in enumerate((at + 16, at + 126)):
            parts += [*part(x, 84, 94, f"actor {place}", ACTOR), line(x + 47, 116, x + 47, 140, arrow=True)]
        parts += [*part(at + 16, 144, 204, "table, shared", TABLE), line(at + 118, 176, at + 118, 212, arrow=True)]
        parts += part(at + 16, 216, 204, f"learner {number}", LEARNER, 44)
    parts += [line(256, 230, 344, 230, arrow=True), line(344, 248, 256, 248, arrow=True)]
    return [*parts, text(300, 222, "gradients", 11, SOFT, "middle")]


CELLS = (
    ("inline", "one process", inline),
    ("actors(3)", "one learner, actors beside it", actors),
    ("learners(2, sync)", "each a slice; one mean of the gradients", in_step),
    ("learners(2, async)", "each a batch; a server applies gradients", out_of_step),
    ("central(12, 500)", "actors have environments only", central),
    ("double(2)", "two groups: one steps, one is inferred", double),
    ("hosts(2)", "each a slice, drawn from its own table; one mean of the gradients", hosts),
)


def picture() -> str:
    """All of them, three beside each other."""
    arrow = (
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0 L8 4 L0 8 z" fill="{SOFT}"/></marker></defs>'
    )
    parts = []
    for number, (name, note, draw) in enumerate(CELLS):
        row, column = divmod(number, 3)
        parts.append(f'<g transform="translate({column * COLUMN}, {row * ROW})">')
        middle = COLUMN if draw is hosts else COLUMN / 2
        parts += [text(middle, 36, escape(name), 16, anchor="middle", bold=True), *draw()]
        parts += [text(middle, 306, escape(note), 12, SOFT, "middle"), "</g>"]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        f' aria-label="{escape(LABEL)}" font-family="system-ui, sans-serif">'
    )
    paper = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="{PAPER}"/>'
    return "\n".join([head, paper, arrow, *parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    TARGET.write_text(picture())
