"""Measures what the parts of a run cost on this machine: the numbers of `relive.train.tuning.throughput`.

They are measured with the real things: an actor process (`Acting`, its own table lanes) over a shared table, the agent
of the run, its parameters published to the actor's board, a group of two learners. Each round measures every part for
a moment, one after the other, alone, then acting and learning at once, and in turns in this process, as runs of one
process take them: caches and the interpreter are colder then than where one part follows itself. So a machine that
grows slower for a while does so for all of them; what is kept is the median over the rounds. Times are those of the
wall without what a thread waited for a core: with other programmes on the machine they are still those of this work.
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
from relive.train.tuning.in_turns import InTurns
from relive.train.tuning.probe import PARTS
from relive.train.tuning.probing import ANSWER_S, Probe
from relive.train.tuning.throughput import Costs, Curve

_CAPACITY = 50_000
_ACT_S, _LEARN_S, _TURNS_S, _BOTH_S = 0.1, 0.15, 0.15, 0.4  # of a round, by the wall
_LEAST_ROUNDS = 3
_PUBLICATIONS, _ADDITIONS = 5, 20


@final
@dataclass(frozen=True)
class Sizes:
    """What is measured: environments of an actor, batches of the run, and whether two learners of one update are."""

    num_envs: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    learners_too: bool

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows of an update: whole batches, and the halves that two learners have."""
        halves = {size // 2 for size in self.batch_sizes if size % 2 == 0 and self.learners_too}
        return tuple(sorted({*self.batch_sizes, *halves}))


Reading = tuple[str, int]  # what, of which size


@final
@dataclass
class _Readings:
    """Seconds by what was measured, a value a round."""

    values: dict[Reading, list[float]] = field(default_factory=dict)

    def add(self, what: str, size: int, value: float) -> None:
        self.values.setdefault((what, size), []).append(value)

    def median(self, what: str, size: int = 0) -> float:
        return float(np.median(self.values[what, size]))

    def curve(self, what: str) -> Curve:
        sizes = sorted(size for name, size in self.values if name == what)
        return tuple((size, self.median(what, size)) for size in sizes)

    def spread(self) -> float:
        """The median of the interquartile ranges, as shares of the medians."""
        ranges = []
        for (what, _), values in self.values.items():
            if what in ("turn", "sample", "update"):
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
    """The costs of the parts of this run, in about budget_s seconds: three rounds at least, whatever they take.

    It starts an actor process, and, with sizes.learners_too, a learner process; both have ended when it returns or
    raises. say: told in lines for people how far it is. spaces: of the environment; None: it is described here.
    Raises InvalidConfig where the agent cannot act in the
    environment, EnvironmentRaised where that raises, ActorsKeepDying where the actor dies or does not answer.
    """
    began_s = time.monotonic()
    with (
        learner_numerics(learner_threads(config)),
        _Rig(config, sizes, spaces or describe(config.environment.env_id)) as rig,
    ):
        say(f"an actor process {'and a second learner run' if sizes.learners_too else 'runs'} beside this one")
        readings, num_rounds, since_s = _Readings(), 0, time.monotonic()
        while num_rounds < _LEAST_ROUNDS or time.monotonic() - began_s < budget_s:
            rig.round(readings)
            num_rounds += 1
            a_round_s = (time.monotonic() - since_s) / num_rounds
            if num_rounds >= _LEAST_ROUNDS and time.monotonic() - began_s + a_round_s > budget_s:
                break
        say(f"{num_rounds} rounds of {a_round_s:.1f} s measured")
        return rig.costs(readings)


@final
class _Rig(ExitStack):
    """What is measured, made and filled; everything ends with the `with`."""

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
        self._in_turns = self.enter_context(InTurns(config, sizes.num_envs, agent, self._table, self._board))
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
            one.update(self._drawn(rows))  # what is made at the first call
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
        """Every part for a moment."""
        sizes = self._sizes
        for num_envs in sizes.num_envs:
            self._read_turns(readings, num_envs)
        for rows in sizes.rows:
            sample_s, update_s = self._learn(rows, _LEARN_S)
            readings.add("update", rows, update_s)
            if rows in sizes.batch_sizes:
                readings.add("sample", rows, sample_s)
        for num_envs in sizes.num_envs:
            self._read_in_turns(readings, num_envs)
        self._read_publication(readings)
        self._read_both(readings)
        if self._group is not None:
            self._read_group(readings, self._group)

    def _read_turns(self, readings: _Readings, num_envs: int) -> None:
        readings.add("turn", num_envs, self._probe.act(num_envs, _ACT_S))
        for part, share in self._probe.look(num_envs, _ACT_S / 2).items():
            readings.add(part, num_envs, share)

    def _read_in_turns(self, readings: _Readings, num_envs: int) -> None:
        """How much longer a draw and its update take between turns than by themselves, moments ago."""
        rows = self._sizes.batch_sizes[0]
        turn_s, learnt_s = self._in_turns.take(num_envs, _TURNS_S, partial(self._update, rows), self._wait_for_device)
        alone_s = readings.values["sample", rows][-1] + readings.values["update", rows][-1]
        readings.add("turn here", num_envs, turn_s)
        readings.add("slow here", num_envs, learnt_s / alone_s)

    def _update(self, rows: int) -> None:
        """One draw and one update, as a learner makes them."""
        batch = self._drawn(rows)
        priorities = self._agents[rows].update(batch)
        if priorities is not None:
            self._table.update_priorities(batch.item_keys, priorities)

    def _learn(self, rows: int, seconds: float) -> tuple[float, float]:
        """Seconds of one draw and of one update, over as long; three updates at least."""
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
        """How much longer a turn and an update take while both run, beside the same alone before and after."""
        num_envs, rows = self._middle_envs, self._sizes.batch_sizes[0]
        turn_s, learnt_s = [self._probe.act(num_envs, _BOTH_S / 2)], [sum(self._learn(rows, _BOTH_S / 2))]
        self._probe.begin("act", num_envs, _BOTH_S)
        both_learnt_s = sum(self._learn(rows, _BOTH_S))
        both_turn_s = self._probe.answer()
        turn_s.append(self._probe.act(num_envs, _BOTH_S / 2))
        learnt_s.append(sum(self._learn(rows, _BOTH_S / 2)))
        readings.add("slow acting", 0, both_turn_s / float(np.mean(turn_s)))
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
            # They wait for each other: what one of them waited for a core, all did.
            waited_s = [after - before for before, after in zip(waited_s, self._waited(group), strict=True)]
            took_s += time.perf_counter() - began_s - max(waited_s)
            num_updates += 1
        readings.add("group", whole, took_s / num_updates)

    @staticmethod
    def _waited(group: LearnerGroup) -> list[float]:
        return [waited_for_core_s(), *(waited_for_core_s(pid) for pid in group.pids)]

    # ---- what it comes to ------------------------------------------------------------------------------------------

    def costs(self, readings: _Readings) -> Costs:
        """The medians."""
        slow_acting, slow_learning = (max(1.0, readings.median(f"slow {side}")) for side in ("acting", "learning"))
        sync_s, whole = None, self._sizes.batch_sizes[0]
        if self._group is not None:
            # The learners slow each other down as an actor does: that much is crowding's, the rest are the waits.
            waits_s = readings.median("group", whole) / slow_learning - readings.median("update", whole // 2)
            sync_s = max(0.0, waits_s / self._gradients - readings.median("add"))
        parts: dict[int, Mapping[str, float]] = {
            num_envs: {part: readings.median(part, num_envs) for part in PARTS} for num_envs in self._sizes.num_envs
        }
        return Costs(
            cores=len(os.sched_getaffinity(0)),
            turns=readings.curve("turn"),
            turns_here=readings.curve("turn here"),
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
    """Gradients that learners would meet at in one update of this agent, and their numbers each, on average.

    The agent is used up.
    """
    counter = _Counter()
    agent.join(counter)
    for _ in range(num_updates):
        agent.update(batch)
    return counter.num_gradients / num_updates, counter.num_values // max(1, counter.num_gradients)


@final
class _Counter:
    """`Replicas` of one learner that counts."""

    number, count = 0, 1

    def __init__(self) -> None:
        self.num_gradients = self.num_values = 0

    def combine(self, gradients: Any) -> None:
        """See Replicas: the mean over one is what it is."""
        self.num_gradients += 1
        self.num_values += len(gradients)
