"""Measures how fast a setting is: a real run of some seconds, in a folder that is removed afterwards."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

import numpy as np

from relive.train.config import TrainConfig
from relive.train.memory.core_waits import waited_for_core_s
from relive.train.run import train
from relive.train.sections import ServingConfig
from relive.train.settings import changed, options
from relive.train.setup import limiter_of
from relive.train.signals import stop_signals
from relive.train.tuning.throughput import Setting

NUM_WINDOWS = 4
_PREFIX = "relive-"
LEARNER, ACTOR = f"{_PREFIX}learner", f"{_PREFIX}actor"  # names of processes, which end with their number
_WARM_SHARE = 0.5  # of the measured time, before it: late processes start, first calls make buffers
_LONGEST_WARM = 3.0
_MOST_FILL = 1_000  # steps before learning begins: the measurement does not depend on them
_GIVES_UP_S = 120.0


@final
@dataclass(frozen=True)
class Trial:
    """The measured speed of a setting: medians over equal windows of time, after it had learnt for a while.

    A process waits for a core if other programmes run, or if the run has more processes than there are cores.

    Attributes:
        steps_per_s: Environment steps a second.
        updates_per_s: Updates a second.
        lowest: Steps a second of the slowest window.
        highest: Steps a second of the fastest window.
        learning_waited: Largest share of its time that a learner had work to do and no core.
        acting_waited: The same for an actor.
    """

    steps_per_s: float
    updates_per_s: float
    lowest: float
    highest: float
    learning_waited: float
    acting_waited: float

    @property
    def spread(self) -> float:
        """(highest - lowest) / median."""
        return (self.highest - self.lowest) / self.steps_per_s


@final
@dataclass
class Windows:
    """The windows of a trial: they tell when the trial is over, and its result. The caller gives the times.

    Attributes:
        seconds: Length of all windows together.
        updates_per_step: Updates for each environment step.
        slack_steps: Steps by which one side may get ahead of the other at first. The windows begin when so many steps
            have been learnt from: then both sides go at the pace of the slower one.
        marks: Time, steps and updates at the ends of the windows.
        waits: Seconds that each process has waited for a core by then.
    """

    seconds: float
    updates_per_step: float
    slack_steps: float
    marks: list[tuple[float, int, int]] = field(default_factory=list)
    waits: list[dict[str, float]] = field(default_factory=list)
    _first: tuple[float, int] | None = None
    _warm_s: float | None = None

    def tick(self, now_s: float, num_steps: int, num_updates: int, waits_s: Callable[[], dict[str, float]]) -> bool:
        """Takes the counters of the run; call it before every batch. Returns whether all windows are full.

        waits_s: returns the seconds that each process has waited for a core so far.
        """
        if self._warm_s is None:
            self._warm_up(now_s, num_updates)
        elif now_s >= self._warm_s + self.seconds * len(self.marks) / NUM_WINDOWS:
            self.marks.append((now_s, num_steps, num_updates))
            self.waits.append(waits_s())
        return len(self.marks) > NUM_WINDOWS

    def _warm_up(self, now_s: float, num_updates: int) -> None:
        if num_updates == 0:
            return
        self._first = self._first or (now_s, num_updates)
        took_s = now_s - self._first[0]
        is_steady = num_updates - self._first[1] >= self.slack_steps * self.updates_per_step
        if took_s >= _LONGEST_WARM * self.seconds or (is_steady and took_s >= _WARM_SHARE * self.seconds):
            self._warm_s = now_s

    def result(self) -> Trial | None:
        """Returns the result; None if the windows are not full, or if one side did nothing."""
        if len(self.marks) <= NUM_WINDOWS:
            return None
        marks = np.asarray(self.marks)
        total, took = marks[-1] - marks[0], np.diff(marks, axis=0)
        # Steps come in groups of all environments, updates one by one: updates are finer, unless the learner was ahead.
        updates_first = total[2] <= total[1] * self.updates_per_step * 1.1
        steps = took[:, 2] / self.updates_per_step if updates_first else took[:, 1]
        rates = steps / took[:, 0]
        rate = float(np.median(rates))
        if rate <= 0:
            return None
        lowest, highest = float(rates.min()), float(rates.max())
        return Trial(
            rate, rate * self.updates_per_step, lowest, highest,
            self._waited(LEARNER, total[0]), self._waited(ACTOR, total[0]),
        )  # fmt: skip

    def _waited(self, kind: str, took_s: float) -> float:
        """Returns the largest share of the time that a process of this kind waited; 0 if there is none."""
        before, after = self.waits[0], self.waits[-1]
        names = [name for name in before.keys() & after.keys() if name.startswith(kind)]
        return max((float((after[name] - before[name]) / took_s) for name in names), default=0.0)


def _waits_s() -> dict[str, float]:
    """Returns the seconds that each process has waited for a core: this thread, which learns, and the children."""
    others = {child.name: child.pid for child in multiprocessing.active_children() if child.name.startswith(_PREFIX)}
    return {LEARNER: waited_for_core_s(), **{name: waited_for_core_s(pid) for name, pid in others.items()}}


def run_trial(config: TrainConfig, setting: Setting, seconds: float) -> Trial | None:
    """Runs a setting and measures it. The run has no evaluations, no server, and hand-written updates.

    Args:
        config: Options of the run.
        setting: The setting.
        seconds: Length of the measurement.

    Returns:
        The measured speed; None if the run did not come to a measurement.

    Raises:
        KeyboardInterrupt: SIGINT, SIGTERM or SIGHUP came, in the main thread.
        Exception: Any error of `train`.

    Blocks:
        For the start of the processes, the filling of the table, up to three times `seconds` to warm up, and `seconds`.
        It gives up after two minutes more than that.
    """
    quiet: dict[str, object] = {
        "replay.min_size": min(config.replay.min_size, max(_MOST_FILL, config.agent.batch_size)),
        "evaluation.period_updates": 10**9,
        "evaluation.stop_return": None,
        "limits.max_steps": 10**12,
        "limits.max_minutes": 1e6,
        "limits.checkpoint_period_s": 1e6,
        "checkpoint.table": "never",
        "profile": False,
        "logging.wandb": False,
        "update": "handwritten",
        **{f"serving.{option.path}": option.value for option in options(ServingConfig())},  # not served
    }
    measured = changed(config, {**quiet, **setting.options})
    limiter, ratio = limiter_of(measured), measured.replay.updates_per_step
    windows = Windows(seconds, ratio, (limiter.tolerance or 0.0) / limiter.samples_per_insert)
    gives_up_s = time.monotonic() + _GIVES_UP_S + 2 * _LONGEST_WARM * seconds

    def stop_when(num_steps: int, num_updates: int) -> bool:
        now_s = time.monotonic()
        return windows.tick(now_s, num_steps, num_updates, _waits_s) or now_s > gives_up_s or signalled()

    with stop_signals() as signalled, tempfile.TemporaryDirectory(prefix="relive-tune-") as folder:
        train(measured, Path(folder) / "run", stop_when=stop_when)
    if signalled():  # `train` has ended all processes, as it does in the other cases
        raise KeyboardInterrupt
    return windows.result()
