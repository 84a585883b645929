"""Writes the checkpoints of a session, with its table or without, while the run goes on.

Protocol of a checkpoint with the table:

  C1  A thread opens the folder of the save and copies pages. Actors and the learner go on.
  C2  When few pages are left, the learner's thread takes the cut, between two updates: the state of the agent, the
      counters of the run, and everything of the table that is no page. It takes as long as a table's lock is needed.
  C3  A thread writes the rest and commits. One rename makes table and learner the newest checkpoint, or neither.
  C4  A save that fails leaves the one before it whole, and the run goes on. A line says so, and checkpoint.pt gets the
      learner alone. If checkpoint.pt cannot be written either, a line says so. At the end of a run its error is raised.
  C5  The end of a run waits for the save under way, and then saves for the last time: at most LAST_SAVE_S,
      and after a second signal at most _HURRY_S. A save that takes longer is cancelled.
  C6  After the last save, checkpoint.pt gets a copy of its learner, for programs that read it by torch.load. The copy
      says that it is one, so the save counts. A failure is told.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

from relive import Table
from relive.errors import ReliveError, SaveCancelled
from relive.saving.saving import Saving
from relive.saving.trees import tree_to_bytes
from relive.train.config import TrainConfig
from relive.train.run_directory import CHECKPOINT_FILE, SAVE_FOLDER
from relive.train.signals import in_a_hurry, uninterrupted
from relive.train.watching.checkpoint import Progress, save_checkpoint, tree_of
from relive.train.watching.joint_saves import JointSaves

LAST_SAVE_S = 600.0
_HURRY_S = 5.0
_LOCK_S = 5.0  # for the table's lock
_PAUSE_S = 0.005
_SILENT_S = 2.0  # of a wait before the first line about it
_BLOB = "learner"  # as relive.checkpoint names it


@final
@dataclass(frozen=True)
class State:
    """The state of a learner at one moment, between two updates."""

    learner: dict[str, Any]
    progress: Progress
    num_updates: int


class Written(NamedTuple):
    """A checkpoint that is complete: checkpoint.pt or the folder of the save, and the updates of its agent."""

    path: Path
    num_updates: int


@final
class _TableSave:
    """One save under way, by rules C1 to C3. Owner of a thread, and of the folder's lock."""

    def __init__(self, table: Table, folder: Path) -> None:
        self._table, self._folder = table, folder
        self._saving: Saving | None = None
        self._problem: BaseException | None = None
        self._is_given_up = False
        self.num_updates = -1  # of the cut; -1: it is not made yet
        self.number = -1  # of the save that has committed
        self._opening = threading.Thread(target=self._open, name="relive-checkpoint")

    def start(self) -> None:
        self._opening.start()

    def _open(self) -> None:
        """The thread: rule C1."""
        try:
            self._saving = self._table.begin_save(self._folder)
            if self._is_given_up:
                self._saving.cancel()
            self._saving.copy_ahead()
        except Exception as problem:
            self._problem = problem

    @property
    def is_open(self) -> bool:
        """Whether the cut can be made, or the save has failed."""
        return not self._opening.is_alive()

    def cut(self, blob: bytes, num_updates: int, keep: int | frozenset[int]) -> None:
        """Rule C2. Call it when the save is open."""
        self.num_updates = num_updates
        if self._saving is None or self._problem is not None:
            return
        try:
            self._saving.make_cut(None, _LOCK_S)
            self._saving.finish_behind({_BLOB: blob}, keep)
        except (ReliveError, OSError) as problem:
            self._problem = problem

    @property
    def is_over(self) -> bool:
        """Whether the save has ended, in a commit or in an error."""
        if self._opening.is_alive():
            return False
        return self._problem is not None or self._saving is None or self._saving.done

    @property
    def progress(self) -> float:
        """The part of the pages that is copied."""
        return 0.0 if self._saving is None else self._saving.progress

    def problem(self) -> BaseException | None:
        """Returns the error of a save that is over; None: it has committed."""
        if self._problem is None and self._saving is not None:
            try:
                self.number = self._saving.wait().number  # joins its thread
            except Exception as problem:
                self._problem = problem
        return self._problem or (SaveCancelled(str(self._folder)) if self._saving is None else None)

    def give_up(self) -> None:
        """Ends the save at its next block. A save without a cut unlocks the folder."""
        self._is_given_up = True
        if self._saving is not None:
            self._saving.cancel()
            if self.num_updates < 0 and self.is_open:
                self._problem = self._problem or SaveCancelled(str(self._folder))
                self._saving.abandon()


@final
class Checkpoints:
    """The checkpoints of one session. One thread uses it, between two updates. Close it before the table.

    Attributes:
        path: The newest checkpoint; None: there is none yet.
    """

    def __init__(
        self,
        run_dir: Path,
        config: TrainConfig,
        table: Table | None,
        say: Callable[[str], None],
        joint: JointSaves | None = None,
        committed: Callable[[], None] = lambda: None,
    ) -> None:
        """Makes the checkpoints of a session.

        Args:
            run_dir: Directory of the run.
            config: Its options.
            table: Its table; None: it has shards, which are not saved.
            say: Shows a line.
            joint: Lets the hosts of the run save at one update; None: the run has one host.
            committed: Called after each checkpoint that is complete, copies excepted.
        """
        self._run_dir, self._config, self._table, self._say = run_dir, config, table, say
        self._joint, self._committed = joint, committed
        self._folder, self._file = run_dir / SAVE_FOLDER, run_dir / CHECKPOINT_FILE
        self._is_loaded = table is not None and table.loaded is not None
        self._save: _TableSave | None = None
        self._began_s = time.monotonic()  # the newest checkpoint
        self._hurried_s = 0.0
        self._at_cut: State | None = None  # the learner of the newest cut; its values change with the next update
        self.path = self._folder if self._is_loaded else self._file if self._file.exists() else None

    def begin(self, state: Callable[[], State]) -> Written | None:
        """Writes the first checkpoint of the session. None: the session goes on from one with the table."""
        return None if self._is_loaded else self._write_alone(state)

    def look(self, state: Callable[[], State]) -> Written | None:
        """Begins a checkpoint if one is due, or goes on with the one under way. Never waits for the disk of a table.

        Args:
            state: Returns the state of the learner. Its errors are raised, and end the checkpoint.

        Returns:
            A checkpoint that has become complete; None: none has.

        Raises:
            FileNotFoundError: The run directory has gone.
        """
        with uninterrupted():
            save, is_due = self._save, time.monotonic() - self._began_s >= self._config.limits.checkpoint_period_s
            if self._config.checkpoint.table != "always":
                return self._write_if_it_can(state) if is_due else None
            if save is None:
                if is_due if self._joint is None else self._joint.begins(is_due):
                    self._open()
            elif save.num_updates < 0:
                if save.is_open and self._joint is None:
                    self._cut(save, state)
                elif save.is_open and self._joint is not None:
                    self._joint.can_cut(lambda: self._cut(save, state))
            elif save.is_over:
                return self._ended(save, state, is_last=False)
            return None

    def finish(self, state: Callable[[], State]) -> Written | None:
        """Writes the last checkpoint of the session: rule C5. Returns it; None: only the table's failed.

        Raises:
            OSError: It cannot be written, with the table or without.
        """
        with uninterrupted():
            if self._config.checkpoint.table == "never":
                return self._write_alone(state)
            ends_s = time.monotonic() + LAST_SAVE_S
            under_way = self._save
            if under_way is not None and under_way.num_updates >= 0:
                self._end(under_way, ends_s)
            save = self._save or self._open()
            if self._wait(save, lambda: save.is_open, ends_s):
                self._cut(save, state)
                self._wait(save, lambda: save.is_over, ends_s)
            written = self._ended(save, state, is_last=True)
            if written is not None and written.path == self._folder:
                self._write_copy()
            return written

    def close(self) -> None:
        """Ends the save under way: one that has its cut is written to its end, another is given up. Rule C5."""
        with uninterrupted():
            save, self._save = self._save, None
            if save is None:
                return
            if save.num_updates < 0:  # without its cut
                save.give_up()
                self._wait_for_end(save)
                return
            self._end(save, time.monotonic() + LAST_SAVE_S)

    # ---- the parts of a checkpoint ---------------------------------------------------------------------------------

    def _open(self) -> _TableSave:
        """Begins a save. Raises FileNotFoundError if the run directory has gone: a save would make it again."""
        assert self._table is not None
        self._run_dir.stat()
        self._began_s = time.monotonic()
        self._save = _TableSave(self._table, self._folder)
        self._save.start()
        return self._save

    def _cut(self, save: _TableSave, state: Callable[[], State]) -> None:
        """Takes the cut. An error of the learner, such as NonFiniteLoss, ends the save and is raised."""
        joint = self._joint
        try:
            with uninterrupted():
                now = self._at_cut = state()
                name = "" if joint is None else joint.name(now.num_updates)
                learner = tree_of(self._config.agent.name, now.learner, now.progress, name)
                save.cut(tree_to_bytes(learner), now.num_updates, 1 if joint is None else joint.staying)
        except BaseException:
            save.give_up()
            self._save = None
            raise

    def _ended(self, save: _TableSave, state: Callable[[], State], *, is_last: bool) -> Written | None:
        self._save = None
        problem = save.problem() if save.is_over else SaveCancelled(str(self._folder))
        if problem is None:
            return self._commit(save)
        if not isinstance(problem, (ReliveError, OSError)):
            raise problem
        self._tell(f"the table was not saved: {problem}; the run goes on, and {CHECKPOINT_FILE} gets the learner alone")
        return self._write_alone(state) if is_last else self._write_if_it_can(state)

    def _end(self, save: _TableSave, ends_s: float) -> None:
        """Waits for the end of a save that has its cut. A later one follows, or an error of the run: no line is due."""
        self._save = None
        self._wait(save, lambda: save.is_over, ends_s)
        if save.is_over and save.problem() is None:
            self._commit(save)

    def _commit(self, save: _TableSave) -> Written:
        if self._joint is not None:
            self._joint.committed(save.number)
        self.path = self._folder
        self._committed()
        return Written(self._folder, save.num_updates)

    def _write_copy(self) -> None:
        """Rule C6. No update has come since the cut."""
        assert self._at_cut is not None
        try:
            save_checkpoint(self._run_dir, self._at_cut.learner, self._at_cut.progress, is_copy=True)
        except OSError as problem:
            self._tell(f"{CHECKPOINT_FILE} was not written: {problem}; the save has the learner")

    def _write_alone(self, state: Callable[[], State]) -> Written:
        now = state()
        self._began_s = time.monotonic()
        save_checkpoint(self._run_dir, now.learner, now.progress)
        self.path = self._file
        self._committed()
        return Written(self._file, now.num_updates)

    def _write_if_it_can(self, state: Callable[[], State]) -> Written | None:
        """Writes a checkpoint of the learner alone. A line says that it cannot be written: rule C4.

        Raises FileNotFoundError if the run directory has gone.
        """
        self._run_dir.stat()
        try:
            return self._write_alone(state)
        except OSError as problem:
            self._tell(f"the checkpoint was not written: {problem}; the one before stays, and the run goes on")
            return None

    # ---- waiting ---------------------------------------------------------------------------------------------------

    def _wait(self, save: _TableSave, holds: Callable[[], bool], ends_s: float) -> bool:
        """Waits until `holds`. At the deadline, or soon after a second signal, the save is given up, and ends.

        Returns whether `holds` came in time.
        """
        says_s = time.monotonic() + _SILENT_S
        while not holds():
            now_s = time.monotonic()
            if in_a_hurry():
                self._hurried_s = self._hurried_s or now_s
                ends_s = min(ends_s, self._hurried_s + _HURRY_S)
            if now_s >= ends_s:
                save.give_up()
                self._wait_for_end(save)
                return holds() and not save.is_over
            if now_s >= says_s:
                says_s = now_s + _SILENT_S
                self._tell(f"saving the table: {save.progress:.0%} of its pages")
            time.sleep(_PAUSE_S)
        return True

    @staticmethod
    def _wait_for_end(save: _TableSave) -> None:
        """Waits until a save that was given up has ended: a block later, unless the disk hangs."""
        ends_s = time.monotonic() + _HURRY_S
        while not (save.is_over or (save.is_open and save.num_updates < 0)) and time.monotonic() < ends_s:
            time.sleep(_PAUSE_S)
        if save.num_updates < 0:
            save.give_up()  # the thread that opened it has ended

    def _tell(self, line: str) -> None:
        with suppress(OSError, ValueError):  # the output may be gone
            self._say(line)
