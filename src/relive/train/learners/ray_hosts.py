"""Starts the other hosts of a run on nodes of a Ray cluster, as torchrun would. Needs the extra `ray`.

Ray places the hosts, and ends them with the process that calls `train`. It carries neither steps nor gradients.

Protocol:

  N1  The process that calls `train` is the first host. The hosts have one placement group, with one bundle on its node
      and one bundle on each of as many other nodes.
  N2  Each other host is an actor of Ray. It calls `train` with the same options, with the number of the host and the
      address at which the hosts meet in its environment, as torchrun gives them. From there on the rules of meeting.py
      and host_group.py hold.
  N3  A host that ends before the hosts have met ends the run: the first host looks for such a host while it waits.
  N4  After its own part the first host waits for the others, which end after the same update: as long as a last save
      may take (rule C5 of watching/saves.py). It then ends the actors and removes the group. A line names each host
      that is ended in its last save. If the first host dies, by whatever signal, Ray ends the actors. Hosts that have
      not met have nothing to save: the first host ends them at once.
  N5  If another host fails or is ended in its last save, `train` raises HostGone on the first host. An error of the
      first host's own part, and a second signal, come first.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch.distributed as dist

from relive.errors import MissingPackage, ReliveError
from relive.errors.extras import install_command
from relive.fleet.draws.pace import Wait
from relive.fleet.on_ray.cluster import explained, join, reason
from relive.train.config import TrainConfig
from relive.train.errors import HostGone
from relive.train.learners.meeting import check_place
from relive.train.signals import in_a_hurry, uninterrupted
from relive.train.watching.saves import LAST_SAVE_S

if importlib.util.find_spec("ray") is None:
    raise MissingPackage("--cluster ray", "ray", install_command("ray"))

import ray  # noqa: E402  (after the check above, whose error names the extra)
from ray.exceptions import RayError  # noqa: E402
from ray.util.placement_group import placement_group, remove_placement_group  # noqa: E402
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy  # noqa: E402

__all__ = ["OtherHosts", "with_other_hosts"]

_JOIN_S = 30.0
_PLACED_S = 120.0  # for nodes that are just being added
_LEAVE_S = LAST_SAVE_S + 60.0  # for the last saves of the other hosts, and the end of their processes
_SILENT_S = 2.0  # of the wait for them before the line about it
_PAUSE_S = 0.1
_LOOK_S = 1.0  # between two looks at the other hosts
_PINNED = 0.001  # of the resource that only one node has


@final
@dataclass(frozen=True)
class _Place:
    """The number of a host, and the address at which the hosts meet."""

    number: int
    count: int
    address: str
    port: int

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """Sets the variables that torchrun sets; at the end they are as before."""
        told = {"RANK": self.number, "WORLD_SIZE": self.count, "MASTER_ADDR": self.address, "MASTER_PORT": self.port}
        before = {name: os.environ.get(name) for name in told}
        os.environ.update({name: str(value) for name, value in told.items()})
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value


@final
class _Host:
    """A host in a process of Ray."""

    def run(self, place: _Place, config: TrainConfig, run_dir: Path, resume: bool, moving_aside: bool) -> str | None:
        """Runs until the run ends. Returns the error that ended it, in a line; None: there was none."""
        # Loaded here: that module starts this one.
        train = importlib.import_module("relive.train.run").train
        with place.told():
            try:
                train(config, run_dir, resume=resume, moving_aside=moving_aside)
            except (ReliveError, OSError) as problem:
                return f"{type(problem).__name__}: {problem}"
        return None


@final
class OtherHosts:
    """The other hosts, as the first one sees them. One thread uses it.

    Attributes:
        failure: The first error of another host, in a line; None: there was none.
        have_met: Whether the hosts of the run have met.
    """

    def __init__(self, group: Any, hosts: dict[Any, int], handles: list[Any]) -> None:
        self._group, self._handles = group, handles
        self._owing = hosts  # {answer that a host owes: number of the host}
        self._began_s = self._looked_s = time.monotonic()
        self.failure: str | None = None
        self.have_met = False

    def failed(self) -> bool:
        """Whether a host has ended by an error: rule N3. Looks once a second."""
        now_s = time.monotonic()
        if self.failure is None and now_s - self._looked_s >= _LOOK_S:
            self._looked_s = now_s
            self._hear(0.0)
        return self.failure is not None

    def lost(self) -> HostGone:
        """Returns the error for a host that has failed."""
        return HostGone(0, time.monotonic() - self._began_s, self.failure or "a host ended")

    def _hear(self, timeout_s: float) -> None:
        """Takes the answers that come within the time. The first error stays."""
        for answer in ray.wait(list(self._owing), num_returns=1, timeout=timeout_s)[0] if self._owing else []:
            number = self._owing.pop(answer)
            try:
                problem = ray.get(answer)
            except RayError as error:
                problem = reason(error)
            if problem is not None and self.failure is None:
                self.failure = f"host {number}: {problem}"

    def stop(self, say: Callable[[str], None]) -> None:
        """Waits for the other hosts, which end by themselves, and ends those that do not: rule N4.

        Args:
            say: Gets lines for people.
        """
        with uninterrupted():
            self._began_s = time.monotonic()
            if self.have_met:
                with suppress(RayError):
                    self._wait(say)
            for number in sorted(self._owing.values()) if self.have_met else ():
                cut = f"host {number} was ended after {time.monotonic() - self._began_s:.0f} s, in its last save"
                _tell(say, f"{cut}: --resume goes on from the newest save that all hosts have")
                if self.failure is None and not in_a_hurry():
                    self.failure = f"host {number}: it did not end by itself"
            for one in self._handles:
                with suppress(RayError):  # an error of one host must keep neither the others nor the group
                    ray.kill(one, no_restart=True)
            with suppress(RayError):
                remove_placement_group(self._group)

    def _wait(self, say: Callable[[str], None]) -> None:
        """Waits until all other hosts have answered, the time is over, or a second signal comes."""
        is_said = False
        while self._owing and not in_a_hurry():
            waited_s = time.monotonic() - self._began_s
            if waited_s >= _LEAVE_S:
                return
            if waited_s >= _SILENT_S and not is_said:
                is_said = True
                numbers = ", ".join(map(str, sorted(self._owing.values())))
                _tell(say, f"waiting for the last save of other hosts ({numbers}): at most {_LEAVE_S:.0f} s")
            self._hear(_PAUSE_S)


def _tell(say: Callable[[str], None], line: str) -> None:
    with suppress(OSError, ValueError):  # the output may be gone
        say(line)


@contextlib.contextmanager
def with_other_hosts(
    config: TrainConfig,
    run_dir: Path,
    resume: bool,
    moving_aside: bool,
    stopping: Callable[[], bool],
    say: Callable[[str], None],
) -> Iterator[OtherHosts]:
    """Starts the other hosts of the run, and makes this process the first one until the end of the block.

    Args:
        config: Options of the run.
        run_dir: Directory of the first host; host k uses run_dir-hostk on its node.
        resume: Whether the run goes on.
        moving_aside: Whether an earlier run in the directory is moved aside.
        stopping: Whether a signal asked the run to end.
        say: Gets lines for people.

    Raises:
        InvalidConfig: No cluster was found, or torch still waits for hosts of an earlier run in this process.
        DeadlineExceeded: The cluster had no room for the hosts for two minutes.
        ClusterFailed: Ray could not do a call.
        KeyboardInterrupt: A signal asked the run to end while it waited for the nodes.
        HostGone: The block ended well, and another host did not: rule N5.
    """
    check_place("a free port, for another run on the Ray cluster")  # before a host is started
    with explained("train()"):
        join(config.cluster.address, Wait(_JOIN_S))
        group = _placed(config, stopping)
    try:
        with explained("train()"):
            place, others = _started(group, config, run_dir, resume, moving_aside)
    except BaseException:
        with suppress(RayError):
            remove_placement_group(group)
        raise
    say(f"{place.count} hosts on nodes of the Ray cluster meet at {place.address}:{place.port}")
    try:
        with place.told():
            yield others
    finally:
        others.stop(say)
        if dist.is_initialized():  # of the hosts of this run, which have ended
            with suppress(RuntimeError, ValueError, AssertionError):
                dist.destroy_process_group()
        if others.failure is not None:
            _tell(say, others.failure)
    if others.failure is not None:
        raise others.lost()


def _placed(config: TrainConfig, stopping: Callable[[], bool]) -> Any:
    """Returns the placement group of all hosts: rule N1. Bundle k is that of host k."""
    here = str(ray.util.get_node_ip_address())
    cpus = config.num_actors * config.cluster.cpus_per_actor + max(1, config.threads)
    count, bundle = config.topology.num_hosts, {"CPU": cpus}
    first = {f"node:{here}": _PINNED}  # the learner and the actors of this host are no processes of Ray
    wait = Wait(_PLACED_S)
    name = f"relive-train/{os.getpid()}-{secrets.token_hex(8)}"
    group = placement_group([first, *[bundle] * (count - 1)], "STRICT_SPREAD", name=name)
    try:
        while not group.wait(_PAUSE_S):
            if stopping():
                raise KeyboardInterrupt
            if wait.is_over:
                nodes = [node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]]
                has = f"{len(nodes)} nodes with {', '.join(f'{each:g}' for each in nodes)} CPUs"
                raise wait.exceeded(f"{count - 1} nodes besides this one with {bundle} free each", has)
    except BaseException:
        with suppress(RayError):
            remove_placement_group(group)
        raise
    return group


def _started(
    group: Any, config: TrainConfig, run_dir: Path, resume: bool, moving_aside: bool
) -> tuple[_Place, OtherHosts]:
    """Starts the other hosts: rule N2. Returns the place of the first one, and the others."""
    here, count = str(ray.util.get_node_ip_address()), config.topology.num_hosts
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    owing, handles = {}, []
    for number in range(1, count):
        where = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number)
        cpus = config.num_actors * config.cluster.cpus_per_actor + max(1, config.threads)
        made = ray.remote(_Host).options(num_cpus=cpus, max_restarts=0, scheduling_strategy=where)
        handles.append(made.remote())
        place = _Place(number, count, here, port)
        owing[handles[-1].run.remote(place, config, run_dir, resume, moving_aside)] = number
    return _Place(0, count, here, port), OtherHosts(group, owing, handles)
