"""A fleet on a Ray cluster: a shard a node, in a named actor that Ray places and restarts. Needs the extra `ray`.

Ray carries placement, restart and names, and never a batch: handles map shards of their own host, and reach those of
others at the address that their actors serve.

Protocol. A placement group `relive/NAME`, STRICT_SPREAD, holds a bundle for each shard, and in it the actor
`relive/NAME/NUMBER` (namespace `relive`); both are detached, so they outlive who started them. The actor is the shard's
ShardOwner. Ray restarts it in its bundle, so on its node as long as that lives: there it takes over what its shared
memory holds, and serves at the same port. Its calls are never repeated by Ray: none of them moves experience, and who
asks asks again until its own deadline.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, final

from relive.checks.parts import refuse_unknown
from relive.checks.values import finite, integer, is_text, timeout
from relive.config.storage import MAX_NAME_BYTES, SharedMemory
from relive.config.table_config import TableConfig
from relive.errors import DeadlineExceeded, InvalidConfig, MissingPackage, NameTaken, ServiceUnavailable
from relive.errors.extras import install_command
from relive.fleet.agreement import Exchange
from relive.fleet.draws.pace import Wait
from relive.fleet.draws.placement import MAX_SHARDS
from relive.fleet.errors import FleetExists, FleetFailed, NoSuchFleet
from relive.fleet.owner import ShardOwner
from relive.fleet.sharded_table import ShardedTable, attach
from relive.service.config import read_toml, table_of

if importlib.util.find_spec("ray") is None:
    raise MissingPackage("relive.fleet.ray", "ray", install_command("ray"))

import ray  # noqa: E402  (after the check above, whose error names the extra)
from ray.exceptions import ActorDiedError, GetTimeoutError, RayActorError, RayTaskError  # noqa: E402
from ray.util.placement_group import placement_group, remove_placement_group  # noqa: E402
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy  # noqa: E402

__all__ = ["FleetConfig", "ShardReport", "connect", "load_config", "start", "status", "stop"]

NAMESPACE = "relive"
DEFAULT_PORT = 7170
START_S = 120.0  # a node's first worker takes seconds, on a busy one many
_OPTIONS = ("name", "num_shards", "port", "num_cpus", "resources", "table")
_ASK_S = 2.0  # how long one question waits; then it is asked again
_PAUSE_S = 0.1
_CONNECT_S = 30.0
_Removes: TypeAlias = Literal["all", "new", "none"]  # memory of a fleet that ends; new: what its actors made themselves
_END_S = 20.0
_PORT_S = 10.0
_LOCK_S = 3.0
_GONE = "its actor was ended; stop the fleet (--keep leaves its memory), and start it again"


@final
@dataclass(frozen=True)
class FleetConfig:
    """A fleet: shards 0 to num_shards - 1, each on a node of its own.

    name: of the fleet; shard n lies in SharedMemory(f"{name}-{n}") of its node. table: of each shard, whose capacity is
    a shard's; its storage is not looked at. port: shard n is served at port + n of its node; 0: at a free one, another
    after a restart, so that handles of other hosts attach anew. num_cpus, resources: what Ray keeps free for each.
    Raises InvalidConfig.
    """

    name: str
    num_shards: int
    table: TableConfig
    port: int = DEFAULT_PORT
    num_cpus: float = 1.0
    resources: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not is_text(self.name, MAX_NAME_BYTES - 5) or "/" in self.name:
            expected = f"1 to {MAX_NAME_BYTES - 5} bytes of text without '/'"
            raise InvalidConfig("name of a fleet", expected, self.name)
        integer("num_shards", self.num_shards, 1, MAX_SHARDS)
        if not isinstance(self.table, TableConfig):
            raise InvalidConfig("table of a fleet", "a TableConfig", self.table)
        integer("port", self.port, 0, 65_536 - self.num_shards)
        finite("num_cpus", self.num_cpus, 0.0)
        if not isinstance(self.resources, Mapping):
            raise InvalidConfig("resources", "{name: amount}", self.resources)
        for name, amount in self.resources.items():
            finite(f"resources[{name!r}]", amount, 0.0)

    def shard(self, number: int) -> TableConfig:
        """Of shard `number`."""
        return replace(self.table, storage=SharedMemory(f"{self.name}-{number}"))

    @property
    def bundle(self) -> dict[str, float]:
        """What Ray keeps free for a shard. A bundle must not be empty."""
        return {"CPU": float(self.num_cpus) or 0.001, **self.resources}


@final
@dataclass(frozen=True)
class ShardReport:
    """A shard as its actor describes it. state: "live"; else why it does not answer, and the rest is of no meaning."""

    number: int
    state: str
    num_shards: int = 0  # of the fleet
    node_ip: str = ""
    address: str = ""  # grpc://host:port/name
    name: str = ""  # of its shared memory, on its node
    pid: int = 0
    num_steps: int = 0
    capacity: int = 0
    is_restored: bool = False  # the actor found what an earlier one had left


def load_config(path: str | Path) -> FleetConfig:
    """Reads fleet.toml, as docs/fleet.md shows it. Raises InvalidConfig or SpecError, which name a part, OSError."""
    parts = read_toml(path)
    refuse_unknown(f"option of {path}", parts, _OPTIONS)
    for name in ("name", "num_shards", "table"):
        if name not in parts:
            raise InvalidConfig(f"{name} in {path}", "given", "none")
    return FleetConfig(**parts | {"table": table_of("[table]", parts["name"], parts["table"])})


# ---- the actor -------------------------------------------------------------------------------------------------------


@final
class _ShardActor:
    """Owns one shard on its node, serves it to other hosts, and says where it is."""

    def __init__(self, number: int, num_shards: int, config: TableConfig, port: int) -> None:
        self._num_shards = num_shards
        self._owner = _owner(number, config)
        self._node_ip = str(ray.util.get_node_ip_address())
        host = f"[{self._node_ip}]" if ":" in self._node_ip else self._node_ip
        self._address = self._served(f"grpc://{host}", port + number if port else 0)

    def _served(self, host: str, port: int) -> str:
        """Where it is served: at the port, which an actor that was killed may hold a little longer, else at a free one.

        Handles of this host do without; whoever has the address only will not find it, until it connects anew.
        """
        wait = Wait(_PORT_S)
        while True:
            try:
                return self._owner.serve(f"{host}:{0 if wait.is_over else port}")
            except ServiceUnavailable:
                if wait.is_over:
                    raise
            wait.pause()

    def report(self) -> ShardReport:
        """Where it is, and how full."""
        table = self._owner.table
        storage = table.config.storage
        assert isinstance(storage, SharedMemory)  # says ShardOwner
        facts = {
            "num_shards": self._num_shards,
            "node_ip": self._node_ip,
            "address": self._address,
            "name": storage.name,
            "pid": os.getpid(),
        }
        sizes = {"num_steps": len(table), "capacity": table.capacity, "is_restored": self._owner.is_restored}
        return ShardReport(self._owner.number, "live", **facts, **sizes)  # type: ignore[arg-type]

    def close(self, removes: _Removes) -> None:
        """Ends the ownership, and removes memory, which goes with the last handle that is attached.

        What is not removed stays when the process is killed, which is how Ray ends an actor; or asks it to end, where
        its placement group goes first: then it must not close the handle, for memory goes with the last one.
        """
        if removes == "all" or (removes == "new" and not self._owner.is_restored):
            self._owner.close()
        else:
            atexit.register(os._exit, 0)  # before whatever was registered earlier
        self._owner.let_go()


def _owner(number: int, config: TableConfig) -> ShardOwner:
    """The owner; an earlier one that was killed may end a moment later than Ray hears of it. Raises NameTaken."""
    wait = Wait(_LOCK_S)
    while True:
        try:
            return ShardOwner(number, config)
        except NameTaken:
            if wait.is_over:
                raise
        wait.pause()


def _actor_name(name: str, number: int) -> str:
    return f"relive/{name}/{number}"


def _actors(name: str) -> dict[int, Any]:
    """The actors of a fleet by the numbers of their shards; none where there is no such fleet."""
    prefix = _actor_name(name, 0)[:-1]
    named = (one["name"] for one in ray.util.list_named_actors(all_namespaces=True) if one["namespace"] == NAMESPACE)
    numbers = sorted(
        int(one[len(prefix) :]) for one in named if one.startswith(prefix) and one[len(prefix) :].isdigit()
    )
    found = {}
    for number in numbers:
        with suppress(ValueError):  # it ended meanwhile
            found[number] = ray.get_actor(_actor_name(name, number), namespace=NAMESPACE)
    return found


def _answer(name: str, number: int, actor: Any, wait: Wait) -> ShardReport:
    """What an actor reports, asked until it does. Raises DeadlineExceeded, FleetFailed where it is gone for good."""
    why = "it has not answered yet"
    while True:
        try:
            seconds = min(_ASK_S, max(wait.left_s, _PAUSE_S))
            report: ShardReport = ray.get(actor.report.remote(), timeout=seconds)
            return report
        except ActorDiedError as error:
            raise FleetFailed(name, number, _reason(error)) from None
        except (RayActorError, GetTimeoutError) as error:  # it is being started, by Ray or by its node
            why = _reason(error)
        if wait.is_over:
            raise wait.exceeded(f"shard {number} of fleet {name!r}", why)
        wait.pause()


def _reason(error: BaseException) -> str:
    """Of what Ray says, the last line that says what happened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if "Error" in line or ".errors." in line]
    return (told or lines or [type(error).__name__])[-1]


# ---- calls -----------------------------------------------------------------------------------------------------------


def start(config: FleetConfig, timeout_s: float = START_S, address: str | None = None) -> list[ShardReport]:
    """Starts a fleet that goes on when this process ends; what its shards report. address: of the Ray cluster.

    A shard whose memory an earlier fleet left on the node that it comes to takes that over; one of another number, spec
    or index there is refused. Blocks until all shards are there, at most timeout_s; then, and after any error, nothing
    of it runs. Raises DeadlineExceeded (too few nodes, or too slow ones), FleetExists, FleetFailed, InvalidConfig.
    """
    if not isinstance(config, FleetConfig):
        raise InvalidConfig("config of a fleet", "a FleetConfig", config)
    wait = Wait(timeout(timeout_s))
    _join(address)
    if _actors(config.name):
        raise FleetExists(config.name)
    bundles = [config.bundle] * config.num_shards
    group = placement_group(bundles, "STRICT_SPREAD", name=f"relive/{config.name}", lifetime="detached")
    actors: dict[int, Any] = {}
    try:
        while not group.wait(min(_ASK_S, max(wait.left_s, _PAUSE_S))):
            if wait.is_over:
                nodes = sum(node["Alive"] for node in ray.nodes())
                raise wait.exceeded(f"{config.num_shards} nodes with {config.bundle} free each", f"{nodes} nodes")
        for number in range(config.num_shards):
            actors[number] = _made(config, number, group)
        return [_answer(config.name, number, actor, wait) for number, actor in actors.items()]
    except BaseException:
        _end(config.name, actors, group, "new")
        raise


def _made(config: FleetConfig, number: int, group: Any) -> Any:
    made = ray.remote(_ShardActor).options(
        name=_actor_name(config.name, number),
        namespace=NAMESPACE,
        lifetime="detached",
        max_restarts=-1,
        max_task_retries=0,  # a call whose answer was lost may have been done
        num_cpus=config.bundle["CPU"],
        resources=dict(config.resources),
        scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number),
    )
    return made.remote(number, config.num_shards, config.shard(number), config.port)


def connect(
    name: str,
    timeout_s: float | None = None,
    *,
    path: str | None = None,
    exchange: Exchange | None = None,
    root_age: int = 1,
    stream: int | None = None,
    address: str | None = None,
) -> ShardedTable:
    """A handle on a fleet that runs, from a task or an actor of Ray, or from any process of a node of the cluster.

    Its writer() takes the shard of this node, where there is one. Ray is asked where the shards are, and then no more.
    timeout_s: the default of the handle's calls, None: the table's; connecting waits at most so long, or 30 s, also for
    a shard that Ray is starting anew. path, exchange, root_age, stream: as of relive.fleet.attach. address: of the Ray
    cluster, None: the one that this process is in, or runs beside. Raises NoSuchFleet, DeadlineExceeded, FleetFailed,
    and what attach raises.
    """
    wait = Wait(_CONNECT_S if timeout_s is None else timeout(timeout_s))
    _join(address)
    actors = _actors(name)
    if not actors:
        raise NoSuchFleet(name)
    reports = [_answer(name, number, actor, wait) for number, actor in actors.items()]
    for number in _missing(reports):
        raise FleetFailed(name, number, _GONE)
    here = ray.util.get_node_ip_address()
    local = next((report.number for report in reports if report.node_ip == here), None)
    addresses = [report.address for report in reports]
    return attach(addresses, local, stream, timeout_s, exchange=exchange, root_age=root_age, path=path)


def status(name: str, timeout_s: float = 5.0, address: str | None = None) -> list[ShardReport]:
    """What each shard of a fleet reports; those that do not, within timeout_s in all, say why. Raises NoSuchFleet."""
    wait = Wait(timeout(timeout_s))
    _join(address)
    reports = []
    for number, actor in _actors(name).items():
        try:
            reports.append(_answer(name, number, actor, wait))
        except (DeadlineExceeded, FleetFailed) as error:
            reports.append(ShardReport(number, str(error)))
    if not reports:
        raise NoSuchFleet(name)
    reports += [ShardReport(number, str(FleetFailed(name, number, _GONE))) for number in _missing(reports)]
    return sorted(reports, key=lambda one: one.number)


def _missing(reports: Sequence[ShardReport]) -> list[int]:
    """Shards that no actor of the fleet answers for."""
    expected = max((one.num_shards for one in reports), default=0)
    return sorted(set(range(expected)) - {one.number for one in reports})


def stop(name: str, keeps_memory: bool = False, address: str | None = None) -> None:
    """Ends a fleet. Its memory goes with the last handle that is attached; keeps_memory: it stays, for a start() anew.

    Raises NoSuchFleet.
    """
    _join(address)
    actors = _actors(name)
    group = _group(name)
    if not actors and group is None:
        raise NoSuchFleet(name)
    _end(name, actors, group, "none" if keeps_memory else "all")


def _end(name: str, actors: Mapping[int, Any], group: Any, removes: _Removes) -> None:
    """Ends the actors, and waits until Ray forgot them."""
    wait = Wait(_END_S)
    for actor in actors.values():
        with suppress(RayActorError, GetTimeoutError, RayTaskError):
            ray.get(actor.close.remote(removes), timeout=max(_ASK_S, wait.left_s))
        ray.kill(actor, no_restart=True)
    if group is not None:
        remove_placement_group(group)
    while not wait.is_over and _actors(name):
        wait.pause()


def _group(name: str) -> Any:
    try:
        return ray.util.get_placement_group(f"relive/{name}")
    except ValueError:
        return None


def _join(address: str | None) -> None:
    """This process becomes one of the cluster's, where it is none yet. Raises InvalidConfig where there is none."""
    if ray.is_initialized():
        return
    try:
        ray.init(address=address or "auto", namespace=NAMESPACE, logging_level="error", log_to_driver=False)
    except ConnectionError as error:
        expected = "one that runs: ray start --head, and on the other nodes ray start --address=HEAD:6379"
        raise InvalidConfig("address of the Ray cluster", expected, address or "none found") from error
