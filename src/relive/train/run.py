"""Runs a training run from its options to its result: directory, table, parts, final evaluation.

A run directory has config.json, a checkpoint (save/ or checkpoint.pt), tensorboard/, curve.png and, after the run has
ended by itself, result.json. `train(run_dir, resume=True)` goes on from there: it restores the learner, and the table
if the checkpoint has it. Else it fills a new table.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import final

import numpy as np
from rich.console import Console

from relive.agents.batches import has_other_generators
from relive.errors import InvalidConfig, ReliveError
from relive.train.acting.environments import check_spaces, final_seeds, words_of
from relive.train.assembly import Assembly
from relive.train.config import TrainConfig, path_of
from relive.train.evaluating.evaluate import Evaluator, Played
from relive.train.learner import Learner, Parts
from relive.train.learners.meeting import host_number, meeting, starts_hosts
from relive.train.learners.numerics import learner_numerics
from relive.train.resuming import check_environment, check_saved_table, options_of_run
from relive.train.run_directory import (
    CONFIG_FILE,
    alone_in,
    check_files,
    folder_of_host,
    forget_run,
    forget_table,
    move_aside,
    note_table,
)
from relive.train.settings import changed, options
from relive.train.setup import Setup, check_has_server, learner_threads, open_session, prepare, remove_left
from relive.train.signals import owning, stop_signals
from relive.train.watching.callbacks import Callback, Listeners
from relive.train.watching.checkpoint import (
    Found,
    Progress,
    joint_checkpoint,
    joint_names,
    newest_checkpoint,
)
from relive.train.watching.curve import draw_curve
from relive.train.watching.loggers import logging_of
from relive.train.watching.profile import PROFILE_FILE, show_profile
from relive.train.watching.progress import ProgressReporter
from relive.train.watching.result import CURVE_FILE, RESULT_FILE, Ending, RunResult, save_result, show_result
from relive.train.watching.saves import Checkpoints

_BETWEEN_HOSTS = 1_000_003  # between the seeds of two hosts
_SESSIONS = 2**21  # the first number of the key from which a resumed session gets its seed
_SAY_PERIOD_S = 2.0


def train(
    config: TrainConfig | None = None,
    run_dir: str | Path | None = None,
    *,
    callbacks: Sequence[Callback] = (),
    resume: bool = False,
    moving_aside: bool | None = None,
    stop_when: Callable[[int, int], bool] = lambda num_steps, num_updates: False,
    console: Console | None = None,
) -> RunResult:
    """Trains an agent until it reaches its return, meets a limit, or is stopped. Then no process and no table is left.

    Unless config.topology is Inline(), it starts processes by spawn: call it under `if __name__ == "__main__":`. In the
    main thread it handles SIGINT, SIGTERM and SIGHUP: the first signal stops the run, and the second one ends it at
    once, by KeyboardInterrupt or the handler that the program had before. While the run lasts, torch uses
    `config.threads` threads and flushes denormal numbers.

    Args:
        config: Options of the run, such as `preset(agent, env_id, settings)`; None with resume: those in the directory.
        run_dir: Directory of the run; None: runs/AGENT-ENV-sSEED. A relative path is that of the moment of the call.
        callbacks: Called about steps, updates, evaluations and checkpoints; see Callback.
        resume: Go on with the run in the directory. The options become those of the run: config.json gets them.
        moving_aside: Rename the directory of an earlier run, instead of refusing a new run in it; None: if run_dir is
            None.
        stop_when: stop_when(environment steps, updates) is called before every batch; True stops the run as a signal
            does.
        console: Shows progress; None: nothing is shown.

    Returns:
        The result of the run.

    Raises:
        HostsDiffer: The hosts of the run were told different options.
        HostGone: Another host of the run did not come, or ended; or it failed at its end, on a cluster.
        InvalidConfig: The directory has a run already (without resume) or none (with resume), or files that no run
            wrote; another run uses it, or lies in it or above it; a resumed run has an environment with other spaces,
            or a table of other items; the address is taken; a file of the server cannot be used; the table cannot hold
            replay.min_size items; the agent cannot act in the environment; wandb has no login; a program without the
            guard calls it in a process of the run; stop_when is no function; or the run starts processes, and this
            process is a daemon of multiprocessing, which may start none. A refused run leaves no directory.
        StorageFull: /dev/shm is too small for the table. Making the table may raise other errors, too.
        MissingPackage: An option needs an extra that is not installed.
        NonFiniteLoss: Learning has led to nan or infinity. The last good checkpoint stays.
        EnvironmentRaised: The environment raised an error. A checkpoint is written if the run had begun to learn.
        EnvironmentHangs: A call of the environment in this process did not return by the time limit. A checkpoint is
            written.
        TooFewUpdates: The run reached its limit without the updates that its replay ratio asks for. A checkpoint is
            written.
        OSError: A file or the output cannot be written. A checkpoint is written if it can be; else the old one stays.
        KeyboardInterrupt: A second signal came, or a first one while this host waited for the other hosts of the run or
            for the shards of a cluster.

    Blocks:
        As long as the run takes, which config.limits bounds.
    """
    _check_guard()
    began_s = time.monotonic()
    if not callable(stop_when):
        raise InvalidConfig("stop_when", "a function of the environment steps and the updates", stop_when)
    listeners = Listeners(callbacks)
    config, folder = _checked(config, run_dir, resume)
    _check_daemon(config)
    aside = not resume and (run_dir is None if moving_aside is None else moving_aside)
    resumes, host = resume, 0 if starts_hosts(config) else host_number(config.topology.num_hosts)
    if host:  # the first host shows progress for all
        folder, console = folder_of_host(folder, host), None
        resume = resume and (folder / CONFIG_FILE).exists()  # else this host is new, and gets the state of the first
    console = console or Console(file=open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115

    def say(line: str) -> None:
        console.print(line, highlight=False, soft_wrap=True)

    with stop_signals(say) as signalled, logging_of(config.logging, listeners), owning() as stack:

        def stopping() -> bool:
            return signalled() or listeners.stops

        with learner_numerics(learner_threads(config)):
            setup = prepare(config)
            # Before anything is made: a host that ends while it waits, or has other options, leaves nothing.
            with _hosts_started(stack, config, folder, resumes, aside, stopping, say) as waits:
                met = stack.enter_context(meeting(config, setup.spaces, setup.device, waits, resumes))
            setup = replace(setup, met=met)
            if aside:
                move_aside(folder, console)
            stack.enter_context(alone_in(folder))
            progress, saved = _begun(setup, folder, resume, stopping, say)
            run = _Run(setup, host, progress, folder, saved, console, listeners)
            try:
                listeners.tell(lambda one: one.on_start(config, folder))
            except BaseException:
                if not resume:
                    forget_run(folder)
                raise
            is_over = progress.has_reached(config.evaluation.stop_return)
            is_over = is_over and config.topology.num_hosts == 1  # of several hosts the first one says so
            if is_over:
                run.keep_options()
            ending = Ending.SOLVED if is_over else run.learn(stopping, stop_when, is_new=not resume)
            final = None if ending is Ending.STOPPED or host else run.final_episodes(stopping)
        result = run.result(ending if final or host else Ending.STOPPED, final, time.monotonic() - began_s)
        run.finish(result)
    return result


def _check_guard() -> None:
    """Raises InvalidConfig in a process of spawn that imports the program again: the call has no guard."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # as multiprocessing itself finds it out
        expected = 'under `if __name__ == "__main__":`, because each process of a run imports the program again'
        raise InvalidConfig("call of train()", expected, "one that an import of the file makes")


def _check_daemon(config: TrainConfig) -> None:
    """Raises InvalidConfig in a daemonic process if the run starts processes by multiprocessing."""
    process, topology = multiprocessing.current_process(), config.topology
    starts_actors = not config.acts_inline and config.num_actors_here > 0
    starts_learners = topology.learns_apart or topology.num_learners > 1
    if process.daemon and (starts_actors or starts_learners):
        expected = "in a process with daemon=False, or with topology = inline: a daemonic process may start no process"
        got = f"in {process.name}, daemonic as the processes of multiprocessing.Pool are, with topology = {topology}"
        raise InvalidConfig("call of train()", expected, got)


@contextmanager
def _hosts_started(
    stack: ExitStack,
    config: TrainConfig,
    run_dir: Path,
    resume: bool,
    aside: bool,
    stopping: Callable[[], bool],
    say: Callable[[str], None],
) -> Iterator[Callable[[], bool]]:
    """Starts the other hosts if this process has to; the stack ends them. In the block the hosts meet.

    Yields:
        Whether the meeting is to be given up.

    Raises:
        HostGone: Another host ended before the hosts had met.
    """
    if not starts_hosts(config):
        yield stopping
        return
    ray_hosts = importlib.import_module("relive.train.learners.ray_hosts")  # needs the extra `ray`
    others = stack.enter_context(ray_hosts.with_other_hosts(config, run_dir, resume, aside, stopping, say))
    try:
        yield lambda: stopping() or others.failed()
    except KeyboardInterrupt:
        if others.failure is not None:
            raise others.lost() from None
        raise
    others.have_met = True


def with_streams_of(setup: Setup, host: int, session: int) -> Setup:
    """Returns the run with the random streams of a host and a session: those of environments, noise and draws.

    A resumed session plays no episode of a session before it. The agent has been made with the seed of the run on all
    hosts, and a checkpoint has its generators.

    Args:
        setup: The run.
        host: Number of this host.
        session: Number of the session, from 1: the sessions before it, and itself.
    """
    environment = setup.config.environment
    seed = (environment.seed + host * _BETWEEN_HOSTS) % 2**31
    if session > 1:
        seed = int(np.random.SeedSequence(seed, spawn_key=(_SESSIONS, session)).generate_state(1)[0] % 2**31)
    return replace(setup, config=replace(setup.config, environment=replace(environment, seed=seed)))


def default_run_dir(config: TrainConfig) -> Path:
    """Returns the default directory of a run: runs/AGENT-ENV-sSEED."""
    environment = config.environment
    return Path("runs") / f"{config.agent.name}-{environment.env_id.replace('/', '-')}-s{environment.seed}"


def _checked(config: TrainConfig | None, run_dir: str | Path | None, resume: bool) -> tuple[TrainConfig, Path]:
    """Returns the options and the directory of a run. Raises InvalidConfig."""
    folder = None if run_dir is None else path_of("run_dir", run_dir)
    if resume and folder is None:
        raise InvalidConfig(what="run_dir", expected="the directory of the run to resume", got=None)
    if config is None and resume and folder is not None:
        config = options_of_run(folder)
    if not isinstance(config, TrainConfig):
        expected = "a TrainConfig for a new run, such as relive.train.preset(agent, env_id)"
        raise InvalidConfig(what="config", expected=expected, got=config)
    if not resume:
        check_has_server(config)
    # As it is now: an environment may change the directory of the process.
    return config, Path(os.path.abspath(folder or default_run_dir(config)))


def _begun(
    setup: Setup, run_dir: Path, resume: bool, stopping: Callable[[], bool], say: Callable[[str], None]
) -> tuple[Progress, Found | None]:
    """Restores the agent. A refused run leaves no directory. Blocks until all hosts of the run are here.

    Returns:
        The progress to go on from, and the save with the table; None: the session fills a new table.
    """
    written = run_dir / CONFIG_FILE
    number = _common_save(setup, run_dir, resume, stopping)
    progress, saved = Progress(env_id=setup.config.environment.env_id), None
    if not resume:
        check_files(run_dir)
        if written.exists():
            raise InvalidConfig(
                what="run directory", expected="one that holds no run yet, or resume=True to go on", got=str(run_dir)
            )
        run_dir.mkdir(parents=True, exist_ok=True)
        setup.config.save(written)
    elif not written.exists():
        raise InvalidConfig(what="run directory", expected="one that holds a run, to resume it", got=str(run_dir))
    else:
        progress, saved = _restored(setup, run_dir, number, say)
    progress.num_sessions += 1
    progress.spaces = words_of(setup.spaces)
    return progress, saved


def _common_save(setup: Setup, run_dir: Path, resume: bool, stopping: Callable[[], bool]) -> int | None:
    """Returns the number of the newest save that all hosts of the run have; None: there is none, or only one host."""
    if setup.met is None:
        return None
    has_tables = resume and setup.config.checkpoint.table != "never"
    names = joint_names(run_dir, is_first=setup.met.number == 0) if has_tables else {}
    name = setup.met.common_save(tuple(names), stopping)
    number = None if name is None else names[name]
    setup.met.saves.kept = [one for one in names.values() if number is None or one <= number]
    return number


def _restored(
    setup: Setup, run_dir: Path, number: int | None, say: Callable[[str], None]
) -> tuple[Progress, Found | None]:
    """Restores the agent from the save of this number, or else from the newest checkpoint, if there is one.

    In another environment than that of the returns, the best policy and the curve begin again.

    Raises:
        InvalidConfig, DamagedSave: It cannot be read, or belongs to another run, or to an environment of other spaces.
    """
    config, env_id = setup.config, setup.config.environment.env_id
    before = TrainConfig.load(run_dir / CONFIG_FILE).environment.env_id
    found = newest_checkpoint(run_dir) if number is None else joint_checkpoint(run_dir, number)
    if found is None:
        return Progress(env_id=env_id), None
    if found.agent not in (None, config.agent.name):
        raise InvalidConfig(f"agent of the learner in {found.path}", f"{config.agent.name!r}", found.agent)
    so_far = replace(found.progress, env_id=found.progress.env_id or before)
    if env_id not in (before, so_far.env_id):
        check_environment(setup.spaces, before)
    check_spaces(setup.spaces, so_far.spaces)
    found = replace(found, progress=so_far.of(env_id))
    has_table = found.has_table and config.checkpoint.table != "never"
    if has_table:
        check_saved_table(config, setup.agent, found)
    else:
        found.progress.steps_before_table = found.progress.num_steps
    setup.agent.load_state_dict(found.learner)
    if has_other_generators(setup.agent, found.learner):
        say("the checkpoint is of another kind of device: the random numbers of updates begin again from the seed")
    return found.progress, found if has_table else None


@final
class _Run:
    """One session of a run: its parts, its final episodes, its result."""

    def __init__(
        self,
        setup: Setup,
        host: int,
        progress: Progress,
        run_dir: Path,
        saved: Found | None,
        console: Console,
        listeners: Listeners,
    ) -> None:
        self._setup, self._config, self._agent = setup, setup.config, setup.agent
        self._streams = with_streams_of(setup, host, progress.num_sessions)
        self._progress = progress
        self._run_dir, self._saved = run_dir, saved
        self._console = console
        self._listeners = listeners
        self._has_pending = False  # whether the options wait for the first checkpoint

    def learn(self, stopping: Callable[[], bool], stop_when: Callable[[int, int], bool], *, is_new: bool) -> Ending:
        """Makes the parts of the run, and learns until something ends it."""
        config, run_dir = self._config, self._run_dir
        with owning() as stack:
            opening = open_session(self._streams, self._progress, run_dir / PROFILE_FILE, self._saved, stopping)
            remove_left(config, run_dir)
            stack.callback(forget_table, run_dir)  # after the session has closed its table
            try:
                session = stack.enter_context(opening)
            except (ReliveError, KeyboardInterrupt):
                if is_new:  # else an earlier session wrote the options
                    forget_run(run_dir)
                raise
            note_table(run_dir, session.table_name)
            if not is_new and self._is_same_environment():
                self.keep_options()
            evaluator = self._evaluator()
            stack.callback(evaluator.close)
            title = f"{config.agent.name} on {config.environment.env_id}, seed {config.environment.seed}: {run_dir}"
            resumed_at = None if self._progress.num_sessions == 1 else self._progress.num_steps
            reporter = stack.enter_context(ProgressReporter(self._console, title, run_dir, resumed_at))
            reporter.options({option.path: option.value for option in options(config)})
            joint = None if self._setup.met is None else self._setup.met.saves
            saved_table = None if session.shards is not None else session.whole_table
            checkpoints = Checkpoints(run_dir, config, saved_table, reporter.say, joint, self._keep_pending)
            stack.callback(checkpoints.close)
            made = Assembly(session, stack, reporter.say, self._keep_choice)
            scoreboard, profiling = session.scoreboard, session.profiling
            parts = Parts(
                table=made.table,
                board=made.board,
                scoreboard=scoreboard,
                acting=made.acting,
                learning=made.learning,
                evaluator=profiling.watch(evaluator, {"play": "evaluate"}),
                reporter=profiling.watch(reporter, {"show": "report"}),
                listeners=profiling.watch(self._listeners, {"tell": "report"}),
                profiling=profiling,
                checkpoints=profiling.watch(checkpoints, {name: "checkpoint" for name in ("begin", "look", "finish")}),
                served=made.served,
            )

            def stops() -> bool:
                return stopping() or stop_when(scoreboard.num_steps, self._agent.num_updates)

            (run_dir / RESULT_FILE).unlink(missing_ok=True)  # of an earlier session: the run goes on
            ending = Learner(config, parts, made.agent, self._progress, run_dir, stops).run()
            if made.served is not None and ending is not Ending.STOPPED:
                made.served.finish()
            return ending

    def keep_options(self) -> None:
        """Writes the options into config.json, for the sessions and the evaluations to come."""
        self._has_pending = False
        path = self._run_dir / CONFIG_FILE
        if TrainConfig.load(path) != self._config:
            self._config.save(path)

    def _is_same_environment(self) -> bool:
        """Whether config.json has the environment of this session. If not, its options wait for a checkpoint.

        A session that fails in another environment before it has saved anything leaves the run as it was.
        """
        before = TrainConfig.load(self._run_dir / CONFIG_FILE).environment.env_id
        self._has_pending = before != self._config.environment.env_id
        return not self._has_pending

    def _keep_pending(self) -> None:
        """Writes the options that wait for a checkpoint, after one is complete. A full disk costs a line."""
        if not self._has_pending:
            return
        try:
            self.keep_options()
        except FileNotFoundError:  # the run directory has gone
            raise
        except OSError as problem:
            self._has_pending = True
            self._say(f"the options were not written: {problem}; the next checkpoint tries again")

    def _keep_choice(self, way: str) -> None:
        """Writes the chosen kind of updates into config.json, for the sessions to come. A full disk costs a line."""
        if self._has_pending:
            self._config = changed(self._config, {"update": way})
            return
        path = self._run_dir / CONFIG_FILE
        chosen = changed(TrainConfig.load(path), {"update": way})
        try:
            chosen.save(path)
        except FileNotFoundError:  # the run directory has gone
            raise
        except OSError as problem:
            self._say(f"the choice was not written: {problem}; the run goes on, and its next session chooses again")

    def _say(self, line: str) -> None:
        self._console.print(line, highlight=False, soft_wrap=True)

    def final_episodes(self, stopping: Callable[[], bool]) -> Played | None:
        """Plays the final episodes with the kept policy, in bounded time; None if the run was stopped meanwhile."""
        config, evaluator = self._config, self._evaluator()
        num_episodes = config.evaluation.num_final_episodes
        began_s = said_s = time.monotonic()

        def go_on() -> bool:
            nonlocal said_s
            now_s = time.monotonic()
            if now_s - said_s >= _SAY_PERIOD_S:
                said_s = now_s
                self._console.print(
                    f"final evaluation: {evaluator.num_ended} of {num_episodes} episodes, {evaluator.num_steps:,}"
                    f" steps, {now_s - began_s:.0f} of at most {config.evaluation_s:.0f} s",
                    highlight=False,
                    soft_wrap=True,
                )
            return now_s - began_s < config.evaluation_s and not stopping()

        try:
            kept = self._progress.kept_parameters or self._agent.evaluation_parameters()
            seeds = final_seeds(config.environment.seed, num_episodes)
            played = evaluator.play(kept, seeds, go_on, began_s + config.evaluation_s)
        finally:
            evaluator.close()
        return None if stopping() else played

    def _evaluator(self) -> Evaluator:
        config = self._config
        return Evaluator(config.environment.env_id, self._agent.policy(), config.evaluation.max_episode_steps)

    def result(self, ending: Ending, final: Played | None, wall_s: float) -> RunResult:
        """Returns the result of the session."""
        config, progress = self._config, self._progress
        return RunResult(
            agent=config.agent.name,
            env_id=config.environment.env_id,
            seed=config.environment.seed,
            ending=ending.value,
            returns=tuple(final.returns.tolist()) if final else (),
            num_cut=final.num_cut if final else 0,
            kept_return=progress.kept_return if progress.kept_parameters else None,
            kept_updates=progress.kept_updates,
            num_steps=progress.num_steps,
            num_updates=self._agent.num_updates,
            num_restarts=progress.num_restarts,
            num_dropped=progress.num_dropped,
            num_sessions=progress.num_sessions,
            wall_s=wall_s,
            run_dir=str(self._run_dir),
        )

    def finish(self, result: RunResult) -> None:
        """Writes the result, draws the curve, shows both, and calls the callbacks for the last time."""
        curve = self._progress.curve
        if result.returns:
            save_result(result, self._run_dir)
        if curve:
            title = f"{result.agent} on {result.env_id}, seed {result.seed}"
            draw_curve(self._run_dir / CURVE_FILE, title, curve, self._config.evaluation.stop_return)
        if (self._run_dir / PROFILE_FILE).exists() and self._config.profile:
            show_profile(self._run_dir, self._console)
        if result.returns or result.stopped:
            show_result(result, self._console)
        self._listeners.tell(lambda one: one.on_end(result))
