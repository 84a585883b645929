"""Every example learns more in a short run than random actions reach, and continues after a stop."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import relive
import relive.checkpoint
from examples.cases import CASES, Case

for _module in ("torch", "rich", "tensorboard", "matplotlib"):
    pytest.importorskip(_module, reason=f"the examples need {_module}")
gymnasium = pytest.importorskip("gymnasium", reason="the examples need gymnasium")

ROOT = Path(__file__).resolve().parents[2]


def example(name: str, case: Case) -> ModuleType:
    for module in case.needs:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{name} needs {module}: docs/examples/{name}.md has the command")
    return importlib.import_module(name)


QUICK = ("qmix", "sac")  # the others run in `make test-all`: all of them take four minutes of a processor


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.thorough) for name in CASES]
)
def test_an_example_learns(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    module = example(name, case)
    result = module.main([*case.arguments.split(), "--no-bar", "--run-dir", str(tmp_path / "run")])
    print(f"{name}: random {result.random_return:.4g}, best {result.best:.4g}, {result.seconds:.1f} s")
    assert result.random_return < case.above < result.best
    told = json.loads((tmp_path / "run" / "result.json").read_text())
    assert told["curve"] == result.curve and told["ending"] in {"steps", "seconds"}
    assert (tmp_path / "run" / "curve.png").stat().st_size > 0
    assert any((tmp_path / "run" / "tensorboard").iterdir())
    mine = [table.name for table in relive.list_tables() if str(os.getpid()) in table.name]
    assert not mine, "a shared table is left behind"

    # the run continues with its table and its learner, and reaches a later limit
    options = ["--resume", "--no-bar", "--run-dir", str(tmp_path / "run")]
    further = module.main([*case.arguments.split(), *options, "--steps", str(result.steps + case.more)])
    assert further.curve[: len(result.curve)] == result.curve
    assert further.steps >= result.steps + case.more and further.seconds > result.seconds


@pytest.mark.parametrize("arguments", ["--num-envs 1", "--updates-per-step 0.2"])
def test_dqn_runs_with_steps_that_no_update_follows(arguments: str, tmp_path: Path) -> None:
    short = "--steps 60 --min-size 16 --batch-size 8 --hidden 8 --eval-every 1000 --eval-episodes 1 --no-bar"
    module = importlib.import_module("dqn_per")
    result = module.main([*arguments.split(), *short.split(), "--run-dir", str(tmp_path)])
    assert result.ending == "steps"


def test_ape_x_in_one_process_repeats_and_refuses_the_shards_of_another_run(tmp_path: Path) -> None:
    main = importlib.import_module("ape_x").main
    short = "--env CartPole-v1 --steps 600 --min-size 100 --batch-size 16 --hidden 8 --eval-every 200 --no-bar"
    alone = [*short.split(), "--num-actors", "0", "--run-dir"]
    first, second = (main([*alone, str(tmp_path / name)]) for name in ("first", "second"))
    assert first.curve and [point[::2] for point in first.curve] == [point[::2] for point in second.curve]
    assert first.facts["updates"] > 0 and first.facts == second.facts
    further = main([*alone, str(tmp_path / "first"), "--resume", "--steps", "800"])
    assert further.curve[: len(first.curve)] == first.curve and further.facts["updates"] > first.facts["updates"]
    with pytest.raises(SystemExit, match="first: "):
        main([*short.split(), "--run-dir", str(tmp_path / "first"), "--resume"])


class Killed(Exception):
    """Ends a run without its last save, as SIGKILL does."""


def killed_at(update: int, main: Callable[[Sequence[str]], Any], arguments: Sequence[str]) -> None:
    """Kills a run after this update. Its last save has the updates before it."""
    frame, logged = importlib.import_module("frame"), []

    def log(*_: Any, **figures: float) -> None:
        logged.append(figures)
        if len(logged) == update:
            raise Killed

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(frame.Run, "log", log)
        main([*arguments, "--save-s", "0"])


def test_ape_x_knows_its_number_of_updates_after_a_kill(tmp_path: Path) -> None:
    main = importlib.import_module("ape_x").main
    short = "--env CartPole-v1 --num-actors 0 --min-size 40 --batch-size 16 --hidden 8 --eval-episodes 1"
    options = [*short.split(), "--capacity", "500", "--no-bar", "--run-dir", str(tmp_path)]
    killed_at(20, main, options)
    assert main([*options, "--resume", "--steps", "0"]).facts["updates"] == 19


def test_served_knows_its_number_of_updates_after_a_kill(tmp_path: Path) -> None:
    """Without actors: a save, as if of a run before, has the steps of the table."""
    pytest.importorskip("pyarrow", reason="the service needs pyarrow")
    served, frame = importlib.import_module("served"), importlib.import_module("frame")
    short = "--num-actors 0 --min-size 16 --batch-size 16 --hidden 8 --capacity 500 --eval-episodes 1 --no-bar"
    options = [*short.split(), "--run-dir", str(tmp_path)]
    settings = frame.parse(served.Settings, options, "")
    run, learner = frame.Run("served", settings), importlib.import_module("dqn_per").Learner(settings, 4, 2)
    run.load()
    with served.make_table(settings) as table, run.course(lambda: (table, learner.state())):
        with table.writer() as writer:
            for _ in range(100):
                seen = np.zeros(4, np.float32)
                writer.append(observation=seen, action=0, reward=1.0, terminated=False, next_observation=seen)
    options.append("--resume")
    killed_at(10, served.main, options)
    assert served.main([*options, "--steps", "0"]).facts["updates"] == 9


@pytest.mark.parametrize(
    "arguments",
    [
        "qmix --min-size 4 --batch-size 4 --steps-per-update 2",
        "r2d2 --min-size 2 --batch-size 4 --steps-per-update 2 --num-envs 2 --length 4 --burn-in 1",
    ],
)
def test_the_target_of_a_continued_run_follows_as_if_there_was_no_pause(arguments: str, tmp_path: Path) -> None:
    """The number of updates, on which it depends, goes on."""
    name, *options = arguments.split()
    options += "--hidden 8 --eval-every 1000 --eval-episodes 1 --no-bar --run-dir".split() + [str(tmp_path)]
    numbers = []
    for more in (["--steps", "80"], ["--steps", "90", "--resume"]):
        importlib.import_module(name).main([*options, *more])
        numbers.append(relive.checkpoint.load_learner(tmp_path / "save")["learner"]["updates"])
    assert 5 < numbers[0] and numbers[1] == numbers[0] + 5


class DoubleObservations(gymnasium.Env[np.ndarray, np.ndarray]):
    """Observations of float64 and actions in a box, as the environments of MuJoCo have them. An episode has 9 steps."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.seen = np.zeros(3)
        return self.seen, {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.seen = self.seen + 0.1
        return self.seen, float(action[0]), False, bool(self.seen[0] > 0.85), {}


@pytest.mark.parametrize("arguments", ["sac --min-size 8 --batch-size 4", "ppo --num-envs 2 --horizon 8"])
def test_an_example_takes_observations_of_float64(
    arguments: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        gymnasium.registry, "Double-v0", gymnasium.envs.registration.EnvSpec("Double-v0", DoubleObservations)
    )
    name, *options = arguments.split()
    short = "--env Double-v0 --steps 40 --eval-every 20 --eval-episodes 1 --hidden 8 --no-bar"
    result = importlib.import_module(name).main([*short.split(), *options, "--run-dir", str(tmp_path)])
    assert len(result.curve) == 2


def test_tiers_runs_with_more_environments_than_eight(tmp_path: Path) -> None:
    short = "--num-envs 9 --steps 18 --min-size 9 --batch-size 4 --hidden 8 --eval-every 18 --eval-episodes 1 --no-bar"
    assert importlib.import_module("tiers").main([*short.split(), "--run-dir", str(tmp_path)]).ending == "steps"


def test_r2d3_learns_from_demonstrations_alone(tmp_path: Path) -> None:
    r2d3 = example("r2d3", CASES["r2d3"])
    short = "--demo-share 1 --demo-episodes 2 --env MiniGrid-Empty-5x5-v0 --max-steps 20 --length 8 --burn-in 2"
    short += " --hidden 8 --min-size 2 --batch-size 4 --steps 160 --eval-every 160 --eval-episodes 1 --no-bar"
    assert r2d3.main([*short.split(), "--run-dir", str(tmp_path)]).ending == "steps"


def test_r2d3_draws_from_a_few_demonstrations() -> None:
    r2d3 = example("r2d3", CASES["r2d3"])
    settings = r2d3.Settings(demo_episodes=1, hidden=8)
    envs = r2d3.gymnasium.vector.SyncVectorEnv([lambda: r2d3.FewActions(settings)])
    with r2d3.demonstrate(settings, envs) as table:
        assert 0 < table.num_items() < settings.min_size
        assert len(table.sample(8, timeout_s=0.0).item_keys) == 8
    envs.close()


def test_a_run_without_a_save_is_not_continued(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="has no save"):
        importlib.import_module("dqn_per").main(["--resume", "--run-dir", str(tmp_path), "--no-bar"])


def test_a_missing_package_is_named_with_the_command() -> None:
    with pytest.raises(SystemExit, match=r"needs nothing-real. Run: pip install '.\[examples\]'"):
        importlib.import_module("frame").package("nothing_real", "nothing-real")


def test_ctrl_c_ends_a_run_between_two_updates_and_saves(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "dqn_per.py"), "--no-bar", "--run-dir", str(tmp_path)]
    program = subprocess.Popen(
        [*command, "--save-s", "0.1"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    while not (tmp_path / "save" / "CURRENT").exists():
        assert program.poll() is None, program.communicate()[0]
    os.kill(program.pid, signal.SIGINT)
    said, _ = program.communicate(timeout=120)
    assert program.returncode == 0, said
    told = json.loads((tmp_path / "result.json").read_text())
    assert told["ending"] == "stopped" and "--resume" in said
    assert relive.saved(tmp_path / "save").num_steps > 0
