"""Errors of late columns: given to a writer, or given twice."""

from __future__ import annotations

from typing import final

from relive.errors.base import ReliveError

__all__ = ["AlreadyCompleted", "LateColumn"]


@final
class LateColumn(ReliveError, ValueError):
    """A late column was given to a writer; or, with is_late False, a column that is not late was given to complete."""

    def __init__(self, column: str, is_late: bool = True) -> None:
        self.column = column
        self.is_late = is_late
        super().__init__(
            f"column {column!r} is late: its steps are written without it; leave it out here and give it by their keys,"
            f" table.complete(keys, {column.partition('/')[0]}=...)"
            if is_late
            else f"column {column!r} is not late: its steps were written with it and cannot be changed; declare it with"
            " late=True where it comes after them"
        )


@final
class AlreadyCompleted(ReliveError, ValueError):
    """The late columns of a step are filled already, or the step is named twice in one call of complete.

    Attributes:
        position, key: of the step.
        column: the first late column.
        applied: steps of this call that were filled before another call filled this one; 0: none.
    """

    def __init__(self, position: int, key: int, column: str = "", applied: int = 0) -> None:
        self.position = position
        self.key = key
        self.column = column
        self.applied = applied
        super().__init__(
            f"key {key} at position {position}: its column {column!r} was given already, and may have been sampled;"
            " complete each step once"
            + (f" (the first {applied} steps of this call that were still there are completed)" if applied else "")
        )
