"""The writes that a recorder has planned and not made yet: steps, and ends of episodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from relive.adapters.rows import Flat, Lanes

__all__ = ["Append", "End"]


@final
@dataclass(frozen=True)
class Append:
    """A step of these lanes that is still to be written. over: the lanes whose episode ends with the step."""

    lanes: Lanes
    columns: dict[str, Any]
    over: NDArray[np.bool_]

    def after(self, num_stored: int) -> Append:
        """The step of the lanes after the first num_stored ones."""
        columns = {name: values[num_stored:] for name, values in self.columns.items()}
        return Append(self.lanes[num_stored:], columns, self.over[num_stored:])


@final
@dataclass(frozen=True)
class End:
    """An end, as truncated, that is still to be written, for lanes whose episode is open at the time of the write."""

    lanes: Lanes
    states: Flat
