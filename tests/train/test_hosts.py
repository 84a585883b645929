"""Learners on several hosts, here processes: one update, one ending, and who goes missing."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes.shm import needs_shared_memory, shared_files
from processes.tools import answers, children

torch = pytest.importorskip("torch", reason="training needs torch")
pytest.importorskip("gymnasium", reason="training needs Gymnasium")
if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("this build of torch has no gloo", allow_module_level=True)

from torch import distributed  # noqa: E402

from relive.errors import InvalidConfig  # noqa: E402
from relive.train import HostGone, HostsDiffer, ReplicasDiffer, preset, train  # noqa: E402
from relive.train.acting.environments import describe  # noqa: E402
from relive.train.config import TrainConfig  # noqa: E402
from relive.train.learners.follower import Slice, state_hash  # noqa: E402
from relive.train.learners.host_group import EndedElsewhere, HostGroup  # noqa: E402
from relive.train.learners.meeting import HostMeeting, HostOptions, equal_options, host_number  # noqa: E402
from relive.train.settings import changed, options  # noqa: E402
from relive.train.watching.checkpoint import joint_names, load_checkpoint  # noqa: E402
from relive.train.watching.joint_saves import newest_common  # noqa: E402
from relive.train.watching.result import Ending  # noqa: E402
from train.test_topology import AGENTS, ROWS, SMALL, batch_of, made, tensors  # noqa: E402

pytestmark = needs_shared_memory
HOSTS = 2


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Callable[..., list[Any]]]:
    """hosts(work, *arguments): a process a host, which joins the others and sends what work(number, ...) returns."""
    with children() as start:

        def run(work: Callable[..., Any], *arguments: Any) -> list[Any]:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            return [start("spawn", host, number, port, work, *arguments) for number in range(HOSTS)]

        yield run


def host(pipe: Any, number: int, port: int, work: Callable[..., Any], *arguments: Any) -> None:
    told = {"RANK": number, "WORLD_SIZE": HOSTS, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in told.items()})
    torch.set_num_threads(1)
    pipe.send(work(number, *arguments))
    pipe.recv()


def group_of(agent: Any, hash_period: int = 100, **more: Any) -> HostGroup:
    return HostGroup(agent, HostMeeting(HostOptions(HOSTS, "cpu", **more)), hash_period)


def slice_of(agent: str, number: int, host_: int) -> Slice:
    """Its rows of a batch, with the weights that they have in the whole one."""
    batch = batch_of(agent, number)
    columns = {**batch.columns, "importance weights": np.asarray(batch.weights(1.0))}
    size = ROWS // HOSTS
    return Slice(columns, slice(host_ * size, (host_ + 1) * size))


# ---- updates ---------------------------------------------------------------------------------------------------------


def learn(number: int) -> dict[str, Any]:
    """Six updates of each agent, the second host's made with another seed."""
    distributed.init_process_group("gloo")
    told: dict[str, Any] = {}
    for name in AGENTS:
        agent, *_ = made(name, slices=HOSTS, seed=4 + number)
        group = group_of(agent, hash_period=2)
        assert not group.begin(solved=False)
        priorities = [group.update(slice_of(name, update, number)) for update in range(6)]
        told[name] = state_hash(agent), {key: value.numpy() for key, value in tensors(agent.state_dict())}, priorities
        group.leave(Ending.LIMIT)
    return told


def test_hosts_do_what_one_learner_does_with_the_whole_batch(hosts: Any) -> None:
    first, second = answers(hosts(learn))
    for name in AGENTS:
        alone, *_ = made(name)
        priorities = [alone.update(batch_of(name, update)) for update in range(6)]
        assert first[name][0] == second[name][0], f"{name}: the same bits on both"
        for key, value in tensors(alone.state_dict()):
            assert np.allclose(first[name][1][key], value.numpy(), rtol=1e-4, atol=1e-5), f"{name}: {key}"
        if priorities[0] is not None:
            both = [np.concatenate(pair) for pair in zip(first[name][2], second[name][2], strict=True)]
            assert np.allclose(both, priorities, rtol=1e-3, atol=1e-5), name


# ---- endings, and who goes missing -----------------------------------------------------------------------------------


def end(number: int) -> list[Any]:
    """One ends after three updates; both at once; one is no replica any more; one is silent; one is gone."""
    distributed.init_process_group("gloo")
    told: list[Any] = []

    def until_it_ends(ends_after: int, ending: Ending, **options: Any) -> None:
        agent, *_ = made("dqn", slices=HOSTS)
        group = group_of(agent, **options)
        assert not group.begin(solved=False)
        try:
            for update in range(ends_after):
                group.update(slice_of("dqn", update, number))
                if options and number and update == 1:
                    with torch.no_grad():
                        next(iter(agent.exchange().tensors)).view(-1)[0] += 1.0
            found = group.leave(ending)
        except EndedElsewhere as elsewhere:
            found = group.leave(elsewhere.ending)  # says nothing: the others are not there to hear it
        except ReplicasDiffer as differ:
            told.append(("differ", differ.learner, differ.num_updates, differ.expected != differ.got))
            return
        told.append((found, agent.num_updates))

    until_it_ends(3 if number else 1000, Ending.SOLVED)
    until_it_ends(2, (Ending.LIMIT, Ending.STOPPED)[number])
    until_it_ends(1000, Ending.LIMIT, hash_period=1)
    agent, *_ = made("dqn", slices=HOSTS)
    silent = group_of(agent, deadline_s=1.0)
    began_s = time.monotonic()
    if number == 0:
        try:
            silent.update(slice_of("dqn", 0, number))
        except HostGone as gone:
            told.append(("silent", gone.host, 0.9 < gone.waited_s < 10.0))
    else:
        time.sleep(3.0)
    group = group_of(agent)
    if number:
        os._exit(0)
    try:
        group.update(slice_of("dqn", 0, number))
    except HostGone as gone:
        told.append(("gone", gone.host, time.monotonic() - began_s < 30.0))
    return told


def test_all_hosts_end_together_and_miss_one_that_is_gone(hosts: Any) -> None:
    first, second = hosts(end)
    told = first.answer()
    first.pipe.send(None)
    assert told[0] == (Ending.SOLVED, 3), "the other one's reason"
    assert told[1] == (Ending.STOPPED, 2), "of two reasons all have the same"
    assert told[2] == ("differ", 0, 2, True)
    assert told[3:] == [("silent", 0, True), ("gone", 0, True)]
    second.process.join(30.0)
    assert second.process.exitcode == 0


def inline(agent: str = "dqn", env_id: str = "CartPole-v1", **more: Any) -> TrainConfig:
    """A run of two hosts that act inline."""
    few = {"topology": f"hosts({HOSTS})", "acting.num_actors": 1, "acting.inline": True}
    return preset(agent, env_id, {**SMALL, **few, **more})


def in_a_row(number: int, folder: Path) -> list[Any]:
    """Runs of one process after another: one host stops, the first one solves it, and only that one remembers."""
    told: list[Any] = []
    config = inline(**{"limits.max_steps": 10**6})
    easy = inline(**{"evaluation.stop_return": 1.0, "evaluation.num_confirm_episodes": 1})

    def ended(*arguments: Any, **more: Any) -> None:
        result = train(*arguments, **more)
        told.append((result.ending, result.num_updates))

    ended(config, folder / "stops", stop_when=lambda steps, updates: number == 1 and updates >= 20)
    ended(easy, folder / "both", stop_when=lambda steps, updates: number == 1 and updates >= 50)
    ended(easy, folder / "solved")
    if number:
        shutil.rmtree(folder / "solved-host1")
    ended(None, folder / "solved", resume=True)
    most = told[-1][1] + 10
    ended(config, folder / "solved", resume=True, stop_when=lambda steps, updates: number == 0 and updates >= most)
    return told


def test_runs_in_a_row_end_for_all_as_the_first_host_says(hosts: Any, tmp_path: Path) -> None:
    first, second = answers(hosts(in_a_row, tmp_path))
    assert first[:3] == second[:3], "the fourth one is over before the second host has learnt anything"
    stopped, solved = Ending.STOPPED.value, Ending.SOLVED.value
    assert [ending for ending, _ in first] == [stopped, stopped, solved, solved, stopped]
    assert [ending for ending, _ in second] == [stopped, stopped, solved, solved, stopped]
    assert first[4][1] == first[3][1] + 10, "another return was asked for, and the run goes on"
    assert first[0][1] == 20 and first[1][1] == 50, "the first evaluation reached its return, but the run was stopped"
    assert not load_checkpoint(tmp_path / "both")[1].solved


# ---- before anything is made -----------------------------------------------------------------------------------------

DIFFER: list[tuple[str, Any, Any]] = [
    ("agent.gamma", 0.5, 0.995),
    ("agent.n_step", 1, 5),
    ("agent.batch_size", 32, 64),
    ("agent.double", True, False),
    ("agent.priority_exponent", 0.6, 0.0),
    ("agent.network.hidden", (16,), (16, 16)),
    ("replay.updates_per_step", 0.5, 1.0),
    ("environment.seed", 0, 1),
]


def told_otherwise(number: int, folder: Path) -> list[Any]:
    """Runs of two hosts that differ in one option each, then in agent and environment."""
    told: list[Any] = []
    configs = [inline(**{option: pair[number]}) for option, *pair in DIFFER]
    configs += [inline(("dqn", "iqn")[number]), inline(env_id=("CartPole-v1", "Acrobot-v1")[number])]
    for config in configs:
        try:
            train(config, folder / "run")
        except HostsDiffer as differ:
            told.append((differ.option, differ.expected, differ.got, differ.host))
    try:
        train(inline(), folder / "run", resume=number == 0)
    except HostsDiffer as differ:
        told.append((differ.option, differ.expected, differ.got, differ.host))
    return [told, sorted(path.name for path in folder.iterdir())]


def test_hosts_that_are_told_different_options_all_hear_which(hosts: Any, tmp_path: Path) -> None:
    first, second = answers(hosts(told_otherwise, tmp_path))
    assert first == second, "the same error on both"
    told, left = first
    listed = [(option, *(list(one) if isinstance(one, tuple) else one for one in pair)) for option, *pair in DIFFER]
    assert [one[:3] for one in told[: len(DIFFER)]] == listed
    assert [one[0] for one in told[len(DIFFER) :]] == ["agent.name", "environment.env_id", "resume"]
    assert {one[3] for one in told} == {1} and left == [], "a refused run leaves no directory"


def unlike_machines(number: int, folder: Path) -> Any:
    config = inline(**{"environment.num_envs_per_actor": 1 + number, "acting.num_actors": 1 + number, "threads": 1})
    return train(config, folder / "run").ending


def test_hosts_may_have_other_numbers_of_actors(hosts: Any, tmp_path: Path) -> None:
    assert answers(hosts(unlike_machines, tmp_path)) == [Ending.LIMIT.value] * HOSTS


def test_every_option_is_equal_or_says_how_a_host_works() -> None:
    config = inline()
    spaces = describe("CartPole-v1")
    told = equal_options(config, spaces, "cpu")
    free = {option.path for option in options(config)} - set(told)
    assert free == {
        "acting.inline",
        "acting.num_actors",
        "acting.publish_period",
        "environment.num_envs_per_actor",
        "limits.checkpoint_period_s",
        "logging.project",
        "logging.wandb",
        "profile",
        "serving.address",
        "serving.client_ca",
        "serving.insecure",
        "serving.max_lanes",
        "serving.max_staleness_s",
        "serving.tls_cert",
        "serving.tls_key",
        "serving.tokens",
        "threads",
        "tuned",
        "update",
    }
    assert told["agent.name"] == "dqn" and told["device"] == "cpu"
    assert equal_options(config, spaces, "cuda:1")["device"] == equal_options(config, spaces, "cuda:0")["device"]
    assert equal_options(changed(config, {"agent.gamma": 0.5}), spaces, "cpu")["agent.gamma"] == 0.5
    assert equal_options(config, describe("Acrobot-v1"), "cpu") != told


def called_off(number: int, folder: Path) -> Any:
    """The first host waits alone, hears a signal, and then meets the second one after all."""
    if number:
        while not (folder / "heard").exists():
            time.sleep(0.01)
        return [train(inline(), folder / "run").ending]

    def interrupt() -> None:
        while not any(one.name == "relive-meeting" for one in threading.enumerate()):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    told: list[Any] = []
    try:
        train(inline(), folder / "run")
    except KeyboardInterrupt:
        told.append("heard")
    told.append([path.name for path in folder.iterdir()] + [path.name for path in shared_files(f"train-{os.getpid()}")])
    (folder / "heard").touch()
    return [*told, train(inline(), folder / "run").ending]


def test_a_host_that_waits_for_another_hears_a_signal_and_leaves_nothing(hosts: Any, tmp_path: Path) -> None:
    first, second = answers(hosts(called_off, tmp_path))
    assert first == ["heard", [], Ending.LIMIT.value] and second == [Ending.LIMIT.value]


def waits_for_good(number: int) -> Any:
    """Ends while torch still waits for the other host on a thread."""
    if number:
        return "did not come"
    try:
        HostMeeting(HostOptions(HOSTS, "cpu"), lambda: True)
    except KeyboardInterrupt:
        return "heard"


def test_a_process_ends_although_torch_still_waits(hosts: Any) -> None:
    group = hosts(waits_for_good)
    assert answers(group) == ["heard", "did not come"]
    for child in group:
        child.join()


# ---- one host ends, at a random moment -------------------------------------------------------------------------------


def until_one_ends(number: int, folder: Path, how: str, moment: int) -> Any:
    """The second host gets a signal after `moment` updates, or raises an error, and its process stays.

    If it hangs, the first one is interrupted, twice.
    """
    heard = threading.Event()
    other = folder / "second"

    def take(signal_number: int, frame: Any) -> None:
        heard.set()
        raise KeyboardInterrupt

    def interrupt() -> None:
        while not other.exists() or Path(f"/proc/{other.read_text()}/stat").read_text().split()[2] != "T":
            time.sleep(0.01)
        while not heard.wait(0.5):
            os.kill(os.getpid(), signal.SIGINT)

    def ends(steps: int, updates: int) -> bool:
        if number and updates >= moment and how == "raises":
            gc.disable()  # the connection must not wait for it
            raise ArithmeticError
        if number and updates >= moment and not other.exists():
            (folder / "pid").write_text(str(os.getpid()))
            (folder / "pid").rename(other)
            os.kill(os.getpid(), {"hangs": signal.SIGSTOP, "dies": signal.SIGKILL, "stops": signal.SIGINT}[how])
        return False

    if how == "hangs" and number == 0:
        signal.signal(signal.SIGINT, take)
        threading.Thread(target=interrupt, daemon=True).start()
    run = folder / "run"
    try:
        ended = train(inline(**{"limits.max_steps": 10**6}), run, stop_when=ends).ending
    except (HostGone, KeyboardInterrupt, ArithmeticError) as error:
        ended = type(error).__name__
    state, _ = load_checkpoint(run if number == 0 else folder / "run-host1")
    return ended, state["num_updates"], [path.name for path in shared_files(f"train-{os.getpid()}-")]


@pytest.mark.forms(1)
@pytest.mark.parametrize("turn", range(15 if os.environ.get("RELIVE_SOAK") else 1))
@pytest.mark.parametrize("how", ["stops", "dies", "hangs", "raises"])
def test_a_host_that_ends_at_a_random_moment(hosts: Any, tmp_path: Path, how: str, turn: int) -> None:
    moment = int(np.random.default_rng().integers(1, 200))
    first, second = hosts(until_one_ends, tmp_path, how, moment)
    ended, num_updates, left = first.answer()
    gone = {"dies": "HostGone", "raises": "HostGone"}
    expected = {"stops": Ending.STOPPED.value, "hangs": "KeyboardInterrupt", **gone}
    assert (ended, left) == (expected[how], []) and num_updates >= moment, f"moment {moment}"
    if how == "stops":
        assert second.answer() == (ended, num_updates, []), f"moment {moment}"
    if how == "raises":
        assert second.answer()[0] == "ArithmeticError", f"moment {moment}"
    for path in shared_files(f"train-{second.process.pid}-"):  # nothing of a killed process removes its memory
        path.unlink()


# ---- saves -----------------------------------------------------------------------------------------------------------


def save_often(number: int, folder: Path, dies_after: float) -> Any:
    """The second host dies at a moment of a run with many saves; then both resume. What each had, and goes on from."""
    run = folder / "run" if number == 0 else folder / "run-host1"
    resumes = (folder / "dies").exists()
    often = {"limits.checkpoint_period_s": 0.05, "checkpoint.table": "always", "limits.max_steps": 10**6}
    begun: list[tuple[int, int]] = []
    ends_s = time.monotonic() + 60.0

    def ends(steps: int, updates: int) -> bool:
        begun.append((steps, updates))
        if resumes:
            return updates >= begun[0][1] + 20
        has_saves = number == 1 and updates > 60 and len(joint_names(run, is_first=False)) >= 2
        if has_saves and not (folder / "dies").exists():
            (folder / "dies").touch()
            threading.Timer(dies_after, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
        return time.monotonic() > ends_s

    before = list(joint_names(run, is_first=number == 0))
    try:
        train(inline(**often), folder / "run", stop_when=ends, resume=resumes)
    except HostGone:
        pass
    return before, begun[0], list(joint_names(run, is_first=number == 0))


@pytest.mark.parametrize("turn", range(10 if os.environ.get("RELIVE_SOAK") else 1))
def test_hosts_resume_from_the_newest_save_that_all_have(hosts: Any, tmp_path: Path, turn: int) -> None:
    dies_after = float(np.random.default_rng().uniform(0.0, 0.3))
    first, second = hosts(save_often, tmp_path, dies_after)
    none, _, mine = first.answer()
    assert none == [] and 2 <= len(mine) <= 3
    second.process.join()
    for path in shared_files(f"train-{second.process.pid}-"):
        path.unlink()
    theirs = list(joint_names(tmp_path / "run-host1", is_first=False))
    expected = newest_common([mine, theirs])
    assert expected is not None, (mine, theirs)
    told = answers(hosts(save_often, tmp_path, dies_after))
    for before, (steps, updates), after in told:
        assert expected in before and int(expected.split("-")[1]) == updates
        assert steps >= updates, "the steps of the table that was saved"
        assert expected.split("-")[0] not in after[0], "a session of its own"
    assert told[0][2][0] == told[1][2][0], "both end with a save of one update"


def sessions_without_tables(number: int, folder: Path) -> Any:
    """Sessions that save the table, then the learner alone, then the table again. Where each of them begins."""
    begun = []
    for session, table in enumerate(("end", "never", "end")):
        seen: list[int] = []

        def ends(steps: int, updates: int, seen: list[int] = seen) -> bool:
            seen.append(updates)
            return updates >= seen[0] + 10

        train(inline(**{"checkpoint.table": table}), folder / "run", stop_when=ends, resume=session > 0)
        begun.append(seen[0])
    return begun


def test_hosts_do_not_go_back_to_a_save_that_is_older_than_the_learner(hosts: Any, tmp_path: Path) -> None:
    assert answers(hosts(sessions_without_tables, tmp_path)) == [[0, 10, 20]] * HOSTS


# ---- whole runs ------------------------------------------------------------------------------------------------------


def by_torchrun(*arguments: str) -> None:
    """As the documentation has it, with both hosts on this one."""
    relive = str(Path(sys.executable).with_name("relive"))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(HOSTS)]
    command = [*torchrun, "--no-python", relive, "train", "sac", *arguments]
    environment = {**os.environ, "RELIVE_TEST_WARM": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.thorough
def test_a_run_of_two_hosts_and_its_second_session(tmp_path: Path) -> None:
    small = {name: value for name, value in SMALL.items() if not name.startswith("agent.network")}
    small |= {"topology": f"hosts({HOSTS})", "acting.num_actors": 1, "limits.max_steps": 400, "agent.hidden": 16}
    config = [word for name, value in small.items() for word in ("--set", f"{name}={value}")]
    run, other = tmp_path / "run", tmp_path / "run-host1"
    for arguments in (
        ["--env", "Pendulum-v1", "--run-dir", str(run), *config],
        ["--resume", str(run), "--set", "limits.max_steps=800"],
    ):
        by_torchrun(*arguments)
        (state, progress), (its_state, its) = load_checkpoint(run), load_checkpoint(other)
        for (name, mine), (_, theirs) in zip(tensors(state), tensors(its_state), strict=True):
            assert torch.equal(mine, theirs), name
        assert progress.curve and not its.curve, "the first one evaluates for all"
        assert (run / "result.json").exists() and not (other / "result.json").exists()
    result = json.loads((run / "result.json").read_text())
    assert progress.num_sessions == its.num_sessions == 2 and result["num_updates"] > 100
    assert progress.num_steps >= 800 and its.num_steps > 400, "each counts the steps of its own actors"
    learnt_from = min(progress.num_steps, its.num_steps) - 2 * 100  # each session fills a table first
    assert result["num_updates"] > 1.5 * learnt_from, "an update a step of both hosts together, not of one"


# ---- bad input -------------------------------------------------------------------------------------------------------


def test_hosts_that_cannot_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = preset("dqn", "CartPole-v1", {"topology": "hosts(2)"})
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(InvalidConfig, match="torchrun"):
        train(config, tmp_path / "run")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(InvalidConfig, match="the 3 that torchrun starts"):
        train(config, tmp_path / "run")
    assert not list(tmp_path.iterdir()), "a refused run leaves no directory"
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert host_number(2) == 1
    with pytest.raises(InvalidConfig, match="batch_size"):
        preset("dqn", "CartPole-v1", {"topology": "hosts(3)"})
    with pytest.raises(InvalidConfig, match="serving.address"):
        preset("dqn", "CartPole-v1", {"topology": "hosts(2)", "serving.address": "grpc://127.0.0.1:0"})
    with pytest.raises(InvalidConfig, match="hosts"):
        preset("dqn", "CartPole-v1", {"topology": "hosts"})


def test_one_host_is_no_group() -> None:
    config = preset("dqn", "CartPole-v1", {"topology": "hosts(1)"})
    assert (config.topology.num_hosts, config.num_drawn, str(config.topology)) == (
        1,
        config.agent.batch_size,
        "hosts(1)",
    )
