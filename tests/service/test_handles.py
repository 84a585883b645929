"""Handles of the service that end in every way leave nothing behind, on neither side."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
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
from processes.tools import stop_process

import relive
from relive import errors
from relive.fleet import attach
from relive.service import Streaming
from relive.service.client.exchange import Exchange

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
    num_threads = sum(thread.is_alive() for thread in threading.enumerate())  # Python keeps starts that Ctrl-C ended
    return descriptors(os.getpid()), descriptors(owners.process.pid), num_threads, in_flight


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

    fired = []

    def interrupt(*_: Any) -> None:
        fired.append(True)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-4 + 3e-3 * np.random.default_rng().random())
        while not fired:  # an interrupt in a destructor is dropped
            table, *_ = use(address, kind)
            table.close()
    except (KeyboardInterrupt, RuntimeError):
        pass  # RuntimeError: the interrupt met Python's own Condition as it took its lock again
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.forms(9)
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
opens = {"attach": lambda: attach([sys.argv[1]], path="service"), "connect": lambda: relive.connect(sys.argv[1])}
kept = opens[sys.argv[2]]()
kept.sample(4)
"""


@pytest.mark.forms(1)
@pytest.mark.parametrize("kind", ["connect", "attach"])
def test_a_process_that_ends_leaves_nothing(owners: Owners, address: str, kind: str) -> None:
    before = settles(lambda: counts(owners, address), lambda told: told[3] == 0)
    for _ in range(3):
        subprocess.run([sys.executable, "-c", CHILD, address, kind], check=True, timeout=60)
    after = settles(lambda: counts(owners, address), lambda told: told[1] <= before[1] + 4)
    assert after[1] <= before[1] + 4 and after[3] == 0


QUIET = """
import gc, sys, threading, time, numpy as np, relive
address, end = sys.argv[1:3]
table = relive.connect(address, timeout_s=5.0)
batches = table.batches(4, prefetch=3).__enter__()
next(batches)
held = table.held_draws()
held.draw(relive.core.request.DrawRequest(0, 4), 5.0)
writer = table.writer()
streaming = table.writer(streaming=relive.service.Streaming())
streaming.append(a=1, truncated=True)


def use():
    while True:
        try:
            table.sample(4)
            table.writer().append(a=1, truncated=True)
        except relive.errors.TableClosed:
            return
        except relive.errors.WriterClosed:
            continue


threads = [threading.Thread(target=use, daemon=True) for _ in range(3)]
for thread in threads:
    thread.start()
time.sleep(0.1)
if end == "close":
    table.close()
    for thread in threads:
        thread.join()
    del batches, held, writer, streaming, table
    gc.collect()
"""


@pytest.mark.forms(1)
@pytest.mark.parametrize("end", ["close", "exit"])
def test_the_end_of_a_handle_in_use_prints_nothing(address: str, end: str) -> None:
    """Arrow warns on stderr of each stream that was cancelled and not closed."""
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", QUIET, address, end], capture_output=True, timeout=60, text=True)
        assert (done.returncode, done.stderr) == (0, "")


# ---- forks ---------------------------------------------------------------------------------------------------------


def said_by_child(work: Callable[[], str]) -> tuple[str, int]:
    """What a forked child says of its work, and how it ends: it runs no exit functions of the tests."""
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
        os._exit(7)
    os.close(writes)
    with os.fdopen(reads) as pipe:
        said = pipe.read()
    return said, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def without_a_message(call: Callable[[], Any]) -> str:
    """Makes the call in a forked child, whose messages would take the streams of its parent."""

    def sends(stream: Exchange, *message: Any) -> None:
        raise AssertionError("a message")

    Exchange.send = sends  # type: ignore[method-assign]  # of the child alone
    return str(call())


def test_a_forked_child_is_refused_in_words_and_ends(address: str) -> None:
    """gRPC does not survive a fork: a child of a process that has, or had, a connection is told so at once."""
    with relive.connect(address, timeout_s=5.0) as table:
        table.sample(4)
        sharded = attach([address], path="service", timeout_s=5.0)
        sharded.sample(4)  # its settled ticket waits for the next message
        calls: list[Callable[[], Any]] = [
            sharded.stats,
            sharded.writer,
            lambda: relive.connect(address, timeout_s=5.0),
            lambda: attach([address], path="service", timeout_s=5.0),
            lambda: table.sample(4),
            lambda: sharded.sample(4),
            lambda: sharded.gather(np.zeros(0, np.int64)).num_items or len(sharded),
        ]
        for call in calls:
            assert said_by_child(lambda call=call: without_a_message(call)) == ("ForkedHandle", 7)
        assert said_by_child(lambda: str(table.close() or sharded.close())) == ("None", 7)
        assert said_by_child(lambda: "nothing") == ("nothing", 7)
        sharded.close()
        assert table.sample(4).num_items == 4
    assert said_by_child(lambda: relive.connect(address, timeout_s=5.0) and "") == ("ForkedHandle", 7)


def test_a_forked_child_waits_for_no_lock_of_a_streaming_writer(address: str) -> None:
    """A thread of the parent may have had the lock when the fork copied it."""
    with relive.connect(address, timeout_s=60.0) as table:
        writer = table.writer(streaming=Streaming(linger_s=60.0))
        keys = writer.append(a=1, truncated=True)
        calls: list[Callable[[], Any]] = [
            lambda: np.asarray(keys),
            lambda: writer.append(a=1, truncated=True),
            lambda: writer.append(a=1),
            lambda: writer.extend(a=[1, 2], truncated=True),
            lambda: writer.set_policy_version(1),
            lambda: writer.flush(),
            lambda: table.sample(4),
        ]

        def child(call: Callable[[], Any]) -> str:
            signal.alarm(30)
            return str(call())

        core: Any = writer._core
        with core._lock:
            said = [said_by_child(lambda call=call: child(call)) for call in calls]
            closed = said_by_child(lambda: child(writer.close))
        assert said == [("ForkedHandle", 7)] * len(calls) and closed == ("None", 7)
        assert len(table) == 501


class Waits:
    """Has the only handle of the program, and a method that a thread runs."""

    def __init__(self, address: str, kind: str) -> None:
        self.used = use(address, kind)

    def run(self) -> None:
        """Nothing: its thread never runs it."""


@pytest.mark.forms(3)
@pytest.mark.parametrize("kind", KINDS)
def test_a_fork_releases_no_handle_of_a_thread_that_is_about_to_run(
    address: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python drops such threads in the child, before other libraries hear of the fork."""

    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        thread = threading.Thread(target=Waits(address, kind).run)
        patch.setattr(threading, "_start_new_thread", interrupted)
        thread.start()
    del thread
    assert said_by_child(lambda: "ends") == ("ends", 7)
    threading._limbo.clear()  # type: ignore[attr-defined]


FORKS = """
import os, sys, threading, numpy as np, relive, relive.service
from relive.fleet import ShardOwner, attach
address, kind = sys.argv[1:3]
spec = relive.StepSpec({"a": relive.ArraySpec((), "int64")})
kept = []
if kind == "mapped":
    for number in (0, 1):
        kept += [ShardOwner(number, relive.TableConfig(spec, 100, None, relive.SharedMemory(sys.argv[3 + number])))]
    kept += [attach(sys.argv[3:5])]
elif kind == "server":
    kept += [relive.Table(spec, 100)]
    kept += [relive.service.serve({"one": kept[0]}, "grpc://127.0.0.1:0")]
else:
    kept += [relive.connect(address, 5.0) if kind == "connect" else attach([address], path="service", timeout_s=5.0)]
    kept[0].sample(4)
for drops in (False, True):
    child = os.fork()
    if child == 0:
        if drops:
            kept.clear()
        sys.exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.mark.forms(2)
@pytest.mark.parametrize("kind", ["mapped", "server", "connect", "attach"])
def test_a_forked_child_ends_by_sys_exit(address: str, kind: str, shm_name: Any) -> None:
    arguments = [sys.executable, "-c", FORKS, address, kind, shm_name(), shm_name()]
    ended = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.stdout.split(), ended.returncode) == (["7", "7"], 0), ended.stderr


GARBAGE = """
import gc, os, sys, weakref
import relive, relive.service
from relive.service.client.exchange import StreamBroken

def stream():
    table = relive.connect(sys.argv[1], 5.0)
    table.sample(4)
    (stream, *_) = table.core.connection.streams()
    stream.interrupt()
    reader = stream._reader
    try:
        stream.receive()
    except StreamBroken as problem:  # its traceback has the stream
        table.close()
        return reader, problem

def client():
    table = relive.connect(sys.argv[1], 5.0)
    table.sample(4)
    client = table.core.connection.link._client
    table.close()
    return client, client

def server():
    table = relive.Table(relive.StepSpec({"a": relive.ArraySpec((), "int64")}), 100)
    server = relive.service.serve({"one": table}, "grpc://127.0.0.1:0")
    with relive.connect(server.address + "/one", 5.0) as remote:
        remote.writer().extend(a=[1, 2], truncated=True)
        remote.sample(4)
    flight = server._flight
    server.close()
    return flight, flight

gc.disable()
for number in range(3):
    made, holder = {"stream": stream, "client": client, "server": server}[sys.argv[2]]()
    cycle = [holder]
    cycle.append(cycle)
    left = weakref.ref(made)
    del made, holder, cycle
    child = os.fork()
    if child == 0:
        gc.collect()
        os._exit(7 if left() else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.mark.parametrize("kind", ["stream", "client", "server"])
def test_a_forked_child_releases_nothing_of_grpc_that_its_parent_left_to_the_collector(address: str, kind: str) -> None:
    """The release of a server joins threads that the child lacks; so does that of the last object of a client."""
    ended = subprocess.run([sys.executable, "-c", GARBAGE, address, kind], capture_output=True, text=True, timeout=60)
    assert (ended.stdout.split(), ended.returncode) == (["7"] * 3, 0), ended.stderr


def test_a_forked_child_of_a_process_that_serves(shm_name: Any) -> None:
    table = relive.Table(SPEC, 1000, storage=relive.SharedMemory(shm_name()))
    with table, relive.service.serve({"one": table}, "grpc://127.0.0.1:0") as server:
        with relive.connect(server.address + "/one") as remote:
            remote.writer().extend(a=np.arange(10), truncated=True)
        assert said_by_child(lambda: str(server.close() or "closed")) == ("closed", 7)
        assert said_by_child(lambda: str(relive.service.serve({"one": table}, "grpc://127.0.0.1:0"))) == (
            "ForkedHandle",
            7,
        )
        with relive.connect(server.address + "/one") as remote:
            assert remote.sample(4).num_items == 4


def test_the_refusal_names_the_way_out(address: str) -> None:
    relive.connect(address, timeout_s=5.0).close()

    def work() -> str:
        try:
            relive.connect(address)
        except errors.ForkedHandle as problem:
            return str(problem)
        return ""

    said, _ = said_by_child(work)
    assert "spawn" in said and "before the first connect" in said


# ---- a server that hangs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streaming", [None, Streaming()], ids=["writers", "streaming writers"])
def test_a_handle_with_many_writers_on_a_hung_server_closes_once(
    owners: Owners, address: str, streaming: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every writer has the same end of its wait, whatever the writers before it waited."""
    from relive.service.client.remote_writer import SyncWriterCore
    from relive.service.client.streamed_core import StreamedWriterCore

    table = relive.connect(address, timeout_s=2.0)
    writers = [table.writer(streaming=streaming) if streaming else table.writer() for _ in range(6)]
    for writer in writers:
        writer.append(a=1)
    kind: Any = StreamedWriterCore if streaming else SyncWriterCore
    close_by, ends = kind.close_by, list[float]()

    def noting(core: Any, until: float) -> None:
        ends.append(until)
        close_by(core, until)

    monkeypatch.setattr(kind, "close_by", noting)
    stop_process(owners.process.pid)
    try:
        if streaming:
            for writer in writers:
                writer.append(a=2)
            with pytest.raises(errors.Unacknowledged):
                table.close()
        else:
            table.close()
    finally:
        os.kill(owners.process.pid, signal.SIGCONT)
    assert len(ends) == 6 and len(set(ends)) == 1


def test_a_program_that_used_the_service_is_told_that_it_waits_for_itself() -> None:
    """No thread of a handle that was closed counts as one that might write."""
    program = """
import numpy as np, relive
from relive.service import serve
spec = relive.StepSpec({"a": relive.ArraySpec((), "int64")})
with relive.Table(spec, 100) as table, serve({"t": table}, "grpc://127.0.0.1:0") as server:
    with relive.connect(server.address + "/t") as remote, remote.writer() as writer:
        writer.append(a=1)
with relive.Table(spec, 100) as table:
    try:
        table.sample(1, timeout_s=60.0)
    except relive.errors.WaitsForItself:
        print("told")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "told\n"), done.stderr
