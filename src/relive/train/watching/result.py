"""What a run came to, and the files and lines that say so."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import final

import numpy as np
from rich.console import Console
from rich.table import Table as Grid

RESULT_FILE = "result.json"


class Ending(Enum):
    """Why a run's loop ended."""

    SOLVED = "reached its return"
    LIMIT = "reached its limit of steps or time"
    STOPPED = "was stopped"


@final
@dataclass(frozen=True)
class RunResult:
    """What a run came to. returns: greedy, of the kept policy, on the final seeds; empty where the run was stopped.

    num_cut: of these episodes, those that the evaluation's time limit cut; they count as far as they came.
    num_dropped: gradients that were too stale to be applied, of learners with batches of their own.
    num_steps, num_updates, num_restarts (of actors), num_dropped and num_sessions count the whole run, wall_s its last
    session.
    """

    agent: str
    env_id: str
    seed: int
    ending: str
    returns: tuple[float, ...]
    num_cut: int
    kept_return: float | None
    kept_updates: int
    num_steps: int
    num_updates: int
    num_restarts: int
    num_sessions: int
    wall_s: float
    run_dir: str
    num_dropped: int = 0

    @property
    def mean_return(self) -> float:
        """Mean of the final returns; NaN where there are none."""
        return float(np.mean(self.returns)) if self.returns else float("nan")

    @property
    def stopped(self) -> bool:
        """Whether the run was interrupted and can be resumed."""
        return self.ending == Ending.STOPPED.value


def save_result(result: RunResult, run_dir: Path) -> None:
    """Writes result.json."""
    text = json.dumps({**asdict(result), "mean_return": result.mean_return}, indent=2)
    (run_dir / RESULT_FILE).write_text(text + "\n", encoding="utf-8")


def show_result(result: RunResult, console: Console) -> None:
    """A stopped run's way on, or what an ended one came to."""
    if result.stopped:
        command = f"relive train {result.agent} --resume {result.run_dir}"
        console.print(f"Stopped. Go on with: {command}", highlight=False, soft_wrap=True)
        return
    grid = Grid(title=f"{result.env_id}: the run {result.ending}", show_header=False)
    grid.add_row(f"greedy return of the kept policy, {len(result.returns)} episodes", f"{result.mean_return:.1f}")
    grid.add_row("lowest, highest", f"{min(result.returns):.1f}, {max(result.returns):.1f}")
    if result.num_cut:
        grid.add_row("of them cut by the time limit", str(result.num_cut))
    grid.add_row("environment steps", f"{result.num_steps:,}")
    grid.add_row("updates", f"{result.num_updates:,} (kept policy: {result.kept_updates:,})")
    grid.add_row("wall clock", f"{result.wall_s:.1f} s")
    grid.add_row("actors restarted", str(result.num_restarts))
    if result.num_dropped:
        grid.add_row("gradients dropped", f"{result.num_dropped:,}")
    grid.add_row("run directory", result.run_dir)
    console.print(grid)
