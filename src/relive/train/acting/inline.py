"""Steps the actors of a run in the process of the learner, when the learner has nothing to learn from."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import final

from relive import Table
from relive.agents.agent import Policy
from relive.train.acting.actor import Acting, ActorTask, make_acting
from relive.train.config import TrainConfig
from relive.train.errors import EnvironmentRaised
from relive.train.memory.parameters import ParameterBoard
from relive.train.memory.scoreboard import Scoreboard
from relive.train.memory.stopwatch import Watch
from relive.train.parts import Part


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
    ) -> None:
        """Makes the actors; `start` makes their environments.

        Args:
            config: Options of the run.
            policy: The policy.
            table: The table.
            board: Source of the parameters.
            scoreboard: Counters of the actors.
            watch: Times the methods, if the run is profiled: the watch of the learner, whose thread this is.
        """
        self._config, self._policy = config, policy
        self._table, self._board, self._scoreboard = table, board, scoreboard
        self._watch = watch
        self._actors: list[Acting] = []
        self._stack = ExitStack()

    def start(self) -> None:
        """Makes and resets all environments. Raises EnvironmentRaised if a reset raises an error."""
        environment = self._config.environment
        for actor in range(self._config.num_actors):
            task = ActorTask(
                actor, 0, "", environment, self._policy, self._board, self._scoreboard
            )  # incarnation 0: an actor of this process cannot die alone
            acting = make_acting(task, self._table, self._watch, self._stack)
            self._actors.append(acting)
            self._call(actor, acting.reset)

    def step(self) -> None:
        """Takes one step of every actor that the limiter of the table does not delay. Raises EnvironmentRaised."""
        for actor, acting in enumerate(self._actors):
            self._call(actor, acting.step)

    def _call(self, actor: int, call: Callable[[], object]) -> None:
        """Makes the call; an error of the environment becomes EnvironmentRaised."""
        try:
            call()
        except Exception as problem:
            failure = self._scoreboard.failure_of(actor)
            if failure is None:
                raise
            raise EnvironmentRaised(actor, *failure) from problem

    def stop(self) -> None:
        """Closes all environments; open episodes end as truncated."""
        self._scoreboard.stop()
        self._stack.close()
        self._actors = []
