"""What a loader asks of a table's handle: whose draws its draws are, their numbers, and one more handle elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Loadable"]


class Loadable:
    """A handle that draws alone, cannot be opened again, and does not number its draws, where it says nothing else."""

    @property
    def num_ranks(self) -> int:
        """Ranks of whose draws those of this handle are slices; 1 of one that draws alone."""
        return 1

    def reopens(self) -> Callable[[int], Any] | None:
        """What opens one more handle, in any process, that draws on a stream of this number; None where nobody can."""
        return None

    @property
    def next_draw(self) -> int | None:
        """The number that the next draw of this handle takes; None where it is not this handle's to say."""
        return None

    def number_draws(self, number: int) -> None:
        """The next draw takes this number, those behind it the next ones; nothing where numbers are a server's."""
        return
