"""Shows the progress of a run: a live table on a terminal, lines elsewhere. Writes the same figures to TensorBoard."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, final

from rich.console import Console
from rich.live import Live
from rich.table import Table as Grid
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from relive.core.forks import renewed_in_children
from relive.train.run_directory import naming

_TERMINAL_PERIOD_S = 0.5
_LINE_PERIOD_S = 5.0
_EARLY_LINE_PERIOD_S = 2.0  # at first, so that a person sees soon that the run goes on
_EARLY_S = 10.0
_EVENT_PERIOD_S = 2.0
_FLUSH_S = 10.0  # of TensorBoard's thread
_RETRY_S = 30.0  # between two looks whether a full disk has room again
_ROOM = 1 << 16  # bytes of such a look


@final
@dataclass(frozen=True)
class Snapshot:
    """A run at one moment. Rates and shares of waiting are those since the snapshot before.

    Attributes:
        elapsed_s: Seconds of the run, over all sessions.
        num_steps: Environment steps.
        num_updates: Updates.
        num_episodes: Finished episodes of the session.
        steps_per_s: Environment steps a second.
        updates_per_s: Updates a second.
        acting_return: Mean return of about the last 100 episodes of the actors; None before the first one.
        kept_return: Return of the best evaluation; None before the first one.
        metrics: Metrics of the last update, "loss" first.
        exploration: Parameters of the exploration, by name.
        fill: Steps in the table.
        capacity: Capacity of the table in steps.
        replay_ratio: Items sampled for each item inserted, so far.
        learner_wait: Share of its time that the learner waited for items.
        actor_wait: Share of its time that an actor waited for the learner.
        num_actors: Actors of this machine.
        num_restarts: Times that actors were started again.
        doing: The work of the run, if it is not learning; else "".
        num_remote: Actors that are connected through the service; None: the run is not served.
        num_dropped: Gradients that were too stale to be applied.
    """

    elapsed_s: float
    num_steps: int
    num_updates: int
    num_episodes: int
    steps_per_s: float
    updates_per_s: float
    acting_return: float | None
    kept_return: float | None
    metrics: Mapping[str, float]
    exploration: Mapping[str, float]
    fill: int
    capacity: int
    replay_ratio: float
    learner_wait: float
    actor_wait: float
    num_actors: int
    num_restarts: int
    doing: str = ""
    num_remote: int | None = None
    num_dropped: int = 0


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _named(values: Mapping[str, float]) -> str:
    return "".join(f"{name} {value:.2f}, " for name, value in values.items())


def figures(now: Snapshot) -> dict[str, float]:
    """Returns the figures of a snapshot by the names that loggers show; figures that are None are left out."""
    values: dict[str, float | None] = {
        "return/acting": now.acting_return,
        **{f"learner/{name}": value for name, value in now.metrics.items()},
        "learner/updates_per_s": now.updates_per_s,
        "learner/wait": now.learner_wait,
        "actors/steps_per_s": now.steps_per_s,
        "actors/wait": now.actor_wait,
        **{f"actors/{name}": value for name, value in now.exploration.items()},
        "actors/restarts": now.num_restarts,
        "actors/remote": now.num_remote,
        "table/fill": now.fill / now.capacity,
        "table/samples_per_insert": now.replay_ratio,
    }
    return {name: value for name, value in values.items() if value is not None}


def _rows(now: Snapshot) -> list[tuple[str, str]]:
    remote = "" if now.num_remote is None else f" here, {now.num_remote} through the service"
    return [
        ("time", f"{now.elapsed_s:.0f} s"),
        ("environment steps", f"{now.num_steps:,}   {now.steps_per_s:,.0f} /s"),
        ("updates", f"{now.num_updates:,}   {now.updates_per_s:,.0f} /s"),
        (
            "return, acting",
            f"{_number(now.acting_return)}   ({_named(now.exploration)}{now.num_episodes:,} episodes)",
        ),
        ("return, best evaluation", _number(now.kept_return)),
        ("loss", _number(now.metrics.get("loss"), 4)),
        ("table", f"{now.fill:,} of {now.capacity:,} steps ({now.fill / now.capacity:.0%} full)"),
        ("replay ratio", f"{now.replay_ratio:.1f} samples an insert"),
        ("time spent waiting", f"learner {now.learner_wait:.0%}, actors {now.actor_wait:.0%}"),
        ("actors", f"{now.num_actors}{remote}; restarted {now.num_restarts} times"),
        *([("gradients dropped", f"{now.num_dropped:,}")] if now.num_dropped else []),
        *([("current work", now.doing)] if now.doing else []),
    ]


def _line(now: Snapshot) -> str:
    loss = _number(now.metrics.get("loss"), 4)
    remote = "" if now.num_remote is None else f"  remote actors {now.num_remote}"
    return (
        f"{now.elapsed_s:6.1f} s  steps {now.num_steps:,} ({now.steps_per_s:,.0f}/s)  updates {now.num_updates:,}"
        f" ({now.updates_per_s:,.0f}/s)  return {_number(now.acting_return)}  best evaluation"
        f" {_number(now.kept_return)}  loss {loss}  table {now.fill / now.capacity:.0%} full"
        f"  replay ratio {now.replay_ratio:.1f}  waiting: learner {now.learner_wait:.0%}, actors {now.actor_wait:.0%}"
        f"  actor restarts {now.num_restarts}{remote}"
        + (f"  gradients dropped {now.num_dropped:,}" if now.num_dropped else "")
        + (f"  {now.doing}" if now.doing else "")
    )


_Hook = Callable[[threading.ExceptHookArgs], object]
_hooking = renewed_in_children(sys.modules[__name__], "_hooking", threading.Lock)  # of the next two
_num_hooked = 0  # open blocks of _tensorboard_raises_once
_hooks: tuple[_Hook, _Hook]  # of the first of them: its hook, and the one before


@contextlib.contextmanager
def _tensorboard_raises_once() -> Iterator[None]:
    """Leaves out the traceback of the thread in which TensorBoard writes: its next call raises the same error here.

    Runs in several threads of this process may be in such blocks at once. The last block that ends restores the hook.
    """
    global _num_hooked, _hooks
    with _hooking:
        if _num_hooked == 0:
            _hooks = _without_tensorboard(threading.excepthook), threading.excepthook
            threading.excepthook = _hooks[0]
        _num_hooked += 1
    try:
        yield
    finally:
        with _hooking:
            _num_hooked -= 1
            if _num_hooked == 0 and threading.excepthook is _hooks[0]:
                threading.excepthook = _hooks[1]


def _without_tensorboard(before: _Hook) -> _Hook:
    def shows(told: threading.ExceptHookArgs) -> None:
        if not type(told.thread).__module__.startswith("tensorboard."):
            before(told)

    return shows


@final
class ProgressReporter:
    """Shows snapshots as often as is useful and writes them to TensorBoard files in `run_dir`. Use it with `with`."""

    def __init__(self, console: Console, title: str, run_dir: Path, resumed_at: int | None = None) -> None:
        """Makes the reporter.

        Args:
            console: Shows the progress.
            title: The first line.
            run_dir: Directory of the run.
            resumed_at: Environment steps at which a resumed run goes on: figures of later steps, which a killed session
                wrote after its last checkpoint, are dropped. None: a new run.
        """
        self._console = console
        self._title = title
        self._run_dir = run_dir
        self._resumed_at = resumed_at
        self._written_step = -1 if resumed_at is None else resumed_at  # TensorBoard's figures go up to this step
        self._live: Live | None = None
        self._writer: Any = None  # of TensorBoard; None: the disk is full, or the block has not begun or has ended
        self._is_open = False
        self._retry_s = 0.0
        self._shown_s = self._written_s = float("-inf")
        self._quiet = contextlib.ExitStack()

    def __enter__(self) -> ProgressReporter:
        with contextlib.ExitStack() as quiet:
            quiet.enter_context(_tensorboard_raises_once())
            try:
                self._writer = self._new_writer(None if self._resumed_at is None else self._resumed_at + 1)
            except OSError as problem:
                raise naming(problem, self._folder) from None
            self._quiet = quiet.pop_all()
        self._is_open = True
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=False)
            self._live.__enter__()
        else:
            self._console.print(self._title, highlight=False, soft_wrap=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        live, writer, self._live, self._writer, self._is_open = self._live, self._writer, None, None, False
        try:
            if live is not None:
                live.__exit__(kind, error, trace)
        finally:
            with self._quiet:
                if writer is not None:
                    self._close(writer)

    @property
    def _folder(self) -> Path:
        return self._run_dir / "tensorboard"

    def _new_writer(self, purge_step: int | None) -> Any:
        return SummaryWriter(str(self._folder), purge_step=purge_step, flush_secs=_FLUSH_S)

    def _close(self, writer: Any) -> None:
        """Writes the figures that TensorBoard still has. A line says that the disk is full."""
        try:
            writer.close()
        except FileNotFoundError:
            raise
        except OSError as problem:
            with contextlib.suppress(OSError, ValueError):  # the output may be what failed
                self.say(f"TensorBoard did not get its last figures: {naming(problem, self._folder)}")

    @property
    def wants(self) -> bool:
        """Whether it is time for another snapshot. A snapshot costs time, so make none before."""
        period_s = _TERMINAL_PERIOD_S if self._live is not None else min(_EARLY_LINE_PERIOD_S, _EVENT_PERIOD_S)
        return time.monotonic() - max(self._shown_s, self._written_s) >= period_s

    def options(self, options: Mapping[str, object]) -> None:
        """Writes the options of the run, {path: value}, to TensorBoard, whose HPARAMS page compares runs."""
        plain = {
            name: value if isinstance(value, (bool, int, float)) else str(value) for name, value in options.items()
        }
        metrics = dict.fromkeys(("return/evaluation", "return/acting"))

        def add(writer: Any) -> None:
            for summary in hparams(plain, metrics):  # type: ignore[no-untyped-call]
                writer.file_writer.add_summary(summary)

        self._add(add)

    def show(self, now: Snapshot, *, at_once: bool = False) -> None:
        """Shows a snapshot if it is time to; with at_once in any case."""
        clock_s = time.monotonic()
        if self._live is not None:
            grid = Grid(title=self._title, show_header=False)
            for name, value in _rows(now):
                grid.add_row(name, value)
            self._live.update(grid, refresh=True)
            self._shown_s = clock_s
        elif at_once or clock_s - self._shown_s >= self._line_period_s(now):
            self.say(_line(now))
            self._shown_s = clock_s
        if at_once or clock_s - self._written_s >= _EVENT_PERIOD_S:
            self._write(now)
            self._written_s = clock_s

    @staticmethod
    def _line_period_s(now: Snapshot) -> float:
        return _EARLY_LINE_PERIOD_S if now.elapsed_s < _EARLY_S else _LINE_PERIOD_S

    def say(self, text: str) -> None:
        """Prints a line that stays."""
        self._console.print(text, highlight=False, soft_wrap=True)

    def evaluated(self, mean_return: float, num_steps: int) -> None:
        """Writes the mean return of an evaluation to TensorBoard."""
        self._add(lambda writer: writer.add_scalar("return/evaluation", mean_return, num_steps))

    def _write(self, now: Snapshot) -> None:
        if now.num_steps <= self._written_step:
            return
        self._written_step = now.num_steps

        def add(writer: Any) -> None:
            for name, value in figures(now).items():
                writer.add_scalar(name, value, now.num_steps)

        self._add(add)

    def _add(self, add: Callable[[Any], None]) -> None:
        """Adds figures to TensorBoard, or leaves them out while its disk is full. Lines say both ends of that time.

        Raises:
            FileNotFoundError: The run directory has gone.
        """
        if self._writer is None and not self._has_again():
            return
        try:
            add(self._writer)
        except FileNotFoundError:
            raise
        except OSError as problem:
            writer, self._writer, self._retry_s = self._writer, None, time.monotonic() + _RETRY_S
            with contextlib.suppress(OSError):  # it raises the same error
                writer.close()
            named = naming(problem, self._folder)
            self.say(f"TensorBoard gets no figures: {named}; the run goes on, and leaves them out until there is room")

    def _has_again(self) -> bool:
        """Goes on in a new file of TensorBoard if the disk has room again."""
        if not self._is_open or time.monotonic() < self._retry_s:
            return False
        self._retry_s = time.monotonic() + _RETRY_S
        try:
            with tempfile.TemporaryFile(dir=self._folder) as file:  # a file of TensorBoard would stay, and be empty
                file.write(bytes(_ROOM))
            self._writer = self._new_writer(None)
        except FileNotFoundError:
            raise
        except OSError:
            return False
        self.say("TensorBoard gets figures again: there is room on its disk")
        return True
