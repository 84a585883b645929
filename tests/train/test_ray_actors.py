"""Runs whose actors act on a Ray cluster: options, rules R1 to R4 with a Ray that is played, and whole runs on nodes.

The whole runs have one or two Ray nodes of this machine, in a network that has nothing but loopback.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="training needs torch")
pytest.importorskip("gymnasium", reason="training needs Gymnasium")
pytest.importorskip("ray", reason="ray is not installed here (pip install 'relive[ray]')")
pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (the extra `ray` brings it)")

from fleet.test_ray import UNSHARE, why_not  # noqa: E402
from processes.shm import needs_shared_memory  # noqa: E402

from relive.errors import DeadlineExceeded, InvalidConfig  # noqa: E402
from relive.train import ActorsKeepDying, EnvironmentRaised, TrainConfig, preset, tune  # noqa: E402
from relive.train.acting import ray_actors  # noqa: E402
from relive.train.acting.ray_actors import RayActors, placed  # noqa: E402
from relive.train.acting.ray_shards import chosen_nodes  # noqa: E402
from relive.train.acting.serving import limits_of  # noqa: E402
from relive.train.learners.meeting import starts_hosts  # noqa: E402
from relive.train.sections import ClusterConfig  # noqa: E402

PROGRAM = Path(__file__).with_name("on_ray_nodes.py")
RAY: dict[str, object] = {"cluster.kind": "ray"}


# ---- options ---------------------------------------------------------------------------------------------------------


def test_the_options_of_a_cluster_survive_their_way() -> None:
    config = preset("dqn", "CartPole-v1", {**RAY, "acting.num_actors": 8, "cluster.actors_per_node": "4"})
    assert TrainConfig.from_tree(config.to_tree()) == config
    assert (config.num_actors, config.num_actors_here, config.is_served) == (8, 0, True)
    hosts = preset("dqn", "CartPole-v1", {**RAY, "topology": "hosts(2)"})
    assert (hosts.num_actors_here, hosts.is_served) == (2, False), "each host has actors of its own"
    alone = preset("dqn", "CartPole-v1")
    assert (alone.num_actors_here, alone.is_served) == (2, False)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"topology": "inline"}, "cluster.kind"),
        ({"topology": "hosts(2)", "cluster.actors_per_node": 2}, "cluster.actors_per_node"),
        ({"topology": "hosts(2)", "cluster.token_file": "token"}, "cluster.token_file"),
        ({"topology": "hosts(2)", "cluster.ca": "ca.pem"}, "cluster.ca"),
        ({"topology": "central"}, "cluster.kind"),
        ({"topology": "double"}, "cluster.kind"),
        ({"topology": "learners(2, sync)", "acting.inline": True}, "cluster.kind"),
        ({"acting.num_actors": 0}, "acting.num_actors"),
        ({"acting.num_actors": 0, "serving.address": "grpc://127.0.0.1:0"}, "acting.num_actors"),
        ({"cluster.actors_per_node": 0}, "cluster.actors_per_node"),
        ({"cluster.cpus_per_actor": -1.0}, "cluster.cpus_per_actor"),
        ({"cluster.kind": "slurm"}, "cluster.kind"),
        ({"cluster.kind": None, "cluster.actors_per_node": 2}, "cluster.actors_per_node"),
        ({"cluster.kind": None, "cluster.address": "head:6379"}, "cluster.address"),
        ({"cluster.kind": None, "cluster.shards": 2}, "cluster.shards"),
        ({"serving.client_ca": "ca.pem"}, "serving.client_ca"),
        ({"cluster.shards": 0}, "cluster.shards"),
        ({"cluster.shards": 2, "topology": "learners(2, async)"}, "cluster.shards"),
        ({"cluster.shards": 2, "checkpoint.table": "always"}, "checkpoint.table"),
        ({"cluster.shards": 2, "checkpoint.table": "end"}, "checkpoint.table"),
    ],
)
def test_options_that_do_not_fit_are_refused(settings: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidConfig, match=named):
        preset("dqn", "CartPole-v1", {**RAY, **settings})


@pytest.mark.parametrize("topology", ["actors(4)", "learners(2, sync)", "learners(2, async)"])
def test_learners_of_this_machine_may_have_actors_on_a_cluster(topology: str) -> None:
    assert preset("dqn", "CartPole-v1", {**RAY, "topology": topology}).num_actors_here == 0


@pytest.mark.parametrize("settings", [{"acting.num_actors": 1024}, {"serving.max_lanes": 1024}])
def test_each_actor_has_room_at_the_server_of_the_run(settings: dict[str, object]) -> None:
    """For its calls, its parameters and its rows, also while the streams of a broken network still count."""
    limits = limits_of(preset("dqn", "CartPole-v1", {**RAY, **settings}))
    least = 2 * 3 * 1024
    assert limits.max_streams - limits.reserved_streams >= least
    assert min(limits.max_streams_per_client, limits.max_connections) >= least


def test_a_host_that_was_given_a_number_starts_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    hosts = {**RAY, "topology": "hosts(2)"}
    assert starts_hosts(preset("dqn", "CartPole-v1", hosts))
    assert not starts_hosts(preset("dqn", "CartPole-v1", RAY))
    assert not starts_hosts(preset("dqn", "CartPole-v1", {"topology": "hosts(2)"}))
    monkeypatch.setenv("RANK", "1")
    assert not starts_hosts(preset("dqn", "CartPole-v1", hosts))


def test_the_tuner_refuses_a_cluster() -> None:
    with pytest.raises(InvalidConfig, match="cluster.kind"):
        tune(preset("dqn", "CartPole-v1", RAY))


# ---- rule R1 ---------------------------------------------------------------------------------------------------------


def test_a_node_has_as_many_actors_as_it_may() -> None:
    cluster = ClusterConfig("ray", actors_per_node=8, cpus_per_actor=0.5)
    bundles, strategy, bundle_of = placed(64, cluster)
    assert strategy == "STRICT_SPREAD" and bundles == [{"CPU": 4.0}] * 8
    assert [bundle_of.count(bundle) for bundle in range(8)] == [8] * 8
    bundles, _, bundle_of = placed(10, cluster)
    assert bundles == [{"CPU": 2.5}, {"CPU": 2.5}] and bundle_of == [0, 1] * 5
    bundles, strategy, bundle_of = placed(3, replace(cluster, actors_per_node=None, cpus_per_actor=0.0))
    assert strategy == "SPREAD" and bundle_of == [0, 1, 2]
    assert all(bundle["CPU"] > 0 for bundle in bundles), "Ray refuses an empty bundle"


def test_actors_of_other_nodes_get_an_address_that_leads_to_this_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_actors.ray.util, "get_node_ip_address", lambda: "10.0.0.7")
    assert ray_actors._reachable("grpc://0.0.0.0:7070/run") == "grpc://10.0.0.7:7070/run"
    assert ray_actors._reachable("grpc+tls://[::]:7070/run") == "grpc+tls://10.0.0.7:7070/run"
    assert ray_actors._reachable("grpc+tls://head:7070/run") == "grpc+tls://head:7070/run"


# ---- rule T1 ---------------------------------------------------------------------------------------------------------


def test_shards_lie_on_the_nodes_with_the_most_cpus() -> None:
    nodes = [
        {"NodeID": name, "Alive": name != "gone", "NodeManagerAddress": f"10.0.0.{at}", "Resources": resources}
        for at, (name, resources) in enumerate(
            [("head", {}), ("small", {"CPU": 4.0}), ("gone", {"CPU": 64.0}), ("b", {"CPU": 8.0}), ("c", {"CPU": 8.0})]
        )
    ]
    assert chosen_nodes(nodes, 2) == ["b", "c"]
    assert chosen_nodes(nodes, 9) == ["b", "c", "small", "head"], "fewer than asked for"


# ---- rules R3 and R4, with a Ray that is played ----------------------------------------------------------------------


class Played:
    """The calls of Ray that RayActors makes. An answer is a word: its value, or the error that it raises."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: dict[int, Any] = {}
        self.asked: list[tuple[str, int]] = []
        self.num_made = 0
        self.killed = 0
        monkeypatch.setattr(ray_actors, "join", lambda address, wait: None)
        monkeypatch.setattr(ray_actors, "placement_group", lambda *args, **named: self)
        monkeypatch.setattr(ray_actors, "remove_placement_group", lambda group: None)
        monkeypatch.setattr(ray_actors, "placement_group_table", lambda group: {"state": "REMOVED"})
        monkeypatch.setattr(ray_actors, "PlacementGroupSchedulingStrategy", lambda *args, **named: None)
        for name in ("remote", "wait", "get", "kill"):
            monkeypatch.setattr(ray_actors.ray, name, getattr(self, f"_{name}"))

    def answer(self, value: Any) -> None:
        """Answers the question that was asked last."""
        self.answers[len(self.asked) - 1] = value

    def _remote(self, kind: type) -> Any:
        played = self

        class Handle:
            def options(self, **named: Any) -> Handle:
                assert named["max_restarts"] == -1 and named["max_task_retries"] == 0
                return self

            def remote(self, address: str, options: Any) -> Handle:
                played.num_made += 1
                return self

            @property
            def ready(self) -> Any:
                return _Call(played, "ready")

            @property
            def act(self) -> Any:
                return _Call(played, "act")

        return Handle()

    def _wait(self, refs: list[int], num_returns: int, timeout: float) -> Any:
        return [ref for ref in refs if ref in self.answers], []

    def _get(self, ref: int) -> Any:
        value = self.answers[ref]
        if isinstance(value, BaseException):
            raise value
        return value

    def _kill(self, handle: Any, no_restart: bool) -> None:
        self.killed += no_restart


class _Call:
    def __init__(self, played: Played, name: str) -> None:
        self.played, self.name = played, name

    def remote(self, seed: int = -1) -> int:
        self.played.asked.append((self.name, seed))
        return len(self.played.asked) - 1


class Heard:
    """The server of a run, as far as the part asks it."""

    address = "grpc://10.0.0.7:7070/run"

    def __init__(self) -> None:
        self.num_steps = 0

    def follow(self, name: str) -> None:
        assert name == "actor-0"

    def steps_of(self, name: str) -> int:
        return self.num_steps


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    return Played(monkeypatch)


def part(heard: Heard | None = None) -> RayActors:
    one = RayActors(preset("dqn", "CartPole-v1", {**RAY, "acting.num_actors": 1}), heard or Heard())  # type: ignore[arg-type]
    one.start()
    return one


def is_gone() -> Exception:
    return ray_actors.RayActorError()


def names(played: Played) -> list[str]:
    return [name for name, _ in played.asked]


def test_an_actor_that_is_up_is_asked_to_act(played: Played) -> None:
    actors = part()
    actors.watch()
    assert names(played) == ["ready"] and actors.processes == []
    played.answer(("10.0.0.8", 77))
    actors.watch()
    assert names(played) == ["ready", "act"] and actors.processes == [("10.0.0.8", 77)]
    actors.watch()
    assert names(played) == ["ready", "act"] and actors.num_restarts == 0


def test_questions_that_fail_while_ray_starts_the_actor_are_no_deaths(played: Played) -> None:
    actors = part()
    for _ in range(10):
        played.answer(is_gone())
        actors.watch()
    assert names(played) == ["ready"] * 11 and actors.num_restarts == 0


def test_a_death_after_steps_is_counted_and_the_actor_plays_other_episodes(played: Played) -> None:
    heard = Heard()
    actors = part(heard)
    for number in range(5):
        played.answer(("10.0.0.8", number))
        actors.watch()
        heard.num_steps += 10
        played.answer(is_gone())
        actors.watch()
    assert actors.num_restarts == 5 and played.num_made == 1, "Ray restarts it"
    seeds = [seed for name, seed in played.asked if name == "act"]
    assert len(set(seeds)) == 5


def test_three_deaths_without_a_step_end_the_run(played: Played) -> None:
    actors = part()
    for answer in (("10.0.0.8", 77), is_gone(), ("10.0.0.8", 78)):
        played.answer(answer)
        actors.watch()
    played.answer(ray_actors._Failure("InvalidConfig: no such environment"))
    actors.watch()
    assert names(played) == ["ready", "act", "ready", "act", "act"], "a process that lives acts again at once"
    played.answer(ray_actors._Failure("InvalidConfig: no such environment"))
    with pytest.raises(ActorsKeepDying, match="last because: InvalidConfig: no such environment") as raised:
        actors.watch()
    assert (raised.value.actor, raised.value.num_deaths, raised.value.exit_code) == (0, 3, None)


def test_a_step_between_deaths_begins_a_new_count(played: Played) -> None:
    heard = Heard()
    actors = part(heard)
    for has_stepped in (False, False, True, False, False):
        played.answer(("10.0.0.8", 77))
        actors.watch()
        heard.num_steps += has_stepped
        played.answer(is_gone())
        actors.watch()
    assert actors.num_restarts == 5


def test_an_error_of_the_environment_ends_the_run_at_once(played: Played) -> None:
    actors = part()
    played.answer(("10.0.0.8", 77))
    actors.watch()
    played.answer(ray_actors._Failure("it raised", 150, "the world ends at step 150"))
    with pytest.raises(EnvironmentRaised, match="the world ends") as raised:
        actors.watch()
    assert (raised.value.actor, raised.value.step) == (0, 150)


def test_an_actor_that_ray_has_given_up_is_made_again(played: Played) -> None:
    actors = part()
    for made in (2, 3):
        played.answer(ray_actors.ActorDiedError())
        actors.watch()
        assert played.num_made == made and names(played)[-1] == "ready"
    played.answer(ray_actors.ActorDiedError())
    with pytest.raises(ActorsKeepDying):
        actors.watch()


def test_nodes_without_room_end_the_run_after_two_minutes(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Played, "wait", lambda self, seconds: False, raising=False)
    nodes = [{"Alive": True, "Resources": {"CPU": 0.5}}]
    monkeypatch.setattr(ray_actors.ray, "nodes", lambda: nodes)
    part().watch()
    monkeypatch.setattr(ray_actors, "_PLACED_S", 0.2)
    actors = part()
    time.sleep(0.3)
    with pytest.raises(DeadlineExceeded, match="after 0.* s.*room for 1 bundles.*1 nodes with 0.5 CPUs") as raised:
        actors.watch()
    assert raised.value.waited_s >= 0.2


def test_a_part_that_never_started_stops_and_a_stopped_one_has_no_actor(played: Played) -> None:
    config = preset("dqn", "CartPole-v1", {**RAY, "acting.num_actors": 1})
    RayActors(config, Heard()).stop()  # type: ignore[arg-type]
    assert played.killed == 0
    actors = part()
    actors.stop()
    actors.stop()
    assert played.killed == 1


def test_an_error_at_the_end_of_one_actor_keeps_no_group(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    tried, removed = [], []

    def failing(handle: Any, no_restart: bool) -> None:
        tried.append(handle)
        raise is_gone()

    actors = part()
    monkeypatch.setattr(ray_actors.ray, "kill", failing)
    monkeypatch.setattr(ray_actors, "remove_placement_group", removed.append)
    actors.stop()
    assert len(tried) == 1 and removed == [played]


# ---- on nodes --------------------------------------------------------------------------------------------------------


@contextmanager
def found_on_nodes(*scenarios: str) -> Iterator[dict[str, Any]]:
    reason = why_not()
    if reason:
        pytest.skip(f"Ray nodes need a network namespace of their own, which is not permitted here: {reason}")
    with tempfile.TemporaryDirectory(prefix="r", ignore_cleanup_errors=True) as folder:
        command = [*UNSHARE, sys.executable, str(PROGRAM), folder, *scenarios]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1700)
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])
    for scenario, found in told.items():
        assert not isinstance(found, str) or "Traceback" not in found, f"{scenario}: {found}"
    yield told


NOTHING = [0, [], []]  # actors, tables, placement groups


@needs_shared_memory
@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_a_run_is_refused_where_it_cannot_act_and_leaves_nothing() -> None:
    with found_on_nodes("without_a_cluster", "refused", "stopped", "too_many") as told:
        code, said, is_there = told["without_a_cluster"]
        assert code == 1 and "ray start --head" in said and "Traceback" not in said and not is_there
        code, said = told["refused"]["Faulty"]
        assert code == 1 and "the world ends at step 150" in said and "actor 0" in said
        code, said = told["refused"]["Deadly"]
        assert code == 1 and "actor 0 died 3 times before its first step, last because:" in said
        assert told["refused"]["left"] == NOTHING
        assert told["stopped"] == [130, True, NOTHING]
        code, said, left = told["too_many"]
        assert code == 1 and "room for 8 bundles" in said and "1 nodes with 3 CPUs" in said and left == NOTHING


@needs_shared_memory
@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_an_actor_a_node_and_the_learner_are_killed() -> None:
    with found_on_nodes("killed") as told:
        found = told["killed"]
        assert found["placed"] == [2, 2]
        assert found["after an actor"] == [2, 2, 1], "Ray starts it again, on its node"
        assert found["after a node"] == [2, 0, True]
        assert found["with the node again"] == [2, 2]
        actors, groups, num_tables = found["after the learner"]
        assert (actors, groups, num_tables) == (0, [], 1), "its table waits for the next session"
        assert found["resumed"] == 0 and found["result"] == [2, True, True]
        assert found["left"] == NOTHING


@needs_shared_memory
@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_ray_starts_the_hosts_of_a_run_which_is_resumed_after_one_is_killed() -> None:
    with found_on_nodes("host_that_fails", "on_hosts") as told:
        found = told["on_hosts"]
        assert found["placed"] == [True], "the other host is on the other node"
        assert found["tables"] == 2, "each host has a table of its own"
        assert found["killed"] == [1, True] and found["groups"] == []
        assert found["resumed"] == 0 and found["sessions"] == 2
        assert found["left"] == [*NOTHING, 0]
        no_room, said, failed, why, left = told["host_that_fails"]
        assert no_room == 1 and "1 nodes besides this one" in said and "Traceback" not in said
        assert failed == 1 and "host 1: " in why and "fails-host1" in why and "Traceback" not in why
        assert left == [*NOTHING, 0]


@needs_shared_memory
@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_actors_write_to_the_shard_of_their_node_and_shards_end_with_the_run() -> None:
    with found_on_nodes("sharded") as told:
        found = told["sharded"]
        assert found["placed"] == [2, 2, 1, 1] and found["maps"] == [True, True]
        assert found["written and drawn"] == [True, True]
        assert found["after an actor"] == [2, 2, 1], "it maps the shard of its node again"
        assert found["after an owner"] == [4, 1, 1], "the actors wait for it, and go on"
        assert found["after a node"] == [2, 0, 1]
        assert found["with the node again"] == [2, 2, 1, [[], []]], "its shard is lost: they stream to the other one"
        processes, memory, groups = found["after the learner"]
        assert (processes, groups) == (0, []), "the shards end by themselves"
        assert len(memory) == 1, "of the node that was lost"
        assert found["resumed"] == 0 and found["result"] == [2, True, True]
        assert found["left"] == NOTHING


@needs_shared_memory
@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_a_run_with_two_shards_reaches_the_mark_and_shards_leave_nothing_however_a_run_ends() -> None:
    with found_on_nodes("shards_end", "shards_by_hand", "shards_solve") as told:
        found = told["shards_end"]
        assert found["interrupted"] == [130, True, NOTHING]
        assert found["faulty"] == [1, True, NOTHING]
        assert found["waits"] == [None, NOTHING] and found["waits no more"] == [130, NOTHING]
        assert found["hangs"] == [130, NOTHING]
        assert told["shards_by_hand"] == [[[0]], 130, True, 130, NOTHING]
        code, ending, num_steps, mean, left = told["shards_solve"]
        assert code == 0 and ending == "reached its return" and mean >= 195.0, (num_steps, mean)
        assert left == NOTHING


@needs_shared_memory
@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_a_run_on_a_ray_node_reaches_the_mark_of_a_run_without_ray() -> None:
    with found_on_nodes("solves") as told:
        for name in ("ray", "alone"):
            code, ending, num_steps, mean = told["solves"][name]
            assert code == 0 and ending == "reached its return" and mean >= 195.0, (name, num_steps, mean)
        assert told["solves"]["left"] == NOTHING


@needs_shared_memory
@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_a_second_node_with_as_many_actors_makes_nearly_twice_the_steps() -> None:
    """The actors wait 2 ms a step. The best of three rounds counts: other programs use the cores as well."""
    with found_on_nodes("measured") as told:
        found = told["measured"]
        assert found["placed"] == [4, 4]
        assert max(two / one for one, two in zip(found["4"], found["8"], strict=True)) >= 1.8, found
