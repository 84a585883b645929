"""The actor process of a calibration, seen from the process that calibrates: asked for one thing at a time."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from typing import Any, final

from relive import Table
from relive.agents.agent import Agent
from relive.train.config import TrainConfig
from relive.train.errors import ActorsKeepDying, EnvironmentRaised
from relive.train.memory.parameters import ParameterBoard
from relive.train.memory.scoreboard import Scoreboard
from relive.train.processes import one_thread_for_numerics, signals_held_back
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
        context = multiprocessing.get_context("spawn")
        self._pipe, self._its = context.Pipe()
        name = str(table.path or "").rpartition("/")[2].removeprefix("relive-")
        task = ProbeTask(
            os.getpid(), name, config.environment, tuple(num_envs), agent.policy(), board, self._scoreboard, self._its
        )
        self._process = context.Process(target=run_probe, args=(task,), name="relive-tune-actor", daemon=True)

    def start(self) -> None:
        """Starts it and waits until its environments are made."""
        with signals_held_back(), one_thread_for_numerics():
            self._process.start()
        self._its.close()  # or its end would never be heard
        self._hear(_START_S)

    def begin(self, what: str, num_envs: int, seconds: float) -> None:
        """Has it act for as long; `answer` says what came of it."""
        try:
            self._pipe.send((what, num_envs, seconds))
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
            if self._pipe.poll(timeout_s):
                return self._pipe.recv()
        except (EOFError, ConnectionResetError):
            pass
        self._fail()

    def _fail(self) -> Any:
        failure = self._scoreboard.failure_of(0)
        if failure is not None:
            raise EnvironmentRaised(0, *failure)
        self._process.kill()
        self._process.join()
        raise ActorsKeepDying(0, 1, self._process.exitcode)

    def stop(self, timeout_s: float = 5.0) -> None:
        """Ends the process; it is killed where it has not ended after timeout_s."""
        self._pipe.close()
        self._its.close()
        if self._process.pid is not None:
            self._process.join(timeout_s)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()
        self._process.close()
        self._scoreboard.close()
