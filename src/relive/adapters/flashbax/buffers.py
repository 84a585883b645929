"""The functions of a buffer, the handle that is its state, and its samples; a table has the steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np

from relive.adapters.errors import NotOffered, ReplacedState
from relive.adapters.flashbax.arrays import concrete, handed_over
from relive.adapters.flashbax.store import Plan, Store
from relive.errors import InvalidConfig
from relive.reading.batch import Batch
from relive.table.table import Table

__all__ = [
    "BufferState",
    "ExperiencePair",
    "PrioritisedTrajectoryBuffer",
    "PrioritisedTrajectoryBufferSample",
    "PrioritisedTransitionSample",
    "TrajectoryBuffer",
    "TrajectoryBufferSample",
    "TransitionSample",
]


class ExperiencePair(NamedTuple):
    """Two steps that follow each other, [N, ...] each."""

    first: Any
    second: Any


class TrajectoryBufferSample(NamedTuple):
    """A sample of a trajectory buffer [N, T, ...] or of an item buffer [N, ...]."""

    experience: Any


class TransitionSample(NamedTuple):
    """A sample of a flat buffer."""

    experience: ExperiencePair


class PrioritisedTrajectoryBufferSample(NamedTuple):
    """A sample by priority: `indices` int32[N] for set_priorities, and the probabilities float32[N] of the draw."""

    experience: Any
    indices: Any
    probabilities: Any


class PrioritisedTransitionSample(NamedTuple):
    """A sample of a prioritised flat buffer, with the fields of PrioritisedTrajectoryBufferSample."""

    experience: ExperiencePair
    indices: Any
    probabilities: Any


@final
class BufferState:
    """A handle of a table, in the place of Flashbax's arrays.

    `add` and `set_priorities` change the table and return a new handle. The handle that they were given is used up, as
    an argument that jax donates.

    Attributes:
        table: the relive table.
        current_index: the place in each row that the next step gets.
        is_full: whether each row has as many steps as it can have.
    """

    __slots__ = ("_store", "_version")

    def __init__(self, store: Store) -> None:
        self._store = store
        self._version = store.version

    def store_of(self, plan: Plan) -> Store:
        """The steps of this state. Raises ReplacedState or InvalidConfig if the buffer cannot use the state."""
        if self._store.plan != plan:
            raise InvalidConfig("state", "the state of this buffer, from its init", "the state of another buffer")
        if self._version != self._store.version:
            raise ReplacedState()
        return self._store

    @property
    def table(self) -> Table:
        """The relive table."""
        return self._store.table

    @property
    def current_index(self) -> Any:
        """The place in each row that the next step gets."""
        return handed_over(np.array(self._store.total % self._store.plan.most, np.int32))

    @property
    def is_full(self) -> Any:
        """Whether each row has as many steps as it can have."""
        return handed_over(np.array(self._store.total >= self._store.plan.most))


@dataclass(frozen=True)
class TrajectoryBuffer:
    """The functions of a buffer: init, add, sample and can_sample."""

    plan: Plan

    def init(self, experience: Any) -> BufferState:
        """The state of an empty buffer.

        Args:
            experience: one step, without axes of batch and time: a tree of arrays. It gives shapes and dtypes.
        """
        return BufferState(Store(self.plan, experience))

    def add(self, state: BufferState, batch: Any) -> BufferState:
        """Adds steps and returns the new state.

        Args:
            state: the newest state of this buffer.
            batch: a tree as that of init, with the axes of batch and time that the buffer was made for.

        Raises:
            ShapeMismatch, DtypeMismatch, InvalidConfig: the batch does not fit. Nothing is added.
            ReplacedState: the state is not the newest.
        """
        store = self._store(state)
        store.add(batch)
        return BufferState(store)

    def sample(self, state: BufferState, rng_key: Any = None) -> Any:
        """Draws sample_batch_size items. The table has random numbers of its own: rng_key is taken and not used.

        Raises:
            DeadlineExceeded: there is no item yet.
            ReplacedState: the state is not the newest.
        """
        concrete(rng_key, "sample")
        store = self._store(state)
        return self._sample(store, store.draw())

    def can_sample(self, state: BufferState) -> Any:
        """Whether each row has the minimum of steps: a bool without axes."""
        store = self._store(state)
        return handed_over(np.array(store.total >= self.plan.least))

    def replace(self, **functions: Any) -> Any:
        """Refused: it serves to put compiled functions in."""
        raise NotOffered(type(self).__name__, "replace()", "call add and sample as they are: they are not compiled")

    def _store(self, state: BufferState) -> Store:
        if not isinstance(state, BufferState):
            raise InvalidConfig("state", "the state that init or add of this buffer returned", type(state).__name__)
        return state.store_of(self.plan)

    def _sample(self, store: Store, batch: Batch) -> Any:
        kind = TransitionSample if self.plan.form == "pairs" else TrajectoryBufferSample
        return kind(_experience(store, batch))


@final
@dataclass(frozen=True)
class PrioritisedTrajectoryBuffer(TrajectoryBuffer):
    """The functions of a buffer with priorities: those of TrajectoryBuffer, and set_priorities."""

    def set_priorities(self, state: BufferState, indices: Any, priorities: Any) -> BufferState:
        """Sets the priorities of items, and returns the new state.

        Args:
            state: the newest state of this buffer.
            indices: those of a sample, int[M].
            priorities: finite and >= 0, [M]. If an index comes twice, its last priority counts.

        Raises:
            ShapeMismatch, DtypeMismatch, InvalidConfig, InvalidPriority: the arrays do not fit.
            ReplacedState: the state is not the newest.
        """
        store = self._store(state)
        store.set_priorities(indices, priorities)
        return BufferState(store)

    def _sample(self, store: Store, batch: Batch) -> Any:
        kind = PrioritisedTransitionSample if self.plan.form == "pairs" else PrioritisedTrajectoryBufferSample
        return kind(
            _experience(store, batch), store.indices(batch), handed_over(batch.probabilities.astype(np.float32))
        )


def _experience(store: Store, batch: Batch) -> Any:
    """The steps of a sample in the form that the buffer gives."""
    if store.plan.form == "pairs":
        return ExperiencePair(store.steps(batch, 0), store.steps(batch, 1))
    return store.steps(batch, np.s_[:, 0] if store.plan.form == "items" else ...)
