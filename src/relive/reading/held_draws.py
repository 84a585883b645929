"""Draws that count when they are handed out: what somebody who draws from several places at once holds meanwhile."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from relive.core.request import DrawRequest

__all__ = ["HeldDraw", "HeldDraws"]


class HeldDraw(NamedTuple):
    """What was drawn. arrays: of the selection, none of a draw without one."""

    arrays: list[npt.NDArray[Any]]
    item_keys: npt.NDArray[np.int64]
    probabilities: npt.NDArray[np.float64]
    num_live_items: int


class HeldDraws(Protocol):
    """Draws of a table, each in flight for the limiter until it is committed or given back. One thread at a time."""

    def draw(self, request: DrawRequest, timeout_s: float) -> HeldDraw:
        """Draws, and gathers where the request has a selection. Blocks and raises as sample does; 0 tries once."""
        ...

    def commit(self) -> None:
        """The oldest draw that is held is handed out."""
        ...

    def give_back(self) -> None:
        """The newest draw that is held is given back: to the limiter, the uses it took, and the number of the draw."""
        ...

    def close(self) -> None:
        """Gives back what is held. Closing twice is harmless."""
        ...
