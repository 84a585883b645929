"""Tells how the processes of a run spent their time, and whether storage slows the run down; draws a picture of it.

A profiled run (`profile = True`, `--profile`) writes profile.json at its end; `relive profile RUN_DIR` reads the file.

  share of a part   seconds of the part / all seconds of the process, waits included; the shares add up to 1
  slower side       the learner or the actors: the side with the smaller share of waits
  free storage      If storage took no time and the waits stayed the same, the run would be
                    1 / (1 - share of storage on the slower side) times as fast (Amdahl). The other side would save its
                    storage time as well, so that the waits would shrink, too.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, final

from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table as Grid

from relive.errors import InvalidConfig
from relive.table.handle import TableHandle
from relive.train.config import path_of
from relive.train.memory.stopwatch import (
    ACTOR,
    INFERENCE,
    LEARNER,
    PARTS,
    SERVER,
    STORAGE,
    Counts,
    ProfileBoard,
    Stopwatch,
    Watch,
    stopwatch_of,
    timed_with,
    watch_with,
    watched_table,
)
from relive.train.run_directory import write_whole

PROFILE_FILE = "profile.json"
PICTURE_FILE = "profile.svg"
LEARNERS, ACTORS = "learners", "actors"  # names of several processes together
F = TypeVar("F", bound=Callable[..., Any])


@final
@dataclass(frozen=True)
class ProcessTime:
    """The time of one process, or of several together, by part (`relive.train.memory.stopwatch.PARTS`).

    Attributes:
        name: Name of the process.
        seconds: Wall-clock seconds by part.
        core_s: The part of these seconds that the thread was on a core; the rest it waited, for a lock or for a core.
        calls: Calls by part.
    """

    name: str
    seconds: Mapping[str, float]
    core_s: Mapping[str, float]
    calls: Mapping[str, int]

    @classmethod
    def of(cls, name: str, counts: Counts) -> ProcessTime:
        """Returns the counters of a stopwatch."""
        seconds, core_s, calls = (
            dict(zip(PARTS, values.tolist(), strict=True)) for values in (counts.seconds, counts.core_s, counts.calls)
        )
        return cls(name, seconds, core_s, calls)

    @property
    def total_s(self) -> float:
        """Seconds of all parts, "wait" and "other" included."""
        return sum(self.seconds.values())

    def share(self, *parts: str) -> float:
        """Returns the share of these parts in the time of the process."""
        return sum(self.seconds[part] for part in parts) / self.total_s if self.total_s else 0.0

    def core_share(self, *parts: str) -> float:
        """Returns the same share for their time on a core alone."""
        return sum(self.core_s[part] for part in parts) / self.total_s if self.total_s else 0.0

    def grid(self) -> Grid:
        """Returns a table for people, with a row for each part."""
        grid = Grid(title=f"{self.name}: {self.total_s:.1f} s", title_justify="left")
        grid.add_column("part")
        for heading in ("share", "seconds", "on a core", "calls", "us a call"):
            grid.add_column(heading, justify="right")
        for part in (part for part in PARTS if self.seconds[part]):
            seconds, calls = self.seconds[part], self.calls[part]
            grid.add_row(
                f"{part} (storage)" if part in STORAGE else part,
                f"{self.share(part):.1%}",
                f"{seconds:.2f}",
                f"{self.core_s[part]:.2f}",
                f"{calls:,}" if calls else "",
                f"{seconds / calls * 1e6:,.0f}" if calls else "",
            )
        return grid


@final
@dataclass(frozen=True)
class Profile:
    """The profile of a run.

    Attributes:
        processes: The processes. The first one called `train`: it is the learner, or the server of learners that have
            batches of their own.
        remote_share: Share of the steps of the session that actors on other machines took; their processes are not in
            the profile.
    """

    processes: tuple[ProcessTime, ...]
    remote_share: float = 0.0

    @property
    def learner(self) -> ProcessTime:
        """The learner: the leader of learners that share updates, all learners together if they have own batches."""
        first = self.processes[0]
        return self._together(LEARNERS, LEARNER) if first.name == SERVER else first

    @property
    def actors(self) -> ProcessTime:
        """All actors together."""
        return self._together(ACTORS, ACTOR)

    @property
    def helpers(self) -> tuple[ProcessTime, ...]:
        """The processes on neither side: followers, the inference process, and the server of learners."""
        followers = "" if self.processes[0].name == SERVER else f"{LEARNER} "
        return tuple(
            one
            for one in self.processes
            if one.name in (SERVER, INFERENCE) or (followers and one.name.startswith(followers))
        )

    def _together(self, name: str, kind: str) -> ProcessTime:
        """Returns all processes of a kind as one."""
        those = [one for one in self.processes if one.name.startswith(f"{kind} ")]
        return ProcessTime(
            name,
            {part: sum(one.seconds[part] for one in those) for part in PARTS},
            {part: sum(one.core_s[part] for one in those) for part in PARTS},
            {part: sum(one.calls[part] for one in those) for part in PARTS},
        )

    @property
    def slower(self) -> ProcessTime:
        """The side that waits less for the other side: a faster slower side makes a faster run.

        A side that had not begun when the run ended is never the slower one. If most steps came from actors on other
        machines, the slower side is the learner, because the profile does not know the waits of those actors.
        """
        learner, actors = self.learner, self.actors
        if self.are_mostly_remote:
            return learner
        if not learner.total_s and not self.is_alone:
            return actors
        return learner if self.is_alone or learner.share("wait") <= actors.share("wait") else actors

    @property
    def is_alone(self) -> bool:
        """Whether there are no processes of actors, as in an inline run."""
        return not self.actors.total_s

    @property
    def are_mostly_remote(self) -> bool:
        """Whether most steps came from actors on other machines."""
        return self.remote_share > 0.5

    @property
    def bottleneck(self) -> str:
        """The part that takes most time of the slower side; the parts of storage count as one, "storage"."""
        busy = {part: self.slower.share(part) for part in PARTS if part not in ("wait", *STORAGE)}
        busy["storage"] = self.slower.share(*STORAGE)
        return max(busy, key=busy.__getitem__)

    @property
    def without_storage(self) -> float:
        """How many times as fast the run would be if the table cost nothing and the waits stayed the same.

        inf if the slower side does nothing else.
        """
        rest = 1.0 - self.slower.share(*STORAGE)
        return 1.0 / rest if rest > 0 else float("inf")

    def __str__(self) -> str:
        slower, part, learner, actors = self.slower, self.bottleneck, self.learner, self.actors
        if not slower.total_s:
            return "The run ended before any time was counted."
        is_one = slower.name == LEARNER
        share = slower.share(*STORAGE) if part == "storage" else slower.share(part)
        answer = f"Storage is {'' if part == 'storage' else 'not '}the bottleneck: the {slower.name} "
        if self.is_alone or self.are_mostly_remote:
            answer += "spends" if is_one else "spend"
        else:
            answer += "is the slower side and spends" if is_one else "are the slower side and spend"
        answer += (
            f" {share:.0%} on {part} and {slower.share('wait'):.0%} waiting. Storage takes"
            f" {learner.share(*STORAGE):.1%} of the {_whose(learner)} time"
            f" ({learner.core_share(*STORAGE):.1%} on a core)"
        )
        if not self.is_alone:
            on_core = actors.core_share(*STORAGE)
            answer += f" and {actors.share(*STORAGE):.1%} of the actors' time ({on_core:.1%} on a core)"
        faster = f"the run would be {self.without_storage:.2f} times as fast"
        answer += f". If storage took no time and the waits stayed the same, {faster}."
        if self.remote_share:
            answer += (
                f" Actors on other machines, which are not in this profile, made {self.remote_share:.0%} of the steps."
            )
        return answer

    def save(self, path: Path) -> None:
        """Writes the profile as JSON. Raises OSError if the file cannot be written; the old file stays."""
        write_whole(path, f"{json.dumps(asdict(self), indent=2)}\n".encode())


def _whose(one: ProcessTime) -> str:
    return f"{one.name}'" if one.name.endswith("s") else f"{one.name}'s"


def load_profile(run_dir: str | Path) -> Profile:
    """Loads the profile of a run: that of the last session that was profiled.

    Args:
        run_dir: The directory of the run.

    Raises:
        InvalidConfig: The run was not profiled, has not ended, or its profile cannot be read.
    """
    path = path_of("run_dir", run_dir) / PROFILE_FILE
    if not path.exists():
        raise InvalidConfig(f"profile of the run in {run_dir}", "a run with --profile (profile = true), ended", "none")
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        profile = Profile(tuple(_process(one) for one in tree["processes"]), float(tree.get("remote_share", 0.0)))
        if not profile.processes or profile.processes[0].name not in (LEARNER, SERVER):
            raise ValueError(f"its first process is neither {LEARNER!r} nor {SERVER!r}")
        if not 0.0 <= profile.remote_share <= 1.0:
            raise ValueError(f"the share of remote steps is in [0, 1], not {profile.remote_share}")
        return profile
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as problem:
        raise InvalidConfig(f"profile {path}", "the file a run writes", str(problem)) from problem


def _process(tree: Any) -> ProcessTime:
    seconds, core_s = ({part: float(tree[name][part]) for part in PARTS} for name in ("seconds", "core_s"))
    wrong = [value for value in (*seconds.values(), *core_s.values()) if not 0.0 <= value < float("inf")]
    if wrong:
        raise ValueError(f"seconds are numbers >= 0, not {wrong[0]}")
    return ProcessTime(str(tree["name"]), seconds, core_s, {part: int(tree["calls"][part]) for part in PARTS})


def draw_profile(path: Path, title: str, profile: Profile) -> None:
    """Writes an SVG: a bar for each process with its parts side by side, storage hatched, waits in grey.

    Raises:
        OSError: The file cannot be written. The old file stays.
    """
    figure = Figure(figsize=(9, 1.6 + 0.45 * len(profile.processes)), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot()
    names = [one.name for one in profile.processes]
    left = [0.0] * len(names)
    for number, part in enumerate(PARTS):
        shares = [one.share(part) for one in profile.processes]
        if not any(shares):
            continue
        color = {"wait": "0.8", "other": "0.93", "checkpoint": "0.3"}.get(part, f"C{number % 10}")
        hatch = "////" if part in STORAGE else None
        axes.barh(names, shares, left=left, label=part, color=color, hatch=hatch, edgecolor="white", linewidth=0.5)
        left = [before + share for before, share in zip(left, shares, strict=True)]
    axes.set(xlim=(0, 1), xlabel="share of the process's time (hatched: storage)", title=title)
    axes.invert_yaxis()
    figure.legend(loc="outside lower center", ncols=6, fontsize=8)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    write_whole(path, drawn.getbuffer())


def show_profile(run_dir: str | Path, console: Console) -> None:
    """Prints the profile of a run and draws its picture again. A line says that the picture cannot be written.

    Raises the errors of `load_profile`.
    """
    profile, picture = load_profile(run_dir), Path(run_dir) / PICTURE_FILE
    sides = (profile.learner,) if profile.is_alone else (profile.learner, profile.actors)
    for one in (*sides, *profile.helpers):
        console.print(one.grid())
    console.print(str(profile), highlight=False)
    try:
        draw_profile(picture, str(run_dir), profile)
    except OSError as problem:  # a disk that is full, or a directory that is read only
        console.print(f"the picture was not drawn: {problem}", highlight=False, soft_wrap=True)
    else:
        console.print(str(picture), highlight=False, soft_wrap=True)


@final
class Profiling(AbstractContextManager["Profiling"]):
    """Counts the time of all processes of a run, if the run is profiled; writes the profile at its end.

    Enter it after the table is made and before the other processes start: at its end they have ended, and the table is
    still open.

    Attributes:
        board: The counters of all processes; None: the run is not profiled.
        watch: Puts the stopwatch of this process around methods.
    """

    def __init__(self, wanted: bool, name: str, others: Sequence[str], path: Path) -> None:
        """Makes the counters.

        Args:
            wanted: Whether the run is profiled. If not, all methods return their arguments.
            name: Name of this process.
            others: Names of the processes that will be started.
            path: The file that is written at the end.
        """
        self._path = path
        self._table: TableHandle | None = None
        self._remote_share = 0.0
        self.board = ProfileBoard((name, *others)) if wanted else None
        self._stopwatch = stopwatch_of(self.board, name)
        self.watch: Watch = watch_with(self._stopwatch)

    def table(self, table: TableHandle) -> TableHandle:
        """Returns the table of the learner with its calls timed."""
        self._table = table
        return watched_table(table, self._stopwatch)

    def acted(self, num_remote: int, num_steps: int) -> None:
        """Notes how many steps of the session came from actors on other machines."""
        self._remote_share = num_remote / num_steps if num_steps else 0.0

    def timed(self, part: str, function: F, /) -> F:
        """Returns a function of this process with its time charged to `part`."""
        return timed_with(self._stopwatch, part, function)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.board is None or self._stopwatch is None:
            return
        self._stopwatch.look()
        if self._table is not None:
            self._waits_of(self.board, self._table.stats().sampler_wait_s)
        counted = tuple(ProcessTime.of(name, self.board.counts(name)) for name in self.board.names)
        Profile(counted, self._remote_share).save(self._path)
        self.board.close()

    @staticmethod
    def _waits_of(board: ProfileBoard, sampler_wait_s: float) -> None:
        """Charges waits for the limiter to "wait": the table counts them for all learners, which get equal shares."""
        apart = board.names[0] == SERVER
        drawing = [name for name in board.names if name.startswith(f"{LEARNER} ")] if apart else [LEARNER]
        for name in drawing:
            Stopwatch(board.counts(name)).move(("sample", "gather"), "wait", sampler_wait_s / len(drawing))
