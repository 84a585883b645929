"""Measures a training run that saves its table: steps a second with and without saves, and the start of a resumed run.

A part of benchmarks.saving. The first figure is paired: one run alternates windows with a save every 5 s and windows
without saves (A B B A), so that both see the same table, the same policy and the same machine. Other programs change
the rate of a window. So the steps for each second of processor time, of all processes of the run, stand beside it.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import relive
import relive.checkpoint
from relive.train import TrainConfig, preset, train
from relive.train.checkpoint import load_checkpoint
from relive.train.setup import limiter_of
from relive.train.watching.saves import Checkpoints

WINDOW_S, NUM_QUADS, WARM_S = 5.0, 20, 10.0
_OFTEN: dict[str, object] = {
    "limits.checkpoint_period_s": 5.0,
    "limits.max_steps": 10**9,
    "limits.max_minutes": 1e6,
    "evaluation.period_updates": 10**9,
    "evaluation.stop_return": None,
    "update": "handwritten",
    "environment.num_envs_per_actor": 4,
}


class _Windows:
    """Counts the steps of each window, and says whether saves are on."""

    def __init__(self) -> None:
        self.begins_s = 0.0
        self.marks: list[tuple[float, float, int]] = []  # time, processor time, steps
        self.num_saves = 0

    @property
    def saves(self) -> bool:
        return (len(self.marks) - 1) % 4 in (0, 3)

    def over(self, num_steps: int, num_updates: int) -> bool:
        now_s = time.monotonic()
        if num_updates and not self.begins_s:
            self.begins_s = now_s + WARM_S
        if self.begins_s and now_s >= self.begins_s + WINDOW_S * len(self.marks):
            self.marks.append((now_s, _processor_s(), num_steps))
        return len(self.marks) > 4 * NUM_QUADS

    def ratios(self, clock: int) -> list[float]:
        """Returns, for each A B B A, the steps a second with saves by those without. clock: 0 wall, 1 processor."""
        marks = np.asarray(self.marks)
        rates = np.diff(marks[:, 2]) / np.diff(marks[:, clock])
        return [float((a + d) / (b + c)) for a, b, c, d in rates.reshape(-1, 4)]


def _processor_s() -> float:
    """The processor time of this process and of its children, in seconds."""
    pids = [os.getpid(), *(child.pid for child in multiprocessing.active_children())]
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def with_saves(folder: Path) -> dict[str, Any]:
    """The steps a second of `relive train dqn` with a save every 5 s, by those without saves."""
    windows, look = _Windows(), Checkpoints.look

    def switched(self: Checkpoints, state: Any) -> Any:
        if not windows.saves and self._save is None:
            self._began_s = time.monotonic() - 4.0  # the first save of a window comes after a second
            return None
        written = look(self, state)
        windows.num_saves += written is not None
        return written

    Checkpoints.look = switched  # type: ignore[method-assign]
    try:
        train(preset("dqn", "CartPole-v1", _OFTEN), folder / "run", stop_when=windows.over)
    finally:
        Checkpoints.look = look  # type: ignore[method-assign]
    (first_s, _, first), (last_s, _, last) = windows.marks[0], windows.marks[-1]
    found: dict[str, Any] = {
        "steps_per_s": round((last - first) / (last_s - first_s), 1),
        "num_saves": windows.num_saves,
        "save_bytes": relive.saved(folder / "run" / "save").num_bytes,
    }
    for clock, name in enumerate(("with_to_without", "with_to_without_by_processor_time")):
        ratios = windows.ratios(clock)
        found[name] = round(median(ratios), 3)
        found[f"{name}_spread"] = [round(min(ratios), 3), round(max(ratios), 3)]
    return found


def resumed(folder: Path, num_steps: int = 1_000_000) -> dict[str, Any]:
    """Seconds from the call of train(resume=True) to the first update, with so many steps in the table."""
    config = preset("dqn", "CartPole-v1", {**_OFTEN, "replay.capacity": num_steps})
    train(config, folder / "resumed", stop_when=lambda steps, updates: updates > 20)
    _fill(folder / "resumed" / "save", config, num_steps)
    state, _ = load_checkpoint(folder / "resumed")
    times = []
    for _ in range(3):
        began_s, first_s = time.monotonic(), []

        def over(steps: int, updates: int, first_s: list[float] = first_s, before: int = state["num_updates"]) -> bool:
            if updates > before:
                first_s.append(time.monotonic())
            return bool(first_s)

        train(config, folder / "resumed", resume=True, stop_when=over)
        times.append(first_s[0] - began_s)
        state, _ = load_checkpoint(folder / "resumed")
    all_s = [round(one, 2) for one in times]
    return {"num_steps": num_steps, "first_update_s": round(median(times), 2), "all_s": all_s}


def _fill(save: Path, config: TrainConfig, num_steps: int) -> None:
    """Fills the saved table with so many steps."""
    learner = relive.checkpoint.load_learner(save)
    with relive.load(save) as table:
        spec, block, rng = table.config.spec, 4_096, np.random.default_rng(0)
        columns = {
            name: rng.integers(0, 2, (block, *one.shape)).astype(one.dtype) for name, one in spec.columns.items()
        }
        table.set_limiter(relive.MinSize(1))
        with table.writer() as writer:
            while table.stats().appended < num_steps:
                writer.extend(**columns, terminated=np.arange(block) % 500 == 499)
        table.set_limiter(limiter_of(config))
        relive.checkpoint.save(save, table=table, learner=learner)
