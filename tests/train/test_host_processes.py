"""The processes of hosts: the address at which they meet, their exit status, and disks that they do not share."""

from __future__ import annotations

import atexit
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from processes.tools import answers

pytest.importorskip("torch", reason="training needs torch")
import relive.train.learners.meeting as meetings  # noqa: E402
import train.test_hosts as of_hosts  # noqa: E402
from relive.cli.training import _resumed  # noqa: E402
from relive.errors import InvalidConfig  # noqa: E402
from relive.train import HostsDiffer, train  # noqa: E402
from relive.train.config import TrainConfig  # noqa: E402
from relive.train.learners.meeting import HostMeeting, HostOptions  # noqa: E402
from relive.train.resuming import options_of_run  # noqa: E402
from train.test_hosts import HOSTS, inline  # noqa: E402

pytestmark = of_hosts.pytestmark
hosts = of_hosts.hosts  # the fixture

# ---- the address -----------------------------------------------------------------------------------------------------


def waits_elsewhere(number: int) -> Any:
    """Is told another address while torch still waits for the other host at the first one."""
    if number:
        return "did not come"
    told: list[Any] = []
    for port in (os.environ["MASTER_PORT"], "1"):
        os.environ["MASTER_PORT"] = port
        try:
            HostMeeting(HostOptions(HOSTS, "cpu"), lambda: True)
        except (KeyboardInterrupt, InvalidConfig) as error:
            told.append((type(error).__name__, str(error)))
    return told


def test_a_process_in_which_torch_still_waits_is_refused_at_another_address(hosts: Any) -> None:
    (heard, refused), _ = answers(hosts(waits_elsewhere))
    assert heard[0] == "KeyboardInterrupt" and refused[0] == "InvalidConfig"
    assert "a new process" in refused[1] and "127.0.0.1:1," in refused[1], refused
    (wait_s,) = map(int, re.findall(r"or a wait of (\d+) s", refused[1]))
    assert 0 < wait_s <= 300


# ---- the process of a host ends --------------------------------------------------------------------------------------


LEAVES = """
from relive.train.learners.meeting import HostMeeting, HostOptions
met = HostMeeting(HostOptions(4, "cpu"))
met.compare({})
met.leave(is_failed=False)
"""


def test_the_processes_of_hosts_that_leave_end_with_status_0() -> None:
    """They end as Python does. Processes that start warm end by os._exit."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        told = {"WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    told = {**os.environ, **told, "RELIVE_TEST_WARM": "0"}
    command = [sys.executable, "-c", LEAVES]
    group = [
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**told, "RANK": str(number)})
        for number in range(4)
    ]
    try:
        said = [one.communicate(timeout=120.0)[1] for one in group]
    finally:
        for one in group:
            one.kill()
    assert [one.returncode for one in group] == [0] * 4, said


def fails_and_ends(number: int, folder: Path) -> None:
    """The first host leaves in the middle of a transfer, and its process ends while the second host still stays."""
    told = folder / "ends"
    if number == 0:
        meetings._LEAVE_S = 60.0  # of a busy machine
        atexit.register(ends_alone)  # called last
    met = HostMeeting(HostOptions(HOSTS, "cpu"))
    met.compare({})
    if number == 0:
        with pytest.raises(KeyboardInterrupt):
            met.compare({}, lambda: True)
        met.leave(is_failed=True)
        told.touch()
    while not told.exists():
        time.sleep(0.01)
    sys.exit()


def ends_alone() -> None:
    if any(one.name == "relive-meeting" for one in threading.enumerate()):
        os._exit(3)


def test_the_process_of_a_host_ends_after_the_thread_that_drops_its_connections(hosts: Any, tmp_path: Path) -> None:
    for child in hosts(fails_and_ends, tmp_path):
        child.join()


# ---- disks that are not shared ---------------------------------------------------------------------------------------


def on_separate_disks(number: int, folder: Path) -> Any:
    """Two sessions of a run whose hosts share no disk: each of them has its own options and saves alone."""
    run = folder / f"disk{number}" / "run"
    envs = {"environment.num_envs_per_actor": 1 + number}
    first = train(inline(**envs), run, stop_when=lambda steps, updates: updates >= 10)
    again = train(run_dir=run, resume=True, stop_when=lambda steps, updates: updates >= 20)
    kept = TrainConfig.load(Path(again.run_dir) / "config.json").environment.num_envs_per_actor
    return first.num_updates, again.num_updates, kept, sorted(path.name for path in run.parent.iterdir())


def test_hosts_on_separate_disks_go_on_each_with_its_own_options(hosts: Any, tmp_path: Path) -> None:
    assert answers(hosts(on_separate_disks, tmp_path)) == [(10, 20, 1, ["run"]), (10, 20, 2, ["run-host1"])]


@pytest.mark.parametrize("read", [options_of_run, lambda run: _resumed("dqn", run, None, {})])
def test_a_host_reads_its_own_options_first(
    read: Callable[[Path], TrainConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, other = tmp_path / "run", tmp_path / "run-host1"
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(InvalidConfig, match=f"{other}/config.json, or {run}/config.json"):
        read(run)
    for number, folder in enumerate((run, other)):
        folder.mkdir()
        inline(**{"environment.seed": number}).save(folder / "config.json")
        assert read(run).environment.seed == number
    monkeypatch.setenv("RANK", "0")
    assert read(run).environment.seed == 0


READERS: list[Callable[[Path], TrainConfig]] = [options_of_run, lambda run: _resumed("dqn", run, None, {})]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(("has_save", "newer", "seed"), [(True, 1, 0), (True, 0, 0), (False, 0, 0), (False, 1, 1)])
def test_the_options_of_the_first_host_count_if_it_saves_there_or_they_are_newer(
    has_save: bool,
    newer: int,
    seed: int,
    read: Callable[[Path], TrainConfig],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A copy of its options, for a new host, counts until the host has options of its own."""
    run, other = tmp_path / "run", tmp_path / "run-host1"
    for number, folder in enumerate((run, other)):
        folder.mkdir()
        of_host = {"environment.seed": number, "environment.num_envs_per_actor": 1 + number, "threads": 1 + number}
        inline(**of_host).save(folder / "config.json")
        os.utime(folder / "config.json", (1000 + (number == newer),) * 2)
    if has_save:
        (run / "checkpoint.pt").touch()
    monkeypatch.setenv("RANK", "1")
    found = read(run)
    assert found.environment.seed == seed, "an option that is equal on all hosts"
    assert found.environment.num_envs_per_actor == 2 and found.threads == 2, "options of this host alone"


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(
    ("first", "own", "expected"),
    [
        ("cuda:0", "cuda:1", "cuda:1"),
        ("auto", "cuda:1", "cuda:1"),
        ("cpu", "cuda:1", "cpu"),
        ("cuda:0", "cpu", "cuda:0"),
    ],
)
def test_a_host_keeps_its_own_device_of_the_kind_that_the_first_host_has(
    first: str,
    own: str,
    expected: str,
    read: Callable[[Path], TrainConfig],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)  # "auto" is cuda
    monkeypatch.setenv("RANK", "1")
    for name, device in (("run", first), ("run-host1", own)):
        (tmp_path / name).mkdir()
        inline(device=device).save(tmp_path / name / "config.json")
    (tmp_path / "run" / "checkpoint.pt").touch()
    assert read(tmp_path / "run").device == expected


@pytest.mark.parametrize("read", READERS)
def test_a_run_of_one_host_takes_no_options_of_a_host(
    read: Callable[[Path], TrainConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier run of several hosts has left its directory, and a launcher its number."""
    monkeypatch.setenv("RANK", "1")
    of_host = {"acting.inline": True, "environment.num_envs_per_actor": 3}
    for name, settings in (("run", {"topology": "actors(2)", "acting.inline": False}), ("run-host1", of_host)):
        (tmp_path / name).mkdir()
        inline(**settings).save(tmp_path / name / "config.json")
    (tmp_path / "run" / "checkpoint.pt").touch()
    assert read(tmp_path / "run") == TrainConfig.load(tmp_path / "run" / "config.json")


def on_a_shared_disk(number: int, run: Path, settings: dict[str, object]) -> Any:
    """A session of a run on a shared disk, begun or resumed as the command does."""
    own = {"environment.num_envs_per_actor": 1 + number}
    resume = run.exists()
    config = _resumed("dqn", run, None, settings) if resume else inline(**own)
    result = train(config, run, resume=resume, stop_when=lambda steps, updates: updates >= 10 + 10 * resume)
    kept = TrainConfig.load(Path(result.run_dir) / "config.json")
    return result.num_updates, kept.agent.batch_size, kept.environment.num_envs_per_actor


def test_hosts_on_a_shared_disk_go_on_after_a_session_of_the_first_one_alone(hosts: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    size = inline().agent.batch_size
    assert answers(hosts(on_a_shared_disk, run, {})) == [(10, size, 1), (10, size, 2)]
    alone = _resumed(
        "dqn", run, None, {"topology": "inline", "agent.batch_size": 2 * size, "checkpoint.table": "never"}
    )
    assert train(alone, run, resume=True, stop_when=lambda steps, updates: updates >= 12).num_updates >= 12
    again = answers(hosts(on_a_shared_disk, run, {"topology": f"hosts({HOSTS})"}))
    assert again == [(20, 2 * size, 1), (20, 2 * size, 2)]


def test_a_host_that_differs_names_the_file_of_its_options() -> None:
    assert "RUN_DIR-host2/config.json" in str(HostsDiffer("agent.gamma", 0.9, 0.8, 2))
