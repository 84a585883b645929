"""A writer for buffers of other libraries: it cuts a lane where the states that it gets do not continue."""

from __future__ import annotations

from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from relive.core.protocol import ReplayTable, ReplayWriter
from relive.errors import EpisodeTooLong, SeamMismatch

__all__ = ["CuttingWriter"]

Keys = NDArray[np.int64]


@final
class CuttingWriter:
    """Appends steps that were made elsewhere, and ends the episode of a lane as truncated where the lane has a seam.

    A lane has a seam if the state of a step differs from the next state of the step before it, although no end was
    given: a program called reset(), loaded a buffer, or ran out of steps of its rollout. No n-step return and no
    sequence crosses a seam. The step before it keeps its own next state.

    Cost: nothing as long as there is no seam: the table compares the states in any case.
    """

    def __init__(self, table: ReplayTable, num_lanes: int) -> None:
        """Opens a writer with num_lanes lanes, whose arrays have a lane axis."""
        self.writer: ReplayWriter = table.writer(num_lanes)
        self.num_cuts = 0
        self._most = num_lanes

    def append(self, lanes: NDArray[np.int64] | None = None, **columns: Any) -> Keys:
        """Appends one step to the lanes, as Writer.append does. Returns its keys int64[M]."""
        if lanes is not None:  # an argument more, even one that is None, makes the writer check all names again
            columns["lanes"] = lanes
        keys: Keys
        for _ in range(2 * self._most):
            try:
                keys = self.writer.append(**columns)
                return keys
            except (SeamMismatch, EpisodeTooLong) as error:
                self.cut(np.array([error.lane]))
        keys = self.writer.append(**columns)
        return keys

    def extend(self, lanes: NDArray[np.int64] | None = None, **columns: Any) -> Keys:
        """Appends T steps to the lanes, as Writer.extend does. Returns its keys int64[T, M].

        Inside the block no step may have a seam. The first step may.
        """
        for _ in range(2 * self._most):
            try:
                keys: Keys = self.writer.extend(lanes=lanes, **columns)
                return keys
            except SeamMismatch as error:
                if getattr(error, "stored", 0):
                    raise
                self.cut(np.array([error.lane]))
        keys = self.writer.extend(lanes=lanes, **columns)
        return keys

    def cut(self, lanes: NDArray[np.int64]) -> None:
        """Ends the open episodes of these lanes as truncated, at the next states that were given last."""
        if len(lanes):
            self.writer.end_episode(lanes=lanes, truncated=True)
            self.num_cuts += len(lanes)

    def close(self) -> None:
        """Closes the writer."""
        self.writer.close()
