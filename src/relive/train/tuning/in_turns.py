"""Acting and learning in turns in one process, as `inline` runs do, measured for the tuner."""

from __future__ import annotations

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
from relive.train.tuning.probing import FAR_ON

_LEAST_TURNS = 3
_MOST_UPDATES = 8  # between two turns: more of them would show no more, and take the tuner minutes at high ratios


@final
class InTurns(ExitStack):
    """One actor of each number of environments, stepped by the calling thread; the table and the board are others'."""

    def __init__(
        self, config: TrainConfig, num_envs: Sequence[int], agent: Agent, table: Table, board: ParameterBoard
    ) -> None:
        super().__init__()
        self._ratio, self._columns = config.replay.updates_per_step, tuple(agent.columns)
        self._actors: dict[int, InlineActors] = {}
        try:
            self._empty = self.enter_context(Table(agent.spec(), 64, agent.index(MinSize(1)), seed=0))
            scoreboard = Scoreboard(1, steps_before=FAR_ON)
            self.callback(scoreboard.close)
            for number in num_envs:
                options = {"topology": "inline", "environment.num_envs_per_actor": number, "acting.num_actors": 1}
                its = changed(config, options)
                actors = InlineActors(its, agent.policy(), table, board, scoreboard, watch_with(None))
                self.callback(actors.stop)
                actors.start()
                self._actors[number] = actors
        except BaseException:
            self.close()
            raise

    def take(
        self, num_envs: int, seconds: float, learn: Callable[[], None], wait_for_device: Callable[[], None]
    ) -> tuple[float, float]:
        """Seconds of a turn, and of a `learn`, which comes as often as updates do in the run, at most eight times in
        a row; over as long, three turns and one of those at least. What the thread waited for a core is taken off both.
        """
        actors, clock, due = self._actors[num_envs], time.perf_counter, 1.0
        num_turns, num_updates, learnt_s = 0, 0, 0.0
        began_s, worked_s = clock(), working_clock()
        while num_turns < _LEAST_TURNS or clock() - began_s < seconds:
            before_s = clock()
            while due >= 1.0:
                learn()
                num_updates += 1
                due -= 1.0
            learnt_s += clock() - before_s
            self._ask_in_vain()
            actors.turn()
            num_turns += 1
            due = min(due + num_envs * self._ratio, _MOST_UPDATES)
        wait_for_device()
        took_s, share = working_clock() - worked_s, learnt_s / (clock() - began_s)
        return took_s * (1.0 - share) / num_turns, took_s * share / num_updates

    def _ask_in_vain(self) -> None:
        # As the loop does before each turn: the limiter says that there is nothing to learn from yet.
        with suppress(DeadlineExceeded):
            self._empty.sample(1, columns=self._columns, timeout_s=0.0)
