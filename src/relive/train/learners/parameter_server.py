"""Learners with batches of their own, and the process that applies what they find: GORILA (Nair et al. 2015).

The server is the process that calls `train`. It has the agent: networks, targets, optimizers, counters. Each of n
learners is a process that it starts, with an agent of the same configuration and a handle on the table. Version v is
the state of the server's agent after v updates. For each learner there is a block of memory, and a pipe for words:

  state      the tensors of `Agent.exchange`; written by the server, read by the learner
  gradients  all that one `Agent.update` gives to `combine`, one after another: a unit; written by the learner
  noise      the states of the learner's generators after that update; written by the learner

  A1  The server copies its version v into `state`, then says GO (learn from a new batch) or AGAIN (from the same one).
  A2  The learner takes the state over, and makes one whole update of it for itself. So the gradients of a unit belong
      together: an actor's is that of critics which have stepped. It says DONE, and writes nothing until A1.
  A3  The server's version is c by then. Where c - v <= S, it steps along the unit, `Agent.apply`, which makes version
      c + 1, and goes to A1 with GO. Else it drops the unit, counts it, and goes to A1 with AGAIN.
  A4  At GO the learner gives its batch the priorities that it found. Those that come with a dropped unit are dropped.
  A5  A learner that has waited for its batch says ASKS before it begins, and the server goes to A1: what it has is old.

A batch is drawn once and applied once: what is dropped is a gradient, not a batch. So the limiter, which counts draws,
holds the ratio of applied updates to steps, to within one batch of each learner. Who writes a block, and who reads it,
changes with a word alone, which the kernel's pipe orders behind what was written before it: no lock and no checksum.

With one learner c = v always, and the server's steps are those that the learner made for itself, to the bit. Learner 0
draws the noise that the agent itself would, and the server's agent takes its generators over with each of its units, so
that a checkpoint has them; the others' noise has seeds of its own.

A pipe ends with the process at its other end:

  E1  A learner that died, or has said nothing for the deadline (it is killed then), is replaced by one with a block of
      its own. The unit that it was at is lost, and its batch, which counts as drawn. The others do not notice.
  E2  A server that died is the end of every pipe: learners end. They wait for it without a deadline otherwise, since it
      may evaluate for minutes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import connection
from typing import Any, final

import numpy as np
import torch

from relive.agents.agent import Agent, Spaces
from relive.agents.config import AgentConfig
from relive.train.child import END_S, Child, Deaths, end_all, process_context
from relive.train.errors import LearnersKeepDying
from relive.train.learners.async_learner import (
    AGAIN,
    ASKS,
    DONE,
    GO,
    READY,
    AsyncLearnerTask,
    Slot,
    SlotLayout,
    run_async_learner,
)
from relive.train.memory.shared_block import SharedBlock
from relive.train.memory.stopwatch import ProfileBoard, Timed, timed_by_nobody
from relive.train.parts import Part

_START_DEADLINE_S = 300.0  # a process that imports torch on a busy machine


@final
@dataclass(frozen=True)
class ServerOptions:
    """Learners, how stale a gradient may be, and for how long a learner may say nothing before it counts as dead.

    seed: the run's. say: told, in a line for people, that a learner is started again. profile: where learners count;
    timed: what counts the server's own parts.
    """

    count: int
    max_staleness: int
    device: str
    num_threads: int
    seed: int
    deadline_s: float = 60.0
    say: Callable[[str], None] = lambda line: None
    profile: ProfileBoard | None = None
    timed: Timed = timed_by_nobody


@final
class _Member:
    """One learner as the server sees it."""

    def __init__(self, child: Child, block: SharedBlock) -> None:
        self.child, self.pipe, self.block = child, child.pipe, block
        self.slot: Slot | None = None
        self.version = -1  # what it has
        self.silent_until_s = time.monotonic() + _START_DEADLINE_S


@final
class ParameterServer(Part):
    """The server's side. One thread; `start`, then `serve` often, `stop` once, also after a failure.

    num_dropped: units that were too stale. num_restarts: of learners. pids: of the learners that live.
    """

    def __init__(
        self, agent: Agent, config: AgentConfig, spaces: Spaces, table_name: str, options: ServerOptions
    ) -> None:
        self._agent, self._config, self._spaces = agent, config, spaces
        self._table_name, self._options = table_name, options
        self._layout = SlotLayout.of(agent)
        self._write_state = options.timed("parameters", Slot.write_state)
        self._context = process_context()
        self._children: list[Child] = []
        self._deaths = [Deaths() for _ in range(options.count)]  # since the last unit
        self._members: dict[int, _Member] = {}
        self._metrics: dict[str, float] = {}
        self.num_dropped = 0

    @property
    def pids(self) -> list[int]:
        """See the class."""
        return [one.child.pid for one in self._members.values() if one.child.pid is not None]

    @property
    def num_restarts(self) -> int:
        """See the class."""
        return sum(max(0, child.num_starts - 1) for child in self._children)

    def metrics(self) -> dict[str, float]:
        """The newest that a learner told, at most some tenths of a second old; empty before the first. See Agent."""
        return self._metrics

    # ---- units -----------------------------------------------------------------------------------------------------

    def serve(self, timeout_s: float) -> bool:
        """Hears learners until one unit was applied, True, or timeout_s is over, False.

        Raises LearnersKeepDying where one died three times without a unit between.
        """
        until_s = time.monotonic() + timeout_s
        self._end_the_silent()
        while True:
            heard = connection.wait([one.pipe for one in self._members.values()], max(0.0, until_s - time.monotonic()))
            if not heard:
                return False
            for number, member in list(self._members.items()):
                # One unit a call: what else was said stays in its pipe until the next.
                if member.pipe in heard and self._hear(number, member):
                    self._members[number] = self._members.pop(number)  # the others have their turn first
                    return True

    def _hear(self, number: int, member: _Member) -> bool:
        """A learner's next word; True where a unit of its was applied."""
        try:
            word, *rest = member.pipe.recv()
            member.silent_until_s = time.monotonic() + self._options.deadline_s
            if word == DONE:
                return self._take_unit(number, member, *rest)
            if word in (READY, ASKS):
                self._send(member, GO)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self._lose(number)
        return False

    def _take_unit(self, number: int, member: _Member, sizes: tuple[int, ...], metrics: Any) -> bool:
        """A3."""
        assert member.slot is not None
        self._deaths[number].forget()
        if metrics is not None:
            self._metrics = metrics
        if self._agent.num_updates - member.version > self._options.max_staleness:
            self.num_dropped += 1
            self._send(member, AGAIN)
            return False
        self._agent.apply(torch.split(member.slot.gradients[: sum(sizes)], list(sizes)))
        if number == 0:
            member.slot.read_noise()
        try:
            self._send(member, GO)
        except (BrokenPipeError, ConnectionResetError):
            self._lose(number)  # what it found is applied all the same
        return True

    def _send(self, member: _Member, word: str) -> None:
        """A1."""
        if member.slot is None:
            member.slot = Slot(member.block, self._layout, self._agent)
        self._write_state(member.slot)
        member.version = self._agent.num_updates
        member.pipe.send((word, member.version))

    # ---- processes -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts all learners; they come in their own time."""
        numbers = range(self._options.count)
        self._children = [Child(f"relive-learner-{number}", run_async_learner, self._context) for number in numbers]
        for number in numbers:
            self._start(number)

    def _start(self, number: int) -> None:
        options, child = self._options, self._children[number]
        block = SharedBlock(self._layout.num_bytes)
        Slot(block, self._layout, self._agent).write_noise()
        key = (number, child.num_starts, self._agent.num_updates)
        seed = int(np.random.SeedSequence(options.seed, spawn_key=key).generate_state(1)[0] % 2**31)
        task = AsyncLearnerTask(
            number=number,
            agent=self._config,
            spaces=self._spaces,
            device=options.device,
            num_threads=options.num_threads,
            seed=seed,
            table_name=self._table_name,
            stream=1 + number + options.count * child.num_starts,
            layout=self._layout,
            block=block,
            pipe=child.open_pipe(),
            profile=options.profile,
        )
        child.start(task)
        self._members[number] = _Member(child, block)

    def _end_the_silent(self) -> None:
        """Words that wait to be heard are as good as heard: the server may have evaluated for minutes."""
        now_s = time.monotonic()
        for number, member in list(self._members.items()):
            if now_s > member.silent_until_s and not member.pipe.poll(0):
                self._lose(number)

    def _lose(self, number: int) -> None:
        """E1."""
        member = self._members.pop(number)
        exit_code = member.child.reap()
        _let_go(member)
        self._deaths[number].count(lambda deaths: LearnersKeepDying(number, deaths, exit_code))
        self._options.say(f"learner {number} died (exit code {exit_code}) and is started again; the others go on")
        self._start(number)

    def stop(self, timeout_s: float = END_S) -> None:
        """Ends all learners and waits for them; those that have not ended after timeout_s are killed. None is left."""
        end_all(self._children, timeout_s)
        for member in self._members.values():
            _let_go(member)
        self._members = {}


def _let_go(member: _Member) -> None:
    member.slot = None
    member.block.close()
