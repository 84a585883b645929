"""Errors of recorders, and the sentence that an error gets if it kept a step from being stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from relive.errors import ReliveError
from relive.errors.base import plain

__all__ = [
    "DatasetUnreadable",
    "EnvironmentClosed",
    "GoneItems",
    "GoneValues",
    "NoEpisodeYet",
    "NotDrawable",
    "NotOffered",
    "NotProduced",
    "NotRegistered",
    "ReplacedState",
    "ResetNeeded",
    "UnseenLoss",
    "tell",
]


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


@final
class NoEpisodeYet(ReliveError, RuntimeError):
    """A buffer of hindsight goals was sampled before the first end of an episode."""

    def __init__(self) -> None:
        super().__init__(
            "no episode has ended yet, and a step has hindsight goals only when its episode has: expected a first end"
            " before the first sample; give learning_starts more steps than the longest episode has"
        )


@final
class UnseenLoss(ReliveError, RuntimeError):
    """The training step of an algorithm used a batch drawn by priority without a loss that can be weighed."""

    def __init__(self, algorithm: str, losses: Sequence[str]) -> None:
        self.algorithm = algorithm
        self.losses = tuple(losses)
        super().__init__(
            f"{algorithm}.train() used a batch that was drawn by priority, and its loss was not weighed: expected a"
            f" call of torch.nn.functional's {', '.join(self.losses)} with the critic's values [B, ...] and targets,"
            " got none; write train() with replay_buffer.weights and replay_buffer.update_priorities"
        )


@final
class NotDrawable(ReliveError, IndexError):
    """A place of a buffer of another library was read that has no transition."""

    def __init__(self, place: int, lane: int) -> None:
        self.place = place
        self.lane = lane
        super().__init__(
            f"place {place} of environment {lane} has no transition: expected a step that is stored and whose return is"
            " complete; the newest n_steps - 1 steps of an open episode wait for their last rewards"
        )


@final
class NotOffered(ReliveError, NotImplementedError):
    """A call of another library's class that its adapter does not have, or not in this state."""

    def __init__(self, where: str, what: str, instead: str) -> None:
        self.where = where
        self.what = what
        self.instead = instead
        super().__init__(f"{where} does not offer {what}; {instead}")


@final
class GoneItems(ReliveError, LookupError):
    """Items were read by keys that name no item any more, or none yet."""

    def __init__(self, number: int, key: int) -> None:
        self.number = number
        self.key = key
        super().__init__(
            f"{number} of the items that were asked for are not there, the first one with key {key}: expected keys of"
            " items that are stored and whose returns are complete; the oldest items leave when the buffer is full"
        )


class GoneValues(ReliveError, LookupError):
    """A value of a rollout was read that is not in the store any more, or not yet.

    Attributes:
        position: of the value in the call.
        key: the key of its first block that is gone; None if the value was never stored.
        num_bytes: the bytes of blocks that the store may have.
    """

    def __init__(self, position: int, key: int | None, num_bytes: int) -> None:
        self.position = position
        self.key = key
        self.num_bytes = num_bytes
        fault = "was never stored" if key is None else f"is gone from the store, from block {key} on"
        super().__init__(
            f"value {position} of this call {fault}: expected a value that was put, and neither cleared nor dropped;"
            f" a store drops its oldest values when its {num_bytes} bytes are full, and capacity= sets its size"
        )


@final
class NotRegistered(ReliveError, KeyError):
    """A name of a store of rollouts is used that was not registered."""

    def __init__(self, what: str, name: str, known: Sequence[str]) -> None:
        self.what = what
        self.name = name
        self.known = tuple(sorted(known))
        shown = ", ".join(self.known) or "none"
        super().__init__(
            f"the {what} {name!r} is not registered: expected one of {shown}; call register_partition first"
        )


@final
class ReplacedState(ReliveError, RuntimeError):
    """The state of a buffer was used after a call that returned a newer one."""

    def __init__(self) -> None:
        super().__init__(
            "this state was given to add() or set_priorities(), which changed its table: expected the state that the"
            " call returned, got the one before; write state = buffer.add(state, batch)"
        )


@final
class NotProduced(ReliveError, KeyError):
    """A field of a sample was read that is not there."""

    def __init__(self, sample: str, field: str, partition: str) -> None:
        self.sample = sample
        self.field = field
        self.partition = partition
        super().__init__(
            f"sample {sample!r} of partition {partition!r} has no field {field!r}: expected a field that was put and"
            " not cleared; claim_meta with required_fields waits for the fields"
        )
