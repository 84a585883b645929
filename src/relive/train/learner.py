"""The learner's loop: update, publish, evaluate, and look after the actors. An update is its own, or its learners'."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from relive import Batch, Table
from relive.agents.agent import Agent
from relive.errors import DeadlineExceeded
from relive.train.acting.actor_pool import ActorPool
from relive.train.acting.environments import evaluation_seeds
from relive.train.acting.inline import InlineActors
from relive.train.config import TrainConfig
from relive.train.errors import NonFiniteLoss, ReplicasDiffer
from relive.train.evaluating.evaluate import Evaluator, Played
from relive.train.learners.batch_ahead import SLICE_S, batches_of, or_none
from relive.train.learners.host_group import EndedElsewhere, HostGroup
from relive.train.learners.parameter_server import ParameterServer
from relive.train.memory.parameters import ParameterBoard
from relive.train.memory.scoreboard import Scoreboard
from relive.train.watching.callbacks import Listeners
from relive.train.watching.checkpoint import FILE_NAME, CurvePoint, Progress, save_checkpoint
from relive.train.watching.profile import Profiling
from relive.train.watching.progress import ProgressReporter, Snapshot
from relive.train.watching.result import Ending

if TYPE_CHECKING:
    from relive.train.acting.serving import ServedRun

_LOOK_PERIOD_S = 0.25
T = TypeVar("T")


@final
@dataclass(frozen=True)
class Parts:
    """The running pieces that a learner works with. It owns none of them.

    server: of learners with batches of their own; None where updates are made here. profiling: what it is watched with.
    served: to actors elsewhere. hosts: that share every update.
    """

    table: Table
    board: ParameterBoard
    scoreboard: Scoreboard
    pool: ActorPool | InlineActors
    server: ParameterServer | None
    evaluator: Evaluator
    reporter: ProgressReporter
    listeners: Listeners
    profiling: Profiling
    served: ServedRun | None = None
    hosts: HostGroup | None = None


@final
class Learner:
    """One session of a run. `run` returns when the run is solved, at its limit, or stopped; one thread."""

    def __init__(
        self,
        config: TrainConfig,
        parts: Parts,
        agent: Agent,
        progress: Progress,
        run_dir: Path,
        stopping: Callable[[], bool],
        update: Callable[[Batch], NDArray[np.float64] | None] | None = None,
    ) -> None:
        """update: of the agent, by all learners of the run; None: the agent's own."""
        self._update = update or agent.update
        self._config = config
        self._parts = parts
        self._agent = agent
        self._progress = progress
        self._run_dir = run_dir
        self._stopping = stopping
        self._elapsed_before_s = progress.elapsed_s
        self._restarts_before, self._dropped_before = progress.num_restarts, progress.num_dropped
        self._began_s = self._looked_s = self._saved_s = time.monotonic()
        self._wait_s = 0.0
        self._evaluates_until_s = math.inf
        self._doing = ""
        self._policy, self._rated_s = agent.policy(), self._began_s
        self._rated = np.asarray([progress.num_steps, agent.num_updates, 0.0, 0.0])
        self._rates_before = np.zeros(4)

    def run(self) -> Ending:
        """Learns until something ends it; a checkpoint is written at the end, however it ends.

        Raises NonFiniteLoss, and leaves the last checkpoint as it is, where learning came to nan or infinity.
        """
        if self._parts.hosts is not None and self._parts.hosts.begin(self._progress.solved):
            return Ending.SOLVED
        self._publish()
        self._parts.pool.start()
        if self._parts.server is not None:
            self._parts.server.start()
        try:
            self.save()  # while the actors start: there is always one to go back to
            with self._updates() as update_once:
                ending = self._ended(update_once)
        except (NonFiniteLoss, ReplicasDiffer):
            self._look(at_once=True)
            raise
        except BaseException:
            self._look(at_once=True)
            if self._not_finite(self._agent.parameters()) is None:
                self.save()
            raise
        self._look(at_once=True)
        self.save()
        return ending

    def save(self) -> None:
        """Writes the checkpoint; raises NonFiniteLoss, and leaves the one before, rather than keep such an agent."""
        self._check_finite(self._agent.parameters())
        self._update_progress()
        write = self._parts.profiling.timed("checkpoint", save_checkpoint)
        write(self._run_dir, self._agent.state_dict(), self._progress)
        self._saved_s = time.monotonic()
        path, num_updates = self._run_dir / FILE_NAME, self._agent.num_updates
        self._parts.listeners.tell(lambda one: one.on_checkpoint(path, num_updates))

    # ---- numbers that are none -------------------------------------------------------------------------------------

    def _not_finite(self, parameters: Mapping[str, NDArray[np.float32]]) -> tuple[str, float] | None:
        """The loss, or one of the parameters, where it is nan or infinite: a sum tells it of all numbers at once."""
        loss = self._metrics().get("loss", 0.0)
        if not math.isfinite(loss):
            return "the loss", loss
        for name, value in parameters.items():
            total = float(value.sum())
            if not math.isfinite(total):
                return f"the sum of parameter {name!r}", total
        return None

    def _metrics(self) -> dict[str, float]:
        server = self._parts.server
        return self._agent.metrics() if server is None else server.metrics()

    def _check_finite(self, parameters: Mapping[str, NDArray[np.float32]]) -> None:
        found = self._not_finite(parameters)
        if found is None:
            return
        path = self._run_dir / FILE_NAME
        run_dir = str(self._run_dir).removesuffix(f"-host{getattr(self._parts.hosts, 'number', 0)}")  # the first one's
        resume = f"relive train {self._config.agent.name} --resume {run_dir}"
        raise NonFiniteLoss(*found, self._agent.num_updates, str(path) if path.exists() else None, resume)

    # ---- the loop --------------------------------------------------------------------------------------------------

    def _ended(self, update_once: Callable[[], bool]) -> Ending:
        """Of the loop here, or on another host: then it is everybody's."""
        if (hosts := self._parts.hosts) is None:
            return self._loop(update_once)
        try:
            ending = hosts.leave(self._loop(update_once))
        except EndedElsewhere as told:
            ending = told.ending
        self._progress.solved = ending is Ending.SOLVED  # as the others have it: theirs may be the stronger word
        return ending

    def _loop(self, update_once: Callable[[], bool]) -> Ending:
        publish_period, period = self._config.acting.publish_period, self._config.evaluation.period_updates
        next_evaluation, most_steps = self._next_evaluation(period), self._config.limits.max_steps
        while True:
            if self._stopping():
                return Ending.STOPPED
            if update_once():
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
                    if not self._progress.curve:
                        self._evaluate()  # a short run too keeps a policy and draws a curve
                    return Ending.LIMIT

    def _next_evaluation(self, period: int) -> int:
        """The update after which the next evaluation is due: the first one early, so that there is a curve."""
        if not self._progress.curve:
            return self._agent.num_updates + max(1, period // 10)
        return self._agent.num_updates - self._agent.num_updates % period + period

    def _learn(self, batch: Batch) -> None:
        priorities = self._update(batch)
        if priorities is not None:
            try:
                self._parts.table.update_priorities(batch.item_keys, priorities)
            except ValueError:  # the table takes no nan and no infinity: the loss says more
                self._check_finite({})
                raise

    def _publish(self) -> None:
        parameters = self._agent.parameters()
        self._check_finite(parameters)
        version = self._parts.board.publish(parameters)
        if self._parts.served is not None:
            self._parts.served.publish(parameters, version)
        self._parts.table.set_policy_version(version)

    @contextmanager
    def _updates(self) -> Iterator[Callable[[], bool]]:
        """A function that makes one update, and says whether it did: False where there was nothing for a moment."""
        parts, num_items = self._parts, self._config.num_drawn
        waits = parts.profiling.timed
        if parts.server is not None:
            serve = parts.server.serve
            yield waits("wait", self._timed(lambda: serve(SLICE_S)))
        elif parts.pool.inline:
            yield self._learning_from(waits("wait", self._drawn_or_acted))
        else:
            with batches_of(parts.table, self._agent, num_items) as take:
                yield self._learning_from(waits("wait", self._timed(lambda: or_none(take))))

    def _learning_from(self, next_batch: Callable[[], Batch | None]) -> Callable[[], bool]:
        def update_once() -> bool:
            batch = next_batch()
            if batch is None:
                return False
            self._learn(batch)
            return True

        return update_once

    def _drawn_or_acted(self) -> Batch | None:
        """The next batch where the limiter lets it be drawn; None after a turn of the actors where it does not."""
        num_items, columns = self._config.num_drawn, tuple(self._agent.columns)
        try:
            return self._parts.table.sample(num_items, columns=columns, timeout_s=0.0)
        except DeadlineExceeded:
            self._parts.pool.turn()
            return None

    def _timed(self, take: Callable[[], T]) -> Callable[[], T]:
        """The same function, and what it waits counts as the learner's waiting."""

        def timed() -> T:
            began_s = time.monotonic()
            taken = take()
            waited_s = time.monotonic() - began_s
            if waited_s > 0.001:
                self._wait_s += waited_s
            return taken

        return timed

    # ---- evaluation ------------------------------------------------------------------------------------------------

    def _evaluate(self) -> bool:
        """One evaluation; keeps the policy if it is the best so far. True if it may end the run. By the first host."""
        if self._parts.hosts is not None and self._parts.hosts.number:
            return False
        evaluation = self._config.evaluation
        parameters = self._agent.evaluation_parameters()
        self._check_finite(parameters)
        self._evaluates_until_s = time.monotonic() + self._config.evaluation_s
        played = self._played(parameters, evaluation.num_episodes)
        if played is None:
            return False
        mean, num_cut = float(played.returns.mean()), played.num_cut
        wanted = math.inf if evaluation.stop_return is None else evaluation.stop_return
        good = mean >= wanted and num_cut == 0
        if good:
            # A lucky score is not enough: the same policy again, on other seeds, before it is kept.
            again = self._played(parameters, evaluation.num_confirm_episodes)
            if again is None:
                return False
            good = float(again.returns.mean()) >= wanted and again.num_cut == 0
            mean, num_cut = float(np.concatenate([played.returns, again.returns]).mean()), again.num_cut
        self._note_evaluation(mean, num_cut, parameters)
        return good

    def _played(self, parameters: dict[str, Any], num_episodes: int) -> Played | None:
        """Episodes on new seeds, cut where the evaluation's time is over; None where the run stopped meanwhile."""
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
            played = evaluator.play(parameters, seeds, go_on)
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
        # Where rewards are negative a cut episode looks better than it is: it never takes a whole one's place.
        first, is_cut = not progress.kept_parameters, num_cut > 0
        better = mean >= progress.kept_return if is_cut == progress.kept_cut else progress.kept_cut
        if first or better:
            progress.kept_return, progress.kept_updates = mean, self._agent.num_updates
            progress.kept_parameters, progress.kept_cut = parameters, is_cut
        self._parts.reporter.evaluated(mean, progress.num_steps)
        self._parts.listeners.tell(lambda one: one.on_evaluation(point))

    # ---- looking round ---------------------------------------------------------------------------------------------

    def _look(self, *, at_once: bool = False) -> None:
        """Actors, progress, checkpoint: what is due a few times a second at most."""
        self._looked_s = time.monotonic()
        if not self._stopping() and not at_once:
            self._parts.pool.watch()
        shows = self._parts.reporter.wants or at_once
        if shows or self._parts.listeners:
            now = self._snapshot()
            if shows:
                self._parts.reporter.show(now, at_once=at_once)
            self._parts.listeners.tell(lambda one: one.on_progress(now))
        if not at_once and self._looked_s - self._saved_s >= self._config.limits.checkpoint_period_s:
            self.save()

    def _at_limit(self) -> bool:
        self._update_progress()
        limits = self._config.limits
        return self._progress.num_steps >= limits.max_steps or self._progress.elapsed_s >= 60.0 * limits.max_minutes

    def _update_progress(self) -> None:
        progress, parts = self._progress, self._parts
        progress.num_steps = parts.scoreboard.num_steps
        progress.elapsed_s = self._elapsed_before_s + time.monotonic() - self._began_s
        progress.parameter_version = parts.board.version
        progress.num_restarts = self._restarts_before + parts.pool.num_restarts
        if parts.server is not None:
            progress.num_dropped = self._dropped_before + parts.server.num_dropped

    def _snapshot(self) -> Snapshot:
        self._update_progress()
        progress, scoreboard, table = self._progress, self._parts.scoreboard, self._parts.table
        num_actors, served = self._config.num_actors, self._parts.served
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
            metrics=self._metrics(),
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
        """Steps, updates, seconds that the learner and the actors waited: each a second, since the last call."""
        now_s, scoreboard = time.monotonic(), self._parts.scoreboard
        if now_s - self._rated_s >= _LOOK_PERIOD_S:
            now = np.asarray([scoreboard.num_steps, self._agent.num_updates, self._wait_s, scoreboard.wait_s])
            self._rates_before = (now - self._rated) / (now_s - self._rated_s)
            self._rated, self._rated_s = now, now_s
        return self._rates_before
