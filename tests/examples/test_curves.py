"""`make curves` writes the block of a page from results, and does not run a result again that is there."""

from __future__ import annotations

import importlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

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


def test_a_result_that_is_there_is_not_computed_again(curves: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a run was started")

    monkeypatch.setattr(subprocess, "run", refuse)
    curves.run("sac", "one two", 0)
    with pytest.raises(AssertionError, match="a run was started"):
        curves.run("sac", "one two", 2)
