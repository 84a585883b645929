"""Fleets on two Ray nodes of this machine, which have a network with nothing but loopback to themselves."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from processes.shm import needs_shared_memory, shared_files

import relive
from relive import errors

pytest.importorskip("ray", reason="ray is not installed here (pip install 'relive[ray]')")
pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (the extra `ray` brings it)")

from ray.exceptions import GetTimeoutError  # noqa: E402

from fleet.tools import Owner, config_of, listener  # noqa: E402
from relive.cli.entry import run  # noqa: E402
from relive.fleet import ShardOwner, attach  # noqa: E402
from relive.fleet.on_ray.shard import ShardActor, end_here  # noqa: E402
from relive.fleet.ray import FleetConfig, ShardReport, load_config, status  # noqa: E402

pytestmark = [needs_shared_memory, pytest.mark.timeout(1000)]
PROGRAM = Path(__file__).with_name("on_two_nodes.py")
UNSHARE = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]


def why_not() -> str:
    """Why this machine has no namespaces for us; '' where it has."""
    try:
        done = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, timeout=30)
    except OSError as error:
        return str(error)
    return done.stderr.strip() or "unshare failed" if done.returncode else ""


@contextmanager
def found_on_two_nodes(*scenarios: str) -> Iterator[dict[str, Any]]:
    """Runs the program for these scenarios, and returns its findings."""
    reason = why_not()
    if reason:
        pytest.skip(f"two Ray nodes need a network namespace of their own, which is not permitted here: {reason}")
    prefix = f"test-ray-{os.getpid()}-"
    with tempfile.TemporaryDirectory(prefix="r", ignore_cleanup_errors=True) as folder:
        command = [*UNSHARE, sys.executable, str(PROGRAM), prefix, folder, *scenarios]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    try:
        assert done.returncode == 0, done.stderr[-4000:]
        yield json.loads(
            [line for line in done.stdout.splitlines() if line.startswith("{")][-1]
        )  # Ray writes there, too
        assert shared_files(prefix) == []
    finally:
        for path in shared_files(prefix):
            path.unlink()


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[dict[str, Any]]:
    """The program runs once for the tests that take it."""
    with found_on_two_nodes("starts", "from_tasks", "killed") as told:
        yield told


@pytest.fixture(scope="module")
def two_nodes_at_length() -> Iterator[dict[str, Any]]:
    """The same, for the tests that run before a release."""
    with found_on_two_nodes(
        "kept", "refused", "incomplete", "stopped", "reserved", "given_up", "joined", "on_the_command_line"
    ) as told:
        yield told


def result(two_nodes: dict[str, Any], scenario: str) -> Any:
    told = two_nodes[scenario]
    assert not isinstance(told, str) or "Traceback" not in told, told
    return told


def test_without_a_cluster_it_says_how_one_starts(two_nodes: dict[str, Any]) -> None:
    told = result(two_nodes, "without_a_cluster")
    assert len(told) == 6 and all("InvalidConfig" in one and "ray start" in one for one in told.values()), told


def test_a_fleet_starts_once_a_shard_a_node(two_nodes: dict[str, Any]) -> None:
    told = result(two_nodes, "starts")
    assert told["missing"].startswith("NoSuchFleet") and told["stopped"].startswith("NoSuchFleet")
    assert told["too many"].startswith("DeadlineExceeded") and "2 nodes" in told["too many"]
    assert told["left"] == []
    assert told["nodes"] == ["127.0.0.1", "127.0.0.2"]
    assert told["states"] == [[0, "live", False, 1_000], [1, "live", False, 1_000]]
    assert told["again"].startswith("FleetExists")


def test_tasks_write_to_the_shard_of_their_node_and_draw_from_both(two_nodes: dict[str, Any]) -> None:
    told = result(two_nodes, "from_tasks")
    assert told["wrote"] == {ip: [number] for ip, number in told["shards"].items()}
    assert told["drawn"] == [0, 1] and told["rows"] and told["steps"] == 40
    assert told["paths"] == ["mapped", "mapped"]


def test_a_killed_shard_is_left_out_and_comes_back_with_all_that_was_stored(two_nodes: dict[str, Any]) -> None:
    told = result(two_nodes, "killed")
    assert told["paths"] == ["mapped", "service"] and told["writer"] == "ServiceUnavailable"
    assert told["back"] == ["live", True, True, True]
    for kind in ("mapped", "service"):
        assert told[f"drawn, {kind}"] == 32 and told[f"drawn within 2 s, {kind}"]
        assert told[f"acknowledged, {kind}"] and told[f"in order, {kind}"] and told[f"drawn again, {kind}"]


@pytest.mark.thorough
def test_a_fleet_that_kept_its_memory_starts_with_it(two_nodes_at_length: dict[str, Any]) -> None:
    told = result(two_nodes_at_length, "kept")
    assert told["other"].startswith("FleetFailed") and "config of the shard" in told["other"]
    assert told["restored"] == [True, True] and told["there"]


@pytest.mark.thorough
def test_memory_that_another_owns_is_not_taken(two_nodes_at_length: dict[str, Any]) -> None:
    told = result(two_nodes_at_length, "refused")
    assert told["owned"].startswith("FleetFailed") and "shard 0" in told["owned"] and "NameTaken" in told["owned"]
    assert told["left"] == "[]"


@pytest.mark.thorough
def test_a_fleet_without_one_of_its_actors_is_no_smaller_table(two_nodes_at_length: dict[str, Any]) -> None:
    told = result(two_nodes_at_length, "incomplete")
    assert "shard 0" in told["states"][0] and told["states"][1] == "live"
    assert told["connect"].startswith("FleetFailed") and "start it again" in told["connect"]
    assert told["again"] == [True, True]


@pytest.mark.thorough
def test_a_fleet_is_stopped_whatever_its_actors_do(two_nodes_at_length: dict[str, Any]) -> None:
    told = result(two_nodes_at_length, "stopped")
    for how in ("killed", "ended", "hung"):
        assert told[f"{how}, removed"] == [0, [0, 0]], how
    assert told["hung, kept"] == told["killed, kept"] == [2, [20, 0]]


@pytest.mark.thorough
def test_a_fleet_that_waits_for_nodes_has_its_name(two_nodes_at_length: dict[str, Any]) -> None:
    told = result(two_nodes_at_length, "reserved")
    assert told["next to it"].startswith("FleetExists") and told["after a kill"].startswith("FleetExists")
    assert len(told["states"]) == 3 and all("start it again" in state for state in told["states"])
    assert told["connect"].startswith("FleetFailed") and told["again"] == ["live", "live"]
    assert told["refused by ray"].startswith("ClusterFailed") and told["left"].startswith("NoSuchFleet")


@pytest.mark.thorough
def test_a_start_that_is_given_up_leaves_nothing(two_nodes_at_length: dict[str, Any]) -> None:
    told = result(two_nodes_at_length, "given_up")
    assert told["port in use"].startswith("DeadlineExceeded") and told["left"] == []
    assert told["status"].startswith("NoSuchFleet") and told["restored"] == [True, True]
    assert told["stopped meanwhile"].startswith("FleetFailed") and "was stopped" in told["stopped meanwhile"]


@pytest.mark.thorough
def test_calls_end_in_time_when_the_head_hangs(two_nodes_at_length: dict[str, Any]) -> None:
    told = result(two_nodes_at_length, "given_up")
    for call in ("start", "status", "connect", "stop"):
        assert told[f"{call}, hung head"].startswith("DeadlineExceeded"), call
    assert "InvalidConfig" not in told["again"] and told["another process"][0] == 1
    assert "no Ray: what listens there does not answer" in told["another process"][1]


@pytest.mark.thorough
def test_a_fleet_that_was_started_in_another_namespace_is_stopped_whole(two_nodes_at_length: dict[str, Any]) -> None:
    told = result(two_nodes_at_length, "joined")
    assert told["started"] == [0, ""] and told["next to it"].startswith("FleetExists")
    assert told["left"].startswith("NoSuchFleet") and told["groups"] == []


@pytest.mark.thorough
def test_the_command_line(two_nodes_at_length: dict[str, Any]) -> None:
    told = result(two_nodes_at_length, "on_the_command_line")
    assert told["0 start"][0] == told["2 status"][0] == told["3 stop"][0] == 0
    for lines in (told["0 start"][1], told["2 status"][1]):
        assert [line.split(":")[0] for line in lines] == ["shard 0", "shard 1"]
        assert all("0 of 1,000 steps" in line and "/test-ray-" in line for line in lines)
    assert told["1 start"][0] == 1 and "runs on this Ray cluster already" in told["1 start"][2][0]
    assert told["4 status"][0] == 1 and "no fleet" in told["4 status"][2][0]


# ---- without a cluster -----------------------------------------------------------------------------------------------


def table(**more: Any) -> relive.TableConfig:
    return relive.TableConfig(relive.StepSpec({"action": relive.ArraySpec((), "int64")}), 1_000, **more)


def test_a_shard_is_the_table_in_memory_of_its_own() -> None:
    config = FleetConfig("pong", 2, table(seed=3))
    assert config.shard(1) == table(seed=3, storage=relive.SharedMemory("pong-1"))
    assert FleetConfig("pong", 2, table(), num_cpus=0).bundle["CPU"] > 0


def test_bad_fleets_are_refused() -> None:
    wrong: list[dict[str, Any]] = [
        {"name": ""},
        {"name": "a/b"},
        {"name": 7},
        {"num_shards": 0},
        {"num_shards": 4097},
        {"table": "table"},
        {"port": -1},
        {"port": 65_535},
        {"num_cpus": -1.0},
        {"resources": ["gpu"]},
        {"num_cpus": 1e-9},
        {"resources": {"memory": -1.0}},
        {"resources": {"GPU": 1.0}},
        {"resources": {"x": 1e-9}},
        {"resources": {"": 1.0}},  # Ray ends the process for this one, and for the next three
        {"resources": {"\n": 1.0}},
        {"resources": {"a b\n": 1.0}},
        {"resources": {"x" * 70_000: 1.0}},
        {"resources": {"\ud800": 1.0}},
        {"resources": {5: 1.0}},
        {"resources": {"object_store_memory": 5.0}},  # this one ends the node
        {"door": "open"},
    ]
    for one in wrong:
        with pytest.raises(errors.InvalidConfig):
            FleetConfig(**{"name": "pong", "num_shards": 2, "table": table(), **one})


@pytest.mark.forms(1)
@pytest.mark.parametrize("prefix", ["", "ray://"])
@pytest.mark.parametrize("says", [b"", b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"])
def test_a_listener_that_is_no_ray_is_refused_in_time(prefix: str, says: bytes) -> None:
    """Ray itself waits for it without an end."""

    with listener(says) as port:
        address = f"{prefix}127.0.0.1:{port}"
        program = f"import relive.fleet.ray as fleets; fleets.status('pong', address={address!r}, timeout_s=3.0)"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert "InvalidConfig" in done.stderr and "no Ray" in done.stderr, done.stderr


def test_a_file_that_is_no_fleet_names_the_part(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    whole = 'name = "pong"\nnum_shards = 2\n[table]\ncapacity = 100\n[table.columns]\naction = { dtype = "int64" }\n'
    path.write_text(whole)
    assert load_config(path).table.capacity == 100
    for wrong, told in (
        (whole.replace("num_shards = 2", ""), "num_shards"),
        (whole.replace("num_shards = 2", "shards = 2"), "shards"),
        (whole.replace("capacity = 100", "capacity = -1"), "capacity"),
        (whole.replace('"int64"', '"int65"'), "int65"),
        ("name =", "TOML"),
        (whole.replace('"pong"', '"a/b"'), "name"),
    ):
        path.write_text(wrong)
        with pytest.raises((errors.InvalidConfig, errors.SpecError), match=told):
            load_config(path)


@pytest.mark.parametrize("program", ["", "#!/bin/sh\nexit 1\n", "#!/bin/sh\necho not permitted >&2\nexit 1\n"])
def test_a_machine_without_namespaces_gives_a_reason(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No unshare at all, one that fails in silence, and one that says why. With this machine's own there is none."""
    monkeypatch.setenv("PATH", str(tmp_path))
    if program:
        (tmp_path / "unshare").write_text(program)
        (tmp_path / "unshare").chmod(0o755)
    reason = why_not()
    assert reason and ("not permitted" in program) == (reason == "not permitted")


ENDS = """
import sys
from fleet.tools import config_of
from relive.fleet import ShardOwner
from relive.fleet.on_ray.shard import ShardActor

actor = object.__new__(ShardActor)
actor._owner = ShardOwner(0, config_of(sys.argv[1]))
actor.close(sys.argv[2])
"""


@pytest.mark.forms(1)
@pytest.mark.parametrize("removes", ["none", "new", "all"])
def test_an_actor_that_is_asked_to_end_keeps_what_it_is_told_to(shm_name: Any, removes: str) -> None:
    """Ray kills actors; where the placement group goes first its worker ends as programs do, and closes its handles."""
    name = shm_name()
    subprocess.run([sys.executable, "-c", ENDS, name, removes], check=True, timeout=60, cwd=Path(__file__).parents[1])
    assert (name in {row.name for row in relive.list_tables()}) == (removes == "none")


class Actors:
    """Ray, as far as status() asks it, and two actors of it: shard 0 hangs, and shard 1 answers."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def ask(self, number: int) -> int:
        self.calls.append(number)
        return number

    def get(self, number: int, timeout: float) -> ShardReport:
        self.calls.append("waits")
        if number == 0:
            raise GetTimeoutError("no answer")
        return ShardReport(number, "live", num_shards=2)

    def wait(self, numbers: list[int], num_returns: int, timeout: float) -> tuple[list[int], list[int]]:
        self.calls.append("waits")
        return [one for one in numbers if one], [one for one in numbers if not one]


def test_all_shards_are_asked_before_one_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """An actor that hangs leaves the others the whole time."""
    ray = Actors()
    actors = {n: SimpleNamespace(report=SimpleNamespace(remote=partial(ray.ask, n))) for n in (0, 1)}
    for name, fake in (("ray.join", lambda *_: None), ("ray._actors", lambda *_: actors)):
        monkeypatch.setattr(f"relive.fleet.{name}", fake)
    for room in ("ray", "on_ray.tasks"):
        monkeypatch.setattr(f"relive.fleet.{room}.ray", ray)
    reports = status("pong", timeout_s=0.0)
    assert ray.calls[:3] == [0, 1, "waits"]
    assert [one.number for one in reports] == [0, 1] and reports[1].state == "live"
    assert "shard 0 of fleet 'pong'" in reports[0].state and "has not answered" in reports[0].state


@pytest.mark.parametrize(("state", "expected"), [("live", 0), ("shard 1 of fleet 'pong' does not run", 1)])
def test_the_status_of_the_command_tells_whether_all_shards_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], state: str, expected: int
) -> None:
    reports = [ShardReport(0, "live"), ShardReport(1, state)]
    monkeypatch.setattr("relive.fleet.ray.status", lambda name, address: reports)
    assert run(["fleet", "status", "pong"]) == expected
    assert capsys.readouterr().out.count("shard ") == (2 if expected == 0 else 3)


def test_the_memory_of_a_killed_owner_ends_with_its_shard(shm_name: Any, owners: list[Owner]) -> None:
    """The task of stop() in the bundle of the shard. A handle that is still open is the last one to close."""
    names = [shm_name(), shm_name()]
    owners += [Owner(0, config_of(name)) for name in names]
    with attach(names[:1]):
        for owner, name in zip(owners, names, strict=True):
            owner.kill()
            assert end_here(name, False, 30.0) and shared_files(name) != []
            assert end_here(name, True, 30.0)
        assert shared_files(names[0]) != [] and shared_files(names[1]) == []
    assert shared_files(names[0]) == []


def test_a_shard_whose_port_is_taken_is_served_at_another(shm_name: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An actor that was killed may keep the port for a while; another program keeps it for good."""
    monkeypatch.setattr("relive.fleet.on_ray.shard._PORT_S", 0.2)
    actor = object.__new__(ShardActor)
    with ShardOwner(0, config_of(shm_name())) as actor._owner, socket.create_server(("127.0.0.1", 0)) as other:
        actor._door = None
        taken = other.getsockname()[1]
        address = actor._served("grpc://127.0.0.1", taken)
        assert f":{taken}/" not in address
        with attach([address], path="service") as table:
            assert len(table) == 0


def test_a_free_port_is_tried_after_an_attempt_that_outlasts_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy node one attempt may take longer than the wait for the port."""
    monkeypatch.setattr("relive.fleet.on_ray.shard._PORT_S", 0.05)

    def serve(address: str, door: Any) -> str:
        if address.endswith(":0"):
            return address
        time.sleep(0.1)
        raise errors.CannotListen(address, "Address already in use")

    actor = object.__new__(ShardActor)
    actor._door, owner = None, SimpleNamespace(serve=serve)
    actor._owner = owner  # type: ignore[assignment]
    assert actor._served("grpc://127.0.0.1", 4000) == "grpc://127.0.0.1:0"
