"""Draws the rows that each kind of item reads, into docs/images: `python scripts/draw_items.py`.

items.svg: transitions, sequences, episodes. explicit.svg: windows that a call names, and patterns. late-columns.svg:
the items that can be drawn while steps are completed. ragged.svg, groups.svg: batches of episodes, and of groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

from draw_how_it_works import INK, LANES, LIGHT, PAPER, SOFT, WINDOW, box, text

WIDTH, ROW, CELL, LEFT, TOP = 760, 46, 31, 276, 64
IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
# Each kind of cell: (fill, edge, width of the edge, word). The word "#" stands for the number of the step.
KINDS = {
    "step": (LIGHT[0], LANES[0], 1.2, "#"),
    "tail": (PAPER, LANES[0], 1.2, "tail"),
    "key": (LIGHT[1], WINDOW, 2.2, "#"),
    "loss": (LIGHT[1], LANES[1], 1.2, "#"),
    "lead": (LIGHT[2], LANES[2], 1.2, "#"),
    "behind": (PAPER, LANES[1], 1.2, ""),
    "pad": (PAPER, SOFT, 1.2, "pad"),
    "waits": (PAPER, LANES[0], 1.2, "?"),
    "missing": (PAPER, WINDOW, 2.2, "?"),
}
Cells = tuple[tuple[str, range], ...]


@dataclass(frozen=True)
class Line:
    """A line of a picture: its title, a note below the title, and kinds of cells with their steps."""

    what: str
    note: str
    cells: Cells


@dataclass(frozen=True)
class Picture:
    """A file: its title, its lines from the top, a legend of the colours, and a label for screen readers."""

    name: str
    title: str
    lines: tuple[Line, ...]
    legend: tuple[str, ...]
    label: str


def cells(**kinds: range | int) -> Cells:
    """Cells of these kinds, each at some steps or at one."""
    return tuple((kind, range(at, at + 1) if isinstance(at, int) else at) for kind, at in kinds.items())


EPISODE = cells(step=range(10), tail=10)
ITEMS = Picture(
    "items",
    "The rows of an episode that an item reads",
    (
        Line("an episode of ten steps", "its tail row is the state after the last step", EPISODE),
        Line(
            "Transitions(n_step=3, stack=4)",
            "a step with its frames, its return, the state after",
            cells(lead=range(2, 5), key=5, loss=range(6, 8), behind=8),
        ),
        Line(
            "Sequences(4, burn_in=2, bootstrap=1)",
            "loss begins at step 4",
            cells(lead=range(2, 4), key=4, loss=range(5, 8), behind=8),
        ),
        Line(
            "the first of these sequences",
            "burn-in is padded with the first state",
            cells(pad=range(-2, 0), key=0, loss=range(1, 4), behind=4),
        ),
        Line(
            'the last sequence, at_end="pad"',
            "the last steps, the tail row, then padding",
            cells(lead=range(6, 8), key=8, loss=9, behind=10, pad=range(11, 13)),
        ),
        Line(
            'the last sequence, at_end="shift"',
            "a whole sequence that ends with the episode",
            cells(lead=range(4, 6), key=6, loss=range(7, 10), behind=10),
        ),
        Line(
            'the last sequence, at_end="drop"',
            "steps 8 and 9 carry no loss",
            cells(lead=range(2, 4), key=4, loss=range(5, 8), behind=8),
        ),
        Line(
            "Episodes(16, bootstrap=1)",
            "all steps, and the last state",
            cells(key=0, loss=range(1, 10), behind=10),
        ),
    ),
    (
        "red edge: the step whose key is the key of the item; green: steps of its return or loss;",
        "yellow: burn-in, or frames of a stack; white with a green edge: the row or state after them",
    ),
    "An episode and the rows that transitions, sequences and episodes read of it",
)
EXPLICIT = Picture(
    "explicit",
    "Items that you define",
    (
        Line("a lane of thirteen steps", "each row is named by its key", cells(step=range(13))),
        Line('an item: "past"', "(key of 6, -5): five rows that end there", cells(loss=range(2, 7))),
        Line('"now"', "the key of 6: one row, columns of its own", cells(loss=6)),
        Line('"far"', "Window(3, stride=4), from the key of 0", cells(loss=range(0, 9, 4))),
        Line("another item", '(key of 2, -3): fewer rows, and no "far"', cells(loss=range(3))),
        Line('Pattern({"past": 5}, every=2)', "makes an item at step 4", cells(lead=range(4), key=4)),
        Line("the same, two steps later", "makes an item at step 6", cells(lead=range(2, 6), key=6)),
        Line("at_end=True", "makes an item when step 12 ends the episode", cells(lead=range(8, 12), key=12)),
    ),
    (
        "green: rows of a window, named by keys; no step is stored twice;",
        "red edge: the new step at which a pattern makes an item; yellow: the rows before it",
    ),
    "Windows of explicit items over the steps of a lane, and the items that patterns make at new steps",
)
LATE = Picture(
    "late-columns",
    "Items that can be drawn while late rewards arrive",
    (
        Line("append(observation, action)", "eight steps are stored", cells(waits=range(8))),
        Line(
            "complete(keys[[5, 1]], reward=...)",
            "in any order",
            (("waits", range(8)), ("step", range(1, 6, 4))),
        ),
        Line(
            "complete(keys[[2, 0, 6]], reward=...)",
            "each step once",
            (("waits", range(8)), ("step", range(3)), ("step", range(5, 7))),
        ),
        Line("Transitions(n_step=3): the item of 0", "can be drawn", cells(key=0, loss=range(1, 3), behind=3)),
        Line("the item of 1", "waits for step 3", cells(key=1, loss=2, missing=3, behind=4)),
        Line("the item of 5", "waits for step 7", cells(key=5, loss=6, missing=7)),
    ),
    (
        "?: a step without its late columns; blue: a complete step;",
        "an item can be drawn when all of its steps are complete",
    ),
    "Steps that are completed in any order, and the items that can then be drawn",
)
RAGGED = Picture(
    "ragged",
    "Three episodes in a batch",
    (
        Line('layout="padded"', "an episode of five steps", cells(key=0, loss=range(1, 5))),
        Line("[B, T, ...]", "an episode of two steps, and padding", cells(key=0, loss=1, pad=range(2, 5))),
        Line("", "an episode of four steps, and padding", cells(key=0, loss=range(1, 4), pad=4)),
        Line(
            'layout="ragged"',
            "[rows, ...], offsets 0, 5, 7, 11",
            (("loss", range(11)), ("key", range(1)), ("key", range(5, 8, 2))),
        ),
    ),
    (
        "red edge: the first step of an episode; green: the other steps; grey: padding, which takes memory;",
        "a ragged batch has no padding; offsets are the positions at which the episodes begin",
    ),
    "A batch of three episodes, padded to the longest of them, and with their rows end to end",
)
PROMPTS: tuple[Cells, ...] = (
    (("loss", range(3)), ("lead", range(3, 5)), ("loss", range(5, 9))),
    (("lead", range(4)), ("loss", range(4, 6))),
)
GROUPS = Picture(
    "groups",
    "Groups of two episodes with the same prompt",
    (
        Line("lane 0: prompts 7, 8 and 7", "episodes of 3, 2 and 4 steps", PROMPTS[0]),
        Line("lane 1: prompts 8 and 7", "both end after the episodes of lane 0", PROMPTS[1]),
        Line("an item: the first two of 7", "[G, T, ...]: the first episode of lane 0", cells(loss=range(3))),
        Line("", "the last episode of lane 0; T is the longest", cells(loss=range(4))),
        Line("another item: the two of 8", "the episode of lane 0", cells(lead=range(2), pad=range(2, 4))),
        Line("", "the episode of lane 1", cells(lead=range(4))),
        Line("a group that waits", "prompt 7 of lane 1 waits for one more episode", cells(loss=range(2))),
    ),
    (
        "green: prompt 7; yellow: prompt 8; grey: padding, to the longest episode of the batch;",
        "episodes join a group in the order of their ends; a full group is an item",
    ),
    "Episodes of two lanes, and the groups of episodes with the same prompt",
)
PICTURES = (ITEMS, EXPLICIT, LATE, RAGGED, GROUPS)


def drawn_cells(line: Line, y: float) -> Iterator[str]:
    """The cells of a line. If a line names several kinds for a step, the last one is drawn."""
    for step, kind in {step: kind for kind, steps in line.cells for step in steps}.items():
        fill, edge, width, words = KINDS[kind]
        x = LEFT + (step + 2) * CELL
        yield box(x + 2, y, CELL - 4, 26, fill, edge, 4, width)
        if words:
            yield text(x + CELL / 2, y + 18, str(step) if words == "#" else words, 12, INK, "middle")


def picture(one: Picture) -> str:
    """The file of one picture, on white paper on every page."""
    height = TOP + len(one.lines) * ROW + 52
    shapes = [box(0, 0, WIDTH, height, PAPER, PAPER, 0), text(20, 36, one.title, 19, INK, bold=True)]
    for number, line in enumerate(one.lines):
        y = TOP + number * ROW
        shapes += [text(20, y + 11, escape(line.what, False), 13, INK, bold=True)]
        shapes += [text(20, y + 28, escape(line.note, False), 12, SOFT), *drawn_cells(line, y)]
    for number, words in enumerate(one.legend):
        shapes.append(text(20, height - 34 + 18 * number, words, 12, SOFT))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"'
    label = f'aria-label="{one.label}"'
    return "\n".join([f'{head} {label} font-family="Helvetica, Arial, sans-serif">', *shapes, "</svg>"]) + "\n"


if __name__ == "__main__":
    for one in PICTURES:
        (IMAGES / f"{one.name}.svg").write_text(picture(one))
