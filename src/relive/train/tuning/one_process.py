"""Measures acting and learning alternately in one process, as `inline` runs do. The tuner needs it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import final

from relive import MinSize, Table
from relive.agents.agent import Agent
from relive.errors import DeadlineExceeded
from relive.train.acting.inline import InlineActors
from relive.train.config import TrainConfig
from relive.train.memory.core_waits import working_clock
from relive.train.memory.parameters import ParameterBoard
from relive.train.memory.scoreboard import Scoreboard
from relive.train.memory.stopwatch import watch_with
from relive.train.settings import changed
from relive.train.tuning.probing import MANY_STEPS

_LEAST_STEPS = 3
_MOST_UPDATES = 8  # between two steps: more updates would show no more, and take minutes at high replay ratios


@final
class OneProcess(ExitStack):
    """An actor for each number of environments, stepped by the calling thread. The caller owns table and board."""

    def __init__(
        self, config: TrainConfig, num_envs: Sequence[int], agent: Agent, table: Table, board: ParameterBoard
    ) -> None:
        super().__init__()
        self._ratio, self._columns = config.replay.updates_per_step, tuple(agent.columns)
        self._actors: dict[int, InlineActors] = {}
        try:
            self._empty = self.enter_context(Table(agent.spec(), 64, agent.index(MinSize(1)), seed=0))
            scoreboard = Scoreboard(1, steps_before=MANY_STEPS)
            self.callback(scoreboard.close)
            for number in num_envs:
                options = {"topology": "inline", "environment.num_envs_per_actor": number, "acting.num_actors": 1}
                its = changed(config, options)
                actors = InlineActors(its, agent.policy(), table, board, scoreboard, watch_with(None), math.inf)
                self.callback(actors.stop)
                actors.start()
                self._actors[number] = actors
        except BaseException:
            self.close()
            raise

    def take(
        self, num_envs: int, seconds: float, learn: Callable[[], None], wait_for_device: Callable[[], None]
    ) -> tuple[float, float]:
        """Measures a step of the actor and an update, alternately. Waits for a core do not count.

        Args:
            num_envs: Environments of the actor.
            seconds: Wall-clock time; three steps and one update are made in any case.
            learn: Makes an update. It is called as often as the run makes updates, at most eight times in a row.
            wait_for_device: Waits until the device has done its work.

        Returns:
            Seconds of a step, and seconds of an update.
        """
        actors, clock, due = self._actors[num_envs], time.perf_counter, 1.0
        num_steps, num_updates, learnt_s = 0, 0, 0.0
        began_s, worked_s = clock(), working_clock()
        while num_steps < _LEAST_STEPS or clock() - began_s < seconds:
            before_s = clock()
            while due >= 1.0:
                learn()
                num_updates += 1
                due -= 1.0
            learnt_s += clock() - before_s
            self._ask_in_vain()
            actors.step()
            num_steps += 1
            due = min(due + num_envs * self._ratio, _MOST_UPDATES)
        wait_for_device()
        took_s, share = working_clock() - worked_s, learnt_s / (clock() - began_s)
        return took_s * (1.0 - share) / num_steps, took_s * share / num_updates

    def _ask_in_vain(self) -> None:
        # The loop of a run does so before each step: the limiter says that there is nothing to learn from yet.
        with suppress(DeadlineExceeded):
            self._empty.sample(1, columns=self._columns, timeout_s=0.0)
