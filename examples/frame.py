"""The parts that every example has: a command line, the course of a run with its save and its picture, evaluation.

An example is one file with a dataclass of settings, a `main(arguments)` that returns a `Result`, and a loop:

    run = Run("sac", settings)
    saved = run.load()                      # a checkpoint of table and learner, or None
    with run.course(lambda: (table, learner.state())):
        while run.goes_on(step):
            ...                             # act, learn
            run.log(loss=loss)
            if run.evaluation_is_due(step):
                run.evaluated(evaluate(act, make_env, settings))

`goes_on` ends the run at `--steps` or `--seconds` and saves every `--save-s` seconds. Ctrl-C ends the run at the next
`goes_on`, which is between two updates; a second Ctrl-C ends it at once, without a save.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import math
import os
import platform
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import folders
import gymnasium
import numpy as np
import torch
from options import Settings as Settings
from options import at_least as at_least
from options import check_kept, kept, options_of
from options import one_of as one_of
from options import parse as parse
from options import within as within
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

import relive
import relive.checkpoint
import relive.fleet

State = Callable[[], tuple["relive.Table | relive.fleet.ShardedTable | None", dict[str, Any]]]


@dataclasses.dataclass(frozen=True)
class Saved:
    """A run that is continued. `table` is None for a table over shards, and for a table that was not saved."""

    table: relive.Table | None
    learner: dict[str, Any]


@dataclasses.dataclass
class Result:
    """The result of a run, which is also `result.json` of its folder.

    Attributes:
        curve: one [steps, seconds, mean return of the evaluation] for each evaluation.
        random_return: the mean return of random actions.
        ending: "steps", "seconds" or "stopped" (Ctrl-C).
        facts: further figures of the example, such as staleness.
    """

    name: str
    settings: dict[str, Any]
    curve: list[list[float]] = dataclasses.field(default_factory=list)
    random_return: float = math.nan
    ending: str = ""
    steps: int = 0
    seconds: float = 0.0
    machine: str = ""
    facts: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def final(self) -> float:
        """The mean of the last three evaluations."""
        return float(np.mean([point[2] for point in self.curve[-3:]])) if self.curve else math.nan

    @property
    def best(self) -> float:
        """The best evaluation."""
        return max((point[2] for point in self.curve), default=math.nan)


def package(module: str, distribution: str, install: str = "'.[examples]'") -> Any:
    """Imports a package that only some examples need. Without the package the program ends with the command.

    Args:
        module: the name to import.
        distribution: the name of the package on the index.
        install: what pip has to install.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        raise SystemExit(f"This example needs {distribution}. Run: pip install {install}") from None


def mlp(*sizes: int, last: torch.nn.Module | None = None) -> torch.nn.Sequential:
    """A network of linear layers with ReLU between them. `last` follows the last layer."""
    layers: list[torch.nn.Module] = []
    for inputs, outputs in zip(sizes, sizes[1:], strict=False):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1], *([last] if last else []))


def evaluate(
    act: Callable[[np.ndarray], Any], make_env: Callable[[], gymnasium.Env[Any, Any]], episodes: int, seed: int = 10_000
) -> float:
    """Plays whole episodes side by side, with equal starts at every call.

    Args:
        act: takes observations [M, ...] and returns M actions.
        make_env: makes one environment.

    Returns:
        The mean of the episodes' sums of rewards.
    """
    envs = gymnasium.vector.SyncVectorEnv([make_env] * episodes)
    observations, _ = envs.reset(seed=seed)
    returns, open_episodes = np.zeros(episodes), np.ones(episodes, bool)
    while open_episodes.any():
        observations, rewards, terminated, truncated, _ = envs.step(np.asarray(act(observations)))
        returns += rewards * open_episodes
        open_episodes &= ~(terminated | truncated)
    envs.close()
    return float(returns.mean())


def random_return(make_env: Callable[[], gymnasium.Env[Any, Any]], episodes: int = 10) -> float:
    """The mean return of random actions."""
    env = make_env()
    space = env.action_space
    space.seed(0)
    env.close()
    return evaluate(lambda _: [space.sample() for _ in range(episodes)], make_env, episodes)


class Run:
    """The course of one run: its limits, its saves, its TensorBoard, its bar, its picture. For the main thread.

    `load` locks the folder until the end of `course`. A rank is given `locks=False`: its main process has the lock.
    """

    def __init__(self, name: str, settings: Settings, *, locks: bool = True) -> None:
        self.settings, self._locks = settings, locks
        self.folder = Path(settings.run_dir or f"runs/examples/{name}-{settings.seed}")
        machine = f"{platform.machine()}, {os.cpu_count()} cores"
        self.result = Result(name, {k: v for k, v in dataclasses.asdict(settings).items() if v != math.inf})
        self.result.machine = machine
        torch.manual_seed(settings.seed)
        torch.set_num_threads(1)  # the matrices are small: more threads only wait for each other
        self._began, self._saved, self._next_evaluation = time.monotonic(), time.monotonic(), 0
        self._interrupted, self._state = False, None  # type: tuple[bool, State | None]
        self._saved_step: int | None = None
        self._unlock: Callable[[], object] = lambda: None
        self._figures: dict[str, float] = {}

    @property
    def step(self) -> int:
        """The number of steps at the last `goes_on`, or of the run that is continued."""
        return self.result.steps

    def load(self, storage: relive.SharedMemory | relive.Tiered | None = None, data: str = "") -> Saved | None:
        """Loads table and learner of the run that `--resume` continues. None: this run starts from its beginning.

        A table over shards is not loaded here: its ShardOwners take `load=run.shards`. The program ends with a
        sentence if another run uses the folder, if `begin` would remove `data`, the folder of a save that this run
        reads, or if a setting differs that a continued run keeps (`options.check_kept`).
        """
        if not self.settings.resume:
            folders.check(self.folder, data)
            self.folder.mkdir(parents=True, exist_ok=True)
        if self._locks and self.folder.is_dir():
            self._unlock = folders.lock(self.folder, self)
        if not self.settings.resume:
            return None
        if (self.folder / "save" / "CURRENT").exists():
            checkpoint = relive.checkpoint.load(self.folder / "save", storage=storage)
            table, whole = checkpoint.table, checkpoint.learner
        elif self.shards is not None:
            table, whole = None, relive.checkpoint.from_bytes(relive.fleet.saved(self.shards).blob("learner"))
        elif (self.folder / "learner.pt").exists():
            table, whole = None, torch.load(self.folder / "learner.pt")
        else:
            raise SystemExit(f"{self.folder} has no save. Run the example without --resume first.")
        told = whole["run"]
        try:
            check_kept(self.folder, told.get("settings", {}), self.settings)  # saves of earlier versions lack it
        except SystemExit:
            self._unlock()
            if table is not None:
                table.close()
            raise
        self.result.random_return = told.get("random_return", math.nan)  # saves of earlier versions lack it
        self.result.curve, self.result.steps, self.result.facts = told["curve"], told["steps"], told["facts"]
        self._began -= told["seconds"]
        self._next_evaluation = told["next_evaluation"]
        torch.set_rng_state(whole["rng"])
        return Saved(table, whole["learner"])

    @property
    def shards(self) -> Path | None:
        """The save of all shards that this run continues with. None: none."""
        path = self.folder / "shards"
        return path if self.settings.resume and (path / "CURRENT").exists() else None

    def begin(self) -> None:
        """Removes the files of an earlier run, without `--resume`; other files of its folder stay.

        `course` calls it. A run that ends before that, as by a mistyped `--env`, leaves the earlier run as it was.
        """
        if self._locks and not self.settings.resume:
            folders.remove_earlier_run(self.folder)

    @contextlib.contextmanager
    def course(self, state: State) -> Iterator[None]:
        """The body of the run. `state` returns the table and the learner's state; its end saves both."""
        from torch.utils.tensorboard import SummaryWriter

        self.begin()
        self._state = state
        limit = self.settings.steps
        columns = [TextColumn(self.result.name), BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}")]
        self._board = SummaryWriter(str(self.folder / "tensorboard"))
        self._progress = Progress(*columns, disable=not self.settings.bar, refresh_per_second=2)
        self._task = self._progress.add_task("", total=limit, completed=self.step)
        before = signal.signal(signal.SIGINT, self._interrupt)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # ranks.py blocks it until here
        try:
            with self._progress:
                yield
                self.save()  # before the end of the bar, which raises if the output is closed or full
        finally:
            signal.signal(signal.SIGINT, before)
            self._board.close()
            try:
                self._write()
            finally:
                self._unlock()

    def _interrupt(self, *_: object) -> None:
        if self._interrupted:
            raise KeyboardInterrupt
        self._interrupted = True

    def goes_on(self, step: int) -> bool:
        """True if another step may follow. Call it between two updates."""
        result, now = self.result, time.monotonic()
        result.steps, result.seconds = step, now - self._began
        for ending, reached in (
            ("stopped", self._interrupted),
            ("seconds", result.seconds >= self.settings.seconds),
            ("steps", step >= self.settings.steps),
        ):
            if reached:
                result.ending = ending
                return False
        if now - self._saved > self.settings.save_s:
            self.save()
        if step % 100 == 0:
            text = "  ".join(f"{name} {value:.3g}" for name, value in self._figures.items())
            self._progress.update(self._task, completed=step, description=text)
        return True

    def save(self) -> None:
        """Saves table and learner as of now."""
        assert self._state is not None
        table, learner = self._state()
        result = self.result
        told = {"curve": result.curve, "steps": result.steps, "seconds": time.monotonic() - self._began}
        told |= {"facts": result.facts, "next_evaluation": self._next_evaluation}
        told |= {"random_return": result.random_return, "settings": kept(self.settings)}
        self.folder.mkdir(parents=True, exist_ok=True)
        whole = {"learner": learner, "run": told, "rng": torch.get_rng_state()}
        if isinstance(table, relive.Table):
            relive.checkpoint.save(self.folder / "save", table=table, learner=whole)
        elif table is not None:  # over shards
            table.save(self.folder / "shards", beside={"learner": relive.checkpoint.to_bytes(whole)})
        else:
            torch.save(whole, self.folder / "learner.tmp")
            os.replace(self.folder / "learner.tmp", self.folder / "learner.pt")
        self._saved, self._saved_step = time.monotonic(), result.steps

    def log(self, **figures: float) -> None:
        """Shows figures in the bar and writes them to TensorBoard, at most once in a hundred steps."""
        if self.step % 100 == 0:
            self._figures.update(figures)
            for name, value in figures.items():
                self._board.add_scalar(name, float(value), self.step)

    def updates_due(self, step: int, table: relive.Table) -> range:
        """The updates after a step of all environments: one every `steps_per_update` steps from `min_size` items on."""
        settings: Any = self.settings
        if table.num_items() < settings.min_size:
            return range(0)
        return range((step - settings.num_envs) // settings.steps_per_update, step // settings.steps_per_update)

    def evaluation_is_due(self, step: int) -> bool:
        """True once every `eval_every` steps, and at the last step. With actors, ask after the loop, too."""
        self.result.steps = step
        if self._next_evaluation == 0:
            self._next_evaluation = self.settings.eval_every
        is_known = bool(self.result.curve) and self.result.curve[-1][0] == step
        if is_known or step < min(self._next_evaluation, self.settings.steps):
            return False
        self._next_evaluation = step + self.settings.eval_every
        return True

    def evaluated(self, mean_return: float) -> None:
        """Adds a point to the curve."""
        self.result.curve.append([self.step, round(time.monotonic() - self._began, 2), round(mean_return, 4)])
        self._figures["return"] = mean_return
        self._board.add_scalar("return", mean_return, self.step)

    def _write(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(dataclasses.asdict(self.result), indent=1)
        (self.folder / "result.json").write_text(text.replace("NaN", "null") + "\n")
        self._draw()
        if self.settings.bar:
            print(f"{self.result.name}: {self.step} steps, {self.result.seconds:.0f} s, return {self.result.final:.4g}")
            print(f"picture: {self.folder / 'curve.png'}")
        if self.result.ending == "stopped" and self._saved_step == self.step:
            again = dataclasses.replace(self.settings, resume=True, run_dir=str(self.folder))
            command = shlex.join(["python", f"examples/{self.result.name}.py", *options_of(again)])
            print(f"Stopped and saved at step {self.step}. Continue with: {command}")

    def _draw(self) -> None:
        from matplotlib.figure import Figure

        axes = Figure(figsize=(6, 4)).subplots()
        points = np.asarray(self.result.curve).reshape(-1, 3)
        axes.plot(points[:, 0], points[:, 2], label=f"{self.result.name}, seed {self.settings.seed}")
        axes.axhline(self.result.random_return, linestyle=":", color="gray", label="random actions")
        axes.set(xlabel="steps of the environment", ylabel="return")
        axes.legend()
        axes.figure.savefig(self.folder / "curve.png", dpi=120)
