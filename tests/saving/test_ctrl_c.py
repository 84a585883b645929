"""Ctrl-C while a process that ends waits for its save: the save is cancelled, and the end is a clean one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from processes.shm import needs_shared_memory

import relive
import relive.fleet

# The write of the first block says when the main thread waits at the end of the process, and goes on when it may.
HEAD = """
import multiprocessing, os, signal, sys, threading, time
import numpy as np, relive
from relive.saving.folder import Segment

append, ends = Segment.append, {"_shutdown", "_exit_function"}
main = threading.main_thread().ident

def is_ending():
    frame = sys._current_frames().get(main)
    while frame is not None and frame.f_code.co_name not in ends:
        frame = frame.f_back
    return frame is not None

def slowly(self, block):
    until = time.monotonic() + 30.0
    while not is_ending() and time.monotonic() < until:
        time.sleep(0.01)
    os.write(1, b"ends %d\\n" % os.getpid())
    while not os.path.exists(sys.argv[2]) and time.monotonic() < until:
        time.sleep(0.01)
    return append(self, block)

def add(writer):
    for k in range(50):
        writer.append(x=k)

spec = relive.StepSpec({"x": relive.ArraySpec((), "int64")})
signal.signal(signal.SIGINT, signal.default_int_handler)
"""
TABLE = (
    HEAD
    + """
table = relive.Table(spec, 1_000)
with table.writer() as writer:
    add(writer)
    table.save(sys.argv[1])
    add(writer)
Segment.append = slowly
saving = table.save(sys.argv[1], wait=False)
sys.exit(7)
"""
)
CHILD = (
    HEAD
    + """
def work():
    table = relive.Table(spec, 1_000)
    with table.writer() as writer:
        add(writer)
        table.save(sys.argv[1])
        add(writer)
    Segment.append = slowly
    saving = table.save(sys.argv[1], wait=False)
    sys.exit(7)

child = multiprocessing.get_context("fork").Process(target=work)
child.start()
child.join()
sys.exit(child.exitcode)
"""
)
SHARDS = (
    HEAD
    + """
from relive.fleet import ShardOwner, attach
names = sys.argv[3:]
owners = [
    ShardOwner(number, relive.TableConfig(spec, 1_000, relive.Index(), relive.SharedMemory(name)))
    for number, name in enumerate(names)
]
table = attach(names)
with table.writer(shard=0) as writer:
    add(writer)
    table.save(sys.argv[1])
    add(writer)
Segment.append = slowly
saving = table.save(sys.argv[1], wait=False)
sys.exit(7)
"""
)


def interrupted(code: str, folder: Path, *more: str) -> tuple[int, str]:
    """Runs the programme and sends one Ctrl-C while it waits at its end. Returns its status and what it said."""
    goes_on = folder.with_name("goes_on")
    command = [sys.executable, "-c", code, str(folder), str(goes_on), *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        word, pid = process.stdout.readline().split() or ("nothing", "0")
        assert word == "ends", process.communicate()[1]
        os.kill(int(pid), signal.SIGINT)
        time.sleep(0.5)
        goes_on.touch()
        try:
            output, problem = process.communicate(timeout=60)
        finally:
            process.kill()  # if it never ends
    return process.returncode, output.replace(f"ends {pid}\n", "") + problem


@pytest.mark.parametrize("code", [TABLE, CHILD], ids=["process", "child of multiprocessing"])
def test_ctrl_c_at_the_end_of_a_process_cancels_its_save(tmp_path: Path, code: str) -> None:
    folder = tmp_path / "save"
    assert interrupted(code, folder) == (7, "")
    assert relive.saved(folder).number == 1
    with relive.load(folder) as table:
        assert len(table) == 50 and table.save(folder).number == 2
    assert len(list((folder / "cuts").iterdir())) == 1


@pytest.mark.parametrize("code", [TABLE, CHILD], ids=["process", "child of multiprocessing"])
def test_a_second_ctrl_c_at_the_end_of_a_process_ends_it_at_once(tmp_path: Path, code: str) -> None:
    """The thread of the save is stuck for 30 s. The save before stays whole, and the folder can be saved into again."""
    folder = tmp_path / "save"
    command = [sys.executable, "-c", code, str(folder), str(tmp_path / "never")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        word, pid = process.stdout.readline().split() or ("nothing", "0")
        assert word == "ends", process.communicate()[1]
        began_s = time.monotonic()
        for _ in range(2):
            os.kill(int(pid), signal.SIGINT)
            time.sleep(0.5)
        try:
            output = process.communicate(timeout=20)
        finally:
            process.kill()  # if it never ends
    assert process.returncode == (-signal.SIGINT if code == TABLE else 256 - signal.SIGINT) and not any(output)
    assert time.monotonic() - began_s < 20.0
    assert relive.saved(folder).number == 1
    with relive.load(folder) as table:
        assert len(table) == 50 and table.save(folder).number == 2


@needs_shared_memory
def test_ctrl_c_at_the_end_of_a_process_cancels_the_parts_of_all_shards(
    tmp_path: Path, shm_name: Callable[[], str]
) -> None:
    folder = tmp_path / "save"
    assert interrupted(SHARDS, folder, shm_name(), shm_name()) == (7, "")
    described = relive.fleet.saved(folder)
    assert (described.number, described.num_steps) == (1, 50)
    assert [one.name for one in (folder / "shards" / "0" / "cuts").iterdir()] == ["1.cut"]
