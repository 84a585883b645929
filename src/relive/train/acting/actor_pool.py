"""Starts the actor processes of a run, starts dead ones again, and stops them."""

from __future__ import annotations

from typing import final

from relive.agents.agent import Policy
from relive.train.acting.actor import ActorTask, run_actor
from relive.train.acting.inference_pool import InferencePool
from relive.train.child import END_S, Child, Deaths, end_all
from relive.train.config import TrainConfig
from relive.train.errors import ActorsKeepDying, EnvironmentRaised
from relive.train.memory.parameters import ParameterBoard
from relive.train.memory.scoreboard import Scoreboard
from relive.train.memory.stopwatch import ProfileBoard
from relive.train.parts import Part


@final
class ActorPool(Part):
    """The actor processes of a run, and the inference process that they ask, if there is one. See Part."""

    def __init__(
        self,
        config: TrainConfig,
        policy: Policy,
        table_name: str,
        board: ParameterBoard,
        scoreboard: Scoreboard,
        profile: ProfileBoard | None = None,
        inference: InferencePool | None = None,
    ) -> None:
        """Makes the actors; starts none.

        Args:
            config: Options of the run.
            policy: The policy.
            table_name: Name of the shared table.
            board: Source of the parameters.
            scoreboard: Counters of the actors.
            profile: Counters of the time of each process; None: the run is not profiled.
            inference: The process that the actors ask for actions, which starts and stops with them; None: they infer
                their actions themselves.
        """
        self._config = config
        self._policy = policy
        self._table_name = table_name
        self._board = board
        self._scoreboard = scoreboard
        self._profile, self._inference = profile, inference
        numbers = range(config.num_actors)
        self._children = [Child(f"relive-actor-{actor}", run_actor, one_thread=True) for actor in numbers]
        self._deaths = [Deaths() for _ in numbers]  # before the first step
        self._steps_at_start = [0 for _ in numbers]

    def start(self) -> None:
        """Starts the inference process, if there is one, then all actors."""
        if self._inference is not None:
            self._inference.start()
        for actor in range(len(self._children)):
            self._start(actor)

    def _start(self, actor: int) -> None:
        task = ActorTask(
            actor,
            self._children[actor].num_starts,
            self._table_name,
            self._config.environment,
            self._policy,
            self._board,
            self._scoreboard,
            None if self._inference is None else self._inference.requests_of(actor),
            self._config.topology.num_groups,
            self._profile,
        )
        self._children[actor].start(task)
        self._steps_at_start[actor] = self._scoreboard.steps_of(actor)

    @property
    def num_restarts(self) -> int:
        """Times that actors were started again."""
        return sum(max(0, child.num_starts - 1) for child in self._children)

    @property
    def pids(self) -> list[int]:
        """Process ids of the actors that are started."""
        return [child.pid for child in self._children if child.pid is not None]

    def watch(self) -> None:
        """Starts dead actors again. Call it often.

        Raises:
            EnvironmentRaised: The environment of an actor raised an error.
            ActorsKeepDying: An actor died three times in a row before its first step.
            InferenceKeepsDying: The inference process died three times in a row without an answer.
        """
        if self._inference is not None:
            self._inference.watch()
        for actor, child in enumerate(self._children):
            if not child.has_died:
                continue
            failure = self._scoreboard.failure_of(actor)
            if failure is not None:
                raise EnvironmentRaised(actor, *failure)
            self._count_death(actor, child.reap())
            self._start(actor)

    def _count_death(self, actor: int, exit_code: int | None) -> None:
        """Counts a death before the first step; an actor that has stepped starts with a new count."""
        deaths = self._deaths[actor]
        if self._scoreboard.steps_of(actor) == self._steps_at_start[actor]:
            deaths.count(lambda number: ActorsKeepDying(actor, number, exit_code))
        else:
            deaths.forget()

    def stop(self, timeout_s: float = END_S) -> None:
        """Asks all actors to end, waits, and kills those that have not ended after timeout_s. No process is left."""
        self._scoreboard.stop()
        try:
            end_all(self._children, timeout_s)
        finally:
            if self._inference is not None:
                self._inference.stop()
