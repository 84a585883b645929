"""The commands beside training: help, ls, rm, and what is said where an extra is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("typer", reason="the command line needs typer")

import relive  # noqa: E402
from relive.agents.registry import AGENTS  # noqa: E402


def relive_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "relive.cli", *arguments], capture_output=True, text=True, timeout=60,
        env={"COLUMNS": "160", "PATH": "", "TERM": "dumb", "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip


def make_table(name: str) -> relive.Table:
    spec = relive.StepSpec({"x": relive.ArraySpec((), "float32")})
    return relive.Table(spec, 1000, storage=relive.SharedMemory(name), max_lanes=2)


def test_help() -> None:
    text = relive_command("train", "dqn", "--help").stdout
    for option in ("--env", "--actors", "--seed", "--run-dir", "--resume", "--max-minutes", "--device"):
        assert option in text
    for name in ("agent.gamma", "agent.network.hidden", "replay.updates_per_step", "0.995", "128,128", "threads"):
        assert name in text
    overview = relive_command("--help").stdout
    assert all(command in overview for command in ("train", "ls", "rm"))


def test_options_that_cannot_be_are_refused(tmp_path: Path) -> None:
    run = ["train", "dqn", "--run-dir", str(tmp_path / "run")]
    for arguments, words in (
        (["--set", "agent.gama=0.9"], ("agent.gama", "did you mean 'agent.gamma'?")),
        (["--env", "Pendulum-v1"], ("action space of Pendulum-v1", "Discrete")),
    ):
        done = relive_command(*run, *arguments)
        assert done.returncode == 1 and done.stderr.startswith("relive: ") and "Traceback" not in done.stderr
        assert all(word in done.stderr for word in words), done.stderr
        assert list(tmp_path.iterdir()) == []


def test_a_run_goes_on_with_its_own_agent_only(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="agents are written in torch")
    from relive.train.config import preset

    preset("dqn", "CartPole-v1").save(tmp_path / "config.json")
    other = next(name for name in AGENTS if name != "dqn")
    done = relive_command("train", other, "--resume", str(tmp_path))
    assert done.returncode == 1 and "relive train dqn --resume" in done.stderr


def test_ls_and_rm(shm_name: Callable[[], str]) -> None:
    name = shm_name()
    with make_table(name) as table, table.writer() as writer:
        for value in range(7):
            writer.append(x=np.float32(value))
        row = next(line for line in relive_command("ls").stdout.splitlines() if name in line)
        assert "7" in row and "1,000" in row and "in use" in row
        refused = relive_command("rm", name)
        assert refused.returncode == 1 and refused.stderr.startswith("relive: ")
        assert relive_command("rm", "--force", name).returncode == 0
        assert name not in relive_command("ls").stdout


def test_rm_of_a_table_left_behind(shm_name: Callable[[], str]) -> None:
    name = shm_name()
    program = (
        "import os, relive\n"
        "spec = relive.StepSpec({'x': relive.ArraySpec((), 'float32')})\n"
        f"table = relive.Table(spec, 1000, storage=relive.SharedMemory({name!r}), max_lanes=2)\n"
        "os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", program], timeout=60)
    assert "left behind" in next(line for line in relive_command("ls").stdout.splitlines() if name in line)
    done = relive_command("rm", name)
    assert done.returncode == 0 and f"removed {name}" in done.stdout
    again = relive_command("rm", name)
    assert again.returncode == 1 and name in again.stderr


def test_missing_extras_are_named() -> None:
    program = (
        "import sys\n"
        "for name in {hidden!r}: sys.modules[name] = None\n"
        "import relive.cli\n"
        "sys.argv = ['relive', *{arguments!r}]\n"
        "relive.cli.main()"
    )
    for hidden, arguments in ((["typer"], ["ls"]), (["torch"], ["train", "dqn"]), (["gymnasium"], ["train", "dqn"])):
        code = program.format(hidden=hidden, arguments=arguments)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        assert done.returncode == 1
        assert "pip install 'relive[train]'" in done.stderr and hidden[0] in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
