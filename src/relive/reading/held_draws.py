"""Draws that are counted when they are handed out: needed by code that draws from several places at once."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from relive.core.request import DrawRequest

__all__ = ["HeldDraw", "HeldDraws"]


class HeldDraw(NamedTuple):
    """The result of a draw. arrays: those of the selection; empty without one."""

    arrays: list[npt.NDArray[Any]]
    item_keys: npt.NDArray[np.int64]
    probabilities: npt.NDArray[np.float64]
    num_live_items: int


class HeldDraws(Protocol):
    """Draws of a table. Each is in flight for the limiter until it is committed or given back. One thread at a time."""

    def draw(self, request: DrawRequest, timeout_s: float) -> HeldDraw:
        """Draws items, and gathers them if the request has a selection.

        Blocks and raises as sample does; 0 tries once.
        """
        ...

    def commit(self) -> None:
        """Hands out the oldest draw in flight."""
        ...

    def give_back(self) -> None:
        """Gives back the newest draw in flight: its items to the limiter, its uses, and the number of the draw."""
        ...

    def close(self) -> None:
        """Gives back all draws in flight. Closing twice is harmless."""
        ...
