"""Ctrl-C ends a call of the main thread, whatever the server does. It leaves handles and servers that can be used."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from fleet.owning import Owners
from processes.interrupts import interrupted_at
from processes.tools import eventually, stop_process

import relive
from relive import errors
from relive.core import ending
from relive.service import RemoteTable, Server, connect, serve
from relive.service.parameters.store import ParameterStore
from relive.service.server import server as server_code
from relive.service.server.guard import Guard
from relive.service.server.keeper import Keeper
from relive.service.server.saves import Saves
from relive.service.wire import sockets
from relive.service.wire.sockets import cut, tcp_sockets

HEARD_S = 3.0  # in which it is heard; 0.1 s where no other program runs. A call lasts longer by itself

CHILD = """
import sys, time
import numpy as np, relive
from relive.fleet import attach
from relive.service import Streaming

address, call = sys.argv[1:3]
own = attach([address], path="service", timeout_s=60.0) if call.startswith("sharded") else None
table = own or relive.connect(address, timeout_s=60.0)
writer = table.writer(shard=0) if own else table.writer(streaming=Streaming() if call == "flush" else None)
big = table.writer() if call == "extend" else None
batches = table.batches(4, prefetch=1).__enter__() if call == "batches" else None
keys = table.sample(4).item_keys
writer.append(a=1, truncated=True)
if batches:
    next(batches)
calls = {
    "sample": lambda: table.sample(4),
    "forever": lambda: table.sample(4, timeout_s=float("inf")),
    "draw": lambda: table.draw(4),
    "gather": lambda: table.gather(keys),
    "stats": lambda: table.stats(),
    "policy": lambda: table.set_policy_version(1),
    "batches": lambda: [next(batches) for _ in range(1000)],
    "writer": lambda: table.writer(),
    "append": lambda: writer.append(a=2, truncated=True),
    "extend": lambda: [big.extend(a=np.zeros(200_000, np.int64), truncated=True) for _ in range(40)],
    "flush": lambda: (writer.append(a=2, truncated=True), writer.flush()),
    "close_writer": lambda: writer.close(),
    "close": lambda: table.close(),
    "pull": lambda: table.parameters.pull(timeout_s=60.0),
    "connect": lambda: relive.connect(address, timeout_s=60.0),
    "health": lambda: relive.service.health(address.rpartition("/")[0], timeout_s=60.0),
    "sharded_sample": lambda: table.sample(4),
    "sharded_gather": lambda: table.gather(keys),
    "sharded_append": lambda: writer.append(a=2, truncated=True),
    "sharded_attach": lambda: attach([address], path="service", timeout_s=60.0),
    "sharded_close": lambda: table.close(),
}
print("ready", flush=True)
sys.stdin.readline()  # the server has stopped
print("calls", flush=True)
try:
    print("returned", calls[call](), flush=True)
except KeyboardInterrupt:
    print("heard", flush=True)
sys.stdin.readline()  # the server goes on
if call not in ("close", "sharded_close"):
    assert table.sample(4).num_items == 4
    if call != "close_writer":
        writer.append(a=3, truncated=True)
    if batches:
        next(batches)
        batches.close()
    table.close()
print("done", flush=True)
"""
CALLS = [line.split('"')[1] for line in CHILD.splitlines() if line.startswith('    "')]


def said(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


@pytest.mark.forms(4)
@pytest.mark.parametrize("call", CALLS)
def test_ctrl_c_is_heard_beside_a_server_that_hangs(shm_name: Callable[[], str], call: str) -> None:
    owners = Owners()
    spec = relive.StepSpec({"a": relive.ArraySpec((), "int64")})
    address = owners.own(0, relive.TableConfig(spec, 4000, None, relive.SharedMemory(shm_name()), timeout_s=5.0))
    with relive.connect(address) as table, table.writer() as writer:
        writer.extend(a=np.arange(500), truncated=True)
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, address, call],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        go: Any = child.stdin
        assert said(child) == "ready"
        stop_process(owners.process.pid)
        print(file=go, flush=True)
        assert said(child) == "calls"
        time.sleep(0.5)
        began = time.monotonic()
        child.send_signal(signal.SIGINT)
        assert said(child) == "heard"
        assert time.monotonic() - began < HEARD_S
        os.kill(owners.process.pid, signal.SIGCONT)
        print(file=go, flush=True)
        assert said(child) == "done"
        _, problems = child.communicate(timeout=30)
        assert (child.returncode, problems) == (0, "")
        assert owners.ask("in_flight", address) == 0
    finally:
        os.kill(owners.process.pid, signal.SIGCONT)
        child.kill()
        child.communicate()
        owners.close()


# ---- servers ---------------------------------------------------------------------------------------------------------


LOOPBACK = "grpc://127.0.0.1:0"
SPEC = relive.StepSpec({"action": relive.ArraySpec((), "int64")})
INTERRUPTED = [(Guard, "close"), (Keeper, "close"), (ParameterStore, "close"), (Saves, "close"), (server_code, "cut")]


def _connected(server: Server) -> RemoteTable:
    return connect(f"{server.address}/t", timeout_s=1.0)


@pytest.mark.parametrize(("owner", "step_of_close"), INTERRUPTED, ids=lambda one: getattr(one, "__name__", one))
def test_an_interrupted_close_is_repeated(monkeypatch: pytest.MonkeyPatch, owner: Any, step_of_close: str) -> None:
    as_it_is, was_called = getattr(owner, step_of_close), []

    def interrupts(*given: Any) -> Any:
        was_called.append(True)
        if len(was_called) == 1:
            raise KeyboardInterrupt
        return as_it_is(*given)

    with relive.Table(SPEC, 100) as table, serve({"t": table}, LOOPBACK) as server, _connected(server) as remote:
        assert len(remote) == 0  # its stream stays open
        monkeypatch.setattr(owner, step_of_close, interrupts)
        with pytest.raises(KeyboardInterrupt):
            server.close()
        server.close()
        assert was_called[1:] and server._flight is None and "closed" in repr(server)
        with pytest.raises(errors.ServiceUnavailable):
            _connected(server)


def test_a_handler_may_close_a_server_that_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    close = Saves.close
    with relive.Table(SPEC, 100) as table, serve({"t": table}, LOOPBACK) as server:

        def handles_a_signal(saves: Saves, ends: float) -> None:
            server.close()
            close(saves, ends)

        monkeypatch.setattr(Saves, "close", handles_a_signal)
        server.close()
        assert server._flight is None


INTERRUPTED_TWICE = """
import relive
from relive.service import serve
from relive.service.server.saves import Saves
close, presses = Saves.close, [1, 2]  # Ctrl-C in the close of the program, and in that of the interpreter's end
def press(*given):
    if presses:
        presses.pop()
        raise KeyboardInterrupt
    close(*given)
Saves.close = press
table = relive.Table(relive.StepSpec({"action": relive.ArraySpec((), "int64")}), 100)
server = serve({"t": table}, "grpc://127.0.0.1:0")
print(server.address, flush=True)
input()
server.close()
"""


def test_a_process_ends_although_ctrl_c_interrupts_its_close_twice() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED_TWICE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        with connect(process.stdout.readline().strip() + "/t", timeout_s=5.0) as remote:
            assert len(remote) == 0
            thread = threading.Thread(target=_wait_for_steps, args=(remote,))  # a call under way
            thread.start()
            _, said = process.communicate("\n", timeout=60)
            thread.join(60.0)
            assert "KeyboardInterrupt" in said and not thread.is_alive()
    finally:
        process.kill()
        process.communicate()


def _wait_for_steps(remote: RemoteTable) -> None:
    with contextlib.suppress(errors.ReliveError):
        remote.sample(1, timeout_s=600.0)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_ctrl_c_while_the_connections_are_looked_at_leaves_no_copy_of_a_socket() -> None:
    """A copy would keep a socket open after the close() of its owner."""

    ours, theirs = socket.socketpair()
    with ours, theirs:
        before = set(os.listdir("/dev/fd"))
        for at in count():
            kept = interrupted_at(at, lambda: cut(lambda one: False), sockets.__file__)
            if kept is None:
                break
            assert set(os.listdir("/dev/fd")) == before, f"after Ctrl-C at step {at}"
            del kept  # a notebook keeps the error, with its frames
        assert at > 30


def test_a_look_at_the_connections_leaves_the_sockets_of_the_program_as_they_are() -> None:
    """With a default timeout, Python makes each new socket non-blocking, and so all copies of the same one."""
    near, far = multiprocessing.Pipe()
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(30.0)
    try:
        for _ in tcp_sockets():
            assert os.get_blocking(near.fileno()) and os.get_blocking(far.fileno())
    finally:
        socket.setdefaulttimeout(before)
        near.close()
        far.close()


def test_a_serve_that_is_refused_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "_UNDO_S", None)  # a wait for it is a TypeError
    with relive.Table(relive.StepSpec({"a": relive.ArraySpec((), "int64")}), 100) as table:
        with serve({"t": table}, "grpc://127.0.0.1:0") as server, pytest.raises(errors.CannotListen):
            serve({"t": table}, server.address)


def test_ctrl_c_at_any_step_of_serve_leaves_the_port_free() -> None:
    with relive.Table(relive.StepSpec({"a": relive.ArraySpec((), "int64")}), 100) as table:
        with serve({"t": table}, "grpc://127.0.0.1:0") as server:
            address = server.address
        for at in count():
            kept = interrupted_at(at, lambda: serve({"t": table}, address).close(), ending.__file__)
            serve({"t": table}, address).close()
            if kept is None:
                break
        assert at > 3


SERVES_AT_THE_END = """
import relive, relive.service
class Serves:
    def __del__(self):
        try:
            relive.service.serve({"t": table}, "grpc://127.0.0.1:0")
        finally:
            print("ended", flush=True)
table = relive.Table(relive.StepSpec({"a": relive.ArraySpec((), "int64")}), 100)
kept = Serves()
"""


def test_a_serve_at_the_end_of_the_interpreter_ends() -> None:
    done = subprocess.run([sys.executable, "-c", SERVES_AT_THE_END], capture_output=True, text=True, timeout=60)
    assert "ended" in done.stdout and done.returncode == 0


def test_ctrl_c_in_serve_leaves_the_port_free(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupts(*arguments: Any) -> Any:
        """The server listens by now."""
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # type: ignore[arg-type]
        time.sleep(0.05)
        return as_it_is(*arguments)

    as_it_is = server_code.is_of_port
    with relive.Table(relive.StepSpec({"a": relive.ArraySpec((), "int64")}), 100) as table:
        with serve({"t": table}, "grpc://127.0.0.1:0") as server:
            address = server.address
        before = threading.active_count()
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(server_code, "is_of_port", interrupts)
            serve({"t": table}, address)
        serve({"t": table}, address).close()
        assert eventually(lambda: threading.active_count() <= before)
