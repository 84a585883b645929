"""Every way in which a run can end, at random moments: its exit status, what it keeps, and that nothing is left.

The table of docs/training.md is this test's: each row is a way below.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs torch")
pytest.importorskip("rich", reason="the command line needs rich")

from relive.errors import InvalidConfig  # noqa: E402
from relive.train.watching.checkpoint import load_checkpoint  # noqa: E402
from train.runs import SHM, Run, children_of, has_checkpoint, is_alive, run_of, tables_of  # noqa: E402

OPTIONS = {
    "agent.network.hidden": "8", "replay.min_size": "100", "agent.batch_size": "16", "replay.updates_per_step": "0.25",
    "evaluation.num_episodes": "2", "evaluation.num_final_episodes": "2", "evaluation.num_confirm_episodes": "2",
    "evaluation.period_updates": "40", "evaluation.stop_return": "none", "update": "handwritten",
    "acting.num_actors": "2", "limits.max_steps": "100000000",
}  # fmt: skip
WORLD = "train.worlds:Willed-v0"  # its episodes have 20 steps and a return of 20
TOPOLOGIES = ("inline", "actors(2)")
OTHER_TOPOLOGIES = ("learners(2, sync)", "learners(2, async)", "double(2)")  # in the soak alone
OUTPUTS: list[int] = []  # reading ends of the outputs of runs, as descriptors
MOST_S = 120.0  # that an event may take on a busy machine


@dataclass(frozen=True)
class Way:
    """A way in which a run ends.

    Attributes:
        name: Its name.
        code: Exit status. A signal that comes when the run is over may end the process before its own end.
        options: Options of the run.
        will: What the environment does; see `Willed`.
        act: Does something to a run that has begun to learn, at a random moment.
        is_kept: Whether there is a checkpoint afterwards.
        words: Words of the output.
        leaves_table: Whether the table stays in shared memory (every process was killed at once).
        stdout: The output: a file, or "pipe"; None: the log.
    """

    name: str
    code: int
    options: dict[str, str] = field(default_factory=dict)
    will: str = ""
    act: Callable[[Run, Path, random.Random], None] | None = None
    is_kept: bool = True
    words: tuple[str, ...] = ()
    leaves_table: bool = False
    stdout: str | None = None


def signals(*numbers: signal.Signals) -> Callable[[Run, Path, random.Random], None]:
    """Sends signals to the whole group, as a terminal does, with random pauses."""

    def act(run: Run, folder: Path, rng: random.Random) -> None:
        for number in numbers:
            time.sleep(rng.choice((0.0, 0.001, 0.02, 0.1, 0.2, 0.5)) * rng.random())
            if run.process.poll() is None:
                os.killpg(run.pid, number)

    return act


def until_it_ends(run: Run, folder: Path, rng: random.Random) -> None:
    """Presses Ctrl-C again and again: two signals at once are one, and the run waits for its environment after one."""
    deadline_s = time.monotonic() + MOST_S
    while run.process.poll() is None and time.monotonic() < deadline_s:
        os.killpg(run.pid, signal.SIGINT)
        time.sleep(0.05 + 0.3 * rng.random())


def to_the_run(number: signal.Signals) -> Callable[[Run, Path, random.Random], None]:
    return lambda run, folder, rng: os.kill(run.pid, number)


def to_an_actor_and_then_stop(run: Run, folder: Path, rng: random.Random) -> None:
    """The run goes on with a new actor."""
    actors = children_of(run.pid)
    if actors:
        os.kill(rng.choice(actors), rng.choice((signal.SIGKILL, signal.SIGTERM)))
        until(lambda: len(set(children_of(run.pid)) - set(actors)) > 0, run)
    os.killpg(run.pid, signal.SIGTERM)


def to_all_children(run: Run, folder: Path, rng: random.Random) -> None:
    for child in children_of(run.pid):
        os.kill(child, signal.SIGKILL)
    os.killpg(run.pid, signal.SIGINT)


def take_the_directory(run: Run, folder: Path, rng: random.Random) -> None:
    """The disk of the run is gone: its next checkpoint cannot be written."""
    folder.rename(folder.with_name("moved"))
    os.killpg(run.pid, signal.SIGTERM)


def close_the_output(run: Run, folder: Path, rng: random.Random) -> None:
    """As `| head` does: the next line of the run finds nobody who reads it."""
    os.close(OUTPUTS.pop())


WAYS = [
    Way("limit of steps", 0, {"limits.max_steps": "1000"}, words=("reached its limit",)),
    Way("limit of time", 0, {"limits.max_minutes": "0.05"}, words=("reached its limit",)),
    Way("stop_return", 0, {"evaluation.stop_return": "20"}, words=("reached its return",)),
    Way("Ctrl-C", 130, act=signals(signal.SIGINT), words=("--resume",)),
    Way("Ctrl-C twice", 130, act=signals(signal.SIGINT, signal.SIGINT)),
    Way("Ctrl-C four times", 130, act=signals(*[signal.SIGINT] * 4)),
    Way("SIGTERM", 130, act=signals(signal.SIGTERM), words=("--resume",)),
    Way("SIGTERM to the run alone", 130, act=to_the_run(signal.SIGTERM), words=("--resume",)),
    Way("SIGHUP", 130, act=to_the_run(signal.SIGHUP), words=("--resume",)),
    Way("a terminal that closes", 130, act=signals(signal.SIGHUP), words=("--resume",)),
    Way("all three signals", 130, act=signals(signal.SIGHUP, signal.SIGTERM, signal.SIGINT)),
    Way("SIGKILL of the run", -signal.SIGKILL, act=to_the_run(signal.SIGKILL)),
    Way("SIGKILL of all", -signal.SIGKILL, act=signals(signal.SIGKILL), leaves_table=True),
    Way("death of an actor", 130, act=to_an_actor_and_then_stop, words=("--resume",)),
    Way("death of all actors", 130, act=to_all_children, words=("--resume",)),
    Way("an environment that raises", 1, will="raise acting {step}", words=("of actor", "it fails in step")),
    Way("an evaluation that raises", 1, will="raise evaluation 7", words=("in step 7 of an evaluation", "it fails")),
    Way("an environment that cannot be made", 1, will="made", is_kept=False, words=("it cannot be made",)),
    Way("an environment that cannot be closed", 1, {"limits.max_steps": "600"}, will="closed", is_kept=False,
        words=("it cannot be closed",)),
    Way("an evaluation that hangs", 130, will="hang evaluation 7", act=until_it_ends),
    Way("rewards that overflow", 1, {"environment.env_id": "train.worlds:Overflowing-v0", "agent.n_step": "10"},
        words=("expected a finite number",)),
    Way("a full output", 1, stdout="/dev/full", is_kept=False, words=("No space left",)),
    Way("an output that goes", 1, act=close_the_output, stdout="pipe"),
    Way("a directory that goes", 1, act=take_the_directory, is_kept=False, words=("No such file",)),
]  # fmt: skip
INLINE_WAYS = [
    Way("an environment that hangs", 130, will="hang acting 150", act=until_it_ends),
]  # fmt: skip
SLOW_WAYS = [  # inline, in the soak alone: a call that hangs gets some seconds after the limit
    Way("an evaluation that hangs to the limit", 1, {"limits.max_minutes": "0.05"}, will="hang evaluation 7",
        words=("an environment of an evaluation did not return",)),
    Way("an environment that hangs to the limit", 1, {"limits.max_minutes": "0.05"}, will="hang acting 150",
        words=("the environment of actor", "did not return")),
]  # fmt: skip
CASES = [(topology, way) for topology in TOPOLOGIES for way in WAYS] + [("inline", way) for way in INLINE_WAYS]
SOAKED = CASES + [("inline", way) for way in SLOW_WAYS]
SOAKED += [(topology, way) for topology in OTHER_TOPOLOGIES for way in WAYS if way.act is not None]
IN_SHORT = {"Ctrl-C twice", "SIGHUP", "SIGKILL of the run", "death of an actor", "an evaluation that raises"}


def until(holds: Callable[[], bool], run: Run) -> None:
    deadline_s = time.monotonic() + MOST_S
    while not holds() and run.process.poll() is None and time.monotonic() < deadline_s:
        time.sleep(0.01)


def until_gone(left: Callable[[], list[str]]) -> None:
    deadline_s = time.monotonic() + MOST_S
    while left() and time.monotonic() < deadline_s:
        time.sleep(0.01)


@contextmanager
def swept(run: Run) -> Iterator[None]:
    """The files of a table that stays by intention are removed."""
    try:
        yield
    finally:
        for name in tables_of(run.pid):
            (SHM / name).unlink(missing_ok=True)


def walk(way: Way, topology: str, folder: Path, rng: random.Random) -> None:
    """Plays one way and looks at what is left."""
    folder.mkdir()
    run_dir, options = folder / "run", {**OPTIONS, "topology": topology, **way.options}
    path = os.pathsep.join((str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")))
    variables = {"PYTHONPATH": path, "RELIVE_TEST_WILL": way.will.format(step=rng.randrange(1, 400)), "COLUMNS": "200"}
    env_id = options.pop("environment.env_id", WORLD)
    settings = [word for name, value in options.items() for word in ("--set", f"{name}={value}")]
    arguments = ["--env", env_id, "--run-dir", str(run_dir), *settings]
    stdout = None if way.stdout is None else Path(way.stdout)
    if way.stdout == "pipe":
        stdout = folder / "pipe"
        os.mkfifo(stdout)
        OUTPUTS.append(os.open(stdout, os.O_RDONLY | os.O_NONBLOCK))
    with run_of(folder, *arguments, variables=variables, stdout=stdout) as run:
        children: list[int] = []
        if way.act is not None:
            until(lambda: has_checkpoint(run_dir), run)
            time.sleep(rng.random() * rng.choice((0.0, 0.3, 1.5)))
            children = children_of(run.pid)
            way.act(run, run_dir, rng)
        late = {-signal.SIGTERM, -signal.SIGHUP} if way.name == "all three signals" else set()
        assert run.process.wait(MOST_S) in {way.code, *late}, run.text
        run.wait_until_gone(children, MOST_S)
        with swept(run):
            if way.leaves_table:
                assert bool(tables_of(run.pid)) == (topology != "inline")
            else:  # an actor that is still starting as the run is killed removes the table when it has attached it
                until_gone(lambda: tables_of(run.pid))
                assert tables_of(run.pid) == [], run.text
        assert not [pid for pid in children if is_alive(pid)]
        text = run.text
    for word in way.words:
        assert word in text, text
    # The one traceback that may stand there is the environment's, inside the sentence of the error.
    assert text.count("Traceback") == ("ArithmeticError" in text), text
    if way.is_kept:
        state, progress = load_checkpoint(run_dir)
        assert progress.num_sessions == 1 and state["num_updates"] >= 0
        assert (run_dir / "result.json").exists() == (way.code == 0)
        assert not list(run_dir.glob(".checkpoint.pt.*")) or way.code == -signal.SIGKILL
    elif way.act is None:
        with pytest.raises(InvalidConfig):
            load_checkpoint(run_dir)
    shutil.rmtree(folder)


@pytest.mark.forms(12)
@pytest.mark.parametrize(
    ("topology", "way"),
    [case for case in CASES if case[0] == "inline" or case[1].name in IN_SHORT],
    ids=lambda part: part.name if isinstance(part, Way) else part,
)
def test_a_run_ends_as_the_page_says(topology: str, way: Way, tmp_path: Path) -> None:
    walk(way, topology, tmp_path / "walk", random.Random(f"{topology} {way.name}"))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("topology", "way"), SOAKED, ids=lambda part: part.name if isinstance(part, Way) else part)
def test_a_run_ends_as_the_page_says_whenever_it_ends(topology: str, way: Way, tmp_path: Path) -> None:
    seed = random.randrange(2**31)
    for number in range(15):
        try:
            walk(way, topology, tmp_path / f"{number}", random.Random(seed + number))
        except BaseException:
            print(f"seed {seed + number}")  # noqa: T201
            raise
