"""Nodes that are out of Ray, and the node of this host: memory that stop() leaves, and how a process joins."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
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

from ray.exceptions import RpcError, WorkerCrashedError  # noqa: E402

from fleet.test_ray import UNSHARE, why_not  # noqa: E402
from relive.fleet import ray as fleets  # noqa: E402
from relive.fleet.draws.pace import Wait  # noqa: E402
from relive.fleet.on_ray.cluster import join  # noqa: E402

TESTS = Path(__file__).parents[1]
SETTINGS = b"\0\0\0\x04\0\0\0\0\0"  # with them every server of gRPC greets


# ---- stop ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A fleet of two shards without actors, and its placement group as Ray tells it. Tasks in it end their shards."""
    told = SimpleNamespace(state="CREATED", nodes={0: "a", 1: "b"}, removed=[])
    made = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda name, *_: name))
    for name, fake in (
        ("fleet.ray.join", lambda *_: None),
        ("fleet.ray._named", lambda _: {}),
        ("fleet.ray._group", lambda *_: "group"),
        ("fleet.ray.placement_group_table", lambda _: {"state": told.state, "bundles_to_node_id": told.nodes}),
        ("fleet.ray.remove_placement_group", told.removed.append),
    ):
        monkeypatch.setattr(f"relive.{name}", fake)
    monkeypatch.setattr("ray.remote", lambda _: made)
    monkeypatch.setattr("ray.wait", lambda tasks, **_: (tasks, []))
    monkeypatch.setattr("ray.get", lambda _: True)
    return told


def test_memory_on_a_node_that_is_out_of_ray_is_left(group: SimpleNamespace) -> None:
    """The machine may live on, and the next fleet of the name would take the rows over."""
    group.state, group.nodes = "RESCHEDULING", {0: "", 1: "b"}
    with pytest.raises(FleetLeft, match="relive rm pong-0") as told:
        fleets.stop("pong")
    assert told.value.numbers == (0,) and group.removed == ["group"]
    fleets.stop("pong", keeps_memory=True)


def test_a_fleet_that_was_never_placed_is_stopped_whole(group: SimpleNamespace) -> None:
    group.state, group.nodes = "PENDING", {0: "", 1: ""}
    fleets.stop("pong")
    assert group.removed == ["group"]


def test_a_stop_ends_when_another_one_removed_the_group(
    monkeypatch: pytest.MonkeyPatch, group: SimpleNamespace
) -> None:
    """Its tasks never run then. Until then it waits for them."""
    waits: list[float] = []

    def wait(tasks: list[str], timeout: float, **_: Any) -> tuple[list[str], list[str]]:
        waits.append(timeout)
        group.state = "REMOVED" if len(waits) == 3 else "CREATED"
        return [], tasks

    monkeypatch.setattr("ray.wait", wait)
    fleets.stop("pong", timeout_s=1e9)
    assert len(waits) == 3 and max(waits) < 60.0


@pytest.mark.parametrize("is_stopped", [True, False])
def test_the_second_of_two_stops_finds_nothing_left(
    monkeypatch: pytest.MonkeyPatch, group: SimpleNamespace, is_stopped: bool
) -> None:
    """Its tasks fail if the first one removes the group before them. Without another stop() the shards are left."""

    def fail(_: str) -> None:
        group.state = "REMOVED" if is_stopped else "CREATED"
        raise WorkerCrashedError

    monkeypatch.setattr("ray.get", fail)
    with nullcontext() if is_stopped else pytest.raises(FleetLeft):
        fleets.stop("pong")


@pytest.mark.parametrize("when", ["_kill", "_stands"], ids=["before its tasks", "during its tasks"])
def test_the_second_of_two_stops_tells_of_memory_on_a_lost_node(
    monkeypatch: pytest.MonkeyPatch, group: SimpleNamespace, when: str
) -> None:
    """Neither of them can remove that memory."""
    group.state, group.nodes = "RESCHEDULING", {0: "", 1: "b"}

    def removed(*_: Any) -> bool:
        group.state, group.nodes = "REMOVED", {}
        return False

    monkeypatch.setattr(fleets, when, removed)
    monkeypatch.setattr("ray.wait", lambda tasks, **_: ([], tasks))
    with pytest.raises(FleetLeft) as told:
        fleets.stop("pong")
    assert told.value.numbers == (0,)


def test_a_node_that_joins_again_during_a_stop_is_not_lost(
    monkeypatch: pytest.MonkeyPatch, group: SimpleNamespace
) -> None:
    group.state, group.nodes = "RESCHEDULING", {0: "", 1: "b"}
    monkeypatch.setattr(fleets, "_kill", lambda *_: vars(group).update(state="CREATED", nodes={0: "c", 1: "b"}))
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


# ---- the node of this host -------------------------------------------------------------------------------------------


@contextmanager
def listener(says: bytes) -> Iterator[int]:
    """A server that says this to each connection. Yields its port."""

    def answer() -> None:
        with suppress(OSError):  # the listener was closed
            while True:
                heard.append(server.accept()[0])
                heard[-1].sendall(says)

    heard: list[socket.socket] = []
    with socket.create_server(("0.0.0.0", 0)) as server:  # Ray reads 127.0.0.1 as the address of this host
        threading.Thread(target=answer, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    for one in heard:
        one.close()


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A head that answers; the nodes of its cluster, by their ids; the ids of the Ray nodes that run on this host."""
    told = SimpleNamespace(nodes={}, ids=[set()], joined=[])

    def ids() -> set[str]:
        return set(told.ids.pop(0) if len(told.ids) > 1 else told.ids[0])

    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", lambda *, address, **_: told.joined.append(address))
    monkeypatch.setattr("relive.fleet.on_ray.cluster._joined", None)
    monkeypatch.setattr("relive.fleet.on_ray.cluster._job", lambda: "01000000")
    monkeypatch.setattr("ray._private.services.find_node_ids", ids)
    client = SimpleNamespace(get_all_node_info=lambda **_: {bytes.fromhex(k): v for k, v in told.nodes.items()})
    monkeypatch.setattr("ray._private.services.GcsClient", lambda address: client)
    with listener(SETTINGS) as port:
        told.address = f"127.0.0.1:{port}"
        yield told


def node(port: int, is_head: bool = False) -> Any:
    return SimpleNamespace(node_manager_address="127.0.0.1", node_manager_port=port, is_head_node=is_head)


@pytest.mark.parametrize("ids", [set(), {"ff"}], ids=["no node", "a node of another cluster"])
def test_a_cluster_without_a_node_on_this_host_is_not_joined(head: SimpleNamespace, ids: set[str]) -> None:
    """Ray waits a minute for one."""
    head.nodes, head.ids = {"aa": node(1)}, [ids]
    port = head.address.split(":")[1]
    with pytest.raises(errors.InvalidConfig, match=f"no node of it runs on this host.*ray start --address=.*:{port}"):
        join(head.address, Wait(0.1))
    assert head.joined == []


def test_a_node_of_this_host_that_hangs_is_not_joined(head: SimpleNamespace) -> None:
    """Ray ends a process that joins by such a node. The kernel accepts connections for a process that is stopped."""
    with listener(b"") as port:
        head.nodes, head.ids = {"aa": node(port)}, [{"aa"}]
        with pytest.raises(errors.InvalidConfig, match=f"node of this host does not answer at 127.0.0.1:{port}"):
            join(head.address, Wait(0.2))
    assert head.joined == []


def test_a_node_that_starts_is_waited_for(head: SimpleNamespace) -> None:
    with listener(SETTINGS) as port:
        head.nodes, head.ids = {"aa": node(port)}, [set(), {"ff"}, {"ff", "aa"}]
        join(head.address, Wait(60.0))
    assert len(head.joined) == 1


def test_the_head_node_is_the_one_that_is_asked(head: SimpleNamespace) -> None:
    """Ray joins by it if several nodes run on this host."""
    with listener(SETTINGS) as port, listener(b"") as silent:
        head.nodes, head.ids = {"aa": node(silent), "bb": node(port, True)}, [{"aa", "bb"}]
        join(head.address, Wait(60.0))
    assert len(head.joined) == 1


@pytest.mark.parametrize("lacks", ["find_node_ids", "GcsClient"])
def test_a_ray_that_cannot_tell_its_nodes_joins_as_it_does(
    monkeypatch: pytest.MonkeyPatch, head: SimpleNamespace, lacks: str
) -> None:
    head.ids = [{"aa"}]
    monkeypatch.delattr(f"ray._private.services.{lacks}")
    join(head.address, Wait(60.0))
    assert len(head.joined) == 1


def test_a_head_that_hangs_while_it_is_asked_for_its_nodes_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, head: SimpleNamespace
) -> None:
    monkeypatch.setattr("relive.fleet.on_ray.cluster._LEAST_S", 0.05)
    ends = threading.Event()
    monkeypatch.setattr("ray._private.services.find_node_ids", lambda: ends.wait() and set())
    with pytest.raises(errors.DeadlineExceeded, match="head of the Ray cluster"):
        join(head.address, Wait(0.05))
    ends.set()
    assert head.joined == []


def test_a_server_of_ray_that_is_no_head_is_not_joined(monkeypatch: pytest.MonkeyPatch, head: SimpleNamespace) -> None:
    """Nodes and workers of Ray speak gRPC, too."""

    def refuse(**_: Any) -> None:
        raise RpcError("Method not found", rpc_code=12)

    head.ids = [{"aa"}]
    monkeypatch.setattr("ray._private.services.GcsClient", lambda address: SimpleNamespace(get_all_node_info=refuse))
    with pytest.raises(errors.InvalidConfig, match="no head of a Ray cluster.*Method not found"):
        fleets.status("pong", address=head.address)
    assert head.joined == []


def test_the_address_of_a_port_forward_is_that_of_the_cluster(
    monkeypatch: pytest.MonkeyPatch, head: SimpleNamespace
) -> None:
    """The cluster knows itself by another address."""
    address, job = f"ray://{head.address}", ["01000000"]
    join(address, Wait(60.0))
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    monkeypatch.setattr("ray.get_runtime_context", lambda: SimpleNamespace(gcs_address="192.0.2.7:6379"))
    monkeypatch.setattr("relive.fleet.on_ray.cluster._job", lambda: job[0])
    join(address, Wait(60.0))
    assert head.joined == [address]
    job[0] = "02000000"  # the program has joined another cluster by itself
    with pytest.raises(errors.InvalidConfig, match="has joined"):
        join(address, Wait(60.0))


@pytest.mark.parametrize("joined", [False, True])
def test_the_deadline_holds_while_the_name_of_a_host_is_looked_up(
    monkeypatch: pytest.MonkeyPatch, head: SimpleNamespace, joined: bool
) -> None:
    ends = threading.Event()
    monkeypatch.setattr("relive.fleet.on_ray.cluster._LEAST_S", 0.05)
    monkeypatch.setattr("ray.is_initialized", lambda: joined)
    monkeypatch.setattr("ray.get_runtime_context", lambda: SimpleNamespace(gcs_address="192.0.2.7:6379"))
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: ends.wait() and [])
    with pytest.raises(errors.DeadlineExceeded, match="head of the Ray cluster"):
        join("ray://slow.example:6379", Wait(0.05))
    ends.set()


# ---- Ctrl-C ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True])
def test_ctrl_c_comes_after_the_process_has_joined(
    monkeypatch: pytest.MonkeyPatch, head: SimpleNamespace, fails: bool
) -> None:
    """Within ray.init, it may leave a process that has joined in C++ and not in Python. The next ray.init aborts it."""

    def init(*, address: str, **_: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        head.joined.append(address)
        if fails:
            raise RuntimeError("the node died")

    before = signal.getsignal(signal.SIGINT)
    with listener(SETTINGS) as port:
        head.nodes, head.ids = {"aa": node(port)}, [{"aa"}]
        monkeypatch.setattr("ray.init", init)
        with pytest.raises(KeyboardInterrupt):
            join(head.address, Wait(60.0))
    assert len(head.joined) == 1 and signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_ends_the_wait_for_rays_client(monkeypatch: pytest.MonkeyPatch, head: SimpleNamespace) -> None:
    def init(*, address: str, **_: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        head.joined.append(address)

    monkeypatch.setattr("ray.init", init)
    with pytest.raises(KeyboardInterrupt):
        join(f"ray://{head.address}", Wait(60.0))
    assert head.joined == []


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
