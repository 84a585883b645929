"""A disk that is full for a while: lines say so, the run goes on, and everything is written again later."""

from __future__ import annotations

import io
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="training needs torch")
pytest.importorskip("gymnasium", reason="training needs Gymnasium")

from rich.console import Console  # noqa: E402

from relive.train import Callback, Snapshot, TrainConfig, preset, train  # noqa: E402
from relive.train.checkpoint import Progress, load_checkpoint  # noqa: E402
from relive.train.run import _Run  # noqa: E402
from relive.train.setup import prepare  # noqa: E402
from relive.train.watching import progress  # noqa: E402
from relive.train.watching.callbacks import Listeners  # noqa: E402
from relive.train.watching.progress import ProgressReporter  # noqa: E402
from train.test_kept import snapshot  # noqa: E402

SMALL: dict[str, object] = {
    "topology": "inline", "acting.num_actors": 1, "replay.min_size": 100, "replay.updates_per_step": 0.25,
    "agent.network.hidden": (8,), "agent.batch_size": 16, "update": "handwritten", "limits.max_steps": 10**8,
    "limits.max_minutes": 10.0, "limits.checkpoint_period_s": 0.05, "evaluation.num_episodes": 1,
    "evaluation.num_final_episodes": 1, "evaluation.stop_return": None, "evaluation.period_updates": 200,
}  # fmt: skip


def steps_of(run_dir: Path, name: str) -> list[int]:
    """The steps of a figure in the files of TensorBoard."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run_dir / "tensorboard"))
    events.Reload()
    return [event.step for event in events.Scalars(name)]


class Disk:
    """Every write of this process to a file fails while the disk is full. Memory that it has stays as it is."""

    def __init__(self) -> None:
        self._limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, self._limits[1]))

    def free(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self._limits)


@contextmanager
def a_disk() -> Iterator[Disk]:
    disk = Disk()
    try:
        yield disk
    finally:
        disk.free()


def wait_for_its_error(reporter: ProgressReporter) -> None:
    """Waits until the thread of TensorBoard has met the full disk."""
    if reporter._writer is not None:  # else its error was raised here already
        reporter._writer.file_writer.event_writer._async_writer._worker.join(60)


def test_tensorboard_goes_on_in_a_new_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_RETRY_S", 0.0)
    text, hook = io.StringIO(), threading.excepthook
    with a_disk() as disk, ProgressReporter(Console(file=text, width=300), "title", tmp_path) as reporter:
        reporter.options({"agent.gamma": 0.9})
        reporter.show(snapshot(10), at_once=True)
        reporter.evaluated(3.0, 10)
        reporter._writer.flush()
        disk.fill()
        reporter.evaluated(4.0, 15)
        wait_for_its_error(reporter)
        for step in (20, 30):
            reporter.show(snapshot(step), at_once=True)
            reporter.evaluated(5.0, step)
        disk.free()
        reporter.show(snapshot(40), at_once=True)
        reporter.evaluated(6.0, 40)
        reporter._writer.flush()
        disk.fill()
        reporter.evaluated(7.0, 50)
        wait_for_its_error(reporter)
        reporter.evaluated(8.0, 60)
    told = [line for line in text.getvalue().splitlines() if "TensorBoard" in line]
    assert [line.split(":")[0] for line in told] == [
        "TensorBoard gets no figures", "TensorBoard gets figures again", "TensorBoard gets no figures",
    ]  # fmt: skip
    assert "File too large" in told[0] and "the run goes on" in told[0]
    assert steps_of(tmp_path, "return/acting") == [10, 40] and steps_of(tmp_path, "return/evaluation") == [10, 40]
    assert all(path.stat().st_size for path in (tmp_path / "tensorboard").iterdir())
    assert "Traceback" not in capfd.readouterr().err and threading.excepthook is hook


class FullForAWhile(Callback):
    """Fills the disk of a run until the run has told of it, and stops the run when all is written again."""

    def __init__(self, disk: Disk, text: io.StringIO) -> None:
        self._disk, self._text = disk, text
        self.paths: list[str] = []
        self._is_full, self._num_before = False, 0

    def on_checkpoint(self, path: Path, num_updates: int) -> None:
        assert not self._is_full
        self.paths.append(path.name)

    def on_progress(self, now: Snapshot) -> bool:
        text = self._text.getvalue()
        if not self._is_full and not self._num_before and len(self.paths) >= 2:
            self._is_full, self._num_before = True, len(self.paths)
            self._disk.fill()
        elif self._is_full and text.count("checkpoint was not written") >= 2 and "TensorBoard gets no figures" in text:
            self._is_full = False
            self._disk.free()
        elif self._num_before and not self._is_full:
            return len(self.paths) > self._num_before and "TensorBoard gets figures again" in text
        return False


def small(**more: object) -> TrainConfig:
    return preset("dqn", "CartPole-v1", {**SMALL, **{path.replace("__", "."): value for path, value in more.items()}})


@pytest.mark.parametrize("mode", ["never", pytest.param("end", marks=pytest.mark.thorough), "always"])
def test_a_run_goes_on(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_RETRY_S", "_EVENT_PERIOD_S", "_EARLY_LINE_PERIOD_S"):
        monkeypatch.setattr(progress, name, 0.0)
    monkeypatch.setattr(progress, "_FLUSH_S", 0.05)
    folder, text = tmp_path / "run", io.StringIO()
    with a_disk() as disk:
        noting: Any = FullForAWhile(disk, text)
        result = train(small(checkpoint__table=mode), folder, callbacks=[noting], console=Console(file=text, width=300))
    assert result.stopped, text.getvalue()
    assert load_checkpoint(folder)[0]["num_updates"] == result.num_updates


def test_a_choice_of_updates_that_cannot_be_kept_costs_a_line(tmp_path: Path) -> None:
    config, text = small(), io.StringIO()
    config.save(tmp_path / "config.json")
    run = _Run(prepare(config), 0, Progress(), tmp_path, None, Console(file=text, width=300), Listeners(()))
    with a_disk() as disk:
        disk.fill()
        run._keep_choice("compiled")
    assert "the choice was not written: [Errno 27]" in text.getvalue()
    assert TrainConfig.load(tmp_path / "config.json").update == "handwritten"
    run._keep_choice("compiled")
    assert TrainConfig.load(tmp_path / "config.json").update == "compiled"
