"""Tables of HTML, for objects that a notebook shows."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["html_table"]


def html_table(title: str, header: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """A table with a caption. Every text is escaped."""
    from html import escape  # here, so that `import relive` does not wait for it

    def row(cells: Iterable[object], tag: str) -> str:
        return f"<tr>{''.join(f'<{tag}>{escape(str(cell))}</{tag}>' for cell in cells)}</tr>"

    return (
        f"<table><caption>{escape(title)}</caption>"
        f"<thead>{row(header, 'th')}</thead><tbody>{''.join(row(one, 'td') for one in rows)}</tbody></table>"
    )
