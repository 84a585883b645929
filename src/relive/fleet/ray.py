"""A fleet on a Ray cluster: one shard a node, in a named actor that Ray places and restarts. Needs the extra `ray`.

Ray carries placement, restart and names, and never a batch. Handles map shards of their own host, and reach shards of
other hosts at the address that the shard's actor serves.

Protocol:

- A placement group `relive/NAME`, STRICT_SPREAD, has a bundle for each shard. The actor `relive/NAME/NUMBER`
  (namespace `relive`) runs in the bundle. Group and actors are detached, so they outlive the process that started them.
- start() asks all live nodes for memory of an earlier fleet of the name (on_ray.kept). The bundle of a shard whose
  memory is found needs that node. If that node is lost, the shard waits for a node with the same address.
- The placement group is made first and removed last: it is the fleet's name. A fleet has a group and no actors while
  its start() waits for nodes, and after a start() or stop() that was killed in its middle.
- A fleet is stopped in four steps: all actors are asked to end, all actors are killed, a task on the node of each
  shard removes memory that its actor left, and the group is removed. A start() that fails takes the same steps, and
  removes only memory that its own actors made.
- The actor is the shard's ShardOwner. Ray restarts it in its bundle, so on the same node as long as the node lives.
  There the actor takes over the contents of its shared memory, and serves at the same port.
- Ray never repeats an actor's calls. No call moves experience, and callers ask again until their own deadline.
- Questions to Ray have the deadline of their call (on_ray.cluster.ask): the head may hang, and a link of ray:// may be
  lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from relive.checks.values import timeout
from relive.errors import InvalidConfig, ReliveError, TableClosed
from relive.fleet.agreement import Exchange
from relive.fleet.draws.pace import Wait
from relive.fleet.errors import FleetExists, FleetFailed, FleetLeft, NoSuchFleet
from relive.fleet.on_ray.cluster import FOREVER_S, NAMESPACE, ask, explained, join, reason
from relive.fleet.on_ray.kept import Node, nodes_of_kept
from relive.fleet.on_ray.shard import Removes, ShardActor, end_here
from relive.fleet.on_ray.tasks import ASK_S, Task, done_of, run
from relive.fleet.ray_config import FleetConfig, ShardReport, load_config
from relive.fleet.sharded_table import ShardedTable, attach
from relive.service.wire.access import Access

# on_ray comes first: its error names the extra.
# isort: split
import ray
from ray.exceptions import ActorDiedError, GetTimeoutError, RayActorError, RayError
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

__all__ = ["FleetConfig", "ShardReport", "connect", "load_config", "start", "status", "stop"]

START_S = 120.0  # the first worker of a node takes seconds, on a busy node many
_PAUSE_S = 0.1
_ACTOR = ShardActor.__name__
_CONNECT_S = 30.0
_CLOSE_S = 5.0  # for actors that are asked to end: a healthy one answers in milliseconds
_STOP_S = 60.0  # a task on a busy node takes seconds to start
_UNDO_S = 15.0  # the same for a start() that failed
_PIN = 0.001  # of the resource of a node, which has 1 of it
_REMOVED = (None, "REMOVED")  # states of a placement group
_WAITS = "start() waits for nodes, or start() or stop() was ended in its middle; stop the fleet, and start it again"
_SILENT = "it has not answered yet"
_STOPPED = "the fleet was stopped while start() waited for it"
_GONE = "its actor was ended; stop the fleet (--keep leaves its memory), and start it again"


def _actor_name(name: str, number: int) -> str:
    return f"relive/{name}/{number}"


def _actors(name: str, wait: Wait) -> dict[int, Any]:
    """The actors of a fleet, by the number of their shard; empty if there is no such fleet. Raises DeadlineExceeded."""
    return ask(wait, partial(_named, name))


def _named(name: str) -> dict[int, Any]:
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


def _report(actor: Any, seconds: float) -> ShardReport:
    report: ShardReport = ray.get(actor.report.remote(), timeout=seconds)
    return report


def answer_of(name: str, number: int, actor: Any, wait: Wait) -> ShardReport:
    """Asks an actor for its report until it answers.

    Raises DeadlineExceeded, and FleetFailed if the actor is gone for good.
    """
    why = _SILENT
    while True:
        try:
            seconds = min(ASK_S, max(wait.left_s, _PAUSE_S))
            report: ShardReport = ask(wait, partial(_report, actor, seconds), own_s=seconds)
            return report
        except ActorDiedError as error:
            raise FleetFailed(name, number, reason(error)) from None
        except TableClosed:  # a stop() has closed the shard, and not yet killed its actor
            raise FleetFailed(name, number, _GONE) from None
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
        asked = ask(wait, partial(_asked_reports, left))
        for answer in done_of(list(asked), min(ASK_S, max(wait.left_s, _PAUSE_S)), wait):
            number = asked[answer]
            try:
                reports.append(ask(wait, partial(ray.get, answer, timeout=ASK_S)))
            except ActorDiedError as error:
                reports.append(ShardReport(number, str(FleetFailed(name, number, reason(error)))))
            except TableClosed:
                reports.append(ShardReport(number, str(FleetFailed(name, number, _GONE))))
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


def _asked_reports(actors: Mapping[int, Any]) -> dict[Any, int]:
    return {actor.report.remote(): number for number, actor in actors.items()}


# ---- calls -----------------------------------------------------------------------------------------------------------


@explained("start()")
def start(config: FleetConfig, timeout_s: float = START_S, address: str | None = None) -> list[ShardReport]:
    """Starts a fleet that continues after this process ends.

    All live nodes are asked for memory that an earlier fleet of the name left. A shard whose memory is found runs on
    that node, and takes the memory over. The shard refuses memory with another number, spec or index. After an error,
    also after Ctrl-C, the call removes the parts of the new fleet, and memory that these parts made. No part is left if
    the nodes and the head of the cluster answer.

    Args:
        config: the fleet's configuration.
        timeout_s: timeout in seconds. Default 120: the first worker of a node takes seconds, on a busy node many.
        address: address of the Ray cluster. None: the cluster that this process is in, or the one on this host.

    Returns:
        One report a shard, by number.

    Raises:
        DeadlineExceeded: the cluster has too few nodes, or they are too slow; also if one node does not say whether it
            has memory of the fleet, or has no room for the shard whose memory it has.
        MemoryTwice: several machines have memory of one shard.
        FleetExists: a fleet of this name already runs, or waits for nodes.
        FleetFailed: the actor of a shard ended for good, or stop() ended the fleet meanwhile, or the memory of two
            shards lies on one node.
        InvalidConfig: config is not a FleetConfig, no Ray cluster was found, or this process has joined another cluster
            than the one at address.
        ClusterFailed: Ray refused a call.

    Blocks:
        Until all shards answer, at most timeout_s. After an error, up to 15 s more for the removal.
    """
    if not isinstance(config, FleetConfig):
        raise InvalidConfig("config of a fleet", "a FleetConfig", config)
    wait = Wait(timeout(timeout_s))
    join(address, wait)
    _check_free(config.name, wait)
    pins = nodes_of_kept(config.name, config.num_shards, wait)
    group = _reserved(config, pins, wait)
    actors: dict[int, Any] = {}
    try:
        while not _is_placed(group, wait):
            if wait.is_over:
                nodes = sum(node["Alive"] for node in ask(wait, ray.nodes))
                raise wait.exceeded(_needed(config, pins), f"{nodes} nodes")
        for number in range(config.num_shards):
            actors[number] = ask(wait, partial(_made, config, number, group), partial(ray.kill, no_restart=True))
        return [answer_of(config.name, number, actor, wait) for number, actor in actors.items()]
    except BaseException as error:
        if _is_undone(config.name, actors, group) and isinstance(error, Exception):
            raise FleetFailed(config.name, 0, _STOPPED) from error
        raise


def _is_placed(group: Any, wait: Wait) -> bool:
    """Whether the group gets its nodes within two seconds."""
    seconds = min(ASK_S, max(wait.left_s, _PAUSE_S))
    return bool(ask(wait, partial(group.wait, seconds), own_s=seconds))


def _check_free(name: str, wait: Wait) -> None:
    """Raises FleetExists if a fleet of this name has a group, or an actor."""
    if _actors(name, wait) or _group(name, wait) is not None:
        raise FleetExists(name)


def _needed(config: FleetConfig, pins: Mapping[int, Node]) -> str:
    """The nodes that start() waits for, in words."""
    needed = f"{config.num_shards} nodes with {config.bundle} free each"
    named = [f"{node.address} for shard {number}" for number, node in sorted(pins.items())]
    return f"{needed}: {', '.join(named)}, where the memory of these shards lies" if named else needed


def _reserved(config: FleetConfig, pins: Mapping[int, Node], wait: Wait) -> Any:
    """The placement group of a new fleet, with these shards on these nodes. Raises FleetExists."""
    _check_free(config.name, wait)
    bundles = [dict(config.bundle) for _ in range(config.num_shards)]
    for number, node in pins.items():
        if node.resource:
            bundles[number][node.resource] = _PIN
    make = partial(placement_group, bundles, "STRICT_SPREAD", name=f"relive/{config.name}", lifetime="detached")
    try:
        return ask(wait, make, remove_placement_group)
    except RayError:
        if _group(config.name, wait) is not None:  # another start() came first, a moment ago
            raise FleetExists(config.name) from None
        raise


def _is_undone(name: str, actors: Mapping[int, Any], group: Any) -> bool:
    """Removes what a start() made. Returns whether another call had already removed the group."""
    wait, is_gone = Wait(_UNDO_S), False
    with suppress(ReliveError, RayError):  # the caller raises the error of the start
        is_gone = not _stands(group, wait)
        _end(name, actors, None if is_gone else group, "new", wait)
    return is_gone


def _made(config: FleetConfig, number: int, group: Any) -> Any:
    """Makes an actor. Raises FleetExists if there is one: another namespace may have a group of the same name."""
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
    try:
        return made.remote(number, config.num_shards, config.shard(number), config.port, config.door)
    except ValueError:
        if number in _named(config.name):
            raise FleetExists(config.name) from None
        raise


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
        DeadlineExceeded: a shard, or the head of the cluster, did not answer in time.
        FleetFailed: the actor of a shard has ended for good.
        ReliveError: also every error that relive.fleet.attach raises.

    Blocks:
        At most timeout_s, or 30 s if timeout_s is None. The wait includes shards that Ray is restarting.
    """
    wait = Wait(_CONNECT_S if timeout_s is None else timeout(timeout_s))
    join(address, wait)
    actors = _actors(name, wait)
    if not actors:
        raise NoSuchFleet(name) if _group(name, wait) is None else FleetFailed(name, 0, _WAITS)
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
        DeadlineExceeded: the head of the cluster did not answer in time.
    """
    wait = Wait(timeout(timeout_s))
    join(address, wait)
    reports = _reports(name, _actors(name, wait), wait)
    if not reports:
        group = _group(name, wait)
        if group is None:
            raise NoSuchFleet(name)
        told = ask(wait, partial(placement_group_table, group))
        if told.get("state") in _REMOVED:
            raise NoSuchFleet(name)
        return [ShardReport(number, str(FleetFailed(name, number, _WAITS))) for number in range(len(told["bundles"]))]
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
        FleetLeft: a shard still has an owner, or memory that was to be removed; also a shard whose node is out of Ray,
            because the machine may live on with the memory.
        DeadlineExceeded: the head of the cluster did not answer in time.

    Blocks:
        At most timeout_s.
    """
    wait = Wait(timeout(timeout_s))
    join(address, wait)
    actors = _actors(name, wait)
    group = _group(name, wait)
    if not actors and group is None:
        raise NoSuchFleet(name)
    left = _end(name, actors, group, "none" if keeps_memory else "all", wait)
    if left:
        raise FleetLeft(name, left, wait.waited_s)


def _end(name: str, actors: Mapping[int, Any], group: Any, removes: Removes, wait: Wait) -> list[int]:
    """Ends the actors, and waits until Ray has forgotten them. Returns the shards of which something is left."""
    placed = ask(wait, partial(placement_group_table, group)) if group is not None else {}
    _kill(actors, removes, wait)
    is_undone = removes == "new" and not actors  # then nothing was placed, and actors of this name are of another start
    left: list[int] = []
    if group is not None:
        left = [] if is_undone else _not_ended(name, group, removes, placed, wait)
        ask(wait, partial(remove_placement_group, group))
    named: dict[int, Any] = {}
    while not is_undone and not _is_followed(name, group, wait):
        named = _actors(name, wait)
        if not named or wait.is_over:
            break
        if removes != "new":  # a start() may have made them meanwhile, and Ray does not end them with their group
            _kill(named, removes, wait)
        wait.pause()
    return left if is_undone else sorted({*left, *named})


def _kill(actors: Mapping[int, Any], removes: Removes, wait: Wait) -> None:
    """Asks actors to end, and kills them after that."""
    asked = ask(wait, lambda: [actor.close.remote(removes) for actor in actors.values()]) if actors else []
    if asked:
        done_of(asked, max(_PAUSE_S, min(_CLOSE_S, wait.left_s)), wait)
        ask(wait, lambda: [ray.kill(actor, no_restart=True) for actor in actors.values()])


def _lost(told: Mapping[str, Any]) -> list[int]:
    """Shards whose node is out of Ray, by the table of their group.

    A bundle without a node has no memory if the group was never placed. Otherwise nothing can be removed on that node.
    """
    nodes = told.get("bundles_to_node_id", {}) if told.get("state") == "RESCHEDULING" else {}  # it was placed once
    return [int(bundle) for bundle, node in nodes.items() if not node]


def _not_ended(name: str, group: Any, removes: Removes, placed: Mapping[str, Any], wait: Wait) -> list[int]:
    """Ends all shards on their nodes, whatever their actors do. Returns the shards for which this failed.

    placed is the table of the group at an earlier look. It counts if another stop() has removed the group since then:
    that one may keep the memory. The tasks therefore need no group. None of them outlives this call or runs beside a
    new fleet of the name, whose shards it would end. A start() that failed may have met the shard of another cluster.
    It kills no process, and waits shortly.
    """
    told = ask(wait, partial(placement_group_table, group))
    if told.get("state") in _REMOVED:
        told = placed
    is_undo = removes == "new"
    how = (removes == "all", min(wait.left_s, _CLOSE_S if is_undo else FOREVER_S), None if is_undo else _ACTOR)

    tasks = {
        int(bundle): Task(node, end_here, (f"{name}-{bundle}", *how))
        for bundle, node in told.get("bundles_to_node_id", {}).items()
        if node
    }
    if _is_followed(name, group, wait):
        return []
    answers = run(tasks, wait, partial(_is_followed, name, group, wait))
    ended = {number for number, answer in answers.items() if answer is True}
    lost = _lost(told) if removes == "all" else []
    return sorted({*lost, *(set(tasks) - ended)})


def _group(name: str, wait: Wait) -> Any:
    """The placement group of a fleet, or None. Raises DeadlineExceeded.

    Ray makes a group in the namespace of the process that starts the fleet. That process may have joined the cluster by
    itself. get_placement_group looks into the namespace of the caller alone.
    """
    for one in ask(wait, placement_group_table).values():
        if one["name"] == f"relive/{name}" and one["state"] != "REMOVED":
            return PlacementGroup(ray.PlacementGroupID(bytes.fromhex(one["placement_group_id"])))
    return None


def _is_followed(name: str, group: Any, wait: Wait) -> bool:
    """Whether a new fleet of the name has come: another stop() has ended the one of this group, or of no group."""
    newest = _group(name, wait)
    return newest is not None and (group is None or newest.id != group.id)


def _stands(group: Any, wait: Wait) -> bool:
    """Whether no call has removed the group. Raises DeadlineExceeded."""
    return ask(wait, partial(placement_group_table, group)).get("state") not in _REMOVED
