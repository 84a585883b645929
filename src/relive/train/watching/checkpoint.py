"""The learner's checkpoint: one file, replaced as a whole.

It holds the agent (networks, optimizers, random generators), all counters, the kept policy and the learning curve. The
table is not in it: a resumed run fills a new one before it learns on.
"""

from __future__ import annotations

import io
import os
import pickle
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from relive.errors import InvalidConfig

FORMAT = 2
FILE_NAME = "checkpoint.pt"


@final
@dataclass(frozen=True)
class CurvePoint:
    """One evaluation: greedy returns at this moment of the run, and what acting brought meanwhile."""

    elapsed_s: float
    num_steps: int
    num_updates: int
    evaluation_return: float
    acting_return: float | None
    num_cut: int = 0  # episodes that the evaluation's time limit cut; their returns count as far as they came


@final
@dataclass
class Progress:
    """The counters of a run over all its sessions, and the best policy so far."""

    num_steps: int = 0
    elapsed_s: float = 0.0
    parameter_version: int = 0
    num_evaluation_episodes: int = 0
    num_restarts: int = 0
    num_dropped: int = 0  # gradients that were too stale to be applied
    num_sessions: int = 0
    kept_return: float = float("-inf")
    kept_updates: int = 0
    kept_cut: bool = False  # whether the kept policy's evaluation was cut
    kept_parameters: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    solved: bool = False
    curve: list[CurvePoint] = field(default_factory=list)


def save_checkpoint(run_dir: Path, learner: dict[str, Any], progress: Progress) -> None:
    """Writes `checkpoint.pt` beside itself, makes it durable, and renames it: a reader finds the old or the new one.

    Costs the size of the file in memory meanwhile. Raises OSError, as of a full disk: the old one stays.
    """
    counters = {name: value for name, value in vars(progress).items() if name not in ("kept_parameters", "curve")}
    state = {
        "format": FORMAT,
        "learner": learner,
        "counters": counters,
        "curve": [asdict(point) for point in progress.curve],
        "kept": {name: torch.from_numpy(value) for name, value in progress.kept_parameters.items()},
    }
    temporary = run_dir / f".{FILE_NAME}.{os.getpid()}"
    whole = io.BytesIO()
    torch.save(state, whole)  # to memory: of a full disk it would say something else than the system does
    try:
        with temporary.open("wb") as file:
            file.write(whole.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, run_dir / FILE_NAME)
    finally:
        temporary.unlink(missing_ok=True)


def load_checkpoint(run_dir: Path) -> tuple[dict[str, Any], Progress]:
    """The agent's state and the progress of the run in `run_dir`. Raises InvalidConfig where there is none."""
    path = run_dir / FILE_NAME
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError, LookupError, pickle.UnpicklingError) as problem:
        raise InvalidConfig(
            what=f"checkpoint {path}", expected="the file that a run with at least one checkpoint has", got=str(problem)
        ) from problem
    found = state.get("format") if isinstance(state, dict) else None
    if found != FORMAT:
        raise InvalidConfig(what=f"format of {path}", expected=str(FORMAT), got=str(found))
    try:
        progress = Progress(
            **state["counters"],
            kept_parameters={name: value.cpu().numpy() for name, value in state["kept"].items()},
            curve=[CurvePoint(**point) for point in state["curve"]],
        )
        return state["learner"], progress
    except (KeyError, TypeError, AttributeError) as problem:
        raise InvalidConfig(f"parts of {path}", "those that a run writes", repr(problem)) from problem
