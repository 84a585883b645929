"""A fleet starts on the nodes that have memory of an earlier fleet of its name. Stand-ins, and two nodes of Ray."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from processes.shm import needs_shared_memory, shared_files

import relive
from relive import errors
from relive.fleet.errors import FleetFailed, MemoryTwice

pytest.importorskip("ray", reason="ray is not installed here (pip install 'relive[ray]')")
pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (the extra `ray` brings it)")

from ray.exceptions import RayTaskError, WorkerCrashedError  # noqa: E402

from fleet.test_ray import UNSHARE, why_not  # noqa: E402
from relive.fleet import ray as fleets  # noqa: E402
from relive.fleet.draws.pace import Wait  # noqa: E402
from relive.fleet.on_ray.kept import Node, kept_here, nodes_of_kept  # noqa: E402

TESTS = Path(__file__).parents[1]
A, B, C = (Node(letter * 56, f"10.0.0.{number}", f"node:10.0.0.{number}") for number, letter in enumerate("abc", 1))
HERE, THERE = ("boot", 1, 7), ("another boot", 1, 7)


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The nodes that Ray names, whether each is alive, and the answers of their tasks, one after another."""
    told = SimpleNamespace(alive={A: True, B: True, C: True}, answers={A: [{}], B: [{}], C: [{}]}, asked=[])

    def run(tasks: Any, wait: Any) -> dict[Any, Any]:
        told.asked.append(sorted(tasks))
        answers = {node: told.answers[node].pop(0) if told.answers[node] else None for node in tasks}
        return {node: answer for node, answer in answers.items() if answer is not None}

    def named() -> list[Any]:
        own = {"CPU": 4.0, "node:__internal_head__": 1.0}
        return [
            {"NodeID": n.id, "NodeManagerAddress": n.address, "Alive": lives, "Resources": {**own, n.resource: 1.0}}
            for n, lives in told.alive.items()
        ]

    monkeypatch.setattr("relive.fleet.on_ray.kept.run", run)
    monkeypatch.setattr("ray.nodes", named)
    return told


def test_each_shard_goes_to_the_node_that_has_its_memory(nodes: SimpleNamespace) -> None:
    nodes.answers = {A: [{1: HERE}], B: [{}], C: [{0: THERE}]}
    assert nodes_of_kept("pong", 3, Wait(60.0)) == {0: C, 1: A}


def test_nodes_that_share_a_machine_get_one_shard_each(nodes: SimpleNamespace) -> None:
    both = {0: ("boot", 1, 7), 1: ("boot", 1, 8)}
    nodes.answers = {A: [both], B: [both], C: [{2: THERE}]}
    assert nodes_of_kept("pong", 3, Wait(60.0)) == {0: A, 1: B, 2: C}


def test_memory_of_one_shard_on_two_machines_is_refused(nodes: SimpleNamespace) -> None:
    nodes.answers = {A: [{1: HERE}], B: [{0: HERE}], C: [{1: THERE}]}
    with pytest.raises(MemoryTwice, match="relive rm pong-1") as told:
        nodes_of_kept("pong", 2, Wait(60.0))
    assert (told.value.number, told.value.nodes) == (1, (A.address, C.address))


def test_memory_of_two_shards_on_one_node_is_refused(nodes: SimpleNamespace) -> None:
    """Each shard needs a node of its own, so start() would wait until its deadline."""
    nodes.answers = {A: [{0: HERE, 2: ("boot", 1, 9)}], B: [{1: THERE}], C: [{}]}
    with pytest.raises(FleetFailed, match=r"lies on 10.0.0.1, like that of shard 0.*relive rm pong-2") as told:
        nodes_of_kept("pong", 3, Wait(60.0))
    assert told.value.number == 2


def test_a_node_that_leaves_ray_meanwhile_is_not_waited_for(nodes: SimpleNamespace) -> None:
    nodes.alive[B] = False
    nodes.answers[A] = [{0: HERE}]
    assert nodes_of_kept("pong", 1, Wait(60.0)) == {0: A} and nodes.asked == [[A, C]]


def test_a_node_whose_task_failed_is_asked_again(nodes: SimpleNamespace) -> None:
    nodes.answers[B] = [WorkerCrashedError(), {0: HERE}]
    assert nodes_of_kept("pong", 1, Wait(60.0)) == {0: B} and nodes.asked == [[A, B, C], [B]]


def test_a_node_without_relive_has_no_memory(nodes: SimpleNamespace) -> None:
    nodes.answers[B] = [RayTaskError("kept_here", "", ModuleNotFoundError("relive"))]
    assert nodes_of_kept("pong", 1, Wait(60.0)) == {}


def test_a_node_that_does_not_answer_is_named(nodes: SimpleNamespace) -> None:
    """It may have the memory, and the fleet would begin without its rows."""
    nodes.answers[B] = []
    with pytest.raises(errors.DeadlineExceeded, match="memory of the fleet.*no answer of 10.0.0.2"):
        nodes_of_kept("pong", 1, Wait(0.0))


@needs_shared_memory
@pytest.mark.forms(1)
def test_the_memory_of_this_machine_is_found(shm_name: Any) -> None:
    name = shm_name()
    spec = relive.StepSpec({"action": relive.ArraySpec((), "int64")})
    with relive.Table(spec, 10, storage=relive.SharedMemory(f"{name}-1")):
        found = kept_here(name, 3)
        assert list(found) == [1] and found == kept_here(name, 2)


@pytest.mark.parametrize("pinned", [True, False])
def test_the_bundle_of_a_shard_needs_the_node_of_its_memory(monkeypatch: pytest.MonkeyPatch, pinned: bool) -> None:
    made: list[Any] = []
    group = SimpleNamespace(id="0a", wait=lambda _: False)
    for name, fake in (
        ("join", lambda *_: None),
        ("_named", lambda _: {}),
        ("placement_group", lambda bundles, *_, **__: made.append(bundles) or group),
        ("placement_group_table", lambda group=None: {} if group is None else {"state": "CREATED"}),
        ("remove_placement_group", lambda _: None),
        ("nodes_of_kept", lambda *_: {1: B} if pinned else {}),
    ):
        monkeypatch.setattr(fleets, name, fake)
    monkeypatch.setattr("ray.nodes", lambda: [{"Alive": True}])
    spec = relive.StepSpec({"action": relive.ArraySpec((), "int64")})
    config = fleets.FleetConfig("pong", 2, relive.TableConfig(spec, 10))
    with pytest.raises(errors.DeadlineExceeded) as late:
        fleets.start(config, 0.0)
    assert made == [[{"CPU": 1.0}, {"CPU": 1.0, B.resource: 0.001} if pinned else {"CPU": 1.0}]]
    assert (f"{B.address} for shard 1" in str(late.value)) == pinned


# ---- two nodes of Ray ------------------------------------------------------------------------------------------------

TWO_MACHINES = """
import json, os, subprocess, sys
from pathlib import Path
from fleet.on_two_nodes import ADDRESS, HEAD, OTHER, config, error_of, raise_loopback, start_node, write

name, folder = sys.argv[1:3]
if len(sys.argv) > 3:  # the other node, whose /dev/shm is its own
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], check=True)
    start_node(folder, OTHER)
    sys.exit()
raise_loopback()
os.environ.update({"RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0", "HOME": folder})
os.environ.pop("RAY_ADDRESS", None)
start_node(folder, HEAD)
program = Path(folder) / "node.py"
program.write_text(sys.orig_argv[2])
subprocess.run(["unshare", "--mount", sys.executable, str(program), name, folder, OTHER], check=True)
os.environ["RAY_ADDRESS"] = ADDRESS
from relive.fleet import ray as fleets

def memory(ip):
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        words = place.read_text().split(chr(0))
        if words[0].endswith("/raylet") and f"--node_ip_address={ip}" in words:
            return place.parent / "root" / "dev" / "shm"

file = f"relive-{name}-0"
first, = fleets.start(config(name, 1), 100.0)
with fleets.connect(name) as table:
    write(table, 0, 20, shard=0)
fleets.stop(name, keeps_memory=True)
kept = memory(first.node_ip) / file
content = kept.read_bytes()
kept.unlink()
told = {"found": [], "left": []}
for ip in (HEAD, OTHER) * 4:
    (memory(ip) / file).write_bytes(content)
    one, = fleets.start(config(name, 1), 100.0)
    told["found"].append([ip == one.node_ip, one.is_restored, one.num_steps])
    fleets.stop(name)
    told["left"] += [(memory(node) / file).exists() for node in (HEAD, OTHER)]
for ip in (HEAD, OTHER):
    (memory(ip) / file).write_bytes(content)
told["twice"] = error_of(lambda: fleets.start(config(name, 1), 100.0))
told["name"] = error_of(lambda: fleets.status(name))
sys.stdout.write(chr(10) + json.dumps(told) + chr(10))
sys.stdout.flush()
os._exit(0)
"""


@needs_shared_memory
@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_two_machines_that_do_not_share_memory() -> None:
    reason = why_not()
    if reason:
        pytest.skip(f"two Ray nodes need a network namespace of their own, which is not permitted here: {reason}")
    name = f"test-raykept-{os.getpid()}"
    try:
        with tempfile.TemporaryDirectory(prefix="r", ignore_cleanup_errors=True) as folder:
            command = [*UNSHARE, sys.executable, "-c", TWO_MACHINES, name, folder]
            usual = {**os.environ, "PYTHONPATH": str(TESTS)}
            done = subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=TESTS, env=usual)
        assert done.returncode == 0, done.stderr[-4000:]
        told = json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])
    finally:
        for path in shared_files(name):
            path.unlink()
    assert told["found"] == [[True, True, 20]] * 8 and told["left"] == [False] * 16
    assert told["twice"].startswith("MemoryTwice") and told["name"].startswith("NoSuchFleet")
