"""Ends of a process that did not close what it had: its own exit status, and no table left behind."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import relive
from processes.shm import needs_shared_memory, shared_files
from processes.tools import children

pytestmark = needs_shared_memory

HEAD = """
import atexit, os, sys, threading, time
import numpy as np
import relive
name = sys.argv[1]
spec = relive.StepSpec({"a": relive.ArraySpec((), "float32")})
index = relive.Index(limiter=relive.MinSize(10))
table = relive.Table(spec, 100, index, storage=relive.SharedMemory(name), timeout_s=60.0)
writer = table.writer()
def thread(call, *arguments):
    threading.Thread(target=call, args=arguments, daemon=True).start()
def again(call, *arguments):
    while True:
        call(*arguments)
"""
WAITS = (
    HEAD
    + """
for _ in range(3):
    thread(table.sample, 4)
time.sleep(0.1)
sys.exit(7)
"""
)
CALLS_WITHOUT_END = (
    HEAD
    + """
writer.extend(a=np.zeros(50))
for _ in range(2):
    thread(again, table.sample, 4)
    thread(again, table.stats)
def write():
    with table.writer() as own:
        while True:
            own.append(a=1.0)
thread(write)
time.sleep(0.1)
sys.exit(7)
"""
)
READS_AHEAD = (
    HEAD
    + """
writer.extend(a=np.zeros(50))
batches = table.batches(4).__enter__()
next(batches)
thread(again, next, batches)
other = relive.attach(name, read_only=True)
thread(other.sample, 4)
time.sleep(0.1)
sys.exit(7)
"""
)
SAYS_GOODBYE = (
    HEAD
    + """
writer.extend(a=np.zeros(50))
def goodbye():
    assert len(table) == 50, "handlers of the program come before the table is closed"
atexit.register(goodbye)
thread(relive.attach(name).writer().append)  # dies at once, in its own thread
sys.exit(7)
"""
)
MANY_HANDLES = (
    HEAD
    + """
handles = [relive.attach(name) for _ in range(20)]
del handles[::2]
writer.append(a=1.0)
handles.append(handles)  # a cycle: only the end of the process finds them
sys.exit(7)
"""
)


@pytest.mark.parametrize(
    "program",
    [WAITS, CALLS_WITHOUT_END, READS_AHEAD, SAYS_GOODBYE, MANY_HANDLES],
    ids=["waits", "calls without end", "reads ahead", "says goodbye", "many handles"],
)
def test_a_process_exits_with_its_own_status(shm_name: Any, program: str) -> None:
    """Whatever its daemon threads are in the middle of; the shared table goes with the last that was attached."""
    for _ in range(4):
        name = shm_name()
        done = subprocess.run([sys.executable, "-c", program, name], capture_output=True, text=True, timeout=60)
        assert done.returncode == 7, (done.returncode, done.stderr)
        assert "terminate" not in done.stderr and "Fatal" not in done.stderr, done.stderr
        assert not shared_files(name)


kept: list[Any] = []  # what lives as long as the process


def keep_open(pipe: Any, name: str) -> None:
    table = relive.attach(name)
    kept.extend([table, table.writer(), table.batches(1).__enter__()])
    pipe.send("attached")
    if pipe.recv() == "fail":
        raise RuntimeError("as it was told to")


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_child_that_ends_last(shm_name: Any, method: str) -> None:
    """multiprocessing leaves its children by os._exit, past the interpreter's own end."""
    name = shm_name()
    spec = relive.StepSpec({"a": relive.ArraySpec((), "float32")})
    with children() as start:
        with relive.Table(spec, 100, storage=relive.SharedMemory(name)):
            child = start(method, keep_open, name)
            child.answer()
        assert shared_files(name)
        child.tell("end")
        child.join()
    assert not shared_files(name)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_child_that_fails_last(shm_name: Any, method: str) -> None:
    name = shm_name()
    spec = relive.StepSpec({"a": relive.ArraySpec((), "float32")})
    with children() as start:
        with relive.Table(spec, 100, storage=relive.SharedMemory(name)):
            child = start(method, keep_open, name)
            child.answer()
        child.tell("fail")
        child.process.join(30)
        assert child.process.exitcode == 1
    assert not shared_files(name)


OPEN_TABLES = {
    "attached": "kept = relive.attach(name)",
    "over a mapped shard": "kept = attach([owned()])",
    "over a served shard": "kept = attach([served()])",
    "served": "kept = connect(served())",
    "closed by its maker": "kept = relive.attach(name); writer.close(); table.close()",
}
OPENS = """
from relive.config.table_config import TableConfig
from relive.fleet import ShardOwner, attach
from relive.service import connect, serve
def owned():
    global owner
    owner = ShardOwner(0, TableConfig(spec, 100, {"default": relive.Index()}, relive.SharedMemory(name + "o")))
    return name + "o"
def served():
    global server
    server = serve({"t": table}, "grpc://127.0.0.1:0")
    return server.address + "/t"
"""
USES = """
with kept.writer() as one:
    one.extend(a=np.zeros(50))
ahead = kept.batches(4, prefetch=2).__enter__()
next(ahead)
other = kept.writer()
"""


@pytest.mark.parametrize("opened", OPEN_TABLES)
def test_what_is_open_at_the_end_prints_no_warning(shm_name: Any, opened: str) -> None:
    pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")
    name = shm_name()
    head = HEAD.replace("limiter=relive.MinSize(10)", "")  # a shard has no limiter of its own
    program = f"{head}{OPENS}{OPEN_TABLES[opened]}{USES}"
    command = [sys.executable, "-W", "always", "-X", "dev", "-c", program, name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    assert not shared_files(name)
