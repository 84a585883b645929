"""What a run is made of before anything moves: its agent, its device, its table."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from dataclasses import replace

import torch

from relive import SamplesPerInsert, SharedMemory, Table
from relive.agents.agent import Agent
from relive.agents.config import AgentConfig
from relive.agents.functional import Functional
from relive.errors import InvalidConfig
from relive.train.config import TrainConfig
from relive.train.environments import describe
from relive.train.learner_group import GroupOptions, LearnerGroup
from relive.train.numerics import threads_of
from relive.train.packages import PackageRequest
from relive.train.topology import Learners
from relive.train.ways import WayOptions, Ways


def make_agent(config: TrainConfig) -> Agent:
    """The agent of a run, or of its first learner's slices where there are several.

    Raises InvalidConfig where it cannot act in the environment, or there is none.
    """
    spaces = describe(config.environment.env_id)
    return slice_config(config).make(spaces, seed=config.environment.seed, device=chosen_device(config.device))


def learner_threads(config: TrainConfig) -> int:
    """Threads of each learner."""
    num_processes = 0 if config.acts_inline else config.num_actors
    return threads_of(config.threads, num_processes, config.topology.num_learners)


def slice_config(config: TrainConfig) -> AgentConfig:
    """The agent's options for what one learner gets of each batch."""
    return replace(config.agent, batch_size=config.agent.batch_size // config.topology.num_learners)


def make_learners(config: TrainConfig, agent: Agent, say: Callable[[str], None]) -> LearnerGroup | None:
    """The group that the agent leads; None where it learns alone. say: see GroupOptions."""
    count = config.topology.num_learners
    if count == 1:
        return None
    spin_s = GroupOptions.spin_s if count <= len(os.sched_getaffinity(0)) else 0.0  # or it spins in another's place
    options = GroupOptions(count, chosen_device(config.device), learner_threads(config), spin_s=spin_s, say=say)
    return LearnerGroup(agent, config.agent, describe(config.environment.env_id), options)


def make_ways(
    config: TrainConfig, agent: Agent, say: Callable[[str], None], settled: Callable[[str], None]
) -> Ways | None:
    """What chooses between the ways of updating; None where there is only the hand-written one. See WayOptions.

    A line says why there is no compiled one that was asked for.
    """
    if config.update == "handwritten":
        return None
    functional: Functional | None = agent.functional()
    reasons = {
        "the run is deterministic": config.deterministic,
        "there are several learners": config.topology.num_learners > 1,
        "they are computed on a device": chosen_device(config.device) != "cpu",
        f"{config.agent.name} has no other with this network": functional is None,
    }
    for reason, holds in reasons.items():
        if holds and config.update == "compiled":
            say(f"updates are written by hand: {reason}")
        if holds:
            return None
    assert functional is not None
    spaces, steps = describe(config.environment.env_id), tuple(functional.steps)
    request = PackageRequest(config.agent, spaces, learner_threads(config), steps)
    return Ways(agent, functional, request, WayOptions(config.update == "auto", say, settled))


def crowding(config: TrainConfig) -> str | None:
    """A line for people where there are more learners than cores that this process may use; None where they fit."""
    count, cores = config.topology.num_learners, len(os.sched_getaffinity(0))
    if count <= cores or count == 1:
        return None
    return (
        f"{count} learners on {cores} cores: an update waits for the slowest of them, and those on one core take turns;"
        f" topology = {Learners(cores)} has one for each core"
    )


def chosen_device(device: str) -> str:
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise InvalidConfig(what="device", expected="'cpu' or 'auto' on a machine without CUDA", got=device)
    return device


def make_table(config: TrainConfig, agent: Agent) -> Table:
    """The shared table of one session, under a name of its own."""
    replay = config.replay
    samples_per_insert = replay.updates_per_step * config.agent.batch_size
    limiter = SamplesPerInsert(
        samples_per_insert,
        replay.min_size,
        # A few batches and a few rounds of all actors, or neither side ever waits for less than that.
        tolerance=max(
            0.1 * samples_per_insert * replay.min_size,
            4.0 * config.agent.batch_size,
            4.0 * samples_per_insert * config.environment.num_envs_per_actor,
        ),
    )
    name = f"train-{os.getpid()}-{secrets.token_hex(3)}"
    # Twice the lanes in use: a dead actor's stay taken until the next look for dead processes.
    max_lanes = 2 * config.num_actors * config.environment.num_envs_per_actor
    return Table(
        agent.spec(),
        replay.capacity,
        agent.index(limiter),
        storage=SharedMemory(name),
        max_lanes=max_lanes,
        seed=config.environment.seed,
    )
