"""Topologies: what they leave alike, several learners of one update, and who dies in a run."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training needs torch")
pytest.importorskip("gymnasium", reason="training needs Gymnasium")


from rich.console import Console  # noqa: E402

from relive.errors import InvalidConfig  # noqa: E402
from relive.train import (  # noqa: E402
    Callback,
    EnvironmentRaised,
    InferenceKeepsDying,
    LearnersKeepDying,
    ReplicasDiffer,
    Snapshot,
    preset,
    train,
)
from relive.train.acting import inference_pool  # noqa: E402
from relive.train.learners.follower import state_hash  # noqa: E402
from relive.train.learners.group import GroupOptions, LearnerGroup  # noqa: E402
from relive.train.watching.checkpoint import load_checkpoint  # noqa: E402
from train.batches import box_spaces, continuous_batch, discrete_batch, discrete_spaces  # noqa: E402
from train.runs import has_checkpoint  # noqa: E402

SMALL: dict[str, object] = {
    "acting.num_actors": 2, "environment.num_envs_per_actor": 2, "replay.min_size": 100, "agent.batch_size": 16,
    "evaluation.num_episodes": 1, "evaluation.num_final_episodes": 1, "agent.network.hidden": (16,),
    "limits.max_minutes": 2.0, "limits.max_steps": 600,
}  # fmt: skip


# ---- several learners of one update ----------------------------------------------------------------------------------

AGENTS: dict[str, dict[str, object]] = {
    "dqn": {"agent.network.hidden": (16, 16), "agent.priority_exponent": 0.6},
    "iqn": {"agent.network.hidden": (16, 16), "agent.priority_exponent": 0.6},
    "ddpg": {"agent.hidden": (16, 16)},
    "td3": {"agent.hidden": (16, 16), "agent.priority_exponent": 0.5},
    "sac": {"agent.hidden": (16, 16)},
}
ROWS = 24


def made(agent: str, *, slices: int = 1, seed: int = 4) -> Any:
    """An agent for a slice of 24 rows, its configuration of them all, and its spaces."""
    spaces = discrete_spaces() if agent in ("dqn", "iqn") else box_spaces()
    config = preset(agent, spaces.env_id, {**AGENTS[agent], "agent.batch_size": ROWS}).agent
    return replace(config, batch_size=ROWS // slices).make(spaces, seed=seed, device="cpu"), config, spaces


def batch_of(agent: str, number: int) -> Any:
    batch = discrete_batch(number, ROWS) if agent in ("dqn", "iqn") else continuous_batch(number, ROWS)
    # Weights as a table gives them: of a power of the probabilities, so that those of beta are w(1) ** beta.
    of_one = batch.weights(1.0)
    batch.weights = lambda beta: of_one ** np.float32(beta)
    return batch


@contextmanager
def group_of(agent: str, count: int, **options: Any) -> Iterator[tuple[Any, LearnerGroup]]:
    leader, config, spaces = made(agent, slices=count)
    group = LearnerGroup(leader, config, spaces, GroupOptions(count, "cpu", 1, **options))
    try:
        yield leader, group
    finally:
        group.stop()
        assert group.pids == []


def tensors(state: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in state.items():
        if isinstance(value, dict):
            yield from tensors(value, f"{path}{name}.")
        elif isinstance(value, torch.Tensor):
            yield path + name, value


@pytest.mark.forms(3)
@pytest.mark.parametrize(("agent", "count"), [("dqn", 3), ("iqn", 2), ("ddpg", 2), ("td3", 3), ("sac", 2)])
def test_several_learners_do_what_one_does(agent: str, count: int) -> None:
    """To float error: a mean of means is rounded otherwise. SAC's gradients go in several rounds."""
    alone, _, _ = made(agent)
    with group_of(agent, count, hash_period=1, chunk=100 if agent == "sac" else 2**20) as (leader, group):
        for number in range(12):
            expected, got = alone.update(batch_of(agent, number)), group.update(batch_of(agent, number))
            assert (expected is None) == (got is None)
            if expected is not None:
                np.testing.assert_allclose(got, expected, rtol=1e-3, atol=2e-5)
        assert leader.num_updates == alone.num_updates == 12 and group.num_restarts == 0
        for (name, one), (_, other) in zip(tensors(alone.state_dict()), tensors(leader.state_dict()), strict=True):
            if name == "generator":
                assert torch.equal(one, other), "the noise of an agent does not depend on how many learn"
            else:
                torch.testing.assert_close(one, other, rtol=1e-3, atol=2e-5, msg=lambda text, of=name: f"{of}: {text}")


def test_two_groups_have_the_same_bits() -> None:
    """The order of summation is fixed, whoever comes first."""
    hashes = []
    for _ in range(2):
        with group_of("sac", 3) as (leader, group):
            for number in range(8):
                group.update(batch_of("sac", number))
            hashes.append(state_hash(leader))
    assert hashes[0] == hashes[1]


def test_a_replica_that_differs_is_found() -> None:
    with group_of("dqn", 2, hash_period=4) as (leader, group):
        group.update(batch_of("dqn", 0))
        leader.target.values[0] += 1e-3
        with pytest.raises(ReplicasDiffer) as caught:
            for number in range(1, 6):
                group.update(batch_of("dqn", number))
        error = caught.value
    assert (error.learner, error.num_updates) == (1, 4) and error.expected != error.got and "learner 1" in str(error)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_learner_is_replaced(how: signal.Signals) -> None:
    """Killed it is heard of at once; stopped, when its deadline is over. The update that ran is whole all the same."""
    with group_of("sac", 2, hash_period=1, deadline_s=60.0 if how == signal.SIGKILL else 1.0) as (leader, group):
        group.update(batch_of("sac", 0))
        (pid,) = group.pids
        os.kill(pid, how)
        assert group.update(batch_of("sac", 1)) is None
        assert group.pids == [] and leader.num_updates == 2 and group.num_restarts == 1
        assert not Path(f"/proc/{pid}").exists()
        group._options = replace(group._options, deadline_s=60.0)
        group.update(batch_of("sac", 2))
        assert leader.num_updates == 3 and group.pids not in ([], [pid]), "and has the leader's state: hashed each time"


def test_learners_that_keep_dying_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    started = LearnerGroup._start

    def start_and_kill(group: LearnerGroup, layout: Any) -> None:
        started(group, layout)
        for pid in group.pids:
            os.kill(pid, signal.SIGKILL)

    monkeypatch.setattr(LearnerGroup, "_start", start_and_kill)
    with group_of("dqn", 2) as (_, group):
        with pytest.raises(LearnersKeepDying) as caught:
            for number in range(10):
                group.update(batch_of("dqn", number))
    assert (caught.value.learner, caught.value.num_deaths, caught.value.exit_code) == (1, 3, -signal.SIGKILL)


# ---- whole runs ------------------------------------------------------------------------------------------------------


def streams_of(folder: Path) -> dict[str, bytes]:
    """What every environment of an actor showed, by its seed; those of evaluations have seeds of their own range."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if int(path.name) < 2**30}


@pytest.mark.thorough
def test_a_topology_does_not_change_the_streams_of_environments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their observations do not depend on actions, so that streams differ in their lengths only."""
    found = {}
    for topology in ("inline", "actors", "learners(2, sync)", "learners(2, async)", "central(3, 200)", "double"):
        folder = tmp_path / topology
        folder.mkdir()
        monkeypatch.setenv("RELIVE_TEST_STREAMS", str(folder))
        result = train(
            preset("dqn", "train.worlds:Written-v0", {**SMALL, "topology": topology, "environment.seed": 3}),
            tmp_path / f"run of {topology}",
        )
        assert result.num_updates > 50 and "limit" in result.ending and multiprocessing.active_children() == []
        found[topology] = streams_of(folder)
    inline = found.pop("inline")
    assert len(inline) == 4 and len(set(inline.values())) == 4, "two actors of two environments"
    for streams in found.values():
        assert streams.keys() == inline.keys()
        lengths = [min(len(stream), len(inline[seed])) for seed, stream in streams.items()]
        assert sum(lengths) > 16 * 250, "an actor may come late; then the other has gone further"
        for length, (seed, stream) in zip(lengths, streams.items(), strict=True):
            assert stream[:length] == inline[seed][:length]


def test_a_topology_does_not_change_what_a_policy_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy that stays as it is, and explores: the same actions, so that the same episodes, by whoever inferred."""
    found = {}
    settings: dict[str, object] = {
        **SMALL, "replay.min_size": 5_000, "limits.max_steps": 10**6,
        "agent.epsilon_start": 0.4, "agent.epsilon_end": 0.4,
        "environment.seed": 3, "environment.num_envs_per_actor": 3,
    }  # fmt: skip
    for topology in ("inline", "actors", "central(4, 300)", "double"):
        folder = tmp_path / topology
        folder.mkdir()
        monkeypatch.setenv("RELIVE_TEST_STREAMS", str(folder))
        config = preset("dqn", "train.worlds:Acted-v0", {**settings, "topology": topology})
        result = train(config, tmp_path / f"run of {topology}", stop_when=lambda steps, updates: steps >= 600)
        assert result.num_updates == 0 and result.num_steps >= 600
        found[topology] = streams_of(folder)
    inline = found.pop("inline")
    assert len(inline) == 6 and len(set(inline.values())) == 6, "two actors of three environments"
    for topology, streams in found.items():
        assert streams.keys() == inline.keys()
        lengths = [min(len(stream), len(inline[seed])) for seed, stream in streams.items()]
        assert sum(lengths) > 20 * 250, "an action and an observation are 20 bytes"
        for length, (seed, stream) in zip(lengths, streams.items(), strict=True):
            assert stream[:length] == inline[seed][:length], topology


def test_an_inline_run_is_the_same_each_time(tmp_path: Path) -> None:
    states = []
    for number in range(2):
        settings = {**SMALL, "topology": "inline", "limits.max_steps": 100_000}
        folder = tmp_path / str(number)
        result = train(preset("dqn", "CartPole-v1", settings), folder, stop_when=lambda steps, updates: updates >= 80)
        assert result.stopped and result.num_updates == 80
        states.append((result.num_steps, load_checkpoint(folder)[0]))
    assert states[0][0] == states[1][0]
    for (name, one), (_, other) in zip(tensors(states[0][1]), tensors(states[1][1]), strict=True):
        assert torch.equal(one, other), name


@pytest.mark.thorough
def test_several_learners_have_no_actors_beside_them_where_that_is_asked_for(tmp_path: Path) -> None:
    """The first of them steps the environments, whose streams are those of actor processes."""
    names: set[str] = set()

    class Looking(Callback):
        def on_progress(self, now: Snapshot) -> None:
            names.update(child.name for child in multiprocessing.active_children())

    settings = {**SMALL, "topology": "learners(2, sync)", "acting.inline": True, "limits.max_steps": 1500}
    result = train(preset("dqn", "CartPole-v1", settings), tmp_path / "run", callbacks=[Looking()])
    assert result.num_updates > 200 and names == {"relive-learner-1"} and multiprocessing.active_children() == []
    for topology in ("actors", "actors(2)"):
        with pytest.raises(InvalidConfig, match="acting.inline"):
            preset("dqn", "CartPole-v1", {"topology": topology, "acting.inline": True})
    assert preset("dqn", "CartPole-v1", {"topology": "inline", "acting.inline": True}).acts_inline


def test_an_environment_that_raises_in_one_process_says_so_too(tmp_path: Path) -> None:
    settings = {**SMALL, "topology": "inline", "environment.num_envs_per_actor": 1}
    with pytest.raises(EnvironmentRaised) as caught:
        train(preset("dqn", "train.worlds:Faulty-v0", settings), tmp_path / "run")
    assert (caught.value.actor, caught.value.step) == (0, 150) and "worlds.py" in caught.value.traceback
    assert has_checkpoint(tmp_path / "run")


@pytest.mark.thorough
def test_a_run_goes_on_under_another_topology(tmp_path: Path) -> None:
    """Learner, optimizer, counters and versions are those of the checkpoint, whoever wrote it."""
    before = None
    for number, topology in enumerate(
        ("actors", "learners(2, sync)", "learners(2, async)", "double", "central(4, 100)", "inline"), 1
    ):
        alone = {"limits.max_steps": 100_000, "checkpoint.table": "never"}  # so that a session begins with a checkpoint
        config = preset("dqn", "CartPole-v1", {**SMALL, "topology": topology, **alone})
        seen: list[tuple[int, Any, Any]] = []

        class First(Callback):
            def on_checkpoint(self, path: Path, num_updates: int, seen: Any = seen) -> None:
                if not seen:
                    seen.append((num_updates, *load_checkpoint(path.parent)))

        result = train(
            config, tmp_path / "run", resume=number > 1, callbacks=[First()],
            stop_when=lambda steps, updates, limit=60 * number: updates >= limit,
        )  # fmt: skip
        assert result.stopped and result.num_updates == 60 * number and result.num_sessions == number
        num_updates, state, progress = seen[0]
        if before is not None:
            assert num_updates == before[0]["num_updates"] and progress.num_steps == before[1].num_steps
            assert progress.parameter_version == before[1].parameter_version + 1, "published once since"
            for (name, one), (_, other) in zip(tensors(before[0]), tensors(state), strict=True):
                assert torch.equal(one, other), name
        before = load_checkpoint(tmp_path / "run")


@pytest.mark.forms(1)
@pytest.mark.parametrize(
    ("topology", "victim"),
    [
        ("learners(2, sync)", "learner"),
        pytest.param("learners(2, sync)", "actor", marks=pytest.mark.thorough),
        pytest.param("learners(2, async)", "learner", marks=pytest.mark.thorough),
        ("central(8, 200)", "inference"),
        pytest.param("double", "inference", marks=pytest.mark.thorough),
        pytest.param("double", "actor", marks=pytest.mark.thorough),
    ],
)
def test_a_run_outlives_a_killed_process(topology: str, victim: str, tmp_path: Path) -> None:
    killed: list[int] = []

    class Killer(Callback):
        def on_progress(self, now: Snapshot) -> None:
            names = {str(child.pid): child.name for child in multiprocessing.active_children()}
            of_kind = [int(pid) for pid, name in names.items() if name.startswith(f"relive-{victim}")]
            if now.num_updates >= 10 and not killed and of_kind:
                killed.append(of_kind[0])
                os.kill(of_kind[0], signal.SIGKILL)

    said = Console(record=True, width=200, file=open(tmp_path / "log", "w"))
    settings = {**SMALL, "topology": topology, "limits.max_steps": 4000}
    result = train(preset("dqn", "CartPole-v1", settings), tmp_path / "run", callbacks=[Killer()], console=said)
    assert killed and "limit" in result.ending and result.num_steps >= 4000 and result.num_updates > 200
    assert multiprocessing.active_children() == []
    if victim == "inference":
        assert "the inference process died (exit code -9)" in said.export_text() and result.num_restarts == 0
    elif victim == "learner":
        assert re.search(r"learner [01] died \(exit code -9\)", said.export_text())
    else:
        assert result.num_restarts == 1


def test_an_inference_process_that_stands_still_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lives and says nothing: actors wait, until it has taken no turn for too long."""
    monkeypatch.setattr(inference_pool, "_SILENCE_S", 2.0)
    stopped: list[int] = []

    class Stopper(Callback):
        def on_progress(self, now: Snapshot) -> None:
            pids = [child.pid for child in multiprocessing.active_children() if child.name == "relive-inference"]
            if now.num_updates >= 10 and not stopped and pids and pids[0]:
                stopped.append(pids[0])
                os.kill(pids[0], signal.SIGSTOP)

    settings = {**SMALL, "topology": "central(4, 200)", "limits.max_steps": 3000}
    said = Console(record=True, width=200, file=open(tmp_path / "log", "w"))
    result = train(preset("dqn", "CartPole-v1", settings), tmp_path / "run", callbacks=[Stopper()], console=said)
    assert stopped and "limit" in result.ending and result.num_steps >= 3000 and result.num_restarts == 0
    assert "the inference process died" in said.export_text() and not Path(f"/proc/{stopped[0]}").exists()


def test_an_inference_process_that_keeps_dying_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = inference_pool.InferencePool.start

    def start_and_kill(pool: inference_pool.InferencePool) -> None:
        started(pool)
        assert pool.pid is not None
        os.kill(pool.pid, signal.SIGKILL)

    monkeypatch.setattr(inference_pool.InferencePool, "start", start_and_kill)
    with pytest.raises(InferenceKeepsDying) as caught:
        train(preset("dqn", "CartPole-v1", {**SMALL, "topology": "central(4, 200)"}), tmp_path / "run")
    assert (caught.value.num_deaths, caught.value.exit_code) == (3, -signal.SIGKILL)
    assert has_checkpoint(tmp_path / "run") and multiprocessing.active_children() == []
