"""A fleet on a Ray cluster: one shard a node, in a named actor that Ray places and restarts. Needs the extra `ray`.

Ray carries placement, restart and names, and never a batch. Handles map shards of their own host, and reach shards of
other hosts at the address that the shard's actor serves.

Protocol:

- A placement group `relive/NAME`, STRICT_SPREAD, has a bundle for each shard. The actor `relive/NAME/NUMBER`
  (namespace `relive`) runs in the bundle. Group and actors are detached, so they outlive the process that started them.
- The placement group is made first and removed last: it is the fleet's name. A fleet whose start() waits for nodes, or
  was killed while it did, has a group and no actors.
- A fleet is stopped in four steps: all actors are asked to end, all actors are killed, a task in the bundle of each
  shard removes memory that its actor left, and the group is removed.
- The actor is the shard's ShardOwner. Ray restarts it in its bundle, so on the same node as long as the node lives.
  There the actor takes over the contents of its shared memory, and serves at the same port.
- Ray never repeats an actor's calls. No call moves experience, and callers ask again until their own deadline.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, TypeAlias, final

from relive.checks.values import timeout
from relive.config.storage import SharedMemory
from relive.config.table_config import TableConfig
from relive.core.attached import attached_pids
from relive.errors import (
    CannotListen,
    InvalidConfig,
    MissingPackage,
    NameTaken,
    NoSuchTable,
    ReliveError,
)
from relive.errors.extras import install_command
from relive.fleet.agreement import Exchange
from relive.fleet.draws.pace import Wait
from relive.fleet.errors import ClusterFailed, FleetExists, FleetFailed, FleetLeft, NoSuchFleet
from relive.fleet.owner import ShardOwner, outlive
from relive.fleet.ray_config import FleetConfig, ShardReport, load_config
from relive.fleet.sharded_table import ShardedTable, attach
from relive.service.wire.access import Access
from relive.service.wire.door import Door
from relive.table.table import attach_path

if importlib.util.find_spec("ray") is None:
    raise MissingPackage("relive.fleet.ray", "ray", install_command("ray"))

import ray  # noqa: E402  (after the check above, whose error names the extra)
from ray.exceptions import ActorDiedError, GetTimeoutError, RayActorError, RayError  # noqa: E402
from ray.util.placement_group import (  # noqa: E402
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy  # noqa: E402

__all__ = ["FleetConfig", "ShardReport", "connect", "load_config", "start", "status", "stop"]

NAMESPACE = "relive"
START_S = 120.0  # the first worker of a node takes seconds, on a busy node many
_ASK_S = 2.0  # how long one question waits before it is asked again
_PAUSE_S = 0.1
_CONNECT_S = 30.0
_Removes: TypeAlias = Literal["all", "new", "none"]  # memory of an ending fleet; new: only regions that its actors made
_CLOSE_S = 5.0  # for actors that are asked to end: a healthy one answers in milliseconds
_REACH_S = 5.0
# RFC 9113, 3.4: both ends begin with a frame of settings: its length (3 bytes), type 4, flags, and stream 0 (4 bytes).
_HTTP2_SETTINGS = b"\0\0\0\x04\0\0\0\0\0"
_HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _HTTP2_SETTINGS
_STOP_S = 60.0  # a task on a busy node takes seconds to start
_PORT_S = 10.0
_FOREVER_S = 1e6  # Ray counts milliseconds in 64 bits
_LOCK_S = 3.0
_WAITS = "it does not run: start() waits for nodes, or was ended while it did; stop the fleet, and start it again"
_SILENT = "it has not answered yet"
_GONE = "its actor was ended; stop the fleet (--keep leaves its memory), and start it again"


# ---- the actor -------------------------------------------------------------------------------------------------------


@final
class ShardActor:
    """Owns one shard on its node, serves it to other hosts, and reports where it is."""

    def __init__(self, number: int, num_shards: int, config: TableConfig, port: int, door: Door | None) -> None:
        self._num_shards = num_shards
        self._owner = _owner(number, config)
        self._node_ip = str(ray.util.get_node_ip_address())
        host = f"[{self._node_ip}]" if ":" in self._node_ip else self._node_ip
        self._door = door
        scheme = "grpc" if door is None or door.tls is None else "grpc+tls"
        self._address = self._served(f"{scheme}://{host}", port + number if port else 0)

    def _served(self, host: str, port: int) -> str:
        """Serves the shard and returns its address. Falls back to a free port if the port stays in use.

        An actor that was killed may keep the port a little longer. Handles of this host do not need the port. A handle
        that knows only the address does not find the shard at another port until it connects again.
        """
        wait = Wait(_PORT_S)
        while not wait.is_over:
            with suppress(CannotListen):
                return self._owner.serve(f"{host}:{port}", door=self._door)
            wait.pause()
        return self._owner.serve(f"{host}:0", door=self._door)

    def report(self) -> ShardReport:
        """Reports where the shard is, and how full it is."""
        table = self._owner.table
        storage = table.config.storage
        assert isinstance(storage, SharedMemory)  # ShardOwner checked it
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
        """Ends the ownership, and removes memory, which disappears with the last attached handle.

        Memory that is not removed stays, whether Ray then kills the process or asks the process to end.
        """
        if removes == "all" or (removes == "new" and not self._owner.is_restored):
            self._owner.close()
        else:
            self._owner.let_go()


def _owner(number: int, config: TableConfig) -> ShardOwner:
    """Makes the owner. Waits for an earlier owner that was killed: it may end a moment later than Ray hears of it.

    Raises NameTaken.
    """
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
    """The actors of a fleet, by the number of their shard; empty if there is no such fleet."""
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


def answer_of(name: str, number: int, actor: Any, wait: Wait) -> ShardReport:
    """Asks an actor for its report until it answers.

    Raises DeadlineExceeded, and FleetFailed if the actor is gone for good.
    """
    why = _SILENT
    while True:
        try:
            seconds = min(_ASK_S, max(wait.left_s, _PAUSE_S))
            report: ShardReport = ray.get(actor.report.remote(), timeout=seconds)
            return report
        except ActorDiedError as error:
            raise FleetFailed(name, number, reason(error)) from None
        except (RayActorError, GetTimeoutError) as error:  # Ray or the node is starting the actor
            why = reason(error)
        if wait.is_over:
            raise wait.exceeded(f"shard {number} of fleet {name!r}", why)
        wait.pause()


def _reports(name: str, actors: Mapping[int, Any], wait: Wait) -> list[ShardReport]:
    """Asks all actors at once for their reports, and those again that do not answer.

    The state of a shard without an answer at the deadline says why.
    """
    reports: list[ShardReport] = []
    left, why = dict(actors), dict.fromkeys(actors, _SILENT)
    while left:
        asked = {actor.report.remote(): number for number, actor in left.items()}
        seconds = min(_ASK_S, max(wait.left_s, _PAUSE_S))
        for answer in ray.wait(list(asked), num_returns=len(asked), timeout=seconds)[0]:
            number = asked[answer]
            try:
                reports.append(ray.get(answer, timeout=seconds))
            except ActorDiedError as error:
                reports.append(ShardReport(number, str(FleetFailed(name, number, reason(error)))))
            except (RayActorError, GetTimeoutError) as error:  # Ray or the node is starting the actor
                why[number] = reason(error)
                continue
            del left[number]
        if wait.is_over:
            break
        if left:
            wait.pause()
    silent = {number: wait.exceeded(f"shard {number} of fleet {name!r}", why[number]) for number in left}
    return reports + [ShardReport(number, str(error)) for number, error in silent.items()]


def reason(error: BaseException) -> str:
    """The last line of Ray's error that describes the failure."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if "Error" in line or ".errors." in line]
    return (told or lines or [type(error).__name__])[-1]


@contextmanager
def explained(call: str) -> Iterator[None]:
    """Raises ClusterFailed in place of an error of Ray."""
    try:
        yield
    except (RayError, ValueError) as error:
        if isinstance(error, ReliveError):
            raise
        raise ClusterFailed(call, reason(error)) from error


# ---- calls -----------------------------------------------------------------------------------------------------------


@explained("start()")
def start(config: FleetConfig, timeout_s: float = START_S, address: str | None = None) -> list[ShardReport]:
    """Starts a fleet that continues after this process ends.

    A shard takes over the memory that an earlier fleet left on its node. The shard refuses memory with another number,
    spec or index. After an error no part of the new fleet runs.

    Args:
        config: the fleet's configuration.
        timeout_s: timeout in seconds. Default 120: the first worker of a node takes seconds, on a busy node many.
        address: address of the Ray cluster. None: the cluster that this process is in, or the one on this host.

    Returns:
        One report a shard, by number.

    Raises:
        DeadlineExceeded: the cluster has too few nodes, or they are too slow.
        FleetExists: a fleet of this name already runs, or waits for nodes.
        FleetFailed: the actor of a shard ended for good.
        InvalidConfig: config is not a FleetConfig, or no Ray cluster was found.

    Blocks:
        Until all shards answer, at most timeout_s.
    """
    if not isinstance(config, FleetConfig):
        raise InvalidConfig("config of a fleet", "a FleetConfig", config)
    wait = Wait(timeout(timeout_s))
    join(address, wait)
    group = _reserved(config)
    actors: dict[int, Any] = {}
    try:
        while not group.wait(min(_ASK_S, max(wait.left_s, _PAUSE_S))):
            if wait.is_over:
                nodes = sum(node["Alive"] for node in ray.nodes())
                raise wait.exceeded(f"{config.num_shards} nodes with {config.bundle} free each", f"{nodes} nodes")
        for number in range(config.num_shards):
            actors[number] = _made(config, number, group)
        return [answer_of(config.name, number, actor, wait) for number, actor in actors.items()]
    except BaseException:
        _end(config.name, actors, group, "new", Wait(_CLOSE_S))
        raise


def _reserved(config: FleetConfig) -> Any:
    """The placement group of a new fleet. Raises FleetExists if the fleet has one, or an actor."""
    if _actors(config.name) or _group(config.name) is not None:
        raise FleetExists(config.name)
    bundles = [config.bundle] * config.num_shards
    try:
        return placement_group(bundles, "STRICT_SPREAD", name=f"relive/{config.name}", lifetime="detached")
    except RayError:
        if _group(config.name) is not None:  # another start() came first, a moment ago
            raise FleetExists(config.name) from None
        raise


def _made(config: FleetConfig, number: int, group: Any) -> Any:
    made = ray.remote(ShardActor).options(
        name=_actor_name(config.name, number),
        namespace=NAMESPACE,
        lifetime="detached",
        max_restarts=-1,
        max_task_retries=0,  # a call whose answer was lost may have been done
        num_cpus=config.bundle["CPU"],
        resources=dict(config.resources),
        scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number),
    )
    return made.remote(number, config.num_shards, config.shard(number), config.port, config.door)


@explained("connect()")
def connect(
    name: str,
    timeout_s: float | None = None,
    *,
    path: str | None = None,
    exchange: Exchange | None = None,
    root_age: int = 1,
    stream: int | None = None,
    address: str | None = None,
    access: Access | None = None,
) -> ShardedTable:
    """Opens a handle on a running fleet, from a Ray task or actor, or from any process on a node of the cluster.

    The handle's writer() uses the shard of this node, if there is one. Ray is asked for the shards' addresses once.

    Args:
        name: name of the fleet.
        timeout_s: default timeout of the handle's calls, in seconds. None: the table's.
        path: as in relive.fleet.attach.
        exchange: as in relive.fleet.attach.
        root_age: as in relive.fleet.attach.
        stream: as in relive.fleet.attach.
        address: address of the Ray cluster. None: the cluster that this process is in, or the one on this host.
        access: as in relive.fleet.attach.

    Returns:
        The table.

    Raises:
        NoSuchFleet: no fleet of this name runs.
        DeadlineExceeded: a shard did not answer in time.
        FleetFailed: the actor of a shard has ended for good.
        ReliveError: also every error that relive.fleet.attach raises.

    Blocks:
        At most timeout_s, or 30 s if timeout_s is None. The wait includes shards that Ray is restarting.
    """
    wait = Wait(_CONNECT_S if timeout_s is None else timeout(timeout_s))
    join(address, wait)
    actors = _actors(name)
    if not actors:
        raise NoSuchFleet(name) if _group(name) is None else FleetFailed(name, 0, _WAITS)
    reports = [answer_of(name, number, actor, wait) for number, actor in actors.items()]
    for number in _missing(reports):
        raise FleetFailed(name, number, _GONE)
    here = ray.util.get_node_ip_address()
    local = next((report.number for report in reports if report.node_ip == here), None)
    addresses = [report.address for report in reports]
    more = {"exchange": exchange, "root_age": root_age, "path": path, "access": access}
    return attach(addresses, local, stream, timeout_s, **more)  # type: ignore[arg-type]


@explained("status()")
def status(name: str, timeout_s: float = 5.0, address: str | None = None) -> list[ShardReport]:
    """Asks each shard of a fleet for its report.

    Args:
        name: name of the fleet.
        timeout_s: timeout in seconds for all shards together. Default 5.
        address: address of the Ray cluster, as in connect.

    Returns:
        One report a shard, by number. The state of a shard that does not answer says why.

    Raises:
        NoSuchFleet: no fleet of this name runs.
    """
    wait = Wait(timeout(timeout_s))
    join(address, wait)
    reports = _reports(name, _actors(name), wait)
    if not reports:
        group = _group(name)
        if group is None:
            raise NoSuchFleet(name)
        return [ShardReport(number, str(FleetFailed(name, number, _WAITS))) for number in range(group.bundle_count)]
    reports += [ShardReport(number, str(FleetFailed(name, number, _GONE))) for number in _missing(reports)]
    return sorted(reports, key=lambda one: one.number)


def _missing(reports: Sequence[ShardReport]) -> list[int]:
    """Numbers of shards that have no actor."""
    expected = max((one.num_shards for one in reports), default=0)
    return sorted(set(range(expected)) - {one.number for one in reports})


@explained("stop()")
def stop(name: str, keeps_memory: bool = False, address: str | None = None, timeout_s: float = _STOP_S) -> None:
    """Ends a fleet, whatever state its actors are in. Its memory disappears with the last attached handle.

    Args:
        name: name of the fleet.
        keeps_memory: True: the memory stays, for a later start(). Default False.
        address: address of the Ray cluster, as in connect.
        timeout_s: timeout in seconds. Default 60.

    Raises:
        NoSuchFleet: no fleet of this name runs.
        FleetLeft: a shard still has an owner, or memory that was to be removed.

    Blocks:
        At most timeout_s.
    """
    wait = Wait(timeout(timeout_s))
    join(address, wait)
    actors = _actors(name)
    group = _group(name)
    if not actors and group is None:
        raise NoSuchFleet(name)
    left = _end(name, actors, group, "none" if keeps_memory else "all", wait)
    if left:
        raise FleetLeft(name, left, wait.waited_s)


def _end(name: str, actors: Mapping[int, Any], group: Any, removes: _Removes, wait: Wait) -> list[int]:
    """Ends the actors, and waits until Ray has forgotten them. Returns the shards of which something is left."""
    asked = [actor.close.remote(removes) for actor in actors.values()]
    if asked:
        ray.wait(asked, num_returns=len(asked), timeout=max(_PAUSE_S, min(_CLOSE_S, wait.left_s)))
    for actor in actors.values():
        ray.kill(actor, no_restart=True)
    left: list[int] = []
    if group is not None:
        if removes != "new":  # else nodes may be missing
            left = _not_ended(name, group, removes == "all", wait)
        remove_placement_group(group)
    while _actors(name) and not wait.is_over:
        wait.pause()
    return left


def _not_ended(name: str, group: Any, removes: bool, wait: Wait) -> list[int]:
    """Ends all shards on their nodes, whatever their actors do. Returns the shards for which this failed.

    Bundles that have no node have no memory.
    """
    placed = placement_group_table(group)["bundles_to_node_id"]
    tasks = {}
    for number in (int(bundle) for bundle, node in placed.items() if node):
        where = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number)
        made = ray.remote(end_here).options(num_cpus=0, max_retries=0, scheduling_strategy=where)
        tasks[made.remote(f"{name}-{number}", removes, wait.left_s)] = number
    done = ray.wait(list(tasks), num_returns=len(tasks), timeout=min(wait.left_s, _FOREVER_S))[0] if tasks else []
    ended = set()
    for task in done:
        with suppress(RayError):
            if ray.get(task):
                ended.add(tasks[task])
    return sorted(set(tasks.values()) - ended)


def end_here(name: str, removes: bool, timeout_s: float, actor: str = ShardActor.__name__) -> bool:
    """Ends a shard of this node. Kills an actor that does not end, because Ray cannot kill one that hangs.

    Args:
        name: name of the shard's shared memory.
        removes: whether its memory goes with its last handle.
        timeout_s: timeout in seconds.
        actor: name of the actor's class.

    Returns whether the shard has no owner any more, and its memory is gone or disappears with its last handle.
    """
    path, wait = SharedMemory(name).path, Wait(timeout_s)

    def pause() -> bool:
        if wait.waited_s >= _LOCK_S:
            for pid in attached_pids(path):
                with suppress(OSError):
                    if actor.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                        os.kill(pid, signal.SIGKILL)
        wait.pause()
        return not wait.is_over

    if not outlive(path, pause):
        return False
    if removes:
        with suppress(NoSuchTable), attach_path(path) as table:
            table.core.set_keeps_file(False)  # the last handle that closes removes the memory of a killed owner
    return True


def _group(name: str) -> Any:
    """The placement group of a fleet, or None.

    Ray makes a group in the namespace of the process that starts the fleet. That process may have joined the cluster by
    itself. get_placement_group looks into the namespace of the caller alone.
    """
    for one in placement_group_table().values():
        if one["name"] == f"relive/{name}" and one["state"] != "REMOVED":
            return PlacementGroup(ray.PlacementGroupID(bytes.fromhex(one["placement_group_id"])))
    return None


def join(address: str | None, wait: Wait) -> None:
    """Joins the cluster if this process is not part of one. Never starts one.

    Raises InvalidConfig if no cluster is found.
    """
    if ray.is_initialized():
        return
    asked = address or os.environ.get("RAY_ADDRESS") or "auto"
    expected = "one that runs: ray start --head, and on the other nodes ray start --address=HEAD:6379"
    try:
        _check_reached(asked, min(_REACH_S, wait.left_s))
        with _own_handler_of_sigterm():
            ray.init(address=asked, namespace=NAMESPACE, logging_level="error", log_to_driver=False)
    except (OSError, ValueError, RuntimeError) as error:
        got = f"{asked!r} ({reason(error)})" if asked != "auto" else "none found"
        raise InvalidConfig("address of the Ray cluster", expected, got) from error


@contextmanager
def _own_handler_of_sigterm() -> Iterator[None]:
    """Keeps the handler that the program has for SIGTERM, which ray.init would replace. Ray's stays if it has none."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if callable(before) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _check_reached(address: str, timeout_s: float) -> None:
    """Raises ValueError or OSError if no server of gRPC, as Ray's are, answers at the address in time.

    Ray waits without an end for an address where nothing listens, and for a listener that is no Ray.
    """
    if address == "auto":
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
        raise ValueError("not HOST:PORT")
    ends = time.monotonic() + max(_PAUSE_S, timeout_s)
    with socket.create_connection((host.strip("[]"), int(port)), max(_PAUSE_S, timeout_s)) as line:
        if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
            return  # the greeting would have to be encrypted
        line.sendall(_HTTP2_GREETING)
        heard = b""
        while len(heard) < len(_HTTP2_SETTINGS):
            line.settimeout(max(0.001, ends - time.monotonic()))
            try:
                some = line.recv(len(_HTTP2_SETTINGS) - len(heard))
            except TimeoutError:
                raise TimeoutError("no Ray: what listens there does not answer") from None
            if not some:
                break
            heard += some
    if heard[3:4] != _HTTP2_SETTINGS[3:4] or heard[5:] != _HTTP2_SETTINGS[5:]:
        raise ValueError("no Ray: what listens there does not speak gRPC")
