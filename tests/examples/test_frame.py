"""The parts that examples share: settings of a command line, the folder of a run, the command that continues it."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import importlib
import io
import json
import math
import os
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

gymnasium = pytest.importorskip("gymnasium", reason="the examples need gymnasium")
for _module in ("torch", "rich", "tensorboard", "matplotlib"):
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
    run = frame.Run("dqn_per", frame.Settings(run_dir=str(tmp_path)))
    run.load()
    run.begin()
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_run_that_ends_before_its_course_leaves_the_earlier_run(frame: Any, tmp_path: Path) -> None:
    (tmp_path / "save").mkdir()
    (tmp_path / "result.json").write_text("of the earlier run")
    for name in ("dqn_per", "decision_transformer"):
        main = importlib.import_module(name).main
        with pytest.raises(gymnasium.error.NameNotFound):
            main(["--env", "CartPoll-v1", "--no-bar", "--run-dir", str(tmp_path)])
        assert {path.name for path in tmp_path.iterdir()} == {"save", "result.json"}


@pytest.mark.parametrize("names", [(), ("ranks",)])
def test_a_run_takes_an_empty_folder_and_one_in_which_a_run_only_began(
    frame: Any, tmp_path: Path, names: tuple[str, ...]
) -> None:
    for name in names:
        (tmp_path / name).write_text("")
    run = frame.Run("mat", frame.Settings(run_dir=str(tmp_path)))
    assert run.load() is None
    run.begin()
    assert not list(tmp_path.iterdir())


class Full(io.StringIO):
    """An output on a full disk, or whose reader has ended."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self._error, self.is_full = error, False

    def write(self, text: str) -> int:
        if self.is_full:
            raise self._error
        return super().write(text)


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), BrokenPipeError(errno.EPIPE, "closed")], ids=repr)
@pytest.mark.parametrize("bar", [True, False])
def test_a_run_saves_at_its_end_also_if_its_output_fails(
    frame: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, bar: bool
) -> None:
    out = Full(error)
    monkeypatch.setattr(sys, "stdout", out)
    with contextlib.suppress(OSError, SystemExit):  # rich ends the program where the reader has ended
        run = frame.Run("dqn_per", frame.Settings(run_dir=str(tmp_path / "run"), steps=5, bar=bar))
        run.load()
        with run.course(lambda: (None, {"weights": 7})):
            assert run.goes_on(3)
            out.is_full = True
            run.goes_on(5)
    monkeypatch.undo()
    continued = frame.Run("dqn_per", frame.Settings(run_dir=str(tmp_path / "run"), resume=True)).load()
    assert continued.learner == {"weights": 7}


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


def test_a_second_run_in_the_folder_of_a_run_that_goes_on_is_refused(frame: Any, tmp_path: Path) -> None:
    settings = frame.Settings(run_dir=str(tmp_path / "run"), bar=False)
    first = frame.Run("dqn_per", settings)
    first.load()
    with first.course(lambda: (None, {})):
        first.save()
        for resume in (False, True):
            second = frame.Run("dqn_per", dataclasses.replace(settings, resume=resume))
            with pytest.raises(SystemExit, match="Another run uses .*/run.*--run-dir"):
                second.load()
        assert (tmp_path / "run" / "learner.pt").exists()
    assert frame.Run("dqn_per", dataclasses.replace(settings, resume=True)).load() is not None


def test_a_rank_continues_in_the_folder_that_its_main_process_has_locked(frame: Any, tmp_path: Path) -> None:
    settings = frame.Settings(run_dir=str(tmp_path), bar=False)
    first = frame.Run("mat", settings)
    first.load()
    rank = frame.Run("mat", dataclasses.replace(settings, resume=True), locks=False)
    with rank.course(lambda: (None, {})):
        rank.save()
    assert rank.load() is not None
    with pytest.raises(SystemExit, match="Another run uses"):
        frame.Run("mat", settings).load()


def test_a_continued_run_knows_the_return_of_random_actions(frame: Any, tmp_path: Path) -> None:
    import torch

    settings = frame.Settings(run_dir=str(tmp_path), bar=False)
    run = frame.Run("grpo", settings)
    run.load()
    run.result.random_return = 0.125
    with run.course(lambda: (None, {})):
        pass
    again = frame.Run("grpo", dataclasses.replace(settings, resume=True))
    again.load()
    assert again.result.random_return == 0.125
    whole = torch.load(tmp_path / "learner.pt")
    del whole["run"]["random_return"]  # as a save of an earlier version
    torch.save(whole, tmp_path / "learner.pt")
    again = frame.Run("grpo", again.settings, locks=False)
    again.load()
    assert math.isnan(again.result.random_return)


def test_a_run_whose_save_failed_does_not_say_that_it_saved(
    frame: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_space() -> Any:
        raise OSError("no space left")

    run = frame.Run("dqn_per", frame.Settings(run_dir=str(tmp_path), bar=False))
    run.load()
    with pytest.raises(OSError, match="no space left"), run.course(no_space):
        run._interrupt()
        assert not run.goes_on(7)
    assert "saved" not in capsys.readouterr().out
    assert json.loads((tmp_path / "result.json").read_text())["ending"] == "stopped"


@pytest.mark.parametrize("save", ["save", "shards"])
def test_a_run_that_was_killed_in_its_first_save_has_no_save(frame: Any, tmp_path: Path, save: str) -> None:
    (tmp_path / save / "cut-1").mkdir(parents=True)
    run = frame.Run("dqn_per", frame.Settings(run_dir=str(tmp_path), resume=True))
    with pytest.raises(SystemExit, match="has no save"):
        run.load()
    assert run.shards is None


@pytest.mark.parametrize("data", ["run/save", "run/shards", "link"])
def test_a_new_run_does_not_remove_its_data(frame: Any, tmp_path: Path, data: str) -> None:
    for folder in ("save", "shards"):
        (tmp_path / "run" / folder).mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "run" / "save")
    settings = frame.Settings(run_dir=str(tmp_path / "run"))
    with pytest.raises(SystemExit, match="would remove its data.*--run-dir"):
        frame.Run("offline", settings).load(data=str(tmp_path / data))
    assert (tmp_path / data).is_dir()
    other = frame.Settings(run_dir=str(tmp_path / "other"))
    assert frame.Run("offline", other).load(data=str(tmp_path / data)) is None


@pytest.mark.parametrize("name", ["offline", "decision_transformer"])
def test_an_example_with_data_refuses_the_folder_of_its_data(name: str, tmp_path: Path) -> None:
    (tmp_path / "save").mkdir()
    data = tmp_path if name == "offline" else tmp_path / "save"
    with pytest.raises(SystemExit, match="would remove its data"):
        importlib.import_module(name).main(["--no-bar", "--data", str(data), "--run-dir", str(tmp_path)])
    assert (tmp_path / "save").is_dir()


def test_a_group_of_one_rollout_is_refused(frame: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Its advantage is the difference to its own mean, divided by the spread of one value."""
    settings = importlib.import_module("grpo").Settings
    with pytest.raises(SystemExit):
        frame.parse(settings, ["--group-size", "1"], "")
    assert "--group-size: expected at least 2, got 1" in capsys.readouterr().err
    assert frame.parse(settings, ["--group-size", "2"], "").group_size == 2


def test_impala_without_actors_is_refused(frame: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Its learner has no other process that acts, and would wait for good."""
    settings = importlib.import_module("impala").Settings
    with pytest.raises(SystemExit):
        frame.parse(settings, ["--num-actors", "0"], "")
    assert "--num-actors: expected at least 1, got 0" in capsys.readouterr().err
    assert frame.parse(settings, ["--num-actors", "1"], "").num_actors == 1


def test_mat_without_its_package_leaves_the_earlier_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mat = importlib.import_module("mat")
    monkeypatch.setattr(mat, "run_ranks", lambda *_, **__: pytest.fail("the run has begun"))
    monkeypatch.setitem(sys.modules, "mpe2.simple_spread_v3", None)
    (tmp_path / "result.json").write_text("of the earlier run")
    with pytest.raises(SystemExit, match=r"needs mpe2. Run: pip install"):
        mat.main(["--no-bar", "--run-dir", str(tmp_path)])
    assert (tmp_path / "result.json").read_text() == "of the earlier run"


@pytest.mark.parametrize(
    ("name", "env", "sentence"),
    [
        ("sac", "CartPole-v1", "CartPole-v1 has actions Discrete.*bounded"),
        ("jax_sac", "CartPole-v1", "CartPole-v1 has actions Discrete.*bounded"),
        ("offline", "CartPole-v1", "controller is for Pendulum-v1.*data of CartPole-v1: --data"),
        ("decision_transformer", "Pendulum-v1", "controllers are for CartPole.*data of Pendulum-v1: --data"),
    ],
)
def test_an_environment_that_an_example_cannot_take_is_named(
    name: str, env: str, sentence: str, tmp_path: Path
) -> None:
    if name == "jax_sac":
        pytest.importorskip("jax", reason="jax_sac needs jax")
    with pytest.raises(SystemExit, match=sentence):
        importlib.import_module(name).main(["--env", env, "--no-bar", "--run-dir", str(tmp_path)])


def test_actors_that_do_not_end_are_killed_after_one_deadline_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A remote append that waits for the limiter runs no handler of SIGTERM."""
    actors, waited, killed = importlib.import_module("actors"), [0.0], []

    class Deaf:
        exitcode: int | None = None

        def terminate(self) -> None: ...

        def join(self, timeout: float | None = None) -> None:
            if self.exitcode is None:
                assert timeout is not None, "the join of a process that lives has no limit"
                waited[0] += max(timeout, 0.0)

        def kill(self) -> None:
            self.exitcode = -9
            killed.append(self)

    monkeypatch.setattr(actors.Actors, "_start", lambda *_: Deaf())
    monkeypatch.setattr("time.monotonic", lambda: waited[0])
    with actors.Actors(lambda: None, 4, ()):
        pass
    assert len(killed) == 4 and waited[0] <= 2.0


def _raise(*_: object) -> None:
    raise BrokenPipeError


def test_a_rank_ends_with_its_main_process_although_its_output_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks, codes = importlib.import_module("ranks"), list[int]()
    mine, its = os.pipe()
    os.close(its)  # its main process has ended
    monkeypatch.setattr(ranks.multiprocessing, "parent_process", lambda: SimpleNamespace(sentinel=mine))
    monkeypatch.setattr(ranks.os, "_exit", codes.append)
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(write=_raise, flush=_raise))
    with pytest.raises(BrokenPipeError):  # raised here alone: the process has ended before
        ranks._end_with_owner(0)
    assert codes == [1]
    os.close(mine)
