"""The questions that a loader asks a table's handle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

__all__ = ["GivenUp", "Loadable"]


@final
class GivenUp:
    """A draw that this rank gave up, because another rank was late or a signal ended the call."""

    is_used: bool | None = None  # whether the ranks then made the draw, or skipped it as made; None: not known yet


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

    @property
    def num_shared_draws(self) -> int:
        """Number of draws of all ranks on which this handle has gone on. Draws that this rank skipped do not count."""
        return 0

    @property
    def given_up_draw(self) -> GivenUp | None:
        """The draw that this rank gave up and whose outcome it does not know; None if there is none."""
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

    def number_draw_on(self, stream: int, number: int) -> None:
        """Gives the next draw the random numbers that the draw of this number has on a handle of that stream.

        Call number_draws before the draw after it. A handle over several shards, and one whose draws a server numbers,
        draw on the streams that they have.
        """
        self.number_draws(number)
