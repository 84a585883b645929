"""Prepares a run: describes its environment, makes its agent, and makes the memory that its parts share."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import final
from urllib.parse import urlsplit

import torch

from relive import SamplesPerInsert, SharedMemory, Table
from relive.agents.agent import Agent, Spaces
from relive.errors import InvalidConfig
from relive.train.acting.environments import describe
from relive.train.config import TrainConfig
from relive.train.learners.meeting import HostMeeting
from relive.train.learners.numerics import threads_of
from relive.train.memory.parameters import ParameterBoard, ParameterLayout
from relive.train.memory.scoreboard import Scoreboard
from relive.train.memory.stopwatch import INFERENCE, LEARNER, SERVER, actor_name, learner_name
from relive.train.sections import where_to_serve
from relive.train.watching.checkpoint import Progress
from relive.train.watching.profile import Profiling


@dataclass(frozen=True)
class Setup:
    """The options of a run, and the objects that follow from them on this machine.

    Attributes:
        config: The options of the run.
        spaces: Spaces of the environment, which is described once for the whole run.
        device: torch's device of the learners.
        num_threads: Threads of each learner.
        agent: The agent of this process. If learners share batches, its batch is the slice of one learner.
        met: The other hosts; None: the run has one host, or the hosts have not met yet.
    """

    config: TrainConfig
    spaces: Spaces
    device: str
    num_threads: int
    agent: Agent
    met: HostMeeting | None


@final
@dataclass(frozen=True)
class Session(Setup):
    """A run that has begun: the same, and the memory that its parts share. `open_session` owns the memory.

    Attributes:
        table: The table.
        board: The parameters for the actors.
        scoreboard: Counters of the actors.
        profiling: Counts the time of the processes.
    """

    table: Table
    board: ParameterBoard
    scoreboard: Scoreboard
    profiling: Profiling

    @property
    def table_name(self) -> str:
        """The name by which other processes attach the table."""
        return Path(self.table.path or "").name.removeprefix("relive-")


def prepare(config: TrainConfig) -> Setup:
    """Describes the environment and makes the agent. It makes nothing else, so that a refused run leaves nothing.

    Raises:
        InvalidConfig: There is no such environment, the agent cannot act in it, the device is not there, or another
            program serves at the run's address.
    """
    spaces, device = describe(config.environment.env_id), chosen_device(config.device)
    agent = config.slice.make(spaces, seed=config.environment.seed, device=device)
    _check_address(config)
    return Setup(config, spaces, device, learner_threads(config), agent, met=None)


@contextmanager
def open_session(setup: Setup, progress: Progress, profile: Path) -> Iterator[Session]:
    """Makes the memory of a session, and gives it back at the end of the block, when all parts have stopped.

    Args:
        setup: The run.
        progress: Its progress before this session.
        profile: The file for the profile of the session, if the run is profiled.
    """
    config = setup.config
    with ExitStack() as stack:
        table = stack.enter_context(make_table(config, setup.agent))
        profiling = stack.enter_context(_make_profiling(config, profile))
        layout = ParameterLayout.of(setup.agent.parameters())
        board = ParameterBoard(layout, first_version=progress.parameter_version)
        stack.callback(board.close)
        is_served = config.serving.address is not None  # actors of other machines share the last row
        scoreboard = Scoreboard(config.num_actors + is_served, steps_before=progress.num_steps)
        stack.callback(scoreboard.close)
        stack.callback(lambda: profiling.acted(*scoreboard.steps_behind(config.num_actors)))
        yield Session(**vars(setup), table=table, board=board, scoreboard=scoreboard, profiling=profiling)


def learner_threads(config: TrainConfig) -> int:
    """Returns the threads of each learner: as asked, or its share of the cores that the acting processes leave."""
    num_processes = 0 if config.acts_inline else config.num_actors
    num_processes += config.topology.closing is not None  # the inference process
    return threads_of(config.threads, num_processes, config.topology.num_learners)


def _make_profiling(config: TrainConfig, path: Path) -> Profiling:
    """Makes the counters of the time of all processes of this host, if the run is profiled.

    The time of actors that step in this process is time of this process.
    """
    topology = config.topology
    others = [learner_name(number) for number in range(0 if topology.learns_apart else 1, topology.num_learners)]
    if not config.acts_inline:
        others += [INFERENCE] * (topology.closing is not None)
        others += [actor_name(number) for number in range(config.num_actors)]
    return Profiling(config.profile, SERVER if topology.learns_apart else LEARNER, others, path)


def chosen_device(device: str) -> str:
    """Returns the device that `device` means here. Raises InvalidConfig for CUDA on a machine without it."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise InvalidConfig(what="device", expected="'cpu' or 'auto' on a machine without CUDA", got=device)
    return device


def limiter_of(config: TrainConfig) -> SamplesPerInsert:
    """Returns the limiter of a run: it keeps updates_per_step, within a tolerance for either side to get ahead."""
    replay = config.replay
    samples_per_insert = replay.updates_per_step * config.agent.batch_size
    return SamplesPerInsert(
        samples_per_insert,
        replay.min_size,
        # A few batches and a few rounds of all actors, so that neither side ever waits for less than that.
        tolerance=max(
            0.1 * samples_per_insert * replay.min_size,
            4.0 * config.agent.batch_size,
            4.0 * samples_per_insert * config.environment.num_envs_per_actor,
        ),
    )


def make_table(config: TrainConfig, agent: Agent) -> Table:
    """Makes the shared table of one session, under a name of its own."""
    replay, limiter = config.replay, limiter_of(config)
    name = f"train-{os.getpid()}-{secrets.token_hex(3)}"
    # Twice the lanes in use: a dead actor's lanes stay taken until the next look for dead processes.
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


def _check_address(config: TrainConfig) -> None:
    """Raises InvalidConfig if another program serves at the address of the run."""
    if config.serving.address is None:
        return
    where = urlsplit(where_to_serve(config.serving.address)[0])
    try:
        family, kind, _, _, place = socket.getaddrinfo(where.hostname, where.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the address of a server that ended is free
            one.bind(place)
    except (OSError, UnicodeError) as problem:  # UnicodeError: the name cannot be one of a host
        got = f"{config.serving.address} ({getattr(problem, 'strerror', None) or problem})"
        raise InvalidConfig("serving.address", "one of this machine that is free, or port 0", got) from None
