"""Several learners of one update: each computes the gradient of its slice, all apply the same mean of them.

One process, the leader, draws the batch; the followers are processes that it starts. Each has an agent of the same
state. The protocol of one update, for n learners over B items, B a multiple of n:

  memory    batch: the columns [B, ...] and the importance weights [B], written by the leader. priorities [B]: learner k
            writes its slice. gradients: two rows a learner, in turns, written by learner k alone; bells: one a learner,
            rung by it alone, with a word; who counts: written by the leader (learner_words.py).

  U1  The leader writes the batch, then rings with UPDATE, or UPDATE_AND_HASH. All begin `agent.update`.
  U2  Wherever the agent has a gradient (one of values once; actor-critics: critics, then the actor), everyone writes it
      into its row, and every follower rings. The leader waits for all of them, in their order.
  U3  The leader writes whose rows count, and rings with MEAN. Everyone adds these rows up by itself, in their order,
      divides by their number, and steps its optimizer along that. The same sum in the same order: replicas that were
      equal stay equal to the last bit. Who is done first writes its next gradient into its other row, so nobody waits
      for those that still add; into this row it writes again when all have rung for the round between.
  U4  A follower writes its priorities and rings with, where it is asked for, the crc32 of its whole state (parameters,
      targets, moments, generators), which the leader compares with its own.

A wait spins for a moment, then sleeps, and looks every 50 ms whether the other side lives: a pipe between the leader
and each follower, through which nothing goes, ends with the process at its other end.

  D1  A follower that died, or said nothing for the deadline (it is killed then), leaves the update that runs: the
      rows of the others count, divided by their number. So the leader's state is always one of whole updates, never of
      critics that stepped without their actor. Whose rows count is the leader's word: all add up the same ones.
  D2  After that update all followers are ended, and the next one starts new ones from the leader's state.
  D3  A leader that died is the end of every pipe: followers end. They wait for it without a deadline otherwise, since
      it may evaluate for minutes.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from relive.agents.agent import Agent, Items, Spaces
from relive.agents.config import AgentConfig
from relive.train.child import END_S, Child, Deaths, end_all
from relive.train.errors import LearnersKeepDying, ReplicasDiffer
from relive.train.learners.follower import PRIORITIES, WEIGHTS, BatchLayout, LearnerTask, Slice, run_learner, state_hash
from relive.train.learners.gradient_rows import LEADER, LOOK_S, MEAN, UPDATE, UPDATE_AND_HASH, Bells, GradientRows
from relive.train.memory.shared_block import SharedBlock
from relive.train.memory.stopwatch import ProfileBoard, Timed, timed_by_nobody
from relive.train.parts import Part

_START_DEADLINE_S = 300.0  # a process that imports torch on a busy machine


@final
@dataclass(frozen=True)
class GroupOptions:
    """Learners, their deadline within an update, and after how many updates their states are compared.

    chunk: float32 values of a gradient that are combined at once; longer ones go in several rounds. spin_s: for so long
    a wait keeps its core before it sleeps. say: told, in a line for people, that learners are started again. profile:
    where followers count; timed: what counts the leader's own parts.
    """

    count: int
    device: str
    num_threads: int
    deadline_s: float = 60.0
    hash_period: int = 100
    chunk: int = 2**20
    spin_s: float = 200e-6
    say: Callable[[str], None] = lambda line: None
    profile: ProfileBoard | None = None
    timed: Timed = timed_by_nobody


@final
class LearnerGroup(Part):
    """The leader's side, and its agent's `Replicas`. One thread; `stop` once, also after a failure.

    num_restarts: how often followers were started again. pids: of the followers that live.
    """

    number = 0

    def __init__(self, agent: Agent, config: AgentConfig, spaces: Spaces, options: GroupOptions) -> None:
        """config: the run's, whose batch_size is that of all learners; the agent's is that of a slice."""
        self._agent, self._spaces, self._options = agent, spaces, options
        self.count = options.count
        self._slice_config = replace(config, batch_size=config.batch_size // self.count)
        self._weighted = bool(getattr(config, "prioritized", False))
        self._children: dict[int, Child] = {}
        self._lost: dict[int, int | None] = {}
        self._deaths = Deaths()
        self._num_restarts = 0
        self._columns: dict[str, NDArray[Any]] = {}
        self._blocks: list[SharedBlock] = []
        self._bells: Bells | None = None
        self._gradients: GradientRows | None = None
        agent.join(self)

    @property
    def pids(self) -> list[int]:
        """See the class."""
        return [child.pid for child in self._children.values() if child.pid is not None]

    @property
    def num_restarts(self) -> int:
        """See the class."""
        return self._num_restarts

    # ---- an update -------------------------------------------------------------------------------------------------

    def update(self, batch: Items) -> NDArray[np.float64] | None:
        """One gradient step of all learners on B items; new priorities [B], as Agent.update gives them.

        The first call starts the followers, and takes the seconds that they need. None too where a follower was lost
        on the way: its items keep their priorities. Raises LearnersKeepDying where three attempts in a row lost one,
        ReplicasDiffer where a state is not the leader's.
        """
        columns = {name: np.ascontiguousarray(batch[name]) for name in self._agent.columns}
        if self._weighted:
            columns[WEIGHTS] = np.asarray(batch.weights(1.0), np.float32)
        columns[PRIORITIES] = np.zeros(batch.num_items)
        if not self._columns:
            self._options.timed("other", self._start)(BatchLayout.of(columns))
        for name, values in columns.items():
            self._columns[name][...] = values
        compares = (self._agent.num_updates + 1) % self._options.hash_period == 0
        assert self._bells is not None
        self._bells.ring(LEADER, UPDATE_AND_HASH if compares else UPDATE)
        rows = slice(0, batch.num_items // self.count)
        mine = self._agent.update(Slice(self._columns, rows))
        self._finish(compares)
        if self._lost:
            self._restart_later()
            return None
        self._deaths.forget()
        if mine is None:
            return None
        self._columns[PRIORITIES][rows] = mine
        return self._columns[PRIORITIES].copy()

    def combine(self, gradients: Any) -> None:
        """See Replicas: U2 and U3."""
        assert self._bells is not None and self._gradients is not None
        for chunk in gradients.split(self._options.chunk):
            self._gradients.put(LEADER, chunk)
            for number in list(self._children):
                self._hear(number, self._options.deadline_s)
            counting = [LEADER, *self._children]
            self._bells.counting = counting
            self._bells.ring(LEADER, MEAN)
            self._gradients.mean(counting, chunk)

    def _finish(self, compares: bool) -> None:
        """U4."""
        hashed = state_hash(self._agent) if compares else 0
        for number in list(self._children):
            word = self._hear(number, self._options.deadline_s)
            if compares and word is not None and word != hashed:
                raise ReplicasDiffer(number, self._agent.num_updates, hashed, word)

    def _hear(self, number: int, timeout_s: float) -> int | None:
        """The next word of a follower; None, and it is lost, where it died or said none in time."""
        assert self._bells is not None
        deadline_s, spin_s = time.monotonic() + timeout_s, self._options.spin_s
        while (word := self._bells.hear(number, spin_s, LOOK_S)) is None:
            spin_s = 0.0
            if self._children[number].pipe.poll() or time.monotonic() >= deadline_s:
                self._lose(number)
                return None
        return word

    # ---- processes -------------------------------------------------------------------------------------------------

    def _lose(self, number: int) -> None:
        """D1. It is dead when this returns."""
        self._lost[number] = self._children.pop(number).reap()

    def _restart_later(self) -> None:
        """D2."""
        number, exit_code = next(iter(self._lost.items()))
        self.stop()
        self._deaths.count(lambda deaths: LearnersKeepDying(number, deaths, exit_code))
        self._num_restarts += 1
        self._options.say(f"learner {number} died (exit code {exit_code}); the next update starts the learners again")

    def _start(self, layout: BatchLayout) -> None:
        chunk = self._options.chunk
        batch, gradients = SharedBlock(layout.num_bytes), SharedBlock(GradientRows.num_bytes(self.count, chunk))
        bells = SharedBlock(Bells.num_bytes(self.count))
        self._blocks = [batch, gradients, bells]
        self._columns = layout.views(batch)
        self._bells, self._gradients = Bells(bells, self.count), GradientRows(gradients, self.count, chunk)
        state = io.BytesIO()
        torch.save(self._agent.state_dict(), state)
        for number in range(1, self.count):
            child = Child(f"relive-learner-{number}", run_learner)
            task = LearnerTask(
                number=number,
                count=self.count,
                agent=self._slice_config,
                spaces=self._spaces,
                device=self._options.device,
                num_threads=self._options.num_threads,
                state=state.getvalue(),
                layout=layout,
                batch=batch,
                gradients=gradients,
                bells=bells,
                chunk=chunk,
                spin_s=self._options.spin_s,
                pipe=child.open_pipe(),
                profile=self._options.profile,
            )
            child.start(task)
            self._children[number] = child
        for number in list(self._children):
            self._hear(number, _START_DEADLINE_S)

    def stop(self, timeout_s: float = END_S) -> None:
        """Ends all followers and waits for them; those that have not ended after timeout_s are killed. None is left."""
        end_all(self._children.values(), timeout_s)
        self._children, self._lost = {}, {}
        self._columns, self._gradients, self._bells = {}, None, None
        for block in self._blocks:
            block.close()
        self._blocks = []
