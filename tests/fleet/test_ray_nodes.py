"""Nodes that are out of Ray, and calls of stop() that meet: memory that stop() leaves. Two nodes that end or hang."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from processes.shm import needs_shared_memory, shared_files

import relive
from relive import errors
from relive.fleet.errors import FleetLeft, NoSuchFleet

pytest.importorskip("ray", reason="ray is not installed here (pip install 'relive[ray]')")
pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (the extra `ray` brings it)")

from ray.exceptions import WorkerCrashedError  # noqa: E402

from fleet.test_ray import UNSHARE, why_not  # noqa: E402
from relive.fleet import ray as fleets  # noqa: E402

TESTS = Path(__file__).parents[1]
A, B, C = "aa" * 28, "bb" * 28, "cc" * 28  # ids of nodes
GROUP = SimpleNamespace(id="0a")


# ---- stop ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A fleet of two shards without actors, and its placement group as Ray tells it. Tasks on its nodes end them."""
    told = SimpleNamespace(state="CREATED", nodes={0: A, 1: B}, removed=[], tasks=[], cancelled=[], new=[])

    def options(scheduling_strategy: Any, **_: Any) -> Any:
        told.tasks.append(scheduling_strategy.node_id)
        return SimpleNamespace(remote=lambda name, *_: name)

    made = SimpleNamespace(options=options)
    for name, fake in (
        ("fleet.ray.join", lambda *_: None),
        ("fleet.ray._named", lambda _: {}),
        ("fleet.ray._group", lambda *_: told.new[0] if told.new else GROUP),
        ("fleet.ray.placement_group_table", lambda _: {"state": told.state, "bundles_to_node_id": told.nodes}),
        ("fleet.ray.remove_placement_group", told.removed.append),
    ):
        monkeypatch.setattr(f"relive.{name}", fake)
    monkeypatch.setattr("ray.remote", lambda _: made)
    monkeypatch.setattr("ray.wait", lambda tasks, **_: (tasks, []))
    monkeypatch.setattr("ray.get", lambda _: True)
    monkeypatch.setattr("ray.cancel", lambda task, force: told.cancelled.append(task))
    return told


def test_memory_on_a_node_that_is_out_of_ray_is_left(group: SimpleNamespace) -> None:
    """The machine may live on, and the next fleet of the name would take the rows over."""
    group.state, group.nodes = "RESCHEDULING", {0: "", 1: B}
    with pytest.raises(FleetLeft, match="relive rm pong-0") as told:
        fleets.stop("pong")
    assert told.value.numbers == (0,) and group.removed == [GROUP]
    fleets.stop("pong", keeps_memory=True)


def test_a_fleet_that_was_never_placed_is_stopped_whole(group: SimpleNamespace) -> None:
    group.state, group.nodes = "PENDING", {0: "", 1: ""}
    fleets.stop("pong")
    assert group.removed == [GROUP]


def remove_before_tasks(monkeypatch: pytest.MonkeyPatch, group: SimpleNamespace) -> None:
    """Another stop() removes the group between the first look of this one and its tasks."""
    monkeypatch.setattr(fleets, "_kill", lambda *_: vars(group).update(state="REMOVED", nodes={}))


@pytest.mark.parametrize("is_left", [False, True])
def test_the_second_of_two_stops_ends_the_shards_itself(
    monkeypatch: pytest.MonkeyPatch, group: SimpleNamespace, is_left: bool
) -> None:
    """The first one may keep the memory."""
    remove_before_tasks(monkeypatch, group)
    monkeypatch.setattr("ray.get", lambda name: not is_left or name != "pong-1")
    with pytest.raises(FleetLeft) if is_left else nullcontext() as told:
        fleets.stop("pong")
    assert group.tasks == [A, B]
    assert told is None or told.value.numbers == (1,)


def test_a_stop_waits_for_its_tasks_in_parts(monkeypatch: pytest.MonkeyPatch, group: SimpleNamespace) -> None:
    waits: list[float] = []

    def wait(tasks: list[str], timeout: float, **_: Any) -> tuple[list[str], list[str]]:
        waits.append(timeout)
        return (tasks, []) if len(waits) == 3 else (tasks[:1], tasks[1:])

    monkeypatch.setattr("ray.wait", wait)
    fleets.stop("pong", timeout_s=1e9)
    assert len(waits) == 3 and max(waits) < 60.0


def test_no_task_outlives_its_stop(monkeypatch: pytest.MonkeyPatch, group: SimpleNamespace) -> None:
    """A task that begins later, as on a node that hung, would end the next fleet of the name."""
    monkeypatch.setattr("ray.wait", lambda tasks, **_: (tasks[:1], tasks[1:]))
    with pytest.raises(FleetLeft) as told:
        fleets.stop("pong", timeout_s=0.1)
    assert told.value.numbers == (1,) and group.cancelled == ["pong-1"]


@pytest.mark.parametrize("when", ["before its tasks", "during its tasks", "after its tasks"])
def test_a_stop_leaves_the_next_fleet_of_the_name_alone(
    monkeypatch: pytest.MonkeyPatch, group: SimpleNamespace, when: str
) -> None:
    """Another stop() has ended the fleet, and a start() has made the next one."""
    killed: list[Any] = []

    def come(*_: Any) -> None:
        group.new = [SimpleNamespace(id="0b")]

    def kill(actors: Any, *_: Any) -> None:
        killed.extend(actors)
        if when == "before its tasks":
            come()

    def wait(tasks: list[str], **_: Any) -> tuple[list[str], list[str]]:
        if when == "during its tasks":
            come()
            return [], tasks
        return tasks, []

    def remove(_: Any) -> None:
        if when == "after its tasks":
            come()

    monkeypatch.setattr(fleets, "_kill", kill)
    monkeypatch.setattr(fleets, "remove_placement_group", remove)
    monkeypatch.setattr("ray.wait", wait)
    monkeypatch.setattr(fleets, "_named", lambda _: {7: "an actor of the next fleet"} if group.new else {})
    with pytest.raises(FleetLeft) if when == "during its tasks" else nullcontext():
        fleets.stop("pong", timeout_s=60.0)
    assert killed == [] and group.cancelled == (["pong-0", "pong-1"] if when == "during its tasks" else [])
    assert group.tasks == ([] if when == "before its tasks" else [A, B])


def test_a_shard_whose_task_fails_is_left(monkeypatch: pytest.MonkeyPatch, group: SimpleNamespace) -> None:
    def fail(_: str) -> None:
        raise WorkerCrashedError

    monkeypatch.setattr("ray.get", fail)
    with pytest.raises(FleetLeft) as told:
        fleets.stop("pong")
    assert told.value.numbers == (0, 1)


def test_the_second_of_two_stops_tells_of_memory_on_a_lost_node(
    monkeypatch: pytest.MonkeyPatch, group: SimpleNamespace
) -> None:
    """Neither of them can remove that memory."""
    group.state, group.nodes = "RESCHEDULING", {0: "", 1: B}
    remove_before_tasks(monkeypatch, group)
    with pytest.raises(FleetLeft) as told:
        fleets.stop("pong")
    assert told.value.numbers == (0,)


def test_a_node_that_joins_again_during_a_stop_is_not_lost(
    monkeypatch: pytest.MonkeyPatch, group: SimpleNamespace
) -> None:
    group.state, group.nodes = "RESCHEDULING", {0: "", 1: B}
    monkeypatch.setattr(fleets, "_kill", lambda *_: vars(group).update(state="CREATED", nodes={0: C, 1: B}))
    fleets.stop("pong")


def test_the_state_of_a_fleet_without_actors_names_both_causes(group: SimpleNamespace) -> None:
    with pytest.raises(errors.ReliveError, match=r"start\(\) waits for nodes.*stop\(\) was ended"):
        fleets.connect("pong")


def test_actors_that_ray_still_knows_at_the_deadline_are_left(
    monkeypatch: pytest.MonkeyPatch, group: SimpleNamespace
) -> None:
    monkeypatch.setattr(fleets, "_named", lambda _: {1: "an actor"})
    monkeypatch.setattr(fleets, "_kill", lambda *_: None)
    with pytest.raises(FleetLeft) as told:
        fleets.stop("pong", timeout_s=0.2)
    assert told.value.numbers == (1,)


def test_the_status_of_a_fleet_that_is_being_stopped(group: SimpleNamespace) -> None:
    """Ray tells no bundles of a group that was removed a moment ago."""
    group.state = "REMOVED"
    with pytest.raises(NoSuchFleet):
        fleets.status("pong")


# ---- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pong#", "pong?", "pong%41"])
def test_a_name_that_no_address_can_have_is_refused(name: str) -> None:
    """The shards are served, and their names end their addresses."""
    spec = relive.StepSpec({"action": relive.ArraySpec((), "int64")})
    with pytest.raises(errors.InvalidConfig, match="name of a fleet"):
        fleets.FleetConfig(name, 1, relive.TableConfig(spec, 1_000))


# ---- two nodes of Ray ------------------------------------------------------------------------------------------------

LOSES_NODES = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
from fleet.on_two_nodes import ADDRESS, HEAD, OTHER, config, error_of, raise_loopback, start_nodes

name, folder = sys.argv[1:]
raise_loopback()
os.environ.update({"RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0", "HOME": folder})
os.environ.pop("RAY_ADDRESS", None)
start_nodes(folder)
os.environ["RAY_ADDRESS"] = ADDRESS
import ray
from relive.fleet import ray as fleets

FRESH = "import sys; from relive.fleet import ray as fleets; fleets.status(sys.argv[1], timeout_s=3.0)"

def raylet(ip):
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        words = place.read_text().split(chr(0))
        if words[0].endswith("/raylet") and f"--node_ip_address={ip}" in words:
            return int(place.parent.name)

def fresh():
    done = subprocess.run([sys.executable, "-c", FRESH, name], capture_output=True, text=True, timeout=300)
    return [done.returncode, done.stderr.strip().splitlines()[-1]]

reports = fleets.start(config(name), 100.0)
lost = {one.node_ip: one.number for one in reports}[OTHER]
os.kill(raylet(OTHER), signal.SIGKILL)
while any(one["Alive"] for one in ray.nodes() if one["NodeManagerAddress"] == OTHER):
    time.sleep(0.1)
told = {"lost": lost, "stop": error_of(lambda: fleets.stop(name))}
told["left"] = [path.name for path in Path("/dev/shm").iterdir() if f"{name}-" in path.name]
head = raylet(HEAD)
os.kill(head, signal.SIGSTOP)
told["hangs"] = fresh()
os.kill(head, signal.SIGCONT)
os.kill(head, signal.SIGKILL)
told["is gone"] = fresh()
sys.stdout.write(chr(10) + json.dumps(told) + chr(10))
sys.stdout.flush()
os._exit(0)
"""


@needs_shared_memory
@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_two_nodes_that_end_or_hang() -> None:
    reason = why_not()
    if reason:
        pytest.skip(f"two Ray nodes need a network namespace of their own, which is not permitted here: {reason}")
    name = f"test-raynodes-{os.getpid()}"
    try:
        with tempfile.TemporaryDirectory(prefix="r", ignore_cleanup_errors=True) as folder:
            command = [*UNSHARE, sys.executable, "-c", LOSES_NODES, name, folder]
            done = subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=TESTS)
        assert done.returncode == 0, done.stderr[-4000:]
        told = json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])
    finally:
        for path in shared_files(name):
            path.unlink()
    lost = f"{name}-{told['lost']}"
    assert told["stop"].startswith("FleetLeft") and f"relive rm {lost}" in told["stop"]
    assert len(told["left"]) == 1 and lost in told["left"][0]
    assert told["hangs"][0] == 1 and "node of this host does not answer" in told["hangs"][1], told
    assert told["is gone"][0] == 1 and "no node of it runs on this host" in told["is gone"][1], told
