"""`make curves` writes the block of a page from results, and does not run a result again that is there."""

from __future__ import annotations

import importlib
import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from examples.cases import CASES

for _module in ("scipy", "matplotlib"):
    pytest.importorskip(_module, reason=f"the curves need {_module}: pip install '.[examples]'")


@pytest.fixture
def curves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The module over folders of its own, with the results of two seeds of one study."""
    module = importlib.import_module("curves")
    monkeypatch.setattr(module, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(module, "PAGES", tmp_path)
    monkeypatch.setattr(module, "STUDIES", {"sac": module.Study({"one two": "--steps 20"}, "-200", seeds=2)})
    (tmp_path / "results" / "sac").mkdir(parents=True)
    for seed, shift in ((0, 0.0), (1, 30.0)):
        result = {"curve": [[10, 1.0, -900.0 + shift], [20, 2.0, -300.0 + shift]], "random_return": -1100.0}
        result |= {"steps": 20, "seconds": 2.5, "machine": "a machine"}
        (tmp_path / "results" / "sac" / f"one_two-{seed}.json").write_text(json.dumps(result))
    page = (
        "before\n<!-- curve sac: this block is written by `make curves`; do not edit -->\nold\n<!-- /curve -->\nafter\n"
    )
    (tmp_path / "sac.md").write_text(page)
    return module


def test_a_page_gets_mean_interval_and_command(curves: Any, tmp_path: Path) -> None:
    curves.report("sac")
    page = (tmp_path / "sac.md").read_text()
    assert page.startswith("before\n") and page.endswith("after\n") and "old" not in page
    assert "| one two | 2 | 20 | 2 | -585 | -600 to -570 | -285 |" in page
    assert "python examples/sac.py --steps 20 --seed 0" in page
    assert (tmp_path / "curves" / "sac.png").stat().st_size > 0
    curves.report("sac")
    assert (tmp_path / "sac.md").read_text() == page


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_a_page_is_written_although_a_result_lacks_the_return_of_random_actions(
    curves: Any, tmp_path: Path, seeds: tuple[int, ...]
) -> None:
    for seed in seeds:
        path = tmp_path / "results" / "sac" / f"one_two-{seed}.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"random_return": None}))
    curves.report("sac")
    assert (tmp_path / "curves" / "sac.png").stat().st_size > 0


def test_a_result_that_is_there_is_not_computed_again(curves: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a run was started")

    monkeypatch.setattr(subprocess, "run", refuse)
    curves.run("sac", "one two", 0)
    with pytest.raises(AssertionError, match="a run was started"):
        curves.run("sac", "one two", 2)


@pytest.mark.parametrize("save", ["save/CURRENT", "shards/CURRENT", "learner.pt"])
def test_a_stopped_run_goes_on_from_each_kind_of_save(
    curves: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, save: str
) -> None:
    monkeypatch.setattr(curves, "ROOT", tmp_path)
    current = tmp_path / "runs" / "curves" / "sac" / "one_two-2" / save
    current.parent.mkdir(parents=True)
    current.write_text("1")
    commands: list[list[str]] = []

    def refuse(command: list[str], **_: object) -> None:
        commands.append(command)
        raise InterruptedError

    monkeypatch.setattr(subprocess, "run", refuse)
    with pytest.raises(InterruptedError):
        curves.run("sac", "one two", 2)
    assert "--resume" in commands[0]


@pytest.mark.parametrize("ending", ["stopped", "steps"])
def test_ctrl_c_leaves_the_run_its_time_to_save_and_then_ends_in_a_sentence(
    curves: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ending: str
) -> None:
    """The second ending is that of a run that reached its last step as the signal came."""
    monkeypatch.setattr(curves, "ROOT", tmp_path)
    folder = tmp_path / "runs" / "curves" / "sac" / "one_two-2"

    def save(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        signal.raise_signal(signal.SIGINT)
        folder.mkdir(parents=True)
        told = {"ending": ending, "steps": 12, "settings": {"run_dir": "", "resume": False}}
        (folder / "result.json").write_text(json.dumps(told))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", save)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(SystemExit, match="`make curves` goes on"):
        curves.run("sac", "one two", 2)
    assert signal.getsignal(signal.SIGINT) is before
    assert (tmp_path / "results" / "sac" / "one_two-2.json").exists() == (ending == "steps")


def test_make_curves_installs_the_packages_of_every_study() -> None:
    text = (Path(__file__).resolve().parents[2] / "Makefile").read_text()
    recipe = text.partition("\ncurves: setup")[2].partition("\n\n")[0]
    for needed in (package for case in CASES.values() for package in case.needs if package != "pyarrow"):
        assert needed in recipe.split(), f"`make curves` does not install {needed}"
