"""Saves and loads the checkpoint of a run: one file, which is replaced as a whole.

The file has the agent (networks, optimizers, random generators), all counters, the kept policy and the learning curve.
It does not have the table: a resumed run fills a new table before it learns again.

torch writes a zip archive with a crc32 of each part, and does not compare them. `load_checkpoint` does.
"""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from relive.errors import InvalidConfig
from relive.train.run_directory import CHECKPOINT_FILE, write_whole

FORMAT = 2
FILE_NAME = CHECKPOINT_FILE
_UNREADABLE = (
    OSError, RuntimeError, ValueError, EOFError, LookupError, pickle.UnpicklingError, zipfile.BadZipFile, struct.error,
    zlib.error, AttributeError, TypeError, MemoryError,
)  # fmt: skip


@final
@dataclass(frozen=True)
class CurvePoint:
    """One evaluation of a run.

    Attributes:
        elapsed_s: Seconds of the run so far.
        num_steps: Environment steps so far.
        num_updates: Updates so far.
        evaluation_return: Mean return of the greedy episodes.
        acting_return: Mean return of the last episodes of the actors, which explore; None before the first one.
        num_cut: Episodes of the evaluation that its time limit cut. They count with the return that they had.
    """

    elapsed_s: float
    num_steps: int
    num_updates: int
    evaluation_return: float
    acting_return: float | None
    num_cut: int = 0


@final
@dataclass
class Progress:
    """The counters of a run over all of its sessions, and the best policy so far."""

    num_steps: int = 0
    elapsed_s: float = 0.0
    parameter_version: int = 0
    num_evaluation_episodes: int = 0
    num_restarts: int = 0
    num_dropped: int = 0  # gradients that were too stale to be applied
    num_sessions: int = 0
    kept_return: float = float("-inf")
    kept_updates: int = 0
    kept_cut: bool = False  # whether the evaluation of the kept policy was cut
    kept_parameters: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    solved: bool = False
    curve: list[CurvePoint] = field(default_factory=list)


def save_checkpoint(run_dir: Path, learner: dict[str, Any], progress: Progress) -> None:
    """Writes `checkpoint.pt`: under another name first, made durable, then renamed. A reader finds the old or the new.

    Raises:
        OSError: The file cannot be written; the disk may be full. The old checkpoint stays.

    Cost:
        The size of the file in memory while it is written.
    """
    counters = {name: value for name, value in vars(progress).items() if name not in ("kept_parameters", "curve")}
    state = {
        "format": FORMAT,
        "learner": learner,
        "counters": counters,
        "curve": [asdict(point) for point in progress.curve],
        "kept": {name: torch.from_numpy(value) for name, value in progress.kept_parameters.items()},
    }
    whole = io.BytesIO()
    torch.save(state, whole)  # to memory: on a full disk torch would raise another error than the system's
    write_whole(run_dir / FILE_NAME, whole.getbuffer())


def load_checkpoint(run_dir: Path) -> tuple[dict[str, Any], Progress]:
    """Returns the state of the agent and the progress of the run in `run_dir`.

    Raises:
        InvalidConfig: There is no checkpoint, or it cannot be read, or a bit of it has changed.

    Cost:
        The size of the file in memory while it is read.
    """
    path = run_dir / FILE_NAME
    try:
        whole = io.BytesIO(path.read_bytes())
        with zipfile.ZipFile(whole) as archive:
            changed = archive.testzip()
        if changed is not None:
            raise ValueError(f"{changed} in it does not have its crc32: the file has changed since it was written")
        whole.seek(0)
        state = torch.load(whole, map_location="cpu", weights_only=True)
    except _UNREADABLE as problem:
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
