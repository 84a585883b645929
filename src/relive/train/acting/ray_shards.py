"""The table of a run as shards on the nodes of a Ray cluster. Needs the extra `ray`.

Each shard is an actor of Ray that owns a region of shared memory and serves it (relive.fleet). The learner draws from
all shards, and each actor of the run writes to one of them (shard_rows.py).

Protocol:

  T1  A shard belongs to one node (NodeAffinity, hard). If its actor dies, Ray starts it there again, and it takes over
      the region. If the node is lost, the shard is lost for good: another node would begin with an empty region, which
      no open handle reads.
  T2  The shards end with the run. They are detached, so that Ray does not kill them before they have removed their
      memory. Each looks whether the run's *leash* is there: a placement group of one byte that Ray removes when the
      process that calls `train` ends, by whatever signal. A shard without a leash removes its memory and ends.
  T3  If Ray ends on a node and the machine goes on, the memory of its shard stays. The end of the run removes it from
      the nodes that are there. The next session (--resume) does that for a learner that was killed.
  T4  The run publishes which shards are lost for good, and what these had counted. A shard also counts as lost if its
      region or its address is another one after a restart. The run ends if all are lost.
"""

from __future__ import annotations

import glob
import importlib.util
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, final

from relive.config.storage import LocalMemory, SharedMemory
from relive.config.table_config import TableConfig
from relive.core.closing import Closing
from relive.errors import DeadlineExceeded, InUse, MissingPackage, NoSuchTable, ReliveError
from relive.errors.extras import install_command
from relive.fleet import ShardedTable
from relive.fleet.draws.pace import Wait
from relive.fleet.errors import NoLiveShard
from relive.fleet.on_ray.cluster import NAMESPACE, explained, join
from relive.fleet.on_ray.shard import ShardActor, end_here
from relive.fleet.ray import answer_of
from relive.fleet.ray_config import ShardReport
from relive.fleet.shards import SILENCE_S, Shard
from relive.service import Door
from relive.service.wire.access import Access, ClientTLS
from relive.table.open import remove
from relive.table.table import Table
from relive.train.acting.serving import door_of
from relive.train.acting.shard_rows import LostShard, PlacedShard, ShardFacts, opened_shard
from relive.train.config import TrainConfig
from relive.train.run_directory import TABLE_PREFIX
from relive.train.sections import ClusterConfig
from relive.train.signals import in_a_hurry, uninterrupted

if importlib.util.find_spec("ray") is None:
    raise MissingPackage("--shards", "ray", install_command("ray"))

import ray  # noqa: E402  (after the check above, whose error names the extra)
from ray.exceptions import ActorDiedError, ActorUnschedulableError, RayActorError, RayError  # noqa: E402
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group  # noqa: E402
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: E402

__all__ = ["RunShards", "access_of", "chosen_nodes", "remove_left_shards"]

_START_S = 120.0  # for nodes that are just being added, and for the first worker of a busy node
_LOOK_S = 0.5
_ASK_S = 1.0
_CLOSE_S = 10.0  # for shards that remove their memory
_SWEEP_S = 20.0  # for a task on each node, whose start takes seconds
_DETACH_S = 15.0  # for processes of the run that Ray is just killing
_PORTS = (20_000, 12_000)  # the first, and how many: below the ports that systems give to clients, above Ray's
_LEASH = {"memory": 1}  # bytes: a bundle must not be empty


def access_of(cluster: ClusterConfig) -> Access:
    """Returns the certificates and the token with which processes of the cluster reach the run and its shards."""
    tls = None if cluster.ca is None else ClientTLS(cluster.ca)
    return Access(tls, None if cluster.token_file is None else Path(cluster.token_file))


def chosen_nodes(nodes: Sequence[Mapping[str, Any]], number: int) -> list[str]:
    """Returns Ray's names of the nodes for so many shards: those with the most CPUs. Fewer if there are fewer nodes."""
    alive = [node for node in nodes if node["Alive"]]
    best = sorted(alive, key=lambda node: (-node["Resources"].get("CPU", 0.0), node["NodeManagerAddress"]))
    return [str(node["NodeID"]) for node in best[:number]]


def _on(node: str) -> dict[str, Any]:
    """The options of an actor or a task of this node, which reserves nothing."""
    return {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}


# ---- in a process of Ray ---------------------------------------------------------------------------------------------


@final
class _RunShard:
    """Owns one shard of a run on its node. Ray makes it again, with the same arguments, if its process dies."""

    def __init__(
        self, number: int, num_shards: int, config: TableConfig, port: int, door: Door | None, leash: Any
    ) -> None:
        self._shard = ShardActor(number, num_shards, config, port, door)
        assert isinstance(config.storage, SharedMemory)
        self._name, self._leash = config.storage.name, leash
        self._ends = threading.Event()
        threading.Thread(target=self._end_with_the_run, name="relive-leash", daemon=True).start()

    def report(self) -> ShardReport:
        """Reports where the shard is, and how full it is."""
        return self._shard.report()

    def address(self) -> str:
        """Returns the address at which it serves the shard."""
        return self._shard.report().address

    def end(self) -> None:
        """Removes the memory, and ends the process, soon."""
        self._ends.set()

    def _end_with_the_run(self) -> None:
        """The thread: rule T2."""
        while not self._ends.wait(_LOOK_S) and self._has_leash():
            continue
        self._shard.close("all")
        _removed(self._name, Wait(_DETACH_S))
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)

    def _has_leash(self) -> bool:
        try:
            return placement_group_table(self._leash).get("state") not in (None, "REMOVED")
        except Exception:  # the head node does not answer: the run may go on
            return True


def _removed(name: str, wait: Wait) -> bool:
    """Removes the region of this name when no process has it open. Returns whether it is gone."""
    while True:
        try:
            remove(name)
        except NoSuchTable:
            return True
        except InUse:
            if wait.is_over:
                return False
            wait.pause()


def _sweep_here(name: str) -> None:
    """A task of a node: ends the shards of a session that are here, and removes their memory."""
    wait, first = Wait(_DETACH_S), SharedMemory(f"{name}-").path
    for path in glob.glob(f"{glob.escape(first)}*"):
        shard = f"{name}-{path.removeprefix(first)}"
        if end_here(shard, False, wait.left_s, _RunShard.__name__):
            _removed(shard, wait)


# ---- in the process that calls `train` -------------------------------------------------------------------------------


def remove_left_shards(name: str) -> None:
    """Removes the memory that shards of a session left on the nodes of the cluster (rule T3).

    A node that does not answer in time keeps it.

    Args:
        name: The name of the session's shards, which it noted.

    Blocks:
        At most 20 s.
    """
    with suppress(ReliveError), explained("train()"):
        task = ray.remote(_sweep_here)
        nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
        asked = [task.options(max_retries=0, **_on(node)).remote(name) for node in nodes]
        ray.wait(asked, num_returns=len(asked), timeout=_SWEEP_S)


def _go_on_unless(stopping: Callable[[], bool]) -> None:
    if stopping():
        raise KeyboardInterrupt


@final
class _Placed:
    """A shard as the run sees it: Ray's handle, the learner's handle, and the answer that it owes."""

    def __init__(self, number: int, node: str, actor: Any) -> None:
        self.number, self.node, self.actor = number, node, actor
        self.address = ""
        self.shard: Shard | None = None
        self.owed: Any = None
        self.lost: LostShard | None = None


@final
class RunShards(Closing):
    """The shards of one session. Owns their actors, their leash, and the learner's handle. One thread uses it.

    Attributes:
        name: Shard n lies in SharedMemory(f"{name}-{n}") of its node.
        table: The table of the learner, over all shards.
        served_table: An empty table with the same columns, beside which the run serves its parameters.
    """

    table: ShardedTable
    served_table: Table

    def __init__(self, config: TrainConfig, wanted: TableConfig, stopping: Callable[[], bool] = lambda: False) -> None:
        """Starts the shards, and opens all of them.

        Args:
            config: Options of the run.
            wanted: The configuration of each shard. Its storage is ignored.
            stopping: Whether the run is to stop; asked while the shards are waited for.

        Raises:
            DeadlineExceeded: The cluster has too few nodes, or they are too slow.
            FleetFailed: The actor of a shard ended for good.
            ClusterFailed: Ray could not do a call.
            ReliveError: Also the errors of opening a shard.
            KeyboardInterrupt: The run is to stop.

        Blocks:
            At most 120 s.
        """
        self.name = f"{TABLE_PREFIX}{os.getpid()}-{secrets.token_hex(3)}"
        self._config = config
        self._leash: Any = None
        self._placed: list[_Placed] = []
        self._looked_s = 0.0
        with ExitStack() as undo, explained("train()"):
            undo.callback(self._end)
            self._start(config.cluster.shards or 1, wanted, Wait(_START_S), stopping)
            opened = self._open(access_of(config.cluster), undo)
            self.table = ShardedTable(opened)
            self.served_table = Table.from_config(replace(wanted, storage=LocalMemory(), max_lanes=1))
            undo.pop_all()

    def _start(self, number: int, wanted: TableConfig, wait: Wait, stopping: Callable[[], bool]) -> None:
        join(self._config.cluster.address, wait)
        while len(nodes := chosen_nodes(ray.nodes(), number)) < number:
            if wait.is_over:
                raise wait.exceeded(f"{number} nodes for the shards of the table", f"{len(nodes)} nodes")
            _go_on_unless(stopping)
            wait.pause()
        self._leash = placement_group([_LEASH], name=f"relive-train/{self.name}/leash")
        door = door_of(self._config.serving)
        port = _PORTS[0] + secrets.randbelow(_PORTS[1])
        for at, node in enumerate(nodes):
            made = ray.remote(_RunShard).options(
                name=f"{self.name}/{at}",
                namespace=NAMESPACE,
                lifetime="detached",  # it ends by rule T2
                max_restarts=-1,
                max_task_retries=0,
                **_on(node),
            )
            region = replace(wanted, storage=SharedMemory(f"{self.name}-{at}"))
            actor = made.remote(at, number, region, port, door, self._leash)
            self._placed.append(_Placed(at, node, actor))
        for one in self._placed:
            while not one.address:
                _go_on_unless(stopping)
                try:
                    one.address = answer_of(self.name, one.number, one.actor, Wait(min(_ASK_S, wait.left_s))).address
                except DeadlineExceeded:
                    if wait.is_over:
                        raise

    def _open(self, access: Access, undo: ExitStack) -> list[Shard]:
        here = ray.get_runtime_context().get_node_id()
        opened = []
        for one in self._placed:
            one.shard = opened_shard(PlacedShard(one.number, one.node, one.address), here, None, access)
            opened.append(one.shard)
            undo.callback(one.shard.close)
        return opened

    def facts(self) -> dict[str, Any]:
        """Returns the facts that the run publishes for its actors (rule T4)."""
        there = tuple(PlacedShard(one.number, one.node, one.address) for one in self._placed if one.lost is None)
        return ShardFacts(there, tuple(one.lost for one in self._placed if one.lost is not None)).to_about()

    @property
    def lost(self) -> list[int]:
        """The numbers of the shards that are lost for good."""
        return [one.number for one in self._placed if one.lost is not None]

    def watch(self) -> None:
        """Finds shards that are lost for good. Call it often.

        Raises:
            NoLiveShard: All are lost.
        """
        if time.monotonic() - self._looked_s < _LOOK_S:
            return
        self._looked_s = time.monotonic()
        for one in self._placed:
            if one.lost is None and self._is_lost(one):
                assert one.shard is not None
                root = one.shard.ask_root(0, SILENCE_S)()
                one.lost = LostShard(one.number, root.inserted, root.sampled)
        if len(self.lost) == len(self._placed):
            raise NoLiveShard(len(self._placed))

    def _is_lost(self, one: _Placed) -> bool:
        assert one.shard is not None
        if one.shard.state == "replaced":  # its memory went with its owner
            return True
        if one.owed is None:
            one.owed = one.actor.address.remote()
        if not ray.wait([one.owed], timeout=0)[0]:
            return False
        owed, one.owed = one.owed, None
        try:
            return bool(ray.get(owed) != one.address)  # its port was taken while it was started again
        except (ActorDiedError, ActorUnschedulableError):
            return True
        except RayActorError:  # Ray is starting it
            return False

    def close(self) -> None:
        """Closes the learner's handle, and ends all shards with their memory. A second call has no effect."""
        with ExitStack() as stack:
            stack.callback(self._end)
            stack.callback(self.served_table.close)
            stack.callback(self.table.close)

    def _end(self) -> None:
        """Ends the shards: rules T2 and T3."""
        placed, self._placed = self._placed, []
        leash, self._leash = self._leash, None
        if leash is None:
            return
        with uninterrupted(), suppress(RayError):
            for one in placed:
                one.actor.end.remote()
            remove_placement_group(leash)
            left = self._left(placed, Wait(_CLOSE_S))
            for one in left:
                with suppress(RayError):
                    ray.kill(one.actor, no_restart=True)
            if (left or any(one.lost is not None for one in placed)) and not in_a_hurry():
                remove_left_shards(self.name)

    def _left(self, placed: Sequence[_Placed], wait: Wait) -> list[_Placed]:
        """Waits until the shards have ended. Returns those that have not."""
        while True:
            named = {one["name"] for one in ray.util.list_named_actors(all_namespaces=True)}
            left = [one for one in placed if f"{self.name}/{one.number}" in named]
            if not left or wait.is_over or in_a_hurry():
                return left
            wait.pause()
