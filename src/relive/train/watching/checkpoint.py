"""Saves and loads the checkpoint of a run: the agent, all counters, the kept policy and the learning curve.

A checkpoint is one of two, and each is replaced as a whole:

  save/           with the table: a save of the table with the learner beside it (relive.checkpoint), without pickle
  checkpoint.pt   the learner alone: a resumed run fills a new table before it learns again

The newer one counts: the one whose run has lasted longer. A run writes checkpoint.pt when it begins and if a save
fails. After its last save it writes a copy of the learner of that save, and notes in the file that it is a copy. A copy
counts only if the run has no save.

torch writes checkpoint.pt as a zip archive with a crc32 of each part, and does not compare them. `load_checkpoint`
does.

A checkpoint names the environment of its returns: of the best policy, the curve, and the return that was reached. A
session in another environment keeps them in its checkpoints until its own first evaluation. They do not count there.
"""

from __future__ import annotations

import io
import os
import pickle
import struct
import zipfile
import zlib
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from relive.checkpoint import load_learner
from relive.errors import DamagedSave, InvalidConfig, NoSuchSave
from relive.saving.reader import kept_numbers
from relive.train.run_directory import CHECKPOINT_FILE, SAVE_FOLDER, write_whole

FORMAT = 2  # of checkpoint.pt
SAVE_FORMAT = 1  # of the learner in a save
FILE_NAME = CHECKPOINT_FILE
_RETURNS = (  # the fields of Progress that are of one environment
    "env_id", "kept_return", "kept_updates", "kept_cut", "kept_parameters", "solved", "solved_return", "curve",
)  # fmt: skip
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
    steps_before_table: int = 0  # those of num_steps that the table has not counted: of sessions before it was made
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
    solved_return: float = float("-inf")  # the lower mean of the two evaluations that solved the run
    curve: list[CurvePoint] = field(default_factory=list)
    env_id: str = ""  # the environment of the returns; "": the checkpoint does not name it
    spaces: str = ""  # of the environment, in words; "": the checkpoint does not tell them
    before: Progress | None = None  # with the returns of another environment, which checkpoints keep for now

    def of(self, env_id: str) -> Progress:
        """Returns the progress in this environment: without the returns of another one, and its best policy."""
        if self.env_id in ("", env_id):
            return replace(self, env_id=env_id)
        new = Progress(env_id=env_id)
        return replace(self, **{name: getattr(new, name) for name in _RETURNS}, before=self)

    def to_write(self) -> Progress:
        """Returns the progress for a checkpoint: with the returns of another environment until the first evaluation."""
        if self.before is None or self.curve:
            return self
        return replace(self, **{name: getattr(self.before, name) for name in _RETURNS})

    def has_reached(self, stop_return: float | None) -> bool:
        """Whether the run has nothing left to learn: the evaluations that solved the run reached this return, too."""
        return self.solved and stop_return is not None and self.solved_return >= stop_return


@final
@dataclass(frozen=True)
class Found:
    """The newest checkpoint of a run.

    Attributes:
        path: checkpoint.pt, or the folder of the save.
        agent: Name of the agent; None: the file does not say it.
        learner: State of the agent.
        progress: Progress of the run.
        has_table: Whether the path is the folder of a save, with the table.
        number: The number of that save; None: the newest.
        joint_name: Name of that save among those of all hosts; "": only this host has it.
        is_copy: Whether checkpoint.pt is a copy of the learner of a save.
    """

    path: Path
    agent: str | None
    learner: dict[str, Any]
    progress: Progress
    has_table: bool
    number: int | None = None
    joint_name: str = ""
    is_copy: bool = False


def save_checkpoint(run_dir: Path, learner: dict[str, Any], progress: Progress, *, is_copy: bool = False) -> None:
    """Writes `checkpoint.pt`: under another name first, made durable, then renamed. A reader finds the old or the new.

    Args:
        run_dir: Directory of the run.
        learner: State of the agent.
        progress: Progress of the run.
        is_copy: Whether a save has the same learner. The save counts then.

    Raises:
        OSError: The file cannot be written; the disk may be full. The old checkpoint stays.

    Cost:
        The size of the file in memory while it is written.
    """
    progress = progress.to_write()
    kept = {name: torch.from_numpy(value) for name, value in progress.kept_parameters.items()}
    state = {"format": FORMAT, "is_copy": is_copy, "learner": learner, "kept": kept, **_counters_of(progress)}
    whole = io.BytesIO()
    torch.save(state, whole)  # to memory: on a full disk torch would raise another error than the system's
    write_whole(run_dir / FILE_NAME, whole.getbuffer())


def tree_of(agent: str, learner: dict[str, Any], progress: Progress, joint_name: str = "") -> dict[str, Any]:
    """Returns the learner of a save: what checkpoint.pt has, the name of the agent, and that of the hosts' save."""
    progress, names = progress.to_write(), {"agent": agent, "joint_name": joint_name}
    kept = dict(progress.kept_parameters)
    return {"format": SAVE_FORMAT, **names, "learner": learner, "kept": kept, **_counters_of(progress)}


def joint_names(run_dir: Path, *, is_first: bool) -> dict[str, int]:
    """Returns {name: number} of the saves of all hosts that this host can go on from, the newest first.

    A damaged save is left out. If the first host has a checkpoint of the learner alone that is newer than a save, that
    save is left out, and so is each save before it: the run has learned more since.

    Args:
        run_dir: Directory of the host.
        is_first: Whether it is the first host, whose learner counts.

    Raises:
        DamagedSave: The list of the saves cannot be read.
        InvalidConfig: checkpoint.pt of the first host cannot be read.

    Cost:
        Each learner is read.
    """
    folder = run_dir / SAVE_FOLDER
    try:
        numbers = kept_numbers(str(folder))
    except NoSuchSave:
        return {}
    alone = _alone_if_any(run_dir) if is_first else None
    alone_s = alone.progress.elapsed_s if alone is not None and not alone.is_copy else float("-inf")
    names: dict[str, int] = {}
    for number in numbers:
        with suppress(DamagedSave):
            found = joint_checkpoint(run_dir, number)
            if not found.joint_name or found.progress.elapsed_s < alone_s:
                break
            names.setdefault(found.joint_name, number)
    return names


def joint_checkpoint(run_dir: Path, number: int) -> Found:
    """Returns the checkpoint that has this number. Raises NoSuchSave, DamagedSave, InvalidConfig."""
    found = _saved(run_dir / SAVE_FOLDER, number)
    assert found is not None
    return found


def _counters_of(progress: Progress) -> dict[str, Any]:
    names = {"env_id": progress.env_id, "spaces": progress.spaces}
    apart = ("kept_parameters", "curve", "before", *names)
    counters = {name: value for name, value in vars(progress).items() if name not in apart}
    return {"counters": counters, **names, "curve": [asdict(point) for point in progress.curve]}


def newest_checkpoint(run_dir: Path) -> Found | None:
    """Returns the newest checkpoint of a run; None: it has none.

    Raises:
        InvalidConfig, DamagedSave: It cannot be read, or a bit of it has changed. If the other one of checkpoint.pt and
            the save is whole, the error says how to go on from it: the damaged one may have been the newer one.

    Cost:
        The size of the learner in memory while it is read. The table is not read.
    """
    alone, saved = _alone_if_any(run_dir), _saved_if_any(run_dir)
    if alone is None or saved is None:
        return saved or alone
    return saved if alone.is_copy or saved.progress.elapsed_s >= alone.progress.elapsed_s else alone


def load_checkpoint(run_dir: str | os.PathLike[str]) -> tuple[dict[str, Any], Progress]:
    """Returns the state of the agent and the progress of the run in `run_dir`: those of the newest checkpoint.

    Raises:
        InvalidConfig: There is no checkpoint, or it cannot be read, or a bit of it has changed.
        DamagedSave: The same, where it is a save.

    Cost:
        The size of the learner in memory while it is read.
    """
    folder = Path(run_dir)
    found = newest_checkpoint(folder) or _alone(folder)  # which says that there is none
    return found.learner, found.progress


def _alone_if_any(run_dir: Path) -> Found | None:
    """Reads checkpoint.pt; None: there is none. The error names a whole save beside it."""
    if not (run_dir / FILE_NAME).exists():
        return None
    try:
        return _alone(run_dir)
    except InvalidConfig as problem:
        saved = None
        with suppress(DamagedSave, InvalidConfig):
            saved = _saved(run_dir / SAVE_FOLDER)
        if saved is None:
            raise
        way = f"remove it to go on from the save of {saved.progress.num_steps:,} steps in {saved.path}"
        raise InvalidConfig(problem.what, f"{problem.expected} ({way})", problem.got) from problem


def _saved_if_any(run_dir: Path) -> Found | None:
    """Reads the learner of the save; None: there is none. The error names a whole checkpoint.pt beside it."""
    try:
        return _saved(run_dir / SAVE_FOLDER)
    except DamagedSave as problem:
        alone = None
        with suppress(InvalidConfig):
            alone = _alone(run_dir)
        if alone is None:
            raise
        way = f"move it away to go on from {FILE_NAME}, after {alone.progress.num_steps:,} steps, with a new table"
        raise DamagedSave(problem.path, f"{problem.what} ({way})", problem.expected, problem.got) from problem


def _saved(folder: Path, number: int | None = None) -> Found | None:
    """Reads the learner of a save; None: the folder has no save."""
    try:
        state = load_learner(folder, number)
    except NoSuchSave:
        if number is not None:
            raise
        return None
    kept = state.get("kept") if isinstance(state, dict) else None
    learner, progress = _read(state, folder, SAVE_FORMAT, dict(kept) if isinstance(kept, dict) else {})
    agent, joint_name = str(state.get("agent")), str(state.get("joint_name") or "")
    return Found(folder, agent, learner, progress, has_table=True, number=number, joint_name=joint_name)


def _alone(run_dir: Path) -> Found:
    """Reads checkpoint.pt."""
    path = run_dir / FILE_NAME
    try:
        whole = io.BytesIO(path.read_bytes())
        with zipfile.ZipFile(whole) as archive:
            changed = archive.testzip()
        if changed is not None:
            raise ValueError(f"{changed} in it does not have its crc32: the file has changed since it was written")
        whole.seek(0)
        state = torch.load(whole, map_location="cpu", weights_only=True)
        kept = state["kept"].items() if isinstance(state, dict) and "kept" in state else ()
        parameters = {name: value.cpu().numpy() for name, value in kept}
    except _UNREADABLE as problem:
        raise InvalidConfig(
            what=f"checkpoint {path}", expected="the file that a run with at least one checkpoint has", got=str(problem)
        ) from problem
    learner, progress = _read(state, path, FORMAT, parameters)
    return Found(path, None, learner, progress, has_table=False, is_copy=state.get("is_copy") is True)


def _read(
    state: Any, path: Path, expected: int, kept: dict[str, NDArray[np.float32]]
) -> tuple[dict[str, Any], Progress]:
    """Returns the parts of a checkpoint. Raises InvalidConfig."""
    found = state.get("format") if isinstance(state, dict) else None
    if found != expected:
        raise InvalidConfig(what=f"format of {path}", expected=str(expected), got=str(found))
    try:
        curve = [CurvePoint(**point) for point in state["curve"]]
        # Older checkpoints lack solved_return. The last evaluation solved the run, and its mean is that of both.
        counters = {"solved_return": curve[-1].evaluation_return if curve else float("-inf"), **state["counters"]}
        env_id, spaces = (str(state.get(name) or "") for name in ("env_id", "spaces"))  # older checkpoints lack them
        progress = Progress(**counters, kept_parameters=kept, curve=curve, env_id=env_id, spaces=spaces)
        return state["learner"], progress
    except (KeyError, TypeError, AttributeError) as problem:
        raise InvalidConfig(f"parts of {path}", "those that a run writes", repr(problem)) from problem
