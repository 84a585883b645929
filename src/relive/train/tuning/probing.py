"""The actor process of a calibration, seen from the process that calibrates: asked for one thing at a time."""

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

ANSWER_S = 60.0  # an environment that takes longer over one step is not measured
_START_S = 300.0
FAR_ON = 10**9  # environment steps: actors no longer act at random


@final
class Probe:
    """The parent's side of the actor process; one call at a time, each within a deadline."""

    def __init__(
        self, config: TrainConfig, num_envs: Sequence[int], agent: Agent, table: Table, board: ParameterBoard
    ) -> None:
        self._scoreboard = Scoreboard(1, steps_before=FAR_ON)
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
        """Starts it and waits until its environments are made."""
        self._child.start(self._task)
        self._hear(_START_S)

    def begin(self, what: str, num_envs: int, seconds: float) -> None:
        """Has it act for as long; `answer` says what came of it."""
        try:
            self._child.pipe.send((what, num_envs, seconds))
        except (BrokenPipeError, ConnectionResetError):
            self._fail()

    def answer(self) -> Any:
        """What it found: seconds of a turn, or of taking parameters; shares of the parts of a turn."""
        return self._hear(ANSWER_S)

    def act(self, num_envs: int, seconds: float) -> float:
        """Seconds of one turn, over as long."""
        self.begin("act", num_envs, seconds)
        return float(self.answer())

    def look(self, num_envs: int, seconds: float) -> dict[str, float]:
        """The shares of a turn's parts."""
        self.begin("look", num_envs, seconds)
        return dict(self.answer())

    def take(self) -> float:
        """Seconds of taking the newest parameters over."""
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
        """Ends the process; it is killed where it has not ended after timeout_s."""
        end_all([self._child], timeout_s)
        self._scoreboard.close()
