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


def test_a_page_has_one_block_for_each_study_of_its_example(curves: Any, tmp_path: Path) -> None:
    curves.STUDIES["sac_hopper"] = curves.Study({"hop": "--env Hopper-v5"}, "900", seeds=2, example="sac")
    (tmp_path / "results" / "sac_hopper").mkdir()
    result = (tmp_path / "results" / "sac" / "one_two-0.json").read_text()
    (tmp_path / "results" / "sac_hopper" / "hop-0.json").write_text(result)
    with (tmp_path / "sac.md").open("a") as page:
        page.write("<!-- curve sac_hopper: not yet written -->\n<!-- /curve -->\nend\n")
    before = (tmp_path / "sac.md").read_text()
    curves.report("sac_hopper")
    after = (tmp_path / "sac.md").read_text()
    first, second = after.split("<!-- curve sac_hopper:")
    assert first == before.split("<!-- curve sac_hopper:")[0] and second.endswith("\nend\n")
    assert "| hop | 1 |" in second and "(curves/sac_hopper.png)" in second
    assert "python examples/sac.py --env Hopper-v5 --seed 0" in second
    assert (tmp_path / "curves" / "sac_hopper.png").stat().st_size > 0
    curves.report("sac")
    assert (tmp_path / "sac.md").read_text().split("<!-- curve sac_hopper:")[1] == second
    assert "| one two | 2 |" in (tmp_path / "sac.md").read_text().split("<!-- curve sac_hopper:")[0]


def test_a_study_runs_its_example_and_keeps_its_results_under_its_own_name(
    curves: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(curves, "ROOT", tmp_path)
    curves.STUDIES["sac_hopper"] = curves.Study({"hop": "--env Hopper-v5"}, "900", example="sac")
    folder = tmp_path / "runs" / "curves" / "sac_hopper" / "hop-0"

    def finish(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert command[1:4] == ["examples/sac.py", "--env", "Hopper-v5"] and str(folder) in command
        folder.mkdir(parents=True)
        told = {"ending": "steps", "steps": 12, "settings": {"run_dir": "", "resume": False}}
        (folder / "result.json").write_text(json.dumps(told))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", finish)
    curves.run("sac_hopper", "hop", 0)
    told = json.loads((tmp_path / "results" / "sac_hopper" / "hop-0.json").read_text())
    assert told["command"] == "python examples/sac.py --env Hopper-v5 --seed 0"


def test_the_page_of_each_study_has_its_block() -> None:
    module = importlib.import_module("curves")
    for name in module.STUDIES:
        page = (module.PAGES / f"{module.example_of(name)}.md").read_text()
        assert page.count(f"<!-- curve {name}: ") == 1, f"{name} has no block in its page"


@pytest.mark.parametrize(
    ("threshold", "expected"),
    [(-900.0, "1 (1 to 1)"), (-880.0, "1 (1 to 2)"), (-280.0, "2 (2 to not reached)"), (0.0, "not reached (not ")],
)
def test_a_study_with_a_threshold_tells_the_seconds_up_to_it(curves: Any, threshold: float, expected: str) -> None:
    curves.STUDIES["sac"] = curves.Study({"one two": "--steps 20"}, "-200", seeds=2, threshold=threshold)
    head, line, row = curves.table("sac")
    assert head.endswith(f"| seconds to {curves.number(threshold)}, median (range) |")
    assert row.split(" | ")[-1].startswith(expected)
    assert head.count("|") == line.count("|") == row.count("|")


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
