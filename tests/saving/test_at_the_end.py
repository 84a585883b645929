"""Saves and loads at the end of the interpreter, which starts no thread and loads no pool of threads."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from relive.saving.helping import HelpingThread

PROGRAM = """
import atexit, sys
import numpy as np
import relive
import relive.checkpoint

way, folder = sys.argv[1:]
table = relive.Table(relive.StepSpec({"a": relive.ArraySpec((100,), "int64")}), 20_000)
with table.writer() as writer:
    writer.extend(a=np.arange(10_000)[:, None].repeat(100, 1), truncated=True)
if way == "load":
    table.save(folder)

@atexit.register
def at_the_end():
    if way == "save":
        table.save(folder)
    elif way == "thread":
        table.save(folder, wait=False).wait()
    elif way == "checkpoint":
        relive.checkpoint.save(folder, table=table, learner={"updates": 3})
    with relive.load(folder) as copy:
        keys = np.concatenate(list(copy.keys()))
        print(int(copy.gather_steps(keys)["a"][:, 99].sum()))
"""


@pytest.mark.parametrize("way", ["save", "thread", "checkpoint", "load"])
def test_a_handler_of_atexit_saves_and_loads(way: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, way, str(tmp_path / "save")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr, done.returncode) == (f"{sum(range(10_000))}\n", "", 0)


def test_a_call_that_got_no_thread_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system has no thread at the first call, and has one at the second."""
    start, refused, made = threading.Thread.start, [True], []

    def starts(thread: threading.Thread) -> None:
        if refused and refused.pop():
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", starts)
    with HelpingThread("relive-test") as helper:
        for number in range(3):
            helper.submit(made.append, number).result(30.0)
    assert made == [0, 1, 2]
