"""The actors of a run on the nodes of a Ray cluster. Needs the extra `ray`.

Ray carries placement, restarts and deaths, and neither steps nor parameters: each actor reaches the run through the
service, as `relive act` does.

Protocol:

  R1  The actors of a run have one placement group. With cluster.actors_per_node, each bundle is the share of a node and
      no two bundles are on one node (STRICT_SPREAD). Else each actor has a bundle of its own, and Ray spreads them.
  R2  Actors and group belong to the process that calls `train`. If that process dies, by whatever signal, Ray ends
      them. The next session makes its own.
  R3  An actor is asked whether it is up (`ready`), and then to act. Ray restarts an actor that dies, in its bundle. The
      question fails until the actor is up again, and is asked again with each look.
  R4  Each failed call to act is a death. The third one in a row without a step that the run heard of ends the run. An
      error of the environment ends the run at once.
  R5  The actors of a node fetch each version of the parameters once together (node_parameters.py).
  R6  An actor that lost its node waits for another node that has room for its bundle. The run goes on without it.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, final
from urllib.parse import urlsplit

import numpy as np

from relive.errors import MissingPackage, ReliveError
from relive.errors.extras import install_command
from relive.fleet.draws.pace import Wait
from relive.fleet.on_ray.cluster import explained, join, reason
from relive.train.acting.ray_shards import RunShards, access_of
from relive.train.acting.remote_actor import ActOptions, act
from relive.train.acting.serving import ServedRun
from relive.train.child import END_S, Deaths
from relive.train.config import TrainConfig
from relive.train.errors import ActorsKeepDying, EnvironmentRaised
from relive.train.parts import Part
from relive.train.sections import ClusterConfig
from relive.train.signals import in_a_hurry, uninterrupted

if importlib.util.find_spec("ray") is None:
    raise MissingPackage("--cluster ray", "ray", install_command("ray"))

import ray  # noqa: E402  (after the check above, whose error names the extra)
from ray.exceptions import ActorDiedError, RayActorError, RayError  # noqa: E402
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group  # noqa: E402
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy  # noqa: E402

__all__ = ["RayActors", "placed", "serving_address"]

_JOIN_S = 30.0
_PLACED_S = 120.0  # for nodes that are just being added
_LEAVE_S = 1.0  # for actors that have heard that the run has ended
_PAUSE_S = 0.05
_LEAST_CPUS = 0.001  # a bundle must not be empty
_ANY_HOST = ("0.0.0.0", "::")
_SEEDS = 2**22  # the first number of the key from which an actor gets its seed
_Bundles: TypeAlias = "list[dict[str, float]]"


def serving_address(config: TrainConfig) -> str:
    """Joins the cluster, and returns the address at which the run is served: by default a free port of this node.

    Raises:
        InvalidConfig: No cluster was found.

    Blocks:
        At most 30 s.
    """
    with explained("train()"):
        join(config.cluster.address, Wait(_JOIN_S))
    scheme = "grpc" if config.serving.tls_cert is None else "grpc+tls"
    return config.serving.address or f"{scheme}://{_node_host()}:0"


def _node_host() -> str:
    here = str(ray.util.get_node_ip_address())
    return f"[{here}]" if ":" in here else here


def _reachable(address: str) -> str:
    """Returns the address for actors of other nodes: that of this node if the server listens at all of them."""
    parts = urlsplit(address)
    if parts.hostname not in _ANY_HOST:
        return address
    return parts._replace(netloc=f"{_node_host()}:{parts.port}").geturl()


def placed(num_actors: int, cluster: ClusterConfig) -> tuple[_Bundles, str, list[int]]:
    """Returns the bundles, Ray's strategy for them, and the bundle of each actor (rule R1)."""
    if cluster.actors_per_node is None:
        return [{"CPU": max(cluster.cpus_per_actor, _LEAST_CPUS)}] * num_actors, "SPREAD", list(range(num_actors))
    num_nodes = -(-num_actors // cluster.actors_per_node)
    bundle_of = [actor % num_nodes for actor in range(num_actors)]
    sizes = np.bincount(bundle_of).tolist()
    bundles = [{"CPU": max(size * cluster.cpus_per_actor, _LEAST_CPUS)} for size in sizes]
    return bundles, "STRICT_SPREAD", bundle_of


# ---- in the process of an actor --------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class _Failure:
    """The reason why an actor ended before the run.

    Attributes:
        reason: The error, in a line.
        step: Step in which the environment raised an error; None: it raised none.
        traceback: The traceback of that error.
    """

    reason: str
    step: int | None = None
    traceback: str = ""


@final
class _Actor:
    """Acts for a run in a process of Ray. Ray makes it again, with the same arguments, if its process dies."""

    def __init__(self, address: str, options: ActOptions) -> None:
        self._address, self._options = address, options

    def ready(self) -> tuple[str, int]:
        """Returns the address of its node, and its process id."""
        return str(ray.util.get_node_ip_address()), os.getpid()

    def act(self, seed: int) -> _Failure | None:
        """Acts until the run has ended. Returns the failure if it ended before."""
        # Two nodes of a test are one machine: the name is that of Ray's node.
        node = ray.get_runtime_context().get_node_id()
        shared = f"{self._options.shared} {node}"
        try:
            acted = act(self._address, replace(self._options, seed=seed, shared=shared, node=node))
        except EnvironmentRaised as problem:
            return _Failure(str(problem), problem.step, problem.traceback)
        except ReliveError as problem:
            return _Failure(f"{type(problem).__name__}: {problem}")
        return None if acted.finished else _Failure("a signal stopped it")


# ---- in the process that calls `train` -------------------------------------------------------------------------------


@final
class _Hired:
    """An actor as the run sees it: Ray's handle, and the answer that it owes. See rules R3 and R4."""

    def __init__(self, number: int, name: str) -> None:
        self.number, self.name = number, name
        self.handle: Any = None
        self.owed: Any = None
        self.where: tuple[str, int] | None = None  # its node and process, once it was up
        self.acts = False  # whether `owed` is the answer of act()
        self.num_starts = 0
        self.steps_at_start = 0
        self.deaths = Deaths()

    def ask(self) -> None:
        """Asks whether it is up."""
        self.acts, self.owed = False, self.handle.ready.remote()


@final
class RayActors(Part):
    """The actors of a run that are actors of Ray. See Part, and the protocol at the top of the file."""

    def __init__(self, config: TrainConfig, served: ServedRun, shards: RunShards | None = None) -> None:
        """Makes the part; it starts none.

        Args:
            config: Options of the run.
            served: The server of the run, in a process that has joined the cluster.
            shards: The shards of the table, which the part watches; None: the run has one table.

        Raises:
            InvalidConfig: No cluster was found.
        """
        self._config, self._served, self._shards = config, served, shards
        with explained("train()"):
            join(config.cluster.address, Wait(_JOIN_S))
        self._name = f"relive-train/{os.getpid()}-{secrets.token_hex(8)}"  # of the placement group
        self._group: Any = None
        self._placing = Wait(_PLACED_S)
        self._is_placed = False
        self._num_deaths = 0
        self._hired = [_Hired(number, f"actor-{number}") for number in range(config.num_actors)]
        for one in self._hired:
            served.follow(one.name)

    @property
    def num_restarts(self) -> int:
        """Times that actors were started again."""
        return self._num_deaths

    @property
    def processes(self) -> list[tuple[str, int]]:
        """The node and the process id of each actor that acts."""
        return [one.where for one in self._hired if one.acts and one.where is not None]

    def start(self) -> None:
        """Asks Ray for all actors, and does not wait for them.

        Raises ClusterFailed.
        """
        bundles, strategy, self._bundle_of = placed(len(self._hired), self._config.cluster)
        self._placing = Wait(_PLACED_S)
        with explained("train()"):
            self._group = placement_group(bundles, strategy, name=self._name)
            for one in self._hired:
                self._make(one)

    def _make(self, one: _Hired) -> None:
        cluster = self._config.cluster
        where = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=self._bundle_of[one.number])
        made = ray.remote(_Actor).options(
            num_cpus=cluster.cpus_per_actor,
            max_restarts=-1,
            max_task_retries=0,  # a death is counted before the actor acts again
            scheduling_strategy=where,
        )
        options = ActOptions(access=access_of(cluster), name=one.name, shared=self._name)
        one.handle = made.remote(_reachable(self._served.address), options)
        one.ask()

    def watch(self) -> None:
        """Has actors act that are up, and counts deaths. Call it often.

        Raises:
            DeadlineExceeded: The nodes had no room for the actors for two minutes after the start.
            EnvironmentRaised: The environment of an actor raised an error.
            ActorsKeepDying: An actor failed three times in a row before its first step.
            ClusterFailed: Ray could not do a call.
            NoLiveShard: All shards of the table are lost.
        """
        with explained("train()"):
            if self._shards is not None:
                self._shards.watch()
            owing = {one.owed: one for one in self._hired if one.owed is not None}
            for answer in ray.wait(list(owing), num_returns=len(owing), timeout=0)[0] if owing else []:
                self._heard(owing[answer])
            if not self._is_placed and self._placing.is_over:
                self._check_placed()

    def _heard(self, one: _Hired) -> None:
        """Takes the answer that an actor owed."""
        try:
            answer = ray.get(one.owed)
        except ActorDiedError as problem:  # Ray does not restart it
            self._count(one, _Failure(reason(problem)))
            self._make(one)
        except RayActorError as problem:  # its process died, or Ray is starting it
            if one.acts:
                self._count(one, _Failure(reason(problem)))
            one.ask()
        else:
            self._is_placed = True
            if one.acts and answer is None:
                one.owed = None  # it has heard that the run has ended
                return
            if one.acts:
                self._count(one, answer)
            else:
                one.where = answer
            seed = np.random.SeedSequence(
                self._config.environment.seed, spawn_key=(_SEEDS, one.number, one.num_starts)
            ).generate_state(1)[0]
            one.num_starts += 1
            one.acts, one.owed = True, one.handle.act.remote(int(seed % 2**31))

    def _count(self, one: _Hired, failure: _Failure) -> None:
        """Counts a death (rule R4)."""
        if failure.step is not None:
            raise EnvironmentRaised(one.number, failure.step, failure.traceback)
        self._num_deaths += 1
        num_steps = self._served.steps_of(one.name)
        if num_steps == one.steps_at_start:
            one.deaths.count(lambda number: ActorsKeepDying(one.number, number, None, failure.reason))
        else:
            one.deaths.forget()
        one.steps_at_start = num_steps

    def _check_placed(self) -> None:
        """Raises DeadlineExceeded if Ray has no room for the actors."""
        self._is_placed = self._group.wait(_PAUSE_S)
        if not self._is_placed:
            bundles = placed(len(self._hired), self._config.cluster)[0]
            each = "a node of its own" if self._config.cluster.actors_per_node is not None else "any node"
            room = f"room for {len(bundles)} bundles of {bundles[0]}, each on {each}"
            nodes = [node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]]
            has = f"{len(nodes)} nodes with {', '.join(f'{cpus:g}' for cpus in nodes)} CPUs"
            raise self._placing.exceeded(room, has)

    def stop(self) -> None:
        """Ends all actors, and removes their placement group. No process of the part is left."""
        if self._group is None:
            return
        group, self._group = self._group, None
        with uninterrupted():
            owed = [one.owed for one in self._hired if one.acts and one.owed is not None]
            with suppress(RayError):
                if owed and not in_a_hurry():
                    ray.wait(owed, num_returns=len(owed), timeout=_LEAVE_S)
            for one in self._hired:
                with suppress(RayError):  # an error of one actor must keep neither the others nor the group
                    if one.handle is not None:
                        ray.kill(one.handle, no_restart=True)
            with suppress(RayError):
                remove_placement_group(group)
                _wait_until_removed(group)


def _wait_until_removed(group: Any) -> None:
    ends_s = time.monotonic() + END_S
    while placement_group_table(group).get("state") != "REMOVED" and not in_a_hurry():
        if time.monotonic() > ends_s:
            return
        time.sleep(_PAUSE_S)
