"""Threads, forks and signals around the core: processes that end or fork inside a call, and waiters that are killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import relive
from relive.errors import ReliveError, RequestTooLarge

HEAD = """
import os, sys, threading, time
import numpy as np
import relive
def daemon(work): threading.Thread(target=work, daemon=True).start()
"""
CAST = """
class Lazy:
    def __array__(self, dtype=None, copy=None):
        time.sleep(0.05)
        return np.zeros(4)
table = relive.Table(relive.StepSpec({"a": relive.ArraySpec((4,), "float32")}), 1000)
def write():
    writer = table.writer()
    while True:
        writer.append(a=Lazy())
daemon(write)
while not len(table): time.sleep(0.01)
"""
GOES_ON = """
table = relive.Table(relive.StepSpec({"a": relive.ArraySpec((), "int64")}), 2000)
table.writer().extend(a=np.arange(1500))
drawn = []
def work():
    while True:
        try:
            with table.batches(8) as ahead:
                drawn.append(next(ahead))
        except (relive.errors.ReliveError, StopIteration):
            pass
for _ in range(4): daemon(work)
while len(drawn) < 20: time.sleep(0.01)
"""


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", HEAD + code, *arguments], capture_output=True, text=True, timeout=90, check=False
    )


@pytest.mark.parametrize("code", [CAST, GOES_ON], ids=["in a cast", "after errors"])
def test_a_process_ends_while_its_threads_run_python_below_the_core(code: str) -> None:
    """CPython ends a daemon thread that asks for the GIL by unwinding it, which no frame of C++ survives."""
    for _ in range(3):
        ended = run(code)
        assert (ended.returncode, ended.stderr) == (0, "")


def test_a_fork_beside_ragged_draws_leaves_the_child_its_memory() -> None:
    """Ragged draws take memory of the pool without the GIL. A child that inherits the mutex as taken would hang."""
    code = """
import signal
spec = relive.StepSpec({"a": relive.ArraySpec((), "int64")})
table = relive.Table(spec, 10_000, relive.Index(relive.Episodes(50, layout="ragged")))
writer = table.writer()
for _ in range(100): writer.extend(a=np.arange(9), terminated=True)
over, batch = [], table.sample(4)
def work():
    while not over: table.sample(1, columns=["a"])
threads = [threading.Thread(target=work) for _ in range(6)]
for thread in threads: thread.start()
end = time.monotonic() + 6
while time.monotonic() < end:
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        batch = None
        os._exit(0)
    if os.waitpid(pid, 0)[1]: print("hangs")
over.append(1)
for thread in threads: thread.join()
"""
    assert run(code).stdout == ""


def test_the_wait_of_a_killed_process_counts_no_more(shm_name: Any) -> None:
    spec, name = relive.StepSpec({"a": relive.ArraySpec((), "int64")}), shm_name()
    index = relive.Index(limiter=relive.MinSize(500))
    with relive.Table(spec, 1000, index, storage=relive.SharedMemory(name)) as table:
        table.writer().extend(a=np.arange(100))
        waiter = subprocess.Popen(
            [sys.executable, "-c", "import relive, sys; relive.attach(sys.argv[1]).sample(400, timeout_s=100)", name]
        )
        while not table.stats().indexes["default"].waiting_samplers:
            time.sleep(0.01)
        with pytest.raises(RequestTooLarge):
            table.set_limiter(relive.SamplesPerInsert(1.0, 10, 20.0))
        waiter.kill()
        waiter.wait()
        assert table.stats().indexes["default"].waiting_samplers == 0
        table.set_limiter(relive.SamplesPerInsert(1.0, 10, 20.0))


def test_a_fork_in_a_signal_handler_leaves_the_parents_wait_alone(shm_name: Any) -> None:
    """The child returns from the same wait, whose note is the parent's."""
    spec, name = relive.StepSpec({"a": relive.ArraySpec((), "int64")}), shm_name()
    children: list[int] = []

    def fork(*_: Any) -> None:
        pid = os.fork()
        if pid == 0:
            raise SystemExit(0)  # out of the wait
        children.append(pid)

    with relive.Table(
        spec, 1000, relive.Index(limiter=relive.MinSize(500)), storage=relive.SharedMemory(name)
    ) as table:
        before = signal.signal(signal.SIGALRM, fork)
        parent = os.getpid()
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(ReliveError):
                table.sample(4, timeout_s=1.0)
        except BaseException:
            if os.getpid() != parent:
                os._exit(0)
            raise
        finally:
            signal.signal(signal.SIGALRM, before)
        if os.getpid() != parent:
            os._exit(0)
        assert os.waitpid(children[0], 0)[1] == 0
        assert table.stats().indexes["default"].waiting_samplers == 0


@pytest.fixture
def two_sources(shm_name: Any) -> Iterator[relive.Mixture]:
    spec = relive.StepSpec({"a": relive.ArraySpec((), "int64")})
    limiter = relive.SamplesPerInsert(1.0, 10, 100.0)
    with (
        relive.Table(spec, 1000, relive.Index(limiter=limiter), storage=relive.SharedMemory(shm_name())) as paced,
        relive.Table(spec, 1000, storage=relive.SharedMemory(shm_name())) as free,
    ):
        for table in (paced, free):
            table.writer().extend(a=np.arange(50))
        mixture = relive.Mixture({"paced": 0.5, "free": 0.5}, {"paced": paced, "free": free})
        for _ in range(10):
            mixture.sample(20)
        yield mixture


def test_a_mixture_draws_beside_a_prefetch_that_waits(two_sources: relive.Mixture) -> None:
    """In the parent, at once, and in a child, which inherits a lock that no thread of the child releases."""
    with two_sources.batches(180, prefetch=2):
        time.sleep(0.2)
        for _ in range(5):
            assert two_sources.sample(2, timeout_s=0.5).num_items == 2
            pid = os.fork()
            if pid == 0:
                try:
                    os._exit(two_sources.sample(2, timeout_s=1.0).num_items != 2)
                finally:
                    os._exit(3)
            assert os.waitpid(pid, 0)[1] == 0


def test_an_interrupt_in_a_mixture_leaves_nothing_in_flight() -> None:
    class Heard(Exception):
        pass

    fired: list[bool] = []  # Python drops what a handler raises while an object is being freed: the loop ends then too

    def handler(*_: Any) -> None:
        fired.append(True)
        raise Heard

    chance = random.Random(0)
    with relive.Table(relive.StepSpec({"a": relive.ArraySpec((), "int64")}), 1000) as table:
        table.writer().extend(a=np.arange(500))
        sources = {"x": (table, "default"), "y": (table, "default")}
        mixture = relive.Mixture({"x": 0.5, "y": 0.5}, sources)
        before = signal.signal(signal.SIGALRM, handler)
        try:
            for _ in range(800):
                try:
                    fired.clear()
                    signal.setitimer(signal.ITIMER_REAL, 1e-4 + chance.random() * 1e-3)
                    while not fired:
                        mixture.sample(64)
                except Heard:
                    pass
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        mixture.close()
        assert table.stats().indexes["default"].in_flight == 0


def test_an_interrupt_in_next_leaves_batches_that_can_be_closed() -> None:
    """A handler that raises inside next() leaves no lock taken: the thread that draws ahead ends."""

    class Heard(Exception):
        pass

    armed: list[bool] = []

    def handler(*_: Any) -> None:
        if armed:
            armed.clear()
            raise Heard

    chance = random.Random(0)
    before = signal.signal(signal.SIGALRM, handler)
    try:
        with relive.Table(relive.StepSpec({"a": relive.ArraySpec((), "int64")}), 1000) as table:
            table.writer().extend(a=np.arange(500))
            for _ in range(500):
                batches = table.batches(4).__enter__()
                try:
                    armed.append(True)
                    signal.setitimer(signal.ITIMER_REAL, chance.random() * 3e-4 + 1e-6)
                    while armed:  # not for ever if Python dropped the error
                        next(batches)
                except Heard:
                    pass
                batches.close()
                thread = batches._thread
                assert thread is None or not thread.is_alive()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_handle_that_is_dropped_lets_other_threads_run(shm_name: Any) -> None:
    """The last owner closes the handle, which may wait for a lock, and holds no other thread up meanwhile."""
    spec, name = relive.StepSpec({"a": relive.ArraySpec((), "int64")}), shm_name()
    with relive.Table(spec, 1000, storage=relive.SharedMemory(name), timeout_s=2.0):
        ticks, over = [], threading.Event()

        def tick() -> None:
            while not over.wait(0.001):
                ticks.append(time.monotonic())

        thread = threading.Thread(target=tick)
        thread.start()
        for _ in range(50):
            handle = relive.attach(name)
            del handle
        over.set()
        thread.join()
        assert ticks
