"""Errors of recorders, and the sentence that an error gets if it kept a step from being stored."""

from __future__ import annotations

from typing import final

import numpy as np
from numpy.typing import NDArray

from relive.errors import ReliveError
from relive.errors.base import plain

__all__ = ["DatasetUnreadable", "EnvironmentClosed", "ResetNeeded", "tell"]


@final
class DatasetUnreadable(ReliveError, ValueError):
    """A file or folder does not have the form of the format in which it is to be read."""

    def __init__(self, path: object, expected: str, got: object) -> None:
        self.path = str(path)
        self.expected = expected
        self.got = plain(got)
        super().__init__(f"{self.path} cannot be read: expected {expected}, got {self.got}; name the format by format=")


@final
class EnvironmentClosed(ReliveError):
    """A recorded environment was used after it, or its recorder, was closed."""

    def __init__(self, environment: str) -> None:
        self.environment = environment
        super().__init__(f"{environment} is closed: make and record a new environment to go on")


@final
class ResetNeeded(ReliveError):
    """An environment should step before its first reset, or after an end without a reset."""

    def __init__(self, lane: int) -> None:
        self.lane = lane
        super().__init__(
            f"environment {lane} has no episode: call reset() first, and after an end too where the environment"
            " does not reset itself (of a vector: options={'reset_mask': mask})"
        )


def tell(error: ReliveError, lanes: NDArray[np.int64]) -> ReliveError:
    """Adds to an error that the step of these lanes is not stored, and sets `lanes_not_stored`. Returns the error."""
    names = ", ".join(map(str, lanes[:8])) + (", ..." if len(lanes) > 8 else "")
    error.args = (
        f"{error}; environment {names} took this step and it is not stored: the stored episode is cut before it, and"
        " recording goes on from what the environment shows after it",
    )
    setattr(error, "lanes_not_stored", tuple(int(lane) for lane in lanes))  # noqa: B010
    return error
