"""Killed processes: an actor is started again, and actors end in a sentence when their learner dies."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import relive
import relive.checkpoint

for _module in ("torch", "gymnasium", "rich", "tensorboard", "matplotlib"):
    pytest.importorskip(_module, reason=f"the examples need {_module}")

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 250.0


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Waits until a condition is true. A process that ends early fails the test with its output."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "the run stands still"
        time.sleep(0.05)


def actors_of(pid: int) -> set[int]:
    """The actor processes of a learner."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()}


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_an_actor_and_then_the_learner_are_killed(tmp_path: Path) -> None:
    options = ["--no-bar", "--run-dir", str(tmp_path), "--save-s", "0.5", "--num-actors", "2"]
    command = [sys.executable, str(ROOT / "examples" / "impala.py"), *options, "--steps", "10000000"]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        current = tmp_path / "save" / "CURRENT"
        wait_for(current.exists, run)
        before = actors_of(run.pid)
        assert len(before) == 2
        killed = min(before)
        os.kill(killed, signal.SIGKILL)
        wait_for(lambda: len(actors_of(run.pid) - {killed}) == 2, run)
        saved = current.read_text()
        wait_for(lambda: current.read_text() != saved, run)  # learning goes on

        actors = actors_of(run.pid)
        run.kill()
        said, _ = run.communicate(timeout=DEADLINE_S)  # the actors own the other end of the pipe until they end
        assert said.count("the learner has ended, so this actor ends too") == len(actors), said
        for table in relive.list_tables():  # a killed program leaves its table, which no process uses
            if str(run.pid) in table.name:
                assert table.num_attached == 0
                relive.remove(table.name)
    finally:
        run.kill()

    step = relive.checkpoint.load_learner(tmp_path / "save")["run"]["steps"]
    result = importlib.import_module("impala").main([*options, "--resume", "--steps", str(step + 512)])
    assert step < result.steps and result.ending == "steps"


def refuses(number: int) -> None:
    """The body of an actor that raises."""
    raise ValueError(f"actor {number} has a fault")


def test_an_actor_that_raises_ends_the_run() -> None:
    module = importlib.import_module("actors")
    with module.Actors(refuses, 1, ()) as started:
        deadline = time.monotonic() + DEADLINE_S
        with pytest.raises(RuntimeError, match="actor 0 ended with exit code 1"):
            while time.monotonic() < deadline:
                started.watch()
                time.sleep(0.05)


def waits(number: int) -> None:
    """The body of an actor that acts until a signal ends it."""
    signal.pause()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_actor_that_a_signal_ends_is_started_again(number: signal.Signals) -> None:
    module = importlib.import_module("actors")
    with module.Actors(waits, 1, ()) as started:
        before = started.pids[0]
        deadline = time.monotonic() + DEADLINE_S
        while not handles(before, signal.SIGTERM) and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(before, number)
        while started.num_restarts == 0 and time.monotonic() < deadline:
            started.watch()
            time.sleep(0.05)
        assert started.num_restarts == 1 and started.pids[0] != before


def test_ctrl_c_does_not_end_an_actor_that_starts() -> None:
    module = importlib.import_module("actors")
    with module.Actors(waits, 1, ()) as started:
        os.kill(started.pids[0], signal.SIGINT)  # as a terminal does to the whole group
        deadline = time.monotonic() + DEADLINE_S
        while not handles(started.pids[0], signal.SIGTERM) and time.monotonic() < deadline:
            started.watch()
            time.sleep(0.05)
        assert started.num_restarts == 0


def handles(pid: int, number: signal.Signals) -> bool:
    """True if a process has a handler for a signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = status.partition("SigCgt:")[2].split()[0]
    return bool(int(caught, 16) >> (number - 1) & 1)
