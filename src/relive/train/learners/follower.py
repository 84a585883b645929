"""Runs a follower of a group of learners; defines the batch that it shares with its leader, and the hash of its state.

learners/group.py has the protocol and the leader's side.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from relive.agents.agent import Agent, Spaces
from relive.agents.config import AgentConfig
from relive.train.learners.gradient_rows import LEADER, LOOK_S, UPDATE_AND_HASH, Bells, GradientRows
from relive.train.learners.numerics import learner_numerics
from relive.train.memory.shared_block import SharedBlock
from relive.train.memory.stopwatch import ProfileBoard, learner_name, stopwatch_of, timed_with

WEIGHTS, PRIORITIES = "importance weights", "new priorities"  # no column has these names: columns have no spaces


@final
@dataclass(frozen=True)
class BatchLayout:
    """The layout of a batch in shared memory: name, dtype and shape [B, ...] of each column."""

    columns: tuple[tuple[str, str, tuple[int, ...]], ...]

    @classmethod
    def of(cls, columns: Mapping[str, NDArray[Any]]) -> BatchLayout:
        """Returns the layout of these columns."""
        return cls(tuple((name, value.dtype.str, value.shape) for name, value in columns.items()))

    @property
    def num_bytes(self) -> int:
        """Bytes of all columns, each of which begins at a multiple of 64."""
        return sum(_padded(np.dtype(dtype).itemsize * int(np.prod(shape))) for _, dtype, shape in self.columns)

    def views(self, block: SharedBlock) -> dict[str, NDArray[Any]]:
        """Returns views of the columns in the memory of the block."""
        views, offset = {}, 0
        for name, dtype, shape in self.columns:
            views[name] = block.array(dtype, shape, offset)
            offset += _padded(views[name].nbytes)
        return views


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // 64) * 64


@final
class Slice:
    """Some rows of a batch, as an agent reads them. See `Items`."""

    def __init__(self, columns: Mapping[str, NDArray[Any]], rows: slice) -> None:
        """Takes the columns [B, ...] by name. They have the importance weights for beta = 1, if the agent reads any."""
        self._columns, self._rows = columns, rows
        self.num_items = rows.stop - rows.start

    def __getitem__(self, name: str, /) -> NDArray[Any]:
        return self._columns[name][self._rows]

    def weights(self, beta: float) -> NDArray[np.float32]:
        """See Items. The weights are divided by the maximum over the whole batch, so that w(beta) = w(1) ** beta."""
        weights: NDArray[np.float32] = self._columns[WEIGHTS][self._rows] ** np.float32(beta)
        return weights


@final
@dataclass(frozen=True)
class LearnerTask:
    """The task of learner `number` of `count`.

    Attributes:
        agent: Options of the agent of a slice.
        spaces: Spaces of the environment.
        device: torch's device.
        num_threads: Threads of the learner.
        state: The state of the leader's agent, as torch saves it.
        layout: Layout of the batch.
        batch: Memory of the batch and of the priorities.
        gradients: Memory of the gradients.
        bells: Memory of the bells.
        chunk: float32 values of a gradient that are combined at once.
        spin_s: Seconds that a wait spins before it sleeps.
        pipe: Carries no words; it ends with the leader.
        profile: Counters of its time; None: the run is not profiled.
    """

    number: int
    count: int
    agent: AgentConfig
    spaces: Spaces
    device: str
    num_threads: int
    state: bytes
    layout: BatchLayout
    batch: SharedBlock
    gradients: SharedBlock
    bells: SharedBlock
    chunk: int
    spin_s: float
    pipe: Connection
    profile: ProfileBoard | None = None


def state_hash(agent: Agent) -> int:
    """Returns the crc32 of all tensors of the agent's state, in the order of their names."""
    return _hash_of(agent.state_dict(), 0)


def _hash_of(state: object, start: int) -> int:
    if isinstance(state, Mapping):
        for name in sorted(state):
            start = _hash_of(state[name], zlib.crc32(str(name).encode(), start))
        return start
    if isinstance(state, torch.Tensor):
        return zlib.crc32(state.detach().cpu().contiguous().numpy().tobytes(), start)
    return zlib.crc32(repr(state).encode(), start)


def run_learner(task: LearnerTask) -> None:
    """Runs a follower: the main function of its process. It ends when the leader closes the pipe, or is gone."""
    with learner_numerics(task.num_threads):
        agent = task.agent.make(task.spaces, seed=0, device=task.device)
        agent.load_state_dict(torch.load(io.BytesIO(task.state), weights_only=True))
        try:
            _Follower(task, agent).run()
        except _LeaderGone:
            pass  # rule D3


class _LeaderGone(Exception):
    """The leader has closed its end of the pipe, or is dead."""


@final
class _Follower:
    """A learner that updates when its leader says so. It is the `Replicas` of its agent."""

    def __init__(self, task: LearnerTask, agent: Agent) -> None:
        self.number, self.count = task.number, task.count
        self._pipe, self._agent, self._spin_s = task.pipe, agent, task.spin_s
        columns = task.layout.views(task.batch)
        self._priorities = columns.pop(PRIORITIES)
        size = len(self._priorities) // task.count
        self._rows = slice(task.number * size, (task.number + 1) * size)
        self._slice = Slice(columns, self._rows)
        self._bells = Bells(task.bells, task.count)
        self._gradients = GradientRows(task.gradients, task.count, task.chunk)
        stopwatch = stopwatch_of(task.profile, learner_name(task.number))
        self._update, self._next_word = (
            timed_with(stopwatch, "update", agent.update),
            timed_with(stopwatch, "wait", self._hear),
        )
        agent.join(self)

    def run(self) -> None:
        self._bells.ring(self.number)
        while True:
            word = self._next_word()
            priorities = self._update(self._slice)
            if priorities is not None:
                self._priorities[self._rows] = priorities
            self._bells.ring(self.number, state_hash(self._agent) if word == UPDATE_AND_HASH else 0)

    def combine(self, gradients: Any) -> None:
        """See Replicas."""
        for chunk in gradients.split(self._gradients.chunk):
            self._gradients.put(self.number, chunk)
            self._bells.ring(self.number)
            self._next_word()
            self._gradients.mean(self._bells.counting, chunk)

    def _hear(self) -> int:
        """Waits for the next word of the leader. Raises _LeaderGone."""
        spin_s = self._spin_s
        while (word := self._bells.hear(LEADER, spin_s, LOOK_S)) is None:
            spin_s = 0.0
            if self._pipe.poll():
                raise _LeaderGone
        return word
