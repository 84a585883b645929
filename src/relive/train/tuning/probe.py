"""The actor process of a calibration: acts when it is told to, for as long as it is told. It imports no torch.

Words come through a pipe, (what, environments, seconds), and each is answered:

  act    seconds of one turn, as actors take it in a run that is not profiled
  look   the shares of environment, inference and insert in a turn, by stopwatches
  take   seconds of copying the newest parameters out of shared memory

It ends when the pipe does, which it also does with the process at its other end.
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
from relive.train.config import EnvironmentConfig
from relive.train.memory.core_waits import working_clock
from relive.train.memory.parameters import ParameterBoard
from relive.train.memory.scoreboard import Scoreboard
from relive.train.memory.stopwatch import PARTS as ALL_PARTS
from relive.train.memory.stopwatch import Counts, Stopwatch, watch_with

PARTS = ("environment", "inference", "insert")
_TAKES = 5


@final
@dataclass(frozen=True)
class ProbeTask:
    """What a process needs to be measured as an actor. num_envs: the numbers of environments it will be asked for."""

    table_name: str
    environment: EnvironmentConfig
    num_envs: tuple[int, ...]
    policy: Policy
    board: ParameterBoard
    scoreboard: Scoreboard
    pipe: Connection


def run_probe(task: ProbeTask) -> None:
    """The main function of the process."""
    with ExitStack() as stack:
        table = stack.enter_context(attach(task.table_name))
        plain = {number: _Turns(task, table, number, stack) for number in task.num_envs}
        seen = {number: _Turns(task, table, number, stack, watched=True) for number in task.num_envs}
        try:
            task.pipe.send("ready")
            while True:
                what, number, seconds = task.pipe.recv()
                if what == "take":
                    task.pipe.send(_take(task.board))
                elif what == "act":
                    task.pipe.send(plain[number].take(seconds))
                else:
                    seen[number].take(seconds)
                    task.pipe.send(seen[number].shares())
        except (EOFError, BrokenPipeError, ConnectionResetError):
            pass


def _take(board: ParameterBoard) -> float:
    """The median of a few: a reader that has seen nothing copies everything."""
    took = []
    for _ in range(_TAKES):
        reader = board.reader()
        began_s = time.perf_counter()
        reader.poll()
        took.append(time.perf_counter() - began_s)
    return float(np.median(took))


@final
class _Turns:
    """An actor with so many environments. watched: its parts are timed, which costs some microseconds a turn."""

    def __init__(
        self, task: ProbeTask, table: Table, num_envs: int, stack: ExitStack, *, watched: bool = False
    ) -> None:
        size = len(ALL_PARTS)
        self._counts = Counts(np.zeros(size), np.zeros(size), np.zeros(size, np.int64))
        self._stopwatch = Stopwatch(self._counts)
        watch = watch_with(self._stopwatch if watched else None)
        environment = replace(task.environment, num_envs_per_actor=num_envs)
        actor = ActorTask(0, 0, task.table_name, environment, task.policy, task.board, task.scoreboard)
        self._acting = make_acting(actor, table, watch, stack)
        self._acting.reset()

    def take(self, seconds: float) -> float:
        """Turns for as long, three at least: seconds of one, without waits for a core."""
        self._stopwatch.look()
        self._counts.seconds[:] = 0.0  # between the calls nothing is done
        number, until_s, began_s = 0, time.perf_counter() + seconds, working_clock()
        while number < 3 or time.perf_counter() < until_s:
            self._acting.turn()
            number += 1
        took_s = working_clock() - began_s
        self._stopwatch.look()
        return took_s / number

    def shares(self) -> dict[str, float]:
        """Of each part in the turns of the last `take`; the rest is what nobody named."""
        total = float(self._counts.seconds.sum())
        return {part: float(self._counts.seconds[ALL_PARTS.index(part)]) / total for part in PARTS}
