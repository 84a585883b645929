"""Errors of lanes and episodes: seams, missing next states, capacity."""

from __future__ import annotations

from typing import final

from relive.errors.base import ReliveError

__all__ = ["AlreadyPublished", "CapacityTooSmall", "MissingNext", "SeamMismatch"]


@final
class CapacityTooSmall(ReliveError, ValueError):
    """The open lanes, or an index's min_size, need more steps than the table can keep.

    arithmetic: the derivation of `needed`, if a min_size needs it.
    """

    def __init__(self, capacity: int, needed: int, lanes: int | None = None, arithmetic: str = "") -> None:
        self.capacity = capacity
        self.needed = needed
        self.lanes = lanes
        self.arithmetic = arithmetic
        if arithmetic:
            super().__init__(
                f"capacity {capacity} is too small: at least {needed} steps are needed ({arithmetic}), or sampling"
                " would never begin; give a larger capacity, or a smaller min_size"
            )
            return
        super().__init__(
            f"capacity {capacity} is too small: at least {needed} steps are needed"
            + (f" with {lanes} open lane{'s' if lanes != 1 else ''}" if lanes else "")
            + "; every open lane must hold one whole window (stack - 1 + n_step, or burn_in + length + bootstrap, or"
            " max_length + bootstrap; one more where next is not given): give a larger capacity, or fewer lanes"
        )


@final
class SeamMismatch(ReliveError, ValueError):
    """The state of an append differs from the next_<state> that the append before it gave."""

    def __init__(self, lane: int, column: str) -> None:
        self.lane = lane
        self.column = column
        super().__init__(
            f"lane {lane}: column {column!r} differs from the next_{column} of the append before, which is already"
            " stored and may have been sampled; after an environment was reset say terminated or truncated, or call"
            " end_episode"
        )


@final
class MissingNext(ReliveError, ValueError):
    """A truncated step has no next state."""

    def __init__(self, lane: int) -> None:
        self.lane = lane
        super().__init__(
            f"lane {lane}: a truncated step needs its next_<state> columns to bootstrap from; give the final"
            " observation (Gymnasium has it in info['final_obs'] where it resets in the same step)"
        )


@final
class AlreadyPublished(ReliveError, ValueError):
    """end_episode was called on a lane whose last step is already an item, so that its end cannot be changed."""

    def __init__(self, lane: int) -> None:
        self.lane = lane
        super().__init__(
            f"lane {lane}: its last step is already published, so its end can no longer be set; say terminated or"
            " truncated in the append itself, or leave next_<state> out of it"
        )
