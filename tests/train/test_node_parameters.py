"""Parameters that the actors of a node share: rules N1 to N4, and actors that fetch each version once together."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs torch")
pytest.importorskip("gymnasium", reason="training needs Gymnasium")
pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from processes.shm import needs_shared_memory  # noqa: E402
from processes.tools import stop_process  # noqa: E402

from relive.errors import TableClosed  # noqa: E402
from relive.service import Published, RemoteParameters  # noqa: E402
from relive.service.parameters.sets import MAX_VERSION  # noqa: E402
from relive.train.acting.links import Feed  # noqa: E402
from relive.train.acting.node_parameters import NodeParameters  # noqa: E402
from train.test_remote_actor import acting, served, transitions, wait  # noqa: E402

PATIENCE_S = 60.0


def version(number: int, size: int = 3) -> Published:
    arrays = {"weight": np.full((2, size), number, np.float32), "bias": np.full(size, -number, np.float32)}
    return Published(number, arrays, {"num_steps": 1_000 * number})


@pytest.fixture
def name() -> str:
    return f"test-{os.getpid()}-{secrets.token_hex(4)}"


@pytest.fixture
def opened(name: str) -> Iterator[Callable[..., NodeParameters]]:
    made: list[NodeParameters] = []

    def open_one(first: int = 1, size: int = 3, patience_s: float = PATIENCE_S) -> NodeParameters:
        made.append(NodeParameters(name, version(first, size), patience_s))
        return made[-1]

    yield open_one
    for one in made:
        one.close()


def polled(one: NodeParameters) -> Published:
    found: list[Published | None] = [None]

    def has() -> bool:
        found[0] = one.poll()
        return found[0] is not None

    wait(has, 10.0)
    assert found[0] is not None
    return found[0]


Opened = Callable[..., NodeParameters]


def test_one_leads_and_the_others_get_each_version(opened: Opened) -> None:
    leader, first, second = opened(), opened(), opened()
    assert [one.leads for one in (leader, first, second)] == [True, False, False]
    assert not leader.follows() and first.follows() and second.follows()
    for number in (2, 5, 6, 2**40):
        leader.heard(version(number))
        for follower in (first, second):
            got = polled(follower)
            assert got.version == number and got.about["num_steps"] == 1_000 * number
            assert {key: value.tolist() for key, value in got.arrays.items()} == {
                key: value.tolist() for key, value in version(number).arrays.items()
            }
            assert follower.poll() is None
    assert leader.poll() is None


def test_a_follower_that_comes_late_gets_the_newest_version(opened: Opened) -> None:
    opened().heard(version(7))
    assert polled(opened()).version == 7


def test_the_next_leader_has_the_newest_version_that_it_got(opened: Opened) -> None:
    leader, second, third = opened(), opened(), opened()
    leader.heard(version(9))
    assert polled(second).version == 9
    leader.close()
    assert not second.follows() and second.leads
    assert third.follows() and not third.leads
    assert polled(third).version == 9
    second.heard(version(10))
    assert polled(third).version == 10


@contextmanager
def leader_elsewhere(name: str) -> Iterator[int]:
    """The pid of a child that leads. It is killed at the end, whatever happens: a stopped one would hold the output."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _kept = NodeParameters(name, version(3), PATIENCE_S)
            os.write(writing, b"1" if _kept.leads else b"0")
            time.sleep(60.0)
        finally:
            os._exit(1)
    os.close(writing)
    try:
        assert os.read(reading, 1) == b"1"
        yield child
    finally:
        os.close(reading)
        end(child)


def end(child: int) -> None:
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_leader_that_is_killed_leaves_the_lead(opened: Opened, name: str) -> None:
    with leader_elsewhere(name) as leader:
        follower = opened()
        assert follower.follows() and polled(follower).version == 3
        end(leader)
        assert not follower.follows() and follower.leads
        assert opened().follows()


def test_a_follower_of_a_silent_leader_pulls_for_itself(opened: Opened) -> None:
    leader, follower = opened(), opened(patience_s=0.2)
    assert follower.follows()
    time.sleep(0.3)
    assert not follower.follows() and not follower.leads
    leader.heard(None)  # the run has said that there is nothing newer
    assert follower.follows()


def test_parameters_of_another_layout_are_not_shared(opened: Opened) -> None:
    leader, other = opened(), opened(size=4)
    assert leader.leads and not other.leads and not other.follows() and other.poll() is None


def test_a_leader_that_does_not_answer_is_not_waited_for(opened: Opened, name: str) -> None:
    with leader_elsewhere(name) as leader:
        stop_process(leader)
        began = time.monotonic()
        other = opened()
        assert time.monotonic() - began < 10.0 and not other.leads and other.poll() is None
        end(leader)
        wait(lambda: not other.follows() and other.leads, 10.0)


def test_no_descriptor_and_no_thread_is_left(name: str) -> None:
    def held() -> tuple[int, int]:
        return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

    before = held()
    for _ in range(3):
        with NodeParameters(name, version(1), PATIENCE_S) as leader, NodeParameters(name, version(1), 1.0) as other:
            leader.heard(version(2))
            polled(other)
    wait(lambda: held() == before, 10.0)


# ---- reports ---------------------------------------------------------------------------------------------------------


class SilentRun:
    """The parameters of a run that publishes nothing. It notes how long each pull may wait, and ends the feed."""

    finished = False

    def __init__(self, num_pulls: int) -> None:
        self.pulls: list[tuple[int, float]] = []
        self._num_pulls, self.over = num_pulls, threading.Event()

    def pull(self, newer_than: int, timeout_s: float, note: dict[str, Any]) -> None:
        self.pulls.append((newer_than, timeout_s))
        if len(self.pulls) == self._num_pulls:
            self.over.set()
            raise TableClosed


@pytest.mark.parametrize("poll_s", [5.0, 0.3])
def test_a_follower_reports_although_nothing_new_comes_for_it(opened: Opened, poll_s: float) -> None:
    """Its pulls bring no parameters that would end their wait, so they ask for a short one. The server waits half."""
    leader, follower = opened(), opened()
    assert leader.leads and follower.follows()
    for one, asked in ((follower, (MAX_VERSION, min(poll_s, 1.0))), (leader, (1, poll_s))):
        run = SilentRun(num_pulls=3)
        with Feed(cast("RemoteParameters", run), version(1), poll_s, lambda version: {}, lambda found: None, one):
            assert run.over.wait(60.0)
        assert run.pulls == [asked] * 3


# ---- actors ----------------------------------------------------------------------------------------------------------


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The versions that came over the service."""
    versions: list[int] = []
    pull = RemoteParameters.pull

    def counting(self: RemoteParameters, *args: Any, **named: Any) -> Published | None:
        found = pull(self, *args, **named)
        if found is not None:
            versions.append(found.version)
        return found

    monkeypatch.setattr(RemoteParameters, "pull", counting)
    yield versions


def test_a_leader_keeps_no_connection_of_followers_that_have_gone(opened: Opened) -> None:
    """Actors that are started again join and leave for as long as the leader lives."""
    leader = opened()
    polled(opened())  # stays
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        follower = opened()
        polled(follower)
        follower.close()
    assert len(os.listdir("/proc/self/fd")) <= before + 1, "the connection of the last one"
    assert leader.leads


@needs_shared_memory
@pytest.mark.parametrize("is_shared", [True, False])
def test_actors_of_a_node_fetch_each_version_once_together(
    is_shared: bool, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_published, shared = 6, name if is_shared else None
    with counted(monkeypatch) as fetched, served() as run:
        run.publish()
        with acting(run.run.address, seed=1, shared=shared), acting(run.run.address, seed=2, shared=shared):
            wait(lambda: run.run.num_connected == 2)
            for _ in range(num_published - 1):
                run.publish()
                wait(lambda: fetched.count(run.version) == (1 if is_shared else 2))
                run.wait_for_steps(60)
            run.run.finish()
        wait(lambda: run.table.stats().num_lanes == 0)
        found = transitions(run.table)
    later = [fetched.count(number) for number in range(2, num_published + 1)]
    assert later == [1 if is_shared else 2] * (num_published - 1)
    versions, lanes = np.asarray(found["policy_version"]), np.asarray(found["lane"])
    acted = [set(versions[lanes == lane].tolist()) for lane in np.unique(lanes)]
    assert all(len(one & {3, 4, 5}) >= 2 for one in acted), "the follower acts with the versions that the leader got"
