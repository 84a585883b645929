"""A whole run: directory, table, actors, learner, and the final result.

A run directory holds config.json, checkpoint.pt, tensorboard/, curve.png and, once the run has ended by itself,
result.json. `train(run_dir, resume=True)` goes on from there: the learner is restored, a new table is filled.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import final

import numpy as np
import torch
from rich.console import Console
from rich.table import Table as Grid

from relive import SamplesPerInsert, SharedMemory, Table
from relive.agents.agent import Agent
from relive.errors import InvalidConfig
from relive.train.actor_pool import ActorPool
from relive.train.checkpoint import FILE_NAME, Progress, load_checkpoint
from relive.train.config import CONFIG_FILE, TrainConfig
from relive.train.curve import draw_curve
from relive.train.environments import describe, final_seeds
from relive.train.evaluate import Evaluator
from relive.train.learner import Ending, Learner, Parts
from relive.train.numerics import learner_numerics, threads_of
from relive.train.parameters import ParameterBoard, ParameterLayout
from relive.train.progress import ProgressReporter
from relive.train.scoreboard import Scoreboard

CURVE_FILE, RESULT_FILE = "curve.png", "result.json"


@final
@dataclass(frozen=True)
class RunResult:
    """What a run came to. returns: greedy, of the kept policy, on the final seeds; empty where the run was stopped."""

    agent: str
    env_id: str
    seed: int
    ending: str
    returns: tuple[float, ...]
    kept_return: float | None
    kept_updates: int
    num_steps: int
    num_updates: int
    num_restarts: int
    num_sessions: int
    wall_s: float
    run_dir: str

    @property
    def mean_return(self) -> float:
        """Mean of the final returns; NaN where there are none."""
        return float(np.mean(self.returns)) if self.returns else float("nan")

    @property
    def stopped(self) -> bool:
        """Whether the run was interrupted and can be resumed."""
        return self.ending == Ending.STOPPED.value


def train(
    config: TrainConfig | None,
    run_dir: Path,
    *,
    resume: bool = False,
    moving_aside: bool = False,
    stop_when: Callable[[int, int], bool] = lambda num_steps, num_updates: False,
    console: Console | None = None,
) -> RunResult:
    """Runs until the agent reaches its return, a limit, or SIGINT / SIGTERM; then no process and no table is left.

    config: None with resume, where the directory has it. moving_aside: whatever the directory of a new run holds is
    renamed, not refused. stop_when(environment steps, updates): asked before every batch; True stops the run as a
    signal does. console: where progress goes (None: nowhere).
    Raises InvalidConfig for a directory that is not empty of runs (without resume) or holds none (with it), for an
    environment that the agent cannot act in, and what making the table raises: StorageFull where /dev/shm is too
    small. A refused run leaves no directory. In the main thread it handles the two signals while it runs; the second
    one acts as if it did not. torch computes with `config.threads` meanwhile and flushes denormal numbers.
    """
    began_s = time.monotonic()
    config = TrainConfig.load(run_dir / CONFIG_FILE) if resume and config is None else config
    if config is None:
        raise InvalidConfig(what="config", expected="a TrainConfig for a new run", got=None)
    console = console or Console(file=open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    with learner_numerics(threads_of(config.threads, config.acting.num_actors)), _stop_signals() as stopping:
        agent = make_agent(config)
        if moving_aside and not resume:
            move_aside(run_dir, console)
        progress = _prepared(config, agent, run_dir, resume)
        ending = (
            Ending.SOLVED if progress.solved else _learn(config, agent, progress, run_dir, console, stopping, stop_when)
        )
        returns: tuple[float, ...] = ()
        if ending is not Ending.STOPPED:
            returns = _final_returns(config, agent, progress, stopping)
            ending = ending if returns else Ending.STOPPED
    result = RunResult(
        config.agent.name,
        config.environment.env_id,
        config.environment.seed,
        ending.value,
        returns,
        progress.kept_return if progress.kept_parameters else None,
        progress.kept_updates,
        progress.num_steps,
        agent.num_updates,
        progress.num_restarts,
        progress.num_sessions,
        time.monotonic() - began_s,
        str(run_dir),
    )
    _finish(result, config, progress, run_dir, console)
    return result


def make_agent(config: TrainConfig) -> Agent:
    """The agent of a run. Raises InvalidConfig where it cannot act in the environment, or there is none."""
    spaces = describe(config.environment.env_id)
    return config.agent.make(spaces, seed=config.environment.seed, device=_chosen_device(config.device))


def _prepared(config: TrainConfig, agent: Agent, run_dir: Path, resume: bool) -> Progress:
    """The progress to go on from; the agent is restored with it. A refused run leaves no directory."""
    saved = run_dir / CONFIG_FILE
    progress = Progress()
    if not resume:
        if saved.exists():
            raise InvalidConfig(
                what="run directory", expected="one that holds no run yet, or resume=True to go on", got=str(run_dir)
            )
        run_dir.mkdir(parents=True, exist_ok=True)
        config.save(saved)
    elif (run_dir / FILE_NAME).exists():
        state, progress = load_checkpoint(run_dir)
        agent.load_state_dict(state)
    progress.num_sessions += 1
    return progress


def move_aside(folder: Path, console: Console) -> None:
    """A directory that holds something is renamed: a new run starts empty and loses nothing."""
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    for number in itertools.count(1):
        aside = folder.with_name(f"{folder.name}.{number}")
        if not aside.exists():
            folder.rename(aside)
            console.print(f"{folder} is now {aside}", highlight=False, soft_wrap=True)
            return


def _chosen_device(device: str) -> str:
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise InvalidConfig(what="device", expected="'cpu' or 'auto' on a machine without CUDA", got=device)
    return device


def make_table(config: TrainConfig, agent: Agent) -> Table:
    """The shared table of one session, under a name of its own."""
    replay, acting = config.replay, config.acting
    samples_per_insert = replay.updates_per_step * config.agent.batch_size
    limiter = SamplesPerInsert(
        samples_per_insert,
        replay.min_size,
        # A few batches and a few rounds of all actors, or neither side ever waits for less than that.
        tolerance=max(
            0.1 * samples_per_insert * replay.min_size,
            4.0 * config.agent.batch_size,
            4.0 * samples_per_insert * config.environment.num_envs_per_actor,
        ),
    )
    name = f"train-{os.getpid()}-{secrets.token_hex(3)}"
    # Twice the lanes in use: a dead actor's stay taken until the next look for dead processes.
    max_lanes = 2 * acting.num_actors * config.environment.num_envs_per_actor
    return Table(
        agent.spec(),
        replay.capacity,
        agent.index(limiter),
        storage=SharedMemory(name),
        max_lanes=max_lanes,
        seed=config.environment.seed,
    )


def _learn(
    config: TrainConfig,
    agent: Agent,
    progress: Progress,
    run_dir: Path,
    console: Console,
    stopping: Callable[[], bool],
    stop_when: Callable[[int, int], bool],
) -> Ending:
    with ExitStack() as stack:
        table = stack.enter_context(make_table(config, agent))
        board = ParameterBoard(ParameterLayout.of(agent.parameters()), first_version=progress.parameter_version)
        stack.callback(board.close)
        scoreboard = Scoreboard(config.acting.num_actors, steps_before=progress.num_steps)
        stack.callback(scoreboard.close)
        evaluator = Evaluator(config.environment.env_id, agent.policy(), config.evaluation.max_episode_steps)
        stack.callback(evaluator.close)
        title = f"{config.agent.name} on {config.environment.env_id}, seed {config.environment.seed}: {run_dir}"
        reporter = stack.enter_context(ProgressReporter(console, title, run_dir))
        name = Path(table.path or "").name.removeprefix("relive-")
        pool = ActorPool(config, agent.policy(), name, board, scoreboard)
        stack.callback(pool.stop)  # first of all to go: before the table closes
        parts = Parts(table, board, scoreboard, pool, evaluator, reporter)

        def stops() -> bool:
            return stopping() or stop_when(scoreboard.num_steps, agent.num_updates)

        return Learner(config, parts, agent, progress, run_dir, stops).run()


def _final_returns(
    config: TrainConfig, agent: Agent, progress: Progress, stopping: Callable[[], bool]
) -> tuple[float, ...]:
    evaluator = Evaluator(config.environment.env_id, agent.policy(), config.evaluation.max_episode_steps)
    try:
        seeds = final_seeds(config.environment.seed, config.evaluation.num_final_episodes)
        kept = progress.kept_parameters or agent.evaluation_parameters()
        returns = evaluator.returns(kept, seeds, lambda: not stopping())
    finally:
        evaluator.close()
    return () if returns is None else tuple(float(value) for value in returns)


@contextmanager
def _stop_signals() -> Iterator[Callable[[], bool]]:
    """A function that says whether SIGINT or SIGTERM came. The first is taken; the next one acts as it did before."""
    came = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield came.is_set
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def take(number: int, frame: object) -> None:
        came.set()
        for other, handler in before.items():
            signal.signal(other, handler)

    for number in before:
        signal.signal(number, take)
    try:
        yield came.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _finish(result: RunResult, config: TrainConfig, progress: Progress, run_dir: Path, console: Console) -> None:
    if progress.curve:
        title = f"{result.agent} on {result.env_id}, seed {result.seed}"
        draw_curve(run_dir / CURVE_FILE, title, progress.curve, config.evaluation.stop_return)
    if result.stopped:
        command = f"relive train {result.agent} --resume {run_dir}"
        console.print(f"Stopped. Go on with: {command}", highlight=False, soft_wrap=True)
        return
    text = json.dumps({**asdict(result), "mean_return": result.mean_return}, indent=2)
    (run_dir / RESULT_FILE).write_text(text + "\n", encoding="utf-8")
    grid = Grid(title=f"{result.env_id}: the run {result.ending}", show_header=False)
    grid.add_row(f"greedy return of the kept policy, {len(result.returns)} episodes", f"{result.mean_return:.1f}")
    grid.add_row("lowest, highest", f"{min(result.returns):.1f}, {max(result.returns):.1f}")
    grid.add_row("environment steps", f"{result.num_steps:,}")
    grid.add_row("updates", f"{result.num_updates:,} (kept policy: {result.kept_updates:,})")
    grid.add_row("wall clock", f"{result.wall_s:.1f} s")
    grid.add_row("actors restarted", str(result.num_restarts))
    grid.add_row("run directory", str(run_dir))
    console.print(grid)
