"""scripts/gpu_results.py keeps a whole run on a card, and refuses any other."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts"))
        module = importlib.import_module("gpu_results")
        patch.setattr(module, "RESULTS", tmp_path / "results")
        (tmp_path / "results").mkdir()
        yield module


def write_run(folder: Path, card: str | None = "Some Card", result: str = "passed") -> None:
    folder.mkdir()
    part = {"result": "passed", "seconds": 1.4, "last_line": "3 passed"}
    parts = {name: dict(part) for name in ("tests", "soak", "bench", "train")}
    parts["soak"]["result"] = result
    machine = {"card": card, "torch": "2.11"}
    summary = {"device": "cuda" if card else "cpu", "machine": machine, "parts": parts}
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "gpu.json").write_text(json.dumps({"rows": [{"operation": "zero-copy"}]}))
    (folder / "gpu.md").write_text("# figures\n")
    (folder / "soak.json").write_text(json.dumps({"torn": 0}))
    (folder / "training.json").write_text(json.dumps({"rows": [{"agent": "dqn"}]}))


def run(script: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("sys.argv", ["gpu_results.py", str(folder)])
    return int(script.main())


def test_a_whole_run_on_a_card_is_kept(script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "run")
    assert run(script, tmp_path / "run", monkeypatch) == 0
    kept = json.loads((script.RESULTS / "gpu.json").read_text())
    assert kept["device"]["card"] == "Some Card" and kept["soak"] == {"torn": 0} and kept["tests"] == "3 passed"
    assert kept["training"] == [{"agent": "dqn"}] and kept["rows"] == [{"operation": "zero-copy"}]
    assert (script.RESULTS / "gpu.md").read_text() == "# figures\n"


@pytest.mark.parametrize(("card", "result"), [(None, "passed"), ("Some Card", "failed"), ("Some Card", "stopped")])
def test_a_run_without_a_card_or_with_a_part_that_did_not_pass_is_refused(
    card: str | None, result: str, script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    write_run(tmp_path / "run", card, result)
    assert run(script, tmp_path / "run", monkeypatch) == 1
    assert "nothing was written" in capsys.readouterr().err and not list(script.RESULTS.iterdir())


def test_a_folder_without_a_run_is_refused(script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(script, tmp_path, monkeypatch) == 1 and not list(script.RESULTS.iterdir())
