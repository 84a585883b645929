"""Errors of items that are more than a step. Public names, which relive.errors gives out."""

from __future__ import annotations

from typing import final

from relive._error_base import ReliveError

__all__ = ["EpisodeTooLong"]


@final
class EpisodeTooLong(ReliveError, ValueError):
    """A step would make an episode longer than an index of Episodes(too_long='refuse') takes; nothing was stored."""

    def __init__(self, lane: int, max_length: int) -> None:
        self.lane = lane
        self.max_length = max_length
        super().__init__(
            f"lane {lane}: the step would be number {max_length + 1} of its episode; expected episodes of at most"
            f" max_length = {max_length} steps; end the episode (truncated=True) before it, or use"
            " Episodes(too_long='head' or 'tail') or a larger max_length"
        )
