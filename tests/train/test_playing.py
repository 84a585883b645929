"""Runs are evaluated and shown: the numbers, the bounds, the video, and what is said where there is no screen."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs torch")
pytest.importorskip("gymnasium", reason="training needs Gymnasium")
pytest.importorskip("rich", reason="the command line needs rich")

from relive.errors import InvalidConfig, MissingPackage  # noqa: E402
from relive.train import NoDisplay, evaluate_run, play_run, preset, train  # noqa: E402
from relive.train.acting.environments import make_shown  # noqa: E402

HAS_MOVIEPY = importlib.util.find_spec("moviepy") is not None
HAS_PYGAME = importlib.util.find_spec("pygame") is not None


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run, ended. In one process: the same on every machine, and so one whose policy does fall over."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    settings = {
        "topology": "inline", "replay.min_size": 100, "limits.max_steps": 300, "evaluation.num_episodes": 2,
        "agent.network.hidden": (16,), "agent.batch_size": 16, "environment.seed": 4,
    }  # fmt: skip
    train(preset("dqn", "CartPole-v1", settings), folder)
    return folder


def relive_command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    plain = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
    return subprocess.run(
        [sys.executable, "-m", "relive.cli", *arguments], capture_output=True, text=True, timeout=120,
        env={**plain, "COLUMNS": "160", "TERM": "dumb", **environment},
    )  # fmt: skip


def test_an_evaluation_repeats_the_result_of_the_run(run_dir: Path) -> None:
    result = json.loads((run_dir / "result.json").read_text())
    evaluation = evaluate_run(run_dir)
    assert list(evaluation.returns) == result["returns"] and evaluation.seed == 4 and evaluation.num_cut == 0
    assert evaluation.mean_return == result["mean_return"]
    assert evaluate_run(run_dir, num_episodes=3).returns == evaluation.returns[:3]
    assert evaluate_run(run_dir, num_episodes=105, seed=5).returns[:20] != evaluation.returns


def test_the_command_prints_json_and_a_line(run_dir: Path) -> None:
    done = relive_command("evaluate", str(run_dir), "--episodes", "3", "--seed", "9", "--max-minutes", "1")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert len(told["returns"]) == 3 and told["seed"] == 9 and told["env_id"] == "CartPole-v1"
    assert told["mean_return"] == pytest.approx(sum(told["returns"]) / 3)
    assert done.stderr.startswith("dqn on CartPole-v1: ") and "3 episodes" in done.stderr


def test_an_evaluation_is_bounded(run_dir: Path) -> None:
    cut = evaluate_run(run_dir, num_episodes=150, max_minutes=1e-9)
    assert len(cut.returns) == 100 and cut.num_cut == 100 and set(cut.lengths) == {1}
    assert "100 of them cut" in str(cut)


def test_wrong_numbers_are_refused(run_dir: Path, tmp_path: Path) -> None:
    for wrong in (
        {"num_episodes": 0}, {"num_episodes": 1.5}, {"num_episodes": True}, {"num_episodes": 10**12},
        {"seed": -1}, {"seed": 2**31}, {"max_minutes": 0}, {"max_minutes": float("nan")}, {"max_minutes": "1"},
    ):  # fmt: skip
        with pytest.raises(InvalidConfig):
            evaluate_run(run_dir, **wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig, match="max_steps"):
        play_run(run_dir, max_steps=0)
    with pytest.raises(InvalidConfig):
        evaluate_run(tmp_path)
    done = relive_command("evaluate", str(tmp_path))
    assert done.returncode == 1 and done.stderr.startswith("relive: ") and "Traceback" not in done.stderr


def test_without_a_screen_it_says_so(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(NoDisplay, match="--video") as caught:
        play_run(run_dir)
    assert caught.value.env_id == "CartPole-v1"
    done = relive_command("play", str(run_dir))
    assert done.returncode == 1 and "display" in done.stderr and "Traceback" not in done.stderr


def test_a_video_is_refused_before_anything_is_made(run_dir: Path, tmp_path: Path) -> None:
    for wrong in ("film.gif", "film", "nowhere/film.mp4"):
        with pytest.raises(InvalidConfig, match="video"):
            play_run(run_dir, video=tmp_path / wrong)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("missing", ["moviepy", "pygame"])
def test_a_package_that_is_missing_is_named(
    missing: str, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither is in the extra: a video needs the one, pictures of CartPole the other."""
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else found(name) or object())
    if missing == "pygame":
        monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
        monkeypatch.setitem(sys.modules, "pygame", None)
    with pytest.raises(MissingPackage) as caught:
        play_run(run_dir, video=tmp_path / "film.mp4" if missing == "moviepy" else None)
    assert caught.value.package == missing and "pip install" in caught.value.command
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not (HAS_MOVIEPY and HAS_PYGAME), reason="a video of CartPole needs moviepy and pygame")
def test_a_video_is_written(run_dir: Path, tmp_path: Path) -> None:
    video = tmp_path / "film.mp4"
    shown = play_run(run_dir, num_episodes=2, video=video)
    assert [path.name for path in tmp_path.iterdir()] == ["film.mp4"] and b"ftyp" in video.read_bytes()[:16]
    assert [one.episode_return for one in shown] == [float(one.num_steps) for one in shown]
    assert tuple(one.episode_return for one in shown) == evaluate_run(run_dir, num_episodes=2).returns
    before = video.stat().st_size
    done = relive_command("play", str(run_dir), "--video", str(video), "--max-steps", "3")
    assert done.returncode == 0 and "3 steps, cut" in done.stdout, done.stderr
    assert video.stat().st_size < before


@pytest.mark.skipif(not HAS_PYGAME, reason="a window of CartPole needs pygame")
def test_a_window_is_opened(run_dir: Path) -> None:
    done = relive_command("play", str(run_dir), "--max-steps", "5", SDL_VIDEODRIVER="dummy")
    assert done.returncode == 0 and "episode 0: return 5.0, 5 steps" in done.stdout, done.stderr


def test_an_environment_without_pictures_is_refused() -> None:
    for env_id, words in (("train.worlds:Blind-v0", "render mode of train.worlds:Blind-v0"), ("No-v0", "env_id")):
        with pytest.raises(InvalidConfig, match=words):
            make_shown(env_id, "human")
