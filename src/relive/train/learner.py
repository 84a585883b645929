"""Runs the loop of a run: makes updates, publishes parameters, evaluates, saves, and watches the parts of the run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from relive.agents.agent import Agent
from relive.table.handle import TableHandle
from relive.train.acting.environments import evaluation_seeds
from relive.train.config import TrainConfig
from relive.train.errors import NonFiniteLoss, ReplicasDiffer
from relive.train.evaluating.evaluate import Evaluator, Played
from relive.train.learners.host_group import EndedElsewhere
from relive.train.learners.updates import Updates
from relive.train.memory.parameters import ParameterBoard
from relive.train.memory.scoreboard import Scoreboard
from relive.train.parts import Part
from relive.train.watching.callbacks import Listeners
from relive.train.watching.checkpoint import CurvePoint, Progress
from relive.train.watching.profile import Profiling
from relive.train.watching.progress import ProgressReporter, Snapshot
from relive.train.watching.replay_ratio import ReplayRatio
from relive.train.watching.result import Ending
from relive.train.watching.saves import Checkpoints, State, Written

if TYPE_CHECKING:
    from relive.train.acting.serving import ServedRun

_LOOK_PERIOD_S = 0.25


@final
@dataclass(frozen=True)
class Parts:
    """The running pieces that a learner works with. The learner starts and watches them, and owns none.

    Attributes:
        table: The table, seen from this process.
        board: Gets the parameters for the actors.
        scoreboard: Counters of the actors.
        acting: The part that acts.
        learning: The part that makes the updates.
        evaluator: Plays evaluations.
        reporter: Shows progress.
        listeners: The callbacks.
        profiling: Times the parts of this process.
        checkpoints: Writes the checkpoints.
        served: Serves actors of other machines; None where the run has no address.
    """

    table: TableHandle
    board: ParameterBoard
    scoreboard: Scoreboard
    acting: Part
    learning: Updates
    evaluator: Evaluator
    reporter: ProgressReporter
    listeners: Listeners
    profiling: Profiling
    checkpoints: Checkpoints
    served: ServedRun | None


@final
class Learner:
    """The loop of one session of a run. One thread uses it."""

    def __init__(
        self,
        config: TrainConfig,
        parts: Parts,
        agent: Agent,
        progress: Progress,
        run_dir: Path,
        stopping: Callable[[], bool],
    ) -> None:
        self._config, self._parts = config, parts
        self._agent = agent
        self._progress = progress
        self._run_dir = run_dir
        self._stopping = stopping
        self._elapsed_before_s = progress.elapsed_s
        self._restarts_before, self._dropped_before = progress.num_restarts, progress.num_dropped
        self._began_s = self._looked_s = time.monotonic()
        self._ratio = ReplayRatio(parts.table, config.agent.batch_size)
        self._evaluates_until_s = math.inf
        self._doing = ""
        self._policy, self._rated_s = agent.policy(), self._began_s
        self._rated = np.asarray([progress.num_steps, agent.num_updates, 0.0, 0.0])
        self._rates_before = np.zeros(4)

    def run(self) -> Ending:
        """Starts the parts and learns until the run is solved, at a limit, or stopped. Writes a checkpoint at the end.

        The checkpoint is also written after an error, except for NonFiniteLoss and ReplicasDiffer. It is written before
        the last figures are shown: the output may be what failed.

        Returns:
            Why the loop ended.

        Raises:
            NonFiniteLoss: Learning has led to nan or infinity. The last checkpoint stays.
            TooFewUpdates: The run is at its limit, without the updates that its replay ratio asks for.
        """
        acting, learning = self._parts.acting, self._parts.learning
        if learning.begin(self._progress.has_reached(self._config.evaluation.stop_return)):
            return Ending.SOLVED
        self._progress.solved = False  # a session before this one may have solved the run for a lower return
        self._publish()
        acting.start()
        learning.start()
        is_ended = False
        try:
            self._tell(self._parts.checkpoints.begin(self._state))  # while the actors start: there is always one
            with learning.running() as update_once:
                ending = self._ended(update_once)
            is_ended = True
            self.save()
        except (NonFiniteLoss, ReplicasDiffer):
            self._end_after_error(saves=False)
            raise
        except BaseException as error:
            if not is_ended or isinstance(error, KeyboardInterrupt):  # a second signal, before the save was shielded
                self._end_after_error(saves=self._not_finite(self._agent.parameters()) is None)
            raise
        self._look(at_once=True, is_counted=True)  # so that result and checkpoint have the same counts
        if ending is Ending.LIMIT:
            self._ratio.check(self._agent.num_updates)
        return ending

    def _end_after_error(self, *, saves: bool) -> None:
        """Writes the checkpoint and shows the last figures, each if it can be. The error of the run is raised after.

        A second signal may come before a save is shielded. It raises once (rule S3), so the step is then made again.
        """
        for step in ([self.save] if saves else []) + [lambda: self._look(at_once=True)]:
            try:
                try:
                    step()
                except KeyboardInterrupt:
                    step()
            except Exception as problem:
                with suppress(OSError, ValueError):  # the output may be what failed
                    self._parts.reporter.say(f"the end of the run is not complete: {problem}")

    def save(self) -> None:
        """Writes the last checkpoint. Raises NonFiniteLoss if the agent is not finite; the checkpoint before stays."""
        self._tell(self._parts.checkpoints.finish(self._state))

    def _state(self) -> State:
        """Returns the state for a checkpoint. Raises NonFiniteLoss."""
        self._check_finite(self._agent.parameters())
        self._update_progress()
        return State(self._agent.state_dict(), self._progress, self._agent.num_updates)

    def _tell(self, written: Written | None) -> None:
        """Tells the callbacks of a checkpoint that is complete."""
        if written is not None:
            self._parts.listeners.tell(lambda one: one.on_checkpoint(*written))

    # ---- numbers that are not finite -------------------------------------------------------------------------------

    def _not_finite(self, parameters: Mapping[str, NDArray[np.float32]]) -> tuple[str, float] | None:
        """Returns name and value of a loss or of a sum of parameters that is not finite; None: all are finite."""
        loss = self._parts.learning.metrics().get("loss", 0.0)
        if not math.isfinite(loss):
            return "the loss", loss
        for name, value in parameters.items():
            total = float(value.sum())
            if not math.isfinite(total):
                return f"the sum of parameter {name!r}", total
        return None

    def _check_finite(self, parameters: Mapping[str, NDArray[np.float32]]) -> None:
        found = self._not_finite(parameters)
        if found is None:
            return
        path = self._parts.checkpoints.path
        run_dir = str(self._run_dir).removesuffix(f"-host{self._parts.learning.host}")  # that of the first host
        resume = f"relive train {self._config.agent.name} --resume {run_dir}"
        raise NonFiniteLoss(*found, self._agent.num_updates, None if path is None else str(path), resume)

    # ---- the loop --------------------------------------------------------------------------------------------------

    def _ended(self, update_once: Callable[[], bool]) -> Ending:
        """Runs the loop. Returns how it ended, here or on another host: all hosts end in the same way."""
        try:
            ending = self._parts.learning.leave(self._loop(update_once))
        except EndedElsewhere as told:
            ending = told.ending
        self._progress.solved = ending is Ending.SOLVED  # as on the other hosts, whose reason may win
        return ending

    def _loop(self, update_once: Callable[[], bool]) -> Ending:
        publish_period, period = self._config.acting.publish_period, self._config.evaluation.period_updates
        next_evaluation, most_steps = self._next_evaluation(period), self._config.limits.max_steps
        if self._at_limit():  # the sessions before this one have reached it
            return self._ended_at_limit()
        while True:
            if self._stopping():
                return Ending.STOPPED
            if self._made(update_once):
                num_updates = self._agent.num_updates
                if num_updates % publish_period == 0:
                    self._publish()
                if num_updates >= next_evaluation:
                    next_evaluation = num_updates - num_updates % period + period
                    if self._evaluate():
                        self._progress.solved = True
                        return Ending.SOLVED
            if self._parts.scoreboard.num_steps >= most_steps or time.monotonic() - self._looked_s >= _LOOK_PERIOD_S:
                self._look()
                if self._at_limit():
                    return self._ended_at_limit()

    def _ended_at_limit(self) -> Ending:
        if not self._progress.curve:
            self._evaluate()  # so that a short run has a kept policy and a curve as well
        return Ending.LIMIT

    def _next_evaluation(self, period: int) -> int:
        """Returns the update after which the next evaluation is due. The first one is early, for the curve."""
        if not self._progress.curve:
            return self._agent.num_updates + max(1, period // 10)
        return self._agent.num_updates - self._agent.num_updates % period + period

    def _made(self, update_once: Callable[[], bool]) -> bool:
        try:
            return update_once()
        except ValueError:  # the table refuses priorities that are nan or infinite: the loss says more
            self._check_finite({})
            raise

    def _publish(self) -> None:
        parameters = self._agent.parameters()
        self._check_finite(parameters)
        version = self._parts.board.publish(parameters)
        if self._parts.served is not None:
            self._parts.served.publish(parameters, version)
        self._parts.table.set_policy_version(version)

    # ---- evaluation ------------------------------------------------------------------------------------------------

    def _evaluate(self) -> bool:
        """Evaluates the policy, and keeps it if it is the best so far. Returns whether it ends the run."""
        if self._parts.learning.host:
            return False  # the first host evaluates for all
        evaluation = self._config.evaluation
        parameters = self._agent.evaluation_parameters()
        self._check_finite(parameters)
        self._evaluates_until_s = time.monotonic() + self._config.evaluation_s
        played = self._played(parameters, evaluation.num_episodes)
        if played is None:
            return False
        mean, num_cut = float(played.returns.mean()), played.num_cut
        wanted = math.inf if evaluation.stop_return is None else evaluation.stop_return
        good = wanted <= mean < math.inf and num_cut == 0
        if good:
            # A lucky score is not enough: the same policy plays again, on other seeds.
            again = self._played(parameters, evaluation.num_confirm_episodes)
            if again is None:
                return False
            again_mean = float(again.returns.mean())
            good = wanted <= again_mean < math.inf and again.num_cut == 0
            if good:
                self._progress.solved_return = min(mean, again_mean)
            mean, num_cut = float(np.concatenate([played.returns, again.returns]).mean()), again.num_cut
        self._note_evaluation(mean, num_cut, parameters)
        return good

    def _played(self, parameters: dict[str, Any], num_episodes: int) -> Played | None:
        """Plays episodes on new seeds until the time of the evaluation is over; None if the run was stopped."""
        first = self._progress.num_evaluation_episodes
        seeds = evaluation_seeds(self._config.environment.seed, first, num_episodes)
        self._progress.num_evaluation_episodes += num_episodes
        evaluator = self._parts.evaluator

        def go_on() -> bool:
            now_s = time.monotonic()
            if now_s - self._looked_s >= _LOOK_PERIOD_S:
                self._doing = f"evaluating: {evaluator.num_ended} of {num_episodes} episodes"
                self._look()
            return now_s < self._evaluates_until_s and not self._stopping()

        try:
            played = evaluator.play(parameters, seeds, go_on, self._evaluates_until_s)
        finally:
            self._doing = ""
        return None if self._stopping() else played

    def _note_evaluation(self, mean: float, num_cut: int, parameters: dict[str, Any]) -> None:
        self._update_progress()
        progress = self._progress
        acting = self._parts.scoreboard.recent_returns(100)
        point = CurvePoint(
            progress.elapsed_s,
            progress.num_steps,
            self._agent.num_updates,
            mean,
            float(acting.mean()) if len(acting) else None,
            num_cut,
        )
        progress.curve.append(point)
        if not math.isfinite(mean):
            text = f"evaluation after update {point.num_updates:,}: expected a finite return, got {mean}"
            self._parts.reporter.say(f"{text}: the policy is not kept")
        elif self._is_better(mean, num_cut > 0):
            progress.kept_return, progress.kept_updates = mean, self._agent.num_updates
            progress.kept_parameters, progress.kept_cut = parameters, num_cut > 0
        self._parts.reporter.evaluated(mean, progress.num_steps)
        self._parts.listeners.tell(lambda one: one.on_evaluation(point))

    def _is_better(self, mean: float, is_cut: bool) -> bool:
        """Whether an evaluation with this finite return replaces the policy that is kept.

        With negative rewards a cut episode looks better than it is: it never replaces a whole one.
        """
        progress = self._progress
        if not progress.kept_parameters or not math.isfinite(progress.kept_return):
            return True
        return mean >= progress.kept_return if is_cut == progress.kept_cut else progress.kept_cut

    # ---- a few times a second --------------------------------------------------------------------------------------

    def _look(self, *, at_once: bool = False, is_counted: bool = False) -> None:
        """Watches the parts, shows progress, writes a checkpoint if one is due.

        Args:
            at_once: Shows progress in any case.
            is_counted: Shows the counts of the last checkpoint, and counts no later steps of the actors.
        """
        self._looked_s = time.monotonic()
        if not self._stopping() and not at_once:
            self._parts.acting.watch()
            self._parts.learning.watch()
            if self._parts.served is not None and self._parts.served.is_outdated:
                self._publish()
        shows = self._parts.reporter.wants or at_once
        if shows or self._parts.listeners:
            now = self._snapshot(is_counted)
            if shows:
                self._parts.reporter.show(now, at_once=at_once)
            self._parts.listeners.tell(lambda one: one.on_progress(now))
        if not at_once:
            self._tell(self._parts.checkpoints.look(self._state))

    def _at_limit(self) -> bool:
        self._update_progress()
        limits = self._config.limits
        return self._progress.num_steps >= limits.max_steps or self._progress.elapsed_s >= 60.0 * limits.max_minutes

    def _update_progress(self) -> None:
        progress, parts = self._progress, self._parts
        progress.num_steps = parts.scoreboard.num_steps
        progress.elapsed_s = self._elapsed_before_s + time.monotonic() - self._began_s
        progress.parameter_version = parts.board.version
        progress.num_restarts = self._restarts_before + parts.acting.num_restarts
        progress.num_dropped = self._dropped_before + parts.learning.num_dropped

    def _snapshot(self, is_counted: bool) -> Snapshot:
        if not is_counted:
            self._update_progress()
        progress, scoreboard, table = self._progress, self._parts.scoreboard, self._parts.table
        num_actors, served = self._config.num_actors_here, self._parts.served
        num_remote = None if served is None else served.num_connected
        rates = self._rates()
        returns = scoreboard.recent_returns(100)
        (index,) = table.stats().indexes.values()
        return Snapshot(
            elapsed_s=progress.elapsed_s,
            num_steps=progress.num_steps,
            num_updates=self._agent.num_updates,
            num_episodes=scoreboard.num_episodes,
            steps_per_s=rates[0],
            updates_per_s=rates[1],
            acting_return=float(np.mean(returns)) if len(returns) else None,
            kept_return=progress.kept_return if progress.kept_parameters else None,
            metrics=self._parts.learning.metrics(),
            exploration=self._policy.exploration(progress.num_steps),
            fill=len(table),
            capacity=table.capacity,
            replay_ratio=index.samples_per_insert,
            learner_wait=min(1.0, rates[2]),
            actor_wait=min(1.0, rates[3] / max(1, num_actors + (num_remote or 0))),
            num_actors=num_actors,
            num_restarts=progress.num_restarts,
            num_dropped=progress.num_dropped,
            doing=self._doing,
            num_remote=num_remote,
        )

    def _rates(self) -> NDArray[np.float64]:
        """Returns steps, updates, and seconds of waiting of learner and actors, each a second, since the last call."""
        now_s, scoreboard = time.monotonic(), self._parts.scoreboard
        if now_s - self._rated_s >= _LOOK_PERIOD_S:
            waits_s = self._parts.learning.wait_s, scoreboard.wait_s
            now = np.asarray([scoreboard.num_steps, self._agent.num_updates, *waits_s])
            self._rates_before = (now - self._rated) / (now_s - self._rated_s)
            self._rated, self._rated_s = now, now_s
        return self._rates_before
