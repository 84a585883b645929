"""What the runner of all tests says of a step that a signal ended."""

from __future__ import annotations

import importlib.util
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


@pytest.fixture
def run_tests(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    path = Path(__file__).resolve().parent.parent / "scripts" / "run_tests.py"
    spec = importlib.util.spec_from_file_location("run_tests", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "run_tests", module)  # its dataclass looks itself up there
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(sys.platform != "linux", reason="reads address 0")
def test_a_step_that_a_signal_ended_says_in_which_frame_it_came(run_tests: ModuleType) -> None:
    outcome = run_tests.run_command("dies", [sys.executable, "-c", DYING])
    assert outcome.failed == 1 and outcome.remark.startswith("exit status -11 File")
    assert "in reads_nothing" in outcome.remark and "in _bootstrap" not in outcome.remark


def test_one_that_failed_says_its_status(run_tests: ModuleType) -> None:
    assert run_tests.run_command("fails", [sys.executable, "-c", "raise SystemExit(3)"]).remark == "exit status 3"


def test_a_thread_that_is_not_pythons(run_tests: ModuleType) -> None:
    words = ["Fatal Python error: Aborted\n", "\n", "Thread 0x1 (most recent call first):\n", "  <no Python frame>\n"]
    assert run_tests.place_of_death(words) == "in a thread that is not Python's"
    assert run_tests.place_of_death([]) == ""
