"""Errors of items that have more than one step."""

from __future__ import annotations

from typing import final

from relive.errors.base import ReliveError

__all__ = ["EpisodeMismatch", "EpisodeTooLong", "RareItems", "RowGone", "RowsApart"]


@final
class EpisodeMismatch(ReliveError, ValueError):
    """A step has another value in a column of kind 'episode' than its episode. Nothing was stored."""

    def __init__(self, lane: int, column: str) -> None:
        self.lane = lane
        self.column = column
        super().__init__(
            f"lane {lane}: column {column!r} is of kind 'episode': expected the same value with every step of an"
            " episode, got another than its first step had; end the episode before the value changes, or declare the"
            " column with kind='step'"
        )


@final
class EpisodeTooLong(ReliveError, ValueError):
    """A step would make an episode longer than Episodes(too_long='refuse') allows. Nothing was stored."""

    def __init__(self, lane: int, max_length: int) -> None:
        self.lane = lane
        self.max_length = max_length
        super().__init__(
            f"lane {lane}: the step would be number {max_length + 1} of its episode; expected episodes of at most"
            f" max_length = {max_length} steps; end the episode (truncated=True) before it, or use"
            " Episodes(too_long='head', 'tail' or 'random') or a larger max_length"
        )


@final
class RowGone(ReliveError, LookupError):
    """A row for an explicit item is not there: it is gone, it is still to come, or it is no step.

    Attributes:
        item: position in the call.
        window: the name of the window.
        key: the key that names the window's row.
        why: the reason, in words.
    """

    def __init__(self, item: int, window: str, key: int, why: str = "") -> None:
        self.item = item
        self.window = window
        self.key = key
        self.why = why
        super().__init__(
            f"item {item}: {_window_text(window)} at row {key} cannot be had: {why}; make items while their rows are"
            " there, or give the table a larger capacity"
        )


@final
class RowsApart(ReliveError, ValueError):
    """Rows for a window of an explicit item do not follow each other in one episode of one lane.

    Attributes:
        item: position in the call.
        window: the name of the window.
        key: the key that names the window's row.
        why: the reason, in words.
    """

    def __init__(self, item: int, window: str, key: int, why: str = "") -> None:
        self.item = item
        self.window = window
        self.key = key
        self.why = why
        super().__init__(
            f"item {item}: the rows of {_window_text(window)} at row {key} are no window: {why}; give it fewer rows, or"
            " the rest another window"
        )


def _window_text(window: object) -> str:
    return f"window {window!r}" if window else "its window"


@final
class RareItems(ReliveError, LookupError):
    """Too few items passed the condition of a draw. Nothing of the draw counts, neither for the limiter nor as uses.

    Attributes:
        where: the condition.
        asked: items of the draw.
        found: items that passed.
        looked_at: items that were drawn in proportion to mass and looked at.
        share: the part of `looked_at` that passed: about the share of the mass that passes.
    """

    def __init__(self, where: str, asked: int, found: int, looked_at: int, share: float) -> None:
        self.where = where
        self.asked = asked
        self.found = found
        self.looked_at = looked_at
        self.share = share
        super().__init__(
            f"where={where!r} was passed by {found} of {asked} items that were asked for, after {looked_at} were looked"
            f" at: a share of {share:.2g} of the mass; ask for fewer, or for what is less rare"
        )
