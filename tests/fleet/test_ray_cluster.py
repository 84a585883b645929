"""Questions to a Ray cluster that hangs or is lost, and calls that meet. Stand-ins take the place of Ray."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import wait as wait_for
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from processes.shm import needs_shared_memory, shared_files

import relive
from relive import errors
from relive.fleet.errors import ClusterFailed, FleetExists, FleetFailed

pytest.importorskip("ray", reason="ray is not installed here (pip install 'relive[ray]')")
pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (the extra `ray` brings it)")

from ray.exceptions import GetTimeoutError, RayTaskError  # noqa: E402

from fleet.tools import Owner, config_of  # noqa: E402
from relive.fleet import ray as fleets  # noqa: E402
from relive.fleet.draws.pace import Wait  # noqa: E402
from relive.fleet.on_ray.cluster import ask, explained  # noqa: E402
from relive.fleet.on_ray.shard import end_here  # noqa: E402

TESTS = Path(__file__).parents[1]
NODE = "ab" * 28  # the id of a node


def config(num_shards: int = 1) -> fleets.FleetConfig:
    spec = relive.StepSpec({"action": relive.ArraySpec((), "int64")})
    return fleets.FleetConfig("pong", num_shards, relive.TableConfig(spec, 1_000))


# ---- questions -------------------------------------------------------------------------------------------------------


@pytest.fixture
def hangs() -> Iterator[Callable[..., Any]]:
    """A question that hangs until the test ends, and calls of it."""
    ends = threading.Event()
    yield lambda *_, **__: ends.wait() and {}
    ends.set()


@pytest.mark.parametrize("call", [fleets.status, fleets.connect, fleets.stop, fleets.start])
def test_calls_end_in_time_when_the_head_hangs(
    monkeypatch: pytest.MonkeyPatch, hangs: Callable[..., Any], call: Callable[..., Any]
) -> None:
    monkeypatch.setattr("relive.fleet.on_ray.cluster._LEAST_S", 0.05)
    monkeypatch.setattr(fleets, "join", lambda *_: None)
    monkeypatch.setattr("ray.util.list_named_actors", hangs)
    with pytest.raises(errors.DeadlineExceeded, match="head of the Ray cluster"):
        call(config() if call is fleets.start else "pong", timeout_s=0.05)


def test_an_answer_after_the_deadline_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A placement group that the head made late would keep the name of a fleet that does not run."""
    monkeypatch.setattr("relive.fleet.on_ray.cluster._LEAST_S", 0.05)
    answers, undone = threading.Event(), threading.Event()
    taken_back: list[str] = []

    def undo(group: str) -> None:
        taken_back.append(group)
        undone.set()

    with pytest.raises(errors.DeadlineExceeded):
        ask(Wait(0.0), lambda: answers.wait() and "group", undo)
    assert not undone.is_set()
    answers.set()
    assert undone.wait(60.0) and taken_back == ["group"]


def test_an_answer_after_ctrl_c_is_undone() -> None:
    answers, undone = threading.Event(), threading.Event()

    def question() -> str:
        os.kill(os.getpid(), signal.SIGINT)
        answers.wait()
        return "group"

    with pytest.raises(KeyboardInterrupt):
        ask(Wait(60.0), question, lambda _: undone.set())
    answers.set()
    assert undone.wait(60.0)


def test_no_question_is_asked_without_a_thread_that_can_be_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call would have no deadline."""

    def limited(*_: Any, **__: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("relive.fleet.on_ray.cluster.start_thread", limited)
    with pytest.raises(errors.SystemFailure, match="starting a thread that asks Ray"):
        ask(Wait(60.0), lambda: pytest.fail("it was asked"))


def test_a_question_at_the_end_of_the_interpreter_is_asked_by_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    def ending(*_: Any, **__: Any) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr("relive.fleet.on_ray.cluster.start_thread", ending)
    monkeypatch.setattr("relive.fleet.on_ray.cluster.sys", SimpleNamespace(is_finalizing=lambda: True))
    assert ask(Wait(60.0), lambda: "asked") == "asked"


@pytest.mark.parametrize("what", ["reports", "a report", "a group"])
def test_a_node_that_is_silent_is_no_head_that_is_silent(
    monkeypatch: pytest.MonkeyPatch, cluster: SimpleNamespace, what: str
) -> None:
    """A question with a timeout of its own has time to say that it ended, also at the deadline of the call."""
    own: list[float] = []
    given: list[float] = []

    def silent(seconds: float) -> None:
        own.append(seconds)
        if what != "a group":
            raise GetTimeoutError("no answer")

    def waits(answers: Any, seconds: float) -> Any:
        given.append(seconds)
        return wait_for(answers, 60.0)

    monkeypatch.setattr(fleets, "_UNDO_S", 0.1)
    monkeypatch.setattr("relive.fleet.on_ray.cluster.wait_for", waits)
    monkeypatch.setattr("ray.get", lambda _, timeout: silent(timeout))
    monkeypatch.setattr("ray.wait", lambda asked, num_returns, timeout: own.append(timeout) or ([], asked))
    monkeypatch.setattr("ray.nodes", lambda: [])
    cluster.group, cluster.state = SimpleNamespace(wait=silent), "CREATED"
    cluster.actors = [{0: SimpleNamespace(report=SimpleNamespace(remote=lambda: "answer"))}]
    if what == "reports":
        assert "shard 0" in fleets.status("pong", 0.3)[0].state
    elif what == "a report":
        with pytest.raises(errors.DeadlineExceeded, match="shard 0 of fleet"):
            fleets.connect("pong", 0.3)
    else:
        cluster.actors = [{}]
        with pytest.raises(errors.DeadlineExceeded, match="1 nodes with"):
            fleets.start(config(), 0.3)
    assert own and max(given) >= max(own) + 1.0


def test_an_error_of_ray_is_the_callers() -> None:
    def refuse() -> None:
        raise ValueError("no such actor")

    with pytest.raises(ValueError, match="no such actor"):
        ask(Wait(1.0), refuse)


def test_a_link_that_is_lost_is_an_error_of_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's client raises a bare ConnectionError."""

    def lost(**_: Any) -> None:
        raise ConnectionError("Client is shutting down.")

    monkeypatch.setattr(fleets, "join", lambda *_: None)
    monkeypatch.setattr("ray.util.list_named_actors", lost)
    with pytest.raises(ClusterFailed, match="Client is shutting down"):
        fleets.status("pong")


def test_an_error_of_grpc_is_one_of_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's client raises the first one of a lost link as it is."""
    grpc = pytest.importorskip("grpc", reason="grpcio is not installed here, so Ray has no ray://")

    class Lost(grpc.RpcError):  # type: ignore[misc]
        def details(self) -> str:
            return "Connection refused"

    def lost(**_: Any) -> None:
        raise Lost('debug_error_string = "UNAVAILABLE"')

    monkeypatch.setattr(fleets, "join", lambda *_: None)
    monkeypatch.setattr("ray.util.list_named_actors", lost)
    with pytest.raises(ClusterFailed, match=r"status\(\): Connection refused"):
        fleets.status("pong")


def test_an_error_that_is_not_rays_is_the_callers_own() -> None:
    with pytest.raises(ZeroDivisionError), explained("start()"):
        raise ZeroDivisionError


@pytest.mark.parametrize("what", ["a group", "reports", "a close"])
def test_the_deadline_holds_when_the_link_hangs(
    monkeypatch: pytest.MonkeyPatch, cluster: SimpleNamespace, hangs: Callable[..., Any], what: str
) -> None:
    """A call of ray:// waits half a minute for a link that is lost."""
    monkeypatch.setattr("relive.fleet.on_ray.cluster._LEAST_S", 0.05)
    monkeypatch.setattr(fleets, "_UNDO_S", 0.1)

    def hang(*_: Any) -> None:
        hangs()
        raise ConnectionError("the test has ended")

    far = SimpleNamespace(remote=hang)
    cluster.group, cluster.state = SimpleNamespace(wait=hang), "CREATED"
    cluster.actors = [{} if what == "a group" else {0: SimpleNamespace(report=far, close=far)}]
    calls = {"a group": partial(fleets.start, config()), "reports": partial(fleets.connect, "pong")}
    with pytest.raises(errors.DeadlineExceeded, match="head of the Ray cluster"):
        calls.get(what, partial(fleets.stop, "pong"))(timeout_s=0.05)


# ---- start and stop at once ------------------------------------------------------------------------------------------


class Group:
    """A placement group that another call removes while start() waits for it."""

    def wait(self, seconds: float) -> bool:
        raise Exception("Placement group does not exist")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Ray, as far as start() and stop() ask it before there is an actor."""
    told = SimpleNamespace(group=Group(), state="REMOVED", removed=[], actors=[{}])
    for name, fake in (
        ("join", lambda *_: None),
        ("placement_group", lambda *_, **__: told.group),
        ("placement_group_table", lambda group=None: {} if group is None else {"state": told.state}),
        ("remove_placement_group", told.removed.append),
        ("_named", lambda _: told.actors.pop(0) if len(told.actors) > 1 else told.actors[0]),
        ("nodes_of_kept", lambda *_: {}),
    ):
        monkeypatch.setattr(fleets, name, fake)
    return told


def test_a_start_tells_that_the_fleet_was_stopped_meanwhile(cluster: SimpleNamespace) -> None:
    with pytest.raises(FleetFailed, match="was stopped while"):
        fleets.start(config(), 5.0)


def test_actors_whose_shards_a_stop_has_closed_have_ended(
    monkeypatch: pytest.MonkeyPatch, cluster: SimpleNamespace
) -> None:
    """They live on until the stop() kills them, or until the next one, if this one is killed."""

    def closed(*_: Any, **__: Any) -> None:
        raise RayTaskError("ShardActor.report", "Traceback ...", errors.TableClosed()).as_instanceof_cause()

    monkeypatch.setattr("ray.get", closed)
    monkeypatch.setattr("ray.wait", lambda tasks, **_: (tasks, []))
    cluster.actors = [{0: SimpleNamespace(report=SimpleNamespace(remote=lambda: "answer"))}]
    assert "its actor was ended; stop the fleet" in fleets.status("pong", 5.0)[0].state
    with pytest.raises(FleetFailed, match="its actor was ended; stop the fleet") as told:
        fleets.connect("pong", 5.0)
    assert told.value.number == 0


def test_a_start_next_to_one_of_another_namespace_is_second(
    monkeypatch: pytest.MonkeyPatch, cluster: SimpleNamespace
) -> None:
    """Ray knows the names of groups by namespace, so both have a group. The first actor decides."""

    def taken(*_: Any) -> None:
        raise ValueError("Actor with name 'relive/pong/0' already exists in the namespace relive")

    made = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=taken))
    monkeypatch.setattr("ray.remote", lambda _: made)
    monkeypatch.setattr("ray.kill", lambda *_, **__: pytest.fail("that actor is of the other fleet"))
    cluster.group, cluster.state = SimpleNamespace(wait=lambda _: True), "CREATED"
    cluster.actors = [{}, {}, {0: "of the other fleet"}]
    with pytest.raises(FleetExists):
        fleets.start(config(), 5.0)
    assert cluster.removed == [cluster.group]


@pytest.mark.parametrize(("removes", "killed"), [("new", None), ("none", "ShardActor"), ("all", "ShardActor")])
def test_a_start_that_failed_kills_no_process(monkeypatch: pytest.MonkeyPatch, removes: Any, killed: Any) -> None:
    """The memory that it did not get may belong to a fleet of another cluster on the same host."""
    tasks: list[Any] = []
    made = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda *how: tasks.append(how) or "task"))
    monkeypatch.setattr("ray.remote", lambda _: made)
    monkeypatch.setattr("ray.wait", lambda tasks, **_: (tasks, []))
    monkeypatch.setattr("ray.get", lambda _: True)
    monkeypatch.setattr(fleets, "_group", lambda *_: None)
    monkeypatch.setattr(
        fleets, "placement_group_table", lambda _: {"state": "CREATED", "bundles_to_node_id": {0: NODE, 1: ""}}
    )
    assert fleets._not_ended("pong", None, removes, {}, Wait(5.0)) == []
    assert [(task[0], task[1], task[3]) for task in tasks] == [("pong-0", removes == "all", killed)]


@needs_shared_memory
def test_an_owner_of_another_cluster_goes_on(
    monkeypatch: pytest.MonkeyPatch, shm_name: Any, owners: list[Owner]
) -> None:
    monkeypatch.setattr("relive.fleet.on_ray.shard._LOCK_S", 0.0)
    name = shm_name()
    owners.append(Owner(0, config_of(name)))
    assert not end_here(name, False, 0.2, None)
    with relive.attach(name) as table:
        assert table.capacity > 0 and not end_here(name, False, 0.0, None)


# ---- the memory of an actor ------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from fleet.tools import config_of
from relive.fleet.on_ray.shard import ShardActor

def killed(*_):
    os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[2] == "before it serves":
    ShardActor._served = killed
else:
    ShardActor._served = lambda *_: "grpc://127.0.0.1:7170/pong-0"
actor = ShardActor(0, 1, config_of(sys.argv[1]), 0, None)
killed()
"""


@needs_shared_memory
@pytest.mark.forms(1)
@pytest.mark.parametrize(
    ("earlier", "when", "stays"),
    [(False, "before it serves", False), (True, "before it serves", True), (False, "when it serves", True)],
)
def test_memory_of_an_actor_that_never_served_is_not_kept(
    shm_name: Any, owners: list[Owner], earlier: bool, when: str, stays: bool
) -> None:
    """A start() that gives up kills actors in their __init__. Memory that they took over is of an earlier fleet."""
    name = shm_name()
    if earlier:
        owners.append(Owner(0, config_of(name)))
        owners[-1].kill()
    done = subprocess.run([sys.executable, "-c", KILLED, name, when], timeout=60, cwd=TESTS)
    assert done.returncode == -signal.SIGKILL and shared_files(name) != []
    assert end_here(name, False, 30.0)
    assert (shared_files(name) != []) == stays
    assert end_here(name, True, 30.0) and shared_files(name) == []


ENDS_BY_ITSELF = """
import signal, sys
from fleet.tools import config_of
from relive.fleet.on_ray.shard import ShardActor

def refused(*_):
    raise ValueError("no certificate")

def made():
    return ShardActor(0, 1, config_of(sys.argv[1]), 0, None)

ShardActor._served = (lambda *_: "grpc://127.0.0.1:7170/pong-0") if sys.argv[2] != "is refused" else refused
try:
    actor = made()
except ValueError:
    sys.exit()
if sys.argv[2] == "is dropped":
    del actor
else:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # as Ray's handler in its workers
    signal.raise_signal(signal.SIGTERM)
"""


@needs_shared_memory
@pytest.mark.forms(1)
@pytest.mark.parametrize("how", ["is refused", "is dropped", "gets SIGTERM"])
@pytest.mark.parametrize("earlier", [True, False])
def test_memory_of_an_actor_that_ends_by_itself_stays(
    shm_name: Any, owners: list[Owner], earlier: bool, how: str
) -> None:
    """Ray starts the actor again. Memory that no start() has served goes."""
    name = shm_name()
    if earlier:
        owners.append(Owner(0, config_of(name)))
        owners[-1].kill()
    subprocess.run([sys.executable, "-c", ENDS_BY_ITSELF, name, how], timeout=60, cwd=TESTS, check=True)
    assert (shared_files(name) != []) == (earlier or how != "is refused")
    assert end_here(name, True, 30.0) and shared_files(name) == []
