"""Handles of the service that end in every way leave nothing behind, on neither side."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from processes.shm import needs_shared_memory

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from fleet.owning import Owners

import relive
from relive import errors
from relive.fleet import attach
from relive.service import Streaming

pytestmark = needs_shared_memory

SPEC = relive.StepSpec({"a": relive.ArraySpec((), "int64")})
COUNT = 1000 if os.environ.get("RELIVE_SOAK") else 25


@pytest.fixture
def owners() -> Iterator[Owners]:
    one = Owners()
    yield one
    one.close()


@pytest.fixture
def address(owners: Owners, shm_name: Any) -> str:
    place = owners.own(0, relive.TableConfig(SPEC, 4000, None, relive.SharedMemory(shm_name()), timeout_s=5.0))
    with relive.connect(place) as table, table.writer() as writer:
        writer.extend(a=np.arange(500), truncated=True)
    return place


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def settles(what: Callable[[], Any], expected: Callable[[Any], bool]) -> Any:
    """The value once it is as expected; after ten seconds, whatever it is."""
    ends = time.monotonic() + 10.0
    while not expected(told := what()) and time.monotonic() < ends:
        gc.collect()
        time.sleep(0.02)
    return told


def counts(owners: Owners, address: str) -> tuple[int, int, int, int]:
    """Descriptors of both sides, threads here, items in flight."""
    in_flight = owners.ask("in_flight", address)
    return descriptors(os.getpid()), descriptors(owners.process.pid), threading.active_count(), in_flight


def use(address: str, kind: str) -> list[Any]:
    """A handle of this kind in use: all that a program would have of it."""
    if kind == "attach":
        table: Any = attach([address], path="service", timeout_s=5.0)
        return [table, table.sample(4)]
    table = relive.connect(address, timeout_s=5.0)
    if kind == "connect":
        return [table, table.sample(4)]
    if kind == "held":
        held = table.held_draws()
        held.draw(relive.core.request.DrawRequest(0, 4), 5.0)
        return [table, held]
    if kind == "parameters":
        table.parameters.pull(timeout_s=0.0)
        return [table]
    writer = table.writer(streaming=Streaming()) if kind == "streaming" else table.writer()
    writer.append(a=1, truncated=True)
    return [table, writer]


KINDS = ("connect", "attach", "held", "parameters", "writer", "streaming")


def ended_by_close(address: str, kind: str) -> None:
    table, *_ = use(address, kind)
    table.close()


def ended_by_collection(address: str, kind: str) -> None:
    use(address, kind)


def ended_by_interrupt(address: str, kind: str) -> None:
    """Ctrl-C at some moment between the opening of the handle and its end."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-4 + 3e-3 * np.random.default_rng().random())
        while True:
            table, *_ = use(address, kind)
            table.close()
    except KeyboardInterrupt:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("end", [ended_by_close, ended_by_collection, ended_by_interrupt], ids=lambda end: end.__name__)
def test_nothing_is_left_of_a_handle(owners: Owners, address: str, kind: str, end: Callable[[str, str], None]) -> None:
    for _ in range(3):  # what the first use of a process leaves stays
        ended_by_close(address, kind)
        end(address, kind)
    before = settles(lambda: counts(owners, address), lambda told: told[3] == 0)
    for _ in range(COUNT):
        end(address, kind)
    after = settles(
        lambda: counts(owners, address), lambda told: all(a <= b + 4 for a, b in zip(told, before, strict=True))
    )
    assert all(a <= b + 4 for a, b in zip(after, before, strict=True)), f"{before} before, {after} after"


CHILD = """
import os, sys, numpy as np, relive
from relive.fleet import attach
kept = attach([sys.argv[1]], path="service", timeout_s=5.0) if sys.argv[2] == "attach" else relive.connect(sys.argv[1], 5.0)
kept.sample(4)
"""


@pytest.mark.parametrize("kind", ["connect", "attach"])
def test_a_process_that_ends_leaves_nothing(owners: Owners, address: str, kind: str) -> None:
    import subprocess

    before = settles(lambda: counts(owners, address), lambda told: told[3] == 0)
    for _ in range(3):
        subprocess.run([sys.executable, "-c", CHILD, address, kind], check=True, timeout=60)
    after = settles(lambda: counts(owners, address), lambda told: told[1] <= before[1] + 4)
    assert after[1] <= before[1] + 4 and after[3] == 0


# ---- forks ---------------------------------------------------------------------------------------------------------


def said_by_child(work: Callable[[], str]) -> tuple[str, int]:
    """What a forked child says of its work, and how it ends by sys.exit()."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reads)
        try:
            said = work()
        except BaseException as problem:  # whatever it is, the parent hears of it
            said = type(problem).__name__
        os.write(writes, said.encode())
        os.close(writes)
        sys.exit(7)
    os.close(writes)
    with os.fdopen(reads) as pipe:
        said = pipe.read()
    return said, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
