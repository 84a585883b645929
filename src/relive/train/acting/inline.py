"""The actors of a run in one process: the learner lets them step when it has nothing to learn from."""

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
    """All actors of a run, stepped in turn by the thread that calls `turn`. Has what ActorPool has; none of it dies."""

    def __init__(
        self,
        config: TrainConfig,
        policy: Policy,
        table: Table,
        board: ParameterBoard,
        scoreboard: Scoreboard,
        watch: Watch,
    ) -> None:
        """watch: the learner's, whose thread this is."""
        self._config, self._policy = config, policy
        self._table, self._board, self._scoreboard = table, board, scoreboard
        self._watch = watch
        self._actors: list[Acting] = []
        self._stack = ExitStack()

    def start(self) -> None:
        """Makes and resets all environments. Raises EnvironmentRaised where a reset does."""
        environment = self._config.environment
        for actor in range(self._config.num_actors):
            task = ActorTask(
                actor, 0, "", environment, self._policy, self._board, self._scoreboard
            )  # incarnation 0: nothing here dies on its own
            acting = make_acting(task, self._table, self._watch, self._stack)
            self._actors.append(acting)
            self._told(actor, acting.reset)

    def turn(self) -> None:
        """One step of every actor that the table's limiter does not hold back. Raises EnvironmentRaised."""
        for actor, acting in enumerate(self._actors):
            self._told(actor, acting.turn)

    def _told(self, actor: int, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as problem:
            failure = self._scoreboard.failure_of(actor)
            if failure is None:
                raise
            raise EnvironmentRaised(actor, *failure) from problem

    def stop(self) -> None:
        """Closes all environments; the episodes under way end as truncated."""
        self._scoreboard.stop()
        self._stack.close()
        self._actors = []
