"""The actor processes of a run: started, watched, started again when one dies, and stopped."""

from __future__ import annotations

import multiprocessing
import os
import time
from typing import final

from relive.agents.agent import Policy
from relive.train.acting.actor import ActorTask, run_actor
from relive.train.acting.inference_pool import InferencePool
from relive.train.config import TrainConfig
from relive.train.errors import ActorsKeepDying, EnvironmentRaised
from relive.train.memory.parameters import ParameterBoard
from relive.train.memory.scoreboard import Scoreboard
from relive.train.memory.stopwatch import ProfileBoard
from relive.train.processes import one_thread_for_numerics, signals_held_back

_MAX_IDLE_DEATHS = 3


@final
class ActorPool:
    """All actors of a run. `watch` often; `stop` once, also after a failure. One thread."""

    inline = False

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
        """inference: where the actors ask for actions; it starts, is watched and is stopped with them."""
        self._config = config
        self._policy = policy
        self._table_name = table_name
        self._board = board
        self._scoreboard = scoreboard
        self._profile, self._inference = profile, inference
        # spawn: a fork would copy the learner's threads' locks in whatever state they are.
        self._context = multiprocessing.get_context("spawn")
        num_actors = config.num_actors
        self._processes: list[multiprocessing.process.BaseProcess | None] = [None] * num_actors
        self._steps_at_start = [0] * num_actors
        self._incarnations = [0] * num_actors
        self._idle_deaths = [0] * num_actors
        self.num_restarts = 0

    def start(self) -> None:
        """Starts all actors."""
        if self._inference is not None:
            self._inference.start()
        for actor in range(len(self._processes)):
            self._start(actor)

    def _start(self, actor: int) -> None:
        task = ActorTask(
            actor,
            self._incarnations[actor],
            os.getpid(),
            self._table_name,
            self._config.environment,
            self._policy,
            self._board,
            self._scoreboard,
            None if self._inference is None else self._inference.requests_of(actor),
            self._config.topology.num_groups,
            self._profile,
        )
        process = self._context.Process(target=run_actor, args=(task,), name=f"relive-actor-{actor}", daemon=True)
        with signals_held_back(), one_thread_for_numerics():
            process.start()
        self._processes[actor] = process
        self._steps_at_start[actor] = self._scoreboard.steps_of(actor)

    @property
    def pids(self) -> list[int]:
        """Process ids of the actors that live now."""
        return [process.pid for process in self._processes if process is not None and process.pid is not None]

    def turn(self) -> None:
        """Nothing to do: they step by themselves. See InlineActors."""

    def watch(self) -> None:
        """Starts dead actors again and counts them.

        Raises EnvironmentRaised where an actor's environment did, ActorsKeepDying, and InferenceKeepsDying, where
        starting again leads nowhere.
        """
        if self._inference is not None:
            self._inference.watch()
        for actor, process in enumerate(self._processes):
            if process is None or process.is_alive():
                continue
            failure = self._scoreboard.failure_of(actor)
            if failure is not None:
                raise EnvironmentRaised(actor, *failure)
            idle = self._scoreboard.steps_of(actor) == self._steps_at_start[actor]
            self._idle_deaths[actor] = self._idle_deaths[actor] + 1 if idle else 0
            if self._idle_deaths[actor] >= _MAX_IDLE_DEATHS:
                raise ActorsKeepDying(actor, self._idle_deaths[actor], process.exitcode)
            process.close()
            self._incarnations[actor] += 1
            self.num_restarts += 1
            self._start(actor)

    def stop(self, timeout_s: float = 5.0) -> None:
        """Asks all actors to end and waits; those that have not after timeout_s are killed. None is left."""
        self._scoreboard.stop()
        deadline_s = time.monotonic() + timeout_s
        for actor, process in enumerate(self._processes):
            if process is None:
                continue
            process.join(max(0.0, deadline_s - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
            self._processes[actor] = None
        if self._inference is not None:
            self._inference.stop()
