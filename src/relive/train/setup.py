"""What a run is made of before anything moves: its agent, its device, its table."""

from __future__ import annotations

import importlib
import os
import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import torch

from relive import SamplesPerInsert, SharedMemory, Table
from relive.agents.agent import Agent, Policy
from relive.agents.config import AgentConfig
from relive.agents.functional import Functional
from relive.errors import InvalidConfig
from relive.train.acting.environments import describe
from relive.train.acting.inference_pool import InferencePool
from relive.train.config import TrainConfig, where_to_serve
from relive.train.learners.compiled_updates import PackageRequest
from relive.train.learners.group import GroupOptions, LearnerGroup
from relive.train.learners.host_group import HostGroup, HostOptions
from relive.train.learners.numerics import threads_of
from relive.train.learners.parameter_server import ParameterServer, ServerOptions
from relive.train.learners.update_choice import WayOptions, Ways
from relive.train.memory.parameters import ParameterBoard
from relive.train.memory.scoreboard import Scoreboard
from relive.train.memory.stopwatch import INFERENCE, LEARNER, SERVER, ProfileBoard, actor_name, learner_name
from relive.train.topology import Hosts, Learners
from relive.train.watching.callbacks import Listeners
from relive.train.watching.profile import Profiling

if TYPE_CHECKING:
    from relive.train.acting.serving import ServedRun
    from relive.train.watching.wandb_logger import WandbLogger


def make_agent(config: TrainConfig) -> Agent:
    """The agent of a run, or of its first learner's slices where there are several.

    Raises InvalidConfig where it cannot act in the environment, or there is none.
    """
    spaces = describe(config.environment.env_id)
    return slice_config(config).make(spaces, seed=config.environment.seed, device=chosen_device(config.device))


def learner_threads(config: TrainConfig) -> int:
    """Threads of each learner."""
    num_processes = 0 if config.acts_inline else config.num_actors
    num_processes += config.topology.closing is not None  # who infers for them
    return threads_of(config.threads, num_processes, config.topology.num_learners)


def slice_config(config: TrainConfig) -> AgentConfig:
    """The agent's options for what one learner gets of each batch."""
    return replace(config.agent, batch_size=config.agent.batch_size // config.topology.num_slices)


def make_profiling(config: TrainConfig, path: Path) -> Profiling:
    """What counts the time of this process, and of the others that the run consists of; nothing where it is not asked.

    Actors that step in this process are its own time. path: of the file at the end.
    """
    topology = config.topology
    is_async = isinstance(topology, Learners) and topology.mode == "async"
    others = [learner_name(number) for number in range(0 if is_async else 1, topology.num_learners)]
    if topology.num_hosts > 1:
        others = []  # the learners of other hosts have profiles of their own
    if not config.acts_inline:
        others += [INFERENCE] * (topology.closing is not None)
        others += [actor_name(number) for number in range(config.num_actors)]
    return Profiling(config.profile, SERVER if is_async else LEARNER, others, path)


def make_learners(
    config: TrainConfig, agent: Agent, say: Callable[[str], None], profiling: Profiling
) -> LearnerGroup | None:
    """The group that the agent leads; None where it learns alone, or in no group. say: see GroupOptions."""
    count = config.topology.num_slices // config.topology.num_hosts
    if count == 1:
        return None
    spin_s = GroupOptions.spin_s if count <= len(os.sched_getaffinity(0)) else 0.0  # or it spins in another's place
    device, threads = chosen_device(config.device), learner_threads(config)
    options = GroupOptions(
        count, device, threads, spin_s=spin_s, say=say, profile=profiling.board, timed=profiling.timed
    )
    return LearnerGroup(agent, config.agent, describe(config.environment.env_id), options)


def make_hosts(config: TrainConfig, agent: Agent) -> HostGroup | None:
    """The group of the run's hosts; None where there is one. Blocks until all are there. Raises HostGone."""
    count = config.topology.num_hosts
    if count == 1:
        return None
    # The others wait while the first one evaluates.
    deadline_s = max(HostOptions.deadline_s, config.evaluation_s + HostOptions.deadline_s / 2)
    return HostGroup(agent, HostOptions(count, chosen_device(config.device), deadline_s))


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
        "there are several learners, or learners apart": isinstance(config.topology, (Learners, Hosts)),
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


def make_server(
    config: TrainConfig, agent: Agent, table_name: str, say: Callable[[str], None], profiling: Profiling
) -> ParameterServer | None:
    """The server of learners with batches of their own; None where there are none. say: see ServerOptions."""
    topology = config.topology
    if not isinstance(topology, Learners) or topology.mode != "async":
        return None
    options = ServerOptions(
        topology.number,
        config.gradient_staleness,
        chosen_device(config.device),
        learner_threads(config),
        config.environment.seed,
        say=say,
        profile=profiling.board,
        timed=profiling.timed,
    )
    return ParameterServer(agent, config.agent, describe(config.environment.env_id), table_name, options)


def make_inference(
    config: TrainConfig,
    policy: Policy,
    board: ParameterBoard,
    scoreboard: Scoreboard,
    say: Callable[[str], None],
    profile: ProfileBoard | None,
) -> InferencePool | None:
    """The process that infers for all actors; None where they do for themselves. say, profile: see InferencePool."""
    if config.topology.closing is None:
        return None
    return InferencePool(config, policy, describe(config.environment.env_id), board, scoreboard, say, profile)


def crowding(config: TrainConfig) -> str | None:
    """A line for people where there are more learners than cores that this process may use; None where they fit."""
    topology, cores = config.topology, len(os.sched_getaffinity(0))
    if not isinstance(topology, Learners) or topology.number <= cores or topology.number == 1:
        return None
    slower = (
        "an update waits for the slowest of them, and" if topology.mode == "sync" else "their gradients are stale, and"
    )
    return (
        f"{topology.number} learners on {cores} cores: {slower} those on one core take turns;"
        f" topology = {replace(topology, number=cores)} has one for each core"
    )


def chosen_device(device: str) -> str:
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise InvalidConfig(what="device", expected="'cpu' or 'auto' on a machine without CUDA", got=device)
    return device


def limiter_of(config: TrainConfig) -> SamplesPerInsert:
    """The pace of a run: updates_per_step, and how far a side may get ahead of the other."""
    replay = config.replay
    samples_per_insert = replay.updates_per_step * config.agent.batch_size
    return SamplesPerInsert(
        samples_per_insert,
        replay.min_size,
        # A few batches and a few rounds of all actors, or neither side ever waits for less than that.
        tolerance=max(
            0.1 * samples_per_insert * replay.min_size,
            4.0 * config.agent.batch_size,
            4.0 * samples_per_insert * config.environment.num_envs_per_actor,
        ),
    )


def make_table(config: TrainConfig, agent: Agent) -> Table:
    """The shared table of one session, under a name of its own."""
    replay, limiter = config.replay, limiter_of(config)
    name = f"train-{os.getpid()}-{secrets.token_hex(3)}"
    # Twice the lanes in use: a dead actor's stay taken until the next look for dead processes.
    max_lanes = 2 * config.num_actors * config.environment.num_envs_per_actor
    if config.serving.address is not None:
        max_lanes += config.serving.max_lanes
    return Table(
        agent.spec(),
        replay.capacity,
        agent.index(limiter),
        storage=SharedMemory(name),
        max_lanes=max_lanes,
        seed=config.environment.seed,
    )


def check_address(config: TrainConfig) -> None:
    """Raises InvalidConfig where somebody else serves at the run's address, before anything is made."""
    if config.serving.address is None:
        return
    where = urlsplit(where_to_serve(config.serving.address)[0])
    try:
        family, kind, _, _, place = socket.getaddrinfo(where.hostname, where.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what a server that ended left is no server
            one.bind(place)
    except (OSError, UnicodeError) as problem:  # the latter of a name that can be none
        got = f"{config.serving.address} ({getattr(problem, 'strerror', None) or problem})"
        raise InvalidConfig("serving.address", "one of this machine that is free, or port 0", got) from None


def make_served(config: TrainConfig, table: Table, scoreboard: Scoreboard) -> ServedRun | None:
    """The run's table and parameters at its address; None where it has none. Raises ServiceUnavailable, MissingPackage.

    Loaded here: it needs pyarrow, which a run of one machine does not.
    """
    if config.serving.address is None:
        return None
    served: ServedRun = importlib.import_module("relive.train.acting.serving").ServedRun(config, table, scoreboard)
    return served


@contextmanager
def logging_of(config: TrainConfig, listeners: Listeners) -> Iterator[None]:
    """The loggers that the options ask for hear of the run; they end with the block. Raises MissingPackage.

    Loaded here: wandb takes seconds, and is seldom there.
    """
    if not config.logging.wandb:
        yield
        return
    logger: WandbLogger = importlib.import_module("relive.train.watching.wandb_logger").WandbLogger()
    listeners.add(logger)
    try:
        yield
    except BaseException:
        logger.close(failed=True)
        raise
    logger.close(failed=False)
