"""Runs and actors in processes of their own, over loopback: whole runs, and SIGKILL of either side."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs torch")
pytest.importorskip("rich", reason="the command line needs rich")
pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from processes.shm import needs_shared_memory  # noqa: E402

from relive.train import load_profile  # noqa: E402
from train.runs import SHM, Run, run_of, tables_of  # noqa: E402

pytestmark = needs_shared_memory
SMALL = (
    "--set", "agent.network.hidden=16", "--set", "replay.min_size=200", "--set", "evaluation.num_episodes=1",
    "--set", "evaluation.num_final_episodes=1", "--set", "evaluation.stop_return=none",
    "--set", "serving.max_staleness_s=3", "--max-minutes", "3",
)  # fmt: skip


class Actor:
    """`relive act` in a process of its own."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self.log = log
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-X", "faulthandler", "-m", "relive.cli", "act", *arguments],
            stdout=log.open("w"), stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    @property
    def text(self) -> str:
        return self.log.read_text()

    def wait_for(self, pattern: str, timeout_s: float = 90.0) -> None:
        wait_for(self, pattern, timeout_s)


def wait_for(one: Actor | Run, pattern: str, timeout_s: float = 90.0) -> re.Match[str]:
    """Until its output has it."""
    ends = time.monotonic() + timeout_s
    while (found := re.search(pattern, one.text)) is None:
        assert one.process.poll() is None and time.monotonic() < ends, f"no {pattern!r} in: {one.text}"
        time.sleep(0.05)
    return found


@contextmanager
def actors_of(folder: Path, address: str, *more: str, count: int = 1) -> Iterator[list[Actor]]:
    actors = [Actor(folder / f"actor{number}.log", address, "--seed", str(number), *more) for number in range(count)]
    try:
        yield actors
    finally:
        for actor in actors:
            if actor.process.poll() is None:
                actor.process.kill()
            actor.process.wait(10)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port: int = one.getsockname()[1]
        return port


def address_of(run: Run) -> str:
    return wait_for(run, r"relive act (grpc://\S+)")[1]


@pytest.mark.thorough
def test_a_run_whose_actors_are_all_elsewhere(tmp_path: Path) -> None:
    """It waits for them, shows them, goes on when one is killed, and tells the others when it has ended."""
    folder = tmp_path / "run"
    serving = ["--actors", "0", "--serve", "grpc://127.0.0.1:0", "--run-dir", str(folder), "--max-steps", "20000"]
    with run_of(tmp_path, *serving, *SMALL, "--profile") as run:
        address = address_of(run)
        wait_for(run, r"steps 0 .* remote actors 0\b")
        with actors_of(tmp_path, address, count=2) as (first, second):
            wait_for(run, r"updates [1-9].*remote actors 2\b")
            first.process.kill()
            wait_for(run, r"steps [1-9].*remote actors 1\b")
            assert run.process.wait(180) == 0, run.text
            assert second.process.wait(60) == 0, second.text
            said = re.search(r"the run has ended: ([\d,]+) steps", second.text)
            assert said is not None, second.text
        assert tables_of(run.pid) == []
    result = json.loads((folder / "result.json").read_text())
    assert "made 100% of the steps" in str(load_profile(folder))
    assert result["num_updates"] > 300 and 20_000 <= result["num_steps"] < 30_000
    assert int(said[1].replace(",", "")) < result["num_steps"], "the first one's steps count as well"


@pytest.mark.thorough
def test_beside_actors_of_its_own(tmp_path: Path) -> None:
    serving = ["--actors", "1", "--serve", "grpc://127.0.0.1:0/mine", "--run-dir", str(tmp_path / "run")]
    with run_of(tmp_path, *serving, *SMALL, "--max-steps", "200000") as run:
        address = address_of(run)
        assert address.endswith("/mine")
        with actors_of(tmp_path, address, "--envs", "2") as (actor,):
            actor.wait_for(r"2 environments, seed 0")
            wait_for(run, r"updates [1-9].*remote actors 1\b")
            actor.process.send_signal(signal.SIGINT)
            assert actor.process.wait(30) == 130, actor.text
            assert "stopped: " in actor.text and "Traceback" not in actor.text
            wait_for(run, r"updates [1-9].*remote actors 0\b")
        os.killpg(run.pid, signal.SIGINT)
        assert run.process.wait(60) == 130, run.text
        assert tables_of(run.pid) == []


def test_a_learner_that_is_killed_and_resumed(tmp_path: Path) -> None:
    """Actors wait for it, with patience, and act for the resumed one; those without give up in time."""
    folder, port = tmp_path / "run", free_port()
    serving = ["--actors", "0", "--serve", f"grpc://127.0.0.1:{port}", "--run-dir", str(folder)]
    address = f"grpc://127.0.0.1:{port}/run"
    with actors_of(tmp_path, address, "--patience", "120") as (patient,):
        with run_of(tmp_path, *serving, *SMALL) as run:
            wait_for(run, r"updates [1-9].*remote actors 1\b")
            os.kill(run.pid, signal.SIGKILL)
            run.process.wait(30)
            assert len(tables_of(run.pid)) == 1, "nobody else was attached: `relive rm --all-unused` removes it"
            (SHM / tables_of(run.pid)[0]).unlink()
        patient.wait_for("no link to the run|nothing heard")
        impatient = Actor(tmp_path / "impatient.log", address, "--patience", "1")
        assert impatient.process.wait(60) == 1 and "gave no answer" in impatient.text
        more = ["--resume", str(folder), "--max-steps", "6000"]
        with run_of(tmp_path, *more, log="log2") as run:
            patient.wait_for("acting again for")
            assert run.process.wait(180) == 0, run.text
        assert patient.process.wait(60) == 0, patient.text
        assert "2 visits" in patient.text
    result = json.loads((folder / "result.json").read_text())
    assert result["num_sessions"] == 2 and result["num_steps"] >= 6000


def test_two_ctrl_c_end_an_actor_whose_run_hangs(tmp_path: Path) -> None:
    address = f"grpc://127.0.0.1:{free_port()}"
    with run_of(tmp_path, "--actors", "0", "--serve", address, *SMALL) as run:
        with actors_of(tmp_path, f"{address}/run") as (actor,):
            wait_for(run, r"remote actors 1\b")
            os.kill(run.pid, signal.SIGSTOP)
            try:
                time.sleep(1.0)  # until rows are under way that get no answer
                for _ in range(2):
                    actor.process.send_signal(signal.SIGINT)
                    time.sleep(0.3)
                assert actor.process.wait(60) == 130, actor.text
            finally:
                os.kill(run.pid, signal.SIGCONT)
        os.killpg(run.pid, signal.SIGINT)
        assert run.process.wait(60) == 130, run.text


def test_what_the_command_refuses(tmp_path: Path) -> None:
    for arguments, words in (
        (["train", "dqn", "--actors", "0", "--run-dir", str(tmp_path / "a")], "serving.address"),
        (["train", "dqn", "--serve", "nowhere", "--run-dir", str(tmp_path / "b")], "grpc://host:port"),
        (["act", "nowhere"], "grpc://host:port/name"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "relive.cli", *arguments], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 1 and words in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
