"""What TensorBoard and Weights & Biases get of a run: the hyper-parameters, the figures, the result."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="training needs torch")
pytest.importorskip("gymnasium", reason="training needs Gymnasium")

from rich.console import Console  # noqa: E402

from relive.errors import InvalidConfig, MissingPackage  # noqa: E402
from relive.train import Callback, Snapshot, TrainConfig, preset, train  # noqa: E402
from relive.train.watching.progress import ProgressReporter  # noqa: E402

SMALL: dict[str, object] = {
    "topology": "inline", "acting.num_actors": 1, "replay.min_size": 100, "limits.max_steps": 600,
    "evaluation.num_episodes": 1, "evaluation.num_final_episodes": 2, "evaluation.stop_return": None,
    "agent.network.hidden": (16,), "agent.batch_size": 16, "agent.gamma": 0.875,
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_thread_of_wandb_is_left() -> Iterator[None]:
    """They live as long as the process; while there are any, no wait in it is one for itself (`WaitsForItself`)."""
    yield
    if "wandb" in sys.modules:
        sys.modules["wandb"].teardown()


def test_tensorboard_gets_the_hyper_parameters(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    train(preset("dqn", "CartPole-v1", SMALL), tmp_path / "run")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    told = HParamsPluginData.FromString(events.PluginTagToContent("hparams")["_hparams_/session_start_info"])
    options = told.session_start_info.hparams
    assert options["agent.gamma"].number_value == 0.875 and options["limits.max_steps"].number_value == 600
    assert options["agent.network.hidden"].string_value == "(16,)" and options["topology"].string_value == "inline"
    assert options["evaluation.stop_return"].string_value == "None"
    assert {"return/acting", "learner/loss", "table/fill"} <= set(events.Tags()["scalars"])


def wandb_or_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed here (pip install 'relive[wandb]')")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")


def test_wandb_offline_has_options_figures_and_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb_or_skip(monkeypatch)
    folder = tmp_path / "run"
    config = preset("dqn", "CartPole-v1", {**SMALL, "logging.wandb": True, "logging.project": "of-tests"})
    train(config, folder)
    (recorded,) = folder.glob("wandb/offline-run-*/*.wandb")
    # wandb's own process writes, and may be at it still when the run has ended.
    ends = time.monotonic() + 60
    while b"return/final" not in recorded.read_bytes() and time.monotonic() < ends:
        time.sleep(0.1)
    text = recorded.read_bytes()
    for word in (b"return/evaluation", b"learner/loss", b"learner/updates_per_s", b"return/final", b"gamma", b"0.875"):
        assert word in text, word
    assert b"of-tests" in text
    name = (folder / "wandb-id.txt").read_text().strip()
    assert recorded.name == f"run-{name}.wandb"
    train(None, folder, resume=True)
    assert len(list(folder.glob(f"wandb/offline-run-*/run-{name}.wandb"))) == 2, "a resumed run is the same one there"


def test_wandb_ends_with_a_run_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb_or_skip(monkeypatch)
    from relive.train.watching import wandb_logger

    codes: list[Any] = []

    class Run:
        def log(self, values: Any, step: int) -> None:
            codes.append(step)

        def finish(self, exit_code: int) -> None:
            codes.append(f"finished {exit_code}")

    class Failing(Callback):
        def on_progress(self, now: Snapshot) -> None:
            if now.num_steps > 100:
                raise ArithmeticError("of the test")

    monkeypatch.setattr(wandb_logger.wandb, "init", lambda **named: Run())
    with pytest.raises(ArithmeticError):
        train(preset("dqn", "CartPole-v1", {**SMALL, "logging.wandb": True}), tmp_path / "run", callbacks=[Failing()])
    assert codes[-1] == "finished 1"
    steps = [code for code in codes if isinstance(code, int)]
    assert steps == sorted(steps)


def test_a_run_whose_id_of_wandb_was_not_written_gets_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb_or_skip(monkeypatch)
    from relive.train.watching import wandb_logger

    ids: list[str] = []
    monkeypatch.setattr(wandb_logger.wandb, "init", lambda **named: ids.append(named["id"]))
    (tmp_path / "wandb-id.txt").touch()
    for _ in range(2):
        wandb_logger.WandbLogger().on_start(preset("dqn", "CartPole-v1"), tmp_path)
    assert len(ids[0]) == 16 and ids[0] == ids[1] == (tmp_path / "wandb-id.txt").read_text().strip()


def test_without_a_login_of_wandb_the_run_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb_or_skip(monkeypatch)
    from relive.train.watching import wandb_logger

    def init(**named: Any) -> None:
        raise wandb_logger.wandb.errors.UsageError("No API key configured.")

    monkeypatch.setattr(wandb_logger.wandb, "init", init)
    with pytest.raises(InvalidConfig, match=r"logging.wandb.*wandb login.*WANDB_MODE=offline.*No API key"):
        train(preset("dqn", "CartPole-v1", {**SMALL, "logging.wandb": True}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_tuned_run_that_wandb_refuses_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The callback of `--auto` writes tuning.json before wandb is asked."""
    wandb_or_skip(monkeypatch)
    from relive.train.watching import wandb_logger

    class Writing(Callback):
        def on_start(self, config: TrainConfig, run_dir: Path) -> None:
            (run_dir / "tuning.json").touch()

    def init(**named: Any) -> None:
        raise wandb_logger.wandb.errors.UsageError("No API key configured.")

    monkeypatch.setattr(wandb_logger.wandb, "init", init)
    with pytest.raises(InvalidConfig, match="No API key"):
        train(preset("dqn", "CartPole-v1", {**SMALL, "logging.wandb": True}), tmp_path / "run", callbacks=[Writing()])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("error", ["Error", KeyboardInterrupt, ArithmeticError])
def test_a_run_that_ends_while_wandb_begins_leaves_nothing(
    error: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """wandb makes its folder before it asks its server."""
    wandb_or_skip(monkeypatch)
    from relive.train.watching import wandb_logger

    raised, expected = (wandb_logger.wandb.errors.Error, InvalidConfig) if error == "Error" else (error, error)

    def init(dir: str, **named: Any) -> None:
        (Path(dir) / "wandb" / "run-x" / "files").mkdir(parents=True)
        raise raised("of the test")

    monkeypatch.setattr(wandb_logger.wandb, "init", init)
    for _ in range(2):
        with pytest.raises(expected, match="of the test"):
            train(preset("dqn", "CartPole-v1", {**SMALL, "logging.wandb": True}), tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_earlier_files_of_wandb_stay_if_it_refuses_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb_or_skip(monkeypatch)
    from relive.train.watching import wandb_logger

    def init(**named: Any) -> None:
        raise wandb_logger.wandb.errors.Error("of the test")

    monkeypatch.setattr(wandb_logger.wandb, "init", init)
    (tmp_path / "wandb").mkdir()
    for left in (["wandb"], ["wandb", "wandb-id.txt"]):
        with pytest.raises(InvalidConfig):
            wandb_logger.WandbLogger().on_start(preset("dqn", "CartPole-v1"), tmp_path)
        assert sorted(path.name for path in tmp_path.iterdir()) == left
        (tmp_path / "wandb-id.txt").write_text("known")


def test_without_wandb_the_run_is_refused_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.delitem(sys.modules, "relive.train.watching.wandb_logger", raising=False)
    with pytest.raises(MissingPackage) as caught:
        train(preset("dqn", "CartPole-v1", {**SMALL, "logging.wandb": True}), tmp_path / "run")
    assert "wandb" in str(caught.value) and "[wandb]" in str(caught.value) and not (tmp_path / "run").exists()
    with pytest.raises(InvalidConfig):
        preset("dqn", "CartPole-v1", {"logging.project": ""})


def test_nobody_loads_wandb_unasked() -> None:
    program = "import sys, relive.train.run, relive.train.acting.actor; assert 'wandb' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_the_hook_of_threads_is_the_programs_again_after_runs_that_overlapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", told.append)
    hook = threading.excepthook
    first, second = (ProgressReporter(Console(quiet=True), "title", tmp_path / name) for name in ("one", "two"))
    with ExitStack() as late:
        with first:
            late.enter_context(second)
        assert threading.excepthook is not hook, "the second one still writes"
        broken = threading.Thread(target=lambda: 1 / 0)
        broken.start()
        broken.join()
        assert [one.thread for one in told] == [broken], "other threads are shown, once"
    assert threading.excepthook is hook
