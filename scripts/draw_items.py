"""Draws docs/images/items.svg, what each kind of item reads of an episode: `python scripts/draw_items.py`."""

from __future__ import annotations

from pathlib import Path

from draw_how_it_works import INK, LANES, LIGHT, PAPER, SOFT, WINDOW, box, text

WIDTH, ROW, CELL, LEFT, TOP = 980, 46, 34, 300, 70
STEPS = 10  # of the episode; its tail stands behind them
PICTURE = Path(__file__).resolve().parent.parent / "docs" / "images" / "items.svg"

# (what, note, first step, rows of burn-in, steps that carry loss, rows behind, rows of padding in front and behind)
ITEMS = (
    ("Transitions(n_step=3)", "a step, its return, the state after it", 2, 0, 3, 1, 0, 0),
    ("Transitions(stack=4)", "the frames before a step as well", 6, 3, 1, 1, 0, 0),
    ("Sequences(4, burn_in=2, bootstrap=1)", "loss begins at step 4", 4, 2, 4, 1, 0, 0),
    ("the first of them", "burn-in is padded with the first state", 0, 0, 4, 1, 2, 0),
    ('the last, at_end="pad"', "the tail, then padding", 8, 2, 2, 1, 0, 2),
    ('the last, at_end="shift"', "ends with the episode", 6, 2, 4, 1, 0, 0),
    ("Episodes(16, bootstrap=1)", "all of it, and its last state", 0, 0, 10, 1, 0, 0),
)


def cell(step: int, y: float, fill: str, stroke: str, words: str = "") -> list[str]:
    x = LEFT + (step + 2) * CELL
    shapes = [box(x + 2, y, CELL - 4, 26, fill, stroke, 4)]
    if words:
        shapes.append(text(x + CELL / 2, y + 18, words, 12, INK, "middle"))
    return shapes


def episode() -> list[str]:
    shapes = [text(24, TOP + 18, "an episode of ten steps", 14, INK, bold=True)]
    for step in range(STEPS):
        shapes += cell(step, TOP, LIGHT[0], LANES[0], str(step))
    return shapes + cell(STEPS, TOP, PAPER, LANES[0], "tail")


def item(number: int) -> list[str]:
    what, note, first, lead, steps, behind, front, rest = ITEMS[number]
    y = TOP + (number + 1) * ROW
    shapes = [text(24, y + 12, what, 13, INK, bold=True), text(24, y + 28, note, 12, SOFT)]
    for k in range(front):
        shapes += cell(first - lead - front + k, y, PAPER, SOFT, "pad")
    for k in range(lead):
        shapes += cell(first - lead + k, y, LIGHT[2], LANES[2])
    for k in range(steps):
        shapes += cell(first + k, y, LIGHT[1], WINDOW if k == 0 else LANES[1])
    for k in range(behind):
        shapes += cell(first + steps + k, y, PAPER, LANES[1])
    for k in range(rest):
        shapes += cell(first + steps + behind + k, y, PAPER, SOFT, "pad")
    return shapes


def picture() -> str:
    height = TOP + (len(ITEMS) + 1) * ROW + 50
    shapes = [box(0, 0, WIDTH, height, PAPER, PAPER, 0), text(24, 36, "What an item reads", 20, INK, bold=True)]
    shapes += episode()
    for number in range(len(ITEMS)):
        shapes += item(number)
    legend = "red edge: the step whose key the item has; green: loss; yellow: burn-in or stack; white: read behind"
    shapes.append(text(24, height - 20, legend, 12, SOFT))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"'
    label = 'aria-label="An episode and the rows that each kind of item reads of it"'
    return "\n".join([f'{head} {label} font-family="Helvetica, Arial, sans-serif">', *shapes, "</svg>"]) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(picture())
