"""A signal ends the tuner at every moment: before, in, at the end of, and between its trials, and before the run."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="training needs torch")
pytest.importorskip("gymnasium", reason="training needs Gymnasium")
pytest.importorskip("rich", reason="the command line needs rich")

from relive.cli.entry import run  # noqa: E402
from relive.train import tune  # noqa: E402
from relive.train.signals import STOP_SIGNALS  # noqa: E402
from relive.train.tuning import trial, tuner  # noqa: E402
from relive.train.tuning.calibrate import Sizes, calibrate  # noqa: E402
from relive.train.tuning.throughput import Setting  # noqa: E402
from relive.train.tuning.trial import Trial, run_trial  # noqa: E402
from relive.train.watching.saves import Checkpoints  # noqa: E402
from train.test_tuning import nothing_is_left, sets, small  # noqa: E402

INLINE = Setting(1, 1, 16, inline=True)


def sending_around(function: Callable[..., Any], *, after: bool, number: int = signal.SIGTERM) -> Callable[..., Any]:
    """The same function; a signal comes before it, or after it."""

    def watched(*given: Any, **options: Any) -> Any:
        if not after:
            os.kill(os.getpid(), number)
        result = function(*given, **options)
        if after:
            os.kill(os.getpid(), number)
        return result

    return watched


@pytest.mark.parametrize("number", STOP_SIGNALS)
@pytest.mark.parametrize(
    ("where", "name", "after"),
    [
        (trial, "train", False),
        (Checkpoints, "finish", False),  # all windows are full
        (Checkpoints, "close", True),
        (trial, "train", True),
        (tempfile.TemporaryDirectory, "cleanup", True),
    ],
)
def test_a_signal_of_any_moment_ends_a_trial(
    where: Any, name: str, after: bool, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = [signal.getsignal(one) for one in STOP_SIGNALS]
    monkeypatch.setattr(where, name, sending_around(getattr(where, name), after=after, number=number))
    with pytest.raises(KeyboardInterrupt):
        run_trial(small(), INLINE, 0.2)
    assert nothing_is_left() and not list(tmp_path.iterdir())
    assert [signal.getsignal(one) for one in STOP_SIGNALS] == before


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_between_two_trials_ends_the_tuner(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        if "predicted" in line:
            os.kill(os.getpid(), number)

    costs = calibrate(small(), Sizes((1,), (16,), learners_too=False), 0.1)
    monkeypatch.setattr(tuner, "calibrate", lambda *given, **options: costs)
    monkeypatch.setattr(tuner, "run_trial", lambda *given: Trial(1.0, 1.0, 1.0, 1.0, 0.0, 0.0))
    before = [signal.getsignal(one) for one in STOP_SIGNALS]
    with pytest.raises(KeyboardInterrupt):
        tune(small(), budget_s=60.0, say=say)
    assert len(said) == 1 and [signal.getsignal(one) for one in STOP_SIGNALS] == before


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_while_the_parts_are_measured_ends_the_tuner(number: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        tune(small(), budget_s=1.0, say=lambda line: os.kill(os.getpid(), number))
    assert nothing_is_left()


class Tuned:
    """The result of a tuner, as --auto uses it."""

    def __init__(self) -> None:
        self.config = small()


@pytest.mark.parametrize("number", STOP_SIGNALS)
@pytest.mark.parametrize("after", [False, True])
def test_a_signal_around_the_tuner_ends_the_command_before_its_run(
    after: bool, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuner, "tune", sending_around(lambda *given, **options: Tuned(), after=after, number=number))
    with pytest.raises(KeyboardInterrupt):
        run(["train", "dqn", "--auto", "--run-dir", str(tmp_path / "run"), *sets()])
    assert not list(tmp_path.iterdir())
