"""Runs an actor: it steps its environments with actions of the policy and records the steps into the table.

- An actor acts with the newest parameters that it has read, or asks an inference process for its actions
  (`relive.train.acting.inference`).
- Its environments are one group, or two groups: one group steps while the actions of the other are inferred.
- It imports no torch.
- It ends when the scoreboard asks it to, when its parent is gone, or when it is killed. A death harms neither the
  table nor other processes, and the pool starts the actor again.
"""

from __future__ import annotations

import sys
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
from relive.train.errors import EnvironmentRaised
from relive.train.memory.parameters import ParameterSource
from relive.train.memory.scoreboard import Scoreboard
from relive.train.memory.stopwatch import ProfileBoard, Watch, actor_name, stopwatch_of, watch_with
from relive.train.sections import EnvironmentConfig

_WAIT_SLICE_S = 0.2


@final
@dataclass(frozen=True)
class ActorTask:
    """The task of an actor.

    Attributes:
        actor: Number of the actor.
        incarnation: Times that this actor was started before.
        table_name: Name of the shared table.
        environment: Options of the environments.
        policy: The policy.
        board: Source of the parameters.
        scoreboard: Counters of the run; the actor writes its own row.
        requests: Board for requests to the inference process; None: the actor infers its actions itself.
        num_groups: Groups of its environments.
        profile: Counters of its time; None: the run is not profiled.
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
    """Runs an actor process until the run ends: the main function of the process."""
    parent = Parent()
    try:
        with attach(task.table_name) as table, ExitStack() as stack:
            watch = watch_with(stopwatch_of(task.profile, actor_name(task.actor)))
            groups = [make_acting(task, table, watch, stack, group) for group in range(task.num_groups)]
            _run(task, groups, parent)
    except TableClosed:
        pass  # the learner closed the table after this actor had last looked at the scoreboard
    except Exception:
        if parent.is_gone:
            return  # with its table, perhaps
        if task.scoreboard.failure_of(task.actor) is None:
            raise
        sys.exit(1)  # the run raises the error, with its traceback


def _run(task: ActorTask, groups: Sequence[Acting], parent: Parent) -> None:
    """Steps until the run ends or the parent is gone."""
    for acting in groups:
        acting.reset()
    while True:
        for acting in groups:  # with two groups: while this one steps, the actions of the other are inferred
            if task.scoreboard.stopping or parent.is_gone:
                return
            acting.step(_WAIT_SLICE_S)


def make_acting(task: ActorTask, table: Table, watch: Watch, stack: ExitStack, group: int = 0) -> Acting:
    """Makes a group of the environments of an actor and records it. The stack closes the environments.

    Raises EnvironmentRaised if the environments cannot be made, and notes the error on the scoreboard.
    """
    environment = task.environment
    number = group_sizes(environment.num_envs_per_actor, task.num_groups)[group]
    try:
        made = make_environments(environment.env_id, number)
    except EnvironmentRaised as problem:
        task.scoreboard.add_failure(task.actor, problem.step, problem.traceback)
        raise
    envs = watch(made, {"step": "environment", "reset": "environment"})
    recorded = record(envs, table, timeout_s=0.0)
    stack.callback(recorded.close)
    return acting_with(task, recorded, watch, group)


def acting_with(task: ActorTask, recorded: RecordedVectorEnv, watch: Watch, group: int = 0) -> Acting:
    """Acts in a group of environments that the caller has made and will close."""
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
    """Steps a group of the environments of an actor, in a process of its own or in the learner's."""

    def __init__(
        self, task: ActorTask, envs: RecordedVectorEnv, watch: Watch, inference: Inference, first_seed: int
    ) -> None:
        """Takes the environments.

        Args:
            task: The task of the actor.
            envs: The environments, recorded into the table.
            watch: Times the methods, if the run is profiled.
            inference: Source of the actions.
            first_seed: Seed of the first environment; the others get the next seeds.
        """
        self._task = task
        self._envs = watch(envs, {"step": "insert", "finish_step": "wait"})
        self._inference = inference
        self._first_seed = first_seed
        self._version = -1  # of the parameters, as the writer stamps it on rows
        self._is_delayed = False  # whether the limiter delays the rows of the last step
        self._returns = np.zeros(envs.num_envs)
        self._lengths = np.zeros(envs.num_envs, np.int64)
        self._resets = np.zeros(envs.num_envs, np.bool_)

    def reset(self) -> None:
        """Resets all environments for the first time. An error of the reset is noted on the scoreboard and raised."""
        task = self._task
        try:
            observations, _ = self._envs.reset(seed=self._first_seed)
        except Exception:
            task.scoreboard.add_failure(task.actor, 0, traceback.format_exc())
            raise
        self._inference.ask(observations)

    def step(self, wait_s: float = 0.0) -> None:
        """Takes one step of all environments, stores it, and asks for the next actions.

        If no actions come within wait_s, it takes no step. If the limiter delays the rows of a step, the next call
        stores them: it waits for up to wait_s, counts that as waiting, and takes no step of its own.
        """
        if self._is_delayed:
            began_s = time.monotonic()
            try:
                result = self._envs.finish_step(wait_s)
            except DeadlineExceeded:
                return
            finally:
                self._task.scoreboard.add_wait(self._task.actor, time.monotonic() - began_s)
            self._is_delayed = False
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
                self._is_delayed = True
                return
            except TableClosed:
                raise
            except Exception:
                # An error of the environment, or a value that the table refuses: another actor would fail as well.
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
        self._resets = over  # the next row of these environments is a reset
