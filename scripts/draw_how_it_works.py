"""Draws docs/images/how-it-works.svg: `python scripts/draw_how_it_works.py`."""

from __future__ import annotations

from pathlib import Path

WIDTH, HEIGHT = 980, 520
INK, SOFT, PAPER = "#1f2933", "#66788a", "#ffffff"
LANES = ("#2f6f9f", "#3f8f5f", "#b0722a")  # one colour a lane
LIGHT = ("#d9e8f3", "#dcefe2", "#f6e6d2")
WINDOW = "#c2313f"
CELL, GAP, PAGE_CELLS, NUM_PAGES = 18, 4, 8, 3
PAGE_WIDTH = PAGE_CELLS * CELL + 12
LEFT, TOP = 262, 288  # of the first page
LANE_HEIGHT = 48


def text(
    x: float, y: float, words: str, size: int = 13, fill: str = INK, anchor: str = "start", bold: bool = False
) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x}" y="{y}" font-size="{size}" fill="{fill}" text-anchor="{anchor}"{weight}>{words}</text>'


def box(x: float, y: float, w: float, h: float, fill: str, stroke: str, radius: int = 6, width: float = 1.2) -> str:
    shape = f'x="{x}" y="{y}" width="{w}" height="{h}" rx="{radius}"'
    return f'<rect {shape} fill="{fill}" stroke="{stroke}" stroke-width="{width}"/>'


def line(
    x1: float, y1: float, x2: float, y2: float, stroke: str = SOFT, width: float = 1.2, arrow: bool = False
) -> str:
    end = ' marker-end="url(#arrow)"' if arrow else ""
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{stroke}" stroke-width="{width}"{end}/>'


def cell_x(position: int) -> float:
    """Left edge of a lane's step, counted over its pages."""
    page, cell = divmod(position, PAGE_CELLS)
    return LEFT + page * (PAGE_WIDTH + GAP) + 6 + cell * CELL


def lanes() -> list[str]:
    filled = (21, 24, 14)
    shapes = []
    for lane, (colour, light) in enumerate(zip(LANES, LIGHT, strict=True)):
        y = TOP + lane * LANE_HEIGHT
        for page in range(NUM_PAGES):
            if page * PAGE_CELLS < filled[lane]:
                x = LEFT + page * (PAGE_WIDTH + GAP)
                shapes.append(box(x, y, PAGE_WIDTH, 32, PAPER, colour))
        for position in range(NUM_PAGES * PAGE_CELLS):
            if position < filled[lane]:
                shapes.append(box(cell_x(position) + 1.5, y + 8, CELL - 3, 16, light, colour, 2, 0.8))
    # One item of the first lane: a stack of four frames and three steps, over a page's end.
    start, steps = 5, 7
    left, right = cell_x(start) - 1, cell_x(start + steps - 1) + CELL + 1
    shapes.append(
        f'<rect x="{left}" y="{TOP + 3}" width="{right - left}" height="26" rx="5" fill="none" stroke="{WINDOW}" '
        'stroke-width="2.4"/>'
    )
    return shapes


def tree() -> list[str]:
    leaves_y, inner_y, root_y = 232, 196, 156
    root_x = LEFT + 1.5 * PAGE_WIDTH + GAP
    shapes = []
    masses = (3, 7, 2, 5, 9, 1, 4, 6, 14, 3, 5, 2, 8, 4, 6, 1, 7, 3, 0, 0, 0, 0, 0, 0)
    for page in range(NUM_PAGES):
        inner_x = LEFT + page * (PAGE_WIDTH + GAP) + PAGE_WIDTH / 2
        shapes.append(line(root_x, root_y + 11, inner_x, inner_y - 9))
        for cell in range(PAGE_CELLS):
            position = page * PAGE_CELLS + cell
            x = cell_x(position) + CELL / 2
            shapes.append(line(inner_x, inner_y + 9, x, leaves_y - 2, "#b8c4ce", 0.9))
            height = 2 + masses[position] * 1.9
            chosen = position == 8
            colour = WINDOW if chosen else "#8fa3b5"
            if masses[position]:
                shapes.append(
                    f'<rect x="{x - 5}" y="{leaves_y + 30 - height}" width="10" height="{height}" fill="{colour}"/>'
                )
        shapes.append(box(inner_x - 22, inner_y - 10, 44, 20, "#eef2f6", SOFT, 10))
        shapes.append(text(inner_x, inner_y + 4, "sum", 11, SOFT, "middle"))
    shapes.append(box(root_x - 28, root_y - 11, 56, 22, "#eef2f6", INK, 11))
    shapes.append(text(root_x, root_y + 4, "total", 12, INK, "middle"))
    return shapes


def region() -> list[str]:
    right = LEFT + NUM_PAGES * (PAGE_WIDTH + GAP)
    return [
        box(LEFT - 22, 60, right - LEFT + 40, 404, "#fafbfc", INK, 10, 1.6),
        text(LEFT - 6, 84, "one table, in one region of shared memory", 14, INK, bold=True),
        text(LEFT - 6, 108, "index: a tree over items; each leaf is a mass, priority ^ exponent,", 12, SOFT),
        text(LEFT - 6, 124, "a parent is always recomputed from its children", 12, SOFT),
        *tree(),
        *lanes(),
        text(
            LEFT - 6, TOP + 3 * LANE_HEIGHT + 6, "pages: runs of steps of one lane; every step is stored once", 12, SOFT
        ),
        text(
            LEFT - 6,
            TOP + 3 * LANE_HEIGHT + 23,
            "the red window is one item: stack of 4, n-step 3, across two pages",
            12,
            WINDOW,
        ),
    ]


def actors() -> list[str]:
    shapes = [
        text(30, 84, "actor processes", 14, INK, bold=True),
        text(30, 102, "environments, one lane each", 12, SOFT),
    ]
    for lane, (colour, light) in enumerate(zip(LANES, LIGHT, strict=True)):
        y = TOP + lane * LANE_HEIGHT - 2
        shapes.append(box(30, y, 118, 36, light, colour))
        shapes.append(text(89, y + 22, f"environment {lane + 1}", 12, INK, "middle"))
        shapes.append(line(150, y + 18, LEFT - 28, y + 18, colour, 2, True))
    shapes.append(text(193, TOP + 4, "append", 12, INK, "middle"))
    return [
        *shapes,
        text(30, 200, "limiter: writers or samplers", 12, SOFT),
        text(30, 216, "wait to keep the replay ratio,", 12, SOFT),
        text(30, 232, "at most until a deadline", 12, SOFT),
    ]


def learner() -> list[str]:
    x = LEFT + NUM_PAGES * (PAGE_WIDTH + GAP) + 82
    edge = x - 60
    return [
        text(x, 84, "learner", 14, INK, bold=True),
        line(edge, 164, x - 6, 164, WINDOW, 2, True),
        text(x, 160, "1. draw leaves", 12),
        text(x, 176, "by mass", 12),
        line(edge, 262, x - 6, 262, WINDOW, 2, True),
        text(x, 244, "2. gather their", 12),
        text(x, 260, "windows: stacks,", 12),
        text(x, 276, "n-step, next", 12),
        box(x, 290, 112, 40, "#fbeaec", WINDOW),
        text(x + 56, 315, "batch of 256", 12, INK, "middle"),
        line(x - 6, 384, edge, 384, INK, 2, True),
        text(x, 380, "3. update", 12),
        text(x, 396, "priorities by key", 12),
        text(x, 430, "a copy takes no lock", 12, SOFT),
    ]


def main() -> None:
    marker = (
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" '
        f'orient="auto-start-reverse"><path d="M0 0L8 4L0 8z" fill="{INK}"/></marker></defs>'
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'aria-label="Actors append steps to lanes of pages in shared memory; the learner draws items by a tree of '
        'sums, gathers their windows into a batch and updates priorities by key" '
        'font-family="Helvetica, Arial, sans-serif">'
    )
    title = text(30, 38, "How relive works", 20, INK, bold=True)
    paper = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="{PAPER}"/>'
    foot = text(
        30, 498, "A step is a row. A lane is the stream of steps of one environment. An item is a window over a lane: "
        "the table assembles it in a batch.", 12, SOFT
    )  # fmt: skip
    parts = [head, marker, paper, title, *actors(), *region(), *learner(), foot, "</svg>"]
    target = Path(__file__).resolve().parent.parent / "docs" / "images" / "how-it-works.svg"
    target.write_text("\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
