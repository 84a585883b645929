"""The training part of `make gpu`: short runs on the CPU, also without packages that only draw and log; its verdict."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the trainer needs torch, which is in the environment of Python 3.11 only")
training = pytest.importorskip("benchmarks.gpu.training", reason="benchmarks lie beside the tests in the source tree")

ROOT = Path(__file__).resolve().parent.parent


def test_short_runs_need_neither_matplotlib_nor_tensorboard(tmp_path: Path) -> None:
    for name in ("matplotlib", "tensorboard"):
        (tmp_path / "hidden" / name).mkdir(parents=True)
        (tmp_path / "hidden" / name / "__init__.py").write_text("raise ImportError('not here')\n")
    paths = os.pathsep.join([str(tmp_path / "hidden"), str(ROOT)])
    command = [sys.executable, "-m", "benchmarks.gpu.training", "--out", str(tmp_path), "--device", "cpu"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "note: no matplotlib and no tensorboard here" in done.stdout
    assert done.stdout.count("too short for the mark; replay: host gather, then copy") == 2
    rows = json.loads((tmp_path / "training.json").read_text())["rows"]
    assert [row["agent"] for row in rows] == ["dqn", "sac"] and [row["mark"] for row in rows] == [475.0, -200.0]
    assert all(row["num_updates"] > 50 and row["updates_per_s"] > 0 and row["too_short"] for row in rows)
    assert all(0.0 < row["replay_share"] < 1.0 for row in rows)
    assert not list(tmp_path.glob("training/*/curve.png")) and len(list(tmp_path.glob("training/*/result.json"))) == 2


def test_a_run_ends_above_its_mark() -> None:
    assert all(run.stop_return > run.mark for run in training.RUNS)


@pytest.mark.parametrize(("mean_return", "status"), [(480.0, 0), (470.0, 1), (None, 1)])
def test_a_missed_mark_and_a_run_that_raises_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mean_return: float | None, status: int
) -> None:
    row: dict[str, Any] = {"agent": "dqn", "env_id": "CartPole-v1", "device": "cuda", "wall_s": 1.0, "num_steps": 9}
    row |= {"num_updates": 9, "updates_per_s": 9.0, "num_episodes": 20, "mark": 475.0, "too_short": False}
    row |= {"replay": training.REPLAY_PATH, "replay_share": 0.1}

    def measure(*_: Any) -> dict[str, Any]:
        if mean_return is None:
            raise RuntimeError("no kernel image")
        return {**row, "mean_return": mean_return, "reached": mean_return >= 475.0}

    monkeypatch.setattr(training, "measure", measure)
    monkeypatch.setattr(training, "stand_in", list)
    monkeypatch.setattr(sys, "argv", ["training", "--out", str(tmp_path), "--agents", "dqn", "--device", "cpu"])
    assert training.main() == status
    assert json.loads((tmp_path / "training.json").read_text())["failed"] == (["dqn"] if mean_return is None else [])
