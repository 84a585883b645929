"""A warm process (warm.py) beside a fresh one: neither relive nor the process that started it sees a difference."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import warm

pytest.importorskip("torch", reason="there is nothing to warm up without torch")
pytestmark = [
    pytest.mark.skipif(not warm.can_be_warm(), reason="processes are started fresh here"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
LOOK = """
import json, os, signal, sys
from pathlib import Path
def open_files():
    return sorted(int(one) for one in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{one}"))
def look():
    return {
        "parent": os.getppid(), "group": os.getpgrp() == os.getpid(), "directory": os.getcwd(), "argv": sys.argv,
        "line": Path("/proc/self/cmdline").read_bytes().rstrip(b"\\0").decode().split("\\0"), "files": open_files(),
        "mask": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))),
        "handlers": [str(signal.getsignal(one)) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)],
        "ours": sorted(name for name in sys.modules if name.startswith("relive")), "name": __name__,
        "told": os.environ.get("TOLD"), "threads": len(os.listdir("/proc/self/task")), "orig": sys.orig_argv,
    }
"""
exec(LOOK)


@pytest.fixture(params=["warm", "fresh"])
def warmth(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "warm":
        request.getfixturevalue("processes_start_warm_here")
    yield request.param


@pytest.fixture
def processes_start_warm_here(warm_client: Any) -> Iterator[None]:
    assert warm_client is not None, "the server ended, or has more threads than one"
    with warm.diverted(warm_client):
        yield


def started(code: str, *words: str, **options: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, "RELIVE_TEST_WARM": "1", "TOLD": "this"}
    return subprocess.Popen([sys.executable, "-c", code, *words], text=True, env=environment, **options)


def is_torch_there(pid: int) -> bool:
    return "libtorch" in Path(f"/proc/{pid}/maps").read_text()


def test_a_programme_has_what_it_was_given(warmth: str, tmp_path: Path) -> None:
    code = (
        LOOK + "print(json.dumps(look())); sys.stdout.flush(); text = sys.stdin.read(); print(text[::-1]); sys.exit(7)"
    )
    pipe, end = os.pipe()
    process = started(
        code, "word", stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path, start_new_session=True,
        pass_fds=[end],
    )  # fmt: skip
    assert process.stdout is not None
    seen = json.loads(process.stdout.readline())
    assert is_torch_there(process.pid) == (warmth == "warm")
    rest, _ = process.communicate("abc")
    assert (rest, process.returncode) == ("cba\n", 7)
    os.close(end), os.close(pipe)
    line = [sys.executable, "-c", code, "word"]
    expected = {"parent": os.getpid(), "group": True, "directory": str(tmp_path), "argv": ["-c", "word"], "line": line}
    expected |= {"mask": [], "ours": [], "name": "__main__", "told": "this", "orig": line, "threads": 1}
    assert {name: seen[name] for name in expected} == expected
    others = set(seen["files"]) - {0, 1, 2, end}
    assert {0, 1, 2, end} <= set(seen["files"]) and len(others) == (warmth == "warm"), "its socket to a server"
    # A process that ignores Ctrl-C passes that on. A shell has its background processes ignore it.
    ignores = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    assert seen["handlers"] == ["1" if ignores else "<built-in function default_int_handler>", "0", "1"]


def test_a_killed_programme_and_one_that_raises(warmth: str) -> None:
    process = started("import time; print('up', flush=True); time.sleep(60)", stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    process.kill()
    assert process.wait(20) == -signal.SIGKILL and process.stdout.read() == ""
    done = started("import atexit; atexit.register(print, 'end'); raise ValueError('loud')", stdout=subprocess.PIPE,
                   stderr=subprocess.PIPE)  # fmt: skip
    out, error = done.communicate()
    assert done.returncode == 1 and out == "end\n" and error.endswith("ValueError: loud\n")


def test_a_module_is_run_as_main(warmth: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import sys\nif __name__ == '__main__': print(sys.argv)\n")
    command = [sys.executable, "-u", "-m", "mine", "x"]
    environment = {**os.environ, "RELIVE_TEST_WARM": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.stdout == f"['{tmp_path}/mine.py', 'x']\n", done.stderr


def look_and_wait(pipe: Any) -> None:
    pipe.send(look())  # type: ignore[name-defined]  # noqa: F821
    pipe.recv()


def test_a_child_of_multiprocessing(warmth: str) -> None:
    context = multiprocessing.get_context("spawn")
    mine, its = context.Pipe()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        child = context.Process(target=look_and_wait, args=(its,), daemon=True)
        child.start()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
    its.close()
    assert mine.poll(60)
    seen = mine.recv()
    assert seen["parent"] == os.getpid() and seen["mask"] == [signal.SIGUSR1] and not seen["group"]
    assert seen["line"][0] == sys.executable and "--multiprocessing-fork" in seen["line"]
    assert seen["directory"] == os.getcwd() and seen["name"] == __name__
    child.kill()
    child.join(20)
    assert child.exitcode == -signal.SIGKILL
    with pytest.raises(EOFError):
        mine.recv()


def test_a_programme_starts_warm_processes_itself(warmth: str) -> None:
    """They are its children, and its group has the server that starts them: a signal to the group ends all."""
    code = (
        "import multiprocessing, os, signal, time\nif __name__ == '__main__':\n"
        "    child = multiprocessing.get_context('spawn').Process(target=time.sleep, args=(60,), daemon=True)\n"
        "    child.start(); print(child.pid, flush=True); time.sleep(60)\n"
    )
    process = started(code, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    parent = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1]
    assert int(parent) == process.pid and is_torch_there(process.pid) == (warmth == "warm")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(20)
    assert process.stdout.read() == ""  # no process of the group has the other end


def test_which_programmes_are_warm() -> None:
    python = sys.executable
    assert warm.is_warm([python, "-u", "-m", "relive.cli", "train", "dqn"], {})
    assert warm.is_warm([python, "-c", "pass"], {"RELIVE_TEST_WARM": "1"})
    for command in (
        [python, "-c", "pass"], [python, "-m", "relive.cli", "ls"], [python, "-E", "-m", "relive.cli", "train"],
        ["python3", "-m", "relive.cli", "train"], [python], [],
    ):  # fmt: skip
        assert not warm.is_warm(command, {})


@pytest.mark.timeout(60)
def test_the_server_ends_although_a_fork_has_its_socket() -> None:
    """A worker of a loader that nobody has collected yet is such a fork."""
    fork = 0
    try:
        with warm.warm_server():
            fork = os.fork()
            if fork == 0:
                time.sleep(120)
                os._exit(0)
    finally:
        os.kill(fork, signal.SIGKILL)
        os.waitpid(fork, 0)
