"""The questions that a loader asks a table's handle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Loadable"]


class Loadable:
    """The answers of a handle that draws alone, cannot be opened again and does not number its draws."""

    @property
    def num_ranks(self) -> int:
        """The ranks that share one draw with this handle; 1 for a handle that draws alone."""
        return 1

    @property
    def next_shared_draw(self) -> int | None:
        """The number of the next draw of the ranks that share draws; None for a handle that draws alone.

        Ranks that agreed on a draw never make it again: its number is used up on each rank, also on one that failed.
        """
        return None

    def reopens(self) -> Callable[[int], Any] | None:
        """A function of a stream number that opens one more handle, in any process; None: no such function exists."""
        return None

    @property
    def next_draw(self) -> int | None:
        """The number that the next draw of this handle takes; None where another process numbers the draws."""
        return None

    def number_draws(self, number: int) -> None:
        """Gives the next draw this number, and later draws the following ones.

        Does nothing where a server numbers the draws.
        """
        return
