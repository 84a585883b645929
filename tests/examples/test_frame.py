"""The parts that examples share: settings of a command line, the folder of a run, the command that continues it."""

from __future__ import annotations

import dataclasses
import importlib
import json
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

for _module in ("torch", "gymnasium", "rich", "tensorboard", "matplotlib"):
    pytest.importorskip(_module, reason=f"the examples need {_module}")


@pytest.fixture
def frame() -> Any:
    return importlib.import_module("frame")


def test_a_folder_of_other_files_is_refused_and_stays_as_it_is(frame: Any, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(SystemExit, match="is not the folder of a run"):
        frame.Run("dqn_per", frame.Settings(run_dir=str(tmp_path))).load()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_file_is_no_folder_of_a_run(frame: Any, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(SystemExit, match="is not the folder of a run"):
        frame.Run("dqn_per", frame.Settings(run_dir=str(tmp_path / "thesis.txt"))).load()
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_a_new_run_removes_the_files_of_an_earlier_run_alone(frame: Any, tmp_path: Path) -> None:
    for folder in ("save", "shards", "tensorboard"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "content").write_text("of the earlier run")
    for name in ("result.json", "curve.png", "learner.pt", "learner.tmp", "ranks", "notes.txt"):
        (tmp_path / name).write_text("of the earlier run")
    frame.Run("dqn_per", frame.Settings(run_dir=str(tmp_path))).load()
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("names", [(), ("ranks",)])
def test_a_run_takes_an_empty_folder_and_one_in_which_a_run_only_began(
    frame: Any, tmp_path: Path, names: tuple[str, ...]
) -> None:
    for name in names:
        (tmp_path / name).write_text("")
    assert frame.Run("mat", frame.Settings(run_dir=str(tmp_path))).load() is None
    assert not list(tmp_path.iterdir())


def test_the_command_that_continues_a_run_has_its_settings(
    frame: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dqn = importlib.import_module("dqn_per")
    folder = tmp_path / "a run"
    told = ["--seed", "3", "--hidden", "16", "--steps", "70", "--learning-rate", "0.002", "--env", "Acrobot-v1"]
    settings = frame.parse(dqn.Settings, [*told, "--no-bar", "--run-dir", str(folder)], "")
    run = frame.Run("dqn_per", settings)
    run.load()
    with run.course(lambda: (None, {})):
        run._interrupt()
        assert not run.goes_on(0)
    command = capsys.readouterr().out.partition("Continue with: ")[2]
    python, program, *options = shlex.split(command)
    assert (python, program) == ("python", "examples/dqn_per.py")
    assert frame.parse(dqn.Settings, options, "") == dataclasses.replace(settings, resume=True)
    assert "--batch-size" not in options, "a default value needs no option"
    assert json.loads((folder / "result.json").read_text())["ending"] == "stopped"


@pytest.mark.parametrize(
    ("name", "arguments", "choices"),
    [
        ("qmix", "--mixer qmxi", "'qmix', 'vdn'"),
        ("c51_iqn", "--algorithm rainbow", "'iqn', 'c51', 'dqn'"),
        ("r2d2", "--env LunarLander-v3", "'repeat', 'cartpole'"),
        ("decision_transformer", "--parallel x", "'ddp', 'fsdp'"),
    ],
)
def test_a_value_that_an_example_does_not_know_is_refused(
    frame: Any, name: str, arguments: str, choices: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = importlib.import_module(name).Settings
    with pytest.raises(SystemExit):
        frame.parse(settings, arguments.split(), "")
    said = capsys.readouterr().err
    assert "invalid choice" in said
    assert all(choice.strip("'") in said for choice in choices.split(", "))
    assert frame.parse(settings, [], "") == settings()


def test_r2d3_takes_any_environment_although_r2d2_has_two(frame: Any) -> None:
    settings = importlib.import_module("r2d3").Settings
    assert frame.parse(settings, ["--env", "MiniGrid-Empty-5x5-v0"], "").env == "MiniGrid-Empty-5x5-v0"
    assert frame.parse(settings, [], "").env == "MiniGrid-DoorKey-5x5-v0"


@pytest.mark.parametrize("name", ["dqn_per", "c51_iqn", "ape_x", "served", "impala"])
def test_an_environment_without_discrete_actions_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="Pendulum-v1 has actions Box.*discrete"):
        importlib.import_module(name).main(["--env", "Pendulum-v1", "--no-bar", "--run-dir", str(tmp_path)])


@pytest.mark.parametrize("num_envs", [1, 3, 4, 10])
def test_updates_follow_the_steps_of_any_number_of_environments(frame: Any, num_envs: int, tmp_path: Path) -> None:
    settings = dataclasses.replace(importlib.import_module("masac").Settings(), num_envs=num_envs, min_size=5)
    run = frame.Run("masac", dataclasses.replace(settings, steps_per_update=4, run_dir=str(tmp_path)))
    table = SimpleNamespace(num_items=lambda: 4)
    assert not run.updates_due(100 * num_envs, table)
    table.num_items = lambda: 5
    steps = range(num_envs, 50 * num_envs + 1, num_envs)
    assert sum(len(run.updates_due(step, table)) for step in steps) == 50 * num_envs // 4
