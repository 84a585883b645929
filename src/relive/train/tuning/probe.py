"""Runs the actor process of a calibration, which acts when and as long as it is asked to. It imports no torch.

Requests (name, environments, seconds) come through a pipe, and each gets an answer:

  act    seconds of one step of all environments, as actors take it in a run that is not profiled
  look   the shares of environment, inference and insert in such a step, by stopwatches
  take   seconds of copying the newest parameters out of shared memory

The process ends with the pipe, which ends with the process at its other end.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import final

import numpy as np

from relive import Table, attach
from relive.agents.agent import Policy
from relive.train.acting.actor import ActorTask, make_acting
from relive.train.memory.core_waits import working_clock
from relive.train.memory.parameters import ParameterBoard
from relive.train.memory.scoreboard import Scoreboard
from relive.train.memory.stopwatch import PARTS as ALL_PARTS
from relive.train.memory.stopwatch import Counts, Stopwatch, watch_with
from relive.train.sections import EnvironmentConfig

PARTS = ("environment", "inference", "insert")
_TAKES = 5


@final
@dataclass(frozen=True)
class ProbeTask:
    """The task of the process.

    Attributes:
        table_name: Name of the shared table.
        environment: Options of the environments.
        num_envs: Numbers of environments that will be asked for.
        policy: The policy.
        board: Source of the parameters.
        scoreboard: Counters; the process notes errors of the environment there.
        pipe: Requests and answers.
    """

    table_name: str
    environment: EnvironmentConfig
    num_envs: tuple[int, ...]
    policy: Policy
    board: ParameterBoard
    scoreboard: Scoreboard
    pipe: Connection


def run_probe(task: ProbeTask) -> None:
    """Answers requests until the pipe ends: the main function of the process."""
    with ExitStack() as stack:
        table = stack.enter_context(attach(task.table_name))
        plain = {number: _Steps(task, table, number, stack) for number in task.num_envs}
        timed = {number: _Steps(task, table, number, stack, is_timed=True) for number in task.num_envs}
        try:
            task.pipe.send("ready")
            while True:
                what, number, seconds = task.pipe.recv()
                if what == "take":
                    task.pipe.send(_take(task.board))
                elif what == "act":
                    task.pipe.send(plain[number].take(seconds))
                else:
                    timed[number].take(seconds)
                    task.pipe.send(timed[number].shares())
        except (EOFError, BrokenPipeError, ConnectionResetError):
            pass


def _take(board: ParameterBoard) -> float:
    """Returns the median time of a few reads. A reader that has read nothing copies all parameters."""
    took = []
    for _ in range(_TAKES):
        reader = board.reader()
        began_s = time.perf_counter()
        reader.poll()
        took.append(time.perf_counter() - began_s)
    return float(np.median(took))


@final
class _Steps:
    """Measures the steps of an actor. is_timed: its parts are timed, which costs some microseconds a step."""

    def __init__(
        self, task: ProbeTask, table: Table, num_envs: int, stack: ExitStack, *, is_timed: bool = False
    ) -> None:
        size = len(ALL_PARTS)
        self._counts = Counts(np.zeros(size), np.zeros(size), np.zeros(size, np.int64))
        self._stopwatch = Stopwatch(self._counts)
        watch = watch_with(self._stopwatch if is_timed else None)
        environment = replace(task.environment, num_envs_per_actor=num_envs)
        actor = ActorTask(0, 0, task.table_name, environment, task.policy, task.board, task.scoreboard)
        self._acting = make_acting(actor, table, watch, stack)
        self._acting.reset()

    def take(self, seconds: float) -> float:
        """Steps for so long, three times at least. Returns the seconds of one step, without waits for a core."""
        self._stopwatch.look()
        self._counts.seconds[:] = 0.0  # the time between the calls does not count
        number, until_s, began_s = 0, time.perf_counter() + seconds, working_clock()
        while number < 3 or time.perf_counter() < until_s:
            self._acting.step()
            number += 1
        took_s = working_clock() - began_s
        self._stopwatch.look()
        return took_s / number

    def shares(self) -> dict[str, float]:
        """Returns the share of each part in the steps of the last `take`. The rest is outside of all parts."""
        total = float(self._counts.seconds.sum())
        return {part: float(self._counts.seconds[ALL_PARTS.index(part)]) / total for part in PARTS}
