"""One of several learners with batches of their own: its process, and the memory that it shares with its server.

`relive.train.learners.parameter_server` has the protocol.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from relive import Batch, Table, attach
from relive.agents.agent import Agent, Spaces
from relive.agents.config import AgentConfig
from relive.errors import InvalidConfig, NoSuchTable, TableClosed
from relive.train.learners.batch_ahead import batches_of, or_none
from relive.train.learners.numerics import learner_numerics
from relive.train.memory.shared_block import SharedBlock
from relive.train.memory.stopwatch import ProfileBoard, learner_name, stopwatch_of, timed_with, watched_table

READY, WAITS, ASKS, DONE = "ready", "waits", "asks", "done"  # a learner's words
GO, AGAIN = "go", "again"  # the server's
_ALIVE_PERIOD_S = 1.0
_METRICS_PERIOD_S = 0.2
_LONG_S = 0.01  # a batch that took so long: the state from before is old by now


@final
@dataclass(frozen=True)
class SlotLayout:
    """What lies in a learner's block: num_values float32 of a state, as many of gradients, generators' states."""

    num_values: int
    noise_bytes: tuple[int, ...]

    @classmethod
    def of(cls, agent: Agent) -> SlotLayout:
        """Of agents like this one. An update has no more gradients than the state has values."""
        exchange = agent.exchange()
        num_values = sum(tensor.numel() for tensor in exchange.tensors)
        return cls(num_values, tuple(len(generator.get_state()) for generator in exchange.generators))

    @property
    def num_bytes(self) -> int:
        """Of the whole block."""
        return 8 * self.num_values + sum(self.noise_bytes)


@final
class Slot:
    """A learner's block, seen from an agent: its own or the server's."""

    def __init__(self, block: SharedBlock, layout: SlotLayout, agent: Agent) -> None:
        values = torch.from_numpy(block.array(np.float32, (2, layout.num_values)))
        exchange = agent.exchange()
        self._pairs, start = [], 0
        for tensor in exchange.tensors:
            self._pairs.append((tensor, values[0, start : start + tensor.numel()].view(tensor.shape)))
            start += tensor.numel()
        self.gradients = values[1]
        self._generators, self._noise, at = exchange.generators, [], 8 * layout.num_values
        for size in layout.noise_bytes:
            self._noise.append(torch.from_numpy(block.array(np.uint8, (size,), at)))
            at += size

    def write_state(self) -> None:
        """The agent's state goes into the block."""
        with torch.no_grad():
            for mine, shared in self._pairs:
                shared.copy_(mine)

    def read_state(self) -> None:
        """The block's state goes into the agent."""
        with torch.no_grad():
            for mine, shared in self._pairs:
                mine.copy_(shared)

    def write_noise(self) -> None:
        """The states of the agent's generators go into the block."""
        for generator, shared in zip(self._generators, self._noise, strict=True):
            shared.copy_(generator.get_state())

    def read_noise(self) -> None:
        """The agent's generators go on where the block's stand."""
        for generator, shared in zip(self._generators, self._noise, strict=True):
            generator.set_state(shared.clone())


@final
@dataclass(frozen=True)
class AsyncLearnerTask:
    """What a process needs to become learner `number`. seed: of its noise; learner 0 has the server's agent's own.

    stream: of its draws from the table, see relive.attach.
    """

    number: int
    agent: AgentConfig
    spaces: Spaces
    device: str
    num_threads: int
    seed: int
    table_name: str
    stream: int
    layout: SlotLayout
    block: SharedBlock
    pipe: Connection
    profile: ProfileBoard | None = None


def run_async_learner(task: AsyncLearnerTask) -> None:
    """The main function of a learner's process. It ends when its server closes the pipe or the table, or is gone."""
    try:
        with learner_numerics(task.num_threads), attach(task.table_name, stream=task.stream) as table:
            agent = task.agent.make(task.spaces, seed=task.seed, device=task.device)
            _AsyncLearner(task, agent, table).run()
    except (EOFError, BrokenPipeError, ConnectionResetError, TableClosed, NoSuchTable):
        pass  # the server ended, or has asked this one to


@final
class _AsyncLearner:
    """The learner's side, and its agent's `Replicas`, of which it is the only one."""

    number, count = 0, 1

    def __init__(self, task: AsyncLearnerTask, agent: Agent, table: Table) -> None:
        stopwatch = stopwatch_of(task.profile, learner_name(task.number))
        self._agent, self._table, self._pipe = agent, watched_table(table, stopwatch), task.pipe
        self._update, self._told = (
            timed_with(stopwatch, "update", agent.update),
            timed_with(stopwatch, "wait", task.pipe.recv),
        )
        self._slot = Slot(task.block, task.layout, agent)
        if task.number == 0:
            self._slot.read_noise()
        self._num_items = task.agent.batch_size
        self._sizes: list[int] = []
        self._sum = 0.0
        self._told_s = self._metrics_s = -math.inf
        self._or_none = timed_with(stopwatch, "wait", or_none)
        self._read_state = timed_with(stopwatch, "parameters", self._slot.read_state)
        agent.join(self)

    def run(self) -> None:
        """A unit after another, until the pipe ends."""
        priorities: NDArray[np.float64] | None = None
        batch: Batch | None = None
        self._pipe.send((READY,))
        with batches_of(self._table, self._agent, self._num_items) as take:
            while True:
                word, version = self._told()
                if word == GO or batch is None:
                    if batch is not None and priorities is not None and np.isfinite(priorities).all():
                        self._table.update_priorities(batch.item_keys, priorities)
                    batch, has_waited = self._next(take)
                    if has_waited:
                        self._pipe.send((ASKS,))
                        _, version = self._told()
                priorities = self._unit(batch, version)

    def _next(self, take: Callable[[], Batch]) -> tuple[Batch, bool]:
        """A new batch, and whether it took long. EOFError where the server ends meanwhile."""
        began_s = time.monotonic()
        while True:
            batch = self._or_none(take)
            now_s = time.monotonic()
            if batch is not None:
                return batch, now_s - began_s > _LONG_S
            if self._pipe.poll(0):
                raise EOFError  # it says nothing to a learner that has not answered: this is its end
            if now_s - self._told_s >= _ALIVE_PERIOD_S:
                self._told_s = now_s
                self._pipe.send((WAITS,))

    def _unit(self, batch: Batch, version: int) -> NDArray[np.float64] | None:
        """A whole update from the server's state, whose gradients it gets; the new priorities."""
        self._read_state()
        self._agent.num_updates = version
        self._sizes, self._sum = [], 0.0
        priorities = self._update(batch)
        self._slot.write_noise()
        now_s = time.monotonic()
        metrics: dict[str, float] | None = None
        if now_s - self._metrics_s >= _METRICS_PERIOD_S or not math.isfinite(self._sum):
            self._metrics_s, metrics = now_s, self._agent.metrics()
        self._pipe.send((DONE, tuple(self._sizes), metrics))
        return priorities

    def combine(self, gradients: Any) -> None:
        """See Replicas. They stay as they are, and go into the block behind those before them."""
        start, size = sum(self._sizes), gradients.numel()
        if start + size > len(self._slot.gradients):
            raise InvalidConfig("gradients of an update", f"at most {len(self._slot.gradients)} values", start + size)
        self._slot.gradients[start : start + size].copy_(gradients.view(-1))
        self._sizes.append(size)
        self._sum += float(gradients.sum())
