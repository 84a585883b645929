"""Asks the actor process of a calibration for measurements, one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from relive import Table
from relive.agents.agent import Agent
from relive.train.child import END_S, Child, end_all
from relive.train.config import TrainConfig
from relive.train.errors import ActorsKeepDying, EnvironmentRaised
from relive.train.memory.parameters import ParameterBoard
from relive.train.memory.scoreboard import Scoreboard
from relive.train.tuning.probe import ProbeTask, run_probe

ANSWER_S = 60.0  # an environment with a longer step is not measured
_START_S = 300.0
MANY_STEPS = 10**9  # environment steps after which actors no longer act at random


@final
class Probe:
    """The actor process, seen from its parent. One call at a time, each with a deadline."""

    def __init__(
        self, config: TrainConfig, num_envs: Sequence[int], agent: Agent, table: Table, board: ParameterBoard
    ) -> None:
        self._scoreboard = Scoreboard(1, steps_before=MANY_STEPS)
        self._child = Child("relive-tune-actor", run_probe, one_thread=True)
        name = str(table.path or "").rpartition("/")[2].removeprefix("relive-")
        self._task = ProbeTask(
            name,
            config.environment,
            tuple(num_envs),
            agent.policy(),
            board,
            self._scoreboard,
            self._child.open_pipe(),
        )

    def start(self) -> None:
        """Starts the process and waits until its environments are made."""
        self._child.start(self._task)
        self._hear(_START_S)

    def begin(self, what: str, num_envs: int, seconds: float) -> None:
        """Sends a request; `answer` waits for its result."""
        try:
            self._child.pipe.send((what, num_envs, seconds))
        except (BrokenPipeError, ConnectionResetError):
            self._fail()

    def answer(self) -> Any:
        """Returns the answer: seconds of a step or of reading parameters, or the shares of the parts of a step."""
        return self._hear(ANSWER_S)

    def act(self, num_envs: int, seconds: float) -> float:
        """Returns the seconds of one step, measured for so long."""
        self.begin("act", num_envs, seconds)
        return float(self.answer())

    def look(self, num_envs: int, seconds: float) -> dict[str, float]:
        """Returns the shares of the parts of a step."""
        self.begin("look", num_envs, seconds)
        return dict(self.answer())

    def take(self) -> float:
        """Returns the seconds of reading the newest parameters."""
        self.begin("take", 0, 0.0)
        return float(self.answer())

    def _hear(self, timeout_s: float) -> Any:
        try:
            if self._child.pipe.poll(timeout_s):
                return self._child.pipe.recv()
        except (EOFError, ConnectionResetError):
            pass
        self._fail()

    def _fail(self) -> Any:
        failure = self._scoreboard.failure_of(0)
        if failure is not None:
            raise EnvironmentRaised(0, *failure)
        raise ActorsKeepDying(0, 1, self._child.reap())

    def stop(self, timeout_s: float = END_S) -> None:
        """Ends the process, and kills it if it has not ended after timeout_s."""
        end_all([self._child], timeout_s)
        self._scoreboard.close()
