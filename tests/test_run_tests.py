"""The runner of all tests: its words about a step that a signal ended, and the backtraces that it prints then."""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
import shutil
import signal
import sys
from pathlib import Path
from types import ModuleType

import pytest

DYING = """
import ctypes, faulthandler, threading, time
faulthandler.enable()
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
def reads_nothing(): ctypes.string_at(0)
reads_nothing()
"""
# Its second thread is of the C library alone, and reads the length of a text at address 0.
DYING_OUTSIDE_PYTHON = """
import ctypes, faulthandler, time
faulthandler.enable()
library = ctypes.CDLL(None)
thread = ctypes.c_ulong()
library.pthread_create(ctypes.byref(thread), None, library.strlen, None)
time.sleep(60)
"""
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads address 0, and looks for a core dump")


@pytest.fixture
def crashes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The module, which keeps the core dumps of this test in a folder of the test."""
    module = loaded("crashes", monkeypatch)
    monkeypatch.setattr(module, "CORES", tmp_path / "cores")
    return module


@pytest.fixture
def run_tests(monkeypatch: pytest.MonkeyPatch, crashes: ModuleType) -> ModuleType:
    return loaded("run_tests", monkeypatch)


def loaded(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    path = Path(__file__).resolve().parent.parent / "scripts" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)  # its dataclass looks itself up there
    spec.loader.exec_module(module)
    return module


def as_if(crashes: ModuleType, monkeypatch: pytest.MonkeyPatch, folder: Path, pattern: str, uses_pid: int = 0) -> None:
    """Has the module see a kernel with this pattern for core dumps."""
    folder.mkdir()
    (folder / "core_pattern").write_text(pattern + "\n")
    (folder / "core_uses_pid").write_text(f"{uses_pid}\n")
    monkeypatch.setattr(crashes, "SYSTEM", folder)


@needs_linux
def test_a_step_that_a_signal_ended_says_in_which_frame_it_came(run_tests: ModuleType, tmp_path: Path) -> None:
    outcome = run_tests.run_command("dies", [sys.executable, "-c", DYING], folder=tmp_path)
    assert outcome.failed == 1 and outcome.remark.startswith("exit status -11 File")
    assert "in reads_nothing" in outcome.remark and "in _bootstrap" not in outcome.remark


@needs_linux
def test_a_step_that_hangs_ends_with_the_processes_that_it_started(
    run_tests: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The process below it would keep its output open."""
    monkeypatch.setattr(run_tests, "LONGEST_S", 1.0)
    monkeypatch.setattr(run_tests, "GRACE_S", 1.0)
    below = "import time; time.sleep(250)"
    program = (
        "import faulthandler, subprocess, sys; faulthandler.enable(); "
        f"subprocess.run([sys.executable, '-c', {below!r}])"
    )
    outcome = run_tests.run_command("hangs", [sys.executable, "-c", program], folder=tmp_path)
    assert outcome.failed == 1 and outcome.remark.startswith(f"exit status -{int(signal.SIGABRT)}")
    assert "subprocess.py" in capfd.readouterr().out and outcome.seconds < 60.0


@needs_linux
def test_a_death_in_a_thread_of_c_prints_a_backtrace_of_every_thread(
    run_tests: ModuleType, crashes: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Or the log says which part of that the machine lacks."""
    (tmp_path / "step").mkdir()
    outcome = run_tests.run_command("dies", [sys.executable, "-c", DYING_OUTSIDE_PYTHON], folder=tmp_path / "step")
    assert outcome.failed == 1 and outcome.remark.startswith("exit status -11 in a thread that is not Python's")
    log = capfd.readouterr().out
    pattern = crashes.core_pattern()
    if not pattern or pattern[0] in "|/":
        pytest.skip(f"core dumps go elsewhere on this machine: kernel.core_pattern is {pattern!r}")
    (kept,) = (tmp_path / "cores").iterdir()
    assert f"core dump {kept}" in log and not list((tmp_path / "step").iterdir())
    if shutil.which("gdb") is None:
        assert "no backtrace: gdb is not installed" in log
        return
    assert re.search(r"^Thread 1 [^\n]*\n(?:#\d[^\n]*\n)*#\d+ [^\n]*strlen", log, re.MULTILINE)
    assert re.search(r"^Thread 2 [^\n]*\n(?:[^\n]+\n)*#\d+ [^\n]*sleep", log, re.MULTILINE)
    assert "strlen" in outcome.remark.partition("; native frame: ")[2]


@needs_linux
def test_a_child_that_a_signal_ended_is_explained_although_the_step_passed(
    run_tests: ModuleType, crashes: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if crashes.core_pattern()[:1] in ("", "|", "/"):
        pytest.skip("core dumps go elsewhere on this machine")
    (tmp_path / "step").mkdir()
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {DYING!r}])"
    outcome = run_tests.run_command("passes", [sys.executable, "-c", program], folder=tmp_path / "step")
    assert (outcome.passed, outcome.failed) == (1, 0) and "a signal killed a process" in outcome.remark
    assert "tests/test_run_tests.py::test_a_child_that_a_signal_ended" in outcome.remark
    log = capfd.readouterr().out
    assert "core dump" in log
    if "Frames of Python" in log:
        assert "in reads_nothing" in log.partition("Frames of Python")[2]


@pytest.mark.parametrize(
    ("pattern", "uses_pid", "status", "reason"),
    [
        ("|/usr/share/apport/apport -p%p", 0, -signal.SIGSEGV, "kernel.core_pattern is '|/usr/share/apport"),
        ("core", 0, -signal.SIGSEGV, "no core dump 'core' in"),
        ("core", 1, 128 + signal.SIGABRT, "SIGABRT, no backtrace: no core dump 'core.*' in"),
        ("core", 0, -signal.SIGKILL, "SIGKILL, no backtrace: this signal makes no core dump"),
        ("core", 0, 1, ""),
    ],
)
def test_what_is_missing_for_a_backtrace_is_said(
    crashes: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    pattern: str,
    uses_pid: int,
    status: int,
    reason: str,
) -> None:
    as_if(crashes, monkeypatch, tmp_path / "system", pattern, uses_pid)
    (tmp_path / "core").write_text("a file of that name which is no core dump")
    text, place = crashes.Watch(tmp_path).report(status)
    assert reason in text and bool(text) == bool(reason) and place == ""


def test_a_core_dump_without_gdb_says_so(crashes: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    as_if(crashes, monkeypatch, tmp_path / "system", str(tmp_path / "dump.%e.%p"))
    monkeypatch.setenv("PATH", str(tmp_path))
    watch = crashes.Watch()
    head = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x04\x00"
    (tmp_path / "dump.python.17").write_bytes(head)
    os.utime(tmp_path / "dump.python.17")
    text, _ = watch.report(-signal.SIGSEGV)
    assert "gdb is not installed" in text and str(tmp_path / "cores") in text


def test_old_core_dumps_make_room(crashes: ModuleType, tmp_path: Path) -> None:
    kept = []
    for number in range(crashes.KEPT + 2):
        (tmp_path / f"core.{number}").write_text("")
        kept.append(crashes._keep(tmp_path / f"core.{number}"))
        os.utime(kept[-1], (number, number))
    assert sorted(path.name for path in (tmp_path / "cores").iterdir()) == sorted(path.name for path in kept[2:])


def test_one_that_failed_says_its_status(run_tests: ModuleType) -> None:
    assert run_tests.run_command("fails", [sys.executable, "-c", "raise SystemExit(3)"]).remark == "exit status 3"


def test_a_thread_that_is_not_pythons(run_tests: ModuleType) -> None:
    words = ["Fatal Python error: Aborted\n", "\n", "Thread 0x1 (most recent call first):\n", "  <no Python frame>\n"]
    assert run_tests.place_of_death(words) == "in a thread that is not Python's"
    assert run_tests.place_of_death([]) == ""


# ---- what is run -----------------------------------------------------------------------------------------------------


def test_every_path_of_a_lane_is_there(run_tests: ModuleType) -> None:
    """Else its tests would run in the first lane, or in none of another Python."""
    lanes = (run_tests.TRAINING, run_tests.PROCESSES, run_tests.FLEETS, run_tests.KERNELS)
    for path in (*itertools.chain(*lanes), *run_tests.CORE_TESTS, *run_tests.OTHER_TESTS, *run_tests.PORTABLE_TESTS):
        assert (run_tests.ROOT / path).exists(), path


@pytest.mark.parametrize(("is_all", "marks"), [(False, "not soak and not thorough"), (True, "not soak")])
def test_tests_before_a_release_are_all(
    run_tests: ModuleType, monkeypatch: pytest.MonkeyPatch, is_all: bool, marks: str
) -> None:
    monkeypatch.delenv("RELIVE_TEST_ALL", raising=False)
    if is_all:
        monkeypatch.setenv("RELIVE_TEST_ALL", "1")
    asked: list[list[str]] = []
    monkeypatch.setattr(run_tests, "run_command", lambda name, command, *more: asked.append(command))
    monkeypatch.setattr(run_tests, "set_up", lambda environment: run_tests.Outcome(environment.name, passed=1))
    run_tests.pytest_step("some", "python", ["tests/unit"])
    assert asked.pop() == ["python", "-m", "pytest", "-q", "-m", marks, "tests/unit"]
    beside = marks if is_all else f"{marks} and not core_alone"
    for environment, tests in (
        (run_tests.other_python("3.12"), run_tests.OTHER_TESTS),
        (run_tests.portable(), run_tests.PORTABLE_TESTS),
    ):
        run_tests.made_and_tested(environment)
        command = asked.pop()
        assert command[command.index("-q") + 2] == beside
        assert command[command.index("no:cacheprovider") + 1 :] == (run_tests.CORE_TESTS if is_all else tests)


def test_a_python_that_is_not_there_is_named_with_the_reason(run_tests: ModuleType) -> None:
    outcome = run_tests.made_and_tested(run_tests.other_python("3.99"))
    assert (outcome.passed, outcome.failed, outcome.skipped) == (0, 0, 1)
    assert outcome.name.endswith("Python 3.99") and "Python 3.99: no usable interpreter found" in outcome.remark
