"""An actor process: steps its environments with actions of the policy and records into the table.

It acts with the newest parameters that it has seen, or asks an inference process for actions
(`relive.train.acting.inference`). Its environments are one group, or two, of which one steps while the other's
actions are inferred. It imports no torch. It ends when the scoreboard says so, when its parent is gone, or when it is
killed: the table and the other processes do not mind, and the pool starts another one in its place.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from relive import Table, attach
from relive.adapters.gymnasium import RecordedVectorEnv, record
from relive.agents.agent import Policy
from relive.errors import DeadlineExceeded, TableClosed
from relive.train.acting.environments import acting_seed, make_environments
from relive.train.acting.inference import AskedInference, Inference, OwnInference, RequestBoard, group_sizes
from relive.train.acting.noise import environment_keys
from relive.train.child import Parent
from relive.train.config import EnvironmentConfig
from relive.train.memory.parameters import ParameterSource
from relive.train.memory.scoreboard import Scoreboard
from relive.train.memory.stopwatch import ProfileBoard, Watch, actor_name, stopwatch_of, watch_with

_WAIT_SLICE_S = 0.2


@final
@dataclass(frozen=True)
class ActorTask:
    """What a process needs to become actor number `actor`, for the `incarnation`-th time (from 0).

    requests: where it asks for actions; None: it infers them itself. num_groups: of its environments.
    profile: where it counts what its time goes into; None: it does not.
    """

    actor: int
    incarnation: int
    table_name: str
    environment: EnvironmentConfig
    policy: Policy
    board: ParameterSource
    scoreboard: Scoreboard
    requests: RequestBoard | None = None
    num_groups: int = 1
    profile: ProfileBoard | None = None


def run_actor(task: ActorTask) -> None:
    """The main function of an actor process."""
    parent = Parent()
    with attach(task.table_name) as table, ExitStack() as stack:
        watch = watch_with(stopwatch_of(task.profile, actor_name(task.actor)))
        groups = [make_acting(task, table, watch, stack, group) for group in range(task.num_groups)]
        try:
            _run(task, groups, parent)
        except TableClosed:
            pass  # the learner closed it between our look at the scoreboard and the write


def _run(task: ActorTask, groups: Sequence[Acting], parent: Parent) -> None:
    """Steps until the run ends, or the parent is gone."""
    for acting in groups:
        acting.reset()
    while True:
        for acting in groups:  # two of them: while this one steps, the other's actions are on their way
            if task.scoreboard.stopping or parent.is_gone:
                return
            acting.turn(_WAIT_SLICE_S)


def make_acting(task: ActorTask, table: Table, watch: Watch, stack: ExitStack, group: int = 0) -> Acting:
    """A group of an actor's environments, made and recorded; the stack closes them."""
    environment = task.environment
    number = group_sizes(environment.num_envs_per_actor, task.num_groups)[group]
    envs = watch(make_environments(environment.env_id, number), {"step": "environment", "reset": "environment"})
    recorded = record(envs, table, timeout_s=0.0)
    stack.callback(recorded.close)
    return acting_with(task, recorded, watch, group)


def acting_with(task: ActorTask, recorded: RecordedVectorEnv, watch: Watch, group: int = 0) -> Acting:
    """A group of an actor's environments, which are somebody else's to close."""
    environment, number = task.environment, recorded.num_envs
    first = sum(group_sizes(environment.num_envs_per_actor, task.num_groups)[:group])
    keys = environment_keys(environment.seed, task.actor, task.incarnation, first + number)[first:]
    inference: Inference
    if task.requests is None:
        reader = watch(task.board.reader(), {"poll": "parameters"})
        inference = OwnInference(task.policy, reader, task.scoreboard, keys)
    else:
        inference = AskedInference(task.requests, task.actor * task.num_groups + group, keys)
    first_seed = acting_seed(environment.seed, task.actor, task.incarnation) + first
    return Acting(task, recorded, watch, watch(inference, {"actions": "inference"}), first_seed)


@final
class Acting:
    """A group of an actor's environments, a turn at a time: in a process of its own, or in another's."""

    def __init__(
        self, task: ActorTask, envs: RecordedVectorEnv, watch: Watch, inference: Inference, first_seed: int
    ) -> None:
        """first_seed: of the first environment; the others have the next ones."""
        self._task = task
        self._envs = watch(envs, {"step": "insert", "finish_step": "wait"})
        self._inference = inference
        self._first_seed = first_seed
        self._version = -1  # that the writer stamps
        self._held = False
        self._returns = np.zeros(envs.num_envs)
        self._lengths = np.zeros(envs.num_envs, np.int64)
        self._resets = np.zeros(envs.num_envs, np.bool_)

    def reset(self) -> None:
        """The first reset; what it raises is on the scoreboard."""
        task = self._task
        try:
            observations, _ = self._envs.reset(seed=self._first_seed)
        except Exception:
            task.scoreboard.add_failure(task.actor, 0, traceback.format_exc())
            raise
        self._inference.ask(observations)

    def turn(self, wait_s: float = 0.0) -> None:
        """One step of all environments, stored, and the next actions asked for; none where no action came in wait_s.

        What the limiter holds back is stored by a later turn, which takes no step of its own and waits for up to
        wait_s; it is counted as waiting.
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
            actions = self._inference.actions(wait_s)
            if actions is None:
                return
            if self._inference.version != self._version:
                self._version = self._inference.version
                self._envs.writer.set_policy_version(self._version)
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
        self._inference.ask(result[0])
        self._count(result)

    def _count(self, result: tuple[Any, ...]) -> None:
        _, rewards, terminated, truncated, _ = result
        actor, scoreboard = self._task.actor, self._task.scoreboard
        moved = ~self._resets
        scoreboard.add_steps(actor, int(moved.sum()), self._inference.version)
        self._returns[moved] += rewards[moved]
        self._lengths[moved] += 1
        over = moved & (terminated | truncated)
        for env in np.flatnonzero(over):
            scoreboard.add_episode(actor, float(self._returns[env]), int(self._lengths[env]))
        self._returns[over] = 0.0
        self._lengths[over] = 0
        self._resets = over  # the next row of these is a reset
