"""`Child`: how a process of a run starts, hears signals, ends by a deadline, and dies with its parent."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from processes.tools import eventually

from relive.errors import InvalidConfig
from relive.train.child import START_METHOD, Child, Deaths, end_all, one_thread_for_numerics
from train.workers import echo_until_the_pipe_ends, never_end, tell_the_size

METHODS = pytest.mark.parametrize("method", ["spawn", "forkserver"])


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@METHODS
def test_a_child_ends_when_its_pipe_does_and_ignores_ctrl_c(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(START_METHOD, method)
    child = Child("relive-test", echo_until_the_pipe_ends)
    monkeypatch.setenv("RELIVE_TEST_STREAMS", "of this start")
    for start in range(2):
        child.start(child.open_pipe())
        assert child.pipe.recv() == "of this start", "environment variables are those of the start"
        assert child.pid is not None and not child.has_died and child.num_starts == start + 1
        os.kill(child.pid, signal.SIGINT)
        child.pipe.send("still here")
        assert child.pipe.recv() == "still here"
        end_all([child])
        assert child.pid is None and not child.has_died
    assert child.reap() is None and multiprocessing.active_children() == []


def test_a_child_that_dies_is_seen_and_reaped() -> None:
    child = Child("relive-test", echo_until_the_pipe_ends)
    child.start(child.open_pipe())
    child.pipe.recv()
    assert child.pid is not None
    os.kill(child.pid, signal.SIGTERM)
    assert child.pipe.poll(30), "the pipe ends with the process"
    assert child.reap() == -signal.SIGTERM and child.pid is None


@contextmanager
def alarm(seconds: int) -> Iterator[None]:
    """Ends the block with an error: it hangs."""

    def hangs(*_: object) -> None:
        raise AssertionError("a start waits for a child that is dead")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_a_start_does_not_wait_for_a_child_that_dies_before_it_reads_its_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe has room for 64 KiB of the task."""
    monkeypatch.setenv(START_METHOD, "spawn")
    child = Child("relive-test", never_end)
    monkeypatch.setattr("multiprocessing.util.spawnv_passfds", lambda *_: os.posix_spawn("/bin/false", ["false"], {}))
    with alarm(60):
        child.start(b"a task of a megabyte" * 50_000)
    assert eventually(lambda: child.has_died) and child.reap() == 1


@METHODS
def test_a_child_gets_a_task_of_any_size(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(START_METHOD, method)
    child = Child("relive-test", tell_the_size)
    before = len(os.listdir("/proc/self/fd"))
    for size in (0, 3_000_000):
        child.start((child.open_pipe(), b"x" * size))
        assert child.pipe.recv() == size
        child.reap()
    assert len(os.listdir("/proc/self/fd")) <= before + 2, "one of the fork server, one of the resource tracker"


def test_children_that_do_not_end_are_killed_at_one_deadline() -> None:
    children = [Child("relive-test", never_end) for _ in range(2)]
    for child in children:
        child.start(None)
    pids = [child.pid for child in children]
    began_s = time.monotonic()
    end_all([*children, Child("never-started", never_end)], timeout_s=0.5)
    assert 0.5 <= time.monotonic() - began_s < 5.0
    assert not any(pid is None or is_alive(pid) for pid in pids) and multiprocessing.active_children() == []


@METHODS
def test_a_child_ends_with_a_killed_parent(method: str) -> None:
    path = os.pathsep.join((str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")))
    parent = subprocess.Popen(
        [sys.executable, "-m", "train.workers"],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path, START_METHOD: method},
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert is_alive(pid)
    parent.kill()
    parent.wait(10)
    until_s = time.monotonic() + 30
    while is_alive(pid) and time.monotonic() < until_s:
        time.sleep(0.05)
    assert not is_alive(pid)
    parent.stdout.close()


def test_runs_in_two_threads_leave_the_variables_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """The block that begins first ends first."""
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    begun, ends = threading.Event(), threading.Event()

    def run() -> None:
        with one_thread_for_numerics():
            begun.set()
            assert ends.wait(60)

    other = threading.Thread(target=run)
    with one_thread_for_numerics():
        other.start()
        assert begun.wait(60)
    during = [os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")]
    ends.set()
    other.join()
    assert during == ["1", "1"]
    assert os.environ["OMP_NUM_THREADS"] == "7" and "MKL_NUM_THREADS" not in os.environ


def test_the_third_death_in_a_row_is_one_too_many() -> None:
    deaths = Deaths()
    for _ in range(2):
        deaths.count(RuntimeError)
    deaths.forget()
    for _ in range(2):
        deaths.count(RuntimeError)
    with pytest.raises(RuntimeError, match="3"):
        deaths.count(lambda number: RuntimeError(f"died {number} times"))


def test_a_daemonic_process_starts_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """multiprocessing itself raises an AssertionError; `relive.train.tune` starts a child, too."""
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)  # type: ignore[attr-defined]
    child = Child("a child", print)
    with pytest.raises(InvalidConfig, match="daemon=False"):
        child.start(None)
    assert child.pid is None
