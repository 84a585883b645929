"""Runs a learner that draws batches of its own: its process, and the memory that it shares with its server.

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

READY, WAITS, ASKS, DONE = "ready", "waits", "asks", "done"  # words of a learner
GO, AGAIN = "go", "again"  # words of the server
_ALIVE_PERIOD_S = 1.0
_METRICS_PERIOD_S = 0.2
_LONG_S = 0.01  # after a draw that took so long, the state that the server sent before is old


@final
@dataclass(frozen=True)
class SlotLayout:
    """The layout of the block of a learner: a state, as many gradients, and the states of the generators.

    Attributes:
        num_values: float32 values of the state, and of the gradients.
        noise_bytes: Bytes of the state of each generator.
    """

    num_values: int
    noise_bytes: tuple[int, ...]

    @classmethod
    def of(cls, agent: Agent) -> SlotLayout:
        """Returns the layout for agents like this one. An update has at most as many gradients as state values."""
        exchange = agent.exchange()
        num_values = sum(tensor.numel() for tensor in exchange.tensors)
        return cls(num_values, tuple(len(generator.get_state()) for generator in exchange.generators))

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole block."""
        return 8 * self.num_values + sum(self.noise_bytes)


@final
class Slot:
    """The block of a learner, seen from an agent: the learner's or the server's."""

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
        """Copies the state of the agent into the block."""
        with torch.no_grad():
            for mine, shared in self._pairs:
                shared.copy_(mine)

    def read_state(self) -> None:
        """Copies the state in the block into the agent."""
        with torch.no_grad():
            for mine, shared in self._pairs:
                mine.copy_(shared)

    def write_noise(self) -> None:
        """Copies the states of the agent's generators into the block."""
        for generator, shared in zip(self._generators, self._noise, strict=True):
            shared.copy_(generator.get_state())

    def read_noise(self) -> None:
        """Sets the agent's generators to the states in the block."""
        for generator, shared in zip(self._generators, self._noise, strict=True):
            generator.set_state(shared.clone())


@final
@dataclass(frozen=True)
class AsyncLearnerTask:
    """The task of a learner.

    Attributes:
        number: Number of the learner.
        agent: Options of the agent.
        spaces: Spaces of the environment.
        device: torch's device.
        num_threads: Threads of the learner.
        seed: Seed of its noise; learner 0 takes over the noise of the server's agent.
        table_name: Name of the shared table.
        stream: Stream of its draws from the table, see relive.attach.
        layout: Layout of the block.
        block: Memory shared with the server.
        pipe: Words to and from the server.
        profile: Counters of its time; None: the run is not profiled.
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
    """Runs a learner process: its main function. It ends when the server closes the pipe or the table, or is gone."""
    try:
        with learner_numerics(task.num_threads), attach(task.table_name, stream=task.stream) as table:
            agent = task.agent.make(task.spaces, seed=task.seed, device=task.device)
            _AsyncLearner(task, agent, table).run()
    except (EOFError, BrokenPipeError, ConnectionResetError, TableClosed, NoSuchTable):
        pass  # the server has ended, or asks this learner to end


@final
class _AsyncLearner:
    """The learner's side. It is the only one of the `Replicas` of its agent."""

    number, count = 0, 1

    def __init__(self, task: AsyncLearnerTask, agent: Agent, table: Table) -> None:
        stopwatch = stopwatch_of(task.profile, learner_name(task.number))
        self._agent, self._table, self._pipe = agent, watched_table(table, stopwatch), task.pipe
        self._update, self._next_word = (
            timed_with(stopwatch, "update", agent.update),
            timed_with(stopwatch, "wait", task.pipe.recv),
        )
        self._slot = Slot(task.block, task.layout, agent)
        if task.number == 0:
            self._slot.read_noise()
        self._num_items = task.agent.batch_size
        self._sizes: list[int] = []
        self._sum = 0.0
        self._reported_s = self._metrics_s = -math.inf
        self._or_none = timed_with(stopwatch, "wait", or_none)
        self._read_state = timed_with(stopwatch, "parameters", self._slot.read_state)
        agent.join(self)

    def run(self) -> None:
        """Makes units until the pipe ends."""
        priorities: NDArray[np.float64] | None = None
        batch: Batch | None = None
        self._pipe.send((READY,))
        with batches_of(self._table, self._agent, self._num_items) as take:
            while True:
                word, version = self._next_word()
                if word == GO or batch is None:
                    if batch is not None and priorities is not None and np.isfinite(priorities).all():
                        self._table.update_priorities(batch.item_keys, priorities)
                    batch, has_waited = self._next(take)
                    if has_waited:
                        self._pipe.send((ASKS,))
                        _, version = self._next_word()
                priorities = self._unit(batch, version)

    def _next(self, take: Callable[[], Batch]) -> tuple[Batch, bool]:
        """Draws a new batch; returns it, and whether that took long. Raises EOFError if the server ends before."""
        began_s = time.monotonic()
        while True:
            batch = self._or_none(take)
            now_s = time.monotonic()
            if batch is not None:
                return batch, now_s - began_s > _LONG_S
            if self._pipe.poll(0):
                raise EOFError  # the server sends no word before an answer: its end of the pipe is closed
            if now_s - self._reported_s >= _ALIVE_PERIOD_S:
                self._reported_s = now_s
                self._pipe.send((WAITS,))

    def _unit(self, batch: Batch, version: int) -> NDArray[np.float64] | None:
        """Makes a whole update from the state of the server, gives its gradients to the server; the new priorities."""
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
        """See Replicas. The gradients stay as they are, and are appended to those in the block."""
        start, size = sum(self._sizes), gradients.numel()
        if start + size > len(self._slot.gradients):
            raise InvalidConfig("gradients of an update", f"at most {len(self._slot.gradients)} values", start + size)
        self._slot.gradients[start : start + size].copy_(gradients.view(-1))
        self._sizes.append(size)
        self._sum += float(gradients.sum())
