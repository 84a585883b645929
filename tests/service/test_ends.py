"""The end of a process that has streams: no thread that uses them is left when the interpreter ends."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from contract.tools import plain_spec, write_steps

from service.hosts import Host

# `look` is registered before relive is imported, so it runs after relive's end. The interpreter would unwind a thread
# that still runs then. If the thread is in Arrow's C++, the process aborts.
PROGRAMME = """
import atexit, sys, threading
def look():
    left = [one.name for one in threading.enumerate() if one.name.startswith("relive-")]
    print("left", *left, flush=True)
atexit.register(look)
import numpy as np
import relive
from relive.service import Streaming, connect
table = connect(sys.argv[1])
for _ in range(3):
    table.sample(4)
writer = table.writer(streaming=Streaming()) if sys.argv[2] == "writer" else None
if writer is not None:
    writer.append(observation=np.ones(2), action=1, reward=1.0, next_observation=np.ones(2))
started = [one.name for one in threading.enumerate() if one.name.startswith("relive-")]
print("started", *sorted(started), flush=True)
"""


@pytest.mark.forms(1)
@pytest.mark.parametrize("uses", ["calls", "writer"])
def test_no_thread_of_relive_outlives_its_end(host: Host, uses: str) -> None:
    address = host.serve(plain_spec(), 100)
    from relive.service import connect

    with connect(address) as table, table.writer() as writer:
        write_steps(writer, 0, 20)
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAMME, address, uses], capture_output=True, text=True, timeout=60
        )
        left, started = sorted(done.stdout.splitlines())
        of_writer = ["relive-collected", "relive-deadlines", "relive-keys", "relive-writer"]
        expected = ["relive-deadlines"] if uses == "calls" else of_writer
        assert (started.split()[1:], left) == (expected, "left"), done.stderr
        assert (done.returncode, done.stderr) == (0, "")


GRPC = """
import gc, os, sys, time
import relive
from relive.service import connect, serve
def threads():
    return {open(f"/proc/self/task/{one}/comm").read().strip() for one in os.listdir("/proc/self/task")}
table = relive.Table(relive.StepSpec({"a": relive.ArraySpec((), "float32")}), 10)
server = serve({"table": table}, "grpc://127.0.0.1:0")
handle = connect(server.address + "/table")
during = threads()
handle.close(), server.close()
del handle, server
gc.collect()
time.sleep(0.5)
print(sorted(one for one in during & threads() if one.startswith("grpc_global")))
"""


def test_grpc_runs_until_the_process_ends() -> None:
    """Else its last polls use memory that it has released (relive.service.wire.transport)."""
    done = subprocess.run([sys.executable, "-c", GRPC], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("['grpc_global_tim']\n", 0), done.stderr


UNSENT = """
import gc, signal, subprocess, sys, threading, time
import numpy as np
import relive
from relive.service import connect
HOST = '''
import sys, time, relive
from relive.service import serve
table = relive.Table(relive.StepSpec({"a": relive.ArraySpec((1000,), "float32")}), 6000)
print(serve({"table": table}, "grpc://127.0.0.1:0").address, flush=True)
time.sleep(100)
'''
for _ in range(10):
    host = subprocess.Popen([sys.executable, "-c", HOST], stdout=subprocess.PIPE, text=True)
    table = connect(host.stdout.readline().strip() + "/table", timeout_s=2.0)
    writer = table.writer()
    writer.extend(a=np.zeros((10, 1000)))
    host.send_signal(signal.SIGSTOP)
    threading.Timer(0.3, host.kill).start()
    try:
        writer.extend(a=np.zeros((5000, 1000)))
    except relive.errors.ServiceUnavailable:
        print("unavailable")
    writer.close(), table.close(), host.wait()
    del writer, table
    gc.collect()
time.sleep(12)
"""


@pytest.mark.thorough
def test_connections_that_end_with_unsent_bytes() -> None:
    """Each time the last client goes while a thread of gRPC still polls: that was SIGSEGV within ten seconds."""
    done = subprocess.run([sys.executable, "-c", UNSENT], capture_output=True, text=True, timeout=120)
    assert (done.stdout.split(), done.returncode) == (["unavailable"] * 10, 0), done.stderr


# Half of the threads are still in their calls when the interpreter ends. Those are told that their handle is closed.
SIXTEEN = """
import contextlib, sys, threading
import numpy as np
import relive
from relive.service import Streaming, connect
met = threading.Barrier(17)
def use(number):
    with contextlib.suppress(relive.errors.TableClosed, relive.errors.WriterClosed):
        call(number, number % 2 == 1)
def call(number, is_left):
    table = connect(sys.argv[1], timeout_s=60.0)
    writer = table.writer(streaming=Streaming() if number % 4 > 1 else None)
    turn = 0
    while is_left or turn < 20:
        columns = {"observation": np.ones(2), "action": number, "reward": 1.0, "next_observation": np.ones(2)}
        writer.append(**columns)
        table.sample(4)
        turn += 1
        if turn == 10:
            met.wait()
    writer.close(), table.close()
threads = [threading.Thread(target=use, args=(number,), daemon=number % 2 == 1) for number in range(16)]
for one in threads:
    one.start()
met.wait()
print("met", flush=True)
"""
NUM_CLIENTS = 200 if os.environ.get("RELIVE_SOAK") == "1" else 3


def test_clients_with_sixteen_threads_end_without_a_signal(host: Host) -> None:
    address = host.serve(plain_spec(), 100_000)
    from relive.service import connect

    with connect(address) as table, table.writer() as writer:
        write_steps(writer, 0, 20)

    def run(_: int) -> tuple[int, str, str]:
        done = subprocess.run([sys.executable, "-c", SIXTEEN, address], capture_output=True, text=True, timeout=300)
        return done.returncode, done.stdout, "" if done.returncode == 0 else done.stderr  # calls may end in words

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(run, range(NUM_CLIENTS))) == {(0, "met\n", "")}
