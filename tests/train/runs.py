"""Runs of the command line in processes of their own: starting them, what they leave, and whether it is alive."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

SHM = Path("/dev/shm")


def tables_of(pid: int) -> list[str]:
    return [path.name for path in SHM.glob(f"relive-train-{pid}-*")]


def children_of(pid: int) -> list[int]:
    """Actor processes; the tracker that multiprocessing keeps beside them is not one."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            command = (stat.parent / "cmdline").read_text()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z" and "spawn_main" in command:
            found.append(int(stat.parent.name))
    return found


def has_checkpoint(run_dir: Path) -> bool:
    """Whether the run has a checkpoint: with its table or without."""
    return (run_dir / "checkpoint.pt").exists() or (run_dir / "save" / "CURRENT").exists()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Run:
    """A run in a process of its own, in a group of its own as a terminal would have it."""

    def __init__(
        self, agent: str, arguments: list[str], log: Path, variables: Mapping[str, str] | None = None,
        stdout: Path | None = None,
    ) -> None:  # fmt: skip
        self.log = log
        log.write_text("")
        with log.open("a") as errors, (stdout or log).open("a") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-u", "-m", "relive.cli", "train", agent, *arguments],
                stdout=output, stderr=errors, start_new_session=True, env={**os.environ, **(variables or {})},
            )  # fmt: skip
        self.pid = self.process.pid

    @property
    def text(self) -> str:
        return self.log.read_text()

    def wait_until_it_learns(self, timeout_s: float = 60.0) -> None:
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            assert self.process.poll() is None, self.text
            if re.search(r"updates [1-9]", self.text):
                return
            time.sleep(0.1)
        raise AssertionError(f"no update within {timeout_s} s: {self.text}")

    def wait_until_gone(self, pids: list[int], timeout_s: float = 15.0) -> None:
        deadline_s = time.monotonic() + timeout_s
        while any(is_alive(pid) for pid in pids) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        assert not [pid for pid in pids if is_alive(pid)]


@contextmanager
def run_of(
    tmp_path: Path, *arguments: str, log: str = "log", agent: str = "dqn",
    variables: Mapping[str, str] | None = None, stdout: Path | None = None,
) -> Iterator[Run]:  # fmt: skip
    run = Run(agent, list(arguments), tmp_path / log, variables, stdout)
    try:
        yield run
    finally:
        if run.process.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
            run.process.wait(10)
        for name in tables_of(run.pid):
            (SHM / name).unlink(missing_ok=True)
