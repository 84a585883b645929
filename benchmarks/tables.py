"""Results as text for a terminal, and as markdown for the results folder."""

from __future__ import annotations

from typing import Any

TIMES = ("median_us", "p10_us", "p90_us", "p99_us", "min_us")
HEADINGS = {
    "num_steps": "N",
    "operation": "operation",
    "batch": "batch",
    "contestant": "library",
    "median_us": "median us",
    "p10_us": "p10",
    "p90_us": "p90",
    "p99_us": "p99",
    "min_us": "min",
    "calls_per_s": "calls/s",
    "rows_per_s": "rows/s",
    "gigabytes": "GB",
    "gb_per_s": "GB/s",
    "cores_busy": "cores busy",
    "items_per_s": "items/s",
    "mb_per_s": "MB/s",
    "num_batches": "batches",
    "late_batches": "late",
    "read_mb_per_s": "read MB/s",
    "written_mb_per_s": "written MB/s",
    "reads_per_item": "read / item",
    "direct_io": "direct I/O",
}


def grid(values: dict[str, Any]) -> list[list[str]]:
    """Headings and rows as strings; columns no row has are left out."""
    rows = values["rows"]
    names = [name for name in HEADINGS if any(name in row for row in rows)]
    if any(len(row.get("round_medians_us", [])) > 1 for row in rows):
        heading = ["medians of rounds"]
    else:
        heading = []
    lines = [[HEADINGS[name] for name in names] + heading]
    for row in rows:
        cells = [cell(name, row.get(name)) for name in names]
        if heading:
            medians = row.get("round_medians_us", [])
            cells.append(f"{min(medians):,.4g} to {max(medians):,.4g}" if medians else "")
        lines.append(cells)
    return lines


def cell(name: str, value: Any) -> str:
    if value is None or (name == "batch" and value == 0):
        return ""
    if name in ("num_steps", "batch", "calls_per_s", "rows_per_s"):
        return f"{value:,.0f}"
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
    return str(value)


def aligned(lines: list[list[str]]) -> str:
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    numeric = [all(_is_number(line[column]) for line in lines[1:]) for column in range(len(widths))]
    text = []
    for position, line in enumerate(lines):
        pieces = (
            one.rjust(width) if right else one.ljust(width)
            for one, width, right in zip(line, widths, numeric, strict=True)
        )
        text.append("  ".join(pieces).rstrip())
        if position == 0:
            text.append("  ".join("-" * width for width in widths))
    return "\n".join(text) + "\n"


def markdown_table(lines: list[list[str]], right_from: int | None = None) -> str:
    """Columns of numbers are set right, or all columns from right_from on."""
    columns = range(len(lines[0]))
    if right_from is None:
        numeric = [all(_is_number(line[column]) for line in lines[1:]) for column in columns]
    else:
        numeric = [column >= right_from for column in columns]
    rule = "|" + "|".join("---:" if right else "---" for right in numeric) + "|"
    text = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([text[0], rule, *text[1:]]) + "\n"


def as_text(values: dict[str, Any]) -> str:
    return aligned(grid(values)) if values["rows"] else "nothing measured\n"


def as_markdown(values: dict[str, Any]) -> str:
    """Title, machine, versions, table, and what failed."""
    described = ", ".join(f"{name} {value}" for name, value in values["machine"].items())
    pieces = [f"# {values['part']}{' (quick run)' if values['quick'] else ''}\n", f"{described}\n"]
    for contestant, versions in values["versions"].items():
        pieces.append(f"- {contestant}: " + ", ".join(f"{name} {version}" for name, version in versions.items()))
    pieces.append("\n" + (markdown_table(grid(values)) if values["rows"] else "nothing measured\n"))
    if values["failures"]:
        pieces.append("Failed:\n\n" + "\n".join(f"- {failure}" for failure in values["failures"]) + "\n")
    return "\n".join(pieces)


def _is_number(text: str) -> bool:
    return not text or text.replace(",", "").replace(".", "").replace("e+", "").isdigit()
