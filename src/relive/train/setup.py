"""Prepares a run: describes its environment, makes its agent, and makes the memory that its parts share."""

from __future__ import annotations

import importlib
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final
from urllib.parse import urlsplit

import torch

from relive import Index, LocalMemory, SamplesPerInsert, SharedMemory, Table, TableConfig
from relive import load as load_table
from relive import saved as describe_save
from relive.agents.agent import Agent, Spaces
from relive.config.storage import Storage
from relive.errors import DamagedSave, InvalidConfig
from relive.fleet.errors import NotOverShards
from relive.fleet.shards import check_indexes
from relive.table.handle import TableHandle
from relive.train.acting.environments import describe
from relive.train.config import TrainConfig
from relive.train.learners.meeting import HostMeeting
from relive.train.learners.numerics import threads_of
from relive.train.memory.parameters import ParameterBoard, ParameterLayout
from relive.train.memory.scoreboard import Scoreboard
from relive.train.memory.stopwatch import INFERENCE, LEARNER, SERVER, actor_name, learner_name
from relive.train.run_directory import TABLE_PREFIX, left_table, remove_left_table
from relive.train.sections import where_to_serve
from relive.train.signals import owning
from relive.train.watching.checkpoint import Found, Progress
from relive.train.watching.profile import Profiling

if TYPE_CHECKING:
    from relive.train.acting.ray_shards import RunShards


@dataclass(frozen=True)
class Setup:
    """The options of a run, and the objects that follow from them on this machine.

    Attributes:
        config: The options of the run.
        spaces: Spaces of the environment, which is described once for the whole run.
        device: torch's device of the learners.
        num_threads: Threads of each learner.
        agent: The agent of this process. If learners share batches, its batch is the slice of one learner.
        address: The address at which the run is served; None: it is not served.
        met: The other hosts; None: the run has one host, or the hosts have not met yet.
    """

    config: TrainConfig
    spaces: Spaces
    device: str
    num_threads: int
    agent: Agent
    address: str | None
    met: HostMeeting | None


@final
@dataclass(frozen=True)
class Session(Setup):
    """A run that has begun: the same, and the memory that its parts share. `open_session` owns the memory.

    Attributes:
        table: The table of the learner.
        board: The parameters for the actors.
        scoreboard: Counters of the actors.
        profiling: Counts the time of the processes.
        ends_s: Time on time.monotonic() at which the run reaches its time limit.
        shards: The shards that the table is made of; None: it is one table.
    """

    table: TableHandle
    board: ParameterBoard
    scoreboard: Scoreboard
    profiling: Profiling
    ends_s: float
    shards: RunShards | None = None

    @property
    def whole_table(self) -> Table:
        """The table of a run that has one table."""
        assert isinstance(self.table, Table)
        return self.table

    @property
    def table_name(self) -> str:
        """The name by which other processes attach the table, or the first part of that of each shard; "": none."""
        if self.shards is not None:
            return self.shards.name
        return Path(self.whole_table.path or "").name.removeprefix("relive-")


def prepare(config: TrainConfig) -> Setup:
    """Describes the environment and makes the agent. It makes nothing else, so that a refused run leaves nothing.

    Raises:
        InvalidConfig: There is no such environment, the agent cannot act in it, the device is not there, the table
            cannot hold replay.min_size items, another program serves at the run's address, a file of the server cannot
            be used, or there is no cluster.
        EnvironmentRaised: The environment cannot be made.
        MissingPackage: The run needs an extra that is not installed.
    """
    spaces, device = describe(config.environment.env_id), chosen_device(config.device)
    agent = config.slice.make(spaces, seed=config.environment.seed, device=device)
    _check_capacity(config, agent.index(limiter_of(config)))
    wanted = table_config(config, agent, LocalMemory())
    _check_over_shards(config, wanted)
    address = _address_of(config)
    _check_address(config, address)
    return Setup(config, spaces, device, learner_threads(config), agent, address, met=None)


@contextmanager
def open_session(
    setup: Setup,
    progress: Progress,
    profile: Path,
    saved: Found | None = None,
    stopping: Callable[[], bool] = lambda: False,
) -> Iterator[Session]:
    """Makes the memory of a session, and gives it back at the end of the block, when all parts have stopped.

    Args:
        setup: The run.
        progress: Its progress before this session.
        profile: The file for the profile of the session, if the run is profiled.
        saved: The save whose table the session goes on with; None: it fills a new one. The steps of the run are then
            those that this table has counted.
        stopping: Whether the run is to stop; asked while the nodes of a cluster are waited for.
    """
    config = setup.config
    with owning() as stack:
        shards = None if config.cluster.shards is None else stack.enter_context(_make_shards(setup, stopping))
        table = make_table(config, setup.agent, saved) if shards is None else shards.table
        stack.callback(table.close)
        if saved is not None:
            progress.num_steps = progress.steps_before_table + table.stats().appended
        profiling = stack.enter_context(_make_profiling(config, profile))
        layout = ParameterLayout.of(setup.agent.parameters())
        board = ParameterBoard(layout, first_version=progress.parameter_version)
        stack.callback(board.close)
        # Actors that reach the run through the service share the last row.
        scoreboard = Scoreboard(config.num_actors_here + config.is_served, steps_before=progress.num_steps)
        stack.callback(scoreboard.close)
        stack.callback(lambda: profiling.acted(*scoreboard.steps_behind(config.num_actors_here)))
        ends_s = time.monotonic() + 60.0 * config.limits.max_minutes - progress.elapsed_s
        yield Session(
            **vars(setup),
            table=table,
            board=board,
            scoreboard=scoreboard,
            profiling=profiling,
            ends_s=ends_s,
            shards=shards,
        )


def _make_shards(setup: Setup, stopping: Callable[[], bool]) -> RunShards:
    """Starts the shards of the table on the nodes of the cluster. Raises the errors of RunShards."""
    cluster = importlib.import_module("relive.train.acting.ray_shards")  # needs the extra `ray`
    wanted = table_config(setup.config, setup.agent, LocalMemory())
    shards: RunShards = cluster.RunShards(setup.config, wanted, stopping)
    return shards


def learner_threads(config: TrainConfig) -> int:
    """Returns the threads of each learner: as asked, or its share of the cores that the acting processes leave."""
    num_processes = 0 if config.acts_inline else config.num_actors_here
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
        others += [actor_name(number) for number in range(config.num_actors_here)]
    return Profiling(config.profile, SERVER if topology.learns_apart else LEARNER, others, path)


def chosen_device(device: str) -> str:
    """Returns the device that `device` means here. Raises InvalidConfig for one that this machine does not have."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise InvalidConfig(what="device", expected="'cpu' or 'auto' on a machine without CUDA", got=device)
    try:
        torch.zeros(1, device=device).item()  # a device of torch may be missing here, and "meta" has no values
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as problem:
        why = (str(problem).splitlines() or [type(problem).__name__])[0][:100]
        raise InvalidConfig("device", "'auto', 'cpu', or one that torch finds here", f"{device} ({why})") from None
    return device


def limiter_of(config: TrainConfig) -> SamplesPerInsert:
    """Returns the limiter of a run: it keeps updates_per_step, within a tolerance for either side to get ahead."""
    replay = config.replay
    samples_per_insert = replay.updates_per_step * config.agent.batch_size
    # The limiter over shards may be overshot by a step of each actor.
    num_rounds = 4.0 if config.cluster.shards is None else max(4.0, config.num_actors)
    return SamplesPerInsert(
        samples_per_insert,
        replay.min_size,
        # A few batches and a few rounds of all actors, so that neither side ever waits for less than that.
        tolerance=max(
            0.1 * samples_per_insert * replay.min_size,
            4.0 * config.agent.batch_size,
            num_rounds * samples_per_insert * config.environment.num_envs_per_actor,
        ),
    )


def make_table(config: TrainConfig, agent: Agent, saved: Found | None = None) -> Table:
    """Makes the table of one session, or loads it: shared under a name of its own if other processes use it.

    Nothing is left of a table of this process alone, however the process ends. A table that is loaded gets the limiter
    of the run where it has another one.

    Raises:
        DamagedSave: A page of the saved table is damaged. The learner beside it was read before, and is whole.
        ReliveError: Also every error that Table.from_config and relive.load raise.
    """
    is_shared = not config.acts_inline or config.topology.learns_apart or config.is_served
    storage = SharedMemory(f"{TABLE_PREFIX}{os.getpid()}-{secrets.token_hex(3)}") if is_shared else LocalMemory()
    wanted = table_config(config, agent, storage)
    if saved is None:
        return Table.from_config(wanted)
    max_lanes = max(wanted.max_lanes, describe_save(saved.path, saved.number).config.max_lanes)
    try:
        table = load_table(saved.path, storage, wanted.capacity, max_lanes, number=saved.number)
    except DamagedSave as problem:
        way = "checkpoint.table=never goes on with the learner and a new table"
        raise DamagedSave(problem.path, f"{problem.what} ({way})", problem.expected, problem.got) from problem
    if table.limiter() != limiter_of(config):
        table.set_limiter(limiter_of(config))
    return table


def remove_left(config: TrainConfig, run_dir: Path) -> None:
    """Removes the table that a killed session of this run left on this machine, or its shards on the cluster."""
    name = left_table(run_dir)
    remove_left_table(run_dir)
    if name is not None and config.cluster.shards is not None:
        cluster = importlib.import_module("relive.train.acting.ray_shards")  # needs the extra `ray`
        cluster.remove_left_shards(name)


def table_config(config: TrainConfig, agent: Agent, storage: Storage) -> TableConfig:
    """Returns the configuration of the table of a run, or of each of its shards. Raises the errors of TableConfig."""
    # Twice the lanes in use: a dead actor's lanes stay taken until the next look for dead processes.
    max_lanes = 2 * _lanes_of_actors(config)
    if config.is_served:
        max_lanes += config.serving.max_lanes
    return TableConfig(
        agent.spec(),
        config.replay.capacity // (config.cluster.shards or 1),
        agent.index(limiter_of(config)),
        storage=storage,
        max_lanes=max_lanes,
        seed=config.environment.seed,
    )


def _check_capacity(config: TrainConfig, index: Index) -> None:
    """Raises InvalidConfig if the table might never hold replay.min_size items, so that no update could be made."""
    num_shards = config.cluster.shards or 1
    needed, lanes, kept_back = _room(config, index, _lanes_of_actors(config))
    if config.replay.capacity // num_shards < needed:
        min_size = config.replay.min_size
        arithmetic = f"replay.min_size = {min_size}, and in each of {lanes} lanes {kept_back} steps at which no item"
        each = "" if num_shards == 1 else f"each of {num_shards} shards has room for "
        expected = f">= {needed * num_shards} ({each}{arithmetic} begins), or a smaller min_size"
        raise InvalidConfig("replay.capacity", expected, config.replay.capacity)


def least_capacity(config: TrainConfig, index: Index, lanes: int) -> int:
    """Returns the least replay.capacity of a run in one table whose own actors have so many lanes."""
    return _room(config, index, lanes)[0]


def _room(config: TrainConfig, index: Index, lanes: int) -> tuple[int, int, int]:
    """Returns the room that replay.min_size items need in a table, its lanes, and the steps that each keeps back.

    Each lane in a long episode keeps back stored steps at which no item begins: those before a whole stack of frames,
    those whose n-step return is open, and the newest one, whose next state comes with the next step. The configuration
    of a table checks the first two, for one lane.

    Args:
        config: Options of the run.
        index: Index of its table.
        lanes: Lanes of the run's own actors in the table, or in a shard.
    """
    lanes += config.serving.max_lanes if config.is_served else 0
    kept_back = 1 + max(index.items.kept_back, index.sampler.reach)
    return 1 + (config.replay.min_size - 1) * index.items.steps_apart + lanes * kept_back, lanes, kept_back


def _lanes_of_actors(config: TrainConfig) -> int:
    """Returns the lanes of the run's own actors, in the table or in each of its shards."""
    lanes = config.num_actors * config.environment.num_envs_per_actor
    return -(-lanes // (config.cluster.shards or 1))


def _check_over_shards(config: TrainConfig, wanted: TableConfig) -> None:
    """Raises InvalidConfig if the agent needs one table."""
    try:
        check_indexes(wanted.index, config.cluster.shards or 1)
    except NotOverShards as problem:
        expected = f"1 or none with {config.agent.name}: {problem}"
        raise InvalidConfig("cluster.shards", expected, config.cluster.shards) from None


def _address_of(config: TrainConfig) -> str | None:
    """Returns the address at which the run is served; None: nowhere. Joins the cluster if the run acts on one."""
    if not config.acts_on_cluster:
        return config.serving.address
    cluster = importlib.import_module("relive.train.acting.ray_actors")  # needs the extra `ray`
    address: str = cluster.serving_address(config)
    return address


def check_has_server(config: TrainConfig) -> None:
    """Raises InvalidConfig if a run that is not served has options of a server. A run that goes on may have them."""
    if config.is_served or config.cluster.kind is not None:
        return
    for name in ("tls_cert", "tls_key", "client_ca", "tokens", "insecure"):
        value = getattr(config.serving, name)
        expected = f"{'false' if name == 'insecure' else 'none'} without serving.address (--serve) or cluster.kind"
        if value:
            raise InvalidConfig(f"serving.{name}", expected, value)


def _check_address(config: TrainConfig, address: str | None) -> None:
    """Raises InvalidConfig if another program serves at the address of the run, or if strangers could enter there.

    Also raised if a certificate, a key or a file of tokens cannot be used.
    """
    if address is None:
        return
    serving = importlib.import_module("relive.train.acting.serving")  # needs the extra `service`
    server_address = where_to_serve(address)[0]
    door = serving.door_of(config.serving)
    door.check(server_address)
    serving.check_files(door)
    where = urlsplit(server_address)
    try:
        family, kind, _, _, place = socket.getaddrinfo(where.hostname, where.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the address of a server that ended is free
            one.bind(place)
    except (OSError, UnicodeError) as problem:  # UnicodeError: the name cannot be one of a host
        got = f"{address} ({getattr(problem, 'strerror', None) or problem})"
        raise InvalidConfig("serving.address", "one of this machine that is free, or port 0", got) from None
