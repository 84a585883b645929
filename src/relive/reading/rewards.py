"""The rewards of transitions whose goal Hindsight replaced, computed where the transitions are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt

from relive.config.casting import as_array, cast
from relive.config.hindsight import Hindsight
from relive.errors import InvalidConfig, ShapeMismatch, UnknownColumn
from relive.reading.batch import Batch
from relive.reading.holds import BatchSource, Taken

__all__ = [
    "RELABELLED",
    "ChangedSource",
    "Goals",
    "RewardFunction",
    "Rewarded",
    "check_reward",
    "extra_columns",
    "goals_of",
    "rewarded_by",
]

RELABELLED = "relabelled"  # the column that says which items have another goal than the stored one

RewardFunction: TypeAlias = Callable[[npt.NDArray[Any], npt.NDArray[Any], Any], Any]
Rewarded: TypeAlias = Callable[[Batch], Batch]  # computes the rewards of replaced goals in place


@final
@dataclass(frozen=True)
class Goals:
    """How the batches of one selection of columns get their rewards."""

    hindsight: Hindsight
    names: tuple[str, ...]

    @property
    def has_reward(self) -> bool:
        """Whether reward is among the columns."""
        return "reward" in self.names

    def check(self, reward: Any) -> None:
        """Raises InvalidConfig if the function cannot compute the rewards of a batch of these columns."""
        if reward is None and self.has_reward:
            expected = (
                "reward=function(achieved, goal, batch): this index draws steps with other goals than they were"
                " rewarded for; or columns= without 'reward'"
            )
            raise InvalidConfig("reward of a sample", expected, None)
        if reward is None:
            return
        if not callable(reward):
            raise InvalidConfig("reward of a sample", "a function(achieved, goal, batch), or None", reward)
        needed = ("reward", RELABELLED, self.hindsight.goal, f"next_{self.hindsight.achieved}")
        for name in needed:
            if name not in self.names:
                raise UnknownColumn(name, self.names, "reward= needs it: name it in columns=")

    def rewarded(
        self, batch: Batch, reward: RewardFunction | None, among: npt.NDArray[np.bool_] | None = None
    ) -> Batch:
        """The batch with the rewards of replaced goals computed in place.

        Args:
            batch: what was drawn.
            reward: the function; None: nothing is computed.
            among: bool[B], the items of this index; None: all.
        """
        if reward is None:
            return batch
        replaced = batch[RELABELLED]
        which = np.flatnonzero(replaced if among is None else replaced & among)
        if not which.size:
            return batch
        achieved, goal = batch[f"next_{self.hindsight.achieved}"][which], batch[self.hindsight.goal][which]
        rewards = batch["reward"]
        given = as_array("what reward= returned", reward(achieved, goal, batch.rows(which)))
        if given.shape != (which.size, *rewards.shape[1:]):
            raise ShapeMismatch("what reward= returned", (which.size, *rewards.shape[1:]), given.shape)
        rewards[which] = cast("what reward= returned", given, rewards.dtype)
        return batch


@final
class ChangedSource:
    """Batches of another source, each changed on the thread that takes it: with rewards computed, or in order."""

    def __init__(self, source: BatchSource, change: Rewarded) -> None:
        self._source = source
        self._change = change
        self._waiting: Taken | None = None  # still to be changed
        self.ask, self.cancel = source.ask, source.cancel

    def take(self) -> Taken | None:
        """As BatchSource.take(). If the function raises, the next call tries the same batch again."""
        taken = self._source.take() if self._waiting is None else self._waiting
        if taken is None:
            return None
        self._waiting = taken
        made = Taken(self._change(taken.batch), taken.hold)
        self._waiting = None
        return made

    def close(self) -> None:
        """As BatchSource.close(), with the batch that waits for its rewards."""
        self._source.close()  # its draws are newer than the batch that waits: their numbers go back first
        if self._waiting is not None:
            self._waiting.hold.give_back()
            self._waiting = None


def goals_of(sampler: object, names: tuple[str, ...]) -> Goals | None:
    """How batches of these columns get their rewards; None for an index without Hindsight."""
    return Goals(sampler, names) if isinstance(sampler, Hindsight) else None


def extra_columns(sampler: object) -> tuple[str, ...]:
    """The columns that the sampler adds to those of the items."""
    return (RELABELLED,) if isinstance(sampler, Hindsight) else ()


def check_reward(goals: Goals | None, reward: Any) -> None:
    """Raises InvalidConfig or UnknownColumn if batches of these columns cannot get their rewards from `reward`."""
    if goals is not None:
        goals.check(reward)
    elif reward is not None:
        raise InvalidConfig("reward of a sample", "None where the index has no Hindsight", reward)


def rewarded_by(goals: Goals, reward: RewardFunction | None) -> Rewarded:
    """The function that computes the rewards of batches of one index."""
    return lambda batch: goals.rewarded(batch, reward)
