"""Applies the gradients of learners that draw batches of their own: GORILA (Nair et al. 2015).

The server is the process that calls `train`. It has the agent: networks, targets, optimizers, counters. Version v is
the state of this agent after v updates. The server starts n learners, which are processes with an agent of the same
options and a handle on the table. A *unit* is all gradients that one `Agent.update` gives to `combine`, one after
another.

Each learner has a pipe for words and a block of memory:

  state      the tensors of `Agent.exchange`; the server writes them
  gradients  a unit; the learner writes it
  noise      the states of the learner's generators after that update; the learner writes them

Protocol of a unit:

  A1  The server copies its version v into `state`, then says GO (learn from a new batch) or AGAIN (from the same one).
  A2  The learner takes over the state and makes one whole update of it by itself. So the gradients of a unit belong
      together: the gradient of an actor is that of critics that have stepped. It says DONE, and writes nothing until
      the next word of A1.
  A3  The server is at version c by then. If c - v <= S, it steps along the unit (`Agent.apply`), which makes version
      c + 1, and goes to A1 with GO. Else it drops the unit, counts it, and goes to A1 with AGAIN.
  A4  At GO the learner gives the priorities that it found to the items of its batch. At AGAIN it drops them.
  A5  A learner that has waited for its batch says ASKS before it begins, because the state that it has is old. The
      server goes to A1.

A batch is drawn once and applied once: A3 drops a gradient and no batch. So the limiter, which counts draws, keeps the
ratio of applied updates to steps, within one batch for each learner. A word says which side may write the block. The
pipe of the kernel orders the word after everything written before it, so that there is no lock and no checksum.

With one learner c = v always, and the server takes the steps that the learner took by itself, to the bit. Learner 0
draws the noise that the agent itself would draw. The server's agent takes over the generators of learner 0 with each of
its units, so that a checkpoint has them. The noise of the other learners has seeds of its own.

A pipe ends with the process at its other end. Rules for a death:

  E1  A learner that died is replaced by one with a block of its own; one that was silent for the deadline is killed
      before. Its unit is lost, and so is its batch, which counts as drawn. The other learners do not notice.
  E2  If the server dies, all pipes end, and the learners end. Else they wait for it without a deadline, because it may
      evaluate for minutes.
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
from relive.train.memory.stopwatch import ProfileBoard, Timed, untimed
from relive.train.parts import Part
from relive.train.signals import uninterrupted

_START_DEADLINE_S = 300.0  # a process that imports torch on a busy machine


@final
@dataclass(frozen=True)
class ServerOptions:
    """Options of a parameter server.

    Attributes:
        count: Learners.
        max_staleness: Largest staleness of a gradient that is applied, in updates.
        device: torch's device.
        num_threads: Threads of each learner.
        seed: Seed of the run.
        deadline_s: Silence after which a learner counts as dead.
        say: Gets a line for people when a learner is started again.
        profile: Counters of the time of the learners; None: the run is not profiled.
        timed: Times the parts of the server.
    """

    count: int
    max_staleness: int
    device: str
    num_threads: int
    seed: int
    deadline_s: float = 60.0
    say: Callable[[str], None] = lambda line: None
    profile: ProfileBoard | None = None
    timed: Timed = untimed


@final
class _Member:
    """A learner, as the server sees it."""

    def __init__(self, child: Child, block: SharedBlock) -> None:
        self.child, self.pipe, self.block = child, child.pipe, block
        self.slot: Slot | None = None
        self.version = -1  # of the state that the learner has
        self.silent_until_s = time.monotonic() + _START_DEADLINE_S


@final
class ParameterServer(Part):
    """The server of learners with batches of their own. Call `start`, then `serve` often. See Part.

    Attributes:
        num_dropped: Units that were too stale.
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
        """Process ids of the learners that are started."""
        return [one.child.pid for one in self._members.values() if one.child.pid is not None]

    @property
    def num_restarts(self) -> int:
        """See Part."""
        return sum(max(0, child.num_starts - 1) for child in self._children)

    def metrics(self) -> dict[str, float]:
        """Returns the newest metrics of a learner, some tenths of a second old at most; empty at first. See Agent."""
        return self._metrics

    # ---- units -----------------------------------------------------------------------------------------------------

    def serve(self, timeout_s: float) -> bool:
        """Serves learners until one unit is applied.

        Args:
            timeout_s: The longest wait.

        Returns:
            True when a unit was applied, False after timeout_s.

        Raises:
            LearnersKeepDying: A learner died three times in a row without a unit.
        """
        until_s = time.monotonic() + timeout_s
        self._end_the_silent()
        while True:
            heard = connection.wait([one.pipe for one in self._members.values()], max(0.0, until_s - time.monotonic()))
            if not heard:
                return False
            for number, member in list(self._members.items()):
                # One unit a call: other words stay in their pipes until the next call.
                if member.pipe in heard and self._hear(number, member):
                    self._members[number] = self._members.pop(number)  # the other learners are heard first next time
                    return True

    def _hear(self, number: int, member: _Member) -> bool:
        """Takes the next word of a learner. Returns whether a unit was applied."""
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
        """Applies or drops a unit: rule A3. Returns whether it was applied."""
        assert member.slot is not None
        self._deaths[number].forget()
        if metrics is not None:
            self._metrics = metrics
        if self._agent.num_updates - member.version > self._options.max_staleness:
            self.num_dropped += 1
            self._send(member, AGAIN)
            return False
        with uninterrupted():  # a checkpoint is of whole units
            self._agent.apply(torch.split(member.slot.gradients[: sum(sizes)], list(sizes)))
            if number == 0:
                member.slot.read_noise()
        try:
            self._send(member, GO)
        except (BrokenPipeError, ConnectionResetError):
            self._lose(number)  # its unit is applied all the same
        return True

    def _send(self, member: _Member, word: str) -> None:
        """Sends the state and a word: rule A1."""
        if member.slot is None:
            member.slot = Slot(member.block, self._layout, self._agent)
        self._write_state(member.slot)
        member.version = self._agent.num_updates
        member.pipe.send((word, member.version))

    # ---- processes -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts all learners. It does not wait for them."""
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
        """Ends the learners that were silent for too long. Unread words count: the server may have evaluated."""
        now_s = time.monotonic()
        for number, member in list(self._members.items()):
            if now_s > member.silent_until_s and not member.pipe.poll(0):
                self._lose(number)

    def _lose(self, number: int) -> None:
        """Replaces a learner: rule E1."""
        member = self._members.pop(number)
        exit_code = member.child.reap()
        _let_go(member)
        self._deaths[number].count(lambda deaths: LearnersKeepDying(number, deaths, exit_code))
        self._options.say(f"learner {number} died (exit code {exit_code}) and is started again; the others go on")
        self._start(number)

    def stop(self, timeout_s: float = END_S) -> None:
        """Ends all learners, waits, and kills those that have not ended after timeout_s. No process is left."""
        end_all(self._children, timeout_s)
        for member in self._members.values():
            _let_go(member)
        self._members = {}


def _let_go(member: _Member) -> None:
    member.slot = None
    member.block.close()
