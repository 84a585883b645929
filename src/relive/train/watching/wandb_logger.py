"""Logs a run to Weights & Biases (`logging.wandb`, extra `wandb`): its options, its figures, its result.

The files are in RUN_DIR/wandb. The environment variables of wandb apply: with WANDB_MODE=offline all data stays here,
and `wandb sync` sends it later. A resumed run goes on in the same run of Weights & Biases.
"""

from __future__ import annotations

import math
import secrets
import shutil
import time
from pathlib import Path
from typing import Any, final

from relive.errors import InvalidConfig, MissingPackage
from relive.errors.extras import install_command
from relive.train.config import TrainConfig
from relive.train.run_directory import write_whole
from relive.train.watching.callbacks import Callback
from relive.train.watching.checkpoint import CurvePoint
from relive.train.watching.progress import Snapshot, figures
from relive.train.watching.result import RunResult

try:
    import wandb
except ImportError as _problem:
    raise MissingPackage("logging.wandb", _problem.name or "wandb", install_command("wandb")) from _problem

_PERIOD_S = 2.0
_ID_FILE = "wandb-id.txt"


@final
class WandbLogger(Callback):
    """Writes the figures that TensorBoard gets. It owns the wandb run, from on_start to close."""

    def __init__(self) -> None:
        self._run: Any = None
        self._written_s = -math.inf
        self._last_step = 0

    def on_start(self, config: TrainConfig, run_dir: Path) -> None:
        """Begins the wandb run, or resumes it. Blocks for seconds; without a network, until wandb gives up.

        After an error of a new wandb run, the directory is as it was before.

        Raises:
            InvalidConfig: wandb refuses the run: there is no login, or no network.
        """
        path, files = run_dir / _ID_FILE, run_dir / "wandb"
        known = path.read_text(encoding="ascii").strip() if path.exists() else ""
        is_new, had_files = not known, files.exists()
        try:
            if is_new:
                known = secrets.token_hex(8)
                write_whole(path, f"{known}\n".encode())
            self._run = wandb.init(
                project=config.logging.project,
                id=known,
                name=run_dir.name,
                dir=str(run_dir),
                config=config.to_tree(),
                resume="allow",
                settings=wandb.Settings(console="off", silent=True),
            )
        except BaseException as problem:
            if is_new:
                path.unlink(missing_ok=True)
            if is_new and not had_files:  # wandb makes the folder before it asks its server
                shutil.rmtree(files, ignore_errors=True)
            if not isinstance(problem, wandb.errors.Error):
                raise
            expected = "a login of wandb (wandb login) and a network, or WANDB_MODE=offline"
            raise InvalidConfig("logging.wandb", expected, f"True ({problem})") from None

    def on_progress(self, now: Snapshot) -> None:
        """Logs the figures every two seconds."""
        if time.monotonic() - self._written_s >= _PERIOD_S:
            self._written_s = time.monotonic()
            self._log(figures(now), now.num_steps)

    def on_evaluation(self, point: CurvePoint) -> None:
        """Logs the return of the evaluation."""
        self._log({"return/evaluation": point.evaluation_return}, point.num_steps)

    def on_end(self, result: RunResult) -> None:
        """Makes the result the summary of the wandb run."""
        summary = {"ending": result.ending, "num_updates": result.num_updates, "wall_s": result.wall_s}
        if result.returns:
            summary["return/final"] = result.mean_return
        self._run.summary.update(summary)

    def close(self, *, failed: bool) -> None:
        """Ends the wandb run. A process of wandb writes the rest, at the latest while this process ends.

        A second close does nothing.
        """
        run, self._run = self._run, None
        if run is not None:
            run.finish(exit_code=int(failed))

    def _log(self, values: dict[str, float], num_steps: int) -> None:
        # wandb silently drops figures of a step that is smaller than the last one.
        self._last_step = max(self._last_step, num_steps)
        self._run.log(values, step=self._last_step)
