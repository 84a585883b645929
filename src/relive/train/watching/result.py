"""Defines the result of a run, writes its file, and prints it."""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any, final

import numpy as np
from rich.console import Console
from rich.table import Table as Grid

from relive.train.run_directory import write_whole

RESULT_FILE = "result.json"
CURVE_FILE = "curve.png"


class Ending(Enum):
    """The reason why the loop of a run ended."""

    SOLVED = "reached its return"
    LIMIT = "reached its limit of steps or time"
    STOPPED = "was stopped"


@final
@dataclass(frozen=True)
class RunResult:
    """The result of a run. Counters are those of all sessions of the run.

    Attributes:
        agent: Name of the agent.
        env_id: Gymnasium id.
        seed: Seed of the run.
        ending: Why the run ended: a value of `Ending`.
        returns: Returns of the final episodes: greedy, of the kept policy, on seeds used nowhere else. Empty if the run
            was stopped.
        num_cut: Final episodes that the time limit of the evaluation cut. They count with the return that they had.
        kept_return: Return of the best evaluation; None if there was none.
        kept_updates: Updates of the kept policy.
        num_steps: Environment steps.
        num_updates: Updates.
        num_restarts: Times that actors were started again.
        num_sessions: Sessions of the run: 1, and one more for each time that it was resumed.
        wall_s: Wall-clock seconds of the last session.
        run_dir: Directory of the run.
        num_dropped: Gradients of learners with batches of their own that were too stale to be applied.
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
        """Mean of the final returns; NaN if there are none."""
        return float(np.mean(self.returns)) if self.returns else float("nan")

    @property
    def stopped(self) -> bool:
        """Whether the run was stopped and can be resumed."""
        return self.ending == Ending.STOPPED.value


def save_result(result: RunResult, run_dir: Path) -> None:
    """Writes result.json, whole or not at all. Numbers that are not finite are null."""
    text = to_json({**asdict(result), "mean_return": result.mean_return})
    write_whole(run_dir / RESULT_FILE, (text + "\n").encode())


def to_json(values: dict[str, Any]) -> str:
    """Returns JSON of {name: a value, or a list of values}. Numbers that are not finite are null: JSON has none."""
    return json.dumps({name: _finite(value) for name, value in values.items()}, indent=2, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def show_result(result: RunResult, console: Console) -> None:
    """Prints the result of a run that has ended, or the command that resumes a stopped run."""
    if result.stopped:
        command = f"relive train {result.agent} --resume {result.run_dir}"
        console.print(f"The run was stopped. To resume it: {command}", highlight=False, soft_wrap=True)
        return
    grid = Grid(title=f"{result.env_id}: the run {result.ending}", show_header=False)
    grid.add_row(f"greedy return of the kept policy, {len(result.returns)} episodes", f"{result.mean_return:.1f}")
    grid.add_row("lowest, highest", f"{min(result.returns):.1f}, {max(result.returns):.1f}")
    if result.num_cut:
        grid.add_row("episodes cut by the time limit", str(result.num_cut))
    grid.add_row("environment steps", f"{result.num_steps:,}")
    grid.add_row("updates", f"{result.num_updates:,} (kept policy: {result.kept_updates:,})")
    grid.add_row("wall-clock time", f"{result.wall_s:.1f} s")
    grid.add_row("actors restarted", str(result.num_restarts))
    if result.num_dropped:
        grid.add_row("gradients dropped", f"{result.num_dropped:,}")
    grid.add_row("run directory", result.run_dir)
    console.print(grid)
    folder = Path(result.run_dir)
    steps = [f"{_program()} play {shlex.quote(result.run_dir)}   (--video FILE.mp4 needs no display)"]
    curve = folder / CURVE_FILE
    if curve.exists():
        steps.append(f"look at the learning curve: {curve}")
    for words, step in zip(("next: ", "      "), steps, strict=False):
        console.print(words + step, highlight=False, soft_wrap=True)


def _program() -> str:
    """The words that start the command line here: the script that runs now, if it is relive's; else `relive`."""
    script = Path(sys.argv[0])
    found = any((Path(folder) / "relive") == script for folder in os.environ.get("PATH", "").split(os.pathsep))
    if script.name != "relive" or found:
        return "relive"
    return shlex.quote(os.path.relpath(script) if script.is_relative_to(Path.cwd()) else str(script))
