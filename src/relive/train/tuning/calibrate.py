"""Measures the costs of the parts of a run on this machine: the numbers of `relive.train.tuning.throughput`.

- The parts are real ones: an actor process (`Acting`, with lanes of its own) on a shared table, the agent of the run,
  a board with its parameters, a group of two learners.
- Each round measures every part for a moment: each part alone, one after another; then acting and learning at once;
  then acting and learning alternately in this process, as runs of one process do. There the caches and the
  interpreter are colder than where a part follows itself.
- The median over the rounds is kept. If the machine is slower for a while, it is slower for all parts of a round.
- Times are wall-clock times without the waits for a core, so that other programmes on the machine do not count.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, final

import numpy as np
import torch

from relive import MinSize, SharedMemory, Table
from relive.agents.agent import Agent, Spaces
from relive.agents.config import AgentConfig
from relive.train.acting.environments import describe
from relive.train.config import TrainConfig
from relive.train.learners.group import GroupOptions, LearnerGroup
from relive.train.learners.numerics import learner_numerics
from relive.train.memory.core_waits import waited_for_core_s, working_clock
from relive.train.memory.parameters import ParameterBoard, ParameterLayout
from relive.train.setup import chosen_device, learner_threads
from relive.train.tuning.one_process import OneProcess
from relive.train.tuning.probe import PARTS
from relive.train.tuning.probing import ANSWER_S, Probe
from relive.train.tuning.throughput import Costs, Curve

_CAPACITY = 50_000
_ACT_S, _LEARN_S, _ALTERNATE_S, _BOTH_S = 0.1, 0.15, 0.15, 0.4  # wall-clock time of each measurement in a round
_LEAST_ROUNDS = 3
_PUBLICATIONS, _ADDITIONS = 5, 20


@final
@dataclass(frozen=True)
class Sizes:
    """The sizes that are measured.

    Attributes:
        num_envs: Numbers of environments of an actor.
        batch_sizes: Batch sizes, that of the run first.
        learners_too: Measure two learners that share an update as well.
    """

    num_envs: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    learners_too: bool

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows of an update: whole batches, and the halves of two learners."""
        halves = {size // 2 for size in self.batch_sizes if size % 2 == 0 and self.learners_too}
        return tuple(sorted({*self.batch_sizes, *halves}))


Reading = tuple[str, int]  # name of the part, size


@final
@dataclass
class _Readings:
    """Seconds of each part and size, one value a round."""

    values: dict[Reading, list[float]] = field(default_factory=dict)

    def add(self, what: str, size: int, value: float) -> None:
        self.values.setdefault((what, size), []).append(value)

    def median(self, what: str, size: int = 0) -> float:
        return float(np.median(self.values[what, size]))

    def curve(self, what: str) -> Curve:
        sizes = sorted(size for name, size in self.values if name == what)
        return tuple((size, self.median(what, size)) for size in sizes)

    def spread(self) -> float:
        """Returns the median of the interquartile ranges, as shares of the medians."""
        ranges = []
        for (what, _), values in self.values.items():
            if what in ("step", "sample", "update"):
                low, middle, high = np.percentile(values, (25, 50, 75))
                ranges.append((high - low) / middle)
        return float(np.median(ranges))


def calibrate(
    config: TrainConfig,
    sizes: Sizes,
    budget_s: float,
    say: Callable[[str], None] = lambda line: None,
    spaces: Spaces | None = None,
) -> Costs:
    """Measures the costs of the parts of this run.

    It starts an actor process and, with sizes.learners_too, a learner process. Both have ended when it returns or
    raises an error.

    Args:
        config: Options of the run.
        sizes: The sizes that are measured.
        budget_s: About as many seconds as it takes; three rounds are measured in any case.
        say: Gets lines for people.
        spaces: Spaces of the environment; None: they are described here.

    Returns:
        The costs.

    Raises:
        InvalidConfig: The agent cannot act in the environment.
        EnvironmentRaised: The environment raised an error.
        ActorsKeepDying: The actor died or does not answer.
    """
    began_s = time.monotonic()
    with (
        learner_numerics(learner_threads(config)),
        _Rig(config, sizes, spaces or describe(config.environment.env_id)) as rig,
    ):
        say(f"started an actor process{' and a second learner' if sizes.learners_too else ''} to measure them")
        readings, num_rounds, since_s = _Readings(), 0, time.monotonic()
        while num_rounds < _LEAST_ROUNDS or time.monotonic() - began_s < budget_s:
            rig.round(readings)
            num_rounds += 1
            a_round_s = (time.monotonic() - since_s) / num_rounds
            if num_rounds >= _LEAST_ROUNDS and time.monotonic() - began_s + a_round_s > budget_s:
                break
        say(f"measured {num_rounds} rounds of {a_round_s:.1f} s")
        return rig.costs(readings)


@final
class _Rig(ExitStack):
    """The parts that are measured, made and filled. Everything ends with the `with` block."""

    def __init__(self, config: TrainConfig, sizes: Sizes, spaces: Spaces) -> None:
        super().__init__()
        self._config, self._sizes, self._spaces = config, sizes, spaces
        self._device = chosen_device(config.device)

    def __enter__(self) -> _Rig:
        super().__enter__()
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def _make(self) -> None:
        config, sizes, spaces = self._config, self._sizes, self._spaces
        self._agents = {rows: self._agent_of(spaces, rows) for rows in sizes.rows}
        agent = self._agents[sizes.batch_sizes[0]]
        self._table = self.enter_context(self._table_for(agent))
        self._board = ParameterBoard(ParameterLayout.of(agent.parameters()))
        self.callback(self._board.close)
        self._publish(agent)
        self._probe = Probe(config, sizes.num_envs, agent, self._table, self._board)
        self.callback(self._probe.stop)
        self._probe.start()
        wanted = min(self._table.capacity // 2, max(1_000, 2 * max(sizes.batch_sizes)))
        while len(self._table) < wanted:
            self._probe.act(max(sizes.num_envs), _ACT_S)
        self._one_process = self.enter_context(OneProcess(config, sizes.num_envs, agent, self._table, self._board))
        self._gradients, size = _gradients_of(self._agent_of(spaces, sizes.rows[0]), self._drawn(sizes.rows[0]))
        self._rows = np.zeros((2, size), np.float32)
        self._group: LearnerGroup | None = None
        whole = sizes.batch_sizes[0]
        if sizes.learners_too and whole % 2 == 0:
            options = GroupOptions(2, self._device, learner_threads(config))
            its = replace(config.agent, batch_size=whole)
            self._group = LearnerGroup(self._agent_of(spaces, whole // 2), its, spaces, options)
            self.callback(self._group.stop)
        for rows, one in self._agents.items():
            one.update(self._drawn(rows))  # the first call makes buffers: it is not measured
        if self._group is not None:
            self._group.update(self._drawn(whole))

    def _agent_of(self, spaces: Spaces, rows: int) -> Agent:
        its: AgentConfig = replace(self._config.agent, batch_size=rows)
        return its.make(spaces, seed=self._config.environment.seed, device=self._device)

    def _table_for(self, agent: Agent) -> Table:
        lanes = 2 * 3 * sum(self._sizes.num_envs)
        name = f"tune-{os.getpid()}-{secrets.token_hex(3)}"
        capacity = min(_CAPACITY, self._config.replay.capacity)
        return Table(
            agent.spec(), max(capacity, 64 * lanes), agent.index(MinSize(1)), storage=SharedMemory(name),
            max_lanes=lanes, seed=self._config.environment.seed,
        )  # fmt: skip

    def _drawn(self, num_items: int) -> Any:
        agent = self._agents[self._sizes.batch_sizes[0]]
        return self._table.sample(num_items, columns=tuple(agent.columns), timeout_s=ANSWER_S)

    def _publish(self, agent: Agent) -> None:
        version = self._board.publish(agent.parameters())
        self._table.set_policy_version(version)

    # ---- a round ---------------------------------------------------------------------------------------------------

    def round(self, readings: _Readings) -> None:
        """Measures every part for a moment."""
        sizes = self._sizes
        for num_envs in sizes.num_envs:
            self._read_steps(readings, num_envs)
        for rows in sizes.rows:
            sample_s, update_s = self._learn(rows, _LEARN_S)
            readings.add("update", rows, update_s)
            if rows in sizes.batch_sizes:
                readings.add("sample", rows, sample_s)
        for num_envs in sizes.num_envs:
            self._read_one_process(readings, num_envs)
        self._read_publication(readings)
        self._read_both(readings)
        if self._group is not None:
            self._read_group(readings, self._group)

    def _read_steps(self, readings: _Readings, num_envs: int) -> None:
        readings.add("step", num_envs, self._probe.act(num_envs, _ACT_S))
        for part, share in self._probe.look(num_envs, _ACT_S / 2).items():
            readings.add(part, num_envs, share)

    def _read_one_process(self, readings: _Readings, num_envs: int) -> None:
        """Reads how much longer a draw and its update take between steps of the actor than alone, moments ago."""
        rows = self._sizes.batch_sizes[0]
        learn = partial(self._update, rows)
        step_s, learnt_s = self._one_process.take(num_envs, _ALTERNATE_S, learn, self._wait_for_device)
        alone_s = readings.values["sample", rows][-1] + readings.values["update", rows][-1]
        readings.add("step here", num_envs, step_s)
        readings.add("slow here", num_envs, learnt_s / alone_s)

    def _update(self, rows: int) -> None:
        """Makes one draw and one update, as a learner does."""
        batch = self._drawn(rows)
        priorities = self._agents[rows].update(batch)
        if priorities is not None:
            self._table.update_priorities(batch.item_keys, priorities)

    def _learn(self, rows: int, seconds: float) -> tuple[float, float]:
        """Returns the seconds of one draw and of one update, measured for so long, over three updates at least."""
        agent, drawn_s, num_updates = self._agents[rows], 0.0, 0
        clock = time.perf_counter
        began_s, worked_s = clock(), working_clock()
        while num_updates < 3 or clock() - began_s < seconds:
            before_s = clock()
            batch = self._drawn(rows)
            drawn_s += clock() - before_s
            priorities = agent.update(batch)
            num_updates += 1
            if priorities is not None:
                before_s = clock()
                self._table.update_priorities(batch.item_keys, priorities)
                drawn_s += clock() - before_s
        self._wait_for_device()
        took_s, share = working_clock() - worked_s, drawn_s / (clock() - began_s)
        return took_s * share / num_updates, took_s * (1.0 - share) / num_updates

    def _wait_for_device(self) -> None:
        if self._device.startswith("cuda"):
            torch.cuda.synchronize(self._device)

    def _read_publication(self, readings: _Readings) -> None:
        agent = self._agents[self._sizes.batch_sizes[0]]
        began_s = working_clock()
        for _ in range(_PUBLICATIONS):
            self._publish(agent)
        readings.add("publish", 0, (working_clock() - began_s) / _PUBLICATIONS)
        readings.add("take", 0, self._probe.take())
        began_s = working_clock()
        for _ in range(_ADDITIONS):
            self._rows[0] += self._rows[1]
        readings.add("add", 0, (working_clock() - began_s) / _ADDITIONS)

    def _read_both(self, readings: _Readings) -> None:
        """Reads how much longer a step and an update take while both run than each alone, before and after."""
        num_envs, rows = self._middle_envs, self._sizes.batch_sizes[0]
        step_s, learnt_s = [self._probe.act(num_envs, _BOTH_S / 2)], [sum(self._learn(rows, _BOTH_S / 2))]
        self._probe.begin("act", num_envs, _BOTH_S)
        both_learnt_s = sum(self._learn(rows, _BOTH_S))
        both_step_s = self._probe.answer()
        step_s.append(self._probe.act(num_envs, _BOTH_S / 2))
        learnt_s.append(sum(self._learn(rows, _BOTH_S / 2)))
        readings.add("slow acting", 0, both_step_s / float(np.mean(step_s)))
        readings.add("slow learning", 0, both_learnt_s / float(np.mean(learnt_s)))

    @property
    def _middle_envs(self) -> int:
        return sorted(self._sizes.num_envs)[len(self._sizes.num_envs) // 2]

    def _read_group(self, readings: _Readings, group: LearnerGroup) -> None:
        whole, num_updates, took_s = self._sizes.batch_sizes[0], 0, 0.0
        while num_updates < 3 or took_s < _LEARN_S:
            batch = self._drawn(whole)
            waited_s, began_s = self._waited(group), time.perf_counter()
            group.update(batch)
            # The learners wait for each other: the longest wait for a core delays all of them.
            waited_s = [after - before for before, after in zip(waited_s, self._waited(group), strict=True)]
            took_s += time.perf_counter() - began_s - max(waited_s)
            num_updates += 1
        readings.add("group", whole, took_s / num_updates)

    @staticmethod
    def _waited(group: LearnerGroup) -> list[float]:
        return [waited_for_core_s(), *(waited_for_core_s(pid) for pid in group.pids)]

    # ---- the result ------------------------------------------------------------------------------------------------

    def costs(self, readings: _Readings) -> Costs:
        """Returns the medians."""
        slow_acting, slow_learning = (max(1.0, readings.median(f"slow {side}")) for side in ("acting", "learning"))
        sync_s, whole = None, self._sizes.batch_sizes[0]
        if self._group is not None:
            # The learners slow each other down as an actor does: that part is crowding. The rest are waits.
            waits_s = readings.median("group", whole) / slow_learning - readings.median("update", whole // 2)
            sync_s = max(0.0, waits_s / self._gradients - readings.median("add"))
        parts: dict[int, Mapping[str, float]] = {
            num_envs: {part: readings.median(part, num_envs) for part in PARTS} for num_envs in self._sizes.num_envs
        }
        return Costs(
            cores=len(os.sched_getaffinity(0)),
            steps=readings.curve("step"),
            steps_here=readings.curve("step here"),
            slow_here=tuple((size, max(1.0, times)) for size, times in readings.curve("slow here")),
            parts=parts,
            samples=readings.curve("sample"),
            updates=readings.curve("update"),
            gradients=self._gradients,
            sync_s=sync_s,
            add_s=readings.median("add"),
            publish_s=readings.median("publish"),
            take_s=readings.median("take"),
            slow_acting=slow_acting,
            slow_learning=slow_learning,
            spread=readings.spread(),
        )


def _gradients_of(agent: Agent, batch: Any, num_updates: int = 4) -> tuple[float, int]:
    """Returns the gradients that learners would combine in one update, and the values of each, on average.

    The agent cannot be used after the call.
    """
    counter = _Counter()
    agent.join(counter)
    for _ in range(num_updates):
        agent.update(batch)
    return counter.num_gradients / num_updates, counter.num_values // max(1, counter.num_gradients)


@final
class _Counter:
    """The `Replicas` of one learner. It counts gradients."""

    number, count = 0, 1

    def __init__(self) -> None:
        self.num_gradients = self.num_values = 0

    def combine(self, gradients: Any) -> None:
        """See Replicas. The mean over one learner is its own gradient."""
        self.num_gradients += 1
        self.num_values += len(gradients)
