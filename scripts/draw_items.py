"""Draws what each kind of item reads, into docs/images: `python scripts/draw_items.py`.

items.svg: transitions, sequences, episodes. explicit.svg: windows that a call names, and patterns. late-columns.svg:
which items can be drawn while steps are completed. ragged.svg, groups.svg: batches of episodes, and of groups of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

from draw_how_it_works import INK, LANES, LIGHT, PAPER, SOFT, WINDOW, box, text

WIDTH, ROW, CELL, LEFT, TOP = 760, 46, 31, 276, 64
IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
# (fill, edge, width of the edge, words) of a cell; a word of "#" is the number of the step.
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
    """A line of a picture: what it shows, a note below it, and kinds of cells with the steps that they stand at."""

    what: str
    note: str
    cells: Cells


@dataclass(frozen=True)
class Picture:
    """A file: its title, its lines from above, what the colours say, and what it shows for those who do not see it."""

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
    "What an item reads of an episode",
    (
        Line("an episode of ten steps", "its tail is the state after the last", EPISODE),
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
            "the first of them",
            "burn-in is padded with the first state",
            cells(pad=range(-2, 0), key=0, loss=range(1, 4), behind=4),
        ),
        Line(
            'the last, at_end="pad"',
            "what is left, the tail, then padding",
            cells(lead=range(6, 8), key=8, loss=9, behind=10, pad=range(11, 13)),
        ),
        Line(
            'the last, at_end="shift"',
            "a whole one that ends with the episode",
            cells(lead=range(4, 6), key=6, loss=range(7, 10), behind=10),
        ),
        Line(
            'the last, at_end="drop"',
            "steps 8 and 9 carry no loss",
            cells(lead=range(2, 4), key=4, loss=range(5, 8), behind=8),
        ),
        Line(
            "Episodes(16, bootstrap=1)",
            "all of it, and its last state",
            cells(key=0, loss=range(1, 10), behind=10),
        ),
    ),
    (
        "red edge: the step whose key the item has; green: steps of its return or loss;",
        "yellow: burn-in, or frames of a stack; white with a green edge: the row or state behind",
    ),
    "An episode and the rows that transitions, sequences and episodes read of it",
)
EXPLICIT = Picture(
    "explicit",
    "What you say an item is",
    (
        Line("a lane of thirteen steps", "named by the keys of rows", cells(step=range(13))),
        Line('an item: "past"', "(key of 6, -5): five rows that end there", cells(loss=range(2, 7))),
        Line('"now"', "the key of 6: one row, columns of its own", cells(loss=6)),
        Line('"far"', "Window(3, stride=4), from the key of 0", cells(loss=range(0, 9, 4))),
        Line("another item", '(key of 2, -3): fewer rows, and no "far"', cells(loss=range(3))),
        Line('Pattern({"past": 5}, every=2)', "makes an item when step 4 comes", cells(lead=range(4), key=4)),
        Line("the same, two steps later", "and one when step 6 comes", cells(lead=range(2, 6), key=6)),
        Line("at_end=True", "one when step 12 ends the episode", cells(lead=range(8, 12), key=12)),
    ),
    (
        "green: rows of a window, which its item names by keys; no step is stored twice;",
        "red edge: the new step at which a pattern makes an item; yellow: the rows before it",
    ),
    "Windows of explicit items over the steps of a lane, and the items that patterns make as steps come",
)
LATE = Picture(
    "late-columns",
    "What can be drawn while rewards come late",
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
        "?: a step whose late columns are still to come; blue: complete;",
        "an item can be drawn once all of its steps are, whichever is the last",
    ),
    "Steps that are completed in any order, and the items that can be drawn by then",
)
RAGGED = Picture(
    "ragged",
    "Three episodes in a batch",
    (
        Line('layout="padded"', "an episode of five steps", cells(key=0, loss=range(1, 5))),
        Line("[B, T, ...]", "one of two, and padding", cells(key=0, loss=1, pad=range(2, 5))),
        Line("", "one of four, and padding", cells(key=0, loss=range(1, 4), pad=4)),
        Line(
            'layout="ragged"',
            "[rows, ...], offsets 0, 5, 7, 11",
            (("loss", range(11)), ("key", range(1)), ("key", range(5, 8, 2))),
        ),
    ),
    (
        "red edge: the first step of an episode; green: the others; grey: padding, which takes memory;",
        "end to end there is none, and offsets say where each episode begins",
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
        Line("lane 1: prompts 8 and 7", "the first ends behind lane 0's", PROMPTS[1]),
        Line("an item: the first two of 7", "[G, T, ...]: lane 0's first", cells(loss=range(3))),
        Line("", "and lane 0's last; T is that of the longest", cells(loss=range(4))),
        Line("another: those of 8", "lane 0's", cells(lead=range(2), pad=range(2, 4))),
        Line("", "and lane 1's", cells(lead=range(4))),
        Line("a group that waits", "lane 1's of 7, for one more", cells(loss=range(2))),
    ),
    (
        "green: prompt 7; yellow: prompt 8; grey: padding, to the longest episode of the batch;",
        "a group is an item when the last of its episodes has ended, in the order of their ends",
    ),
    "Episodes of two lanes, and the groups that those of one prompt form",
)
PICTURES = (ITEMS, EXPLICIT, LATE, RAGGED, GROUPS)


def drawn_cells(line: Line, y: float) -> Iterator[str]:
    """A step has the last of the kinds that a line names for it."""
    for step, kind in {step: kind for kind, steps in line.cells for step in steps}.items():
        fill, edge, width, words = KINDS[kind]
        x = LEFT + (step + 2) * CELL
        yield box(x + 2, y, CELL - 4, 26, fill, edge, 4, width)
        if words:
            yield text(x + CELL / 2, y + 18, str(step) if words == "#" else words, 12, INK, "middle")


def picture(one: Picture) -> str:
    """The file of one picture. Its paper is white whatever the page's is."""
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
