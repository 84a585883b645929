"""Shares every update among several learners: each computes the gradient of a slice, and all apply the same mean.

One process, the leader, draws the batch. It starts the other learners, its followers, which are processes. Their agents
have the same state.

Memory, for n learners and batches of B items, B a multiple of n:

  batch        columns [B, ...] and importance weights [B]; the leader writes them
  priorities   [B]; learner k writes its slice
  gradients    two rows for each learner, used alternately; learner k alone writes its rows
  bells        one for each learner, which alone rings it, with a word (learners/gradient_rows.py)
  counting     the learners whose rows count; the leader writes it

Protocol of an update:

  U1  The leader writes the batch, then rings with UPDATE or UPDATE_AND_HASH. All learners call `agent.update`.
  U2  Wherever the agent has a gradient (agents of action values once; actor-critics for the critics, then for the
      actor), every learner writes it into its row, and every follower rings. The leader waits for all of them, in
      order.
  U3  The leader writes which rows count, and rings with MEAN. Every learner adds up these rows in their order, divides
      by their number, and steps its optimizer along the mean. The sums have the same order, so that replicas that were
      equal stay equal to the last bit. A learner that is done writes its next gradient into its other row and waits
      for no learner that still adds. It uses the first row again after all learners have rung for the round in between.
  U4  A follower writes its priorities and rings. After UPDATE_AND_HASH its word is the crc32 of its whole state
      (parameters, targets, moments, generators), which the leader compares with its own.

A wait spins for a moment, then sleeps. It checks every 50 ms that the other side is alive: a pipe between the leader
and each follower, which carries nothing, ends with the process at its other end.

Rules for a death:

  D1  A follower that dies leaves the update that runs; one that is silent for the deadline is killed. The rows of the
      others count, divided by their number. So the leader's state is always that of whole updates, never of critics
      that stepped without their actor. The leader says which rows count, so that all learners add up the same rows.
  D2  After that update all followers are ended. The next update starts new ones from the leader's state.
  D3  If the leader dies, all pipes end, and the followers end. Else they wait for it without a deadline, because it may
      evaluate for minutes.
  D4  After a second signal to the run, the leader waits for no follower: one that has not answered yet is killed, and
      D1 holds. The last checkpoint is therefore of whole updates.
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
from relive.train.memory.stopwatch import ProfileBoard, Timed, untimed
from relive.train.parts import Part
from relive.train.signals import in_a_hurry

_START_DEADLINE_S = 300.0  # a process that imports torch on a busy machine


@final
@dataclass(frozen=True)
class GroupOptions:
    """Options of a group of learners.

    Attributes:
        count: Learners, the leader included.
        device: torch's device.
        num_threads: Threads of each learner.
        deadline_s: Longest silence of a follower within an update.
        hash_period: Updates after which the states are compared.
        chunk: float32 values of a gradient that are combined at once; a longer gradient takes several rounds.
        spin_s: Seconds that a wait spins before it sleeps.
        say: Gets a line for people when learners are started again.
        profile: Counters of the time of the followers; None: the run is not profiled.
        timed: Times the parts of the leader.
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
    timed: Timed = untimed


@final
class LearnerGroup(Part):
    """The leader's side of the group. It is the `Replicas` of its agent, and a Part of the run.

    The first update starts the followers. Attributes: number and count, see Replicas.
    """

    number = 0

    def __init__(self, agent: Agent, config: AgentConfig, spaces: Spaces, options: GroupOptions) -> None:
        """Joins the agent; starts nothing.

        Args:
            agent: The leader's agent, whose batch is a slice.
            config: Options of the agent of the run, whose batch is that of all learners.
            spaces: Spaces of the environment.
            options: Options of the group.
        """
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
        """Process ids of the followers that are started."""
        return [child.pid for child in self._children.values() if child.pid is not None]

    @property
    def num_restarts(self) -> int:
        """Times that the followers were started again."""
        return self._num_restarts

    # ---- an update -------------------------------------------------------------------------------------------------

    def update(self, batch: Items) -> NDArray[np.float64] | None:
        """Makes one gradient step of all learners on B items. The first call waits seconds for the followers' start.

        Returns:
            New priorities [B], as Agent.update returns them. None if a follower was lost in this update: the items
            keep their priorities.

        Raises:
            LearnersKeepDying: Three updates in a row lost a follower.
            ReplicasDiffer: The state of a follower is not the leader's.
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
        """See Replicas: rules U2 and U3."""
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
        """Waits for all followers, and compares their states: rule U4."""
        hashed = state_hash(self._agent) if compares else 0
        for number in list(self._children):
            word = self._hear(number, self._options.deadline_s)
            if compares and word is not None and word != hashed:
                raise ReplicasDiffer(number, self._agent.num_updates, hashed, word)

    def _hear(self, number: int, timeout_s: float) -> int | None:
        """Returns the next word of a follower; None if it died or was silent for timeout_s: then it is lost.

        After a second signal to the run, a follower that has not answered yet is lost, too.
        """
        assert self._bells is not None
        deadline_s, spin_s = time.monotonic() + timeout_s, self._options.spin_s
        while (word := self._bells.hear(number, spin_s, LOOK_S)) is None:
            spin_s = 0.0
            if self._children[number].pipe.poll() or time.monotonic() >= deadline_s or in_a_hurry():
                self._lose(number)
                return None
        return word

    # ---- processes -------------------------------------------------------------------------------------------------

    def _lose(self, number: int) -> None:
        """Takes a follower out of the update: rule D1. It is dead after the call."""
        self._lost[number] = self._children.pop(number).reap()

    def _restart_later(self) -> None:
        """Ends all followers; the next update starts new ones: rule D2."""
        number, exit_code = next(iter(self._lost.items()))
        self.stop()
        self._deaths.count(lambda deaths: LearnersKeepDying(number, deaths, exit_code))
        self._num_restarts += 1
        if not in_a_hurry():
            told = f"learner {number} died (exit code {exit_code})"
            self._options.say(f"{told}; the next update starts the learners again")

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
        """Ends all followers, waits, and kills those that have not ended after timeout_s. No process is left."""
        end_all(self._children.values(), timeout_s)
        self._children, self._lost = {}, {}
        self._columns, self._gradients, self._bells = {}, None, None
        for block in self._blocks:
            block.close()
        self._blocks = []
