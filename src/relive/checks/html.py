"""Tables of HTML, for objects that a notebook shows."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

__all__ = ["html_table"]


def html_table(title: str, header: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """A table with a caption. Every text is escaped."""
    return (
        f"<table><caption>{escape(title)}</caption>"
        f"<thead>{_row(header, 'th')}</thead><tbody>{''.join(_row(row, 'td') for row in rows)}</tbody></table>"
    )


def _row(cells: Iterable[object], tag: str) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(str(cell))}</{tag}>' for cell in cells)}</tr>"
