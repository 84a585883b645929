"""Ctrl-C in a call of the main thread ends the call, whatever the server does, and leaves handles that can be used."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from fleet.owning import Owners
from processes.tools import stop_process

import relive

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
