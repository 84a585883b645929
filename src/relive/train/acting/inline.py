"""Steps the actors of a run in the process of the learner, when the learner has nothing to learn from."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import final

from relive import Table
from relive.agents.agent import Policy
from relive.train.acting.actor import Acting, ActorTask, make_acting
from relive.train.acting.environments import environment_errors
from relive.train.child import END_S
from relive.train.config import TrainConfig
from relive.train.errors import EnvironmentRaised
from relive.train.memory.parameters import ParameterBoard
from relive.train.memory.scoreboard import Scoreboard
from relive.train.memory.stopwatch import Watch
from relive.train.parts import Part
from relive.train.signals import GRACE_S, Call


@final
class InlineActors(Part):
    """All actors of a run, stepped one after another by the thread that calls `step`. See Part."""

    def __init__(
        self,
        config: TrainConfig,
        policy: Policy,
        table: Table,
        board: ParameterBoard,
        scoreboard: Scoreboard,
        watch: Watch,
        ends_s: float,
    ) -> None:
        """Makes the actors; `start` makes their environments.

        Args:
            config: Options of the run.
            policy: The policy.
            table: The table.
            board: Source of the parameters.
            scoreboard: Counters of the actors.
            watch: Times the methods, if the run is profiled: the watch of the learner, whose thread this is.
            ends_s: Time on time.monotonic() at which the run reaches its time limit. A call of an environment that has
                not returned GRACE_S after it, and has lasted as long, raises EnvironmentHangs.
        """
        self._config, self._policy = config, policy
        self._table, self._board, self._scoreboard = table, board, scoreboard
        self._watch = watch
        self._actors: list[Acting] = []
        names = (f"the environment of actor {actor}" for actor in range(config.num_actors))
        self._calls = [Call(name, ends_s, GRACE_S) for name in names]
        self._stack = ExitStack()

    def start(self) -> None:
        """Makes and resets all environments. Raises EnvironmentRaised and EnvironmentHangs."""
        environment = self._config.environment
        for actor in range(self._config.num_actors):
            task = ActorTask(
                actor, 0, "", environment, self._policy, self._board, self._scoreboard
            )  # incarnation 0: an actor of this process cannot die alone
            self._call(actor, lambda task=task: self._actors.append(self._made(task)))  # type: ignore[misc]
            self._call(actor, self._actors[actor].reset)

    def _made(self, task: ActorTask) -> Acting:
        return make_acting(task, self._table, self._watch, self._stack)

    def step(self) -> None:
        """Takes one step of every actor that the limiter of the table does not delay.

        Raises EnvironmentRaised and EnvironmentHangs.
        """
        for actor, acting in enumerate(self._actors):
            self._call(actor, acting.step)

    def _call(self, actor: int, call: Callable[[], object]) -> None:
        """Makes the call; an error of the environment becomes EnvironmentRaised."""
        try:
            with self._calls[actor]:
                call()
        except Exception as problem:
            failure = self._scoreboard.failure_of(actor)
            if failure is None:
                raise
            raise EnvironmentRaised(actor, *failure) from problem

    def stop(self) -> None:
        """Closes all environments, within 5 s; open episodes end as truncated."""
        self._scoreboard.stop()
        self._actors = []
        with Call("the close of an environment", time.monotonic() + END_S), environment_errors("when it was closed"):
            self._stack.close()
