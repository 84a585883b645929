"""An actor process: steps its environments with the newest parameters it has seen and records into the table.

It imports no torch. It ends when the scoreboard says so, when its parent is gone, or when it is killed: the table and
the other processes do not mind, and the pool starts another one in its place.
"""

from __future__ import annotations

import os
import signal
import time
import traceback
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from relive import attach
from relive.adapters.gymnasium import RecordedVectorEnv, record
from relive.agents.agent import Policy
from relive.errors import DeadlineExceeded, TableClosed
from relive.train.config import EnvironmentConfig
from relive.train.environments import acting_seed, make_environments
from relive.train.parameters import NewerParameters, ParameterSource
from relive.train.scoreboard import Scoreboard
from relive.train.stopwatch import ProfileBoard, Watch, actor_watch

_WAIT_SLICE_S = 0.2


@final
@dataclass(frozen=True)
class ActorTask:
    """What a process needs to become actor number `actor`, for the `incarnation`-th time (from 0).

    profile: where it counts what its time goes into; None: it does not.
    """

    actor: int
    incarnation: int
    parent_pid: int
    table_name: str
    environment: EnvironmentConfig
    policy: Policy
    board: ParameterSource
    scoreboard: Scoreboard
    profile: ProfileBoard | None = None


def run_actor(task: ActorTask) -> None:
    """The main function of an actor process."""
    # A terminal's Ctrl-C reaches the whole group: the learner decides, its actors hear of it from the scoreboard.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    with attach(task.table_name) as table:
        envs = make_environments(task.environment.env_id, task.environment.num_envs_per_actor)
        watch = actor_watch(task.profile, task.actor)
        envs = watch(envs, {"step": "environment", "reset": "environment"})
        recorded = record(envs, table, timeout_s=0.0)
        try:
            Acting(task, recorded, watch).run()
        except TableClosed:
            pass  # the learner closed it between our look at the scoreboard and the write
        finally:
            recorded.close()


@final
class Acting:
    """An actor's loop, a turn at a time: in a process of its own (`run`), or in another's (`reset`, then turns)."""

    def __init__(self, task: ActorTask, envs: RecordedVectorEnv, watch: Watch) -> None:
        self._task = task
        self._envs = watch(envs, {"step": "insert", "finish_step": "wait"})
        self._policy = watch(task.policy, {"explore": "inference"})
        self._reader: NewerParameters = watch(task.board.reader(), {"poll": "parameters"})
        self._parameters: dict[str, NDArray[np.float32]] = {}
        self._observations: Any = None
        self._held = False
        seed = np.random.SeedSequence(task.environment.seed, spawn_key=(task.actor, task.incarnation, 1))
        self._rng = np.random.default_rng(seed)
        self._returns = np.zeros(envs.num_envs)
        self._lengths = np.zeros(envs.num_envs, np.int64)
        self._resets = np.zeros(envs.num_envs, np.bool_)

    def run(self) -> None:
        """Steps until the run ends, or the parent is gone."""
        self.reset()
        while self._go_on():
            if self.poll_parameters():
                self.turn(_WAIT_SLICE_S)
            else:
                time.sleep(0.01)

    def reset(self) -> None:
        """The first reset; what it raises is on the scoreboard."""
        task = self._task
        first_seed = acting_seed(task.environment.seed, task.actor, task.incarnation)
        try:
            self._observations, _ = self._envs.reset(seed=first_seed)
        except Exception:
            task.scoreboard.add_failure(task.actor, 0, traceback.format_exc())
            raise

    def _go_on(self) -> bool:
        return not self._task.scoreboard.stopping and os.getppid() == self._task.parent_pid

    def poll_parameters(self) -> bool:
        """Takes newer parameters if there are some; False while none were ever published."""
        newer = self._reader.poll()
        if newer is not None:
            self._parameters = newer
            self._envs.writer.set_policy_version(self._reader.version)
        return bool(self._parameters)

    def turn(self, wait_s: float = 0.0) -> None:
        """One step of all environments, stored. What the limiter holds back is stored by a later turn, which takes no
        step of its own and waits for up to wait_s; it is counted as waiting.
        """
        if self._held:
            began_s = time.monotonic()
            try:
                result = self._envs.finish_step(wait_s)
            except DeadlineExceeded:
                return
            finally:
                self._task.scoreboard.add_wait(self._task.actor, time.monotonic() - began_s)
            self._held = False
        else:
            actions = self._act(self._observations)
            try:
                result = self._envs.step(actions)
            except DeadlineExceeded:
                self._held = True
                return
            except TableClosed:
                raise
            except Exception:
                # The environment's own, or what it gave and the table refused: no other actor would do better.
                step = self._task.scoreboard.steps_of(self._task.actor) + 1
                self._task.scoreboard.add_failure(self._task.actor, step, traceback.format_exc())
                raise
        self._observations = result[0]
        self._count(result)

    def _act(self, observations: NDArray[Any]) -> NDArray[Any]:
        return self._policy.explore(self._parameters, observations, self._task.scoreboard.num_steps, self._rng)

    def _count(self, result: tuple[Any, ...]) -> None:
        _, rewards, terminated, truncated, _ = result
        actor, scoreboard = self._task.actor, self._task.scoreboard
        moved = ~self._resets
        scoreboard.add_steps(actor, int(moved.sum()), self._reader.version)
        self._returns[moved] += rewards[moved]
        self._lengths[moved] += 1
        over = moved & (terminated | truncated)
        for env in np.flatnonzero(over):
            scoreboard.add_episode(actor, float(self._returns[env]), int(self._lengths[env]))
        self._returns[over] = 0.0
        self._lengths[over] = 0
        self._resets = over  # the next row of these is a reset
